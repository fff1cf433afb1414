"""Hints by pub/sub: one connection a process, proven, healed, and quiet when idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from pollwise import Worker
from pollwise.queues.base import Queue
from pollwise.queues.presence import PRESENCE_EVERY
from pollwise.queues.redis.queue import RedisQueue
from pollwise.runtime.clock import Clock, VirtualClock
from pollwise.runtime.events import HintsLost, HintsProven, PollFinished
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import Job, NewJob
from pollwise.storage.redis.pubsub import SEND_TIMEOUT
from tests.support.kit import Seen, options, until, virtually, working
from tests.support.proxy import Proxy
from tests.support.servers import OwnRedis, Redis

#: Real seconds within which a hint comes, on the slowest machine.
PATIENCE = 240.0


async def proven(queue: Queue, hint: Hint) -> None:
    """Go to sleep, and wait until the channel is proven."""
    queue.hints().join(hint)
    queue.hints().asleep(hint)
    async with asyncio.timeout(PATIENCE):
        while queue.hints().proven_at is None:
            await Clock().sleep(0.005)


@pytest.mark.parametrize("server", ["redis", "redis_oldest"])
def test_a_put_elsewhere_ends_a_pause(
    server: str, request: pytest.FixtureRequest, name: str
) -> None:
    url = request.getfixturevalue(server).url()

    async def main() -> None:
        async with RedisQueue(url, name) as here, RedisQueue(url, name) as elsewhere:
            hint = Hint()
            await proven(here, hint)
            pause = asyncio.ensure_future(hint.wait(PATIENCE))
            await elsewhere.put(NewJob("job"))
            assert await pause, "the pause lasted to its end: no hint came"

    asyncio.run(main())


def test_one_connection_listens_for_all_queues(own_redis: OwnRedis, name: str) -> None:
    server = own_redis()

    async def main() -> None:
        async with AsyncExitStack() as stack:
            queues = [
                await stack.enter_async_context(RedisQueue(server.url(n % 2), f"{name}-{n // 2}"))
                for n in range(6)
            ]
            hints = [Hint() for _ in queues]
            for queue, hint in zip(queues, hints, strict=True):
                await proven(queue, hint)
            assert listeners(server) == 1
            first, *others = queues
            await first.close()
            pause = asyncio.ensure_future(hints[3].wait(PATIENCE))
            async with RedisQueue(server.url(1), f"{name}-1") as elsewhere:
                await elsewhere.put(NewJob("job"))
            assert await pause, "a queue that closed has taken the line of the others with it"
            assert listeners(server) == 1
            for queue in others:
                await queue.close()
            await asyncio.to_thread(server.execute, "PING")
            assert listeners(server) == 0

    asyncio.run(main())


def listeners(server: Redis) -> int:
    with server.client() as client:
        return len(client.client_list(_type="pubsub"))


def test_databases_do_not_receive_each_others_hints(own_redis: OwnRedis, name: str) -> None:
    server = own_redis()

    async def main() -> None:
        async with RedisQueue(server.url(0), name) as here, RedisQueue(server.url(1), name) as far:
            hint = Hint()
            await proven(here, hint)
            pause = asyncio.ensure_future(hint.wait(PATIENCE))
            await far.put(NewJob("job"))
            async with RedisQueue(server.url(0), name) as near:
                assert not pause.done()
                await near.put(NewJob("job"))
                assert await pause

    asyncio.run(main())


@asynccontextmanager
async def idle_worker(url: str, name: str, clock: VirtualClock) -> AsyncIterator[Seen]:
    """A worker with nothing to do and a proven line, and what befalls it."""
    seen = Seen()
    async with RedisQueue(url, name, clock=clock) as queue:
        worker = Worker(queue, events=seen.events, clock=clock)
        worker.handle("job")(nothing)
        async with working(worker, options()):
            await until(lambda: len(seen.of(HintsProven)) == 1)
            yield seen


async def nothing(job: Job) -> None:
    pass


def test_a_line_that_is_cut_heals(redis: Redis, name: str) -> None:
    async def main(clock: VirtualClock) -> None:
        with Proxy(redis.port) as proxy:
            async with idle_worker(proxy.through(redis.url()), name, clock) as seen:
                proxy.cut()
                await until(lambda: len(seen.of(HintsLost)) >= 1)
                await until(lambda: len(seen.of(HintsProven)) >= 2)
                [lost] = seen.of(HintsLost)
                assert "pub/sub" in str(lost)

    virtually(main)


def test_an_idle_hour_is_quiet(redis: Redis, name: str) -> None:
    async def main(clock: VirtualClock) -> None:
        with Proxy(redis.port) as proxy:
            async with idle_worker(proxy.through(redis.url()), name, clock) as seen:
                await clock.advance(60)
                polls, exchanges = len(seen.of(PollFinished)), proxy.counts.exchanges
                await clock.advance(3600)
                polls = len(seen.of(PollFinished)) - polls
                exchanges = proxy.counts.exchanges - exchanges
                assert len(seen.of(HintsProven)) == 1
                assert not seen.of(HintsLost)
                assert 50 <= polls <= 70, "about one poll a minute"
                # The listening connection only hears, so what it hears follows no request of its
                # own.
                records = exchanges - polls
                assert records <= 3600 / PRESENCE_EVERY, "polls, and records of the worker"
                assert exchanges / 3600 <= 0.05

    virtually(main)


def test_a_user_that_may_not_listen_does_not_disturb_others(own_redis: OwnRedis, name: str) -> None:
    server = own_redis()
    rights = ("on", ">secret", "~*", "+@all", "resetchannels", f"&{{pollwise:{name}}}*")
    server.execute("ACL", "SETUSER", "half", *rights)
    url = server.url(user="half", password="secret")

    async def main() -> None:
        async with RedisQueue(url, name) as queue, RedisQueue(url, "another") as deaf:
            seen = Seen()
            deaf.hints().report_to("deaf", seen.events)
            hint, other = Hint(), Hint()
            await proven(queue, hint)
            deaf.hints().join(other)
            deaf.hints().asleep(other)
            async with asyncio.timeout(PATIENCE):
                while not seen.of(HintsLost):
                    await Clock().sleep(0.005)
            [lost] = seen.of(HintsLost)
            assert "Allow this user" in lost.reason
            assert "&{pollwise:*)" in lost.advice
            assert queue.hints().proven_at is not None
            pause = asyncio.ensure_future(hint.wait(PATIENCE))
            async with RedisQueue(url, name) as elsewhere:
                await elsewhere.put(NewJob("job"))
            assert await pause

    asyncio.run(main())


def test_closing_does_not_wait_for_a_server_that_is_silent(own_redis: OwnRedis, name: str) -> None:
    server = own_redis()

    async def main() -> None:
        queue = RedisQueue(server.url(), name)
        await proven(queue, Hint())
        with server.paused():
            began = Clock().now()
            await queue.close()
            assert Clock().now() - began < 2 * SEND_TIMEOUT

    asyncio.run(main())
