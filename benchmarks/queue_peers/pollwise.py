"""Pollwise on Postgres or on Redis, by the URL: concurrency 10, everything else by default.

`prefetch=1000` claims this many ahead instead of as many as the handlers finish in 100 ms.
`kind=other` works on a kind that nobody puts. `vacuum=off` leaves vacuuming to the server, as for a
role that may not vacuum. `hints=off` puts without hints, and `hints=each` sends one with every put;
users cannot choose these: they show what hints cost. `sync` puts by `pollwise.open_sync`, without
an event loop of the caller. Handlers are async, on asyncio's own loop. Jobs are deleted when done,
its default.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import pollwise  # noqa: E402
from benchmarks.queue_peers.protocol import Driver, Handle, main  # noqa: E402
from pollwise import Job, NewJob, Worker, WorkerRunOptions  # noqa: E402
from pollwise.runtime.jobs import Settlement  # noqa: E402


class PollwiseDriver(Driver):
    _queue: Any

    async def setup(self) -> None:
        async with pollwise.open(self.url) as queue:
            migrate = getattr(queue, "migrate", None)
            if migrate is not None:
                await migrate()
            if self.url.startswith("postgres"):
                await self._vacuum_empty(queue)

    async def _vacuum_empty(self, queue: Any) -> None:
        """Vacuum the table when all its jobs are gone: the normal state of a queue that keeps up.

        The server then takes the table to be empty, whatever is put, until it looks again.
        """
        await queue.put([NewJob("empty") for _ in range(500)])
        while claims := await queue.claim("setup", 100, 60):
            await queue.settle([Settlement.done(claim) for claim in claims])
        await queue.database.connections.script(queue.database.sql["vacuum"].decode())

    async def connect(self) -> None:
        if self.options.way == "sync":
            self._queue = pollwise.open_sync(self.url)
            return
        self._queue = pollwise.open(self.url)
        hints = self._queue.hints()
        if self.options.way == "hints=off":
            hints.ride = lambda *_: None
        elif self.options.way == "hints=each":
            hints.ride = hints.news
        if self.options.way.startswith("hints="):
            hints.send_to_others = lambda *_, **__: None
        await self._queue.stats()

    async def put(self, sent: list[float]) -> None:
        put = self._queue.put([NewJob("empty", {"sent": each}) for each in sent])
        if self.options.way != "sync":
            await put

    async def claim(self, limit: int, times: int) -> list[float]:
        """Single claims; each claim is settled and its jobs put again, so that all find the
        same."""
        took = []
        for _ in range(times + 1):
            began = time.monotonic()
            claims = await self._queue.claim("bench", limit, "60s")
            took.append(time.monotonic() - began)
            assert len(claims) == limit, f"a claim of {limit} got {len(claims)}"
            await self._queue.settle([Settlement.done(claim) for claim in claims])
            await self.put([0.0] * limit)
        return took[1:]  # the first one also connects

    def work(self, handle: Handle) -> None:
        what, _, value = self.options.way.partition("=")
        prefetch = int(value) if what == "prefetch" else None
        if what == "vacuum":
            from pollwise.storage.postgres import database as postgres_database

            postgres_database.VACUUM_EVERY = sys.maxsize
        options = WorkerRunOptions(concurrency=self.concurrency, prefetch=prefetch)
        worker = Worker(self.url, options)

        @worker.handle(value if what == "kind" else "empty")
        async def empty(job: Job) -> None:
            handle(job.payload["sent"])

        asyncio.run(worker.run())


if __name__ == "__main__":
    main(PollwiseDriver)
