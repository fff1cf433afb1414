"""Flows under workers that are killed: each job is freed once, after all that it waits for."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from pathlib import Path
from typing import Any

import pytest

from pollwise.queues.redis.queue import RedisQueue
from pollwise.queues.views import Stats
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import NewJob
from tests.queues.redis.test_processes import DEADLINE, Crowd
from tests.support.servers import Redis

#: A flow has a first job, as many parts, and a last job after them.
PARTS = 4
SIZE = PARTS + 2
CHILDREN = 3


def flow(n: int) -> list[NewJob]:
    first = NewJob("kind0", n)
    parts = [NewJob("kind1", n, after=[first], delay=n % 2 * 0.02) for _ in range(PARTS)]
    return [first, *parts, NewJob("kind2", n, after=parts, key=f"key{n % 40}")]


@pytest.mark.parametrize(
    ("flows", "kills"), [(300, 5), pytest.param(10_000, 100, marks=pytest.mark.soak)]
)
def test_flows_under_kills(redis: Redis, tmp_path: Path, flows: int, kills: int) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown when the test fails
    rng = random.Random(seed)
    name, log = f"test-{secrets.token_hex(6)}", tmp_path / "log.jsonl"
    crowd = Crowd(redis.url(), name, log, rng)

    async def main() -> tuple[list[list[str]], Stats]:
        async with RedisQueue(redis.url(), name, keep="1d") as queue:
            put: list[str] = []
            for n in range(0, flows, 1000):
                batch = [job for each in range(n, min(n + 1000, flows)) for job in flow(each)]
                put += await queue.put(batch)
            for _ in range(CHILDREN):
                crowd.start()
            left = [flows * SIZE * (n + 1) // (kills + 1) for n in range(kills)]
            async with asyncio.timeout(DEADLINE * max(1, kills // 10)):
                while (stats := await queue.stats()).done < flows * SIZE:
                    if left and stats.done >= left[0]:
                        del left[0]
                        crowd.kill()
                        crowd.start()
                    crowd.check()
                    await Clock().sleep(rng.uniform(0.001, 0.01))
            assert left == []
            return [put[n : n + SIZE] for n in range(0, len(put), SIZE)], stats

    try:
        by_flow, stats = asyncio.run(main())
    finally:
        crowd.end()
    assert stats == Stats(
        ready=0, delayed=0, blocked=0, leased=0, dead=0, done=flows * SIZE, cancelled=0,
        oldest_age=None,
    ), f"seed {seed}"  # fmt: skip
    check_order(by_flow, [json.loads(line) for line in log.read_text().splitlines()], seed)


def check_order(by_flow: list[list[str]], records: list[dict[str, Any]], seed: int) -> None:
    """A job is claimed only after all that it waits for began to end."""
    claimed: dict[str, int] = {}
    ended: dict[str, tuple[int, int]] = {}  # the claim that ended it is the newest one
    for record in records:
        job, at = str(record["job"]), record["at"]
        if record["what"] == "claim":
            claimed[job] = min(claimed.get(job, at), at)
        elif record["what"] == "ending":
            ended[job] = max(ended.get(job, (0, 0)), (record["token"], at))
    for first, *parts, last in by_flow:
        for job, before in [(last, parts), *((part, [first]) for part in parts)]:
            # A child may be killed before it has written down its claim.
            for other in before:
                assert other in ended, f"seed {seed}: {other} was done and never claimed"
                if job in claimed:
                    assert ended[other][1] <= claimed[job], f"seed {seed}: {job} before {other}"
