"""APScheduler 4 (alpha) with interval schedules in memory, for benchmarks/fleet.py.

As apscheduler3.py: `… run TARGETS SECONDS`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from apscheduler import AsyncScheduler  # type: ignore[import-not-found]  # noqa: E402
from apscheduler.triggers.interval import (  # type: ignore[import-not-found]  # noqa: E402
    IntervalTrigger,
)

from benchmarks.fleet_peers.interval_jobs import (  # noqa: E402
    first_times,
    interval_of,
    main,
    probe,
)


@asynccontextmanager
async def scheduling(count: int) -> AsyncIterator[None]:
    interval = interval_of(count)
    async with AsyncScheduler() as scheduler:
        await scheduler.configure_task("probe", func=probe)
        for name, when in first_times(count):
            trigger = IntervalTrigger(seconds=interval, start_time=when)
            await scheduler.add_schedule("probe", trigger, id=name)
        await scheduler.start_in_background()
        yield
        await scheduler.stop()


if __name__ == "__main__":
    main(scheduling)
