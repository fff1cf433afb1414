"""`kill -9` of workers at random, on Postgres and on Redis: all done, never two live leases."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from pollux.jobs import NewJob
from pollux.queues.base import Queue, Stats
from pollux.queues.postgres import PostgresQueue
from pollux.queues.redis import RedisQueue
from tests.queues.benches import migrated
from tests.servers import OwnPostgres, OwnRedis
from tests.worker.fleet import STORES
from tests.worker.test_kill import WORKERS, Crowd, check

KILLS = 4
#: Enough that the crowd is not through before the last kill.
JOBS = 1_500


def opened(url: str) -> Queue:
    kind = RedisQueue if url.startswith("redis") else PostgresQueue
    return kind(url, keep="1d")


async def put_all(url: str, jobs: int) -> list[str]:
    async with opened(url) as queue:
        return await queue.put([NewJob("x", n) for n in range(jobs)])


async def look(url: str) -> Stats:
    async with opened(url) as queue:
        return await queue.stats()


def run(url: str, log: Path, seed: int, jobs: int, kills: int) -> None:
    rng = random.Random(seed)
    ids = asyncio.run(put_all(url, jobs))
    crowd = Crowd(url, log)
    try:
        for _ in range(WORKERS):
            crowd.start()
        for kill in range(kills):
            at = (kill + rng.random()) * jobs * 0.8 / kills
            while crowd.done < at or len(crowd.up & set(crowd.alive)) < WORKERS - 1:
                crowd.hear(patience=1.0)
            assert crowd.done < jobs, f"seed {seed}: too fast, all done after {kill} kills"
            crowd.kill(rng)
        while (stats := asyncio.run(look(url))).done < jobs:
            crowd.hear(patience=0.1)
        assert stats == Stats(
            ready=0, delayed=0, blocked=0, leased=0, dead=0, done=jobs, oldest_age=None
        ), f"seed {seed}"
        assert crowd.stop() == [0] * WORKERS, f"seed {seed}"
    finally:
        crowd.clear_away()
    check(ids, [json.loads(line) for line in log.read_text().splitlines()], seed)


@pytest.fixture
def url(request: pytest.FixtureRequest, own_postgres: OwnPostgres, own_redis: OwnRedis) -> str:
    return own_redis().url() if request.param == "redis" else migrated(own_postgres().dsn())


@pytest.mark.timeout(90)
@pytest.mark.parametrize("url", STORES, indirect=True)
def test_workers_killed_at_random(url: str, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown when the test fails
    run(url, tmp_path / "log.jsonl", seed, JOBS, KILLS)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("turn", range(10))
@pytest.mark.parametrize("url", STORES, indirect=True)
def test_workers_killed_at_random_again_and_again(url: str, turn: int, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    run(url, tmp_path / "log.jsonl", seed, 5 * JOBS, 5 * KILLS)
