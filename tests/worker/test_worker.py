"""A worker at work, on every store that runs in a process."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pollwise.core.retry import Retry
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.fixed import Fixed
from pollwise.queues.base import Queue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import (
    JobDead,
    JobDone,
    JobRetried,
    JobStarted,
    PollFinished,
    WorkerStarted,
)
from pollwise.runtime.jobs import Job, NewJob
from pollwise.worker import Worker
from tests.support.kit import (
    Seen,
    make_queue,
    options,
    until,
    until_empty,
    virtually,
    working,
)

pytestmark = pytest.mark.parametrize("store", ["memory", "sqlite"])


class Bench:
    """A queue, a worker on it, and what it told."""

    def __init__(self, store: str, folder: Path, clock: VirtualClock, **queue: Any) -> None:
        self.clock = clock
        self.seen = Seen()
        self.queue: Queue = make_queue(store, folder, clock, **queue)
        self.worker = Worker(self.queue, name="w", events=self.seen.events)

    async def work_off(self, **chosen: Any) -> None:
        """Run until nothing is left to run."""
        async with self.queue, working(self.worker, options(**chosen)):
            await until_empty(self.queue)


def test_handlers_may_be_async_or_plain(store: str, tmp_path: Path) -> None:
    ran: list[tuple[str, Any, bool]] = []
    main_thread = threading.current_thread()

    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock)

        @bench.worker.handle("async")
        async def a(job: Job) -> None:
            ran.append((job.kind, job.payload, threading.current_thread() is main_thread))

        @bench.worker.handle("plain")
        def b(job: Job) -> None:
            ran.append((job.kind, job.payload, threading.current_thread() is main_thread))

        await bench.queue.put([NewJob("async", {"n": 1}), NewJob("plain", [2])])
        await bench.work_off()
        assert len(bench.seen.of(JobDone)) == 2

    virtually(main)
    assert sorted(ran) == [("async", {"n": 1}, True), ("plain", [2], False)]


def test_an_async_function_behind_a_plain_one_is_run_all_the_same(
    store: str, tmp_path: Path
) -> None:
    ran: list[str] = []

    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock)

        async def real(job: Job) -> None:
            await asyncio.sleep(1)
            ran.append(job.id)

        bench.worker.handle("x")(lambda job: real(job))
        await bench.queue.put(NewJob("x"))
        await bench.work_off()

    virtually(main)
    assert len(ran) == 1


@pytest.mark.parametrize(("concurrency", "prefetch"), [(1, 0), (3, 0), (4, 2), (4, None), (2, 9)])
def test_concurrency_is_reached_and_never_exceeded_and_what_is_held_is_bounded(
    store: str, tmp_path: Path, concurrency: int, prefetch: int | None
) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock)
        running = most = held = 0

        @bench.worker.handle("x")
        async def handler(job: Job) -> None:
            nonlocal running, most, held
            running += 1
            most = max(most, running)
            held = max(held, (await bench.queue.stats()).leased)
            await asyncio.sleep(1)
            running -= 1

        await bench.queue.put([NewJob("x") for _ in range(40)])
        await bench.work_off(concurrency=concurrency, prefetch=prefetch)
        assert most == concurrency
        ahead = 0 if prefetch is None else prefetch  # none, for jobs of a second
        # Those whose settlement is on its way are still leased; they ran already.
        assert held <= concurrency + ahead + concurrency
        assert len(bench.seen.of(JobDone)) == 40

    virtually(main)


def test_no_more_is_claimed_than_concurrency_and_prefetch(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock)
        gate = asyncio.Event()

        @bench.worker.handle("x")
        async def handler(job: Job) -> None:
            await gate.wait()

        await bench.queue.put([NewJob("x") for _ in range(100)])
        async with bench.queue:
            async with working(bench.worker, options(concurrency=5, prefetch=3)):
                await clock.advance(600)
                assert (await bench.queue.stats()).leased == 8
                gate.set()
                await until_empty(bench.queue)

    virtually(main)


def test_a_worker_that_becomes_slow_claims_less_ahead_and_misses_no_hint(
    store: str, tmp_path: Path
) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock)
        began: dict[Any, float] = {}

        @bench.worker.handle("x")
        async def handler(job: Job) -> None:
            began[job.payload] = clock.now()
            await asyncio.sleep(job.payload)

        async with bench.queue:
            async with working(
                bench.worker, options(concurrency=2, polling=Fixed("1h"), drain=True)
            ):
                await bench.queue.put([NewJob("x", 0.01) for _ in range(200)])
                await until_empty(bench.queue)
                start = clock.now()
                for long in (50, 200, 300):  # the third is claimed ahead, for jobs were short
                    await bench.queue.put(NewJob("x", long))
                    await clock.advance(1)
                assert (await bench.queue.stats()).leased == 3
                await clock.advance(100)
                await bench.queue.put(NewJob("x", 1))
                await clock.advance(1)
                assert (await bench.queue.stats()).leased == 2
                await until_empty(bench.queue)
                assert began[1] - start == pytest.approx(201, abs=0.1)

    virtually(main)


def test_leases_are_renewed_while_a_handler_runs_ten_times_as_long(
    store: str, tmp_path: Path
) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock)
        other = Worker(bench.queue, name="other", events=bench.seen.events)
        runs: list[str] = []

        async def handler(job: Job) -> None:
            runs.append(job.id)
            await asyncio.sleep(100)

        bench.worker.handle("x")(handler)
        other.handle("x")(handler)
        ids = await bench.queue.put([NewJob("x") for _ in range(4)])
        chosen = options(lease="10s", concurrency=1, prefetch=1)
        async with bench.queue:
            async with working(bench.worker, chosen), working(other, chosen):
                await until_empty(bench.queue)
        assert sorted(runs) == sorted(ids)  # those claimed ahead were renewed as well
        assert {e.attempt for e in bench.seen.of(JobStarted)} == {1}

    virtually(main)


def test_a_failing_job_is_retried_by_its_handlers_policy_then_dead_with_its_error(
    store: str, tmp_path: Path
) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock)
        began: list[tuple[int, float]] = []

        @bench.worker.handle("x", retry=Retry.exponential("10s", "25s", attempts=4, jitter=0))
        async def handler(job: Job) -> None:
            began.append((job.attempt, clock.now()))
            raise ValueError(f"attempt {job.attempt}")

        [job_id] = await bench.queue.put(NewJob("x"))
        async with bench.queue:
            async with working(bench.worker, options()):
                await until_empty(bench.queue)
            [info] = await bench.queue.jobs("dead")
        assert info.job.id == job_id
        assert info.error == "ValueError: attempt 4"
        assert [attempt for attempt, _ in began] == [1, 2, 3, 4]
        waits = [b - a for (_, a), (_, b) in pairwise(began)]
        assert waits == pytest.approx([10, 20, 25], abs=0.01)  # the hint rings when it is due
        retried = bench.seen.of(JobRetried)
        assert [(e.attempt, e.delay) for e in retried] == [(1, 10.0), (2, 20.0), (3, 25.0)]
        [dead] = bench.seen.of(JobDead)
        assert (dead.attempt, dead.error) == (4, "ValueError: attempt 4")

    virtually(main)


def test_unknown_kinds_are_left_for_another_worker(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock)
        ran: list[str] = []

        @bench.worker.handle("mine")
        async def mine(job: Job) -> None:
            ran.append(job.kind)

        await bench.queue.put([NewJob("yours", priority=9), NewJob("mine"), NewJob("yours")])
        async with bench.queue:
            async with working(bench.worker, options()):
                await clock.advance(60)
                stats = await bench.queue.stats()
                assert (stats.ready, stats.leased) == (2, 0)
                assert ran == ["mine"]
                other = Worker(bench.queue, name="o", events=bench.seen.events)
                other.handle("yours")(lambda job: ran.append(job.kind))
                async with working(other, options()):
                    await until_empty(bench.queue)
        assert ran == ["mine", "yours", "yours"]
        assert {e.attempt for e in bench.seen.of(JobStarted)} == {1}

    virtually(main)


def test_jobs_of_one_key_run_one_at_a_time_in_order(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock)
        order: dict[str, list[int]] = {"a": [], "b": []}
        running: set[str] = set()
        failed: set[int] = set()

        @bench.worker.handle("x", retry=Retry.fixed("3s", attempts=3))
        async def handler(job: Job) -> None:
            assert job.key is not None
            assert job.key not in running
            running.add(job.key)
            await asyncio.sleep(0.1 * (job.payload % 3))
            running.remove(job.key)
            if job.payload % 4 == 3 and job.payload not in failed:
                failed.add(job.payload)
                raise OSError("once")
            order[job.key].append(job.payload)

        await bench.queue.put([NewJob("x", n, key="ab"[n % 2]) for n in range(24)])
        await bench.work_off(concurrency=8)
        assert order == {"a": list(range(0, 24, 2)), "b": list(range(1, 24, 2))}

    virtually(main)


@pytest.mark.parametrize("strategy", [Adaptive(), Adaptive("1s", "10m"), Fixed("1h")], ids=repr)
def test_a_delayed_job_starts_at_its_time_and_not_a_max_interval_later(
    store: str, tmp_path: Path, strategy: Any
) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock)
        late: list[float] = []

        @bench.worker.handle("x")
        async def handler(job: Job) -> None:
            late.append(clock.epoch() - job.run_at)

        async with bench.queue:
            async with working(bench.worker, options(polling=strategy)):
                await clock.advance(4000)
                await bench.queue.put([NewJob("x", delay=n) for n in (7, 33.3, 3, 600, 250)])
                await until_empty(bench.queue)
        assert len(late) == 5
        assert all(0 <= lateness < 0.01 for lateness in late)
        # It is not polled for: a hint rings when the time has come.
        assert bench.worker.state() == {}
        polls = bench.seen.of(PollFinished)
        assert sum(e.hinted for e in polls) >= 5

    virtually(main)


def test_an_idle_worker_makes_no_call_but_its_claims(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock, keep=None)
        bench.worker.handle("x")(print)
        queue: Any = bench.queue
        async with bench.queue:
            async with working(bench.worker, options()):
                await clock.advance(3600)
                polls = bench.worker.state()["polls"]
                calls = dict(queue.calls)
        assert calls == {"claim": polls}
        assert polls == pytest.approx(3600 / 4.75, rel=0.05)

    virtually(main)


def test_leases_are_renewed_only_while_something_is_held(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock)
        queue: Any = bench.queue

        @bench.worker.handle("x")
        async def handler(job: Job) -> None:
            await asyncio.sleep(100)

        async with bench.queue:
            async with working(bench.worker, options(lease="30s")):
                await bench.queue.put(NewJob("x"))
                await until_empty(bench.queue)
                renewed = queue.calls["renew"]
                assert renewed in (9, 10)
                await clock.advance(3600)
                assert queue.calls["renew"] == renewed

    virtually(main)


def test_finished_jobs_are_pruned_on_the_way(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock, keep="10m")
        queue: Any = bench.queue
        bench.worker.handle("x")(lambda job: None)
        async with bench.queue:
            async with working(bench.worker, options()):
                await bench.queue.put([NewJob("x") for _ in range(5)])
                await clock.advance(300)
                assert (await bench.queue.stats()).done == 5
                await clock.advance(600)
                assert (await bench.queue.stats()).done == 0
                polls = bench.worker.state()["polls"]
                assert queue.calls["prune"] <= 900 / 60 + 2
                assert queue.calls["claim"] == polls

    virtually(main)


def test_a_busy_worker_prunes_as_well(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock, keep="1m")

        @bench.worker.handle("x")
        async def handler(job: Job) -> None:
            await asyncio.sleep(1)
            await bench.queue.put(NewJob("x"))  # there is always something to find

        async with bench.queue:
            async with working(bench.worker, options(concurrency=2, polling=Fixed("2s"))):
                await bench.queue.put([NewJob("x") for _ in range(2)])
                await clock.advance(600)
                # Two a second, kept for a minute, and deleted once a minute while they are few.
                assert (await bench.queue.stats()).done < 2 * (60 + 60) + 10

    virtually(main)


def test_a_worker_tells_that_it_started(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock)
        bench.worker.handle("b")(print)
        bench.worker.handle("a")(print)
        await bench.work_off(concurrency=3)
        assert bench.worker.kinds == ("b", "a")
        assert bench.seen[0] == WorkerStarted("default", "w", ("b", "a"), 3, repr(Adaptive()))

    virtually(main)


def test_a_job_is_picked_up_within_min_interval_without_hints(store: str, tmp_path: Path) -> None:
    """While jobs come: an empty poll after the last one doubles the pause."""

    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock)
        waited: list[float] = []
        bench.worker.handle("x")(lambda job: waited.append(clock.epoch() - job.created_at))
        pace = Adaptive("100ms", "5s")
        async with bench.queue:
            async with working(bench.worker, options(polling=pace, hints=False)):
                await bench.queue.put(NewJob("x"))
                await clock.advance(20)
                for offset in (0.0, 0.03, 0.06, 0.09):  # into the pause after the last one
                    await bench.queue.put(NewJob("x"))
                    await clock.advance(6)
                    ran = len(waited)
                    await bench.queue.put(NewJob("x"))
                    while len(waited) == ran:
                        await clock.advance(0.001)
                    await clock.advance(offset)
                    await bench.queue.put(NewJob("x"))
                    while len(waited) == ran + 1:
                        await clock.advance(0.001)
                    assert waited[-1] <= pace.min_interval * 1.1 + 0.002

    virtually(main)


def test_hints_can_be_switched_off(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        bench = Bench(store, tmp_path, clock)
        bench.worker.handle("x")(lambda job: None)
        async with bench.queue:
            async with working(bench.worker, options(polling=Fixed("10m"), hints=False)):
                await clock.advance(700)
                await bench.queue.put(NewJob("x"))
                await clock.advance(60)
                assert not bench.seen.of(JobDone)
                await clock.advance(600)
                assert len(bench.seen.of(JobDone)) == 1

    virtually(main)


def test_a_put_wakes_one_of_many_workers(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        queue: Any = make_queue(store, tmp_path, clock)
        workers = [Worker(queue, name=f"w{n}", events=Seen().events) for n in range(10)]
        ran: list[float] = []

        async def handler(job: Job) -> None:
            ran.append(clock.now())

        for worker in workers:
            worker.handle("x")(handler)
        async with queue:
            tasks = [
                asyncio.ensure_future(w.run(options(polling=Fixed("1h"), seed=n)))
                for n, w in enumerate(workers)
            ]
            await clock.advance(4000)
            before = queue.calls["claim"]
            put_at = clock.now()
            await queue.put(NewJob("x"))
            await until(lambda: bool(ran))
            assert ran == [pytest.approx(put_at, abs=0.01)]
            assert queue.calls["claim"] == before + 1
            for worker in workers:
                worker.stop()
            await asyncio.gather(*tasks)

    virtually(main)


def test_the_queue_may_be_given_as_a_url(store: str, tmp_path: Path) -> None:
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/jobs.db?watch=0"

    async def main(clock: VirtualClock) -> None:
        seen = Seen()
        worker = Worker(url, clock=clock, events=seen.events)
        worker.handle("x")(lambda job: None)
        if store == "sqlite":
            async with make_queue("sqlite", tmp_path, clock) as queue:
                await queue.put(NewJob("x"))
        for _ in range(2):  # and it may run again
            async with working(worker, options()):
                await clock.advance(10)
        assert len(seen.of(JobDone)) == (store == "sqlite")

    virtually(main)
