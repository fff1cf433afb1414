"""What the web interface shows: queues, outboxes, fleets and a controller, each under a short name.

Pages read through a source, which remembers answers for a moment, so that ten open pages cost a
store no more than one. A store that cannot be reached becomes an error on the page, never a failed
page.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pollwise.errors import PollwiseError, StoreError, StoreUnavailable, Unsupported
from pollwise.queues.base import Queue
from pollwise.queues.breakers import OpenBreaker
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.limits.use import LimitUse
from pollwise.queues.notes import PauseInfo
from pollwise.queues.presence import PRESENCE_KEPT, WorkerInfo
from pollwise.queues.schedules.record import Schedule
from pollwise.queues.urls import url_of_queue
from pollwise.queues.views import JobFilter, JobPage, Stats
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import STATES, JobInfo
from pollwise.runtime.redact import split_url
from pollwise.runtime.rollups import HistoryPoint

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller
    from pollwise.fleet import Fleet
    from pollwise.fleet.stores.base import FleetStore
    from pollwise.outbox.stores.base import OutboxStore
    from pollwise.web.controllers import ControllerSource
    from pollwise.web.pages.fleet.source import FleetSource
    from pollwise.web.pages.outbox.source import OutboxSource

T = TypeVar("T")

#: How often stores are asked for new queues, in seconds.
DISCOVER_EVERY = 30.0
#: How long an answer of a store is reused, in seconds: counts, and what changes more rarely. A page
#: that stays open while nothing happens reads the rest only after IDLE_REMEMBERED.
COUNTS_REMEMBERED = 1.0
REST_REMEMBERED = 10.0
#: Answers of a store that bills each call are reused this many times as long.
BILLED_TIMES = 30.0
IDLE_REMEMBERED = 60.0
NEVER = float("inf")
#: How much history the overview reads, in seconds, and the ranges that charts show: their length
#: and that of a step.
LATELY = 3 * 3600.0
RANGES = {"1h": (3600.0, 60.0), "24h": (86400.0, 3600.0), "7d": (7 * 86400.0, 7200.0)}
#: How long a page waits for a store, and how long it then expects no answer, in seconds.
ANSWER_WITHIN = 5.0
ERROR_REMEMBERED = 5.0
#: How many kinds with limits a page shows, and how many groups of each.
LIMITS_SHOWN = 50
GROUPS_SHOWN = 5
#: How many jobs that run are examined for those whose worker is gone.
LEASES_EXAMINED = 50


class Remembered(Generic[T]):
    """The last answer of a call, reused for a while. Only one call runs at a time."""

    def __init__(self, call: Callable[[], Awaitable[T]], clock: Clock, ttl: float) -> None:
        self._call = call
        self._clock = clock
        self._ttl = ttl
        self._lock = asyncio.Lock()
        self._at = float("-inf")
        self._value: T | None = None
        self._error: PollwiseError | OSError | None = None
        self._wanted_at = float("-inf")

    async def get(self, ttl: float | None = None) -> T:
        """The answer, asked for again if it is older than `ttl`, or than its usual time."""
        self._wanted_at = self._clock.now()
        return await self._get(self._ttl if ttl is None else ttl)

    async def refresh(self) -> None:
        """Ask again now, and keep the answer for the calls that follow."""
        await self._get(0.0)

    async def _get(self, ttl: float) -> T:
        async with self._lock:
            if self._error is not None and self.age < ERROR_REMEMBERED:
                raise self._error
            if self._value is None or self.age >= ttl:
                self._value = await self._ask()
            return self._value

    async def _ask(self) -> T:
        self._error = None
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                return await self._call()
        except TimeoutError:
            self._error = StoreError(f"it did not answer within {ANSWER_WITHIN:g} s")
            raise self._error from None
        except (PollwiseError, OSError) as error:
            self._error = error
            raise
        finally:
            self._at = self._clock.now()

    @property
    def old(self) -> bool:
        """True if an open page uses this answer and it is due to be read again, changed or not."""
        wanted = self._clock.now() - self._wanted_at < IDLE_REMEMBERED
        return wanted and max(IDLE_REMEMBERED / 2, self._ttl) <= self.age < NEVER

    @property
    def age(self) -> float:
        """How old the answer is, in seconds."""
        return self._clock.now() - self._at

    def forget(self) -> None:
        """Ask again next time: something was changed."""
        self._at = float("-inf")


@dataclass(frozen=True, slots=True)
class ShownQueue:
    """What a page shows of a queue. error: why the store did not answer; then the rest is empty.

    kinds: the counts of each kind; empty if the store cannot count them.
    leased: some of the jobs that run, at most LEASES_EXAMINED.
    unchanged: it is for a page that stays open, and the counts are those of the page before.
    """

    stats: Stats | None = None
    paused: Mapping[str | None, PauseInfo] = field(default_factory=dict)
    workers: tuple[WorkerInfo, ...] = ()
    kinds: Mapping[str, Stats] = field(default_factory=dict)
    leased: tuple[JobInfo, ...] = ()
    unchanged: bool = False
    error: str | None = None
    schedules: tuple[Schedule, ...] = ()
    limits: tuple[LimitUse, ...] = ()
    breakers: tuple[OpenBreaker, ...] = ()

    def abandoned(self, now: float) -> list[JobInfo]:
        """Jobs that are held by a worker that has no record any more, so they wait for their lease
        to end."""
        there = {worker.name for worker in self.workers}
        return [
            info
            for info in self.leased
            if info.worker not in there and now - (info.claimed_at or now) > PRESENCE_KEPT
        ]

    @property
    def marker(self) -> Hashable:
        """Changes when the counts do; not with the age of the oldest job."""
        return self.error if self.stats is None else _counts(self.stats)


class QueueSource:
    """A queue that is shown. slug: its name in addresses, unique among the queues.

    for_agents: it is a controller's, whose agents run the jobs; they keep no records in the queue.
    """

    for_agents = False

    def __init__(
        self,
        slug: str,
        queue: Queue,
        clock: Clock,
        *,
        name: str | None = None,
        use: Callable[[], Queue] | None = None,
    ) -> None:
        """
        name: of another queue in the same store, which is shown; `use` opens it.
        """
        self.slug = slug
        self.name: str = name or queue.name
        self.title: str = self.name
        #: The URL, without secrets.
        self.place: str = queue.url if name is None else url_of_queue(queue.url, name)
        self.can: Capabilities = queue.capabilities
        can = self.can
        self._use = use or (lambda: queue)
        self._clock = clock
        times = BILLED_TIMES if queue.gather else 1.0  # only stores that bill each call gather
        rest = REST_REMEMBERED * times
        self._stats = Remembered(lambda: self.queue.stats(), clock, COUNTS_REMEMBERED * times)
        self._paused = Remembered(
            (lambda: self.queue.paused()) if can.pause else _nothing, clock, rest
        )
        self._workers = Remembered(
            (lambda: self.queue.workers()) if can.presence else _no_workers, clock, rest
        )
        self._kinds = Remembered(
            (lambda: self.queue.stats_by_kind()) if can.views else _nothing, clock, rest
        )
        self._leased = Remembered(self._read_leased, clock, rest)
        self._schedules = Remembered(self._read_schedules, clock, rest)
        self._limits = Remembered(self._read_limits, clock, rest)
        self._breakers = Remembered(self._read_breakers, clock, rest)
        self._dead = Remembered(self._read_dead, clock, IDLE_REMEMBERED)
        self._lately = Remembered(lambda: self._read_history(LATELY), clock, REST_REMEMBERED * 2)
        self._ranges = {
            name: Remembered(partial(self._read_history, span), clock, step / 3)
            for name, (span, step) in RANGES.items()
        }
        self._parts: tuple[Remembered[Any], ...] = (
            self._paused, self._workers, self._kinds, self._leased, self._schedules, self._lately,
            self._limits, self._breakers,
        )  # fmt: skip
        self._counts_before: Stats | None = None
        self._counts_next = False

    @property
    def queue(self) -> Queue:
        """The queue, open. It may be closed when it was not used for a while: do not keep it."""
        return self._use()

    async def marker(self) -> Hashable:
        """A value that changes when the queue does, by one call to the store at most.

        It counts the jobs; every second time it reads another part again instead, if one is old.
        """
        try:
            old = [part for part in (*self._parts, *self._ranges.values()) if part.old]
            self._counts_next = not self._counts_next or not old
            if not self._counts_next:
                await max(old, key=lambda part: part.age).refresh()
            stats = await self._stats.get(None if self._counts_next else NEVER)
            return _counts(stats), await self._shape()
        except (PollwiseError, OSError) as error:
            return str(error)

    async def _shape(self) -> Hashable:
        """What is known of pauses and workers, without asking the store."""
        paused, workers = await self._paused.get(NEVER), await self._workers.get(NEVER)
        return tuple(paused.items()), tuple((w.note_name, w.busy, w.breakers) for w in workers)

    async def snapshot(self, *, live: bool = False) -> ShownQueue:
        """Counts, pauses, workers and kinds.

        live: for a page that stays open and has asked for the marker: while the counts are the
            same, the store is not asked.
        """
        try:
            stats = await self._stats.get(NEVER if live else None)
            if _counts(stats) != self._counts_before:
                self._counts_before, live = _counts(stats), False
            ttl = NEVER if live else None
            paused, workers, kinds, schedules, limits, breakers = await asyncio.gather(
                self._paused.get(ttl), self._workers.get(ttl), self._kinds.get(ttl),
                self._schedules.get(ttl), self._limits.get(ttl), self._breakers.get(ttl),
            )  # fmt: skip
            leased = await self._leased.get(ttl) if stats.leased else ()
        except (PollwiseError, OSError) as error:
            return ShownQueue(error=str(error) or type(error).__name__)
        return ShownQueue(
            stats,
            paused,
            tuple(workers),
            kinds,
            tuple(leased),
            live,
            None,
            tuple(schedules),
            tuple(limits),
            tuple(breakers),
        )

    async def dead(self) -> JobPage:
        """Some dead jobs, of a store that cannot list others; such a store may bill the call."""
        return await self._dead.get()

    async def _read_dead(self) -> JobPage:
        return await self.queue.page(JobFilter("dead", limit=LEASES_EXAMINED))

    async def lately(self, *, live: bool = False) -> Sequence[HistoryPoint]:
        """The history of the last hours; nothing if the store keeps none, or does not answer."""
        return await self._past(self._lately, live)

    async def history(self, chosen: str, *, live: bool = False) -> Sequence[HistoryPoint]:
        """The history of one of RANGES."""
        return await self._past(self._ranges[chosen], live)

    async def _past(
        self, part: Remembered[Sequence[HistoryPoint]], live: bool
    ) -> Sequence[HistoryPoint]:
        try:
            return await part.get(NEVER if live else None)
        except (PollwiseError, OSError):
            return ()

    async def _read_history(self, span: float) -> Sequence[HistoryPoint]:
        if not self.queue.capabilities.history:
            return ()
        return await self.queue.history(span, by="hour" if span > LATELY else "minute")

    def forget(self) -> None:
        """An action changed the queue: the next page reads it again."""
        self._stats.forget()
        self._dead.forget()
        for part in self._parts:
            if part is not self._lately:  # history is not changed by actions
                part.forget()

    async def _read_schedules(self) -> Sequence[Schedule]:
        if not self.queue.capabilities.schedules:
            return ()
        try:
            return await self.queue.schedules.list()
        except StoreUnavailable:
            raise
        except (StoreError, Unsupported):  # an older controller, or one whose store cannot
            return ()

    async def _read_breakers(self) -> Sequence[OpenBreaker]:
        if not self.queue.capabilities.breakers:
            return ()
        try:
            return await self.queue.breakers.list()
        except StoreUnavailable:
            raise
        except (StoreError, Unsupported):  # as for limits
            return ()

    async def _read_limits(self) -> Sequence[LimitUse]:
        """How the limits of the first kinds are used."""
        queue = self.queue
        if not queue.capabilities.limits:
            return ()
        try:
            found = await queue.limits.list()
            return [await queue._limit_use(each, GROUPS_SHOWN) for each in found[:LIMITS_SHOWN]]
        except StoreUnavailable:
            raise
        except (StoreError, Unsupported):  # an older controller, or one whose store cannot
            return ()

    async def _read_leased(self) -> Sequence[JobInfo]:
        can = self.queue.capabilities
        if not can.views or not can.presence:
            return ()
        return (await self.queue.page(JobFilter("leased", limit=LEASES_EXAMINED))).jobs


async def _nothing() -> Mapping[Any, Any]:
    return {}


async def _no_workers() -> Sequence[WorkerInfo]:
    return ()


@dataclass(slots=True)
class _StoreQueues:
    """A store whose queues are all shown. queue: one of them."""

    queue: Queue
    opened: Callable[[str], Queue]
    leave_out: QueueSource | None
    looked_at: float = float("-inf")
    known: set[str] = field(default_factory=set)

    async def look(self, sources: Sources) -> None:
        names = await self.queue.names()
        for name in names:
            if name != self.queue.name and name not in self.known:
                self.known.add(name)
                sources.add_found(self.queue, name, partial(self.opened, name))
        tell_apart(sources.queues)
        first = self.leave_out
        if first is not None and self.known:
            counts = await self.queue.stats()
            if any(getattr(counts, state) for state in STATES):
                sources.queues.setdefault(first.slug, first)
            else:
                sources.queues.pop(first.slug, None)


@dataclass(slots=True)
class Sources:
    """Everything that is shown, by slug."""

    queues: dict[str, QueueSource] = field(default_factory=dict)
    outboxes: dict[str, OutboxSource] = field(default_factory=dict)
    fleets: dict[str, FleetSource] = field(default_factory=dict)
    controller: Controller | None = None
    clock: Clock = field(default_factory=Clock)
    #: A folder with trace files for the lab.
    traces: Path | None = None
    _controller: ControllerSource | None = None
    _stores: list[_StoreQueues] = field(default_factory=list)

    def controller_source(self) -> ControllerSource | None:
        """The controller to show: the running one, else one whose state is beside a queue."""
        if self._controller is None:
            from pollwise.web.controllers import controller_of

            self._controller = controller_of(self.queues.values(), self.clock, self.controller)
        return self._controller

    async def close(self) -> None:
        """Close what pages opened beside the sources that were given."""
        if self._controller is not None:
            await self._controller.close()

    def find_others(
        self, queue: Queue, opened: Callable[[str], Queue], leave_out: QueueSource | None = None
    ) -> None:
        """Show the other queues of a store too, as they are found; see `discover`.

        leave_out: not shown while it is empty and there are others.
        """
        self._stores.append(_StoreQueues(queue, opened, leave_out))

    async def discover(self) -> None:
        """Look for new queues, at most once in DISCOVER_EVERY."""
        for store in self._stores:
            if self.clock.now() - store.looked_at >= DISCOVER_EVERY:
                store.looked_at = self.clock.now()
                with suppress(PollwiseError, OSError):  # its queues show the error
                    await store.look(self)
        self.controller_source()  # notes which of the queues is for agents

    def add_queue(self, queue: Queue) -> QueueSource:
        """Show a queue."""
        slug = new_slug(queue.name, self.queues)
        self.queues[slug] = source = QueueSource(slug, queue, self.clock)
        tell_apart(self.queues)
        return source

    def add_found(self, first: Queue, name: str, opened: Callable[[], Queue]) -> None:
        """Show a queue that was found in the store of another; it is opened when it is looked at.

        Its title may be that of another until `tell_apart` is called.
        """
        slug = new_slug(name, self.queues)
        self.queues[slug] = QueueSource(slug, first, self.clock, name=name, use=opened)

    def add_outbox(self, store: OutboxStore) -> OutboxSource:
        """Show an outbox."""
        from pollwise.web.pages.outbox.source import OutboxSource

        slug = new_slug(store.name, self.outboxes)
        self.outboxes[slug] = source = OutboxSource(slug, store, self.clock)
        tell_apart(self.outboxes)
        return source

    def add_fleet(self, fleet: Fleet | FleetStore) -> FleetSource:
        """Show a fleet that runs here, or that other processes run on a store."""
        from pollwise.web.pages.fleet.source import FleetSource

        slug = new_slug(fleet.name, self.fleets)
        self.fleets[slug] = source = FleetSource(slug, fleet, self.clock)
        tell_apart(self.fleets)
        return source


def _counts(stats: Stats) -> Stats:
    return replace(stats, oldest_age=None)


def tell_apart(
    sources: Mapping[str, QueueSource] | Mapping[str, OutboxSource] | Mapping[str, FleetSource],
) -> None:
    """Give sources of the same name titles that say where they are, such as `default · jobs.db`."""
    names = Counter(source.name for source in sources.values())
    titles = {slug: f"{each.name} · {short_place(each.place)}" for slug, each in sources.items()}
    times = Counter(titles.values())
    for slug, source in sources.items():
        if names[source.name] > 1:
            source.title = titles[slug] if times[titles[slug]] == 1 else slug


def short_place(url: str) -> str:
    """What identifies a store at a glance: a file and its folder, or a host and a database.

    >>> short_place("sqlite:////srv/app/shop/jobs.db?queue=mail")
    'shop/jobs.db'
    >>> short_place("postgresql://app@db.example/shop?queue=mail")
    'db.example/shop'
    """
    parts = split_url(url)
    path = parts.path.strip("/")
    if not parts.netloc:
        return "/".join(path.split("/")[-2:])
    return "/".join(filter(None, (parts.netloc.rpartition("@")[2], path)))


def new_slug(name: str, taken: Iterable[str]) -> str:
    """A name for addresses that is not taken yet.

    >>> new_slug("Mail out/2", [])
    'mail-out-2'
    >>> new_slug("mail", ["mail"])
    'mail-2'
    """
    base = re.sub(r"[^a-z0-9_.]+", "-", name.lower()).strip("-.")[:60] or "unnamed"
    used, slug, n = taken if isinstance(taken, Mapping) else set(taken), base, 2
    while slug in used:
        slug, n = f"{base}-{n}", n + 1
    return slug
