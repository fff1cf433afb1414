"""Pollwise's outbox: a relay with its defaults, an async handler, asyncio's own loop.

Records have 1,000 keys, in turn, and are put on a psycopg connection, in its transaction. Completed
ones are deleted, the default. `keys=none` puts records without keys, so that each is claimed by
itself; `batch=B` lets a poll claim this many keys (default 100).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import psycopg  # noqa: E402

from benchmarks.queue_peers.protocol import Driver, Handle, main  # noqa: E402
from pollwise import NewRecord, Outbox, OutboxRunOptions, Record  # noqa: E402

KEYS = 1_000


class PollwiseDriver(Driver):
    _connection: psycopg.AsyncConnection[Any]

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        super().__init__(url, options)
        self._outbox = Outbox(url)
        given = dict(pair.split("=") for pair in options.way.split())
        self._batch = int(given.get("batch", OutboxRunOptions().batch))
        names = [None] if "keys" in given else [f"order-{n}" for n in range(KEYS)]
        self._keys = itertools.cycle(names)

    async def setup(self) -> None:
        await self._outbox.store.migrate()
        await self._outbox.close()

    async def connect(self) -> None:
        self._connection = await psycopg.AsyncConnection.connect(self.url, autocommit=True)

    async def put(self, sent: list[float]) -> None:
        records = [NewRecord("order.placed", {"sent": each}, next(self._keys)) for each in sent]
        async with self._connection.transaction():
            await self._outbox.put(self._connection, records)

    def work(self, handle: Handle) -> None:
        @self._outbox.handle("order.*")
        async def empty(record: Record) -> None:
            handle(record.payload["sent"])

        asyncio.run(self._outbox.run(OutboxRunOptions(batch=self._batch)))


if __name__ == "__main__":
    main(PollwiseDriver)
