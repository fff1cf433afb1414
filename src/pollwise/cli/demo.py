"""`pollwise demo`: an adaptive worker on bursty traffic, compared with fixed polling.

Everything is real: a SQLite queue in a temporary folder, a producer, a worker. Only the rows of
fixed polling are computed, from the same arrivals. Hints are off by default, because the
demo is about pacing: with hints, the worker hardly has to poll.
"""

from __future__ import annotations

import asyncio
import math
import random
import shutil
import stat
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pollwise.cli.options import Json
from pollwise.cli.output import err, out, print_json, say, say_aside
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.worth import Worth
from pollwise.durations import short
from pollwise.lab.prices import PRICES, Price, dollars_a_month, price_named
from pollwise.lab.replay.fixed import FixedPolling, percentile, polled_every
from pollwise.platforms import loops, signals
from pollwise.platforms.users import is_ours
from pollwise.queues.base import Queue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, JobStarted, PollFinished
from pollwise.runtime.jobs import Job, NewJob
from pollwise.settings import strategy_named
from pollwise.worker import Worker, WorkerRunOptions

#: What a second of a job's waiting costs, for Worth: a cent an hour, in dollars.
WAIT_COST = 0.01 / 3600
#: The cost of a poll, for Worth, if polls are free: a thousandth of a cent.
FREE = 1e-5
CONCURRENCY = 4
#: How many jobs a poll can find: one for each handler, and one ahead for each.
CAPACITY = 2 * CONCURRENCY
#: The fixed intervals to compare with, in seconds.
FIXED = (0.1, 0.5)
#: Bursts: jobs per second, how long a burst lasts, and the silence after it (from, to).
BURST_RATE = 6.0
BURST_SECONDS = (0.5, 2.5)
IDLE_SECONDS = (8.0, 20.0)
REFRESHES = 8
#: The beginning of the folder's name, the file in it, and how long it is kept, in seconds.
FOLDER = "pollwise-demo-"
STORE = "demo.db"
KEPT_FOR = 86400.0
BLOCKS = " ▁▂▃▄▅▆▇█"
#: How many of the last intervals are drawn, at most.
DRAWN = 60


@dataclass(frozen=True)
class DemoPlan:
    """The options of a demo."""

    strategy: Strategy
    price: Price
    seconds: float
    hints: bool
    seed: int
    web: bool = False


@dataclass
class DemoCounts:
    """What has happened so far, counted from the events."""

    clock: Clock
    started: float = 0.0
    ended: float | None = None
    arrivals: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    polls: int = 0
    empty: int = 0
    found: int = 0
    interval: float = 0.0
    intervals: deque[float] = field(default_factory=lambda: deque(maxlen=DRAWN))

    def seconds(self) -> float:
        return (self.clock.now() if self.ended is None else self.ended) - self.started

    def on_poll(self, event: PollFinished) -> None:
        self.polls += 1
        self.empty += not event.found
        self.found += event.found
        self.interval = event.interval

    def on_start(self, event: JobStarted) -> None:
        self.waits.append(event.waited)


@dataclass(frozen=True)
class DemoRow:
    """One line of the table: a policy, its polls and its waits."""

    name: str
    polls: int
    empty: int
    found: int
    p50: float | None
    p95: float | None
    dollars: float

    @property
    def wasted(self) -> float:
        return self.empty / self.polls if self.polls else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "polls": self.polls,
            "polls_empty": self.empty,
            "found": self.found,
            "wasted_share": round(self.wasted, 4),
            "wait_p50_s": _rounded(self.p50),
            "wait_p95_s": _rounded(self.p95),
            "dollars_a_month": round(self.dollars, 4),
        }


