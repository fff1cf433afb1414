"""Workers store a record of themselves, follow orders, and respect pauses."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from pollwise.core.breaker import Breaker
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import StoreUnavailable, Unsupported
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.presence import RUNNING_MAX, WorkerInfo
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import ChoreFailed, ConcurrencyChanged, PollFinished
from pollwise.runtime.jobs import Job, NewJob
from pollwise.runtime.rollups.rows import HistoryRow
from pollwise.worker import Worker
from tests.support.kit import Seen, make_queue, options, until, virtually, working

HOUR = 3600.0
stores = pytest.mark.parametrize("store", ["memory", "sqlite"])


class Gate:
    """A worker whose handlers wait for a gate to open, and what was at work at a time."""

    def __init__(self, queue: MemoryQueue | object, **given: object) -> None:
        self.seen = Seen()
        self.worker = Worker(queue, name="w", events=self.seen.events, **given)  # type: ignore[arg-type]
        self.open = asyncio.Event()
        self.busy = 0
        self.most = 0
        self.worker.handle("job")(self._handle)

    async def _handle(self, job: Job) -> None:
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            await self.open.wait()
        finally:
            self.busy -= 1


@stores
def test_a_worker_is_there_while_it_runs(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        queue = make_queue(store, tmp_path, clock)
        gate = Gate(queue)
        began = clock.epoch()
        await queue.put([NewJob("job", n) for n in range(3)])
        chosen = options(concurrency=2, prefetch=0, polling=Adaptive("1s", "5s"))
        async with queue:
            async with working(gate.worker, chosen):
                await until(lambda: gate.busy == 2)
                await clock.advance(70)
                [info] = await queue.workers()
            assert await queue.workers() == []
        assert (info.name, info.host, info.pid) == ("w", socket.gethostname(), os.getpid())
        assert info.kinds == ("job",)
        assert (info.concurrency, info.busy, info.waiting) == (2, 2, 0)
        assert [(each.id, each.kind) for each in info.running] == [("1", "job"), ("2", "job")]
        assert all(abs(each.since - began) < 2 for each in info.running)
        assert abs(info.started_at - began) < 1
        assert 60 <= info.seen_at - began <= 71
        assert info.strategy.startswith("Adaptive(")
        assert info.version
        assert not info.breakers

    virtually(main)


class Counting(MemoryQueue):
    """Counts the records that are written."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.told: list[tuple[float, WorkerInfo, float]] = []
        self.fails: Exception | None = None

    async def record_worker(
        self, info: WorkerInfo, ttl: float, history: Sequence[HistoryRow] = ()
    ) -> int | None:
        self.told.append((self.clock.now(), info, ttl))
        if self.fails is not None:
            raise self.fails
        return await super().record_worker(info, ttl, history)


@pytest.mark.parametrize("jobs", [0, 1, 5])
def test_records_are_written_at_most_once_a_minute(jobs: int) -> None:
    """Idle, with a free handler, or with all handlers busy; and never later than they count."""

    async def main(clock: VirtualClock) -> None:
        queue = Counting(clock)
        gate = Gate(queue)
        await queue.put([NewJob("job", n) for n in range(jobs)])
        async with working(gate.worker, options(concurrency=2, prefetch=0)):
            await clock.advance(HOUR)
            assert [each.name for each in await queue.workers()] == ["w"]
            gate.open.set()
            times = [at for at, _, _ in queue.told]
        gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
        assert min(gaps) >= 59.9
        assert max(gaps) <= 130
        assert {ttl for _, _, ttl in queue.told} == {180.0}

    virtually(main)


def test_an_idle_worker_does_not_wake_up_for_its_record() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = Counting(clock)
        gate = Gate(queue)
        async with working(gate.worker, options(polling=Fixed("10m"))):
            await clock.advance(HOUR)
        polls = len(gate.seen.of(PollFinished))
        assert 5 <= polls <= 8
        assert len(queue.told) == polls
        assert queue.told[0][2] == 1800.0, "three of its pauses"

    virtually(main)


def test_an_idle_worker_on_a_store_that_bills_writes_less_often() -> None:
    """And never later than its record counts, when it gets busy or idle again."""

    class Billed(Counting):
        idle_presence = 600.0

    async def main(clock: VirtualClock) -> None:
        queue = Billed(clock)
        gate = Gate(queue)
        gate.open.set()
        async with working(gate.worker, options(polling=Adaptive("1s", "10s"))):
            await clock.advance(HOUR)
            assert 6 <= len(queue.told) <= 7
            for pause in (1.0, 100.0, 700.0):
                for _ in range(10):
                    await queue.put(NewJob("job"))
                    await clock.advance(pause)
                    assert await queue.workers()
        ends = [at + ttl for at, _, ttl in queue.told]
        nexts = [at for at, _, _ in queue.told[1:]]
        assert all(later < end for later, end in zip(nexts, ends, strict=False))
        assert {ttl for _, _, ttl in queue.told} == {180.0, 1800.0}

    virtually(main)


