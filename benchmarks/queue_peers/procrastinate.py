"""procrastinate, with its psycopg connector, which it documents for async workers.

Concurrency 10, LISTEN/NOTIFY on (its default), finished jobs deleted (`delete_jobs="always"`),
because Pollwise deletes them too, and a growing table would slow it down. Its worker fetches one
job at a time by design; there is no batch to raise. Puts use `batch_defer_async`. psycopg's binary
package, and asyncio's own loop: it documents no other.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import procrastinate  # type: ignore[import-not-found]  # noqa: E402

from benchmarks.queue_peers.protocol import Driver, Handle, main  # noqa: E402


class ProcrastinateDriver(Driver):
    _task: Any

    def app(self, handle: Handle, most: int) -> Any:
        connector = procrastinate.PsycopgConnector(conninfo=self.url, min_size=1, max_size=most)
        app = procrastinate.App(connector=connector)

        @app.task(name="empty")
        async def empty(sent: float) -> None:
            handle(sent)

        self._task = empty
        return app

    async def setup(self) -> None:
        app = self.app(lambda _: None, 1)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def connect(self) -> None:
        await self.app(lambda _: None, 1).open_async()

    async def put(self, sent: list[float]) -> None:
        if len(sent) == 1:
            await self._task.defer_async(sent=sent[0])
        else:
            await self._task.batch_defer_async(*({"sent": each} for each in sent))

    def work(self, handle: Handle) -> None:
        async def serve() -> None:
            # One connection listens, the others fetch and finish.
            app = self.app(handle, self.concurrency + 2)
            async with app.open_async():
                await app.run_worker_async(concurrency=self.concurrency, delete_jobs="always")

        self.run(serve())


if __name__ == "__main__":
    main(ProcrastinateDriver)
