"""`kill -9` of workers at random, on Postgres and on Redis: all done, never two live leases."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollwise.queues.base import Queue
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.redis.queue import RedisQueue
from tests.queues.benches import migrated
from tests.support.servers import OwnPostgres, OwnRedis
from tests.worker.processes import kill_at_random
from tests.worker.team import STORES

KILLS = 4
#: Enough that the crowd is not through before the last kill.
JOBS = 1_500


@pytest.fixture
def url(request: pytest.FixtureRequest, own_postgres: OwnPostgres, own_redis: OwnRedis) -> str:
    return own_redis().url() if request.param == "redis" else migrated(own_postgres().dsn())


def run(url: str, log: Path, times: int = 1) -> None:
    kind = RedisQueue if url.startswith("redis") else PostgresQueue

    def opened() -> Queue:
        return kind(url, keep="1d")

    kill_at_random(url, opened, log, jobs=times * JOBS, kills=times * KILLS)


@pytest.mark.parametrize("url", STORES, indirect=True)
def test_workers_killed_at_random(url: str, tmp_path: Path) -> None:
    run(url, tmp_path / "log.jsonl")


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("turn", range(10))
@pytest.mark.parametrize("url", STORES, indirect=True)
def test_workers_killed_at_random_again_and_again(url: str, turn: int, tmp_path: Path) -> None:
    run(url, tmp_path / "log.jsonl", times=5)
