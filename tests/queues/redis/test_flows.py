"""Flows in Redis: what the server keeps of them, large ones, and scripts that do not know them."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from hashlib import sha1
from typing import Any

import pytest
from redis.exceptions import ResponseError

from pollwise.queues.base import Queue
from pollwise.queues.redis import store as redis_store
from pollwise.queues.redis.queue import RedisQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.storage.redis.scripts import Script, script
from tests.queues.redis.kit import within
from tests.queues.redis.test_queue import await_cluster
from tests.queues.redis.test_record import left_of
from tests.support.servers import OwnRedis, Redis


def fan_in(count: int, **options: Any) -> list[NewJob]:
    """Jobs 0 to count - 1, and one that comes after all of them."""
    before = [NewJob("part", n) for n in range(count)]
    return [*before, NewJob("last", after=before, **options)]


async def run_all(queue: Queue) -> int:
    """Claim and settle until nothing may run; return how many jobs were done."""
    count = 0
    while claims := await queue.claim("w", 1000, 60):
        await queue.settle([Settlement.done(claim, claim.job.payload) for claim in claims])
        count += len(claims)
    return count


# What the server keeps


def test_nothing_is_left_of_a_flow(redis: Redis, name: str) -> None:
    """Every job of a flow ends in another way, and is deleted."""
    clock = VirtualClock()

    async def main() -> None:
        async with RedisQueue(redis.url(), name, clock=clock) as queue:
            a, b, c = (NewJob("a", "x" * size) for size in (1, 5000, 1))
            late = NewJob("late", after=[b], delay=5, key="k")
            put = await queue.put(
                [a, b, c, late, NewJob("failed", after=[a, b], on_failure=True),
                 NewJob("held", after=[late, c], key="k"), NewJob("cut", after=[c])]
            )  # fmt: skip
            one, two, three = await queue.claim("w", 3, 60)
            await queue.settle([Settlement.done(one, "r"), Settlement.done(two)])
            await queue.settle([Settlement.dead(three, "why")])
            assert (await queue.stats()).blocked == 2
            assert await queue.drop() == 1
            await queue.cancel(put)
            await clock.advance(3601)
            assert await queue.prune() == 6
            assert await queue.claim("w", 20, 60) == []

    clock.run(main())
    assert left_of(redis, name) == [":meta"]


def test_a_plain_queue_has_the_older_layout(redis: Redis, name: str) -> None:
    """Older workers read a queue until the first flow is put."""

    async def work(queue: Queue) -> None:
        def layout() -> Any:
            return redis.execute("HGET", f"{redis_store.tag_of('pollwise', name)}:meta", "layout")

        await queue.put(NewJob("job"))
        assert layout() == "3"
        await queue.put(fan_in(2))
        assert layout() == "4"
        await queue.put(NewJob("job"))
        assert layout() == "4"

    within(redis.url(), name, work)


#: How scripts of the layout before flows read a job.
OLDER_READ = "return struct.unpack('>BBI4I4dd', redis.call('HGET', KEYS[1], ARGV[1]))"


def test_an_older_script_cannot_end_what_others_wait_for(redis: Redis, name: str) -> None:
    """It fails where it reads a live or dead job of a flow, or the job whose key blocks one."""

    async def work(queue: Queue) -> None:
        def older(job_id: str) -> int:
            state: int = redis.execute("EVAL", OLDER_READ, 1, jobs, job_id)
            return state

        jobs = f"{redis_store.tag_of('pollwise', name)}:jobs"
        plain, other = await queue.put([NewJob("plain", key="k"), NewJob("other", key="l")])
        assert older(plain) == 0
        a = NewJob("a")
        put = await queue.put([a, NewJob("b", after=[a], key="k"), NewJob("c", after=[a])])
        for job_id in put:
            with pytest.raises(ResponseError, match="too short"):
                older(job_id)
        claims = {claim.job.kind: claim for claim in await queue.claim("w", 10, 60)}
        await queue.settle([Settlement.done(claims["a"])])
        assert older(put[0]) == 5
        assert older(other) == 3
        with pytest.raises(ResponseError, match="too short"):
            older(plain)  # `b` is behind it
        await queue.settle([Settlement.done(claims["plain"])])
        [b, c] = sorted(await queue.claim("w", 10, 60), key=lambda claim: claim.job.kind)
        assert (b.job.key, c.job.id) == ("k", put[2])
        await queue.settle([Settlement.dead(b, "why")])
        with pytest.raises(ResponseError, match="too short"):
            older(put[1])

    within(redis.url(), name, work)


def test_a_job_that_becomes_the_first_of_its_key_is_guarded(redis: Redis, name: str) -> None:
    """Plain jobs are between the first of a key and a job of a flow; all run in their order."""

    async def work(queue: Queue) -> None:
        a = NewJob("a", priority=1)
        await queue.put([NewJob("plain", n, key="k") for n in range(3)])
        await queue.put([a, NewJob("b", 3, after=[a], key="k")])
        first, second = await queue.claim("w", 9, 60)
        await queue.settle([Settlement.done(first)])
        await queue.settle([Settlement.done(second)])
        jobs = f"{redis_store.tag_of('pollwise', name)}:jobs"
        hidden = [redis.execute("HSTRLEN", jobs, str(n)) == 0 for n in range(2, 6)]
        assert hidden == [True, False, False, True]  # the second plain job, and `b`
        order = []
        while claims := await queue.claim("w", 9, 60):
            order += [claim.job.payload for claim in claims]
            await queue.settle([Settlement.done(claim) for claim in claims])
        assert order == [1, 2, 3]
        assert (await queue.stats()).blocked == 0

    within(redis.url(), name, work)


def test_counts_by_kind_include_jobs_that_wait(redis: Redis, name: str) -> None:
    async def work(queue: Queue) -> None:
        await queue.put([*fan_in(3, key="k"), *fan_in(2, delay=60)])
        kinds = await queue.stats_by_kind()
        assert (kinds["last"].blocked, kinds["part"].ready) == (2, 5)
        shown = await queue.jobs("blocked")
        assert {(info.job.kind, info.job.key) for info in shown} == {("last", "k"), ("last", None)}
        few = await queue.stats_by_kind(1)
        assert "blocked" in next(iter(few.values())).capped

    within(redis.url(), name, work)


# Many at once


@pytest.mark.parametrize("server", ["redis", "redis_oldest"])
def test_a_job_after_ten_thousand(server: str, request: pytest.FixtureRequest, name: str) -> None:
    redis: Redis = request.getfixturevalue(server)

    async def work(queue: Queue) -> None:
        put = await queue.put(fan_in(9_999))
        assert await run_all(queue) == 10_000
        before = await queue.predecessors(put[-1])
        assert [each for each, _ in before] == put[:-1]
        assert [ending and ending.result for _, ending in before] == [*range(9_999)]
        shown = await queue.flow(put[0])
        assert shown is not None
        assert [each.info.job.id for each in shown.jobs] == put[:1000]
        assert shown.more

    within(redis.url(), name, work)


def test_ten_thousand_after_one(redis: Redis, name: str) -> None:
    async def work(queue: Queue) -> None:
        first = NewJob("first")
        [root, *_] = await queue.put([first, *(NewJob("job", after=[first]) for _ in range(9_999))])
        [claim] = await queue.claim("w", 10, 60)
        assert claim.job.id == root
        await queue.settle([Settlement.done(claim)])
        assert (await queue.stats()).ready == 9_999

    within(redis.url(), name, work)


def test_many_settlers_free_each_job_once(redis: Redis, name: str) -> None:
    """Six handles settle the predecessors of 50 jobs at the same time, in portions of their own."""

    async def main() -> None:
        handles = [RedisQueue(redis.url(), name) for _ in range(6)]
        try:
            first = handles[0]
            crowd = []
            for _ in range(50):
                crowd += fan_in(12)
            await first.put(crowd)
            claims = await first.claim("w", 1000, 60)
            assert len(claims) == 600

            async def settle(queue: Queue, mine: list[Settlement]) -> None:
                for n in range(0, len(mine), 7):
                    await queue.settle(mine[n : n + 7])

            ended = [Settlement.done(claim) for claim in claims]
            parts = [settle(each, ended[n::6]) for n, each in enumerate(handles)]
            freed, _ = await asyncio.gather(claim_all(handles[5], 50), asyncio.gather(*parts))
            assert len(set(freed)) == len(freed) == 50
            assert await first.claim("w", 10, 60) == []
        finally:
            for queue in handles:
                await queue.close()

    async def claim_all(queue: Queue, count: int) -> list[str]:
        found: list[str] = []
        async with asyncio.timeout(60):
            while len(found) < count:
                found += [claim.job.id for claim in await queue.claim("other", 10, 60)]
                await asyncio.sleep(0)
        return found

    asyncio.run(main())


# Cancels that one script does not end


@pytest.fixture
def small_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script goes on to cancel until it has cancelled ten successors."""

    def changed(package: str, name: str) -> Script:
        found = script(package, name)
        text, count = re.subn(r"CUTS_MAX = \d+", "CUTS_MAX = 10", found.text)
        assert count == (name in ("put", "claim", "settle", "cancel", "ended"))
        sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
        return replace(found, text=text, sha=sha)

    monkeypatch.setattr(redis_store, "script", changed)


