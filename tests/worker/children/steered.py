"""A worker process that the test pauses and steers: `steered.py URL`. It prints what it runs."""

from __future__ import annotations

import asyncio
import sys

from pollwise import Job, Worker, WorkerRunOptions

worker = Worker(sys.argv[1], WorkerRunOptions(concurrency=2), name="steered")


@worker.handle("mail")
@worker.handle("resize")
async def handle(job: Job) -> None:
    print("ran", job.kind, job.payload, flush=True)


asyncio.run(worker.run())
