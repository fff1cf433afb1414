"""The form of the lab's page: its values, and the comparison that they ask for."""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode

from pollwise.durations import seconds, short
from pollwise.errors import ConfigError
from pollwise.lab.policies import USUAL, CostTerms, label, parse
from pollwise.lab.prices import MONTH, price_named, store_price, wait_price
from pollwise.lab.traces.claimed import HOW_REBUILT, claimed_in
from pollwise.runtime.rollups import HistoryPoint, merged
from pollwise.web.comparisons import ComparisonRequest
from pollwise.web.sources import QueueSource

#: The default price of a second that one item waits: a cent an hour.
WAIT_PRICE = "0.01/3600"
#: What a queue's own traffic is compared with by default.
FOR_QUEUE = "worth, adaptive, fixed 500ms"
#: The workloads that the lab makes up; a test compares them with the lab's.
WORKLOADS = ("steady", "diurnal", "bursty", "on-off", "flash-crowd", "cron", "self-exciting")
#: How far back the history of a queue is taken, in hours.
QUEUE_HOURS = (1, 6, 24)
UNITS = ("auto", "s", "ms", "us", "ns", "iso")
#: What the values of metrics are.
VALUES = ("auto", "rate", "count", "counter")
#: The most strategies of a comparison, and the longest value of a field, in characters.
STRATEGIES_MAX = 12
TEXT_MAX = 2000
#: The longest workload, in hours.
HOURS_MAX = 31 * 24.0
#: The files in the folder of traces that are offered, by the ends of their names, and how many.
TRACE_ENDS = (".csv", ".tsv", ".txt", ".log", ".json", ".ndjson", ".jsonl", ".gz")
TRACES_MAX = 200
HOW_REPLAYED = (
    "The replay has one poller and no hints. Workers that poll side by side poll more often and "
    "find jobs sooner together, and hints wake them at once."
)


@dataclass(frozen=True, slots=True)
class LabForm:
    """The values of the form, as text. traffic: `workload`, `queue`, `folder` or `upload`."""

    traffic: str = "workload"
    workload: str = "bursty"
    hours: str = "24"
    seed: str = "0"
    queue: str = ""
    queue_hours: str = "24"
    file: str = ""
    column: str = ""
    unit: str = "auto"
    bins: str = ""
    values: str = "auto"
    sort: str = ""
    strategies: str = USUAL
    price: str = "s3-list"
    wait_price: str = WAIT_PRICE

    @classmethod
    def of(cls, given: Mapping[str, str], queues: Mapping[str, QueueSource]) -> LabForm:
        """From a submitted form, or from the parameters of an address."""
        values = {
            each.name: given[each.name][:TEXT_MAX] for each in fields(cls) if each.name in given
        }
        source = queues.get(values.get("queue", ""))
        if source is not None and "traffic" not in values:  # "What would this queue cost?"
            about = {"strategies": FOR_QUEUE, "price": store_price(source.queue.url).name}
            values = {**about, "traffic": "queue", **values}
        return cls(**values)

    def query(self) -> str:
        """The values that differ from the defaults, as parameters of an address."""
        plain = asdict(LabForm())
        return urlencode({k: v for k, v in asdict(self).items() if v != plain[k] or k == "traffic"})

    def policies(self) -> tuple[str, CostTerms]:
        """The strategies as one line, and the prices; raises `ConfigError` if one is wrong."""
        price = price_named(self.price)
        terms = CostTerms(price.dollars, wait_price(self.wait_price))
        lines = self.strategies.replace("\n", ",").split(",")
        line = ",".join(" ".join(each.split()) for each in lines if each.strip())
        found = parse(line, terms)
        if len(found) > STRATEGIES_MAX:
            raise ConfigError(
                f"{len(found)} strategies are too many; give at most {STRATEGIES_MAX}"
            )
        names = [label(each, terms) for each in found]
        if len(set(names)) < len(names):
            raise ConfigError("two strategies are the same; leave one out")
        return line, terms


def trace_files(folder: Path | None) -> list[str]:
    """The names of the trace files in a folder."""
    if folder is None:
        return []
    try:
        found = sorted(
            each.name
            for each in folder.iterdir()
            if each.name.endswith(TRACE_ENDS) and each.is_file() and not each.is_symlink()
        )
    except OSError:
        return []
    return found[:TRACES_MAX]


