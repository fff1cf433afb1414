"""Time that passes faster than real time, and that a test can skip: for servers that use the clock
of the machine.

A process that first calls `hurry(time)` lives `speed` times as fast from the moment that `time`
names: its clocks, sleeps and event loops. Processes with the same `FastTime` agree on the time, and
so does a test on a `FastClock`. A hold of 20 s then takes two, and the code under test does not
notice. CPU work takes `speed` times as long by that clock, so only waiting can be measured this
way: counts of requests, never speeds.

`python -m tests.support.fast BEGAN FILE MODULE` runs a module in such a process.
"""

from __future__ import annotations

import asyncio
import mmap
import runpy
import selectors
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from pollwise.runtime.clock import Clock

T = TypeVar("T")

SPEED = 10.0

_time, _monotonic, _sleep = time.time, time.monotonic, time.sleep


class FastTime:
    """The current time, the same in every process with the same values.

    began: when time began to pass faster, in seconds since 1970.
    file: holds how many seconds were skipped; None if none will be.
    """

    def __init__(self, began: float, file: Path | None = None, speed: float = SPEED) -> None:
        self.began, self.file, self.speed = began, file, speed
        self._skipped = memoryview(bytearray(8)).cast("d")
        if file is not None:
            if not file.exists():
                file.write_bytes(bytes(8))
            with file.open("r+b") as opened:
                self._skipped = memoryview(mmap.mmap(opened.fileno(), 8)).cast("d")

    def epoch(self) -> float:
        return self.began + (_time() - self.began) * self.speed + self._skipped[0]

    def monotonic(self) -> float:
        return _monotonic() * self.speed + self._skipped[0]

    def skip(self, seconds: float) -> None:
        """Skip this much time at once, in all processes."""
        self._skipped[0] += seconds


class FastClock(Clock):
    """The clock of a test whose server was started with the same time."""

    def __init__(self, fast: FastTime) -> None:
        self.fast = fast

    def epoch(self) -> float:
        return self.fast.epoch()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=lambda: FastLoop(self.fast)) as runner:
            return runner.run(main)


class FastSelector(selectors.DefaultSelector):
    """Waits for a fraction of the given time."""

    def __init__(self, speed: float) -> None:
        super().__init__()
        self._speed = speed

    def select(self, timeout: float | None = None) -> Any:
        return super().select(timeout / self._speed if timeout else timeout)


class FastLoop(asyncio.SelectorEventLoop):
    def __init__(self, fast: FastTime) -> None:
        self._fast = fast
        super().__init__(FastSelector(fast.speed))

    def time(self) -> float:
        return self._fast.monotonic()


def hurry(fast: FastTime) -> None:
    """Make this process fast, with its event loops and threads."""
    wait = threading.Condition.wait

    def fast_wait(self: threading.Condition, timeout: float | None = None) -> bool:
        # It waits in C, which does not use the clocks below.
        return wait(self, None if timeout is None else timeout / fast.speed)

    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            return FastLoop(fast)

    time.time, time.monotonic = fast.epoch, fast.monotonic
    time.sleep = lambda seconds: _sleep(float(seconds) / fast.speed)
    threading.Condition.wait = fast_wait  # type: ignore[method-assign]
    asyncio.set_event_loop_policy(Policy())


if __name__ == "__main__":
    start, skipped, module = float(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    sys.argv[:] = [module, *sys.argv[4:]]
    hurry(FastTime(start, skipped))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
