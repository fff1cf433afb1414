"""A stop finishes or gives back what it holds, however and whenever it comes."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from pollwise.core.strategies.fixed import Fixed
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import (
    HandlerStuck,
    JobDone,
    JobGivenBack,
    JobLost,
    JobStarted,
    WorkerStopped,
    WorkerStopping,
)
from pollwise.runtime.executor import executor
from pollwise.runtime.jobs import Job, NewJob, Settlement
from pollwise.worker import Worker
from tests.support.kit import (
    SOON,
    CountedMemory,
    Seen,
    SteppingLoop,
    interrupted_at,
    make_queue,
    options,
    until,
    virtually,
)


class Bench:
    """A worker whose handlers take as many seconds as their payload says."""

    def __init__(self, clock: VirtualClock, queue: Queue | None = None) -> None:
        self.seen = Seen()
        self.queue = queue or CountedMemory(clock=clock)
        self.worker = Worker(self.queue, name="w", events=self.seen.events)
        self.worker.handle("sleep", retry=SOON)(self._sleep)
        self.worker.handle("stubborn", retry=SOON)(self._stubborn)

    async def _sleep(self, job: Job) -> None:
        await asyncio.sleep(job.payload)

    async def _stubborn(self, job: Job) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + job.payload
        while (left := end - loop.time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue

    def start(self, **chosen: Any) -> asyncio.Future[None]:
        return asyncio.ensure_future(self.worker.run(options(**chosen)))


def test_a_stop_waits_for_the_running_and_gives_the_waiting_back_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(clock)
        await bench.queue.put([NewJob("sleep", 10) for _ in range(6)])
        task = bench.start(concurrency=2, prefetch=2, grace="30s")
        await clock.advance(5)
        assert (await bench.queue.stats()).leased == 4
        bench.worker.stop()
        await clock.advance(0.1)
        stats = await bench.queue.stats()
        assert (stats.ready, stats.leased) == (4, 2)
        assert not task.done()
        await task
        assert clock.now() == pytest.approx(10, abs=0.2)
        stats = await bench.queue.stats()
        assert (stats.ready, stats.leased) == (4, 0)
        assert len(bench.seen.of(JobDone)) == 2
        assert [e.reason for e in bench.seen.of(JobGivenBack)] == ["the worker stops"] * 2
        assert bench.seen.of(WorkerStopping) == [WorkerStopping("default", "w", 2, 30.0)]
        assert bench.seen[-1] == WorkerStopped("default", "w", 2)
        # Given back is no attempt.
        assert {i.job.attempt for i in await bench.queue.jobs()} == {0}

    virtually(main)


def test_no_claim_after_a_stop() -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(clock)
        queue: Any = bench.queue
        await bench.queue.put(NewJob("sleep", 20))
        task = bench.start()
        await clock.advance(5)
        bench.worker.stop()
        claims = queue.calls["claim"]
        await bench.queue.put([NewJob("sleep", 1) for _ in range(3)])
        await task
        assert queue.calls["claim"] == claims
        assert (await bench.queue.stats()).ready == 3

    virtually(main)


def test_what_outlasts_the_grace_is_cancelled_and_given_back_uncounted() -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(clock)
        await bench.queue.put([NewJob("sleep", 5), NewJob("sleep", 3600)])
        task = bench.start(grace="30s")
        await clock.advance(2)
        bench.worker.stop()
        await task
        assert clock.now() == pytest.approx(32)
        assert len(bench.seen.of(JobDone)) == 1
        [back] = bench.seen.of(JobGivenBack)
        assert (back.attempt, back.reason) == (1, "the worker stops")
        [info] = await bench.queue.jobs()
        assert (info.state, info.job.attempt, info.error) == ("ready", 0, None)

    virtually(main)


@pytest.mark.parametrize("grace", ["30s", 0])
def test_a_second_stop_or_no_grace_ends_at_once(grace: Any) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(clock)
        await bench.queue.put(NewJob("sleep", 3600))
        task = bench.start(grace=grace)
        await clock.advance(2)
        bench.worker.stop()
        if grace:
            await clock.advance(3)
            assert not task.done()
            bench.worker.stop()
        await task
        assert clock.now() == (5.0 if grace else 2.0)
        assert (await bench.queue.stats()).ready == 1
        assert len(bench.seen.of(WorkerStopping)) == len(bench.seen.of(WorkerStopped)) == 1

    virtually(main)


def test_a_handler_that_swallows_its_cancellation_may_still_finish() -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(clock)
        await bench.queue.put(NewJob("stubborn", 38))
        task = bench.start(grace="10s", lease="60s")
        await clock.advance(20)
        bench.worker.stop()
        await task
        assert clock.now() == pytest.approx(38, abs=0.2)
        assert len(bench.seen.of(JobDone)) == 1
        assert not bench.seen.of(JobGivenBack)

    virtually(main)


def test_a_handler_that_will_not_end_is_left_behind_and_keeps_its_job() -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(clock)
        await bench.queue.put([NewJob("stubborn", 1000), NewJob("sleep", 1000)])
        task = bench.start(grace="10s", lease="60s")
        await clock.advance(20)
        bench.worker.stop()
        await task
        assert clock.now() == pytest.approx(40)  # the grace, and ten seconds to be cancelled in
        [stuck] = bench.seen.of(HandlerStuck)
        assert (stuck.work, stuck.after) == ("job 1 of kind stubborn", 10.0)
        await clock.advance(900)  # it runs, so nobody else may
        assert [info.state for info in await bench.queue.arrivals()] == ["leased", "ready"]
        assert await bench.queue.claim("other", 2, "60s", kinds=["stubborn"]) == []
        await clock.advance(100)
        assert [info.job.kind for info in await bench.queue.jobs()] == ["sleep"]
        assert len(bench.seen.of(JobDone)) == 1
        assert not bench.seen.of(JobLost)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(main)


@pytest.mark.parametrize("url", [False, True])
def test_the_job_of_a_stuck_handler_is_given_back_when_its_event_loop_ends(
    url: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the real clock, in two event loops."""
    monkeypatch.setattr(executor, "STUCK_AFTER", 0.05)
    gate, entered, states = threading.Event(), threading.Event(), list[str]()

    def hang(job: Job) -> None:
        entered.set()
        assert gate.wait(30)

    async def state() -> str:
        async with SqliteQueue(tmp_path / "jobs.db") as queue:
            [info] = await queue.jobs()
            return info.state

    async def main() -> None:
        async with SqliteQueue(tmp_path / "jobs.db") as queue:
            await queue.put(NewJob("x"))
        own = SqliteQueue(tmp_path / "jobs.db")
        worker = Worker(f"sqlite:///{tmp_path}/jobs.db" if url else own, events=Seen().events)
        worker.handle("x")(hang)
        task = asyncio.ensure_future(worker.run(options(grace=0)))
        assert await asyncio.to_thread(entered.wait, 30)
        worker.stop()
        await asyncio.wait_for(task, 20)
        states.append(await state())

    asyncio.run(main())
    states.append(asyncio.run(state()))
    gate.set()
    assert states == ["leased", "ready"]


