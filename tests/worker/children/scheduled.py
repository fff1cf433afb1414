"""A worker process on a queue with schedules. Its arguments: the database, its name."""

from __future__ import annotations

import asyncio
import sys

from pollwise import Worker, WorkerRunOptions
from pollwise.queues.base import Queue
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.events import WorkerStarted
from pollwise.runtime.jobs import Job

database, name = sys.argv[1:]


def opened() -> Queue:
    if database.startswith("postgresql"):
        return PostgresQueue(database, keep="1d")
    return SqliteQueue(database, keep="1d", synchronous="off")


worker = Worker(opened(), name=name)
worker.events.subscribe(lambda event: print("up", flush=True), WorkerStarted)


@worker.handle("tick")
async def handler(job: Job) -> None: ...


asyncio.run(worker.run(WorkerRunOptions(concurrency=2, lease="2s", grace="5s")))
