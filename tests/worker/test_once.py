"""Runs that end by themselves: what they run, what they leave, and what they tell."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pollwise import Breaker, Job, NewJob, Reject, Retry, Snooze, Worker
from pollwise.errors import StoreUnavailable
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqs.queue import SqsQueue
from pollwise.queues.urls import open_queue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import PollFailed
from pollwise.worker.once import RunSummary
from tests.support.clouds import CREDENTIALS, MiniStack
from tests.support.kit import CountedMemory, Seen, make_queue, options, virtually

LATER = Retry.fixed("10m", attempts=2)


def chain(queue: Queue, seen: Seen) -> Worker:
    """A worker whose jobs put others: each payload counts down to 0."""
    worker = Worker(queue, events=seen.events)

    @worker.handle("count")
    async def count(job: Job) -> None:
        await asyncio.sleep(5)
        if job.payload:
            await queue.put(NewJob("count", job.payload - 1, key=job.key))

    return worker


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_it_runs_what_is_ready_and_what_becomes_ready_by_it(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with make_queue(store, tmp_path, clock) as queue:
            worker = chain(queue, Seen())
            await queue.put([NewJob("count", 3, key="a"), NewJob("count", 2, key="a")])
            await queue.put(NewJob("count", delay="1h"))
            await queue.put(NewJob("unknown"))
            left = ("unknown",)
            assert await worker.run_once(options(concurrency=2)) == RunSummary(7, unhandled=left)
            stats = await queue.stats()
            assert (stats.ready, stats.delayed, stats.leased) == (1, 1, 0)
            before = clock.now()
            assert await worker.run_once() == RunSummary(unhandled=left)
            assert clock.now() == before  # an empty queue costs no time
            await clock.advance(3600)
            assert await worker.run_once() == RunSummary(1, unhandled=left)

    virtually(main)


def test_it_tells_what_failed_and_leaves_retries_for_later() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        worker = Worker(queue, events=Seen().events)

        @worker.handle("fail", retry=LATER)
        async def fail(job: Job) -> None:
            raise {"snooze": Snooze("1h"), "reject": Reject()}.get(job.payload, OSError("no"))

        await queue.put([NewJob("fail", how) for how in ("retry", "snooze", "reject")])
        summary = await worker.run_once(options())
        assert summary == RunSummary(retried=1, snoozed=1, dead=1)
        assert (summary.failed, str(summary)) == (
            2,
            "0 done, 1 retried, 1 dead, 1 snoozed, 0 cancelled, 0 lost",
        )
        await clock.advance(599)
        assert await worker.run_once(options()) == RunSummary()
        await clock.advance(2)
        assert await worker.run_once(options()) == RunSummary(dead=1)

    virtually(main)


def test_an_open_breaker_ends_it() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        worker = Worker(queue, events=Seen().events)

        @worker.handle("fail", retry=LATER, breaker=Breaker(failures=2, delay="1m"))
        async def fail(job: Job) -> None:
            raise OSError("down")

        await queue.put([NewJob("fail")] * 9)
        summary = await worker.run_once(options(concurrency=1, prefetch=0))
        assert (summary.retried, (await queue.stats()).ready) == (2, 7)

    virtually(main)


def test_a_store_that_stays_away_ends_it_with_its_error() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = CountedMemory(clock=clock), Seen()
        queue.failing = ["claim"]
        with pytest.raises(StoreUnavailable):
            await chain(queue, seen).run_once(options())
        assert len(seen.of(PollFailed)) == 4
        queue.failing = []
        await queue.put(NewJob("count", 0))
        assert await chain(queue, seen).run_once(options()) == RunSummary(done=1)

    virtually(main)


def test_a_stop_ends_it_before() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        worker = chain(queue, Seen())

        @worker.handle("stop")
        async def stop(job: Job) -> None:
            worker.stop()

        await queue.put([NewJob("stop"), *[NewJob("count", 9)] * 3])
        summary = await worker.run_once(options(concurrency=1, prefetch=0))
        assert (summary.done, (await queue.stats()).ready) == (1, 3)

    virtually(main)


def test_object_storage_is_emptied(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_queue(f"file://{tmp_path}/jobs") as queue:
            await queue.put([NewJob("note", n) for n in range(30)])
            worker, ran = Worker(queue, events=Seen().events), list[int]()

            @worker.handle("note")
            async def note(job: Job) -> None:
                ran.append(job.payload)

            assert await worker.run_once(options()) == RunSummary(done=30)
            assert sorted(ran) == list(range(30))

    asyncio.run(asyncio.wait_for(main(), 240))


def test_sqs_is_emptied(ministack: MiniStack, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for variable, value in (CREDENTIALS | {"AWS_ENDPOINT_URL": ministack.endpoint}).items():
        monkeypatch.setenv(variable, value)

    async def main() -> None:
        async with SqsQueue(name, linger=0) as queue:
            await queue.create()
            await queue.put([NewJob("count", n % 3) for n in range(12)])
            worker = Worker(queue, events=Seen().events)

            @worker.handle("count")
            async def count(job: Job) -> None:
                if job.payload:
                    await queue.put(NewJob("count", job.payload - 1))

            assert await worker.run_once(options()) == RunSummary(done=24)

    asyncio.run(asyncio.wait_for(main(), 240))