def test_a_plain_handler_may_stop_its_worker() -> None:
    async def main() -> None:
        queue = MemoryQueue()
        worker = Worker(queue, events=Seen().events)
        worker.handle("x")(lambda job: worker.stop())
        task = asyncio.ensure_future(worker.run(options(polling=Fixed("1h"))))
        await asyncio.sleep(0)
        await queue.put(NewJob("x"))
        await asyncio.wait_for(task, 20)
        assert (await queue.stats()).ready == 0

    asyncio.run(main())


def test_a_thread_that_ends_late_is_done_and_not_given_back() -> None:
    """On the real clock: virtual time would stand still for the thread."""
    gate, entered = threading.Event(), threading.Event()

    def hang(job: Job) -> None:
        entered.set()
        assert gate.wait(30)

    async def main() -> None:
        queue, seen = MemoryQueue(), Seen()
        worker = Worker(queue, events=seen.events)
        worker.handle("x")(hang)
        await queue.put(NewJob("x"))
        task = asyncio.ensure_future(worker.run(options(grace=0)))
        assert await asyncio.to_thread(entered.wait, 30)
        worker.stop()
        await until(lambda: bool(seen.of(WorkerStopping)))
        assert (await queue.stats()).leased == 1
        gate.set()
        await asyncio.wait_for(task, 20)
        stats = await queue.stats()
        assert (stats.ready, stats.leased) == (0, 0)
        assert len(seen.of(JobDone)) == 1

    asyncio.run(main())


def test_a_stop_while_the_store_is_down_tries_a_few_times_and_leaves_the_lease() -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(clock)
        queue: Any = bench.queue
        await queue.put(NewJob("sleep", 1))
        task = bench.start(lease="60s")
        await until(lambda: bool(bench.seen.of(JobStarted)))
        queue.failing = ("settle", "renew")
        await clock.advance(40)  # the retries are far apart by now
        tries = queue.calls["settle"]
        bench.worker.stop()
        await task
        assert queue.calls["settle"] == tries + 3
        assert clock.now() < 42
        assert (await queue.stats()).leased == 1

    virtually(main)


