"""A worker on a store that cannot pick kinds, and on one whose every call is billed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, ClassVar

from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import JobDead, JobDone, JobGivenBack, JobLost, JobUnhandled
from pollwise.runtime.jobs import Job, NewJob
from pollwise.worker import Worker
from tests.support.kit import CountedMemory, Seen, options, until, until_empty, virtually, working


class Kindless(CountedMemory):
    """Gives any job to anybody, as SQS does."""

    capabilities: ClassVar[Capabilities] = replace(MemoryQueue.capabilities, kinds=False)
    foreign_kind: ClassVar[str | None] = "raw"


class Billed(CountedMemory):
    gather: ClassVar[float] = 0.1
    gather_up_to: ClassVar[int] = 10


async def _nothing(job: Job) -> None:
    pass


def test_what_has_no_handler_goes_back_for_others() -> None:
    async def main(clock: VirtualClock) -> None:
        seen = Seen()
        queue = Kindless(clock=clock)
        worker = Worker(queue, events=seen.events)
        worker.handle("ours")(_nothing)
        await queue.put([NewJob("theirs", 1), NewJob("ours", 2)])
        async with working(worker, options()):
            await until(lambda: len(seen.of(JobUnhandled)) == 4)
            assert [event.kind for event in seen.of(JobDone)] == ["ours"]
            # Later each time: somebody else may have the handler.
            polls = queue.calls["claim"]
            assert [event.delay for event in seen.of(JobUnhandled)] == [1.0] * 4
            assert polls < 60
        [theirs] = await queue.jobs()
        assert (theirs.job.kind, theirs.state) == ("theirs", "delayed")

    virtually(main)


def test_a_counting_store_is_asked_less_and_less() -> None:
    class Counting(Kindless):
        capabilities: ClassVar[Capabilities] = replace(
            MemoryQueue.capabilities, kinds=False, uncounted=False
        )

        async def _settle(self, settlements: list[Any]) -> list[str]:
            return await super()._settle([replace(s, action="retry") for s in settlements])

    async def main(clock: VirtualClock) -> None:
        seen = Seen()
        queue = Counting(clock=clock)
        worker = Worker(queue, events=seen.events)
        worker.handle("ours", retry=Retry.fixed("1s", attempts=2))(_nothing)
        await queue.put(NewJob("theirs"))
        async with working(worker, options()):
            await until(lambda: len(seen.of(JobUnhandled)) == 8)
        assert [e.delay for e in seen.of(JobUnhandled)] == [1, 2, 4, 8, 16, 32, 60, 60]

    virtually(main)


def test_what_is_no_job_at_all_is_a_dead_letter() -> None:
    async def main(clock: VirtualClock) -> None:
        seen = Seen()
        queue = Kindless(clock=clock)
        worker = Worker(queue, events=seen.events)
        worker.handle("ours")(_nothing)
        await queue.put([NewJob("raw", {"body": "<xml/>"}), NewJob("ours")])
        async with working(worker, options()):
            await until(lambda: bool(seen.of(JobDead) and seen.of(JobDone)))
        [dead] = await queue.jobs("dead")
        assert dead.job.payload == {"body": "<xml/>"}
        assert "'raw'" in (dead.error or "")

    virtually(main)


def test_a_handler_may_take_what_is_no_job() -> None:
    async def main(clock: VirtualClock) -> None:
        got: list[Any] = []
        queue = Kindless(clock=clock)
        worker = Worker(queue)

        @worker.handle("raw")
        async def take(job: Job) -> None:
            got.append(job.payload)

        await queue.put(NewJob("raw", {"body": "<xml/>"}))
        async with queue, working(worker, options()):
            await until_empty(queue)
        assert got == [{"body": "<xml/>"}]

    virtually(main)


def test_an_open_breaker_puts_its_kind_off_and_tries_one() -> None:
    async def main(clock: VirtualClock) -> None:
        seen = Seen()
        queue = Kindless(clock=clock)
        worker = Worker(queue, events=seen.events)
        runs: list[float] = []
        broken = True

        @worker.handle(
            "weak",
            breaker=Breaker(failures=2, delay="30s"),
            retry=Retry.fixed("1s", attempts=50),
        )
        async def weak(job: Job) -> None:
            runs.append(clock.now())
            if broken:
                raise RuntimeError("down")

        worker.handle("fine")(_nothing)
        await queue.put([NewJob("weak", n) for n in range(20)])
        async with working(worker, options(concurrency=1)):
            await until(lambda: len(runs) == 4)
            given_back = len(seen.of(JobGivenBack))
            await queue.put(NewJob("fine"))
            await until(lambda: bool(seen.of(JobDone)))
            assert seen.of(JobDone)[0].kind == "fine"  # the other kind goes on meanwhile
            broken = False
            await until(lambda: len(seen.of(JobDone)) == 21)
        # Two runs opened it, one trial failed after the cooldown, the next one came after another.
        assert runs[1] - runs[0] < 5
        assert runs[2] - runs[1] >= 30
        assert given_back < 200, f"{given_back} give-backs: they go round too fast"

    virtually(main)


def test_settlements_are_gathered_where_each_call_is_billed() -> None:
    async def main(clock: VirtualClock, kind: type[CountedMemory]) -> int:
        queue = kind(clock=clock)
        worker = Worker(queue)

        @worker.handle("job")
        async def work(job: Job) -> None:
            await asyncio.sleep(job.payload * 0.013)

        await queue.put([NewJob("job", n) for n in range(40)])
        async with queue, working(worker, options(concurrency=40, prefetch=0)):
            await until_empty(queue)
        return queue.calls["settle"]

    plain = virtually(lambda clock: main(clock, CountedMemory))
    billed = virtually(lambda clock: main(clock, Billed))
    assert plain >= 30
    assert billed <= 8


def test_gathering_does_not_delay_what_others_wait_for() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = Billed(clock=clock)
        worker = Worker(queue)
        ends: list[float] = []

        @worker.handle("job")
        async def work(job: Job) -> None:
            ends.append(clock.now())

        await queue.put([NewJob("job", n, key="one at a time") for n in range(5)])
        async with queue, working(worker, options()):
            await until_empty(queue)
        assert ends[-1] - ends[0] < 0.05

    virtually(main)


def test_a_stop_does_not_wait_for_more() -> None:
    async def main(clock: VirtualClock) -> None:
        class Slowly(Billed):
            gather: ClassVar[float] = 1000.0

        queue, seen = Slowly(clock=clock), Seen()
        worker = Worker(queue, events=seen.events)
        worker.handle("job")(_nothing)
        await queue.put(NewJob("job"))
        async with working(worker, options()):
            await until(lambda: bool(seen.of(JobDone)))
            began = clock.now()
        assert clock.now() - began < 1
        assert await queue.jobs() == []

    virtually(main)


def test_handlers_that_slow_down_do_not_end_the_claiming() -> None:
    """What is claimed ahead shrinks as they do, and no claim waits for room that never comes."""

    async def main(clock: VirtualClock) -> None:
        queue = CountedMemory(clock=clock)
        worker = Worker(queue)
        ran: list[int] = []

        @worker.handle("job")
        async def work(job: Job) -> None:
            await asyncio.sleep(0.001 if job.payload < 500 else 5.0)
            ran.append(job.payload)

        await queue.put([NewJob("job", n) for n in range(1200)])
        async with queue, working(worker, options(lease="1h")):
            await until(lambda: len(ran) == 1200, within=3600)

    virtually(main)


def test_gathering_is_shorter_than_a_short_lease() -> None:
    """What waits for others to be settled with it must not run again meanwhile."""

    async def main(clock: VirtualClock) -> None:
        class Slowly(Billed):
            gather: ClassVar[float] = 2.0

        queue, seen = Slowly(clock=clock), Seen()
        worker = Worker(queue, events=seen.events)

        @worker.handle("job")
        async def work(job: Job) -> None:
            await asyncio.sleep(0.3)

        await queue.put([NewJob("job", n) for n in range(3)])
        async with queue, working(worker, options(lease="1s")):
            await until_empty(queue)
        assert len(seen.of(JobDone)) == 3
        assert not seen.of(JobLost)

    virtually(main)
