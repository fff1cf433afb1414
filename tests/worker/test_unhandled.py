"""Kinds without a handler are mentioned once, and cost an idle worker nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import StoreError
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.views import JobFilter, JobPage
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import KindUnhandled
from pollwise.runtime.jobs import NewJob
from pollwise.worker import Worker
from pollwise.worker.unhandled import LOOK_EVERY, PAGE, READY_FOR
from tests.support.kit import Seen, make_queue, options, virtually, working


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_kind_that_waits_is_mentioned_once_and_its_key_too(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with make_queue(store, tmp_path, clock) as queue:
            seen = Seen()
            worker = Worker(queue, name="w", events=seen.events)
            worker.handle("known")(lambda job: None)
            await queue.put(NewJob("old"))
            await clock.advance(1)
            await queue.put([NewJob("old"), NewJob("known")])
            await clock.advance(READY_FOR + 1)
            await queue.put(NewJob("young"))
            await clock.advance(1)
            await queue.put([NewJob("keyed", key="k"), NewJob("known", key="k")])
            async with working(worker, options(polling=Fixed("1s"))):
                await clock.advance(READY_FOR / 2)
                assert told(seen) == [("old", "1", None)]
                await clock.advance(READY_FOR)
                assert told(seen)[1:] == [("young", "4", None), ("keyed", "5", "k")]
                await clock.advance(2 * LOOK_EVERY)
            assert len(told(seen)) == 3
            assert (await queue.stats()).blocked == 1

    virtually(main)


def test_a_put_of_such_a_kind_is_noticed_and_nothing_else_costs_a_call() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen, looks = make_queue("memory", Path(), clock), Seen(), list[float]()
        page = queue.jobs

        async def counted(*given: object, **named: object) -> object:
            looks.append(clock.now())
            return await page(*given, **named)  # type: ignore[arg-type]

        queue.jobs = counted  # type: ignore[method-assign, assignment]
        worker = Worker(queue, name="w", events=seen.events)
        worker.handle("known")(lambda job: None)
        async with working(worker, options()):
            await clock.advance(3 * 3600)
            assert len(looks) == 1
            await queue.put(NewJob("new"))
            await clock.advance(2 * READY_FOR + LOOK_EVERY)
            assert told(seen) == [("new", "1", None)]
            assert len(looks) == 3
            await clock.advance(3 * 3600)
            assert len(looks) == 3

    virtually(main)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_many_jobs_of_a_paused_kind_hide_no_other_kind(store: str, tmp_path: Path) -> None:
    """A list of ready jobs begins with the kind that comes first, or with the newest jobs."""

    async def main(clock: VirtualClock) -> None:
        async with make_queue(store, tmp_path, clock) as queue:
            seen = Seen()
            worker = Worker(queue, name="w", events=seen.events)
            for kind in ("a", "z"):
                worker.handle(kind)(lambda job: None)
                await queue.pause(kind)
            for kind in ("a", "new", "z"):
                await queue.put([NewJob(kind) for _ in range(PAGE if kind != "new" else 1)])
            await clock.advance(READY_FOR + 1)
            async with working(worker, options(polling=Fixed("1s"))):
                await clock.advance(10)
                assert [kind for kind, _, _ in told(seen)] == ["new"]

    virtually(main)


def told(seen: Seen) -> list[tuple[str, str, str | None]]:
    return [(event.kind, event.job, event.key) for event in seen.of(KindUnhandled)]


def test_a_store_that_refuses_to_show_jobs_is_left_alone() -> None:
    """As a controller does, for a token without the scope `read`."""

    class Refuses(MemoryQueue):
        asked = 0

        async def _page(self, chosen: JobFilter) -> JobPage:
            self.asked += 1
            raise StoreError("not allowed")

    async def main(clock: VirtualClock) -> None:
        queue = Refuses(clock=clock)
        worker = Worker(queue, events=Seen().events)
        worker.handle("known")(lambda job: None)
        async with working(worker, options()) as running:
            await clock.advance(100)
            assert not running.done()
        assert queue.asked == 1

    virtually(main)
