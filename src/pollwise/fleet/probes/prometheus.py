"""A Prometheus endpoint: reads one number from its text.

    [[target]]
    name = "jobs waiting"
    type = "prometheus"
    url = "http://app.internal:9093/metrics"
    metric = "pollwise_queue_depth"
    match = { queue = "mail", state = "ready" }

If several samples match, `aggregate` combines them; the default is their sum.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from pollwise.core.outcome import Plain
from pollwise.errors import MissingExtra
from pollwise.fleet.probes.http.fetch import HttpAnswer
from pollwise.fleet.probes.http.probe import URL_FACTS, UrlProbe
from pollwise.fleet.probes.options import ProbeOptions, failed

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    raise MissingExtra("a probe of Prometheus endpoints", "fleet") from error

#: The longest line of a sample that is parsed, in characters.
LINE_MAX = 64 * 1024
AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": math.fsum,
    "max": max,
    "min": min,
    "mean": lambda values: math.fsum(values) / len(values),
    "count": len,
}
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_AFTER_NAME = ("{", " ", "\t")
_ACCEPT = "text/plain;version=0.0.4"


FACTS = {
    "value": "the number",
    "samples": "number of samples that matched",
    **URL_FACTS,
}


class PrometheusProbe(UrlProbe):
    """Reads one number. Options: metric, match, aggregate, and the request options of http."""

    __slots__ = ("_aggregate", "_match", "_metric")

    limit = 16 * 1024 * 1024

    def _read_options(self, options: ProbeOptions) -> None:
        self._fetch.headers = {"accept": _ACCEPT, **self._fetch.headers}
        self._metric = options.text("metric", needed=True)
        if self._metric and not _NAME.fullmatch(self._metric):
            options.wrong("metric", f"= {self._metric!r} is not a metric name")
        self._match = options.texts("match")
        self._aggregate = options.one_of("aggregate", tuple(AGGREGATES), "sum")

    async def _read(self, answer: HttpAnswer) -> tuple[str, float | None, dict[str, Plain], str]:
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
        facts: dict[str, Plain] = {"samples": len(values)}
        if math.isfinite(value):
            facts["value"] = value
        return text, None, facts, f"{self._metric} = {text}"


def samples(text: str, metric: str) -> Iterator[tuple[Mapping[str, str], float]]:
    """The samples of one metric in the text format 0.0.4; a malformed line is a failure."""
    for number, line in enumerate(text.split("\n"), 1):
        # Most lines belong to other metrics and are not parsed.
        if not line.startswith(metric) or line[len(metric) : len(metric) + 1] not in _AFTER_NAME:
            continue
        if len(line) > LINE_MAX:
            raise failed(f"line {number} is longer than {LINE_MAX:,} characters")
        try:
            for family in text_string_to_metric_families(line):
                for sample in family.samples:
                    yield sample.labels, float(sample.value)
        except ValueError:
            raise failed(f"line {number} is not a sample: {line[:80]!r}") from None


make = PrometheusProbe
