"""Measures queues for metrics: a worker measures its own queue, an exporter the queues of a store.

A measurement reads a bounded number of jobs: `Queue.measured_max` that are ready, from an index,
and EXAMINED_BY_KIND others. If a state has more jobs, the rest are counted together, as the kind
OTHER. The number of kinds is bounded too, because each kind needs many series.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from pollwise.errors import ConfigError, StoreError, StoreUnavailable, Unsupported
from pollwise.queues.base import Queue
from pollwise.queues.limits.use import LimitUse
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.presence import WorkerInfo
from pollwise.queues.urls import names_no_queue, open_queue, url_of_queue
from pollwise.queues.views import Stats, summed
from pollwise.runtime.events import (
    ChoreFailed,
    Events,
    KindTally,
    LimitTally,
    QueueGone,
    QueueMeasured,
    QueuesLeftOut,
)
from pollwise.runtime.executor.handlers import text_of
from pollwise.runtime.jobs import STATES, State
from pollwise.runtime.loop import POLL_RETRY
from pollwise.runtime.redact import without_secrets

#: How many jobs that are not ready are read to count them by kind; each read takes microseconds.
EXAMINED_BY_KIND = 10_000
#: How many kinds of a queue are measured one by one.
KINDS_SHOWN = 100
#: How many schedules of a queue are measured.
SCHEDULES_SHOWN = 100
#: How many kinds with limits are measured.
LIMITS_SHOWN = 100
#: How many queues of a store are measured.
QUEUES_SHOWN = 100
#: The kind of all jobs that are not counted by their own kind.
OTHER = "(other)"
#: The chore of a worker that measures its queue.
MEASURE = "measure"
#: How often a worker measures its queue, and an exporter its store by default, in seconds.
MEASURE_EVERY = 15.0
#: An exporter pauses for at least this many times the time that it measured.
PAUSE_FACTOR = 10


class QueueMeasurer:
    """Measures one queue; remembers the kinds it has shown, to show 0 when they have no jobs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._shown: list[str] = []

    async def measured(self, queue: Queue) -> QueueMeasured:
        """The event for the metrics, from a few calls to the store."""
        can = queue.capabilities
        if can.views:
            read = min(EXAMINED_BY_KIND, queue.measured_max)
            kinds = await queue.stats_by_kind(read, queue.measured_max)
        else:
            kinds = {"": await queue.stats()}
        paused: Sequence[str | None] = list(await queue.paused()) if can.pause else ()
        workers = await queue.workers() if can.presence else None
        names = [kind or "" for kind in paused[: KINDS_SHOWN + 1]]
        late = await self._late(queue) if can.schedules else ()
        used = await self._limits(queue) if can.limits else ()
        startable = _Startable(frozenset(paused), used, workers or (), queue.clock.epoch())
        tallies = self._tallies(kinds, startable)
        capped = summed(kinds.values()).capped
        if capped:
            tallies = _completed(tallies, await queue.stats(queue.measured_max), capped)
        return QueueMeasured(
            self._name,
            tuple(tallies),
            tuple(names),
            can.pause,
            None if workers is None else len(workers),
            late,
            tuple(LimitTally(u.limits.kind, u.running, u.waiting, u.limits.most) for u in used),
        )

    async def _late(self, queue: Queue) -> tuple[tuple[str, float], ...]:
        """The schedules and how late they are, those that are most overdue first."""
        now = queue.clock.epoch()
        try:
            found = await queue.schedules.list()
        except StoreUnavailable:
            raise
        except (StoreError, Unsupported):  # an older controller, or one whose store cannot
            return ()
        late = sorted(((each.late(now), each.name) for each in found), key=_most_late)
        return tuple((name, seconds) for seconds, name in late[:SCHEDULES_SHOWN])

    async def _limits(self, queue: Queue) -> Sequence[LimitUse]:
        """How the limits of some kinds are used, the first by name."""
        try:
            found = await queue.limits.list()
            return [await queue._limit_use(each, 0) for each in found[:LIMITS_SHOWN]]
        except StoreUnavailable:
            raise
        except (StoreError, Unsupported):  # an older controller, or one whose store cannot
            return ()

    def _tallies(self, kinds: Mapping[str, Stats], startable: _Startable) -> list[KindTally]:
        known = [kind for kind in self._shown if kind in kinds]
        new = sorted(kinds.keys() - set(known), key=lambda kind: (-_size(kinds[kind]), kind))
        chosen = [*known, *new][:KINDS_SHOWN]
        empty = [kind for kind in self._shown if kind not in kinds]
        self._shown = [*chosen, *empty[: KINDS_SHOWN - len(chosen)]]
        shown = {
            kind: _tally(kind, kinds.get(kind) or Stats.of({}, None), startable)
            for kind in self._shown
        }
        for kind in kinds.keys() - set(chosen):
            added = _tally(OTHER, kinds[kind], startable, kind)
            shown[OTHER] = _together(shown[OTHER], added) if OTHER in shown else added
        return list(shown.values())


