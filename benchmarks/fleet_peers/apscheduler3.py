"""APScheduler 3 with interval jobs in memory, for benchmarks/fleet.py: `… run TARGETS SECONDS`."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from apscheduler.executors.asyncio import (  # type: ignore[import-not-found]  # noqa: E402
    AsyncIOExecutor,
)
from apscheduler.schedulers.asyncio import (  # type: ignore[import-not-found]  # noqa: E402
    AsyncIOScheduler,
)

from benchmarks.fleet_peers.interval_jobs import (  # noqa: E402
    first_times,
    interval_of,
    main,
    probe,
)


@asynccontextmanager
async def scheduling(count: int) -> AsyncIterator[None]:
    scheduler = AsyncIOScheduler(
        executors={"default": AsyncIOExecutor()},
        job_defaults={"coalesce": True, "misfire_grace_time": None},
        timezone=UTC,
    )
    interval = interval_of(count)
    for name, when in first_times(count):
        scheduler.add_job(probe, "interval", seconds=interval, start_date=when, id=name)
    scheduler.start()
    yield
    scheduler.shutdown(wait=False)


if __name__ == "__main__":
    main(scheduling)
