"""The queue in Redis when the server or the way to it breaks: nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from pollwise import Worker
from pollwise.errors import LeaseLost, StoreUnavailable
from pollwise.queues.base import Queue
from pollwise.queues.redis.queue import RedisQueue
from pollwise.queues.redis.store import SCRIPTS
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import Job, NewJob, Settlement
from pollwise.storage.redis.scripts import script
from tests.support.kit import each_way, options
from tests.support.proxy import Proxy
from tests.support.servers import OwnRedis, Redis


@pytest.fixture
def proxy(redis: Redis) -> Iterator[Proxy]:
    with Proxy(redis.port) as proxy:
        yield proxy


@pytest.fixture
def queue(redis: Redis, proxy: Proxy, name: str) -> RedisQueue:
    return RedisQueue(proxy.through(redis.url()), name, timeout="5s", keep="1d")


def call(name: str) -> bytes:
    return script(SCRIPTS, name).sha.encode()


async def warm_up(queue: RedisQueue) -> None:
    """The server knows all scripts, so that a call is one request."""
    await queue.put(NewJob("warm"))
    claims = await queue.claim("w", 1, 60)
    await queue.renew(claims, 60)
    await queue.settle([Settlement.done(claim) for claim in claims])


@pytest.mark.parametrize("fate", ["cut", "reset"])
def test_a_put_whose_answer_is_lost_counts_once(queue: RedisQueue, proxy: Proxy, fate: str) -> None:
    async def main() -> None:
        async with queue:
            await warm_up(queue)
            proxy.lose_answer(call("put"), fate=fate)  # type: ignore[arg-type]
            jobs = [NewJob("job", n, unique=f"u{n}" if n % 2 else None) for n in range(5)]
            ids = await queue.put(jobs)
            assert proxy.counts.lost == 1
            claims = await queue.claim("w", 10, 60)
            assert [claim.job.id for claim in claims] == ids
            assert [claim.job.payload for claim in claims] == list(range(5))

    asyncio.run(main())


@pytest.mark.parametrize("reached", [True, False], ids=["answer lost", "request lost"])
def test_a_settle_that_is_cut_off_counts_once(
    queue: RedisQueue, proxy: Proxy, reached: bool
) -> None:
    async def main() -> None:
        async with queue:
            await warm_up(queue)
            await queue.put([NewJob("job", n, key="k" if n > 3 else None) for n in range(6)])
            claims = await queue.claim("w", 10, 60)
            lose = proxy.lose_answer if reached else proxy.lose_request
            lose(call("settle"))
            await queue.settle([*each_way(claims[:4]), Settlement.done(claims[4])])
            assert proxy.counts.lost == 1
            stats = await queue.stats()
            assert (stats.ready, stats.dead, stats.leased, stats.blocked) == (3, 1, 0, 0)
            again = {claim.job.payload: claim for claim in await queue.claim("w", 10, 60)}
            assert {n: claim.job.attempt for n, claim in again.items()} == {1: 2, 3: 1, 5: 1}

    asyncio.run(main())


def test_a_put_that_arrives_late_does_nothing(
    queue: RedisQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was cut, the put made again, and then the first one arrives after all."""

    async def main() -> None:
        async with queue:
            await warm_up(queue)
            sent: list[tuple[Any, ...]] = []
            real = queue._connections.run

            async def noting(*args: Any, **named: Any) -> Any:
                sent.append(args)
                return await real(*args, **named)

            monkeypatch.setattr(queue._connections, "run", noting)
            await queue.put(NewJob("job", "once"))
            await real(*sent[0])
            assert (await queue.stats()).ready == 1, "made again while the first was on its way"
            await queue.put(NewJob("job", "next"))
            await real(*sent[0])
            assert (await queue.stats()).ready == 2, "arrived when its caller had gone on"

    asyncio.run(main())


def test_a_settle_made_again_still_names_the_refused(queue: RedisQueue, proxy: Proxy) -> None:
    async def main() -> None:
        async with queue:
            await warm_up(queue)
            await queue.put([NewJob("job", n) for n in range(2)])
            first, second = await queue.claim("w", 10, 60)
            await queue.settle([Settlement.done(first)])
            proxy.lose_answer(call("settle"))
            with pytest.raises(LeaseLost) as lost:
                await queue.settle([Settlement.done(first), Settlement.done(second)])
            assert lost.value.lost == (first.job.id,)

    asyncio.run(main())


def test_a_settle_cut_off_twice_is_unavailable(queue: RedisQueue, proxy: Proxy) -> None:
    async def main() -> None:
        async with queue:
            await warm_up(queue)
            await queue.put(NewJob("job"))
            claims = await queue.claim("w", 10, 60)
            proxy.lose_request(call("settle"))
            proxy.lose_request(call("settle"))
            with pytest.raises(StoreUnavailable, match="may or may not have been carried out"):
                await queue.settle([Settlement.done(claim) for claim in claims])
            proxy.restore()
            await queue.settle([Settlement.done(claim) for claim in claims])

    asyncio.run(main())


def test_settling_again_after_all_answers_were_lost_succeeds(
    queue: RedisQueue, proxy: Proxy
) -> None:
    async def main() -> None:
        async with queue:
            await warm_up(queue)
            await queue.put([NewJob("job", n) for n in range(5)])
            *claims, late = await queue.claim("w", 10, 60)
            ways = each_way(claims)
            proxy.lose_answer(call("settle"))
            proxy.lose_answer(call("settle"))
            with pytest.raises(StoreUnavailable):
                await queue.settle(ways)
            first, second, *others = ways
            await queue.settle([first])  # in batches as they come
            proxy.lose_answer(call("page"))  # that look is lost too: then all is in doubt again
            with pytest.raises(StoreUnavailable):
                await queue.settle([second, Settlement.done(late)])
            await queue.settle([second, Settlement.done(late), *others])
            stats = await queue.stats()
            assert (stats.ready, stats.dead, stats.leased) == (2, 1, 0)
            with pytest.raises(LeaseLost) as lost:
                await queue.settle(ways)
            assert len(lost.value.lost) == 4, "nothing is in doubt any more"

    asyncio.run(main())