def test_a_stop_when_the_store_is_back_settles_what_had_to_wait() -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(clock)
        queue: Any = bench.queue
        await queue.put(NewJob("sleep", 1))
        task = bench.start(lease="60s")
        await until(lambda: bool(bench.seen.of(JobStarted)))
        queue.failing = ("settle",)
        await clock.advance(40)
        queue.failing = ()
        bench.worker.stop()
        await task
        stats = await queue.stats()
        assert (stats.ready, stats.leased) == (0, 0)

    virtually(main)


# Cancelling.


def jobs() -> list[NewJob]:
    return [NewJob("sleep", 0.4), NewJob("stubborn", 0.3)] * 3


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("how", ["cancel", "cancel twice", "stop", "stop then cancel"])
def test_an_end_at_any_step_leaves_nothing_claimed(store: str, how: str, tmp_path: Path) -> None:
    names = (str(n) for n in itertools.count())

    def ended_at(step: int) -> bool:
        folder = tmp_path / next(names)
        folder.mkdir()

        async def main(clock: VirtualClock, stepping: SteppingLoop) -> None:
            async with make_queue(store, folder, clock) as queue:
                bench = Bench(clock, queue)
                await queue.put(jobs())
                task = bench.start(concurrency=2, prefetch=3, lease="10s", grace="100ms")

                def end() -> None:
                    if how.startswith("stop"):
                        bench.worker.stop()
                    else:
                        task.cancel()
                    if how in ("cancel twice", "stop then cancel"):
                        asyncio.get_running_loop().call_later(0.01, task.cancel)
                        asyncio.get_running_loop().call_soon(task.cancel)

                stepping.interrupt = end
                finished = asyncio.ensure_future(until(lambda: len(done(bench)) == 6))
                await asyncio.wait([task, finished], return_when=asyncio.FIRST_COMPLETED)
                if not task.done():
                    bench.worker.stop()
                finished.cancel()
                await asyncio.gather(task, finished, return_exceptions=True)
                # A second cancellation leaves it to the queue to give back a claim under way.
                await asyncio.gather(*queue._giving_back)
                stats = await queue.stats()
                assert stats.leased == 0, f"{how} at step {step}: {stats}"
                assert stats.ready == 6 - len(done(bench)), f"{how} at step {step}: {stats}"
                assert not bench.seen.of(JobLost), f"{how} at step {step}"
                assert len(bench.seen.of(WorkerStopped)) == len(bench.seen.of(WorkerStopping)) <= 1
                assert {i.job.attempt for i in await queue.jobs()} <= {0}

        return interrupted_at(step, main)

    def done(bench: Bench) -> list[JobDone]:
        return bench.seen.of(JobDone)

    by = 1 if store == "memory" else 5
    steps = next(step for step in itertools.count(1, by) if not ended_at(step))
    assert steps > 40


@pytest.mark.parametrize("when", [0.0, 0.05, 1.0, 10.0, 10.5, 29.99, 30.0, 31.0, 60.0])
def test_a_cancellation_at_any_time_leaves_nothing_claimed_and_is_not_swallowed(
    when: float,
) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(clock)
        await bench.queue.put([NewJob("sleep", 10.5) for _ in range(20)])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(when):
                await bench.worker.run(options(concurrency=3, lease="10s"))
        stats = await bench.queue.stats()
        assert stats.leased == 0
        assert stats.ready == 20 - len(bench.seen.of(JobDone))
        assert bench.worker.state() == {}

    virtually(main)


def test_a_cancellation_in_the_grace_ends_it_and_leaves_no_task_behind() -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(clock)
        await bench.queue.put(NewJob("sleep", 3600))
        task = bench.start(grace="1h")
        await clock.advance(1)
        bench.worker.stop()
        await clock.advance(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert clock.now() == 2.0
        assert (await bench.queue.stats()).ready == 1
        assert len(bench.seen.of(WorkerStopping)) == 1
        await asyncio.sleep(0)
        gc.collect()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(main)


class StandsStill(MemoryQueue):
    """Takes a settlement and never answers, as a server that was paused does."""

    async def _settle(self, settlements: list[Settlement]) -> list[str]:
        await asyncio.Event().wait()
        raise AssertionError("it never answers")


def test_a_store_that_stands_still_does_not_hold_up_a_stop() -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(clock, StandsStill(clock=clock))
        await bench.queue.put([NewJob("sleep", 1), NewJob("sleep", 100)])
        running = bench.start(grace=5)
        await until(lambda: len(bench.seen.of(JobStarted)) == 2)
        await asyncio.sleep(2)
        bench.worker.stop()
        began = clock.now()
        await running
        assert clock.now() - began <= 5 + 10 + 1, "the grace, and ten seconds for the settlements"
        assert bench.seen.of(WorkerStopped)

    virtually(main)
