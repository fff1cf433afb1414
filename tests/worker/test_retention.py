"""Finished work is deleted when it was kept long enough, at any rate, and quietly."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from pollwise import Fixed, Job, Worker
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.chores import Chores
from pollwise.runtime.clock import Clock, VirtualClock
from pollwise.runtime.executor.control.pruning import (
    PRUNE_APART,
    PRUNE_EVERY,
    PRUNE_FIRST,
    PRUNE_VAIN,
    Pruning,
)
from pollwise.runtime.jobs import NewJob
from pollwise.runtime.store import PRUNE_SLICE
from tests.support.kit import CountedMemory, Seen, make_queue, options, virtually, working


class Kept(MemoryQueue):
    """A store of ended jobs, of which only the times and numbers are kept."""

    def __init__(self, clock: Clock, keep: float, slice_takes: float = 0.01) -> None:
        super().__init__(clock=clock, keep=keep)
        self.takes = slice_takes
        self.ended: deque[tuple[float, int]] = deque()
        self.at_work = 0
        self.calls: list[tuple[float, int]] = []  # when, and how many were deleted

    @property
    def left(self) -> int:
        return sum(count for _, count in self.ended)

    def end(self, count: int) -> None:
        self.ended.append((self.clock.now(), count))

    async def _prune(self, keep: float | None) -> int:
        assert keep is not None
        self.at_work += 1
        await self.clock.sleep(self.takes)
        self.at_work -= 1
        before, count = self.clock.now() - keep, 0
        while self.ended and self.ended[0][0] <= before and count < PRUNE_SLICE:
            at, size = self.ended.popleft()
            taken = min(size, PRUNE_SLICE - count)
            count += taken
            if taken < size:
                self.ended.appendleft((at, size - taken))
        self.calls.append((self.clock.now(), count))
        return count


def pruning(store: Kept) -> tuple[Pruning, Chores]:
    chores = Chores("q", store.clock, Seen().events)
    return Pruning(store, store.clock, chores), chores


def test_it_keeps_up_with_ten_times_the_rate_of_jobs() -> None:
    async def main(clock: VirtualClock) -> None:
        store = Kept(clock, keep=5.0)
        part, chores = pruning(store)
        for _ in range(600):  # a minute of 25,000 jobs a second
            store.end(2500)
            part.stored(5.0)
            await clock.advance(0.1)
        assert store.left <= 25_000 * (5 + 3 * PRUNE_APART)
        busy = len(store.calls) * store.takes
        assert busy <= 60 / 2 + 1, "the store has no time for claims"
        await clock.advance(10 + 2 * PRUNE_EVERY)
        assert store.left == 0
        await chores.close()

    virtually(main)


def test_what_others_left_is_deleted_without_further_polls() -> None:
    async def main(clock: VirtualClock) -> None:
        store = Kept(clock, keep=5.0)
        store.end(270_952)
        part, chores = pruning(store)
        await clock.advance(PRUNE_FIRST)
        part.after_poll(False)
        await clock.advance(10)
        assert store.left == 0
        assert len(store.calls) <= 273
        await chores.close()

    virtually(main)


def test_with_nothing_due_nothing_is_called() -> None:
    async def main(clock: VirtualClock) -> None:
        store = Kept(clock, keep=3600.0)
        part, chores = pruning(store)
        loop: Any = asyncio.get_running_loop()
        await clock.advance(86400)
        assert store.calls == []
        store.end(10)
        part.stored(3600.0)
        await clock.advance(3600)
        assert store.calls == []
        await clock.advance(86400)
        assert [count for _, count in store.calls] == [10]
        assert not [timer for timer in loop._scheduled if not timer.cancelled()]
        await chores.close()

    virtually(main)


def test_several_processes_seldom_prune_in_vain() -> None:
    async def main(clock: VirtualClock) -> None:
        store = Kept(clock, keep=60.0)
        parts = [pruning(store) for _ in range(20)]
        for n in range(3600):  # an hour of one job a second, each by another process
            store.end(1)
            parts[n % 20][0].stored(60.0)
            await clock.advance(1)
        assert store.left <= 60 + 3 * PRUNE_EVERY
        # Less than each process once a minute, and most calls found something.
        later = [count for at, count in store.calls if at > 1800]
        assert len(later) <= 20 * 1800 / PRUNE_EVERY
        assert sum(count == 0 for count in later) <= len(later) / 2
        for _, chores in parts:
            await chores.close()

    virtually(main)


def test_another_process_goes_on_when_one_ends() -> None:
    async def main(clock: VirtualClock) -> None:
        store = Kept(clock, keep=5.0)
        parts = [pruning(store) for _ in range(2)]
        for second in range(3600):
            store.end(2500)
            for part, _ in parts[second >= 1800 :]:
                part.stored(5.0)
            if second == 1800:
                await parts[0][1].close()
            await clock.advance(1)
            assert store.left <= 2500 * (5 + PRUNE_VAIN)
        assert store.left <= 2500 * (5 + 3 * PRUNE_APART)
        await parts[1][1].close()

    virtually(main)


def test_renewals_come_between_slices() -> None:
    async def main(clock: VirtualClock) -> None:
        store = Kept(clock, keep=5.0, slice_takes=0.5)
        store.end(100_000)
        part, chores = pruning(store)
        ran: list[float] = []

        async def renew() -> None:
            assert not store.at_work
            ran.append(clock.now())

        chores.add("renew", 10.0, renew)
        await clock.advance(PRUNE_FIRST)
        part.after_poll(False)
        chores.wake("renew")
        await clock.advance(60)
        assert 5 <= len(ran) <= 7
        assert 0 < store.left < 60_000
        await chores.close()

    virtually(main)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_an_idle_worker_deletes_all_that_is_due(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        queue: Any = make_queue(store, tmp_path, clock, keep="5s")
        ids = await queue.put([NewJob("x") for _ in range(4500)])
        await queue.cancel(ids)
        await clock.advance(60)
        worker = Worker(queue, events=Seen().events)
        worker.handle("x")(lambda job: None)
        async with working(worker, options(polling=Fixed("20s"), hints=False)):
            await clock.advance(50)
            assert (await queue.stats()).cancelled == 0
        await queue.close()

    virtually(main)


def test_a_worker_whose_handlers_are_all_busy_prunes() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = CountedMemory(clock=clock, keep="10s")
        worker = Worker(queue, events=Seen().events)

        @worker.handle("quick")
        async def quick(job: Job) -> None:
            pass

        @worker.handle("long")
        async def long(job: Job) -> None:
            await asyncio.sleep(3600)

        async with working(worker, options(concurrency=1, prefetch=0)):
            await queue.put([NewJob("quick")])
            await clock.advance(1)
            await queue.put([NewJob("long"), NewJob("quick")])
            await clock.advance(60)
            polls = queue.calls["claim"]
            await clock.advance(60)
            assert queue.calls["claim"] == polls, "it polled meanwhile"
            assert (await queue.stats()).done == 0

    virtually(main)


def test_a_run_that_ends_prunes_until_nothing_is_due() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = CountedMemory(clock=clock, keep="5s")
        worker = Worker(queue, events=Seen().events)
        worker.handle("x")(lambda job: None)
        await queue.cancel(await queue.put([NewJob("x") for _ in range(3500)]))
        await clock.advance(60)
        await queue.put(NewJob("x"))
        await worker.run_once()
        stats = await queue.stats()
        assert (stats.done, stats.cancelled) == (1, 0)
        assert queue.calls["prune"] == 4

    virtually(main)


def test_pruning_in_memory_looks_only_at_what_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock, keep="1h")
        await queue.cancel(await queue.put([NewJob("x") for _ in range(2000)]))
        await clock.advance(1800)
        await queue.cancel(await queue.put([NewJob("x") for _ in range(2000)]))
        await clock.advance(1800)
        looked = 0

        class Counted(dict[int, Any]):
            def get(self, *given: Any) -> Any:
                nonlocal looked
                looked += 1
                return super().get(*given)

            def items(self) -> Any:
                raise AssertionError("it walked through all jobs")

        monkeypatch.setattr(queue, "_records", Counted(queue._records))
        assert [await queue.prune() for _ in range(3)] == [1000, 1000, 0]
        assert looked == 2000

    virtually(main)
