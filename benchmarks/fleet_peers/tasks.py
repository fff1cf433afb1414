"""A bare asyncio task per target, for benchmarks/fleet.py: `tasks.py run TARGETS POLLS`.

It runs on the same virtual event loop as the fleet, but has no deadlines, no limit of polls at a
time, no learning, and no state to show or to keep.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from pathlib import Path
from random import Random

from pollwise.runtime.clock import VirtualClock

INTERVAL = 10.0


def resident() -> int:
    text = Path("/proc/self/statm").read_text(encoding="ascii")
    return int(text.split()[1]) * 4096


def run(count: int, polls: int) -> dict[str, float]:
    done = 0

    async def probe() -> str:
        return "same"

    async def target(phase: float) -> None:
        nonlocal done
        await asyncio.sleep(phase)
        while True:
            await probe()
            done += 1
            await asyncio.sleep(INTERVAL)

    async def main() -> dict[str, float]:
        random = Random(1).random
        gc.collect()
        empty, begun = resident(), time.process_time()
        tasks = [asyncio.ensure_future(target(random() * INTERVAL)) for _ in range(count)]
        await asyncio.sleep(0)
        started = time.process_time() - begun
        await asyncio.sleep(INTERVAL * min(1.05, 2e5 / count))
        gc.collect()
        full = resident()
        before, begun = done, time.process_time()
        while done - before < polls:
            await asyncio.sleep(INTERVAL * polls / count / 8)
        cpu = time.process_time() - begun
        found = {"cpu": cpu, "polls": done - before, "memory": (full - empty) / count}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return found | {"start": started / count}

    return VirtualClock().run(main())


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[2]), int(sys.argv[3]))))
