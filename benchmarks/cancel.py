"""How long a cancel takes to reach a handler in another process, and what progress costs.

A worker process runs a job whose lease lasts a day, so only a hint can bring the cancel. This
process cancels it; the time is from that call until the handler gets `CancelledError`, by the clock
that all processes of a machine share. Cancels are more than a second apart, because a worker
answers one hint a second. On SQLite, Postgres and Valkey, and over HTTP with the store in SQLite.

The worker's handler also reports progress in a loop: what one report costs it, in microseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common  # noqa: E402 - see there
from benchmarks.common import Child, Goal, heading, median, number  # noqa: E402
from pollwise import Job, NewJob, Worker, WorkerRunOptions, open  # noqa: E402
from pollwise.queues.base import Queue  # noqa: E402
from pollwise.runtime.clock import Clock  # noqa: E402
from pollwise.runtime.events import Events, HintsProven  # noqa: E402
from tests.queues.http.stub import Served, make_api, make_app  # noqa: E402
from tests.support.private import write_private  # noqa: E402
from tests.support.servers import Servers  # noqa: E402

#: Cancels per store: in a full run, and in a quick one.
FULL, QUICK = 20, 4
#: Seconds between two cancels.
APART = 1.2
REPORTS = 20_000
GOAL_MS = 1000.0


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def work(url: str) -> None:
    """The worker process."""
    events = Events(quiet=True)
    events.subscribe(lambda _: say(proven=True), HintsProven)
    worker = Worker(url, WorkerRunOptions(lease="24h", grace=0), events=events)

    @worker.handle("wait")
    async def wait(job: Job) -> None:
        say(begun=job.id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            say(cancelled_at=time.monotonic())
            raise

    @worker.handle("report")
    async def report(job: Job) -> None:
        began = time.perf_counter()
        for n in range(REPORTS):
            job.progress(n / REPORTS, "on the way")
        say(report_us=(time.perf_counter() - began) / REPORTS * 1e6)

    asyncio.run(worker.run())


async def measure(url: str, queue: Queue, rounds: int) -> tuple[list[float], float]:
    """Milliseconds from each cancel to its handler, and microseconds of a report."""
    await queue.migrate()
    took = []
    with Child([sys.executable, __file__, "--child", url]) as child:
        if not url.startswith("sqlite"):  # SQLite checks no channel: its file is watched
            child.hear()
        for _ in range(rounds):
            [job_id] = await queue.put(NewJob("wait"))
            await asyncio.to_thread(child.hear)
            await asyncio.sleep(APART)
            began = time.monotonic()
            await queue.cancel([job_id])
            heard = await asyncio.to_thread(child.hear)
            took.append((heard["cancelled_at"] - began) * 1000)
        await queue.put(NewJob("report"))
        return took, (await asyncio.to_thread(child.hear))["report_us"]


@contextlib.contextmanager
def places(servers: Servers, folder: Path) -> Iterator[dict[str, str]]:
    """The URL of a queue on each store."""
    token = folder / "token"
    write_private(token, "admin")
    with Served(lambda: make_app(make_api(folder / "served.db", Clock()))) as served:
        yield {
            "SQLite": f"sqlite:///{folder}/jobs.db",
            "Postgres": servers.postgres().create_database("cancel"),
            "Valkey": servers.redis().url(),
            "HTTP": f"{served.url}?token_file={token}",
        }


async def measure_at(url: str, rounds: int) -> tuple[list[float], float]:
    async with open(url) as queue:
        return await measure(url, queue, rounds)


def main() -> None:
    given = common.options(__doc__)
    goals, rows, facts = [], [], {}
    with Servers() as servers, common.work_folder() as folder, places(servers, folder) as urls:
        machine, versions = common.machine(folder), common.versions()
        common.show(machine, versions)
        others = common.Others()
        for name, url in urls.items():
            took, report_us = asyncio.run(measure_at(url, QUICK if given.quick else FULL))
            facts[name] = {"cancel_ms": took, "report_us": report_us}
            cells = [number(value) for value in (median(took), max(took), report_us)]
            rows.append([name, *cells])
            goals.append(Goal(f"cancel to handler, {name}, longest", max(took), GOAL_MS, "ms"))
        heading("From a cancel to a handler in another process, by broadcast")
        common.table(["", "ms, median", "ms, longest", "µs a report"], rows)
        busy = others.show()
    whole = {"machine": machine, "versions": versions, "stores": facts, "others_percent": busy}
    common.finish(whole, goals, given.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        work(sys.argv[2])
    else:
        main()