def test_settling_again_when_the_job_was_deleted_succeeds(
    redis: Redis, proxy: Proxy, name: str
) -> None:
    """Without `keep`, a job that is done or cancelled is gone; that is no lost lease."""

    async def main() -> None:
        async with RedisQueue(proxy.through(redis.url()), name, timeout="5s") as queue:
            await warm_up(queue)
            await queue.put([NewJob("job", n) for n in range(2)])
            first, second = await queue.claim("w", 10, 60)
            ways = [Settlement.done(first, "result"), Settlement.cancelled(second)]
            proxy.lose_answer(call("settle"))
            proxy.lose_answer(call("settle"))
            with pytest.raises(StoreUnavailable):
                await queue.settle(ways)
            assert await queue.jobs() == []
            await queue.settle(ways)
            with pytest.raises(LeaseLost):
                await queue.settle(ways)

    asyncio.run(main())


def test_a_claim_whose_answer_is_lost_comes_back_when_its_lease_ends(
    queue: RedisQueue, proxy: Proxy
) -> None:
    async def main() -> None:
        async with queue:
            await warm_up(queue)
            await queue.put([NewJob("job", n) for n in range(3)])
            proxy.lose_answer(call("claim"))
            with pytest.raises(StoreUnavailable):
                await queue.claim("w", 10, 0.2)
            assert (await queue.stats()).leased == 3
            claims = await queue.claim("w", 10, 60)
            while not claims:
                await Clock().sleep(0.05)
                claims = await queue.claim("w", 10, 60)
            assert [claim.job.attempt for claim in claims] == [2, 2, 2]

    asyncio.run(main())


def test_a_server_that_does_not_answer(redis: Redis, own_redis: OwnRedis) -> None:
    server = own_redis()

    async def main() -> None:
        queue = RedisQueue(server.url(), timeout="0.3s")
        await queue.put(NewJob("job"))
        with server.paused():
            began = Clock().now()
            with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.3 s"):
                await queue.claim("w", 1, 60)
            with pytest.raises(StoreUnavailable):
                await queue.put(NewJob("job"))
            await queue.close()
            assert Clock().now() - began < 5

    asyncio.run(main())


def test_calls_that_are_cancelled_leave_no_answer_for_the_next(
    queue: RedisQueue, proxy: Proxy
) -> None:
    async def main() -> None:
        async with queue:
            await warm_up(queue)
            for n in range(20):
                proxy.hold("answers")
                put = asyncio.ensure_future(queue.put(NewJob("job", n)))
                await Clock().sleep(0.01)
                put.cancel()
                await asyncio.wait([put])
                proxy.release()
                assert (await queue.stats()).done == 1
            claims = await queue.claim("w", 100, 60)
            payloads = [claim.job.payload for claim in claims]
            assert payloads == sorted(set(payloads)), "none twice"

    asyncio.run(main())


def test_a_worker_goes_on_when_its_server_was_killed(own_redis: OwnRedis) -> None:
    server = own_redis(appendonly="yes", appendfsync="always")

    async def main() -> None:
        async with RedisQueue(server.url(), keep="1d", timeout="5s") as queue:
            worker = Worker(queue, options(concurrency=8, lease="2s"))
            ran: Counter[int] = Counter()
            some = asyncio.Event()

            async def handler(job: Job) -> None:
                ran[job.payload] += 1
                if len(ran) == 500:
                    some.set()

            worker.handle("job")(handler)
            await queue.put([NewJob("job", n) for n in range(3000)])
            run = asyncio.ensure_future(worker.run())
            await some.wait()
            server.kill()
            server.start()
            async with asyncio.timeout(40):
                while not await all_done(queue, 3000):
                    await Clock().sleep(0.05)
            worker.stop()
            await run
            assert set(ran) == set(range(3000)), "none was lost"

    asyncio.run(main())


async def all_done(queue: Queue, count: int) -> bool:
    try:
        return (await queue.stats()).done == count
    except StoreUnavailable:
        return False


@pytest.mark.parametrize("oldest", [False, True])
def test_a_server_killed_and_started_again_with_its_file(own_redis: OwnRedis, oldest: bool) -> None:
    server = own_redis(oldest=oldest, appendonly="yes", appendfsync="always")

    async def main() -> None:
        async with RedisQueue(server.url()) as queue:
            await queue.put(
                [NewJob("a" if n % 2 else "b", n, key=f"k{n % 4}" if n < 40 else None)
                 for n in range(100)]
            )  # fmt: skip
            await queue.put(NewJob("a", "late", delay=3600))
            first, second, *others = await queue.claim("w", 20, 600)
            await queue.settle([Settlement.done(first), Settlement.dead(second, "why")])
            before = await queue.stats()
            jobs = await queue.jobs(limit=1000)
            server.kill()
            with pytest.raises(StoreUnavailable):
                await queue.stats()
            server.start()
            after = await queue.stats()
            assert await queue.jobs(limit=1000) == jobs
            assert (after.ready, after.delayed, after.blocked, after.leased, after.dead) == (
                before.ready, before.delayed, before.blocked, before.leased, before.dead,
            )  # fmt: skip
            await queue.settle([Settlement.done(claim) for claim in others])
            done = len(others)
            while claims := await queue.claim("w", 30, 600):
                await queue.settle([Settlement.done(claim) for claim in claims])
                done += len(claims)
            assert done == 98

    asyncio.run(main())
