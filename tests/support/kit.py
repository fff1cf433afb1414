"""Shared by the tests of the runtime: virtual runs, a record of events, queues that misbehave."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from pollwise.core.retry import Retry
from pollwise.errors import StoreUnavailable
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import Clock, VirtualClock, VirtualLoop
from pollwise.runtime.events import Event, Events
from pollwise.runtime.jobs import Claim, Renewal, Settlement
from pollwise.worker import Worker, WorkerRunOptions

T = TypeVar("T")
E = TypeVar("E", bound=Event)

#: How a job is retried if a test does not care how long that takes.
SOON = Retry.fixed("1s", attempts=3)


def virtually(main: Callable[[VirtualClock], Coroutine[Any, Any, T]]) -> T:
    """Run `main(clock)` under a fresh virtual clock."""
    clock = VirtualClock()
    return clock.run(main(clock))


class SteppingLoop(VirtualLoop):
    """A virtual loop that calls `interrupt` once, before the step number `at` after it was set."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.interrupt: Callable[[], object] | None = None
        self._left = at

    def _run_once(self) -> None:
        if self.interrupt is not None:
            self._left -= 1
            if self._left == 0:
                self.interrupt()
        super()._run_once()  # type: ignore[misc]

    @property
    def interrupted(self) -> bool:
        return self._left <= 0


def interrupted_at(
    at: int, main: Callable[[VirtualClock, SteppingLoop], Coroutine[Any, Any, None]]
) -> bool:
    """Run `main(clock, loop)`, which sets `loop.interrupt`; False if it ended before step `at`."""
    loop = SteppingLoop(at)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main(VirtualClock(), loop))
    return loop.interrupted


class Seen(list[Event]):
    """A sink that keeps every event."""

    def __init__(self) -> None:
        super().__init__()
        self.events = Events(quiet=True)
        self.events.subscribe(self.append)

    def of(self, *kinds: type[E]) -> list[E]:
        return [event for event in self if isinstance(event, kinds)]

    def names(self) -> list[str]:
        return [type(event).__name__ for event in self]


def options(**given: Any) -> WorkerRunOptions:
    """The options of a worker in a test: no signals, one seed."""
    return WorkerRunOptions(**{"signals": False, "seed": 1, **given})


def make_queue(store: str, folder: Path, clock: Clock, **given: Any) -> Queue:
    """A queue of a kind of store, which runs under the virtual clock."""
    if store == "memory":
        return CountedMemory(clock=clock, **given)
    return CountedSqlite(folder / "jobs.db", clock=clock, watch=0, synchronous="off", **given)


class Counted(Queue):
    """Counts the calls that reach the store, and can fail one of them.

    fail_at: the number of the call (from 1) that raises `StoreUnavailable`.
    after: it raises after it has done its work, as if the answer was lost.
    slow: how long calls take, in seconds of the clock.
    """

    calls: Counter[str]
    fail_at: int | None = None
    failing: Iterable[str] = ()
    after = False
    slow = 0.0

    async def _noted(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        if "calls" not in vars(self):
            self.calls = Counter()
        self.calls[name] += 1
        fails = self.calls.total() == self.fail_at or name in self.failing
        if self.slow:
            await asyncio.sleep(self.slow)
        if fails and not self.after:
            raise StoreUnavailable(f"{name} fails on purpose")
        result = await call()
        if fails:
            raise StoreUnavailable(f"the answer to {name} is lost on purpose")
        return result

    async def claim(self, *given: Any, **named: Any) -> list[Claim]:
        real = super().claim
        return await self._noted("claim", lambda: real(*given, **named))

    async def settle(self, settlements: Iterable[Settlement]) -> None:
        real, batch = super().settle, list(settlements)
        await self._noted("settle", lambda: real(batch))

    async def renew(self, claims: Iterable[Claim], *given: Any, **named: Any) -> Renewal:
        real, batch = super().renew, list(claims)
        return await self._noted("renew", lambda: real(batch, *given, **named))

    async def prune(self) -> int:
        return await self._noted("prune", super().prune)


class CountedMemory(Counted, MemoryQueue):
    pass


class CountedSqlite(Counted, SqliteQueue):
    pass


def each_way(claims: Sequence[Claim]) -> list[Settlement]:
    """Settlements of four claims, each with another action."""
    done, retry, dead, back = claims
    return [
        Settlement.done(done),
        Settlement.retry(retry, error="again"),
        Settlement.dead(dead, "broken"),
        Settlement.give_back(back),
    ]


@asynccontextmanager
async def working(worker: Worker, chosen: WorkerRunOptions) -> AsyncIterator[asyncio.Task[None]]:
    """A worker that runs inside the block and is stopped at its end."""
    running = asyncio.ensure_future(worker.run(chosen))
    try:
        yield running
    finally:
        worker.stop()
        await asyncio.wait([running])
    running.result()


async def until(happened: Callable[[], bool], within: float = 3600.0) -> None:
    """Let virtual time pass until something happened."""
    loop = asyncio.get_running_loop()
    limit = loop.time() + within
    while not happened():
        assert loop.time() < limit, f"it did not happen within {within:g} virtual seconds"
        await asyncio.sleep(0.01)


async def until_empty(queue: Queue, within: float = 3600.0) -> None:
    """Let virtual time pass until a queue has nothing left to run."""
    loop = asyncio.get_running_loop()
    limit, step = loop.time() + within, 0.01
    while True:
        stats = await queue.stats()
        if not stats.ready + stats.delayed + stats.blocked + stats.leased:
            return
        assert loop.time() < limit, f"not done within {within:g} virtual seconds: {stats}"
        await asyncio.sleep(step)
        step = min(2 * step, 1.0)
