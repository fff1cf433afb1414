"""Celery on Redis: a pool of 10 threads in one process.

Settings from its guide "Optimizing" for many short tasks: prefetch multiplier 128, results ignored,
no gossip, no mingle, no heartbeat, no events, rate limits off. Threads keep it in one process, like
all others here; its default, prefork, was no faster in trials with 2 and with 10 processes. Jobs
are acknowledged early, its default: a killed worker loses the jobs that it runs. A batch is a loop
over `apply_async` with one producer.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

from celery import Celery  # type: ignore[import-not-found]  # noqa: E402

from benchmarks.queue_peers.protocol import Driver, Handle, main  # noqa: E402


class CeleryDriver(Driver):
    _task: Any
    _producer: Any

    def app(self, handle: Handle) -> Any:
        app = Celery("bench", broker=self.url)
        app.conf.update(
            task_ignore_result=True,
            worker_prefetch_multiplier=128,
            worker_disable_rate_limits=True,
            worker_send_task_events=False,
            worker_hijack_root_logger=False,
            broker_connection_retry_on_startup=True,
        )

        @app.task(name="empty", ignore_result=True)
        def empty(sent: float) -> None:
            handle(sent)

        self._task = empty
        return app

    async def connect(self) -> None:
        self._producer = self.app(lambda _: None).producer_pool.acquire()

    async def put(self, sent: list[float]) -> None:
        for each in sent:
            self._task.apply_async((each,), producer=self._producer)

    def work(self, handle: Handle) -> None:
        warnings.simplefilter("ignore")  # the warning about running as root
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        told = [
            "-q",
            "worker",
            "--pool=threads",
            f"--concurrency={self.concurrency}",
            "-lERROR",
            *quiet,
        ]
        self.app(handle).worker_main(told)


if __name__ == "__main__":
    main(CeleryDriver)
