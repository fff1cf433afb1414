"""Time that passes faster than the world's, so that a benchmark can wait for an hour in minutes.

A process that calls `hurry(speed, began)` first lives `speed` times as fast from the moment `began`
(seconds since 1970): its clocks, its sleeps and its event loops. Processes with the same two
numbers agree on what time it is. What takes CPU time takes `speed` times as long by that clock, so
only what waits can be measured this way: counts of requests, never speeds.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from typing import Any

_time, _monotonic, _perf, _sleep = time.time, time.monotonic, time.perf_counter, time.sleep


def hurry(speed: float, began: float) -> None:
    zero = _monotonic() - (_time() - began)

    def fast_time() -> float:
        return began + (_time() - began) * speed

    def fast_monotonic() -> float:
        return zero + (_monotonic() - zero) * speed

    time.time = fast_time
    time.monotonic = fast_monotonic
    time.sleep = lambda seconds: _sleep(float(seconds) / speed)

    class Selector(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            return super().select(timeout / speed if timeout else timeout)

    class Loop(asyncio.SelectorEventLoop):
        def __init__(self) -> None:
            super().__init__(Selector())

        def time(self) -> float:
            return fast_monotonic()

    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            return Loop()

    asyncio.set_event_loop_policy(Policy())
    _hurry_threads(speed)


def _hurry_threads(speed: float) -> None:
    """Conditions of threads wait in C, where the patched clocks do not reach."""
    wait = threading.Condition.wait

    def fast_wait(self: threading.Condition, timeout: float | None = None) -> bool:
        return wait(self, None if timeout is None else timeout / speed)

    threading.Condition.wait = fast_wait  # type: ignore[method-assign]