def workload_request(form: LabForm) -> tuple[str, dict[str, Any]]:
    """The title and the trace of a workload."""
    if form.workload not in WORKLOADS:
        raise ConfigError(f"there is no workload {form.workload[:40]!r}")
    hours = _number(form.hours, "the length in hours", HOURS_MAX)
    seed = _number(form.seed, "the seed", 2**32 - 1, least=0.0)
    trace = {"workload": form.workload, "seed": int(seed), "hours": hours}
    return f"{form.workload}, {short(hours * 3600)}", trace


async def queue_request(
    form: LabForm, source: QueueSource | None, terms: CostTerms
) -> tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]:
    """The title, the trace, how exact it is, and what the queue's workers did in that time."""
    if source is None:
        raise ConfigError(f"there is no queue {form.queue[:40]!r} here; choose one of the list")
    if not source.queue.capabilities.history:
        raise ConfigError(f"{source.title} keeps no history, so its traffic is not known")
    hours = _number(form.queue_hours, "the hours of the queue's history", 24.0)
    now = source.queue.clock.epoch()
    points = await source.queue.history(f"{hours:g}h")
    since, claimed = claimed_in(points, source.title, hours * 3600, now)
    trace = {
        "name": source.title,
        "words": (source.queue.url, "--since", f"{hours:g}h"),
        "since": since,
        "until": now,
        "claimed": [(each.at, each.seconds, each.found, each.waits) for each in claimed],
    }
    title = f"{source.title}, the last {short(round(now - since, -1))}"
    return title, trace, (HOW_REBUILT, HOW_REPLAYED), measured(merged(points), now - since, terms)


def measured(total: HistoryPoint, span: float, terms: CostTerms) -> dict[str, Any]:
    """What workers did in `span` seconds, with the same keys as a policy of the report."""
    waits, month = total.waits, MONTH / span
    longest = max((low if math.isinf(high) else high for low, high, _ in waits.bounds()), default=0)
    polls, waiting = total.polls * terms.poll * month, waits.total * terms.wait * month
    return {
        "polls_an_hour": total.polls / span * 3600,
        "wait_mean_s": waits.mean or 0.0,
        "wait_p50_s": waits.quantile(0.5) or 0.0,
        "wait_p95_s": waits.quantile(0.95) or 0.0,
        "wait_max_s": longest,
        "poll_dollars_a_month": polls,
        "dollars_a_month": polls + waiting,
        "workers": total.worker_seconds / span,
        "hinted": total.hinted / total.polls if total.polls else 0.0,
    }


def file_request(form: LabForm, path: Path, name: str) -> tuple[str, dict[str, Any]]:
    """The title and the trace of a file."""
    if form.unit not in UNITS:
        raise ConfigError(f"the unit {form.unit[:20]!r} is not one of {', '.join(UNITS)}")
    if form.values not in VALUES:
        raise ConfigError(f"the values {form.values[:20]!r} are not one of {', '.join(VALUES)}")
    if form.bins:
        seconds(form.bins, "the length of a bin", positive=True)
    trace = {
        "file": str(path),
        "name": name,
        "column": form.column.strip() or None,
        "unit": form.unit,
        "bins": form.bins.strip() or None,
        "values": form.values,
        "sort": bool(form.sort),
    }
    return name, trace


async def kept_upload(file: IO[bytes]) -> Path:
    """A copy of an uploaded file in a new folder of its own."""

    def copied() -> Path:
        folder = Path(tempfile.mkdtemp(prefix="pollwise-lab-"))
        try:
            with (folder / "trace").open("wb") as copy:
                file.seek(0)
                shutil.copyfileobj(file, copy)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder / "trace"

    return await asyncio.to_thread(copied)


def asked(
    form: LabForm,
    line: str,
    title: str,
    trace: Mapping[str, Any],
    back: str,
    **more: Any,
) -> ComparisonRequest:
    """The comparison that a form asks for."""
    return ComparisonRequest(
        title, trace, line, form.price.strip(), form.wait_price.strip(), back=back, **more
    )


def _number(text: str, what: str, most: float, least: float = 0.01) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise ConfigError(f"{what} is {text[:20]!r}; give a number from {least:g} to {most:g}")
    return number
