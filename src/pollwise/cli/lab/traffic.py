"""The traffic that a command of the lab replays: a file, a workload, or the history of a queue."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qsl

import typer
from rich.text import Text

from pollwise.cli.outbox.records import with_store
from pollwise.cli.output import err, visible
from pollwise.cli.queue.opening import with_queue
from pollwise.durations import seconds
from pollwise.errors import ConfigError, did_you_mean
from pollwise.lab.traces.claimed import HOW_REBUILT, claimed_in
from pollwise.outbox.stores.base import OutboxStore
from pollwise.queues.base import Queue
from pollwise.runtime.redact import split_url
from pollwise.runtime.rollups.keeping import HISTORY_MINUTES_KEPT

if TYPE_CHECKING:
    from pollwise.lab.replay.base import Trace

WORKLOADS = "steady, diurnal, bursty, on-off, flash-crowd, cron, self-exciting"
SEEDS = 2**32 - 1
SINCE = "24h"

TraceName = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="A trace or log file, a queue or outbox (sqlite:///jobs.db) whose history is used, or "
        f"a workload: {WORKLOADS}.",
    ),
]
Column = Annotated[
    str | None, typer.Option(help="The file's column: its name, or its number from 1.")
]
Unit = Annotated[str, typer.Option(help="Unit of the file's times: auto, s, ms, us, ns or iso.")]
Bins = Annotated[
    str | None,
    typer.Option(help="The column has counts of arrivals, in bins of this length: 60s."),
]
Values = Annotated[
    str,
    typer.Option(
        help="What metrics in the file are: rate (arrivals a second), count (in each step) or "
        "counter (since it began)."
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=SEEDS, help="Seed of all random numbers.")]
Hours = Annotated[float | None, typer.Option(help="Length of a workload (24).")]
Sort = Annotated[bool, typer.Option("--sort", help="Sort the file's arrivals first.")]
Since = Annotated[
    str | None, typer.Option(help=f"How far back the history of a queue is used ({SINCE}).")
]


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How the traffic is read, as the options of the command line have it."""

    column: str | None = None
    unit: str = "auto"
    bins: str | None = None
    values: str = "auto"
    sort: bool = False
    since: str | None = None
    hours: float | None = None

    def only(self, what: str, *names: str) -> None:
        """Refuse the options that are for something else. names: those that may be given."""
        kinds = {"since": "queues and outboxes", "hours": "workloads"}
        for name in self.__slots__:
            if name not in names and getattr(self, name) != getattr(_NONE, name):
                raise ConfigError(
                    f"--{name} is for {kinds.get(name, 'files')}, but {what}; leave it out"
                )


_NONE = TraceOptions()


def load(name: str, options: TraceOptions, seed: int) -> Trace:
    """The trace in the file of this name, from the history at this URL, or of this workload."""
    from pollwise.lab.traces import reading as traces
    from pollwise.lab.traces import synthetic

    path = Path(name)
    if path.exists():
        options.only(f"{name!r} is a file", "column", "unit", "bins", "values", "sort")
        words: dict[str, Any] = {each: getattr(options, each) for each in ("unit", "values")}
        return traces.read(
            path, column=options.column, bins=options.bins, sort=options.sort, seed=seed,
            tell=lambda said: err.print(Text(visible(said)), soft_wrap=True), **words
        )  # fmt: skip
    if "://" in name:
        options.only("this is the URL of a store", "since")
        return _history(name, options.since or SINCE, seed)
    wanted = name.strip().lower().replace("_", "-")
    if wanted not in synthetic.WORKLOADS:
        advice = did_you_mean(wanted, synthetic.WORKLOADS, f"workloads: {WORKLOADS}")
        raise ConfigError(f"{name!r} is not a file, a URL or a workload; {advice}")
    options.only(f"{name!r} is a workload", "hours")
    hours = synthetic.HOURS if options.hours is None else options.hours
    return synthetic.workload(wanted, seed, hours)


def names_outbox(url: str) -> bool:
    """True for the URL of an outbox, which names it: `sqlite:///shop.db?outbox=default`."""
    return "outbox" in dict(parse_qsl(split_url(url).query, keep_blank_values=True))


def _history(url: str, since: str, seed: int) -> Trace:
    """The arrivals in a queue or an outbox, rebuilt from what its workers or relays noted."""
    from pollwise.lab.traces.history import rebuilt

    span = seconds(since, "--since", positive=True)
    if span > HISTORY_MINUTES_KEPT:
        raise ConfigError(
            f"--since {since} is too long: figures by minute are kept for "
            f"{HISTORY_MINUTES_KEPT / 86400:g} days; give 7d or less"
        )

    async def work(store: Queue | OutboxStore) -> Trace:
        points = await store.history(span, by="minute")
        now = store.clock.epoch()
        begin, claimed = claimed_in(points, store.url, span, now)
        return rebuilt(store.name, claimed, begin, now, seed)

    trace = with_store(url, work) if names_outbox(url) else with_queue(url, work)
    err.print(Text(HOW_REBUILT), soft_wrap=True)
    return trace
