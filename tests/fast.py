"""Time that passes faster than the world's: for servers that will not be told what time it is.

Both ends run `SPEED` times as fast, from one beginning: the event loop of a test (`FastClock.run`),
and a server in a process of its own (`python -m tests.fast BEGINNING module`). A hold of 20 s then
takes two, and nothing of the code under test knows.
"""

from __future__ import annotations

import asyncio
import runpy
import selectors
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pollux.clock import Clock

T = TypeVar("T")

SPEED = 10.0

_real_time, _real_monotonic = time.time, time.monotonic


class FastClock(Clock):
    """The clock of a test whose server was started with the same `began`."""

    def __init__(self, began: float) -> None:
        self.began = began

    def epoch(self) -> float:
        return self.began + (_real_time() - self.began) * SPEED

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=FastLoop) as runner:
            return runner.run(main)


class FastSelector(selectors.DefaultSelector):
    """Waits for a tenth of what it is told."""

    def select(self, timeout: float | None = None) -> Any:
        return super().select(timeout / SPEED if timeout else timeout)


class FastLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__(FastSelector())

    def time(self) -> float:
        return _real_monotonic() * SPEED


def hurry(began: float) -> None:
    """Make this process a fast one, its event loops included."""

    def fast(real: Callable[[], float], zero: float) -> Callable[[], float]:
        return lambda: zero + (real() - zero) * SPEED

    time.time = fast(_real_time, began)
    time.monotonic = fast(_real_monotonic, 0.0)
    asyncio.set_event_loop_policy(_FastPolicy())


class _FastPolicy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return FastLoop()


if __name__ == "__main__":
    began, module = float(sys.argv[1]), sys.argv[2]
    sys.argv[:] = [module, *sys.argv[3:]]
    hurry(began)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