@dataclass(frozen=True, slots=True)
class _Startable:
    """Says how many ready jobs of a kind may start now; the others wait for no worker.

    paused: kinds, and None for the whole queue. The limits of groups are not asked for, because
    that would read too many jobs: such jobs count until the limit of their kind is reached.
    """

    paused: frozenset[str | None]
    limits: Sequence[LimitUse]
    workers: Sequence[WorkerInfo]
    now: float

    def of(self, kind: str, ready: int) -> int:
        if None in self.paused or kind in self.paused or self._broken(kind):
            return 0
        for use in self.limits:
            if use.limits.kind == kind:
                return min(ready, self._room(use, ready))
        return ready

    def _broken(self, kind: str) -> bool:
        """True if the breaker of every worker that handles the kind is open."""
        able = [each for each in self.workers if each.handles(kind)]
        return bool(able) and all(kind in each.breakers for each in able)

    def _room(self, use: LimitUse, ready: int) -> int:
        limits = use.limits
        room = ready if limits.most is None else max(limits.most - use.running, 0)
        if limits.rate is None:
            return room
        return 0 if (use.next_at or 0.0) > self.now else min(room, limits.rate.burst)


def _most_late(each: tuple[float, str]) -> tuple[float, str]:
    return -each[0], each[1]


def _size(stats: Stats) -> int:
    return sum(getattr(stats, state) for state in STATES)


def _tally(kind: str, stats: Stats, startable: _Startable, counted: str | None = None) -> KindTally:
    """The jobs of one kind; `counted` is its own name if it is shown as another."""
    counts = tuple((state, getattr(stats, state)) for state in STATES)
    oldest = stats.oldest_age or 0.0
    now = startable.of(kind if counted is None else counted, stats.ready)
    return KindTally(kind, counts, oldest, now, oldest if now else 0.0)


def _together(one: KindTally, other: KindTally) -> KindTally:
    counts = tuple(
        (state, a + b) for (state, a), (_, b) in zip(one.counts, other.counts, strict=True)
    )
    return KindTally(
        one.kind,
        counts,
        max(one.oldest_age, other.oldest_age),
        one.startable + other.startable,
        max(one.startable_age, other.startable_age),
    )


def _completed(tallies: list[KindTally], whole: Stats, capped: frozenset[State]) -> list[KindTally]:
    """Add the jobs that were not counted by kind to the tally of OTHER.

    As many of them may start, in proportion, as of those that were counted.
    """
    missing: dict[str, int] = {}
    for state in STATES:
        counted = sum(dict(each.counts)[state] for each in tallies)
        missing[state] = max(getattr(whole, state) - counted, 0) if state in capped else 0
    ready = sum(dict(each.counts)["ready"] for each in tallies)
    share = sum(each.startable for each in tallies) / ready if ready else 1.0
    counts = tuple((state, missing[state]) for state in STATES)
    added = KindTally(OTHER, counts, 0.0, round(missing["ready"] * share))
    other = {each.kind: each for each in tallies}.get(OTHER)
    completed = added if other is None else _together(other, added)
    return [*(each for each in tallies if each.kind != OTHER), completed]


