"""Time that passes faster than the world's: for servers that will not be told what time it is.

A process that calls `hurry(began)` first lives `speed` times as fast from the moment `began`
(seconds since 1970): its clocks, sleeps and event loops. Processes with the same two numbers
agree on what time it is, as does a test that runs on a `FastClock`. A hold of 20 s then takes two,
and nothing of the code under test knows. What takes CPU time takes `speed` times as long by that
clock, so only what waits can be measured this way: counts of requests, never speeds.

`python -m tests.support.fast BEGAN MODULE` runs a module in such a process.
"""

from __future__ import annotations

import asyncio
import runpy
import selectors
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from pollwise.runtime.clock import Clock

T = TypeVar("T")

SPEED = 10.0

_time, _monotonic, _sleep = time.time, time.monotonic, time.sleep


class FastClock(Clock):
    """The clock of a test whose server was started with the same `began`."""

    def __init__(self, began: float) -> None:
        self.began = began

    def epoch(self) -> float:
        return self.began + (_time() - self.began) * SPEED

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=FastLoop) as runner:
            return runner.run(main)


class FastSelector(selectors.DefaultSelector):
    """Waits for a fraction of what it is told."""

    def __init__(self, speed: float) -> None:
        super().__init__()
        self._speed = speed

    def select(self, timeout: float | None = None) -> Any:
        return super().select(timeout / self._speed if timeout else timeout)


class FastLoop(asyncio.SelectorEventLoop):
    def __init__(self, speed: float = SPEED) -> None:
        self._speed = speed
        super().__init__(FastSelector(speed))

    def time(self) -> float:
        return _monotonic() * self._speed


def hurry(began: float, speed: float = SPEED) -> None:
    """Make this process a fast one, its event loops and threads included."""
    wait = threading.Condition.wait

    def fast_wait(self: threading.Condition, timeout: float | None = None) -> bool:
        # It waits in C, where the clocks below do not reach.
        return wait(self, None if timeout is None else timeout / speed)

    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            return FastLoop(speed)

    time.time = lambda: began + (_time() - began) * speed
    time.monotonic = lambda: _monotonic() * speed
    time.sleep = lambda seconds: _sleep(float(seconds) / speed)
    threading.Condition.wait = fast_wait  # type: ignore[method-assign]
    asyncio.set_event_loop_policy(Policy())


if __name__ == "__main__":
    start, module = float(sys.argv[1]), sys.argv[2]
    sys.argv[:] = [module, *sys.argv[3:]]
    hurry(start)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
