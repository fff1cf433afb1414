"""A Prometheus endpoint: one number out of its text.

    [[target]]
    name = "jobs waiting"
    type = "prometheus"
    url = "http://app.internal:9100/metrics"
    metric = "pollwise_queue_depth"
    match = { queue = "mail" }

More than one sample that fits is summed, or as `aggregate` says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from pollwise.core.outcome import Plain
from pollwise.fleet.probes.failed import failed
from pollwise.fleet.probes.http.fetch import Fetch
from pollwise.fleet.probes.http.probe import (
    summary_of,
    unchanged,
    validators_for,
    validators_of,
)
from pollwise.fleet.probes.options import Options
from pollwise.fleet.targets import ProbeContext, Reading, Target

#: Such an endpoint may be long: the most bytes of it, unless `limit` says otherwise.
BODY_MAX = 16 * 1024 * 1024
AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": math.fsum,
    "max": max,
    "min": min,
    "mean": lambda values: math.fsum(values) / len(values),
    "count": len,
}
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\\n]|\\.)*)"\s*(,|(?=\}))')
_ESCAPED = re.compile(r"\\(.)")
_ACCEPT = "text/plain;version=0.0.4"


class PrometheusProbe:
    """Reads one number. Options: metric, match, aggregate, and http's that say how to ask."""

    __slots__ = ("_aggregate", "_fetch", "_match", "_metric", "host")

    def __init__(self, target: Target) -> None:
        options = Options(target)
        self._fetch = Fetch(options)
        self._fetch.headers = {"accept": _ACCEPT, **self._fetch.headers}
        if not options.has("limit"):
            self._fetch.limit = BODY_MAX
        self.host = self._fetch.host
        self._metric = options.text("metric", needed=True)
        if self._metric and not _NAME.fullmatch(self._metric):
            options.wrong("metric", f"= {self._metric!r} is no name of a metric")
        self._match = options.texts("match")
        self._aggregate = options.one_of("aggregate", tuple(AGGREGATES), "sum")
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        last = context.last
        answer = await self._fetch(context.epoch, validators_of(last, target))
        if answer.unchanged and last is not None:
            return unchanged(last, answer)
        values = [
            value
            for labels, value in samples(answer.text, self._metric)
            if all(labels.get(key) == wanted for key, wanted in self._match.items())
        ]
        if not values:
            wanted = ",".join(f'{key}="{each}"' for key, each in self._match.items())
            raise failed(
                f"{self._fetch.shown} has no sample of {self._metric}"
                + (f"{{{wanted}}}" if wanted else "")
            )
        value = AGGREGATES[self._aggregate](values)
        text = repr(value) if not float(value).is_integer() else str(int(value))
        facts: dict[str, Plain] = {**answer.facts, "samples": len(values)}
        if math.isfinite(value):
            facts["value"] = value
        return Reading(
            text,
            None,
            facts,
            summary_of(answer, f"{self._metric} = {text}"),
            validators_for(answer, target),
        )


def samples(text: str, metric: str) -> Iterator[tuple[Mapping[str, str], float]]:
    """The samples of a metric in the text format, 0.0.4; a line that is none is a failure."""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip(" \t\r")
        # Most lines are of other metrics: those are not looked into.
        if not line.startswith(metric) or line[len(metric) : len(metric) + 1] not in (
            "{",
            " ",
            "\t",
        ):
            continue
        try:
            yield _sample(line, len(metric))
        except ValueError:
            raise failed(f"line {number} is no sample: {line[:80]!r}") from None


def _sample(line: str, at: int) -> tuple[Mapping[str, str], float]:
    labels: dict[str, str] = {}
    at += len(line[at:]) - len(line[at:].lstrip())
    if line[at] == "{":
        at += 1
        while line[at : at + 1] != "}":
            found = _LABEL.match(line, at)
            if found is None:
                raise ValueError(line)
            labels[found[1]] = _ESCAPED.sub(_unescaped, found[2])
            at = found.end()
            at += len(line[at:]) - len(line[at:].lstrip())
        at += 1
    value, *rest = line[at:].split()  # a timestamp may follow
    if len(rest) > 1:
        raise ValueError(line)
    return labels, float(value)


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


make = PrometheusProbe
