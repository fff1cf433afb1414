"""The stores of an outbox for the conformance suite: empty, migrated, under the virtual clock."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pollwise.outbox.stores.base import OutboxStore
from pollwise.outbox.stores.memory import MemoryOutboxStore
from pollwise.outbox.stores.postgres.store import PostgresOutboxStore
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.runtime.clock import VirtualClock
from tests.support.servers import Postgres

T = TypeVar("T")

#: Every store, by the name of its bench. `postgres_oldest` is the oldest server that is supported.
STORES = ("memory", "sqlite", "postgres", "postgres_oldest")


class StoreBench:
    """One outbox in one database; each `store()` is another handle on it."""

    def __init__(self, place: Path | str | None) -> None:
        """place: a SQLite file, the DSN of a migrated Postgres, or None for memory."""
        self.clock = VirtualClock()
        self.name = f"bench-{uuid.uuid4().hex}"
        self._place = place
        self._opened: list[OutboxStore] = []

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a test in virtual time, and close what it opened."""

        async def closing() -> T:
            try:
                return await main
            finally:
                for store in self._opened:
                    await store.close()

        return self.clock.run(closing())

    async def store(self, **options: Any) -> OutboxStore:
        if self._place is None:
            if not self._opened:
                self._opened.append(MemoryOutboxStore(self.name, clock=self.clock, **options))
            return self._opened[0]  # the store is its handle
        store: OutboxStore
        if isinstance(self._place, Path):
            store = SqliteOutboxStore(self._place, self.name, clock=self.clock, watch=0, **options)
            await store.migrate()
        else:
            store = PostgresOutboxStore(self._place, self.name, clock=self.clock, **options)
        self._opened.append(store)
        return store

    async def elapse(self, seconds: float) -> None:
        await self.clock.advance(seconds)


def bench_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> StoreBench:
    if kind == "memory":
        return StoreBench(None)
    if kind == "sqlite":
        return StoreBench(folder / "shop.db")
    server: Postgres = request.getfixturevalue(kind)
    return StoreBench(migrated(server.dsn()))


@cache
def migrated(dsn: str, schema: str = "pollwise") -> str:
    """The DSN of a database in which the tables are made, once a session."""

    async def main() -> None:
        async with PostgresOutboxStore(dsn, schema=schema) as store:
            await store.migrate()

    asyncio.run(main())
    return dsn
