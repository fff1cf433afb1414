"""Dramatiq on Redis: one process, 10 worker threads, because its handlers are plain functions.

Prefetch 1000 instead of twice the threads, by the environment variable that it documents: that made
it twice as fast here. Without results and Prometheus; the other middleware is its default. It has
no call that puts many jobs: a `group` enqueues them one by one, so a batch is a loop. hiredis
parses its answers. Pickup when idle depends on its back-off (up to `worker_timeout`, 1 s by
default), which is unchanged: a shorter one would cost it commands while idle.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])
os.environ.setdefault("dramatiq_queue_prefetch", "1000")

import dramatiq as package  # type: ignore[import-not-found]  # noqa: E402
from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found]  # noqa: E402

from benchmarks.queue_peers.protocol import Driver, Handle, main  # noqa: E402


class DramatiqDriver(Driver):
    _actor: Any

    def broker(self, handle: Handle) -> Any:
        broker = RedisBroker(url=self.url)
        package.set_broker(broker)

        def empty(sent: float) -> None:
            handle(sent)

        self._actor = package.actor(empty, actor_name="empty", broker=broker)
        return broker

    async def connect(self) -> None:
        self.broker(lambda _: None)

    async def put(self, sent: list[float]) -> None:
        for each in sent:
            self._actor.send(each)

    def work(self, handle: Handle) -> None:
        worker = package.Worker(self.broker(handle), worker_threads=self.concurrency)
        worker.start()
        while True:
            signal.pause()


if __name__ == "__main__":
    main(DramatiqDriver)
