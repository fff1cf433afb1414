"""Process a good day and a bad one, print what happens, and exit.

python run_pipeline.py                                   on a SQLite file in a temporary folder
PIPELINE_URL=postgresql://… python run_pipeline.py       on Postgres
"""

from __future__ import annotations

import asyncio
import os
import tempfile

from pipeline import Summary, flow_of, worker
from pollwise import Flow
from pollwise.errors import JobFailed

UNDER_WAY = {"ready", "delayed", "leased"}


async def follow(flow: Flow[Summary]) -> None:
    """Put a flow, print its progress, and how it and its jobs ended."""
    handle = await flow.put()
    seen: list[str | None] = []
    while (view := await handle.view()) and any(each.info.state in UNDER_WAY for each in view.jobs):
        for each in view.jobs:
            progress = each.info.progress
            if progress and progress.note not in seen:
                seen.append(progress.note)
                print(f"  {each.info.job.kind} {progress.note}", flush=True)
        await asyncio.sleep(0.1)
    try:
        summary = await handle.result(timeout="30s")
        print(f"  {summary.readings} readings, {summary.mean:.2f} degrees")
    except JobFailed as failed:
        print(f"  {failed}")
    states = [(each.info.job.kind, each.info.state) for each in view.jobs] if view else []
    print("  " + ", ".join(f"{kind}: {state}" for kind, state in states), flush=True)


async def main() -> None:
    queue = worker.queue_for_puts()
    await queue.migrate()  # creates the tables on Postgres, as `pollwise queue migrate URL` does
    async with worker.running():  # in production: pollwise worker pipeline:worker
        for day in ("2026-02-28", "2026-02-30"):
            print(day, flush=True)
            await follow(flow_of(day))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # sqlite:///pipeline.db is a file in the current folder
        asyncio.run(main())