def demo(
    seconds: Annotated[float, typer.Option(min=1, max=86400, help="How long to run.")] = 60.0,
    strategy: Annotated[
        str, typer.Option(help="adaptive, fixed, batch_fill, ewma or worth.")
    ] = "adaptive",
    price: Annotated[
        str, typer.Option(help=f"What a poll costs: {', '.join(PRICES)}, or 0.005/1000.")
    ] = "s3-list",
    hints: Annotated[
        bool, typer.Option("--hints/--no-hints", help="Let hints end the worker's pauses early.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the traffic and the jitter.")] = 7,
    web: Annotated[
        bool, typer.Option("--web", help="Show it in a browser too, while it runs.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Watch an adaptive worker save polls on a bursty queue. Ctrl-C ends it early.

    The store stays in a temporary folder for `pollwise web` to show; with --json it is deleted. The
    next demo deletes stores that are older than a day.

    Example: pollwise demo --seconds 30 --strategy adaptive
    """
    cost = price_named(price)
    plan = DemoPlan(_strategy(strategy, cost), cost, seconds, hints, seed, web)
    if web:
        import pollwise.web  # noqa: F401 - refused before anything starts if the extra is missing
    seen = DemoCounts(Clock())
    # A SIGTERM before the worker handles signals ends it like Ctrl-C, so the folder is removed.
    before = signals.set_handler(signals.TERMINATE, signals.INTERRUPTS)
    _remove_old()
    folder = Path(tempfile.mkdtemp(prefix=FOLDER))
    kept = False
    try:
        loops.run(run(plan, seen, folder, live=not as_json))
        kept = not as_json
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
        signals.set_handler(signals.TERMINATE, before)
    rows = _rows(plan, seen)
    if as_json:
        print_json(_facts(plan, seen, rows))
    else:
        _summary(plan, seen, rows)
        say("To see its jobs in a browser:")
        say(f"  {_command()} web --link sqlite:///{quote(str(folder / STORE))}")


def _command() -> str:
    """How to call this program: `make demo` does not put it on PATH."""
    if shutil.which("pollwise"):
        return "pollwise"
    beside = Path(sys.executable).with_name("pollwise")
    if not beside.exists():
        return f"{sys.executable} -m pollwise"
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)


def _remove_old() -> None:
    """Delete the stores of earlier demos of this user."""
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        with suppress(OSError):
            about = path.lstat()
            if (
                stat.S_ISDIR(about.st_mode)
                and is_ours(about)
                and time.time() - about.st_mtime > KEPT_FOR
            ):
                shutil.rmtree(path, ignore_errors=True)


def _strategy(name: str, price: Price) -> Strategy:
    """A strategy with its defaults; for Worth with the prices of a poll and of waiting."""
    if name == Worth.name:
        return Worth(poll_cost=price.dollars or FREE, wait_cost=WAIT_COST)
    return strategy_named(name)


def traffic(seed: int) -> Iterator[float]:
    """Arrival times of jobs, in seconds since the start: bursts and silence, fixed by the seed."""
    rng = random.Random(seed)
    at = 0.0
    while True:
        until = at + rng.uniform(*BURST_SECONDS)
        while at < until:
            yield at
            at += rng.expovariate(BURST_RATE)
        at += rng.uniform(*IDLE_SECONDS)


async def run(plan: DemoPlan, seen: DemoCounts, folder: Path, *, live: bool) -> None:
    """Put jobs and run them until the time is up; count what happens in `seen`."""
    events = Events(quiet=True)
    events.subscribe(seen.on_poll, PollFinished)
    events.subscribe(seen.on_start, JobStarted)
    async with SqliteQueue(folder / STORE, watch=0, keep="1d", clock=seen.clock) as queue:
        worker = Worker(queue, name="demo", events=events)

        @worker.handle("greet")
        async def greet(job: Job) -> None:
            """The demo needs no real work."""

        await queue.stats()  # create the file before the clock starts
        seen.started = seen.clock.now()
        seen.interval = plan.strategy.pacer().first().delay
        options = WorkerRunOptions(
            polling=plan.strategy,
            concurrency=CONCURRENCY,
            prefetch=CAPACITY - CONCURRENCY,
            hints=plan.hints,
            seed=plan.seed,
        )
        background = [
            asyncio.create_task(_produce(queue, seen, plan.seed)),
            asyncio.create_task(_end_after(worker, seen.clock, plan.seconds)),
        ]
        ended, shown = asyncio.Event(), None
        if plan.web:
            listening = asyncio.Event()
            shown = asyncio.create_task(_show_pages(queue, ended, listening, aside=not live))
            started = asyncio.create_task(listening.wait())
            await asyncio.wait([started, shown], return_when=asyncio.FIRST_COMPLETED)
            started.cancel()
        if live:
            background.append(asyncio.create_task(_show(plan, seen)))
        try:
            await worker.run(options)
        finally:
            seen.ended = seen.clock.now()
            ended.set()
            if shown is not None:
                await shown
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)


async def _show_pages(
    queue: Queue, ended: asyncio.Event, listening: asyncio.Event, *, aside: bool
) -> None:
    """Serve the web interface at a free port of this machine until the demo has ended."""
    from pollwise.cli.web import run_web
    from pollwise.settings import WebSettings
    from pollwise.web.access import SessionAccess
    from pollwise.web.app import app

    def started(url: str) -> None:
        text = f"Open this address within 10 minutes; it logs in once:\n{url}"
        say_aside(text) if aside else say(text)
        listening.set()

    async with app(queue, tokens=True) as web:
        access = web.web.access
        path = access.one_time() if isinstance(access, SessionAccess) else ""
        await run_web(web, WebSettings(port=0), started, path, signals=False, stopped=ended)


async def _produce(queue: Queue, seen: DemoCounts, seed: int) -> None:
    for at in traffic(seed):
        await seen.clock.sleep(max(at - seen.seconds(), 0.0))
        seen.arrivals.append(seen.seconds())
        await queue.put(NewJob("greet", {"number": len(seen.arrivals)}))


async def _end_after(worker: Worker, clock: Clock, seconds: float) -> None:
    await clock.sleep(seconds)
    worker.stop()


async def _show(plan: DemoPlan, seen: DemoCounts) -> None:
    """Draw until cancelled."""
    with Live(console=out, auto_refresh=False, transient=True) as live:
        while True:
            seen.intervals.append(seen.interval)
            live.update(view(plan, seen, out.width), refresh=True)
            await seen.clock.sleep(1 / REFRESHES)


def view(plan: DemoPlan, seen: DemoCounts, width: int) -> Group:
    """The live view, in `width` columns."""
    strategy = plan.strategy
    head = Text.assemble(
        ("pollwise demo  ", "bold"),
        f"{seen.seconds():.0f} of {plan.seconds:g} s   {len(seen.arrivals)} jobs put   "
        f"hints {'on' if plan.hints else 'off'}   Ctrl-C ends it",
        no_wrap=True,
        overflow="ellipsis",
    )
    interval = Text.assemble(
        "interval now ",
        (f"{short(seen.interval):>6}", "bold cyan"),
        f"  between {short(strategy.min_interval)} and {short(strategy.max_interval)}  ",
    )
    room = max(width - len(interval), 0)
    recent = list(seen.intervals)[-room:] if room else []
    interval.append(_spark(recent, strategy.max_interval), "cyan")
    return Group(head, interval, Text(), _table(_rows(plan, seen)), _foot(plan))


def _foot(plan: DemoPlan) -> Text:
    text = f"a poll: {plan.price.what}; fixed rows: the same arrivals"
    return Text(text, style="dim", no_wrap=True, overflow="ellipsis")


def _spark(values: Sequence[float], max_interval: float) -> str:
    top, last = max(max_interval, 1e-9), len(BLOCKS) - 1
    return "".join(BLOCKS[min(math.ceil(value / top * last), last)] for value in values)


def _rows(plan: DemoPlan, seen: DemoCounts) -> list[DemoRow]:
    seconds = seen.seconds()

    def row(name: str, of: DemoCounts | FixedPolling, found: int) -> DemoRow:
        p50, p95 = percentile(of.waits, 0.5), percentile(of.waits, 0.95)
        dollars = dollars_a_month(of.polls, seconds, plan.price)
        return DemoRow(name, of.polls, of.empty, found, p50, p95, dollars)

    rows = [row(plan.strategy.name, seen, seen.found)]
    for interval in FIXED:
        fixed = polled_every(interval, seen.arrivals, seconds, capacity=CAPACITY)
        rows.append(row(f"fixed {short(interval)}", fixed, len(fixed.waits)))
    return rows


def _facts(plan: DemoPlan, seen: DemoCounts, rows: list[DemoRow]) -> dict[str, Any]:
    return {
        "strategy": plan.strategy.name,
        "recipe": repr(plan.strategy),
        "seconds": round(seen.seconds(), 2),
        "seed": plan.seed,
        "hints": plan.hints,
        "price": plan.price.what,
        "jobs": len(seen.arrivals),
        **rows[0].as_dict(),
        "instead": {row.name: row.as_dict() for row in rows[1:]},
    }


def _table(rows: list[DemoRow]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("polling")
    for column in ("polls", "empty", "found", "wasted", "wait p50", "wait p95", "$ a month"):
        table.add_column(column, justify="right")
    for number, row in enumerate(rows):
        table.add_row(
            row.name,
            f"{row.polls:,}",
            f"{row.empty:,}",
            f"{row.found:,}",
            f"{row.wasted:.0%}",
            _wait(row.p50),
            _wait(row.p95),
            f"{row.dollars:,.2f}",
            style="bold" if number == 0 else "dim",
        )
    return table


def _wait(seconds: float | None) -> str:
    return "–" if seconds is None else short(float(f"{seconds:.2g}"))


def _summary(plan: DemoPlan, seen: DemoCounts, rows: list[DemoRow]) -> None:
    ours = rows[0]
    out.print(_table(rows), _foot(plan), "", sep="\n")
    if not ours.polls:
        err.print("the run was too short to compare; try --seconds 30")
        return
    out.print(f"In {seen.seconds():.0f} s, {ours.name} polling made {ours.polls} polls.")
    for other in rows[1:]:
        out.print(_comparison(ours, other))
    if not plan.hints:
        out.print("With hints it needs far fewer polls: pollwise demo --hints", style="dim")


def _comparison(ours: DemoRow, other: DemoRow) -> str:
    """The difference to another policy, in one sentence."""
    share = abs(1 - ours.polls / other.polls) if other.polls else 0.0
    more = "more" if ours.polls > other.polls else "fewer"
    text = f"Against {other.name}: {share:.0%} {more} polls"
    if ours.p50 is None or ours.p95 is None:
        return f"{text}; no job arrived, so there is no wait to compare."
    return (
        f"{text}; half of the jobs waited {_wait(ours.p50)} (there {_wait(other.p50)}), "
        f"95 % up to {_wait(ours.p95)} (there {_wait(other.p95)})."
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
