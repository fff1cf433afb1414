"""Huey on Postgres or on Redis, by the URL: one process, 10 worker threads.

Blocking reads (its default): it waits for NOTIFY on Postgres and in BRPOP on Redis. No results
stored, no periodic tasks, no log. It has no call that puts many jobs, so a batch is a loop. Like
taskiq's list, it removes a job from the store before it runs it: a killed worker loses its jobs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

from huey import PostgresHuey, RedisHuey  # type: ignore[import-not-found]  # noqa: E402

from benchmarks.queue_peers.protocol import Driver, Handle, main  # noqa: E402


class HueyDriver(Driver):
    _task: Any

    def huey(self, handle: Handle) -> Any:
        if self.url.startswith("redis"):
            huey = RedisHuey("bench", url=self.url, results=False)
        else:
            huey = PostgresHuey("bench", dsn=self.url, results=False)

        def empty(sent: float) -> None:
            handle(sent)

        self._task = huey.task(name="empty")(empty)
        return huey

    async def setup(self) -> None:
        self.huey(lambda _: None)

    async def connect(self) -> None:
        self.huey(lambda _: None)

    async def put(self, sent: list[float]) -> None:
        for each in sent:
            self._task(each)

    def work(self, handle: Handle) -> None:
        huey = self.huey(handle)
        huey.create_consumer(workers=self.concurrency, periodic=False).run()


if __name__ == "__main__":
    main(HueyDriver)
