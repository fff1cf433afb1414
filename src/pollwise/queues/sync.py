"""Queues for code without an event loop: web applications, scripts, notebooks.

    with pollwise.open_sync("sqlite:///jobs.db") as queue:
        [job_id] = queue.put(NewJob("resize", {"image": 7}))
        queue.result(job_id, timeout="30s")

A call blocks until the store has answered. All calls of a process run in the one event loop of a
background thread, over the connections of the async queue, so any thread may call. After a fork,
parent and child have connections of their own.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from pollwise.errors import ConfigError, StoreError
from pollwise.queues.base import Queue
from pollwise.queues.breakers import SharedBreakers
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.limits.calls import Limits
from pollwise.queues.schedules.calls import Schedules
from pollwise.queues.urls import SCHEMES, open_queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.home import background_loop, keep_for_parent, run_in, watch_forks
from pollwise.runtime.jobs import NewJob
from pollwise.runtime.payloads.envelope import CodecChain, Codecs
from pollwise.runtime.redact import split_url
from pollwise.runtime.tracing import spans

P = ParamSpec("P")
T = TypeVar("T")

#: How long the end of the program waits for queues to close, in seconds. Closing sends the hints
#: that are still to be sent.
CLOSE_AT_EXIT = 5.0


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncQueue, P], T]:
    """An async method of a queue as a method that blocks."""
    name = method.__name__

    @wraps(method)
    def call(self: SyncQueue, /, *args: P.args, **kwargs: P.kwargs) -> T:
        queue = self._queue_here()
        answer: T = self._run(queue, getattr(queue, name)(*args, **kwargs))
        return answer

    return call


def blocking_of(
    part: str, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]
) -> Callable[Concatenate[SyncPart, P], T]:
    """An async method of a part of a queue, such as its `schedules`, as a method that blocks."""
    name = method.__name__

    @wraps(method)
    def call(self: SyncPart, /, *args: P.args, **kwargs: P.kwargs) -> T:
        queue = self._sync._queue_here()
        asked = getattr(getattr(queue, part), name)(*args, **kwargs)
        answer: T = self._sync._run(queue, asked)
        return answer

    return call


class SyncQueue:
    """A queue whose calls block. Open one with `pollwise.open_sync(url)`.

    Threads may share one. A program that forks may open it before or after that. Its calls
    take the same arguments as those of `Queue`, and raise the same errors.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        create: bool = True,
        codec: Codecs | CodecChain | None = None,
    ) -> None:
        self._open: Callable[[], Queue] = partial(
            open_queue, url, clock=clock, create=create, codec=codec
        )
        self._queue: Queue | None = self._open()  # a wrong URL is refused now
        #: Where the queue is, without credentials.
        self.url: str = self._queue.url
        self._changing = threading.Lock()
        self._closed = False
        watch_forks(self)
        _OPEN.add(self)

    def put(self, jobs: NewJob | Iterable[NewJob]) -> list[str]:
        """Put jobs, all or none, and return their ids. Sends a hint to waiting workers."""
        queue = self._queue_here()
        batch = queue.check_jobs(jobs)
        tracer = spans.tracer() if batch else None
        if tracer is None:
            return self._put_checked(queue, batch) if batch else []
        span = queue.send_span(tracer)
        with span.ended():
            ids = self._put_checked(queue, span.begin(batch))
        span.end(ids)
        return ids

    get: Final = blocking(Queue.get)
    result: Final = blocking(Queue.result)
    wait: Final = blocking(Queue.wait)
    cancel: Final = blocking(Queue.cancel)
    jobs: Final = blocking(Queue.jobs)
    page: Final = blocking(Queue.page)
    arrivals: Final = blocking(Queue.arrivals)
    stats: Final = blocking(Queue.stats)
    stats_by_kind: Final = blocking(Queue.stats_by_kind)
    retry: Final = blocking(Queue.retry)
    drop: Final = blocking(Queue.drop)
    pause: Final = blocking(Queue.pause)
    resume: Final = blocking(Queue.resume)
    paused: Final = blocking(Queue.paused)
    workers: Final = blocking(Queue.workers)
    history: Final = blocking(Queue.history)
    predecessors: Final = blocking(Queue.predecessors)
    flow: Final = blocking(Queue.flow)

    @property
    def schedules(self) -> SyncSchedules:
        """Schedules, which put jobs at set times, as `Queue.schedules`."""
        return SyncSchedules(self)

    @property
    def limits(self) -> SyncLimits:
        """How many jobs of a kind run at a time, or start in a period, as `Queue.limits`."""
        return SyncLimits(self)

    @property
    def breakers(self) -> SyncBreakers:
        """The breakers of kinds that are not closed, as `Queue.breakers`."""
        return SyncBreakers(self)

    migrate: Final = blocking(Queue.migrate)

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the store."""
        return self._queue_here().capabilities

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close the connections. A closed queue cannot be used again."""
        with self._changing:
            queue, self._queue, self._closed = self._queue, None, True
        if queue is not None:
            run_in(background_loop(), queue.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sync queue {self.url}>"

    def _queue_here(self) -> Queue:
        """The queue; opened again in a forked child."""
        queue = self._queue
        if queue is None:
            with self._changing:
                if self._closed:
                    raise StoreError(f"{self.url} is closed; open it again")
                queue = self._queue = self._queue or self._open()
        return queue

    def _run(self, queue: Queue, call: Coroutine[Any, Any, T]) -> T:
        return run_in(background_loop(), call)

    def _put_checked(self, queue: Queue, jobs: list[NewJob]) -> list[str]:
        ids = self._put_here(queue, queue.sealed(jobs))
        return self._run(queue, queue.put_checked(jobs))[0] if ids is None else ids

    def _put_here(self, queue: Queue, jobs: list[NewJob]) -> list[str] | None:
        return queue.put_here(jobs, background_loop())

    def after_fork(self) -> None:
        self._changing = threading.Lock()
        if self._queue is not None:
            keep_for_parent(self._queue)
            self._queue = None


class SyncPart:
    """A part of a queue whose calls block."""

    def __init__(self, queue: SyncQueue) -> None:
        self._sync = queue


class SyncSchedules(SyncPart):
    """`queue.schedules` of a queue whose calls block: the calls of `Schedules`."""

    set: Final = blocking_of("schedules", Schedules.set)
    get: Final = blocking_of("schedules", Schedules.get)
    list: Final = blocking_of("schedules", Schedules.list)
    remove: Final = blocking_of("schedules", Schedules.remove)
    pause: Final = blocking_of("schedules", Schedules.pause)
    resume: Final = blocking_of("schedules", Schedules.resume)
    run: Final = blocking_of("schedules", Schedules.run)


class SyncBreakers(SyncPart):
    """`queue.breakers` of a queue whose calls block: `list` and `close` of `SharedBreakers`."""

    list: Final = blocking_of("breakers", SharedBreakers.list)
    close: Final = blocking_of("breakers", SharedBreakers.close)


class SyncLimits(SyncPart):
    """`queue.limits` of a queue whose calls block: the calls of `Limits`."""

    set: Final = blocking_of("limits", Limits.set)
    list: Final = blocking_of("limits", Limits.list)
    use: Final = blocking_of("limits", Limits.use)
    remove: Final = blocking_of("limits", Limits.remove)


class BorrowedSyncQueue(SyncQueue):
    """Blocking calls to a queue that async code uses in this process.

    queue: returns it. user: the event loop that uses it now, if one does; calls are made there.
    """

    def __init__(
        self,
        queue: Callable[[], Queue],
        user: Callable[[], asyncio.AbstractEventLoop | None] = lambda: None,
    ) -> None:
        self._borrow = queue
        self._user = user

    @property
    def url(self) -> str:  # type: ignore[override]
        return self._borrow().url

    @property
    def closed(self) -> bool:
        return False

    def close(self) -> None:
        """Does nothing: the owner closes the queue."""

    def _queue_here(self) -> Queue:
        return self._borrow()

    def _run(self, queue: Queue, call: Coroutine[Any, Any, T]) -> T:
        loop = self._user()
        if loop is not None:
            return run_in(loop, call)
        if queue.one_loop:
            call.close()
            raise ConfigError(
                f"{queue.url} was given as an object, whose connections belong to one event loop; "
                "for calls without an event loop, give its URL instead"
            )
        return run_in(background_loop(), _visit(queue, call))

    def _put_here(self, queue: Queue, jobs: list[NewJob]) -> None:
        return None


async def _visit(queue: Queue, call: Coroutine[Any, Any, T]) -> T:
    try:
        return await call
    finally:
        queue.leave_loop()


def open_sync(
    url: str,
    *,
    clock: Clock | None = None,
    create: bool = True,
    codec: Codecs | CodecChain | None = None,
) -> SyncQueue:
    """Open the queue at `url` for code without an event loop: its calls block.

    Takes every URL that `pollwise.open` takes. Keep it open and use it for all calls; threads may
    share it. The store is first contacted at the first call.

    create: create a missing store (a database file); if False, a missing one is an error.
    codec: encodes payloads and results, such as `AesGcm("keys.txt")`; several in a list.
    """
    return SyncQueue(url, clock=clock, create=create, codec=codec)


def sync_queue_for(
    queue: Queue | str,
    opened: Callable[[], Queue],
    user: Callable[[], asyncio.AbstractEventLoop | None] = lambda: None,
    codec: CodecChain | None = None,
) -> SyncQueue:
    """The sync queue for a queue or its URL; callers with the same URL and codec share it.

    opened: returns the queue that async code uses. It is used if it is in memory, or was given as
    an object: a second one would not have the same jobs.
    user: the event loop that uses it now, if one does.
    """
    if isinstance(queue, Queue) or _is_in_memory(split_url(queue).scheme, opened):
        return BorrowedSyncQueue(opened, user)
    place = queue, codec
    if place in _shared and _shared[place].closed:
        _shared.pop(place, None)
    return _shared.get(place) or _shared.setdefault(place, SyncQueue(queue, codec=codec))


def _is_in_memory(scheme: str, opened: Callable[[], Queue]) -> bool:
    if scheme in SCHEMES:
        return scheme == "memory"
    from pollwise.queues.memory import MemoryQueue

    return isinstance(opened(), MemoryQueue)  # of a package


_shared: dict[tuple[str, CodecChain | None], SyncQueue] = {}
_OPEN: weakref.WeakSet[SyncQueue] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close open queues, so that no hint is lost; do not wait long for a store that hangs."""
    queues = [each._queue for each in list(_OPEN) if each._queue is not None]

    async def close() -> None:
        async with asyncio.timeout(CLOSE_AT_EXIT):
            await asyncio.gather(*(queue.close() for queue in queues), return_exceptions=True)

    if queues:
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(close(), background_loop()).result(CLOSE_AT_EXIT + 1)
