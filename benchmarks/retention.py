"""How quickly finished jobs are deleted when they were kept long enough, beside other work.

For each store: a queue has many finished jobs that are due, as after a night without a worker. Then
an idle worker starts, and the time until all are deleted gives the rate. Meanwhile another queue of
the same store puts, claims and settles single jobs; the median and the longest round are shown, and
the median with nothing to delete.

Then a worker does jobs at a steady rate with `keep = 5s`, and how many are left shows whether
retention keeps up: at 2,500 jobs a second there can be no fewer than 12,500.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common  # noqa: E402 - see there
from benchmarks.common import Goal, heading, median, number  # noqa: E402
from pollwise import Job, NewJob, Worker, WorkerRunOptions, open  # noqa: E402
from pollwise.queues.base import Queue  # noqa: E402
from pollwise.queues.views import Stats  # noqa: E402
from pollwise.runtime.events import Events  # noqa: E402
from pollwise.runtime.jobs import Settlement  # noqa: E402
from tests.support.servers import Servers  # noqa: E402

#: Jobs to delete, in a full run and in a quick one; and how long jobs end at a steady rate.
FULL, QUICK = 200_000, 20_000
STEADY, STEADY_QUICK = 60, 20
#: Jobs a second, ten times that, and how long they are kept, in seconds.
RATE, RATE_GOAL, KEEP = 2_500, 25_000, 5.0
BATCH = 5_000


async def end(queue: Queue, count: int) -> None:
    """Put jobs and cancel them, which ends them."""
    for _ in range(0, count, BATCH):
        await queue.cancel(await queue.put([NewJob("x") for _ in range(min(BATCH, count))]))


async def ended(queue: Queue) -> int:
    stats: Stats = await queue.stats(10**9)
    return stats.cancelled + stats.done


async def rounds(queue: Queue, until: asyncio.Event, most: int = 1_000) -> list[float]:
    """Milliseconds of rounds of a put, a claim and a settlement."""
    took: list[float] = []
    while not until.is_set() and len(took) < most:
        began = time.perf_counter()
        await queue.put(NewJob("probe"))
        claims = await queue.claim("w", 1, 30)
        await queue.settle([Settlement.done(claim) for claim in claims])
        took.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.01)
    return took


@contextlib.asynccontextmanager
async def running(queue: Queue) -> AsyncIterator[None]:
    worker = Worker(queue, WorkerRunOptions(concurrency=100), events=Events(quiet=True))

    @worker.handle("x")
    async def nothing(job: Job) -> None:
        pass

    async with worker.running():
        yield


async def measure(url: str, jobs: int, steady: int) -> dict[str, float]:
    name = f"{url}{'&' if '?' in url else '?'}queue="
    async with open(f"{name}bulk&keep=1s") as bulk, open(f"{name}probe") as probe:
        await bulk.migrate()
        quiet = await rounds(probe, asyncio.Event(), 100)
        await end(bulk, jobs)
        await asyncio.sleep(1.0)
        over = asyncio.Event()
        probing = asyncio.ensure_future(rounds(probe, over))
        async with running(bulk):
            while await ended(bulk) == jobs:
                await asyncio.sleep(0.02)
            began, first = time.perf_counter(), await ended(bulk)
            while await ended(bulk):
                await asyncio.sleep(0.02)
            rate = first / (time.perf_counter() - began)
        over.set()
        busy = await probing
    async with open(f"{name}steady&keep={KEEP:g}s") as queue, running(queue):
        began = time.perf_counter()
        count = 0
        while (passed := time.perf_counter() - began) < steady:
            if count < passed * RATE:
                await queue.put([NewJob("x") for _ in range(250)])
                count += 250
            else:
                await asyncio.sleep(0.01)
        left = await ended(queue)
    return {
        "deleted_per_s": rate,
        "quiet_ms": median(quiet),
        "busy_ms": median(busy),
        "longest_ms": max(busy),
        "steady_per_s": count / passed,
        "left": left,
    }


@contextlib.contextmanager
def places(servers: Servers, folder: Path) -> Iterator[dict[str, str]]:
    yield {
        "SQLite": f"sqlite:///{quote(str(folder))}/jobs.db",
        "Postgres": servers.postgres().create_database("retention"),
        "Valkey": servers.redis().url(),
        "memory": "memory://",
    }


def main() -> None:
    given = common.options(__doc__)
    jobs, steady = (QUICK, STEADY_QUICK) if given.quick else (FULL, STEADY)
    goals, rows, facts = [], [], {}
    with Servers() as servers, common.work_folder() as folder, places(servers, folder) as urls:
        machine, versions = common.machine(folder), common.versions()
        common.show(machine, versions)
        others = common.Others()
        for name, url in urls.items():
            found = facts[name] = asyncio.run(measure(url, jobs, steady))
            rows.append([name, *(number(value) for value in found.values())])
            about = found["deleted_per_s"], RATE_GOAL, "jobs/s"
            goals.append(Goal(f"finished jobs deleted, {name}", *about, least=True))
            most = found["steady_per_s"] * (KEEP + 3)
            goals.append(Goal(f"left at a steady rate, {name}", found["left"], most, "jobs"))
        heading(
            f"Deleting {jobs:,} finished jobs; then {RATE:,} jobs a second, kept for {KEEP:g} s"
        )
        head = ["", "deleted/s", "round ms, quiet", "meanwhile", "longest", "ended/s", "left"]
        common.table(head, rows)
        busy = others.show()
    whole = {"machine": machine, "versions": versions, "stores": facts, "others_percent": busy}
    common.finish(whole, goals, given.json)


if __name__ == "__main__":
    main()
