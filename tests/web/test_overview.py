"""The overview: what needs attention, and every queue at a glance."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pollwise.errors import StoreError
from pollwise.fleet import Fleet
from pollwise.outbox import NewRecord
from pollwise.outbox.records import KeySettlement
from pollwise.outbox.stores.memory import MemoryOutboxStore
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.notes import Note, Topic
from pollwise.queues.urls import open_queue
from pollwise.queues.views import JobFilter, JobPage, Stats
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.runtime.rollups import Histogram, HistoryPoint
from pollwise.runtime.rollups.rows import BY_WORKER, HistoryRange, HistoryRow, encoded
from pollwise.testing import VirtualClock
from pollwise.web.live import _events
from tests.web.test_queue import WORKER
from tests.web.visiting import HOSTILE, Visitor, view_of


class Broken(MemoryQueue):
    """A queue whose store does not answer."""

    async def stats(self, most: int = 10_000) -> Stats:
        raise StoreError(f"cannot connect {HOSTILE}")


class Counting(MemoryQueue):
    """Counts the reads of its queues."""

    asked = 0

    async def stats(self, most: int = 10_000) -> Stats:
        Counting.asked += 1
        return await super().stats()

    async def stats_by_kind(self, *limits: Any) -> dict[str, Stats]:
        Counting.asked += 1
        return await super().stats_by_kind()

    async def _page(self, chosen: JobFilter) -> JobPage:
        Counting.asked += 1
        return await super()._page(chosen)

    async def _read_history(self, ranges: Sequence[HistoryRange]) -> list[list[HistoryRow]]:
        Counting.asked += 1
        return await super()._read_history(ranges)

    async def _read_notes(self, topics: Sequence[Topic]) -> list[Note]:
        Counting.asked += 1
        return await super()._read_notes(topics)


def test_shows_what_needs_attention_with_links() -> None:
    clock = VirtualClock()

    async def main() -> None:
        queue, idle = MemoryQueue("shop", clock=clock), MemoryQueue("idle", clock=clock)
        visitor = Visitor(queue, idle, Broken("gone"), clock=clock)
        await queue.put([NewJob("mail", 1), NewJob("mail", 2), NewJob("lost", 3)])
        first, _ = await queue.claim("gone-1", 2, "1h")
        await queue.settle([Settlement.dead(first, "ValueError: bad")])
        await clock.advance(200)
        now = clock.epoch()
        worker = replace(WORKER, seen_at=now, started_at=now, breakers=("sms",))
        await queue.record_worker(worker, 1e6)
        await idle.pause(by="anna", why="month end")
        html = await visitor.get("/")
        text = await visitor.main("/")
        for line in (
            "shop 1 dead job: retry or drop.",
            "No running worker handles lost.",
            "shop Open breaker: workers do not claim sms",
            "shop 1 job held by gone-1, which no longer runs. It comes back when its lease ends",
            "idle The whole queue is paused by anna, just now. month end",
            f"gone The store does not answer. cannot connect {HOSTILE}",
        ):
            assert line in text, line
        assert '<a href="/queues/shop?state=dead#jobs"' in html
        for total in ("ready", "oldest", "running", "dead"):  # unknown while a store is down
            shown = re.search(f'id="total-{total}">.*?</div>', html, re.DOTALL)
            assert shown, total
            assert ">–</dd>" in shown[0], total
        await idle.resume()
        await idle.put([NewJob("mail", 1)])
        await clock.advance(20)
        assert "idle No worker is running, with 1 job ready." in await visitor.main("/")

    clock.run(main())


def test_shows_outboxes_and_fleets_that_need_attention() -> None:
    clock = VirtualClock()

    async def main() -> None:
        store, fleet = MemoryOutboxStore("events", clock=clock), Fleet(name="pages", clock=clock)
        visitor = Visitor(clock=clock)
        visitor.sources.add_outbox(store)
        visitor.sources.add_fleet(fleet)
        await store.put([NewRecord("paid", 1, key="k"), NewRecord("paid", 2, key="k")])
        [claim] = await store.claim("r", 1, 1, "1m")
        await store.settle([KeySettlement(claim, 0, "dead", error="ValueError: bad")])
        text = await visitor.main("/")
        assert "Outbox events 1 blocked key: a dead record stands first. 1 record behind." in text
        assert "Outbox events No relay is running, with 1 record to handle." in text
        assert "Fleets Fleet Targets Broken" in text
        assert 'href="/outboxes/events"' in await visitor.get("/")

    clock.run(main())


def test_queues_of_the_same_name_are_told_apart_by_their_stores(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    stores = [open_queue(f"sqlite:///{tmp_path}/{name}/jobs.db") for name in "ab"]
    visitor = Visitor(*stores, MemoryQueue(), MemoryQueue(), MemoryQueue("mail"))
    titles = [source.title for source in visitor.sources.queues.values()]
    assert titles == [
        "default · a/jobs.db",
        "default · b/jobs.db",
        "default-3",
        "default-4",
        "mail",
    ]


@pytest.mark.parametrize(("reach", "wanted"), [("network", True), ("machine", False)])
def test_hints_need_attention_only_where_they_are_checked(reach: Any, wanted: bool) -> None:
    clock = VirtualClock(1_700_000_000.0)

    class Reaching(MemoryQueue):
        capabilities = replace(MemoryQueue.capabilities, hints=reach)

    async def main() -> None:
        queue = Reaching("shop", clock=clock)
        worker = replace(WORKER, hints=False, breakers=(), started_at=clock.epoch() - 3600)
        await queue.record_worker(worker, 1e6)
        visitor = Visitor(queue, clock=clock)
        assert ("Hints are not proven for" in await visitor.main("/")) is wanted
        assert ("hints not proven" in await visitor.main("/workers")) is wanted
        assert ("on its machine" in await visitor.main("/queues/shop")) is not wanted

    clock.run(main())


def test_says_when_a_run_takes_many_times_as_long_as_others() -> None:
    clock = VirtualClock(1_700_000_000.0)

    async def main() -> None:
        queue = MemoryQueue("shop", clock=clock)
        visitor = Visitor(queue, clock=clock)
        at = int(clock.epoch() // 60 * 60)
        took = HistoryPoint(at, 60, "mail", done=50, durations=Histogram.of([0.5] * 50))
        row = HistoryRow(BY_WORKER, at, WORKER.note_name, encoded([took]))
        await queue.record_worker(replace(WORKER, started_at=clock.epoch()), 1e6, [row])
        await queue.put(NewJob("mail", 1))
        await queue.claim(WORKER.name, 1, "1h")
        assert "Nothing needs attention." in await visitor.main("/")
        await clock.advance(80)
        text = await visitor.main("/")
        assert "shop 1 run of mail: not ended after 1 min 20 s. 99 % of them take 5" in text

    clock.run(main())


def test_a_calm_overview_says_so() -> None:
    async def main() -> None:
        visitor = Visitor(MemoryQueue("shop"))
        assert "Nothing needs attention." in await visitor.main("/")
        assert "No queue is shown here." in await Visitor().main("/")

    asyncio.run(main())


def test_many_queues_are_rows() -> None:
    async def main() -> None:
        queues = [MemoryQueue(f"tenant-{i}") for i in range(50)]
        await queues[7].put([NewJob("mail", i) for i in range(12)])
        html = await Visitor(*queues).get("/")
        assert html.count('<tr id="queue-') == 50
        assert '<td class="n" data-label="Ready">12</td>' in html

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("overview", "/"),
        ("queue", "/queues/queue-0"),
        ("queue", "/queues/queue-0?span=24h"),
        ("workers", "/workers"),
    ],
)
def test_an_idle_page_asks_the_store_once_per_refresh(name: str, path: str) -> None:
    clock = VirtualClock(1_700_000_000.0)

    async def main() -> None:
        queues = [Counting(f"queue-{i}", clock=clock) for i in range(5)]
        visitor = Visitor(*queues, clock=clock)
        await queues[0].put([NewJob("mail", i) for i in range(3)])
        view = view_of(visitor.web, name)
        stream = _events(view, visitor.visit(path, slug="queue-0"))
        for _ in range(10):
            await anext(stream)
        Counting.asked = 0
        for _ in range(90):
            await anext(stream)
        assert 30 <= Counting.asked <= 90
        await queues[0].put([NewJob("mail", i) for i in range(4)])
        if name == "workers":
            worker = replace(WORKER, name="fresh-77", seen_at=clock.epoch())
            await queues[0].record_worker(worker, 1e6)
        events = [await anext(stream) for _ in range(8)]
        assert any("event: main" in event and "7" in event for event in events)

    clock.run(main())
