"""A worker process that prints what happens to it, and whose handlers wait for its stop.

Its arguments: the database, and how it runs: "blocking", "awaited" or "two" in one event loop.
A job of kind `finish` ends when the worker stops; `hang` and `block` never end, `stubborn` does not
end even when it is cancelled, and `freeze` blocks the event loop.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

from pollwise import Worker, WorkerRunOptions
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime import signals
from pollwise.runtime.events import Events, JobStarted, WorkerStopping
from pollwise.runtime.executor import executor
from pollwise.runtime.jobs import Job

database, how = sys.argv[1:]
executor.STUCK_AFTER, signals.END_WITHIN = 0.5, 5.0
options = WorkerRunOptions(concurrency=2, prefetch=2, grace="60s", lease="60s")


def tell(event: Any) -> None:
    print(type(event).__name__, getattr(event, "kind", getattr(event, "worker", "")), flush=True)


def make(name: str) -> Worker:
    events = Events(quiet=True)
    events.subscribe(tell)
    worker = Worker(SqliteQueue(database, synchronous="off"), options, name=name, events=events)
    gate: list[asyncio.Event] = []

    @worker.handle("finish")
    async def finish(job: Job) -> None:
        gate.append(asyncio.Event())
        await gate[-1].wait()

    @worker.handle("hang")
    async def hang(job: Job) -> None:
        await asyncio.Event().wait()

    @worker.handle("stubborn")
    async def stubborn(job: Job) -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    @worker.handle("freeze")
    async def freeze(job: Job) -> None:
        print("frozen", flush=True)
        threading.Event().wait()

    @worker.handle("block")
    def block(job: Job) -> None:
        threading.Event().wait()

    def stopping(event: WorkerStopping) -> None:
        for each in gate:
            each.set()

    events.subscribe(stopping, WorkerStopping)
    assert events.wants(JobStarted)
    return worker


async def awaited(*workers: Worker) -> None:
    await asyncio.gather(*(worker.run(options) for worker in workers))


before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
if how == "blocking":
    asyncio.run(make("one").run())
elif how == "awaited":
    asyncio.run(awaited(make("one")))
else:
    asyncio.run(awaited(make("one"), make("two")))
assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
print("over", flush=True)
