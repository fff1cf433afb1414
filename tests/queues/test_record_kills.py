"""Results, progress and cancels under `kill -9`: one ending per job, and everybody agrees on it.

Workers report progress and settle with results while they are killed at random, and somebody else
cancels jobs at random. Afterwards each job is done with the result of its newest lease, or
cancelled; what a caller was told is what is stored, and what somebody who waits for the results
gets. Two of the stores keep only the results, not the finished jobs.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from pollwise.errors import JobFailed
from pollwise.queues.base import Queue
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import NewJob
from tests.support.crew import Crew

JOBS = 150
KILLS = 8
WORKERS = 3
CHILD = Path(__file__).with_name("record_child.py")


@pytest.fixture
def url(shared_url: str) -> str:
    only_results = shared_url.startswith(("sqlite", "redis"))
    return shared_url if only_results else f"{shared_url}&keep=1h"


async def under_kills(
    queue: Queue, crew: Crew, rng: random.Random
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """What `cancel` returned for each job, and when; and what who waits for the results gets."""
    await queue.migrate()
    put = await queue.put([NewJob("job", n) for n in range(JOBS)])
    told: dict[str, list[Any]] = {job_id: [] for job_id in put}
    waiting = asyncio.ensure_future(queue.wait(put))
    for _ in range(KILLS):
        for _ in range(5):
            chosen = rng.sample(put, 3)
            for job_id, state in (await queue.cancel(chosen)).items():
                told[job_id].append((state, time.time()))
            await asyncio.sleep(rng.random() * 0.08)  # real time: the workers are at it
        await asyncio.to_thread(crew.kill_one)
    async with asyncio.timeout(90):
        while True:
            stats = await queue.stats()
            if not (stats.ready or stats.delayed or stats.leased):
                return told, await waiting
            await asyncio.sleep(0.1)  # real time: the workers are at it


def check(job_id: str, info: Any, records: list[dict[str, Any]], told: list[Any], got: Any) -> None:
    if info is None:  # the queue does not keep what was cancelled before it ran
        assert told, f"job {job_id} is lost"
        assert isinstance(got, JobFailed)
        assert not [each for each in records if each["what"] == "settled"]
        return
    claims = [each for each in records if each["what"] == "claim"]
    settled = [each for each in records if each["what"] == "settled"]
    assert len(settled) <= 1, f"job {job_id} was settled twice: {settled}"
    assert info.state in ("done", "cancelled"), f"job {job_id} is {info.state}"
    tokens = [each["token"] for each in claims]
    assert len(set(tokens)) == len(tokens), f"job {job_id} was claimed twice under one token"
    if settled:
        assert info.state == settled[0]["state"], f"job {job_id}: its worker was told otherwise"
    if info.state == "done":
        assert info.result == max(tokens), f"job {job_id} has the result of an old lease"
        assert got == info.result, f"job {job_id}: who waited got another result"
        if settled:
            assert info.result == settled[0]["token"]
    else:
        assert info.result is None
        assert isinstance(got, JobFailed)
        assert got.state in ("cancelled", None), f"job {job_id}: {got}"
    for state, at in told:
        if state == "cancelled":
            assert info.state == "cancelled", f"job {job_id}: the caller was told otherwise"
            later = [each for each in claims if each["at"] > at]
            assert not later, f"job {job_id} ran after it was cancelled: {later}"
        elif state == "done":
            assert info.state == "done"


def test_each_job_has_one_ending(url: str, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    log = tmp_path / "log.jsonl"
    log.touch()

    async def main() -> None:
        async with open_queue(url) as queue:
            await queue.migrate()
            crew = await asyncio.to_thread(Crew, CHILD, WORKERS, rng, url, log)
            try:
                told, got = await under_kills(queue, crew, rng)
            finally:
                crew.close()
            records = defaultdict(list)
            for line in log.read_text("utf-8").splitlines():
                record = json.loads(line)
                records[record["job"]].append(record)
            ended: Counter[str] = Counter()
            for job_id, answers in told.items():
                info = await queue.get(job_id)
                check(job_id, info, records[job_id], answers, got[job_id])
                ended[info.state if info else "cancelled"] += 1
            assert set(ended) == {"done", "cancelled"}, dict(ended)

    asyncio.run(main())
