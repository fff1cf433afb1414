"""A worker process whose handlers run until they are cancelled; it prints what happens.

Its argument: the URL of the queue. Leases are so long that only a broadcast brings a cancel in
time.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

from pollwise import Job, Worker, WorkerRunOptions
from pollwise.runtime.events import Events, HintsProven, JobCancelled, JobStarted


def tell(event: Any) -> None:
    print(type(event).__name__, getattr(event, "kind", ""), flush=True)


events = Events(quiet=True)
events.subscribe(tell, HintsProven, JobStarted, JobCancelled)
worker = Worker(sys.argv[1], WorkerRunOptions(lease="24h", grace=0), events=events)


@worker.handle("async")
async def forever(job: Job) -> None:
    await job.progress(0.5, "asleep")
    await asyncio.Event().wait()


@worker.handle("plain")
def forever_in_a_thread(job: Job) -> None:
    while not job.cancel_requested:
        threading.Event().wait(0.01)


asyncio.run(worker.run())
