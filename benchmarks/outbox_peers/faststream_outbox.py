"""faststream-outbox, on asyncpg and uvloop, with LISTEN/NOTIFY, as its documentation advises.

`workers=W batch=B`: W workers (default 1) fetch B rows at a time (default 10) and delete B rows at
a time (default 1). The table has the autovacuum settings that the package renders. Records have no
keys, and no order is kept. A record is deleted when it was handled.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import uvloop  # noqa: E402
from faststream_outbox import (  # type: ignore[import-not-found]  # noqa: E402
    OutboxBroker,
    make_outbox_table,
)
from faststream_outbox.autovacuum import (  # type: ignore[import-not-found]  # noqa: E402
    outbox_autovacuum_ddl,
)
from sqlalchemy import MetaData, text  # noqa: E402
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine  # noqa: E402

from benchmarks.queue_peers.protocol import Driver, Handle, main  # noqa: E402


class FaststreamDriver(Driver):
    run = staticmethod(uvloop.run)
    _broker: Any
    _engine: Any

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        super().__init__(url, options)
        given = dict(pair.split("=") for pair in options.way.split())
        self.workers, self.batch = int(given.get("workers", 1)), int(given.get("batch", 10))
        self._metadata = MetaData()
        self._table = make_outbox_table(self._metadata)

    def _open(self) -> None:
        address = self.url.replace("postgresql://", "postgresql+asyncpg://")
        self._engine = create_async_engine(address, pool_size=self.workers + 2)
        self._broker = OutboxBroker(self._engine, outbox_table=self._table, logger=None)

    async def setup(self) -> None:
        self._open()
        async with self._engine.begin() as connection:
            await connection.run_sync(self._metadata.create_all)
            await connection.execute(text(outbox_autovacuum_ddl()))

    async def connect(self) -> None:
        self._open()

    async def put(self, sent: list[float]) -> None:
        async with AsyncSession(self._engine) as session, session.begin():
            if len(sent) == 1:
                await self._broker.publish(sent[0], queue="orders", session=session)
            else:
                await self._broker.publish_batch(*sent, queue="orders", session=session)

    def work(self, handle: Handle) -> None:
        async def serve() -> None:
            logging.disable(logging.WARNING)
            self._open()

            @self._broker.subscriber(
                "orders",
                max_workers=self.workers,
                fetch_batch_size=self.batch,
                terminal_flush_batch_size=self.batch,
            )
            async def empty(sent: float) -> None:
                handle(sent)

            await self._broker.start()
            await asyncio.Event().wait()

        self.run(serve())


if __name__ == "__main__":
    main(FaststreamDriver)
