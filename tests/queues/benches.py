"""The benches for the tests of queues: all stores, mostly under the virtual clock."""

from __future__ import annotations

import asyncio
import uuid
from functools import cache
from pathlib import Path
from typing import Any

from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.redis.queue import RedisQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import Clock, VirtualClock
from pollwise.testing.conformance import Bench


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
        # Power cuts are not tested here, so nothing waits for the disk.
        handle = SqliteQueue(self.path, clock=self.clock, synchronous="off", **options)
        return self.keep(handle)


class RedisBench(VirtualBench):
    """A queue of its own on a shared server, in virtual time."""

    def __init__(self, clock: VirtualClock, url: str) -> None:
        super().__init__(clock)
        self._url = url
        self._name = f"bench-{uuid.uuid4().hex}"

    async def queue(self, **options: Any) -> RedisQueue:
        return self.keep(RedisQueue(self._url, self._name, clock=self.clock, **options))

    def in_real_time(self) -> Bench:
        return RealRedisBench(self._url)


class RealRedisBench(Bench):
    """In real time, for tests of sockets."""

    unit = 0.1

    def __init__(self, url: str) -> None:
        self._url = url
        self._name = f"bench-{uuid.uuid4().hex}"

    async def queue(self, **options: Any) -> RedisQueue:
        return self.keep(RedisQueue(self._url, self._name, **options))

    async def elapse(self, units: float) -> None:
        await Clock().sleep(units * self.unit)


@cache
def migrated(dsn: str, schema: str = "pollwise") -> str:
    """The DSN of a database in which the tables are made, once a session."""

    async def main() -> None:
        async with PostgresQueue(dsn, schema=schema) as queue:
            await queue.migrate()

    asyncio.run(main())
    return dsn


class PostgresBench(VirtualBench):
    """A queue of its own on a shared server, in virtual time."""

    def __init__(self, clock: VirtualClock, dsn: str) -> None:
        super().__init__(clock)
        self._dsn = migrated(dsn)
        self._name = f"bench-{uuid.uuid4().hex}"

    async def queue(self, **options: Any) -> PostgresQueue:
        return self.keep(PostgresQueue(self._dsn, self._name, clock=self.clock, **options))

    def in_real_time(self) -> Bench:
        return RealPostgresBench(self._dsn)


class RealPostgresBench(Bench):
    """In real time, for tests of sockets."""

    unit = 0.1

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._name = f"bench-{uuid.uuid4().hex}"

    async def queue(self, **options: Any) -> PostgresQueue:
        return self.keep(PostgresQueue(self._dsn, self._name, **options))

    async def elapse(self, units: float) -> None:
        await Clock().sleep(units * self.unit)
