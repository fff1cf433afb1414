"""taskiq with taskiq-redis, on uvloop, which its command line uses if it is installed.

Two ways, because its documentation has both: `stream` acknowledges (RedisStreamBroker, batches of
100 per read; a job of a killed worker comes back), `list` does not (ListQueueBroker: only a pop, so
a killed worker loses its jobs). Both have no result backend and no parsing of parameters, with
prefetch 100 and at most 100 tasks at a time, which is its default. It has no call that puts many
jobs: `asyncio.gather` over `kiq` on a pool of connections.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import uvloop  # noqa: E402
from taskiq.api import run_receiver_task  # type: ignore[import-not-found]  # noqa: E402
from taskiq_redis import (  # type: ignore[import-not-found]  # noqa: E402
    ListQueueBroker,
    RedisStreamBroker,
)

from benchmarks.queue_peers.protocol import Driver, Handle, main  # noqa: E402

BROKERS = {"stream": RedisStreamBroker, "list": ListQueueBroker}
PREFETCH = 100
AT_ONCE = 20


class TaskiqDriver(Driver):
    run = staticmethod(uvloop.run)
    _task: Any

    def broker(self, handle: Handle) -> Any:
        more = {"consumer_id": "0"} if self.options.way == "stream" else {}
        broker = BROKERS[self.options.way](self.url, max_connection_pool_size=50, **more)

        @broker.task(task_name="empty")
        async def empty(sent: float) -> None:
            handle(sent)

        self._task = empty
        return broker

    async def setup(self) -> None:
        broker = self.broker(lambda _: None)
        await broker.startup()
        await broker.shutdown()

    async def connect(self) -> None:
        await self.broker(lambda _: None).startup()

    async def put(self, sent: list[float]) -> None:
        if len(sent) == 1:
            await self._task.kiq(sent[0])
            return

        async def some(part: list[float]) -> None:
            for each in part:
                await self._task.kiq(each)

        await asyncio.gather(*(some(sent[n::AT_ONCE]) for n in range(AT_ONCE)))

    def work(self, handle: Handle) -> None:
        async def serve() -> None:
            broker = self.broker(handle)
            broker.is_worker_process = True
            await broker.startup()
            await run_receiver_task(broker, validate_params=False, max_prefetch=PREFETCH)

        self.run(serve())


if __name__ == "__main__":
    main(TaskiqDriver)
