"""Waiting for results: one poll for all who wait, woken by broadcasts, and results that end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pollwise.errors import JobFailed, StoreError, StoreUnavailable
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.urls import open_queue
from pollwise.queues.waiting import ENDINGS, JobEnding
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import NewJob, Settlement
from tests.support.kit import virtually

MANY = 1000


class Looked(MemoryQueue):
    """Counts how often it is asked how jobs ended; may fail."""

    looks = 0
    most = 0
    error: Exception | None = None

    async def _endings(self, ids: Sequence[str]) -> dict[str, JobEnding | None]:
        self.looks += 1
        self.most = max(self.most, len(ids))
        if self.error is not None:
            raise self.error
        return await super()._endings(ids)


async def finish(queue: Queue, ids: Sequence[str]) -> None:
    """Settle these jobs, one by one, with their payloads as results."""
    for claim in await queue.claim("worker", len(ids), "1m"):
        await asyncio.sleep(0.01)
        await queue.settle([Settlement.done(claim, claim.job.payload, keep="1h")])


def test_a_thousand_waiters_are_not_a_thousand_polls() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = Looked(clock=clock)
        put = await queue.put([NewJob("job", n) for n in range(MANY)])
        waiting = asyncio.gather(*(queue.result(job_id, "10m") for job_id in put))
        await asyncio.sleep(60)
        assert queue.most == MANY, "they are not read together"
        assert queue.looks < 80, "in a minute, at most one poll a second and a few more"
        queue.looks = 0
        claims = await queue.claim("worker", MANY, "1m")
        await queue.settle([Settlement.done(c, c.job.payload, keep="1h") for c in claims])
        assert await waiting == list(range(MANY))
        assert queue.looks <= 2
        assert await queue.wait(put) == {job_id: n for n, job_id in enumerate(put)}
        assert queue.looks <= 4

    virtually(main)


def test_an_ending_wakes_who_waits() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = Looked(clock=clock)
        [job_id] = await queue.put(NewJob("job", 7))
        waiting = asyncio.ensure_future(queue.result(job_id))
        await asyncio.sleep(100.123)
        [claim] = await queue.claim("worker", 1, "1m")
        began = clock.now()
        await queue.settle([Settlement.done(claim, 7, keep="1h")])
        assert await waiting == 7
        assert clock.now() == began, "it waited for its next poll"

    virtually(main)


def test_nobody_polls_when_nobody_waits() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = Looked(clock=clock)
        [job_id] = await queue.put(NewJob("job"))
        waiting = asyncio.ensure_future(queue.result(job_id))
        with pytest.raises(TimeoutError, match="job 1 has not ended within 5s; it goes on"):
            await queue.result(job_id, "5s")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        looked = queue.looks
        await asyncio.sleep(3600)
        assert queue.looks == looked
        await finish(queue, [job_id])
        assert await queue.result(job_id) is None

    virtually(main)


def test_a_failing_store_is_waited_for_and_a_wrong_call_is_told() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = Looked(clock=clock)
        [job_id] = await queue.put(NewJob("job", 7))
        queue.error = StoreUnavailable("down")
        waiting = asyncio.ensure_future(queue.result(job_id))
        await asyncio.sleep(30)
        assert not waiting.done()
        queue.error = None
        await finish(queue, [job_id])
        assert await waiting == 7
        queue.error = StoreError("wrong")
        with pytest.raises(StoreError, match="wrong"):
            await queue.result("9")

    virtually(main)


def test_closing_ends_the_waiting() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        [job_id] = await queue.put(NewJob("job"))
        waiting = asyncio.ensure_future(queue.result(job_id))
        await asyncio.sleep(1)
        await queue.close()
        with pytest.raises(StoreError, match="closed while results were waited for"):
            await waiting

    virtually(main)


def test_waiting_in_one_event_loop_after_the_other() -> None:
    queue = MemoryQueue()

    async def abandoned(job_id: str) -> None:
        waiting = asyncio.ensure_future(queue.result(job_id))
        await asyncio.sleep(0)
        waiting.cancel()

    async def main() -> None:
        [job_id] = await queue.put(NewJob("job", 7))
        await finish(queue, [job_id])
        assert await queue.result(job_id, "1m") == 7

    asyncio.run(abandoned("1"))
    queue.leave_loop()
    asyncio.run(main())


def test_a_cancel_without_an_event_loop() -> None:
    """As in a transaction of Django, in a process where somebody has waited."""
    queue = MemoryQueue()

    async def main() -> None:
        [job_id] = await queue.put(NewJob("job"))
        with pytest.raises(TimeoutError):
            await queue.result(job_id, 0)

    asyncio.run(main())
    queue._waiters.cancelled(["1"])


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = f"queue=waiting-{time.monotonic_ns()}"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db?{name}&synchronous=off"
    server = request.getfixturevalue(request.param)
    if request.param == "redis":
        return f"{server.url()}?{name}"
    return f"{server.create_database('waiting')}?{name}"


def test_an_ending_elsewhere_wakes_who_waits(url: str) -> None:
    """With two handles on the store, as two processes have them."""

    async def main() -> None:
        async with open_queue(url) as here, open_queue(url) as there:
            await here.migrate()
            heard: list[str] = []
            looks = 0
            real = here._endings

            async def endings(ids: Sequence[str]) -> dict[str, JobEnding | None]:
                nonlocal looks
                looks += 1
                return await real(ids)

            here._endings = endings  # type: ignore[method-assign]
            put = await here.put([NewJob("job", n) for n in range(3)])
            waiting = asyncio.ensure_future(here.wait(put))
            networked = here.capabilities.hints == "network"
            if networked:
                while (known := here.hints().known_at(ENDINGS)) is None or known > here.clock.now():
                    await asyncio.sleep(0.01)  # real time: a message is on its way
            while not looks:
                await asyncio.sleep(0.01)  # real time: the first look
            listening = here.hints().listen(heard.append, (ENDINGS,))
            looks = 0
            claims = await there.claim("worker", 3, "1m")
            await there.settle([Settlement.done(claims[0], 0, keep="1m")])
            while not heard:
                await asyncio.sleep(0.01)  # real time: a message is on its way
            await there.settle([Settlement.dead(claims[1], "broken")])
            await there.settle([Settlement.done(claims[2], 2, keep="1m")])
            found = await waiting
            listening.close()
            assert [found[put[0]], found[put[2]]] == [0, 2]
            assert isinstance(found[put[1]], JobFailed)
            if networked:
                assert looks <= 12, "polls do not wait for broadcasts"

    asyncio.run(asyncio.wait_for(main(), 240))
