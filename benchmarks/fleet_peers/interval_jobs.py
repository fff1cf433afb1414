"""Interval jobs of a scheduler, measured in real time: `… run TARGETS SECONDS`.

Schedulers use the machine's clock, so the time is real: the CPU time of a window, divided by the
jobs that ran. Each scheduler runs in its own environment: nothing of Pollwise is imported.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

#: The maximum number of jobs a second; no peer can keep up with more.
RATE = 500.0
done = 0

#: Runs a scheduler with this many jobs while it is open.
Scheduling = Callable[[int], AbstractAsyncContextManager[None]]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


async def probe() -> None:
    global done
    done += 1


def interval_of(count: int) -> float:
    return max(10.0, count / RATE)


def first_times(count: int) -> Iterator[tuple[str, datetime]]:
    """The jobs by name, and the first time of each."""
    first = datetime.now(UTC) + timedelta(seconds=1)
    for n in range(count):
        yield str(n), first + timedelta(seconds=interval_of(count) * n / count)


async def measured(scheduling: Scheduling, count: int, seconds: float) -> dict[str, float]:
    gc.collect()
    empty, begun = resident(), time.process_time()
    async with scheduling(count):
        started = time.process_time() - begun
        full = resident()
        while not done:
            await asyncio.sleep(0.1)
        before, begun = done, time.process_time()
        await asyncio.sleep(seconds)
        cpu = time.process_time() - begun
        found = {"cpu": cpu, "polls": done - before, "memory": (full - empty) / count}
    return found | {"start": started / count}


def main(scheduling: Scheduling) -> None:
    found = asyncio.run(measured(scheduling, int(sys.argv[2]), float(sys.argv[3])))
    print(json.dumps(found))
