"""Pollwise's side of benchmarks/billed.py: workers and producers on a billed store.

    billed_pollwise.py ENDPOINT SECONDS [SPEED BEGAN] < plan

The plan, one line of JSON, is a list of entries:

    name       the queue, which is created
    polling    the worker's strategy, as Python; null for a queue whose consumer is another process
    workers    how many
    arrivals   when jobs are put, in seconds from the start
    store      "sqs", or "s3"

It prints {"ready": true} when all run and nothing has been put, begins on command, and finally
prints how long each job of each queue waited.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

if len(sys.argv) > 3:
    from tests.support.fast import FastTime, hurry

    hurry(FastTime(float(sys.argv[4]), speed=float(sys.argv[3])))

import pollwise  # noqa: E402
from pollwise import Job, NewJob, Worker, WorkerRunOptions  # noqa: E402
from pollwise.queues.base import Queue  # noqa: E402

ENDPOINT, SECONDS = sys.argv[1], float(sys.argv[2])
STRATEGIES: dict[str, Any] = {
    name: getattr(pollwise, name) for name in ("Adaptive", "Ewma", "Fixed", "Worth")
}


def say(**facts: Any) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


async def opened(entry: dict[str, Any]) -> Queue:
    name = entry["name"]
    if entry["store"] == "sqs":
        return pollwise.open(f"sqs://{name}?endpoint={ENDPOINT}&linger=0&timeout=60s")
    host = f"endpoint={ENDPOINT}&region=us-east-1"
    return pollwise.open(f"s3://{name}/jobs?{host}{entry.get('options', '')}")


async def producing(queue: Queue, arrivals: list[float], began: float) -> None:
    """Put the due jobs, those of the same time in one batch."""
    at = 0
    while at < len(arrivals):
        due = began + arrivals[at]
        await asyncio.sleep(max(due - time.time(), 0.0))
        now = time.time()
        batch = [arrival for arrival in arrivals[at:] if began + arrival <= now] or [arrivals[at]]
        at += len(batch)
        await queue.put([NewJob("job", max(now, due)) for _ in batch])


async def main() -> None:
    plan = json.loads(sys.stdin.readline())
    waits: dict[str, list[float]] = {entry["name"]: [] for entry in plan}
    closing: list[Queue] = []
    workers: list[Worker] = []
    running: list[asyncio.Future[Any]] = []
    producers: list[tuple[Queue, list[float]]] = []
    for entry in plan:
        queue = await opened(entry)
        closing.append(queue)
        if entry["store"] == "sqs":
            await queue.create()  # type: ignore[attr-defined]
        for _ in range(entry["workers"] if entry["polling"] else 0):
            handle = await opened(entry)
            closing.append(handle)
            strategy = eval(entry["polling"], dict(STRATEGIES))
            worker = Worker(handle, WorkerRunOptions(polling=strategy, signals=False))

            @worker.handle("job")
            async def work(job: Job, seen: list[float] = waits[entry["name"]]) -> None:
                seen.append(time.time() - job.payload)
                await asyncio.sleep(0.01)

            workers.append(worker)
            running.append(asyncio.ensure_future(worker.run()))
        producers.append((queue, entry["arrivals"]))
        await queue.stats()  # makes the first look-ups
    say(ready=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.time()
    tasks = [asyncio.ensure_future(producing(q, arrivals, began)) for q, arrivals in producers]
    await asyncio.sleep(max(began + SECONDS - time.time(), 0.0))
    say(waits=waits, lasted=time.time() - began)
    await asyncio.to_thread(sys.stdin.readline)
    for task in tasks:
        task.cancel()
    for worker in workers:
        worker.stop()
    await asyncio.gather(*running, return_exceptions=True)
    for queue in closing:
        await queue.close()


asyncio.run(main())
