"""PgQueuer, on asyncpg and uvloop, as its own command line uses them.

`batch=100`: a claim and a flush of statuses are one statement per batch, so larger batches make it
fast (more than 100 gained little here); `batch=10` is its default. No limit on running tasks, its
default: with `max_concurrent_tasks` its claim counts the running tasks, and a batch can be at most
half of the limit. Handlers are async. It deletes a finished job and logs it in a table, which
cannot be turned off. Unlogged tables would lose jobs in a crash, so they stay logged.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import asyncpg  # noqa: E402
import uvloop  # noqa: E402
from pgqueuer import PgQueuer, Queries  # type: ignore[import-not-found]  # noqa: E402

from benchmarks.queue_peers.protocol import Driver, Handle, main  # noqa: E402


class PgQueuerDriver(Driver):
    run = staticmethod(uvloop.run)
    _queries: Any

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        super().__init__(url, options)
        self.batch = int(options.way.removeprefix("batch=") or 10)

    async def setup(self) -> None:
        connection = await asyncpg.connect(self.url)
        await Queries.from_asyncpg_connection(connection).install()
        await connection.close()

    async def connect(self) -> None:
        self._queries = Queries.from_asyncpg_connection(await asyncpg.connect(self.url))

    async def put(self, sent: list[float]) -> None:
        if len(sent) == 1:
            await self._queries.enqueue("empty", repr(sent[0]).encode())
        else:
            payloads = [repr(each).encode() for each in sent]
            await self._queries.enqueue(["empty"] * len(sent), payloads, [0] * len(sent))

    def work(self, handle: Handle) -> None:
        async def serve() -> None:
            queuer = PgQueuer.from_asyncpg_connection(await asyncpg.connect(self.url))

            @queuer.entrypoint("empty")
            async def empty(job: Any) -> None:
                handle(float(job.payload))

            await queuer.qm.run(batch_size=self.batch)

        self.run(serve())


if __name__ == "__main__":
    main(PgQueuerDriver)
