"""How much a worker claims ahead of a free handler."""

from __future__ import annotations

import asyncio

import pytest

from pollwise import Job, NewJob, Worker, WorkerRunOptions
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock


@pytest.mark.parametrize("surprise", [False, True], ids=["large", "suddenly large"])
def test_what_waits_for_a_handler_is_bounded_by_bytes(surprise: bool) -> None:
    clock, most, ran = VirtualClock(), 0, 0

    async def main() -> None:
        queue = MemoryQueue(clock=clock)
        small = [NewJob("job", "x") for _ in range(50)]
        large = [NewJob("job", "x" * 100_000) for _ in range(100)]
        await queue.put([*small, *large] if surprise else large)
        options = WorkerRunOptions(
            concurrency=2, prefetch=50, prefetch_bytes=1_000_000, hints=False, signals=False
        )
        worker = Worker(queue, options)

        @worker.handle("job")
        async def handle(job: Job) -> None:
            nonlocal most, ran
            ran += 1
            await clock.sleep(1)
            leased = await queue.jobs("leased", limit=500)
            most = max(most, sum(len(each.job.payload) > 1 for each in leased))

        running = asyncio.ensure_future(worker.run())
        await clock.advance(300)
        worker.stop()
        await running
        assert ran == (150 if surprise else 100)
        assert 2 < most <= 2 + 10 + 2  # two run, a million bytes wait, two are being settled

    clock.run(main())
