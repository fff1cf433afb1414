"""Context variables: no run sees what another one has set, whatever kind of handler it has."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from pollwise import Cancelled, Job, NewJob, Reject, Retry, Worker
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.events import ChoreFailed, Event
from pollwise.runtime.executor.control.run_control import running
from tests.support.kit import CountedMemory, Seen, make_queue, options, virtually
from tests.worker.children import variables

JOBS = 30
#: What runs set for themselves; what the context of the worker sets for all.
tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
region: ContextVar[str] = ContextVar("region", default="nowhere")


def worker_on(queue: Any, found: dict[str, list[tuple[str, str]]]) -> tuple[Worker, Any]:
    """A worker and its task, whose handlers note which values they find, and set their own."""
    worker = Worker(queue, events=Seen().events)

    def note(job: Job) -> None:
        found.setdefault(job.kind, []).append((tenant.get(), region.get()))
        tenant.set(job.id)

    @worker.context
    async def shared() -> AsyncIterator[str]:
        region.set("north")
        yield "shared"

    @worker.handle("plain")
    async def plain(job: Job) -> None:
        note(job)

    @worker.handle("turn")
    async def turn(job: Job) -> None:
        note(job)
        await asyncio.sleep(0)
        assert tenant.get() == job.id

    @worker.handle("slow")
    async def slow(job: Job) -> None:
        note(job)
        await queue.clock.sleep(0.01)
        assert tenant.get() == job.id

    @worker.handle("task in it")
    async def starts_task(job: Job) -> None:
        note(job)
        await asyncio.create_task(asyncio.sleep(0))

    @worker.handle("thread")
    def thread(job: Job) -> None:
        note(job)

    @worker.handle("raises", retry=Retry.fixed("10ms", attempts=2))
    async def raises(job: Job) -> None:
        note(job)
        raise OSError("on purpose")

    @worker.handle("rejects")
    async def rejects(job: Job) -> None:
        note(job)
        raise Reject("on purpose")

    @worker.handle("cancels")
    async def cancels(job: Job) -> None:
        note(job)
        raise Cancelled("on purpose")

    @worker.handle("times out", timeout="50ms", retry=Retry.fixed("10ms", attempts=1))
    async def times_out(job: Job) -> None:
        note(job)
        await queue.clock.sleep(60)

    @worker.handle("puts")
    async def puts(job: Job) -> None:
        note(job)
        await queue.put(NewJob("plain", 0))

    @worker.task
    async def task(number: int) -> None:
        found.setdefault("task", []).append((tenant.get(), region.get()))
        tenant.set(f"task {number}")

    return worker, task


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_no_run_sees_a_value_of_another(store: str, concurrency: int, tmp_path: Path) -> None:
    found: dict[str, list[tuple[str, str]]] = {}

    async def main(clock: Any) -> None:
        queue = make_queue(store, tmp_path, clock)
        worker, task = worker_on(queue, found)
        for number in range(JOBS):
            await queue.put([NewJob(kind, number) for kind in worker.kinds if kind != task.kind])
            await task.put(number)
        await worker.run_once(options(concurrency=concurrency))
        await queue.close()

    virtually(main)
    assert len(found) == 11
    assert all(len(runs) >= JOBS for runs in found.values())
    seen = {kind: Counter(runs) for kind, runs in found.items()}
    assert {pair for runs in seen.values() for pair in runs} == {("nobody", "north")}


def test_a_cancelled_job_leaves_no_value_for_the_next() -> None:
    found: list[str] = []

    async def main(clock: Any) -> None:
        queue = MemoryQueue(clock=clock)
        worker = Worker(queue, events=Seen().events)

        @worker.handle("waits")
        async def waits(job: Job) -> None:
            found.append(tenant.get())
            tenant.set(job.id)
            await clock.sleep(3600)

        ids = await queue.put([NewJob("waits", number) for number in range(20)])
        async with worker.running(options(concurrency=2, prefetch=8, lease="3s")):
            for job_id in ids:
                await queue.cancel([job_id])
                await clock.advance(2)

    virtually(main)
    assert len(found) >= 10
    assert set(found) == {"nobody"}


def test_settlements_and_chores_are_no_part_of_a_job() -> None:
    """What they log must not have the fields of whichever job was the occasion."""
    during: list[Any] = []
    before = running()  # other tests may have left one

    async def main(clock: Any) -> None:
        queue, seen = CountedMemory(clock=clock), Seen()

        def note(event: Event) -> None:
            if isinstance(event, ChoreFailed):
                during.append((event.chore, running()))

        seen.events.subscribe(note)
        worker = Worker(queue, events=seen.events)

        @worker.handle("job")
        async def handle(job: Job) -> None:
            job.progress(0.5)
            await clock.sleep(5)

        await queue.put([NewJob("job", number) for number in range(6)])
        async with worker.running(options(concurrency=2, lease="9s")):
            await clock.advance(4)
            queue.failing = ("settle", "renew")
            await clock.advance(8)
            queue.failing = ()
            await clock.advance(60)

    virtually(main)
    assert {chore for chore, _ in during} == {"settle", "renew leases"}
    assert all(job is before for _, job in during)


def test_no_run_in_a_process_sees_a_value_of_another() -> None:
    async def main() -> None:
        variables.worker.queue = queue = MemoryQueue(keep="1h")
        found = []
        async with variables.worker.running(options(cpu_processes=1)):
            for kind in ("plain", "async", "plain", "async", "async", "plain"):
                [job] = await queue.put(NewJob(kind, None))
                found.append(await queue.result(job, 240))
        assert found == [["nobody", "north"]] * 6

    asyncio.run(main())
