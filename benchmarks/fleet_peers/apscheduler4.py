"""APScheduler 4 (alpha) with interval schedules in memory, for benchmarks/fleet.py.

As apscheduler3.py: in real time, the CPU time of a window by the jobs that ran.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from apscheduler import AsyncScheduler  # type: ignore[import-not-found]
from apscheduler.triggers.interval import IntervalTrigger  # type: ignore[import-not-found]

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
    async with AsyncScheduler() as scheduler:
        await scheduler.configure_task("probe", func=probe)
        first = datetime.now(UTC) + timedelta(seconds=1)
        for n in range(count):
            when = first + timedelta(seconds=interval * n / count)
            trigger = IntervalTrigger(seconds=interval, start_time=when)
            await scheduler.add_schedule("probe", trigger, id=str(n))
        await scheduler.start_in_background()
        started = time.process_time() - begun
        full = resident()
        while not done:
            await asyncio.sleep(0.1)
        before, begun = done, time.process_time()
        await asyncio.sleep(seconds)
        cpu = time.process_time() - begun
        found = {"cpu": cpu, "polls": done - before, "memory": (full - empty) / count}
        await scheduler.stop()
        return found | {"start": started / count}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(int(sys.argv[2]), float(sys.argv[3])))))
