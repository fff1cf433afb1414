"""The benches on which the tests of queues stand: both stores under the virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pollux.clock import VirtualClock
from pollux.queues.base import Queue
from pollux.queues.memory import MemoryQueue
from pollux.queues.sqlite import SqliteQueue
from pollux.testing.conformance import Bench


class VirtualBench(Bench):
    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock

    async def elapse(self, units: float) -> None:
        await self.clock.advance(units * self.unit)


class MemoryBench(VirtualBench):
    """The queue is the store, so each handle is the same object."""

    _queue: MemoryQueue | None = None

    async def queue(self, **options: Any) -> Queue:
        if self._queue is None:
            self._queue = self.keep(MemoryQueue(clock=self.clock, **options))
        return self._queue


class SqliteBench(VirtualBench):
    def __init__(self, clock: VirtualClock, path: Path) -> None:
        super().__init__(clock)
        self.path = path

    async def queue(self, **options: Any) -> SqliteQueue:
        # What the disk has after a power cut is not tested here, so nothing waits for it.
        handle = SqliteQueue(self.path, clock=self.clock, synchronous="off", **options)
        return self.keep(handle)
