"""The record of a job in Redis: its optional parts cost nothing unused and leave nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pollwise.errors import LeaseLost
from pollwise.queues.base import Queue
from pollwise.queues.redis import store as redis_store
from pollwise.queues.redis.queue import RedisQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import Claim, NewJob, Progress, Settlement
from tests.queues.redis.kit import within
from tests.support.servers import Redis


def test_nothing_is_left_of_finished_jobs(redis: Redis, name: str) -> None:
    async def work(queue: Queue) -> None:
        for size in (1, 5000):
            ids = await queue.put(
                [
                    NewJob("a", "x" * size, key=f"k{n % 3}", unique=f"u{n}", headers={"n": f"{n}"})
                    for n in range(60)
                ]
            )
            await queue.cancel(ids[40:])
            while claims := await queue.claim("w", 20, 60):
                await queue.renew(claims, 60, {c.job.id: Progress(0.5) for c in claims})
                await queue.settle([any_way(claim) for claim in claims])
            await queue.retry()
            claims = await queue.claim("w", 20, 60)
            await queue.cancel([claim.job.id for claim in claims])
            await queue.settle([Settlement.retry(claim, error="again") for claim in claims])
            for claim in await queue.claim("w", 20, 60):
                await queue.settle([Settlement.dead(claim, "why")])
            await queue.cancel([info.job.id for info in await queue.jobs()])
            await queue.drop()
            assert await queue.claim("w", 20, 60) == []

    within(redis.url(), name, work)
    assert left_of(redis, name) == [":meta"]


def any_way(claim: Claim) -> Settlement:
    ways = [
        Settlement.done(claim),
        Settlement.done(claim, "result"),
        Settlement.dead(claim, "why"),
        Settlement.cancelled(claim, "stopped"),
        Settlement.retry(claim, error="again"),
    ]
    return ways[int(claim.job.headers["n"]) % (5 if claim.job.attempt == 1 else 4)]


def left_of(redis: Redis, name: str) -> list[str]:
    """The ends of a queue's keys, without the answers that are kept for a while."""
    with redis.client() as client:
        keys = [str(key) for key in client.scan_iter(match=f"*{name}*")]
    return sorted(key.partition("}")[2] for key in keys if ":answer:" not in key)


def test_nothing_is_left_of_pruned_jobs(redis: Redis, name: str) -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with RedisQueue(redis.url(), name, clock=clock, keep=5) as queue:
            await queue.put([NewJob("a", n, headers={"n": f"{n % 4}"}) for n in range(20)])
            claims = await queue.claim("w", 20, 60)
            await queue.renew(claims, 60, {c.job.id: Progress(note="half") for c in claims})
            await queue.settle([any_way(claim) for claim in claims])
            assert ":parts" in left_of(redis, name)
            assert await queue.drop() == 5
            await clock.advance(6)
            assert await queue.prune() == 15
            assert await queue.claim("w", 20, 60) == []

    clock.run(main())
    assert left_of(redis, name) == [":meta"]


def test_a_plain_job_touches_none_of_the_optional_parts(redis: Redis, name: str) -> None:
    async def work(queue: Queue) -> None:
        await queue.put([NewJob("a", n) for n in range(20)])
        tag = redis_store.tag_of("pollwise", name)
        assert redis.execute("HSTRLEN", f"{tag}:jobs", "1") < 45
        claims = await queue.claim("w", 20, 60)
        await queue.renew(claims, 60)
        await queue.settle([Settlement.done(claim) for claim in claims[:10]])
        found = set(left_of(redis, name))
        assert not found & {":parts", ":payloads", ":cancelled"}

    within(redis.url(), name, work)


def test_claims_do_not_read_results(
    redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim of a job that has run before returns what the first claim did."""
    sizes: list[int] = []

    async def main() -> None:
        async with RedisQueue(redis.url(), name, keep="1d") as queue:
            [job_id] = await queue.put(NewJob("job"))
            [claim] = await queue.claim("w", 1, 60)
            await queue.settle([Settlement.done(claim, "x" * 100_000)])
            assert (await queue.retry([job_id])) == 1
            run = queue._connections.run

            async def measuring(*args: Any, **named: Any) -> Any:
                answer = await run(*args, **named)
                sizes.append(len(answer[0]))
                return answer

            monkeypatch.setattr(queue._connections, "run", measuring)
            [claim] = await queue.claim("w", 1, 60)
            assert claim.job.attempt == 1

    asyncio.run(main())
    assert sizes[0] < 100
    assert ":parts" not in left_of(redis, name)


def test_large_results_are_stored_in_several_calls(
    redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "MOST_BYTES", 250_000)

    async def main() -> None:
        async with RedisQueue(redis.url(), name, keep="1d") as queue:
            await queue.put([NewJob("job", n) for n in range(10)])
            claims = await queue.claim("w", 10, 60)
            await queue.settle([Settlement.done(claims[3])])
            with pytest.raises(LeaseLost) as lost:
                await queue.settle(
                    [Settlement.done(c, f"{c.job.payload}" * 90_000) for c in claims]
                )
            assert lost.value.lost == (claims[3].job.id,)
            page = await queue.jobs("done", limit=10)
            wanted = {n: None if n == 3 else f"{n}" * 90_000 for n in reversed(range(10))}
            assert [view.job.payload for view in page] == list(wanted)
            for view in page:
                assert await queue.result(view.job.id) == wanted[view.job.payload]

    asyncio.run(main())
