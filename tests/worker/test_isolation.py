"""A suspect runs alone, which is visible, and for no longer than a minute of its run."""

from __future__ import annotations

import asyncio

from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import JobDone, JobIsolated, JobTakenOver
from pollwise.runtime.executor.control.isolation import ALONE_FOR
from pollwise.runtime.jobs import LAPSES_ALONE, Job, NewJob
from pollwise.worker import Worker
from tests.support.kit import Seen, options, until, virtually, working


async def kill_workers(queue: Queue, clock: VirtualClock, times: int = LAPSES_ALONE) -> None:
    """Claim the only job as workers that die, so that their leases run out."""
    for n in range(times):
        [claim] = await queue.claim(f"dead-{n}", 1, 30.0)
        await clock.advance(31)
        assert claim.job.attempt == n + 1


def test_a_suspect_keeps_its_worker_from_other_jobs_for_a_minute_only() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen, finish = MemoryQueue(clock=clock), Seen(), asyncio.Event()
        worker = Worker(queue, name="w", events=seen.events)

        @worker.handle("export")
        async def export(job: Job) -> None:
            await finish.wait()

        @worker.handle("mail")
        async def mail(job: Job) -> None: ...

        [suspect] = await queue.put([NewJob("export")])
        await kill_workers(queue, clock)
        async with working(worker, options(concurrency=2)):
            await until(lambda: bool(seen.of(JobIsolated)))
            [isolated] = seen.of(JobIsolated)
            assert (isolated.worker, isolated.job, isolated.kind) == ("w", suspect, "export")
            assert isolated.alone_for == ALONE_FOR
            await queue.put(NewJob("mail"))
            await clock.advance(ALONE_FOR - 5)
            assert not seen.of(JobDone)
            [info] = await queue.workers()
            assert info.alone == suspect
            await clock.advance(10)
            assert [each.kind for each in seen.of(JobDone)] == ["mail"]
            [info] = await queue.workers()
            assert not info.alone
            finish.set()
            await until(lambda: len(seen.of(JobDone)) == 2)
        assert len(seen.of(JobIsolated)) == 1

    virtually(main)


def test_the_minute_begins_with_the_run() -> None:
    """The suspect waits for the handler of a job that is running, and nothing is claimed."""

    async def main(clock: VirtualClock) -> None:
        queue, seen = MemoryQueue(clock=clock), Seen()
        worker = Worker(queue, name="w", events=seen.events)
        let_go = {"export": asyncio.Event(), "first": asyncio.Event(), "mail": asyncio.Event()}
        began: list[str] = []

        for kind, event in let_go.items():

            def handler(kind: str = kind, event: asyncio.Event = event) -> None:
                @worker.handle(kind)
                async def handle(job: Job) -> None:
                    began.append(kind)
                    await event.wait()

            handler()
        await queue.put(NewJob("export"))
        await kill_workers(queue, clock, LAPSES_ALONE - 1)
        await queue.claim("dead", 1, 90.0, kinds=["export"])
        async with working(worker, options(concurrency=1, prefetch=1)):
            await queue.put(NewJob("first"))
            await until(lambda: began == ["first"])
            await clock.advance(95)
            await until(lambda: bool(seen.of(JobIsolated)))
            await queue.put(NewJob("mail"))
            await clock.advance(2 * ALONE_FOR)
            assert began == ["first"]
            let_go["first"].set()
            await until(lambda: began == ["first", "export"])
            await clock.advance(ALONE_FOR / 2)
            assert (await queue.stats()).ready == 1
            await clock.advance(ALONE_FOR)
            assert (await queue.stats()).ready == 0  # claimed ahead again
            let_go["export"].set()
            let_go["mail"].set()
            await until(lambda: len(seen.of(JobDone)) == 3)

    virtually(main)


def test_who_takes_a_job_of_a_dead_worker_over_is_told() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = MemoryQueue(clock=clock), Seen()
        worker = Worker(queue, name="w", events=seen.events)

        @worker.handle("export")
        async def export(job: Job) -> None: ...

        [taken] = await queue.put([NewJob("export")])
        await kill_workers(queue, clock, 1)
        await queue.put(NewJob("export"))
        async with working(worker, options()):
            await until(lambda: len(seen.of(JobDone)) == 2)
        [told] = seen.of(JobTakenOver)
        assert (told.worker, told.lapsed_from, told.job, told.attempt) == ("w", "dead-0", taken, 2)

    virtually(main)