@dataclass(slots=True)
class QueueExporter:
    """Measures the queues at some URLs; of a URL that names no queue, all queues of the store.

    Raises `ConfigError` for a URL whose queues cannot be measured. Each store is asked once in
    `every` seconds, one queue after the other; less often if that takes long.
    """

    urls: Sequence[str]
    events: Events
    every: float = MEASURE_EVERY
    _queues: list[tuple[str, Queue]] = field(default_factory=list, init=False)
    _measurers: dict[str, dict[str, QueueMeasurer]] = field(init=False)  # by URL and name
    _left_out: set[str] = field(default_factory=set, init=False)
    _failing: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._measurers = {url: {} for url in self.urls}
        for url in self.urls:
            queue = open_queue(url, create=False)
            if isinstance(queue, MemoryQueue):
                raise ConfigError(
                    f"{without_secrets(url)!r} is a queue in this process's memory, which no other "
                    "process can see; name a store, such as sqlite:///jobs.db"
                )
            if not queue.capabilities.views:
                raise Unsupported(
                    f"{queue.url} cannot be exported by kind: SQS shows a message only to the "
                    "worker that receives it. CloudWatch has the number of its messages"
                )
            self._queues.append((url, queue))
        names = [queue.name for _, queue in self._queues]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ConfigError(
                f"two queues have the name {min(twice)!r}, and their metrics would be mixed up; "
                "run one exporter for each store"
            )

    async def run(self, stop: asyncio.Event) -> None:
        """Measure until stopped, then close the queues.

        Raises at the start if a queue does not exist or is not migrated; a store that cannot be
        reached is asked again. An error is emitted once, until the store has answered.
        """
        answered = False
        try:
            while not stop.is_set():
                pause = self.every
                for url, queue in self._queues:
                    began = time.monotonic()
                    if await self._ask(url, queue, answered):  # a store that is away may be slow
                        answered = True
                        pause = max(pause, PAUSE_FACTOR * (time.monotonic() - began))
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await stop.wait()
        finally:
            for _, queue in self._queues:
                await queue.close()

    async def _ask(self, url: str, queue: Queue, answered: bool) -> bool:
        """Measure the queues at one URL; True if its store answered."""
        try:
            names = [queue.name]
            if names_no_queue(url):
                names = self._chosen(url, queue.name, await queue.names())
            for name in names:
                measurer = self._measurers[url].setdefault(name, QueueMeasurer(name))
                async with _at(url, queue, name) as found:
                    self.events.emit(await measurer.measured(found))
        except Exception as error:
            if not answered and POLL_RETRY.classify(error) == "permanent":
                raise
            if url not in self._failing:
                self._failing.add(url)
                self.events.emit(ChoreFailed(queue.name, MEASURE, text_of(error)))
            return False
        self._failing.discard(url)
        return True

    def _chosen(self, url: str, own: str, names: Sequence[str]) -> list[str]:
        """The queues of a store to measure: those that were measured before come first.

        Emits which queues are gone, and once which are left out.
        """
        known = self._measurers[url]
        for name in known.keys() - set(names):
            del known[name]
            self.events.emit(QueueGone(name))
        ordered = sorted(names, key=lambda name: (name not in known, name != own, name))
        left_out = ordered[QUEUES_SHOWN:]
        if not self._left_out.issuperset(left_out):
            shown = tuple(left_out[:QUEUES_SHOWN])
            self.events.emit(QueuesLeftOut(own, shown, len(left_out)))
        self._left_out.update(left_out)
        return ordered[:QUEUES_SHOWN]


@asynccontextmanager
async def _at(url: str, queue: Queue, name: str) -> AsyncIterator[Queue]:
    """Yield the queue of this name. If it is opened here, it is closed after use."""
    if name == queue.name:
        yield queue
        return
    async with open_queue(url_of_queue(url, name), create=False) as other:
        yield other
