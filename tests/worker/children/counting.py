"""A worker in virtual time that kills its process after some minutes; prints when each job ran."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from pollwise import Worker, WorkerRunOptions
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import Job, NewJob

EVERY = 7.0


async def main(clock: VirtualClock, database: Path, lives: float) -> None:
    queue = SqliteQueue(database, clock=clock, synchronous="off", watch=0)
    worker = Worker(queue)

    @worker.handle("job")
    async def handle(job: Job) -> None:
        print(clock.epoch(), flush=True)

    running = asyncio.ensure_future(worker.run(WorkerRunOptions(signals=False)))
    for _ in range(int(lives / EVERY)):
        await queue.put(NewJob("job"))
        await clock.advance(EVERY)
    assert not running.done()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    virtual = VirtualClock()
    virtual.run(main(virtual, Path(sys.argv[1]), float(sys.argv[2])))
