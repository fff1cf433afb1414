"""What the web interface shows: queues, outboxes, fleets and a controller, each under a short name.

Pages read through a source, which remembers answers for a moment, so that ten open pages cost a
store no more than one. A store that cannot be reached becomes an error on the page, never a failed
page.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pollwise.errors import PollwiseError
from pollwise.queues.base import Queue
from pollwise.queues.notes import PauseInfo
from pollwise.queues.presence import WorkerInfo
from pollwise.queues.views import Stats
from pollwise.runtime.clock import Clock

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller
    from pollwise.web.controllers import ControllerSource

T = TypeVar("T")

#: How long an answer of a store is reused, in seconds: counts, and what changes more rarely.
COUNTS_REMEMBERED = 1.0
REST_REMEMBERED = 10.0


class Remembered(Generic[T]):
    """The last answer of a call, reused for a while. Only one call runs at a time."""

    def __init__(self, call: Callable[[], Awaitable[T]], clock: Clock, ttl: float) -> None:
        self._call = call
        self._clock = clock
        self._ttl = ttl
        self._lock = asyncio.Lock()
        self._at = float("-inf")
        self._value: T | None = None

    async def get(self) -> T:
        """The answer, asked for again if it is too old."""
        async with self._lock:
            if self._value is None or self._clock.now() - self._at >= self._ttl:
                self._value = await self._call()
                self._at = self._clock.now()
            return self._value

    def forget(self) -> None:
        """Ask again next time: something was changed."""
        self._at = float("-inf")


@dataclass(frozen=True, slots=True)
class ShownQueue:
    """What a page shows of a queue. error: why the store did not answer; then the rest is empty."""

    stats: Stats | None = None
    paused: Mapping[str | None, PauseInfo] = field(default_factory=dict)
    workers: tuple[WorkerInfo, ...] = ()
    error: str | None = None

    @property
    def marker(self) -> Hashable:
        """Changes when the counts do; not with the age of the oldest job."""
        return self.error if self.stats is None else _counts(self.stats)


class QueueSource:
    """A queue that is shown. slug: its name in addresses, unique among the queues."""

    def __init__(self, slug: str, queue: Queue, clock: Clock) -> None:
        self.slug = slug
        self.queue = queue
        self.title = queue.name
        self.place = queue.url  # without secrets
        self._stats = Remembered(queue.stats, clock, COUNTS_REMEMBERED)
        self._rest = Remembered(self._read_rest, clock, REST_REMEMBERED)
        self._counts_before: Stats | None = None

    async def snapshot(self) -> ShownQueue:
        """Counts, pauses and workers. While nothing changes, only the counts are read again."""
        try:
            stats = await self._stats.get()
            if _counts(stats) != self._counts_before:
                self._counts_before = _counts(stats)
                self._rest.forget()
            paused, workers = await self._rest.get()
        except (PollwiseError, OSError) as error:
            return ShownQueue(error=str(error))
        return ShownQueue(stats, paused, workers)

    def forget(self) -> None:
        """An action changed the queue: the next page reads it again."""
        self._stats.forget()
        self._rest.forget()

    async def _read_rest(self) -> tuple[Mapping[str | None, PauseInfo], tuple[WorkerInfo, ...]]:
        can = self.queue.capabilities
        paused = await self.queue.paused() if can.pause else {}
        workers = tuple(await self.queue.workers()) if can.presence else ()
        return paused, workers


@dataclass(frozen=True, slots=True)
class NamedSource:
    """An outbox store or a fleet that is shown. slug: its name in addresses."""

    slug: str
    title: str
    place: str
    thing: Any


@dataclass(slots=True)
class Sources:
    """Everything that is shown, by slug."""

    queues: dict[str, QueueSource] = field(default_factory=dict)
    outboxes: dict[str, NamedSource] = field(default_factory=dict)
    fleets: dict[str, NamedSource] = field(default_factory=dict)
    controller: Controller | None = None
    clock: Clock = field(default_factory=Clock)
    _controller: ControllerSource | None = None

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

    def add_queue(self, queue: Queue) -> QueueSource:
        """Show a queue."""
        slug = new_slug(queue.name, self.queues)
        self.queues[slug] = source = QueueSource(slug, queue, self.clock)
        return source


def _counts(stats: Stats) -> Stats:
    return replace(stats, oldest_age=None)


def new_slug(name: str, taken: Iterable[str]) -> str:
    """A name for addresses that is not taken yet.

    >>> new_slug("Mail out/2", [])
    'mail-out-2'
    >>> new_slug("mail", ["mail"])
    'mail-2'
    """
    base = re.sub(r"[^a-z0-9_.]+", "-", name.lower()).strip("-.")[:60] or "unnamed"
    used, slug, n = set(taken), base, 2
    while slug in used:
        slug, n = f"{base}-{n}", n + 1
    return slug
