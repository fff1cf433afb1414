"""A cancelled job: its worker learns of it with the next renewal, and stops its handler once."""

from __future__ import annotations

import asyncio
import threading

from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import JobCancelled, JobDone, JobLost, JobStarted
from pollwise.runtime.jobs import Job, JobInfo, NewJob
from pollwise.worker import Worker
from tests.support.kit import CountedMemory, Seen, options, until, virtually, working

LEASE = 30.0


async def shown(queue: MemoryQueue, job_id: str) -> JobInfo:
    info = await queue.get(job_id)
    assert info is not None
    return info


class Cancelling:
    """A worker on a queue that keeps what ended."""

    def __init__(self, clock: VirtualClock) -> None:
        self.queue = CountedMemory(clock=clock, keep="1d")
        self.seen = Seen()
        self.worker = Worker(self.queue, name="w", events=self.seen.events)

    async def put(self, *payloads: object) -> list[str]:
        return await self.queue.put([NewJob("x", payload) for payload in payloads])

    async def started(self, count: int = 1) -> None:
        await until(lambda: len(self.seen.of(JobStarted)) == count)

    async def cancelled(self) -> None:
        await until(lambda: bool(self.seen.of(JobCancelled)), LEASE)


def test_a_handler_is_stopped_at_the_next_renewal() -> None:
    async def main(clock: VirtualClock) -> None:
        it, ends = Cancelling(clock), list[str]()

        @it.worker.handle("x")
        async def handler(job: Job) -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                # Later renewals do not disturb it.
                await asyncio.sleep(LEASE * 2 if job.payload == "cancelled" else 1)
                ends.append(job.payload)
                raise

        [job_id, other] = await it.put("cancelled", "goes on")
        async with working(it.worker, options(lease=LEASE, concurrency=2, grace=0)):
            await it.started(2)
            assert await it.queue.cancel([job_id]) == {job_id: "leased"}
            await until(lambda: bool(it.seen.of(JobCancelled)), LEASE * 3)
            assert ends == ["cancelled"]
        info = await shown(it.queue, job_id)
        assert (info.state, info.worker, info.error) == ("cancelled", "w", None)
        assert (await shown(it.queue, other)).state == "ready", "given back at the stop"
        [event] = it.seen.of(JobCancelled)
        assert (event.job, event.kind, event.attempt, event.worker) == (job_id, "x", 1, "w")
        assert not it.seen.of(JobLost)

    virtually(main)


def test_a_handler_that_ends_first_is_done() -> None:
    async def main(clock: VirtualClock) -> None:
        it = Cancelling(clock)

        @it.worker.handle("x")
        async def handler(job: Job) -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                return  # it reached its goal after all

        [job_id] = await it.put(1)
        async with working(it.worker, options(lease=LEASE)):
            await it.started()
            await it.queue.cancel([job_id])
            await until(lambda: bool(it.seen.of(JobDone)), LEASE)
        assert (await shown(it.queue, job_id)).state == "done"
        assert not it.seen.of(JobCancelled)

    virtually(main)


def test_a_job_that_was_claimed_ahead_does_not_begin() -> None:
    async def main(clock: VirtualClock) -> None:
        it = Cancelling(clock)

        @it.worker.handle("x")
        async def handler(job: Job) -> None:
            await asyncio.sleep(LEASE)

        [first, ahead] = await it.put(1, 2)
        async with working(it.worker, options(lease=LEASE, concurrency=1, prefetch=1)):
            await it.started()
            assert await it.queue.cancel([ahead]) == {ahead: "leased"}
            await it.cancelled()
            await until(lambda: bool(it.seen.of(JobDone)))
        assert [event.job for event in it.seen.of(JobStarted)] == [first]
        assert (await shown(it.queue, ahead)).state == "cancelled"

    virtually(main)


def test_the_thread_of_a_plain_handler_runs_on() -> None:
    async def main() -> None:
        gate, left = threading.Event(), threading.Event()
        queue, seen = MemoryQueue(keep="1d"), Seen()
        worker = Worker(queue, name="w", events=seen.events)

        @worker.handle("x")
        def handler(job: Job) -> None:
            gate.wait(30)
            left.set()

        async def soon(event: type) -> None:
            async with asyncio.timeout(20):
                while not seen.of(event):
                    await asyncio.sleep(0.01)  # real time: a thread is at work

        [job_id] = await queue.put(NewJob("x"))
        async with working(worker, options(lease="1s", concurrency=1)):
            await soon(JobStarted)
            await queue.cancel([job_id])
            await soon(JobCancelled)
            async with asyncio.timeout(20):
                while (await shown(queue, job_id)).state != "cancelled":
                    await asyncio.sleep(0)
            assert not left.is_set(), "a thread cannot be stopped"
            await queue.put(NewJob("x"))
            gate.set()
            await soon(JobDone)  # its place is free again
        assert left.is_set()

    asyncio.run(main())
