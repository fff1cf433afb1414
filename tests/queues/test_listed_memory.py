"""Lists take little memory, whatever the payloads are. Bytes are counted, not time."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from pollwise.queues.base import MAX_PAYLOAD_BYTES, Queue
from pollwise.queues.views import JobFilter
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import NewJob, Settlement
from tests.queues.benches import RealPostgresBench, RealRedisBench, migrated
from tests.queues.http.stub import inside, make_api, make_app
from tests.support.private import write_private
from tests.support.servers import Postgres, Redis

JOBS = 12
#: 1 MiB of JSON that is twelve times as much as objects.
LARGE: list[list[int]] = [[]] * (MAX_PAYLOAD_BYTES // 4)
#: What a list may take beside what the store's client reads at a time, in bytes.
LITTLE = 4 * 1024 * 1024


async def fill(queue: Queue, jobs: int = JOBS) -> None:
    for _ in range(jobs):
        await queue.put(NewJob("large", LARGE))
    if queue.capabilities.results:
        claims = await queue.claim("w", 2, 60)
        await queue.settle([Settlement.done(each, LARGE, keep="1h") for each in claims])


async def peak_of(read: Callable[[], Awaitable[object]]) -> int:
    """The most bytes that were allocated at a time."""
    tracemalloc.start()
    try:
        await read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def check_lists(queue: Queue) -> None:
    await fill(queue)
    assert await peak_of(lambda: queue.page(JobFilter(limit=1000))) < LITTLE
    assert await peak_of(lambda: queue.jobs(limit=1000)) < LITTLE
    assert await peak_of(lambda: queue.arrivals(None, 1000)) < LITTLE
    assert len(await queue.jobs(limit=1000)) == JOBS


def test_lists_of_a_file(tmp_path: Path) -> None:
    async def main() -> None:
        from pollwise.queues.sqlite.queue import SqliteQueue

        async with SqliteQueue(tmp_path / "jobs.db", synchronous="off") as queue:
            await check_lists(queue)

    asyncio.run(main())


def test_lists_in_memory() -> None:
    async def main() -> None:
        from pollwise.queues.memory import MemoryQueue

        async with MemoryQueue() as queue:
            await check_lists(queue)

    asyncio.run(main())


def test_lists_of_postgres(postgres: Postgres) -> None:
    bench = RealPostgresBench(migrated(postgres.dsn()))

    async def main() -> None:
        await check_lists(await bench.queue())
        await bench.close()

    asyncio.run(main())


def test_lists_of_redis(redis: Redis) -> None:
    async def main() -> None:
        bench = RealRedisBench(redis.url())
        await check_lists(await bench.queue())
        await bench.close()

    asyncio.run(main())


def test_lists_of_a_folder(tmp_path: Path) -> None:
    """Here an object holds a whole job. One at a time is decoded, and few are remembered."""

    async def main() -> None:
        from pollwise.queues.urls import open_queue

        url = f"file://{tmp_path}/jobs"
        async with open_queue(url) as queue:
            await fill(queue, 40)
        async with open_queue(url) as queue:  # it has seen none of the jobs
            assert await peak_of(lambda: queue.jobs(limit=1000)) < 120 * 1024 * 1024

    asyncio.run(main())


@pytest.mark.parametrize("what", ["jobs?limit=1000", "arrivals?limit=1000"])
def test_lists_over_http(tmp_path: Path, what: str) -> None:
    token = write_private(tmp_path / "token", "admin")

    async def main() -> None:
        api = make_api(tmp_path / "jobs.db", Clock())
        transport = httpx.ASGITransport(make_app(api))
        async with inside(api, token, Clock()) as queue:
            await fill(queue)
            await check_same(queue)
        headers = {"Authorization": "Bearer admin"}
        async with httpx.AsyncClient(transport=transport, base_url="http://c") as client:
            url = f"/api/queue/default/{what}"
            assert await peak_of(lambda: client.get(url, headers=headers)) < LITTLE
        await api.close()

    async def check_same(queue: Queue) -> None:
        info = (await queue.jobs("done", limit=1))[0]
        assert info.cut_parts == ["payload", "result"]
        whole = await queue.get(info.job.id)
        assert whole is not None
        assert whole.job.payload == whole.result == LARGE

    asyncio.run(main())
