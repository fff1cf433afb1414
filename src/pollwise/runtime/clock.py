"""Time, as an argument.

Everything above `core` asks a `Clock` what time it is and sleeps through it. There are two: the
system's, and a virtual one whose event loop jumps to the next timer instead of waiting for it. With
that, the real code runs through an idle day in under a second, the same way each time.

Two readings: `now()` is the event loop's time, which never goes back and paces the polls;
`epoch()` is seconds since 1970, for what is stored and compared between processes.

Code without an event loop blocks in `wait` where other code awaits `sleep`.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

from pollwise.runtime.hints import BlockingHint, Hint

T = TypeVar("T")

#: 2026-01-01T00:00:00Z, when virtual time begins: a fixed date, so that runs repeat exactly.
VIRTUAL_EPOCH = 1_767_225_600.0
#: Calls for the same time are made in the order in which they were asked for.
_numbers = count()
#: Real seconds after which a virtual loop that waits for something outside gives up.
STUCK_AFTER = 60.0


class Clock:
    """The system's clock."""

    def now(self) -> float:
        """Seconds of the running event loop, else of the monotonic clock; never decreases.

        asyncio's loops read the monotonic clock too.
        """
        loop = asyncio._get_running_loop()
        return time.monotonic() if loop is None else loop.time()

    def epoch(self) -> float:
        """Seconds since 1970-01-01 UTC."""
        return time.time()

    def imposed(self) -> float | None:
        """The time that a store must use; None, the usual case, for the store's own clock.

        A server's clock decides about leases and delays, whatever the clocks of its clients say.
        Only the virtual clock overrides it, so that a real server can be tested in virtual time.
        """
        return None

    def outside(self) -> AbstractContextManager[None]:
        """A context for waiting for a server: real time must pass, so virtual time stands still."""
        return _NOWHERE

    async def sleep(self, delay: float, hint: Hint | None = None) -> bool:
        """Sleep for `delay` seconds; return True as soon as `hint` is given."""
        if hint is None:
            await asyncio.sleep(delay)
            return False
        return await hint.wait(delay)

    def wait(self, delay: float, hint: BlockingHint | None = None) -> bool:
        """Block this thread for `delay` seconds; return True as soon as `hint` is given."""
        if hint is None:
            time.sleep(delay)
            return False
        return hint.block(delay)


_NOWHERE: AbstractContextManager[None] = nullcontext()


class VirtualClock(Clock):
    """A clock whose time passes only when all tasks sleep, and then at once.

    `clock.run(main())` runs a coroutine, and all tasks it starts, on a virtual event loop. While
    threads work (a SQLite queue, a plain handler), and within `outside()` (a call to a server),
    virtual time stands still and the wait takes real time. Other sockets and subprocesses are
    not waited for: time would jump past them.

    Without an event loop, time passes in `wait` only, and at once: `poll_sync` and `until_sync`
    take this clock too. Use it in one thread.
    """

    def __init__(self, epoch: float = VIRTUAL_EPOCH) -> None:
        self._epoch = epoch
        #: The time that passed in `wait`, and what is to be called in it.
        self._waited = 0.0
        self._calls: list[tuple[float, int, Callable[[], object]]] = []

    def now(self) -> float:
        loop = asyncio._get_running_loop()
        return self._waited if loop is None else loop.time()

    def epoch(self) -> float:
        loop = asyncio._get_running_loop()
        return self._epoch + self._waited + (0.0 if loop is None else loop.time())

    def wait(self, delay: float, hint: BlockingHint | None = None) -> bool:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError(
                "a blocking call waits for virtual time in an event loop, where it would never "
                "pass; use the async call, or run the blocking one without an event loop"
            )
        ends_at = self._waited + delay
        while True:
            while self._calls and self._calls[0][0] <= self._waited:
                heappop(self._calls)[2]()
            if hint is not None and hint.taken():
                return True
            if not self._calls or self._calls[0][0] > ends_at:
                self._waited = ends_at
                return False
            self._waited = self._calls[0][0]

    def call_later(self, delay: float, call: Callable[[], object]) -> None:
        """Call a function when `delay` seconds have passed in `wait`: it gives hints, or stops."""
        heappush(self._calls, (self._waited + delay, next(_numbers), call))

    def imposed(self) -> float | None:
        return self.epoch()

    def outside(self) -> AbstractContextManager[None]:
        loop = asyncio.get_running_loop()
        return loop.outside() if isinstance(loop, VirtualLoop) else _NOWHERE

    async def advance(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass, with everything that is due in them."""
        await asyncio.sleep(seconds)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end on a fresh virtual event loop and return its result."""
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer when nothing is ready to run."""

    def __init__(self) -> None:
        self._virtual_now = 0.0
        self._calls_outside = 0
        super().__init__(_JumpingSelector(self))
        self._clock_resolution = math.ulp(0.0)

    def time(self) -> float:
        return self._virtual_now

    def jump(self, seconds: float) -> None:
        """Let `seconds` pass at once."""
        self._virtual_now += seconds
        # asyncio runs the timers before now + resolution. With a nanosecond, a shorter sleep would
        # end before time has passed, and a loop that sleeps until a moment would never end.
        self._clock_resolution = math.ulp(self._virtual_now)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        return self.made_outside(super().run_in_executor(executor, func, *args))

    def made_outside(self, future: asyncio.Future[T]) -> asyncio.Future[T]:
        """Virtual time stands still until a thread has set the future, which is returned."""
        self._calls_outside += 1
        future.add_done_callback(self._call_returned)
        return future

    async def shutdown_default_executor(self, *timeout: Any, **named: Any) -> None:
        """Wait for the threads in real time; in virtual time the timeout would be over at once."""
        with self.outside():
            await super().shutdown_default_executor(*timeout, **named)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Virtual time stands still inside: the code waits for something real."""
        self._calls_outside += 1
        try:
            yield
        finally:
            self._calls_outside -= 1

    def _call_returned(self, _: asyncio.Future[Any]) -> None:
        self._calls_outside -= 1


class _JumpingSelector(selectors.BaseSelector):
    """Ready files first; else jump; wait in real time only for calls in threads."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()
        self._stuck = ""  # the first reason; closing the loop may get stuck as well

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None or self._loop._calls_outside:
            ready = self._real.select(STUCK_AFTER)
            if not ready:
                self._stuck = self._stuck or self._why_stuck()
                raise RuntimeError(self._stuck)
            return ready
        self._loop.jump(timeout)
        return ready

    def _why_stuck(self) -> str:
        if self._loop._calls_outside:
            why = (
                "a call in a thread or to a server does not return, and virtual time stands still "
                "meanwhile. Look for a plain function that waits for virtual time."
            )
        else:
            why = (
                "no timer is set and no thread is running, so nothing ever will. "
                "Look for an await that never ends."
            )
        return f"the virtual clock waited {STUCK_AFTER:g} real seconds and nothing happened: {why}"

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def close(self) -> None:
        self._real.close()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.get_key(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()
