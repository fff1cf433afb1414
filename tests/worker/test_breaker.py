"""A breaker stops its kind from being claimed while its handler keeps failing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import Reject, Snooze
from pollwise.queues.base import Queue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import (
    BreakerChanged,
    JobDead,
    JobDone,
    JobGivenBack,
    JobStarted,
    PollFinished,
)
from pollwise.runtime.jobs import Job, NewJob
from pollwise.worker import Worker
from tests.support.kit import (
    CountedMemory,
    Seen,
    make_queue,
    options,
    until,
    until_empty,
    virtually,
    working,
)

BREAKER = Breaker(failures=3, delay="60s", max_delay="10m")
RETRY = Retry.fixed("1s", attempts=5)


class Bench:
    """A kind `shaky` whose downstream can be up or down, and a kind `steady`."""

    def __init__(
        self, clock: VirtualClock, queue: Queue | None = None, breaker: Breaker = BREAKER
    ) -> None:
        self.clock = clock
        self.seen = Seen()
        self.queue = queue or CountedMemory(clock=clock)
        self.worker = Worker(self.queue, name="w", events=self.seen.events)
        self.up = False
        self.takes = 0.1
        self.runs: list[float] = []
        self.worker.handle("shaky", retry=RETRY, breaker=breaker)(self.shaky)
        self.worker.handle("steady")(self.steady)

    async def shaky(self, job: Job) -> None:
        self.runs.append(self.clock.now())
        await asyncio.sleep(self.takes)
        if not self.up:
            raise OSError("downstream is down")

    async def steady(self, job: Job) -> None: ...

    def changes(self) -> list[str]:
        return [event.state for event in self.seen.of(BreakerChanged)]

    async def opened(self) -> None:
        await until(lambda: bool(self.changes()))


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_an_open_breaker_spares_the_attempts_and_lets_other_kinds_flow(
    store: str, tmp_path: Path
) -> None:
    async def main(clock: VirtualClock) -> None:
        async with make_queue(store, tmp_path, clock) as queue:
            bench = Bench(clock, queue)
            await queue.put([NewJob("shaky") for _ in range(40)])
            async with working(bench.worker, options(concurrency=2)):
                await bench.opened()
                assert bench.changes() == ["open"]
                ran = len(bench.runs)
                assert ran <= 3 + 2  # those that were running when it opened
                await queue.put([NewJob("steady") for _ in range(20)])
                await clock.advance(50)
                assert len([e for e in bench.seen.of(JobDone) if e.kind == "steady"]) == 20
                assert len(bench.runs) == ran
                # What was claimed ahead went back, and counts for nothing.
                back = bench.seen.of(JobGivenBack)
                assert back
                assert {e.reason for e in back} == {"the breaker of its kind is open"}
                stats = await queue.stats()
                assert (stats.ready, stats.leased, stats.dead) == (40, 0, 0)
                attempts = [info.job.attempt for info in await queue.jobs(limit=100)]
                assert sum(attempts) == ran
                # For hours on end: one trial at a time, ever less often.
                await clock.advance(3 * 3600)
                assert bench.changes()[1:5] == ["half-open", "open", "half-open", "open"]
                assert len(bench.runs) - ran <= 6 + 3 * 3600 / 600
                gaps = [
                    b - a for a, b in zip(bench.runs[ran:], bench.runs[ran + 1 :], strict=False)
                ]
                assert gaps[:3] == pytest.approx([120, 240, 480], rel=0.02)
                attempts = [info.job.attempt for info in await queue.jobs(limit=100)]
                assert sum(attempts) == ran  # trials are not attempts of their jobs
                bench.up = True
                await until_empty(queue)
                assert bench.changes()[-2:] == ["half-open", "closed"]
            done = [e for e in bench.seen.of(JobDone) if e.kind == "shaky"]
            assert len(done) == 40
            assert not bench.seen.of(JobDead)

    virtually(main)


def test_one_trial_at_a_time_and_the_kind_flows_again_when_it_succeeds() -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(clock)
        await bench.queue.put([NewJob("shaky") for _ in range(20)])
        async with working(bench.worker, options(concurrency=4)):
            await bench.opened()
            opened, ran = clock.now(), len(bench.runs)
            bench.up, bench.takes = True, 30.0
            await clock.advance(80)
            [trial] = bench.runs[ran:]
            assert trial == pytest.approx(opened + 60, abs=0.2)
            assert bench.changes() == ["open", "half-open"]
            bench.takes = 0.1
            await clock.advance(12)
            assert bench.changes() == ["open", "half-open", "closed"]
            # It does not wait for the next poll of an idle worker: what was held back is news.
            assert len(bench.runs) == ran + 20
            await until_empty(bench.queue)

    virtually(main)


@pytest.mark.parametrize("polling", [Adaptive("1s", "10m"), Fixed("20m")], ids=repr)
@pytest.mark.parametrize("hints", [True, False], ids=["hints", "no hints"])
def test_the_trial_comes_when_it_is_due_though_the_worker_polls_seldom(
    polling: Any, hints: bool
) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(clock)
        other = Worker(bench.queue, name="other", events=Seen().events)
        other.handle("other")(bench.steady)
        await bench.queue.put([NewJob("shaky") for _ in range(20)])
        chosen = options(concurrency=4, polling=polling, hints=hints)
        async with working(other, options(polling=Fixed("1d"))), working(bench.worker, chosen):
            await bench.opened()
            opened, ran = clock.now(), len(bench.runs)
            await clock.advance(1300)
            trials = bench.runs[ran:]
            assert trials[0] == pytest.approx(opened + 60, abs=1)

    virtually(main)


def test_a_claim_that_was_under_way_when_it_opened_is_given_back() -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(clock)
        queue: Any = bench.queue
        bench.takes = 2.0
        await queue.put([NewJob("shaky") for _ in range(3)])
        async with working(bench.worker, options(concurrency=8, polling=Fixed("100ms"))):
            await until(lambda: len(bench.runs) == 3)
            queue.slow = 5.0  # the next claim sees the breaker closed, and comes back too late
            await clock.advance(0.5)
            await queue.put([NewJob("shaky") for _ in range(10)])
            await bench.opened()
            await clock.advance(10)
            assert len(bench.runs) == 3
            assert [e.attempt for e in bench.seen.of(JobGivenBack)] == [1] * 5
            queue.slow = 0.0

    virtually(main)


def test_trials_keep_to_the_places_there_are() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = CountedMemory(clock=clock), Seen()
        worker = Worker(queue, events=seen.events)
        running = most = 0
        down = True

        async def handler(job: Job) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                await asyncio.sleep(0.1 if down else 50)
            finally:
                running -= 1
            if down:
                raise OSError

        kinds = [f"k{n}" for n in range(6)]
        for kind in kinds:
            worker.handle(kind, retry=RETRY, breaker=Breaker(1, "60s"))(handler)
        await queue.put([NewJob(kind) for kind in kinds for _ in range(3)])
        async with working(worker, options(concurrency=2, prefetch=0)):
            await until(lambda: len(seen.of(BreakerChanged)) == 6)
            down = False
            held = 0
            for _ in range(100):
                await clock.advance(1)
                held = max(held, (await queue.stats()).leased)
            assert held == 2
            assert most == 2
            await until_empty(queue)

    virtually(main)


@pytest.mark.parametrize("late", ["succeeds", "snoozes", "rejects"])
def test_a_late_report_of_work_begun_before_does_not_end_the_trial(late: str) -> None:
    """A job that began before the circuit opened says nothing of the present."""

    async def main(clock: VirtualClock) -> None:
        queue, seen = CountedMemory(clock=clock), Seen()
        worker = Worker(queue, events=seen.events)
        runs: list[float] = []

        @worker.handle("x", retry=RETRY, breaker=BREAKER)
        async def handler(job: Job) -> None:
            if job.payload == "old":
                await asyncio.sleep(70)
                if late == "snoozes":
                    raise Snooze("1h")
                if late == "rejects":
                    raise Reject
                return
            runs.append(clock.now())
            await asyncio.sleep(0.1 if len(runs) <= 3 else 100)
            raise OSError

        await queue.put([NewJob("x", "old"), *(NewJob("x") for _ in range(10))])
        async with working(worker, options(concurrency=4)):
            await until(lambda: bool(seen.of(BreakerChanged)))
            ran = len(runs)
            await clock.advance(100)  # the trial began at 60, the old one ended at 70
            assert len(runs) == ran + 1
            assert [e.state for e in seen.of(BreakerChanged)] == ["open", "half-open"]
            await clock.advance(70)
            assert [e.state for e in seen.of(BreakerChanged)] == ["open", "half-open", "open"]
            worker.stop()
            worker.stop()

    virtually(main)


def test_an_inconclusive_trial_is_followed_by_another() -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(clock)
        snoozes = 0

        @bench.worker.handle("snoozing", retry=RETRY, breaker=Breaker(1, "60s"))
        async def handler(job: Job) -> None:
            nonlocal snoozes
            if job.payload == "fails":
                raise OSError
            snoozes += 1
            if snoozes <= 3:
                raise Snooze("1h")

        await bench.queue.put(NewJob("snoozing", "fails", priority=9))
        async with working(bench.worker, options()):
            await bench.opened()
            await bench.queue.put([NewJob("snoozing", priority=10) for _ in range(4)])
            await clock.advance(75)
            assert snoozes == 4
            assert bench.changes()[:3] == ["open", "half-open", "closed"]

    virtually(main)


def test_a_trial_that_had_used_up_its_attempts_makes_way_for_another() -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(clock, breaker=Breaker(1, "60s", max_delay="1h"))
        await bench.queue.put(NewJob("shaky", priority=9))
        for lease in (1, 1, 1, 1, 30):  # five workers died over it, the last one just now
            await bench.queue.claim("victim", 1, lease)
            await clock.advance(1.5)
        await bench.queue.put(NewJob("shaky"))
        async with working(bench.worker, options()):
            await bench.opened()
            bench.up = True
            await clock.advance(61)  # the first trial is the one that kills
            assert bench.changes() == ["open", "half-open", "closed"]
            await until_empty(bench.queue)
        assert len(bench.seen.of(JobDead)) == 1

    virtually(main)


def test_failures_that_are_not_the_downstreams_open_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = CountedMemory(clock=clock), Seen()
        worker = Worker(queue, events=seen.events)

        @worker.handle("x", retry=Retry.fixed("1s", exclude=KeyError), breaker=BREAKER)
        async def handler(job: Job) -> None:
            raise Reject if job.payload % 2 else KeyError("not its downstream")

        await queue.put([NewJob("x", n) for n in range(20)])
        async with working(worker, options()):
            await until_empty(queue)
        assert not seen.of(BreakerChanged)
        assert len(seen.of(JobDead)) == 20

    virtually(main)


def test_without_a_breaker_nothing_is_held_back() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = CountedMemory(clock=clock), Seen()
        worker = Worker(queue, events=seen.events)

        @worker.handle("x", retry=Retry.fixed("1s", attempts=3))
        async def handler(job: Job) -> None:
            raise OSError

        await queue.put([NewJob("x") for _ in range(20)])
        async with working(worker, options()):
            await until_empty(queue)
        assert len(seen.of(JobStarted)) == 60
        assert not seen.of(BreakerChanged, JobGivenBack)

    virtually(main)


def test_polls_while_everything_is_open_ask_nothing_of_the_store() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = CountedMemory(clock=clock), Seen()
        worker = Worker(queue, events=seen.events)

        @worker.handle("x", retry=RETRY, breaker=Breaker(1, "1h", "1h"))
        async def handler(job: Job) -> None:
            raise OSError

        await queue.put([NewJob("x") for _ in range(20)])
        async with working(worker, options(concurrency=1)):
            await until(lambda: bool(seen.of(BreakerChanged)))
            await clock.advance(5)
            calls, polls = queue.calls["claim"], len(seen.of(PollFinished))
            await clock.advance(600)
            assert queue.calls["claim"] == calls
            assert len(seen.of(PollFinished)) > polls

    virtually(main)
