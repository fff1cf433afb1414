"""A virtual clock for tests that have an event loop of their own, and for those that have none."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from pollwise.durations import Duration, seconds
from pollwise.runtime.clock import VirtualClock, VirtualLoop

T = TypeVar("T")


class SteppedClock(VirtualClock):
    """A virtual clock that stands still, except in `run`, `advance` and `skip`.

    In `run`, time passes as with every virtual clock, and the next `run` goes on from there. In any
    other event loop, such as that of pytest-asyncio, the date of jobs changes only when the test
    says so; `asyncio.sleep` takes real time there.
    """

    def epoch(self) -> float:
        loop = asyncio._get_running_loop()
        ran = loop.time() if isinstance(loop, VirtualLoop) else 0.0
        return self._epoch + self._waited + ran

    async def advance(self, duration: Duration) -> None:
        """Let time pass. In `run`, what is due in it runs."""
        length = seconds(duration, "duration")
        if isinstance(asyncio.get_running_loop(), VirtualLoop):
            await asyncio.sleep(length)
        else:
            self._epoch += length

    def skip(self, duration: Duration) -> None:
        """Let time pass at once, in a test without an event loop."""
        self._waited += seconds(duration, "duration")

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end on a virtual event loop and return its result."""

        async def timed() -> T:
            try:
                return await main
            finally:
                lasted.append(asyncio.get_running_loop().time())

        lasted: list[float] = []
        try:
            return super().run(timed())
        finally:
            self._epoch += sum(lasted)
