"""A worker process whose tasks are put as flows."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from pollwise import Job, Retry, Worker, WorkerRunOptions, results_before
from pollwise.runtime.events import WorkerStarted

worker = Worker(os.environ.get("QUEUE_URL", "memory://"))
worker.events.subscribe(lambda event: print("up", flush=True), WorkerStarted)
AGAIN = Retry.fixed("1s", attempts=None)


@worker.task(retry=AGAIN)
async def square(number: int) -> int:
    await asyncio.sleep(0.01)  # real time: it is killed in the middle of this
    return number * number


@worker.task(retry=AGAIN)
def total(numbers: list[int]) -> int:
    return sum(numbers)


@worker.task(retry=Retry.never())
async def refuse(number: int) -> int:
    raise ValueError(f"{number} is refused")


@worker.task(retry=AGAIN)
async def told(error: str) -> str:
    return error


@worker.task(retry=AGAIN)
async def look(job: Job, before: list[Any] = results_before) -> list[Any]:
    return before


if __name__ == "__main__":
    asyncio.run(worker.run(WorkerRunOptions(concurrency=4, lease="1s", grace="5s")))