@stores
def test_concurrency_is_raised_and_lowered_while_jobs_run(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        queue = make_queue(store, tmp_path, clock)
        gate = Gate(queue)
        await queue.put([NewJob("job", n) for n in range(20)])
        async with queue, working(gate.worker, options(concurrency=2, prefetch=0)):
            await until(lambda: gate.busy == 2)
            assert await queue.set_concurrency("w", 5) == 1
            await until(lambda: gate.busy == 5, within=5)
            assert await queue.set_concurrency("w", 1) == 1
            await until(lambda: len(gate.seen.of(ConcurrencyChanged)) == 2, within=5)
            assert gate.busy == 5, "what runs goes on"
            gate.most = 0
            gate.open.set()
            await until(lambda: gate.busy == 0)
            gate.open.clear()
            await queue.put([NewJob("job", n) for n in range(5)])
            await until(lambda: gate.busy == 1)
            await clock.advance(100)
            assert gate.most <= 5
            assert gate.busy == 1
            assert [each.concurrency for each in await queue.workers()] == [1]
            gate.open.set()
        changes = [(e.worker, e.before, e.after) for e in gate.seen.of(ConcurrencyChanged)]
        assert changes == [("w", 2, 5), ("w", 5, 1)]

    virtually(main)


def test_plain_handlers_get_more_threads() -> None:
    async def main() -> None:
        queue = MemoryQueue()
        seen = Seen()
        worker = Worker(queue, name="w", events=seen.events)
        together = threading.Barrier(4)
        ended: list[int] = []

        @worker.handle("job")
        def handle(job: Job) -> None:
            together.wait(240)  # passes only if four run at a time
            ended.append(job.payload)

        async with working(worker, options(concurrency=1, prefetch=0)):
            await until_true(queue.workers)
            await queue.set_concurrency("w", 4)
            await queue.put([NewJob("job", n) for n in range(4)])
            await until(lambda: len(ended) == 4, within=240)

    asyncio.run(main())


async def until_true(asked: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(240):
        while not await asked():
            await asyncio.sleep(0.01)


def test_an_order_ends_with_the_run() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        for _ in range(2):
            gate = Gate(queue)
            async with working(gate.worker, options(concurrency=3)):
                await clock.advance(10)
                [info] = await queue.workers()
                assert info.concurrency == 3
                await queue.set_concurrency("w", 7)
                await until(lambda: bool(gate.seen.of(ConcurrencyChanged)), within=5)  # noqa: B023

    virtually(main)


def test_a_failed_record_does_no_harm() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = Counting(clock)
        queue.fails = StoreUnavailable("down")
        gate = Gate(queue)
        gate.open.set()
        async with working(gate.worker, options()):
            await queue.put(NewJob("job"))
            await clock.advance(300)
            assert (await queue.stats()).ready == 0
        assert 3 <= len(gate.seen.of(ChoreFailed)) <= 6
        queue.told.clear()
        queue.fails = Unsupported("no")
        async with working(gate.worker, options()):
            await clock.advance(300)
        assert len(queue.told) == 1, "a store that cannot is not asked again"

    virtually(main)


def test_a_record_is_bounded() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        gate = Gate(queue)
        for n in range(200):
            gate.worker.handle(f"kind {n}")(gate._handle)
        await queue.put([NewJob("job", n) for n in range(50)])
        async with working(gate.worker, options(concurrency=50)):
            await until(lambda: gate.busy == 50)
            await clock.advance(130)
            [info] = await queue.workers()
            gate.open.set()
        assert (info.kinds, info.busy, len(info.running)) == (None, 50, RUNNING_MAX)

    virtually(main)


def test_open_breakers_are_shown() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        worker = Worker(queue, name="w")

        @worker.handle("bad", breaker=Breaker(failures=1, delay="1h", max_delay="1h"))
        async def bad(job: Job) -> None:
            raise RuntimeError

        await queue.put(NewJob("bad"))
        async with working(worker, options()):
            await clock.advance(130)
            [info] = await queue.workers()
        assert info.breakers == ("bad",)

    virtually(main)


# Pauses


@stores
def test_a_paused_kind_waits_and_starts_at_once(store: str, tmp_path: Path) -> None:
    """And the worker polls at its own pace meanwhile."""

    async def main(clock: VirtualClock) -> None:
        queue = make_queue(store, tmp_path, clock)
        gate = Gate(queue)
        gate.open.set()
        ran: list[object] = []

        @gate.worker.handle("other")
        async def other(job: Job) -> None:
            ran.append(job.payload)

        await queue.pause("job", by="ann")
        chosen = options(polling=Adaptive("1s", "10s"))
        async with queue, working(gate.worker, chosen):
            await queue.put([NewJob("job"), NewJob("job", delay=20), NewJob("other", 1)])
            await until(lambda: ran == [1])
            await clock.advance(HOUR / 6)
            assert gate.most == 0
            assert (await queue.stats()).ready == 2
            polls = len(gate.seen.of(PollFinished))
            assert polls <= HOUR / 6 / 10 + 30, "it polls at its pace"
            await queue.put(NewJob("other", 2))
            await until(lambda: ran == [1, 2], within=1)
            await queue.resume("job")
            await until(lambda: gate.most > 0, within=1)
            await clock.advance(20)
            assert (await queue.stats()).ready == 0

    virtually(main)


@stores
def test_running_jobs_end_during_a_pause(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        queue = make_queue(store, tmp_path, clock)
        gate = Gate(queue)
        await queue.put([NewJob("job", n) for n in range(3)])
        async with queue, working(gate.worker, options(concurrency=2, prefetch=0, lease="10s")):
            await until(lambda: gate.busy == 2)
            await queue.pause()
            await clock.advance(100)  # their leases are renewed
            gate.open.set()
            await until(lambda: gate.busy == 0)
            await clock.advance(100)
            stats = await queue.stats()
            assert (stats.ready, stats.leased) == (1, 0)

    virtually(main)
