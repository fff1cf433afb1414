"""A worker that claims far ahead: `python doomed.py URL LOG NAME`.

It logs each start as a line in LOG. A job of kind "poison" ends the process, as a crash would. One
of kind "gate" waits until the file in its payload exists.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from pollwise import Job, Retry, Worker, WorkerRunOptions

url, path, name = sys.argv[1:]
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
worker = Worker(
    url, WorkerRunOptions(concurrency=1, prefetch=100, lease="1500ms", grace=0), name=name
)


def note(job: Job) -> None:
    os.write(log, f"{name} {job.kind} {job.payload} {job.attempt}\n".encode())


@worker.handle("quick")
async def quick(job: Job) -> None:
    note(job)


@worker.handle("poison", retry=Retry.exponential(attempts=2))
async def poison(job: Job) -> None:
    note(job)
    os._exit(1)


@worker.handle("gate")
async def gate(job: Job) -> None:
    note(job)
    while not Path(job.payload).exists():
        await asyncio.sleep(0.01)  # real time: the test opens it


asyncio.run(worker.run())
