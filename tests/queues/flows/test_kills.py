"""Flows under `kill -9`: no callback is lost, or runs before its time.

Groups of jobs run in workers that are killed at random. Each group has a callback for when all of
its jobs are done, and one for when one of them fails, as some do until they are fixed. Whatever
is killed, each callback runs with the results of its group, or is cancelled, as it should.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from pollwise.queues.base import Queue
from pollwise.queues.flows.linking import linked
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import NewJob
from tests.support.crew import Crew

CHILD = Path(__file__).with_name("kill_child.py")
WORKERS = 3
SIZE = 3
#: One group in this many has a job that fails.
FLAKY = 5
#: How many groups are put at a time.
AT_ONCE = 100


def group(number: int) -> list[NewJob]:
    """Some jobs, a job that comes after them, one after that, and one for failures."""
    flaky = number % FLAKY == 0
    kinds = ["flaky" if flaky and n == 0 else "steady" for n in range(SIZE)]
    jobs = [NewJob(kind, [number, n]) for n, kind in enumerate(kinds)]
    callback = NewJob("callback", number, after=jobs, key=f"k{number % 7}")
    last = NewJob("last", number, after=[callback])
    return [*jobs, callback, last, NewJob("failed", number, after=jobs, on_failure=True)]


async def put_groups(queue: Queue, count: int) -> list[list[str]]:
    put: list[list[str]] = []
    for first in range(0, count, AT_ONCE):
        groups = [group(number) for number in range(first, min(first + AT_ONCE, count))]
        ids = iter(await queue.put([job for jobs in groups for job in jobs]))
        put += [[next(ids) for _ in jobs] for jobs in groups]
    return put


async def until_idle(queue: Queue, crew: Crew, kills: int, apart: float, within: float) -> None:
    """Kill a worker now and then, until nothing can run."""
    async with asyncio.timeout(within):
        while True:
            if kills:
                kills -= 1
                await asyncio.to_thread(crew.kill_one)
            await asyncio.sleep(apart)  # real time: the workers are at it
            stats = await queue.stats()
            if not (stats.ready or stats.delayed or stats.leased or kills):
                return


def runs_of(log: Path) -> dict[str, list[dict[str, Any]]]:
    runs = defaultdict(list)
    for line in log.read_text("utf-8").splitlines():
        record = json.loads(line)
        runs[record["job"]].append(record)
    return runs


async def check(queue: Queue, put: list[list[str]], runs: dict[str, list[dict[str, Any]]]) -> None:
    """Each callback ran, always with the results of its group; the others were cancelled."""
    for number, (*_, callback, last, failed) in enumerate(put):
        flaky = number % FLAKY == 0
        view = await queue.flow(callback)
        assert view is not None, f"group {number} is lost"
        assert [each.info.job.id for each in view.jobs] == put[number]
        states = [each.info.state for each in view.jobs]
        assert states == ["done"] * (SIZE + 2) + ["done" if flaky else "cancelled"]
        results = [["done", [number, n]] for n in range(SIZE)]
        assert runs[callback], f"callback {callback} never ran"
        assert all(run["ends"] == results for run in runs[callback]), runs[callback]
        assert runs[last], f"the last job {last} never ran"
        assert all(run["ends"] == [["done", number]] for run in runs[last]), runs[last]
        if flaky:
            # It may run a second time after the mending, when its first worker was killed.
            assert any(["dead", None] in run["ends"] for run in runs[failed]), runs[failed]
        else:
            assert failed not in runs


def under_kills(url: str, folder: Path, groups: int, kills: int, apart: float) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    log, fixed = folder / "log.jsonl", folder / "fixed"
    log.touch()

    async def main() -> None:
        async with open_queue(url) as queue:
            if not queue.capabilities.flows:
                pytest.skip(f"{type(queue).__name__} cannot link jobs")
            await queue.migrate()
            crew = await asyncio.to_thread(Crew, CHILD, WORKERS, rng, url, log, fixed)
            within = 60 + groups
            try:
                put = await put_groups(queue, groups)
                await until_idle(queue, crew, kills, apart, within)
                flaky = len(range(0, groups, FLAKY))
                counts = await queue.stats(1_000_000)
                assert (counts.dead, counts.blocked) == (flaky, 2 * flaky)
                fixed.touch()
                assert await queue.retry(anyway=True) == flaky
                await until_idle(queue, crew, kills // 4, apart, within)
            finally:
                crew.close()
            counts = await queue.stats(1_000_000)
            assert (counts.dead, counts.blocked) == (0, 0)
            assert counts.done + counts.cancelled == len(put) * len(put[0])
            await check(queue, put, runs_of(log))

    asyncio.run(main())


def test_groups_have_their_flow() -> None:
    flows = {job.place.flow for job in linked(group(0)) if job.place is not None}
    assert len(flows) == 1


def test_every_callback_runs(shared_url: str, tmp_path: Path) -> None:
    under_kills(shared_url, tmp_path, groups=100, kills=6, apart=0.15)


@pytest.mark.soak
def test_ten_thousand_callbacks_run(shared_url: str, tmp_path: Path) -> None:
    under_kills(shared_url, tmp_path, groups=10_000, kills=60, apart=0.5)
