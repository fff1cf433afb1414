"""Fill an SQS queue, then handle it as fast as possible, several times.

    billed_flood.py ENDPOINT JOBS ROUNDS

The test server searches the whole queue at each request, so the rounds are short.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from pollwise import Adaptive, Job, NewJob, Worker, WorkerRunOptions
from pollwise.queues.sqs.queue import SqsQueue

ENDPOINT, JOBS, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
OPTIONS = WorkerRunOptions(
    polling=Adaptive("100ms", "5s", hold="20s"), concurrency=64, signals=False
)


async def once(queue: SqsQueue) -> tuple[float, float]:
    """The seconds from the first job's start until all are deleted, and the CPU seconds."""
    await queue.put([NewJob("job", n) for n in range(JOBS)])
    worker = Worker(queue, OPTIONS)
    starts: list[float] = []
    left = JOBS

    @worker.handle("job")
    async def work(job: Job) -> None:
        nonlocal left
        starts.append(time.monotonic())
        left -= 1
        if not left:
            worker.stop()

    cpu = time.process_time()
    await worker.run()
    return time.monotonic() - starts[0], time.process_time() - cpu


async def main() -> None:
    async with SqsQueue("flood", endpoint=ENDPOINT, timeout="60s") as queue:
        await queue.create()
        await once(queue)  # to warm up
        took = [await once(queue) for _ in range(ROUNDS)]
    facts = {"jobs": JOBS, "seconds": [t for t, _ in took], "cpu": [c for _, c in took]}
    os.write(1, json.dumps(facts).encode() + b"\n")


asyncio.run(main())
