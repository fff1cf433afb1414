"""Processes to be replaced: after enough runs, with too much memory, or full of threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pollwise.errors import ConfigError
from pollwise.outbox import NewRecord, Outbox, OutboxRunOptions
from pollwise.outbox.stores.memory import MemoryOutboxStore
from pollwise.platforms.limits import resident_bytes
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import (
    JobDone,
    JobRetried,
    PlacesFree,
    PlacesTaken,
    RunRecycled,
    ThreadsAbandoned,
)
from pollwise.runtime.jobs import Job, NewJob
from pollwise.worker import Worker
from tests.support.kit import SOON, Seen, options, until, virtually


@pytest.mark.parametrize("prefetch", [None, 0, 3])
def test_exactly_as_many_runs_as_max_jobs(prefetch: int | None) -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = MemoryQueue(clock=clock), Seen()
        worker = Worker(queue, events=seen.events)

        @worker.handle("x")
        async def handler(job: Job) -> None:
            await asyncio.sleep(job.payload)

        await queue.put([NewJob("x", n) for n in range(20)])
        await worker.run(options(concurrency=4, max_jobs=7, prefetch=prefetch))
        assert len(seen.of(JobDone)) == 7
        assert worker.recycled == "7 runs have ended, as many as max_jobs"
        assert [event.reason for event in seen.of(RunRecycled)] == [worker.recycled]
        stats = await queue.stats()
        assert (stats.ready, stats.leased) == (13, 0)
        task = asyncio.ensure_future(worker.run(options()))
        await until(lambda: len(seen.of(JobDone)) == 20)
        worker.stop()
        await task
        assert worker.recycled == ""

    virtually(main)


def test_a_few_runs_that_are_left_are_still_claimed() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = MemoryQueue(clock=clock), Seen()
        worker = Worker(queue, events=seen.events)

        @worker.handle("x")
        async def handler(job: Job) -> None: ...

        task = asyncio.ensure_future(worker.run(options(max_jobs=3)))
        for count in (1, 2, 3):  # runs this short are claimed far ahead, but only three may start
            await queue.put(NewJob("x"))
            await until(lambda count=count: len(seen.of(JobDone)) == count)  # type: ignore[misc]
        await task

    virtually(main)


def test_a_process_that_uses_too_much_memory() -> None:
    kept: list[bytes] = []

    async def main() -> None:
        queue = MemoryQueue()
        worker = Worker(queue, events=Seen().events)

        @worker.handle("leak")
        async def leak(job: Job) -> None:
            kept.append(bytes(64 * 1024**2).replace(b"\0", b"x"))  # written, so resident

        await queue.put([NewJob("leak") for _ in range(30)])
        limit = resident_bytes() + 16 * 1024**2
        # It is measured once a second, at the end of a run.
        await asyncio.wait_for(worker.run(options(concurrency=1, max_memory=limit)), 20)
        assert f"more than max_memory = {limit}" in worker.recycled
        assert (await queue.stats()).leased == 0

    asyncio.run(main())
    assert 1 <= len(kept) < 30


def test_a_memory_limit_below_what_is_used_is_refused() -> None:
    worker = Worker(MemoryQueue())
    worker.handle("x")(print)
    with pytest.raises(ConfigError, match="is not above what the process uses at its start"):
        asyncio.run(worker.run(options(max_memory=1024**2)))


class Stuck:
    """A plain handler that ignores its timeout until the gate opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def __call__(self, item: Any) -> None:
        if item.payload == "stuck":
            assert self.gate.wait(30)


def test_threads_that_time_out_and_fill_all_places_are_reported_once() -> None:
    stuck = Stuck()

    async def main() -> None:
        queue, seen = MemoryQueue(), Seen()
        worker = Worker(queue, events=seen.events)
        worker.handle("x", retry=SOON, timeout="50ms")(stuck)
        await queue.put([NewJob("x", "stuck"), NewJob("x", "stuck")])
        task = asyncio.ensure_future(worker.run(options(concurrency=2)))
        await until(lambda: bool(seen.of(PlacesTaken)))
        await until(lambda: len(seen.of(JobRetried)) == 2)
        await queue.put(NewJob("x", "waits"))
        assert [event.threads for event in seen.of(PlacesTaken)] == [2]
        assert not seen.of(JobDone)
        stuck.gate.set()
        await until(lambda: bool(seen.of(JobDone)))
        assert [event.threads for event in seen.of(ThreadsAbandoned)] == [1, 2, 1, 0]
        assert len(seen.of(PlacesTaken)) == len(seen.of(PlacesFree)) == 1
        assert worker.recycled == ""
        worker.stop()
        await task

    asyncio.run(main())


def test_a_worker_full_of_threads_is_recycled_if_asked() -> None:
    stuck = Stuck()

    async def main() -> None:
        queue = MemoryQueue()
        worker = Worker(queue, events=Seen().events)
        worker.handle("x", timeout="50ms")(stuck)
        await queue.put([NewJob("x", "stuck"), NewJob("x", "stuck"), NewJob("x", "waits")])
        run = options(concurrency=2, recycle_when_full=True)
        await asyncio.wait_for(worker.run(run), 20)
        assert worker.recycled == "handlers that timed out occupy all 2 places"
        stats = await queue.stats()
        assert (stats.ready + stats.delayed, stats.leased) == (3, 0)

    asyncio.run(main())
    stuck.gate.set()


def test_a_relay_full_of_threads_is_recycled_if_asked() -> None:
    stuck = Stuck()

    async def main() -> None:
        store, seen = MemoryOutboxStore(), Seen()
        run = OutboxRunOptions(concurrency=1, signals=False, recycle_when_full=True)
        outbox = Outbox(store, options=run, events=seen.events)
        outbox.handle("*", timeout="50ms", name="stuck")(stuck)
        await store.put([NewRecord("x", "stuck", "k")])
        await asyncio.wait_for(outbox.run(), 20)
        assert outbox.recycled == "handlers that timed out occupy all 1 places"
        assert len(seen.of(PlacesTaken)) == 1

    asyncio.run(main())
    stuck.gate.set()
