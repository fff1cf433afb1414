"""Polls that the store holds until something comes (long polling)."""

from __future__ import annotations

import asyncio
import itertools

from pollwise.core.strategies.ewma import Ewma
from pollwise.core.strategies.fixed import Fixed
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import JobDone, PollFinished
from pollwise.runtime.jobs import Job, NewJob
from pollwise.worker import Worker
from tests.support.kit import (
    CountedMemory,
    Seen,
    SteppingLoop,
    interrupted_at,
    options,
    virtually,
    working,
)

HELD = Fixed(0, hold="20s")


def test_a_held_poll_hands_out_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = CountedMemory(clock=clock)
        late: list[float] = []
        worker = Worker(queue, events=Seen().events)

        @worker.handle("x")
        async def handler(job: Job) -> None:
            late.append(clock.epoch() - job.run_at)

        async with working(worker, options(polling=HELD)):
            for _ in range(5):
                await clock.advance(47)
                await queue.put(NewJob("x"))
            await clock.advance(1)
        assert len(late) == 5
        assert max(late) == 0.0
        assert queue.calls["claim"] < 30

    virtually(main)


def test_a_stop_ends_a_held_poll_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        seen = Seen()
        worker = Worker(CountedMemory(clock=clock), events=seen.events)
        worker.handle("x")(print)
        task = asyncio.ensure_future(worker.run(options(polling=Fixed(0, hold="10m"))))
        await clock.advance(5)
        worker.stop()
        await task
        assert clock.now() == 5.0
        assert [e.found for e in seen.of(PollFinished)] == [0]

    virtually(main)


def test_a_cancellation_at_any_step_of_a_held_poll_leaves_nothing_claimed() -> None:
    def cancelled_at(step: int, twice: bool) -> bool:
        async def main(clock: VirtualClock, stepping: SteppingLoop) -> None:
            queue, seen = CountedMemory(clock=clock), Seen()
            worker = Worker(queue, events=seen.events)

            @worker.handle("x")
            async def handler(job: Job) -> None:
                await asyncio.sleep(1)

            task = asyncio.ensure_future(worker.run(options(polling=HELD, concurrency=2)))

            def end() -> None:
                task.cancel()
                if twice:
                    asyncio.get_running_loop().call_soon(task.cancel)

            stepping.interrupt = end
            for _ in range(3):
                await asyncio.sleep(5)
                await queue.put([NewJob("x"), NewJob("x")])
            await asyncio.sleep(3)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            stats = await queue.stats()
            assert stats.leased == 0, f"step {step}: {stats}"
            assert stats.ready == 6 - len(seen.of(JobDone)), f"step {step}: {stats}"

        return interrupted_at(step, main)

    for twice in (False, True):
        steps = next(n for n in itertools.count(1) if not cancelled_at(n, twice))
        assert steps > 20


def test_a_worker_shows_the_wait_that_its_held_polls_ask_for() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = CountedMemory(clock=clock)
        worker = Worker(queue, events=Seen().events)
        worker.handle("x")(print)
        async with working(worker, options(polling=Ewma())):
            await clock.advance(61)
            [info] = await queue.workers()
            assert info.interval == 20.0

    virtually(main)
