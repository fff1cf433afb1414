"""Fill a queue in a bucket, then handle it as fast as possible, several times.

    billed_bucket.py URL JOBS ROUNDS

One process puts a hundred jobs at a time; then one worker handles them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import pollwise
from pollwise import Adaptive, Job, NewJob, Worker, WorkerRunOptions
from pollwise.queues.base import Queue

URL, JOBS, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
BATCH = 100
OPTIONS = WorkerRunOptions(polling=Adaptive("100ms", "5s"), concurrency=64, signals=False)


async def once(queue: Queue) -> tuple[float, float, float]:
    """The seconds of the puts, the seconds until all is settled, and the CPU seconds."""
    began, cpu = time.monotonic(), time.process_time()
    for first in range(0, JOBS, BATCH):
        await queue.put([NewJob("job", n) for n in range(first, min(first + BATCH, JOBS))])
    filled = time.monotonic()
    worker = Worker(queue, OPTIONS)
    left = JOBS

    @worker.handle("job")
    async def work(job: Job) -> None:
        nonlocal left
        left -= 1
        if not left:
            worker.stop()

    await worker.run()
    return filled - began, time.monotonic() - filled, time.process_time() - cpu


async def main() -> None:
    async with pollwise.open(URL) as queue:
        await once(queue)  # to warm up
        took = [await once(queue) for _ in range(ROUNDS)]
        assert not (await queue.stats()).ready
    put, worked, cpu = (list(times) for times in zip(*took, strict=True))
    os.write(1, json.dumps({"jobs": JOBS, "put": put, "work": worked, "cpu": cpu}).encode() + b"\n")


asyncio.run(main())
