"""A cancelled job: its worker learns of it by a broadcast or a renewal, and stops its handler."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Self

from pollwise.errors import Cancelled
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import JobCancelled, JobDone, JobLost, JobStarted
from pollwise.runtime.executor.control.run_control import (
    RunControl,
    begin_run,
    control_of,
    was_cancelled,
)
from pollwise.runtime.jobs import Claim, Job, JobInfo, NewJob
from pollwise.worker import Worker
from tests.support.kit import CountedMemory, Seen, options, until, virtually, working

LEASE = 30.0
#: Real seconds within which what is waited for has to happen.
PATIENCE = 240.0


async def shown(queue: MemoryQueue, job_id: str) -> JobInfo:
    info = await queue.get(job_id)
    assert info is not None
    return info


class Cancelling:
    """A worker on a queue that keeps what ended."""

    def __init__(self, clock: VirtualClock, kind: type[CountedMemory] = CountedMemory) -> None:
        self.queue = kind(clock=clock, keep="1d")
        self.seen = Seen()
        self.worker = Worker(self.queue, name="w", events=self.seen.events)

    def sleeping(self) -> Self:
        """With a handler that sleeps until it is cancelled."""

        @self.worker.handle("x")
        async def handler(job: Job) -> None:
            await asyncio.sleep(3600)

        return self

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


def test_a_broadcast_brings_the_cancel_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        it = Cancelling(clock).sleeping()
        [job_id] = await it.put(1)
        async with working(it.worker, options(lease=86400)):
            await it.started()
            await clock.advance(100)
            assert it.queue.calls["renew"] == 0
            await it.queue.cancel([job_id])
            await until(lambda: bool(it.seen.of(JobCancelled)), 0.1)
            assert it.queue.calls["renew"] == 1
            await clock.advance(10)
            await it.queue.put(NewJob("other"))
            [other] = await it.queue.claim("another worker", 1, 60, kinds=["other"])
            await it.queue.cancel([other.job.id])
            await clock.advance(100)
            assert it.queue.calls["renew"] == 1, "a worker that holds nothing does not react"

    virtually(main)


def test_many_broadcasts_make_one_renewal_a_second() -> None:
    async def main(clock: VirtualClock) -> None:
        it = Cancelling(clock).sleeping()
        ids = await it.put(*range(50))
        async with working(it.worker, options(lease=86400, concurrency=50)):
            await it.started(50)
            for job_id in ids:
                await it.queue.cancel([job_id])
                await clock.advance(0.1)
            await until(lambda: len(it.seen.of(JobCancelled)) == 50, 1.1)
            assert it.queue.calls["renew"] == 6, "at 0, 1, 2, 3, 4 and 5 seconds"

    virtually(main)


def test_a_broadcast_during_the_claim_is_not_lost() -> None:
    """The job is cancelled when it is claimed at the store, and its worker does not know of it."""

    class Slow(CountedMemory):
        async def claim(self, *given: Any, **named: Any) -> list[Claim]:
            claims = await super().claim(*given, **named)
            await asyncio.sleep(5 if claims else 0)
            return claims

    async def main(clock: VirtualClock) -> None:
        it = Cancelling(clock, Slow).sleeping()
        [job_id] = await it.put(1)
        async with working(it.worker, options(lease=86400)):
            while (await shown(it.queue, job_id)).state != "leased":
                await clock.advance(0.1)
            await it.queue.cancel([job_id])
            await until(lambda: bool(it.seen.of(JobCancelled)), 6)

    virtually(main)


def test_without_hints_it_comes_with_the_next_renewal() -> None:
    async def main(clock: VirtualClock) -> None:
        it = Cancelling(clock).sleeping()
        [job_id] = await it.put(1)
        async with working(it.worker, options(lease=LEASE, hints=False)):
            await it.started()
            await it.queue.cancel([job_id])
            await clock.advance(LEASE / 3 - 1)
            assert not it.seen.of(JobCancelled)
            await clock.advance(2)
            assert it.seen.of(JobCancelled)

    virtually(main)


def test_what_a_handler_raises_after_the_cancel_is_kept() -> None:
    async def main(clock: VirtualClock) -> None:
        it = Cancelling(clock)

        @it.worker.handle("x")
        async def handler(job: Job) -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                if job.payload == "breaks":
                    raise ValueError("while cleaning up")
                if job.payload == "says why":
                    raise Cancelled("at page 3")

        ids = await it.put("breaks", "says why", "neither")
        async with working(it.worker, options(lease=LEASE)):
            await it.started(3)
            await it.queue.cancel(ids)
            await until(lambda: len(it.seen.of(JobCancelled)) == 3, LEASE)
        ends = [await shown(it.queue, job_id) for job_id in ids]
        assert [info.state for info in ends] == ["cancelled"] * 3
        assert [info.error for info in ends] == [
            "ValueError: while cleaning up", "at page 3", None,
        ]  # fmt: skip

    virtually(main)


def test_a_handler_may_cancel_its_own_job() -> None:
    async def main(clock: VirtualClock) -> None:
        it = Cancelling(clock)

        @it.worker.handle("x")
        async def handler(job: Job) -> None:
            raise Cancelled

        [job_id] = await it.put(1)
        async with working(it.worker, options(lease=LEASE)):
            await it.cancelled()
        assert (await shown(it.queue, job_id)).state == "cancelled"

    virtually(main)


def test_a_stop_is_no_cancel() -> None:
    async def main(clock: VirtualClock) -> None:
        it, asked = Cancelling(clock), list[bool]()

        @it.worker.handle("x")
        async def handler(job: Job) -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                asked.append(job.cancel_requested)
                raise

        stopped, cancelled = await it.put("stopped", "cancelled")
        async with working(it.worker, options(lease=LEASE, grace=0)):
            await it.started(2)
            await it.queue.cancel([cancelled])
            await it.cancelled()
        assert asked == [True, False]
        assert (await shown(it.queue, stopped)).state == "ready"
        assert (await shown(it.queue, cancelled)).state == "cancelled"

    virtually(main)


def test_middleware_may_pass_on_another_job() -> None:
    async def main(clock: VirtualClock) -> None:
        it, seen = Cancelling(clock), list[Any]()

        @it.worker.middleware
        async def layer(job: Job, proceed: Any) -> Any:
            return await proceed(replace(job, payload="changed"))

        @it.worker.handle("x")
        async def handler(job: Job) -> None:
            await job.progress(0.5)
            try:
                await asyncio.sleep(3600)
            finally:
                seen.extend((job.payload, job.cancel_requested))

        [job_id] = await it.put("as put")
        async with working(it.worker, options(lease=LEASE)):
            await it.started()
            await clock.advance(2)
            progress = (await shown(it.queue, job_id)).progress
            assert progress is not None
            assert progress.fraction == 0.5
            await it.queue.cancel([job_id])
            await it.cancelled()
        assert seen == ["changed", True]

    virtually(main)


class Plain:
    """A worker with a plain handler, in real time, because a thread is at work."""

    def __init__(self) -> None:
        self.queue = MemoryQueue(keep="1d")
        self.seen = Seen()
        self.worker = Worker(self.queue, name="w", events=self.seen.events)
        self.gate = threading.Event()

    async def soon(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not happened():
                await asyncio.sleep(0.01)  # real time: a thread is at work

    async def cancel_running(self) -> str:
        """Put a job, cancel it when it runs, and wait until its worker knows."""
        [job_id] = await self.queue.put(NewJob("x", {}))
        before = len(self.seen.of(JobStarted))
        await self.soon(lambda: len(self.seen.of(JobStarted)) > before)
        await self.queue.cancel([job_id])
        return job_id

    async def ended(self, job_id: str) -> JobInfo:
        async with asyncio.timeout(PATIENCE):
            while (info := await shown(self.queue, job_id)).state == "leased":
                await asyncio.sleep(0.01)  # real time: a thread is at work
        return info


def test_a_plain_handler_sees_the_request_and_returns() -> None:
    async def main() -> None:
        it = Plain()

        @it.worker.handle("x")
        def handler(job: Job) -> str:
            while not job.cancel_requested:
                it.gate.wait(0.01)
            return "what it has so far"

        async with working(it.worker, options(lease="1h", concurrency=1)):
            info = await it.ended(await it.cancel_running())
            assert (info.state, info.result) == ("cancelled", None)
            assert len(it.seen.of(JobCancelled)) == 1
            info = await it.ended(await it.cancel_running())  # its place is free again
            assert info.state == "cancelled"

    asyncio.run(main())


def test_a_plain_handler_raises_that_it_was_cancelled() -> None:
    async def main() -> None:
        it = Plain()

        @it.worker.handle("x")
        def handler(job: Job) -> None:
            while not job.cancel_requested:
                it.gate.wait(0.01)
            raise Cancelled("at row 7")

        async with working(it.worker, options(lease="1h")):
            info = await it.ended(await it.cancel_running())
            assert (info.state, info.error) == ("cancelled", "at row 7")

    asyncio.run(main())


def test_a_plain_handler_that_does_not_look_is_done() -> None:
    async def main() -> None:
        it, jobs = Plain(), list[Job]()

        @it.worker.task
        def x(job: Job) -> str:
            jobs.append(job)
            it.gate.wait(PATIENCE)
            return "all of it"

        async with working(it.worker, options(lease="1h")):
            job_id = await it.cancel_running()
            await it.soon(lambda: bool(jobs) and was_cancelled(jobs[0]))
            assert (await shown(it.queue, job_id)).state == "leased", "its function goes on"
            assert not it.seen.of(JobCancelled)
            it.gate.set()
            info = await it.ended(job_id)
            assert (info.state, info.result) == ("done", "all of it")

    asyncio.run(main())


def test_a_timeout_abandons_the_thread_of_a_cancelled_job() -> None:
    async def main() -> None:
        it, told = Plain(), threading.Event()

        @it.worker.handle("x", timeout="500ms")
        def handler(job: Job) -> None:
            it.gate.wait(PATIENCE)
            if job.cancel_requested:  # also true for a run that the worker gave up
                told.set()

        async with working(it.worker, options(lease="1h", concurrency=1)):
            info = await it.ended(await it.cancel_running())
            assert info.state == "cancelled"
            assert info.error is not None
            assert "timeout of 0.5 s" in info.error
            it.gate.set()
            await it.soon(told.is_set)

    asyncio.run(main())


def test_the_control_of_a_run_is_no_part_of_the_job() -> None:
    job = Job("1", "q", "x", None, None, 0, 1, 0.0, 0.0, None)
    same = replace(job)
    begin_run(job, RunControl(lambda: None))
    assert job == same
    assert repr(job) == repr(same)
    assert asdict(job) == asdict(same)
    copied = pickle.loads(pickle.dumps(job))
    assert copied == job
    assert not copied.cancel_requested
    assert control_of(copied) is None
    assert control_of(replace(job)) is None
