"""SAQ on Postgres or on Redis, by the URL.

Concurrency 10 (its default). Finished jobs are not kept (`ttl=-1`), which saves a write. On
Postgres it waits for NOTIFY, on Redis it blocks in BLMOVE: both its defaults. It has no call that
puts many jobs, but documents `asyncio.gather` over `enqueue`, so that is a batch here. On Redis
with hiredis, its `saq[hiredis]`, and uvloop, which was the faster loop in a trial here.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import uvloop  # noqa: E402
from saq import Queue, Worker  # type: ignore[import-not-found]  # noqa: E402

from benchmarks.queue_peers.protocol import Driver, Handle, main  # noqa: E402

#: The number of puts of a batch at a time: its own limit is 20 operations.
AT_ONCE = 20


class SaqDriver(Driver):
    run = staticmethod(uvloop.run)
    _queue: Any

    async def setup(self) -> None:
        await self.connect()
        await self._queue.disconnect()

    async def connect(self) -> None:
        self._queue = Queue.from_url(self.url)
        await self._queue.connect()

    async def put(self, sent: list[float]) -> None:
        if len(sent) == 1:
            await self._queue.enqueue("empty", sent=sent[0], ttl=-1)
            return

        async def some(part: list[float]) -> None:
            for each in part:
                await self._queue.enqueue("empty", sent=each, ttl=-1)

        await asyncio.gather(*(some(sent[n::AT_ONCE]) for n in range(AT_ONCE)))

    def work(self, handle: Handle) -> None:
        async def empty(ctx: Any, *, sent: float) -> None:
            handle(sent)

        # With `ttl=-1` its first sweep may fail on a job that ends at that moment; none is lost.
        logging.getLogger("saq").setLevel(logging.CRITICAL)

        async def serve() -> None:
            queue = Queue.from_url(self.url)
            await queue.connect()
            await Worker(queue, [("empty", empty)], concurrency=self.concurrency).start()

        self.run(serve())


if __name__ == "__main__":
    main(SaqDriver)
