"""Limits under `kill -9`: no limit is passed, and all jobs run, whichever workers are killed."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from pollwise.queues.base import Queue
from pollwise.queues.limits.record import Concurrency, Rate
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import STATES, NewJob
from tests.support.crew import Crew

CHILD = Path(__file__).with_name("kill_child.py")
WORKERS = 4
GROUPS = ("a", "b", "c", "d", "e")
MOST, MOST_EACH = 6, 2
LEASE = 1.0
RATE = Rate(200, 1, burst=5)


class Held(NamedTuple):
    """A lease: the moment of its claim, and from when until when it was held at least."""

    claimed_at: float
    begin: float
    end: float
    group: str


def leases_of(log: Path) -> tuple[dict[str, list[Held]], int]:
    """The leases by kind, and how many were never settled, because their worker was killed."""
    begun: dict[tuple[str, int], tuple[str, str, float, float]] = {}
    ended: dict[tuple[str, int], float] = {}
    for line in log.read_text("utf-8").splitlines():
        what, at, claims = json.loads(line)
        for job_id, token, kind, group, until in claims:
            if what == "claim":
                begun[job_id, token] = kind, group, at, until
            else:
                ended[job_id, token] = at
    found: dict[str, list[Held]] = {}
    for claim, (kind, group, at, until) in begun.items():
        end = max(min(ended.get(claim, until), until), at)
        found.setdefault(kind, []).append(Held(until - LEASE, at, end, group))
    return found, len(begun.keys() - ended.keys())


async def jobs_left(queue: Queue) -> int:
    stats = await queue.stats(1_000_000)
    return sum(getattr(stats, state) for state in STATES)


def check_running(leases: list[Held]) -> None:
    events = sorted(
        event
        for each in leases
        for event in ((each.end, 0, each.group), (each.begin, 1, each.group))
    )
    running: Counter[str] = Counter()
    fullest = 0
    for _, begins, group in events:
        running[group] += 1 if begins else -1
        fullest = max(fullest, running.total())
        assert running.total() <= MOST, f"{running} run at a time"
        assert running[group] <= MOST_EACH, f"{running} run at a time"
    assert fullest == MOST, f"at most {fullest} ever ran at a time, so nothing was limited"


def check_starts(leases: list[Held]) -> None:
    """No span has more starts than its length allows."""
    starts = sorted(each.claimed_at for each in leases)
    step, burst = 1 / RATE.amount, RATE.burst or 1
    for place, start in enumerate(starts):
        for before in range(0, place - burst + 1, 7):
            allowed = burst + (start - starts[before]) / step
            assert place - before + 1 <= allowed + 0.01, f"starts {before} to {place} are too fast"


def under_kills(url: str, folder: Path, jobs: int, kills: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    log = folder / "log.jsonl"
    log.touch()

    async def check_use(queue: Queue) -> None:
        for use in await queue.limits.use():
            if use.limits.kind == "few":
                assert use.running <= MOST, f"{use.running} run at a time"
                assert all(each.running <= MOST_EACH for each in use.groups), use.groups

    async def main() -> None:
        async with open_queue(url) as queue:
            if not queue.capabilities.limits:
                pytest.skip(f"{type(queue).__name__} cannot keep limits")
            await queue.migrate()
            await queue.limits.set("few", [Concurrency(MOST), Concurrency(MOST_EACH, by="tenant")])
            await queue.limits.set("slow", RATE)
            some = [(kind, rng.choice(GROUPS)) for kind in ("few", "slow") for _ in range(jobs)]
            await queue.put([NewJob(kind, group, limit_group=group) for kind, group in some])
            crew = await asyncio.to_thread(Crew, CHILD, WORKERS, rng, url, log, LEASE)
            marks = sorted(rng.sample(range(jobs // 10, 2 * jobs - jobs // 10), kills))
            try:
                async with asyncio.timeout(60 + jobs / 10):
                    while left := await jobs_left(queue):
                        while marks and 2 * jobs - left >= marks[0]:
                            marks.pop(0)
                            await asyncio.to_thread(crew.kill_one)
                        await check_use(queue)
                        await asyncio.sleep(0.01)  # real time: the workers are at it
            finally:
                await asyncio.to_thread(crew.close)

    asyncio.run(main())
    leases, killed = leases_of(log)
    assert killed, "no kill met a claim, which proves nothing"
    assert {kind: len(some) >= jobs for kind, some in leases.items()} == {"few": True, "slow": True}
    check_running(leases["few"])
    check_starts(leases["slow"])


def test_limits_hold(shared_url: str, tmp_path: Path) -> None:
    under_kills(shared_url, tmp_path, jobs=400, kills=6)


@pytest.mark.soak
def test_limits_hold_for_long(shared_url: str, tmp_path: Path) -> None:
    under_kills(shared_url, tmp_path, jobs=10_000, kills=60)
