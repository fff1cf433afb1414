"""APScheduler 3 with interval jobs in memory, for benchmarks/fleet.py: `… run TARGETS SECONDS`.

In real time, since it goes by the machine's clock: the CPU time of a window, by the jobs that ran.
It runs in its own environment: nothing of Pollux is imported.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from apscheduler.executors.asyncio import AsyncIOExecutor  # type: ignore[import-not-found]
from apscheduler.schedulers.asyncio import AsyncIOScheduler  # type: ignore[import-not-found]

#: So many jobs a second at the most; it cannot keep up with more.
RATE = 500.0
done = 0


def resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


async def probe() -> None:
    global done
    done += 1


async def main(count: int, seconds: float) -> dict[str, float]:
    interval = max(10.0, count / RATE)
    gc.collect()
    empty, begun = resident(), time.process_time()
    scheduler = AsyncIOScheduler(
        executors={"default": AsyncIOExecutor()},
        job_defaults={"coalesce": True, "misfire_grace_time": None},
        timezone=UTC,
    )
    first = datetime.now(UTC) + timedelta(seconds=1)
    for n in range(count):
        when = first + timedelta(seconds=interval * n / count)
        scheduler.add_job(probe, "interval", seconds=interval, start_date=when, id=str(n))
    scheduler.start()
    started = time.process_time() - begun
    full = resident()
    while not done:
        await asyncio.sleep(0.1)
    before, begun = done, time.process_time()
    await asyncio.sleep(seconds)
    cpu = time.process_time() - begun
    found = {"cpu": cpu, "polls": done - before, "memory": (full - empty) / count}
    scheduler.shutdown(wait=False)
    return found | {"start": started / count}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(int(sys.argv[2]), float(sys.argv[3])))))
