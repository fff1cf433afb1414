"""A worker process with limits in its code. Its arguments: the database, its name, a log."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from pollwise import Concurrency, Job, Rate, Worker, WorkerRunOptions
from pollwise.queues.sqlite.queue import SqliteQueue

database, name, log = sys.argv[1:]
worker = Worker(SqliteQueue(database, keep="1d", synchronous="off"), name=name)


def note(what: str, job: Job, group: str) -> None:
    with Path(log).open("a") as file:
        file.write(f"{what} {name} {job.id} {group} {time.time()}\n")


@worker.task(limit=[Concurrency(5), Concurrency(2, by="tenant")])
async def call(job: Job, tenant: str) -> None:
    note("call", job, tenant)
    await asyncio.sleep(0.02)  # real time: other processes work
    note("end", job, tenant)


@worker.task(limit=Rate(50, per="1s", burst=2))
async def rated(job: Job) -> None:
    note("rated", job, "-")


asyncio.run(worker.run(WorkerRunOptions(concurrency=8, lease="2s", grace="5s")))