@pytest.mark.usefixtures("small_cuts")
@pytest.mark.parametrize("ends", ["cancel", "drop"])
def test_claims_go_on_with_a_large_cancel(redis: Redis, name: str, ends: str) -> None:
    async def work(queue: Queue) -> None:
        root = NewJob("root", priority=1)
        layers = [root]
        for _ in range(200):
            layers.append(NewJob("job", after=[layers[-1]]))
        put = await queue.put([*layers, NewJob("plain")])
        if ends == "cancel":
            await queue.cancel(put[:1])
        else:
            [claim] = await queue.claim("w", 1, 60)
            await queue.settle([Settlement.dead(claim, "why")])
            assert await queue.drop() == 1
        assert (await queue.stats()).blocked == 190
        assert ":cuts" in left_of(redis, name)
        assert [c.job.kind for c in await queue.claim("w", 10, 60)] == ["plain"]
        left = 180
        while left:
            assert await queue.claim("w", 10, 60) == []
            before, left = left, (await queue.stats()).blocked
            assert left == max(before - 10, 0)
        assert ":cuts" not in left_of(redis, name)
        assert (await queue.stats()).cancelled == 200 + (ends == "cancel")

    within(redis.url(), name, work)


@pytest.mark.parametrize("oldest", [False, True])
def test_flows_on_a_cluster(own_redis: OwnRedis, name: str, oldest: bool) -> None:
    cluster = own_redis(oldest=oldest, cluster_enabled="yes")
    cluster.execute("CLUSTER", "ADDSLOTS", *range(16384))
    await_cluster(cluster)

    async def work(queue: Queue) -> None:
        put = await queue.put(fan_in(20, key="k"))
        assert await run_all(queue) == 21
        assert len(await queue.predecessors(put[-1])) == 20

    within(cluster.url(), name, work)
