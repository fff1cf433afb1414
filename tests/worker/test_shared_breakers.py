"""Workers of a queue share their breakers, also with those that start later."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import BreakerChanged, ChoreFailed, JobDead, JobDone, JobStarted
from pollwise.runtime.jobs import Job, NewJob
from pollwise.worker import Worker
from tests.support.kit import Seen, make_queue, options, until, virtually, working

BREAKER = Breaker(failures=3, delay="60s", max_delay="10m")
RETRY = Retry.fixed("1s", attempts=3)


class Service:
    """What the handlers of the kind `shaky` depend on."""

    def __init__(self) -> None:
        self.up = False
        self.seen = Seen()
        self.takes = 0.1

    def worker(self, queue: Queue, name: str = "w") -> Worker:
        worker = Worker(queue, name=name, events=self.seen.events)

        @worker.handle("shaky", retry=RETRY, breaker=BREAKER)
        async def shaky(job: Job) -> None:
            await asyncio.sleep(self.takes)
            if not self.up:
                raise OSError("the service is down")

        return worker

    @property
    def runs(self) -> int:
        return len(self.seen.of(JobStarted))


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_processes_that_start_while_a_breaker_is_open_spend_no_attempts(
    store: str, tmp_path: Path
) -> None:
    async def main(clock: VirtualClock) -> None:
        async with make_queue(store, tmp_path, clock) as queue:
            service = Service()
            await queue.put([NewJob("shaky") for _ in range(5)])
            for n in range(20):  # a crash loop, or a rolling deploy
                async with working(service.worker(queue, f"w{n}"), options(concurrency=1)):
                    await clock.advance(10)
            assert not service.seen.of(JobDead)
            # Three that opened it; then one trial after 60 s and one after 120 s more.
            assert service.runs <= 3 + 2
            [shared] = await queue.breakers.list()
            assert (shared.kind, shared.openings) == ("shaky", 3)
            service.up = True
            async with working(service.worker(queue, "last"), options(concurrency=1)):
                await until(lambda: len(service.seen.of(JobDone)) == 5)
            assert await queue.breakers.list() == []

    virtually(main)


def test_one_worker_at_a_time_takes_the_trial_and_all_learn_of_its_end() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, service = MemoryQueue(clock=clock), Service()
        service.takes = 20.0
        await queue.put([NewJob("shaky") for _ in range(40)])
        async with (
            working(service.worker(queue, "a"), options(concurrency=3)),
            working(service.worker(queue, "b"), options(concurrency=3)),
            working(service.worker(queue, "c"), options(concurrency=3)),
        ):
            await clock.advance(75)  # all are open
            ran = service.runs
            assert ran <= 9
            await clock.advance(20)  # a trial runs, which takes 20 seconds
            assert service.runs == ran + 1
            [shared] = await queue.breakers.list()
            assert shared.trial_by in ("a", "b", "c")
            await clock.advance(100)  # it failed, so the next opening is longer
            assert service.runs == ran + 1
            service.up = True
            await until(lambda: len(service.seen.of(JobDone)) == 40)
            assert await queue.breakers.list() == []
        assert not service.seen.of(JobDead)
        assert not service.seen.of(ChoreFailed)

    virtually(main)


def test_an_operator_closes_a_breaker_and_workers_go_on_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, service = MemoryQueue(clock=clock), Service()
        await queue.put([NewJob("shaky") for _ in range(6)])
        assert not await queue.breakers.close("shaky")
        async with working(service.worker(queue), options(concurrency=1)):
            await until(lambda: bool(service.seen.of(BreakerChanged)))
            await clock.advance(5)
            service.up = True
            assert await queue.breakers.close("shaky")
            await clock.advance(15)
            assert len(service.seen.of(JobDone)) == 6
        states = [each.state for each in service.seen.of(BreakerChanged)]
        assert states == ["open", "closed"]

    virtually(main)


class Counted(MemoryQueue):
    """Counts the calls about notes of breakers."""

    calls = 0

    async def _read_notes(self, topics: Any) -> Any:
        self.calls += "breakers" in topics
        return await super()._read_notes(topics)

    async def _swap_schedule(self, swap: Any) -> Any:
        self.calls += 1
        return await super()._swap_schedule(swap)


def test_a_closed_breaker_costs_one_read_at_the_start() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, service = Counted(clock=clock), Service()
        service.up = True
        async with working(service.worker(queue), options(concurrency=1)):
            for _ in range(50):
                await queue.put(NewJob("shaky"))
                await clock.advance(30)
            assert len(service.seen.of(JobDone)) == 50
            assert queue.calls == 1
        plain = Worker(queue, name="plain")
        plain.handle("plain")(lambda job: None)
        async with working(plain, options()):
            await queue.put(NewJob("plain"))
            await clock.advance(60)
        assert queue.calls == 1

    virtually(main)


def test_a_trial_that_is_given_back_leaves_the_trial_to_others() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, service = MemoryQueue(clock=clock), Service()
        await queue.put([NewJob("shaky") for _ in range(5)])
        async with working(service.worker(queue, "a"), options(concurrency=1, grace=0)):
            await until(lambda: bool(service.seen.of(BreakerChanged)))
            service.takes = 1000.0
            await clock.advance(70)
            [shared] = await queue.breakers.list()
            assert shared.trial_by == "a"
        [shared] = await queue.breakers.list()
        assert (shared.trial_by, shared.trial_until) == ("", 0.0)
        service.takes, service.up = 0.1, True
        async with working(service.worker(queue, "b"), options(concurrency=1)):
            await clock.advance(10)
            assert len(service.seen.of(JobDone)) == 5

    virtually(main)
