"""The page of a queue: its jobs, filters, actions, kinds and workers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pollwise.queues.breakers import OpenBreaker
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.presence import WorkerInfo
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.queues.views import Stats
from pollwise.runtime.jobs import NewJob, Progress, Settlement
from pollwise.runtime.rollups import Histogram, HistoryPoint
from pollwise.runtime.rollups.rows import BY_WORKER, HistoryRow, encoded
from pollwise.storage.sqlite import file as sqlite_file
from pollwise.web.access import Viewer, WebAccess
from tests.web.visiting import HOSTILE, Visitor

WORKER = WorkerInfo(
    name="box-1", instance="a1", host="host-1", pid=7, version="1", kinds=("mail",), concurrency=4,
    busy=1, waiting=0, running=(), started_at=0.0, seen_at=0.0, strategy="Fixed(interval=0.5)",
    interval=0.5, hints=False, breakers=(),
)  # fmt: skip

WAITS = Histogram.of([0.01] * 50 + [0.3] * 10)


def with_page(work: Callable[[MemoryQueue, Visitor], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        queue = MemoryQueue("shop", keep="1h")
        await work(queue, Visitor(queue, **options))
        await queue.close()

    asyncio.run(main())


def rows(html: str) -> list[str]:
    """The ids of the jobs in the table."""
    return re.findall(r'<tr id="job-([^"]+)"', html)


async def die(queue: MemoryQueue, *jobs: NewJob, error: str = "ValueError: bad") -> list[str]:
    ids = await queue.put(jobs)
    claims = [c for c in await queue.claim("box-1", 100, "1m") if c.job.id in ids]
    await queue.settle([Settlement.dead(claim, error) for claim in claims])
    return ids


def test_shows_jobs_by_state_and_filter() -> None:
    async def work(queue: MemoryQueue, visitor: Visitor) -> None:
        dead = await die(queue, NewJob("mail", 1), error=f"TimeoutError: {HOSTILE}")
        mail, other, late = await queue.put(
            [NewJob("mail", 1, key="k1"), NewJob("other", 1), NewJob("mail", 2, delay="1h")]
        )
        page = "/queues/shop"
        assert set(rows(await visitor.get(page))) == {*dead, mail, other, late}
        assert rows(await visitor.get(f"{page}?state=dead")) == dead
        assert rows(await visitor.get(f"{page}?state=delayed")) == [late]
        assert rows(await visitor.get(f"{page}?state=dead&job={late}")) == [late]
        assert rows(await visitor.get(f"{page}?job=nothing")) == []
        await visitor.post(f"{page}?state=dead&job={late}", "drop-all")
        assert (await queue.stats()).dead == 1, "all that match is not what one id shows"
        assert rows(await visitor.get(f"{page}?kind=other")) == [other]
        assert rows(await visitor.get(f"{page}?key=k1")) == [mail]
        assert rows(await visitor.get(f"{page}?error=timeouterror")) == dead
        assert rows(await visitor.get(f"{page}?age=older:1h")) == []
        assert len(rows(await visitor.get(f"{page}?age=newer:1h"))) == 4
        assert "No job matches this filter." in await visitor.main(f"{page}?kind=none")
        text = await visitor.main(page)
        assert "Ready 2 Delayed 1 Blocked 0 Leased 0 Dead 1" in text
        assert f"TimeoutError: {HOSTILE}" in text

    with_page(work)


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("state=lost", "state = 'lost' is not one of"),
        ("age=soon", "must be like older:1h"),
        ("age=older:never", "age"),
        (f"kind={'x' * 300}", "kind has 300 characters"),
        ("after=%00nonsense", "after"),
    ],
)
def test_says_what_is_wrong_with_a_filter(query: str, wrong: str) -> None:
    async def work(queue: MemoryQueue, visitor: Visitor) -> None:
        await queue.put([NewJob("mail", i) for i in range(3)])
        assert wrong in await visitor.main(f"/queues/shop?{query}")

    with_page(work)


def test_pages_show_every_job_once() -> None:
    async def work(queue: MemoryQueue, visitor: Visitor) -> None:
        ids = await queue.put([NewJob("mail", i) for i in range(60)])
        found, path = [], "/queues/shop?state=ready"
        while path:
            html = await visitor.get(path)
            found += rows(html)
            following = re.search(r'href="([^"#]+)#jobs" rel="next"', html)
            path = following[1].replace("&amp;", "&") if following else ""
        assert sorted(found, key=int) == ids

    with_page(work)


def test_retries_drops_and_cancels_selected_jobs() -> None:
    async def work(queue: MemoryQueue, visitor: Visitor) -> None:
        first, second, third = await die(queue, *[NewJob("mail", i) for i in range(3)])
        page = "/queues/shop?state=dead"
        answer = await visitor.post(page, "retry", [first])
        assert answer.status_code == 303
        assert answer.headers["location"] == page
        assert (await queue.stats()).ready == 1
        await visitor.post(page, "drop", [second])
        assert await queue.get(second) is None
        await visitor.post("/queues/shop", "cancel", [first, third])
        stats = await queue.stats()
        assert (stats.ready, stats.dead, stats.cancelled) == (0, 1, 1)
        assert "Dead 1" in await visitor.main(page), "the page shows what the action changed"

    with_page(work)


def test_changes_all_jobs_that_match_a_filter() -> None:
    async def work(queue: MemoryQueue, visitor: Visitor) -> None:
        await die(queue, *[NewJob("mail", i) for i in range(40)])
        others = await die(queue, NewJob("sms", 1), NewJob("sms", 2), error="KeyError: 'x'")
        html = await visitor.get("/queues/shop?state=dead&kind=mail")
        assert "Retry all 40 jobs" in html
        assert "Retry all jobs" in await visitor.get("/queues/shop?state=dead&error=key")
        await visitor.post("/queues/shop?state=dead&error=keyerror", "retry-all")
        assert {info.job.id for info in await queue.jobs("ready")} == set(others)
        await visitor.post("/queues/shop?state=ready&kind=sms", "cancel-all")
        await visitor.post("/queues/shop?state=dead&kind=mail", "drop-all")
        stats = await queue.stats()
        assert (stats.ready, stats.cancelled, stats.dead) == (0, 2, 0)
        await die(queue, NewJob("mail", 1))
        html = await visitor.get("/queues/shop?state=dead&kind=mail")
        assert "Retry the job<" in html
        assert "The dead job that matches this filter<" in html
        await visitor.post("/queues/shop", "drop-all")
        await visitor.post("/queues/shop?state=lost", "drop-all")
        assert (await queue.stats()).dead == 1, "without a state nothing is dropped"

    with_page(work)


def test_shows_figures_and_charts_of_the_history() -> None:
    async def work(queue: MemoryQueue, visitor: Visitor) -> None:
        now = queue.clock.epoch()
        await queue.put(NewJob("mail", 1))
        for minutes in range(30):
            at = int((now - 60 * minutes) // 60 * 60)
            done = HistoryPoint(at, 60, "mail", done=57, failed=3, waits=WAITS, durations=WAITS)
            polls = HistoryPoint(at, 60, polls=30, worker_seconds=60, interval_total=60)
            row = HistoryRow(BY_WORKER, at, WORKER.note_name, encoded([polls, done]))
            await queue.record_worker(WORKER, 60, [row])
        text = await visitor.main("/queues/shop")
        assert re.search(r"Done 5\d a minute Runs failed 5.0 %", text), text
        assert re.search(r"Polls 1,[78]\d\d an hour", text), text
        for span in ("1h", "24h", "7d"):
            html = await visitor.get(f"/queues/shop?span={span}")
            assert html.count('<figure class="chart">') == 2
            assert f'span={span}" aria-current="true"' in html
        assert "span = &#39;9h&#39; is not one of" in await visitor.get("/queues/shop?span=9h")

    with_page(work)


def test_pauses_and_resumes_kinds_and_the_queue() -> None:
    async def work(queue: MemoryQueue, visitor: Visitor) -> None:
        await queue.put(NewJob("mail", 1))
        await visitor.post("/queues/shop", "pause", kind="mail", why=f"broken {HOSTILE}")
        pause = (await queue.paused())["mail"]
        assert pause.why == f"broken {HOSTILE}"
        assert pause.by
        assert "Kind mail is paused" in await visitor.main("/queues/shop")
        await visitor.post("/queues/shop", "pause")
        assert "The whole queue is paused" in await visitor.main("/queues/shop")
        await visitor.post("/queues/shop", "resume", kind="mail")
        await visitor.post("/queues/shop", "resume")
        assert await queue.paused() == {}
        await visitor.post("/queues/shop", "pause", kind="mail", why="x" * 501)
        assert await queue.paused() == {}

    with_page(work)


def test_shows_and_closes_an_open_breaker() -> None:
    async def work(queue: MemoryQueue, visitor: Visitor) -> None:
        await queue.put(NewJob("mail", 1))
        now = queue.clock.epoch()
        opened = OpenBreaker("mail", 2, now, now + 60, f"w {HOSTILE}").to_note()
        assert (await queue.breakers.swap("mail", None, opened))[0]
        page = await visitor.main("/queues/shop")
        assert "Open breaker: workers do not claim mail" in page
        assert "Close breaker" in page
        await visitor.post("/queues/shop", "close-breaker", kind="mail")
        assert await queue.breakers.list() == []
        assert "Close breaker" not in await visitor.main("/queues/shop")
        await visitor.post("/queues/shop", "close-breaker", kind="mail")

    with_page(work)


def test_shows_kinds_workers_and_progress() -> None:
    async def work(queue: MemoryQueue, visitor: Visitor) -> None:
        await queue.put([NewJob("mail", 1), NewJob(f"odd {HOSTILE}", 1, key=f"key {HOSTILE}")])
        claims = await queue.claim("box-1", 1, "1m")
        await queue.renew(claims, "1m", {claims[0].job.id: Progress(0.4, f"page 3 {HOSTILE}")})
        await queue.record_worker(WORKER, 60)
        await queue.record_worker(replace(WORKER, name=HOSTILE, instance="b2", host=HOSTILE), 60)
        text = await visitor.main("/queues/shop")
        assert f"No running worker handles odd {HOSTILE}." in text
        assert f"40 % page 3 {HOSTILE}" in text
        assert "every 500 ms Fixed" in text
        html = await visitor.get("/queues/shop")
        assert '<progress value="0.4" max="1"' in html

    with_page(work)


class Capped(MemoryQueue):
    """A queue in a store that counts ready jobs up to a number."""

    async def stats(self, most: int = 10_000) -> Stats:
        return replace(await super().stats(), ready=10_000, capped=frozenset({"ready"}))


def test_says_that_there_may_be_more_than_was_counted() -> None:
    async def main() -> None:
        queue = Capped("many")
        visitor = Visitor(queue)
        await queue.put([NewJob("mail", i) for i in range(3)])
        text = await visitor.main("/queues/many?state=ready")
        assert "Ready 10k+ jobs" in text
        assert "Ready 10,000+ Delayed 0" in text
        assert "All ready jobs" in text, "nobody knows how many are cancelled"
        assert "10k+" in await visitor.main("/")

    asyncio.run(main())


class Sealed(MemoryQueue):
    """A queue in a store that shows dead jobs only, as SQS does."""

    capabilities = replace(
        MemoryQueue.capabilities,
        views=False, pause=False, presence=False, history=False, cancel=False,
    )  # fmt: skip

    async def stats_by_kind(self, *limits: Any) -> dict[str, Stats]:
        raise self._no_views("count jobs by kind")


def test_a_store_without_views_shows_counts_and_dead_jobs() -> None:
    async def main() -> None:
        queue = Sealed("sealed")
        visitor = Visitor(queue)
        [dead] = await die(queue, NewJob("mail", 1))
        await queue.put(NewJob("mail", 2))
        for path in ("/queues/sealed", "/queues/sealed?state=ready", "/"):
            text = await visitor.main(path)
            assert "does not answer" not in text
        html = await visitor.get("/queues/sealed?state=ready&kind=other")
        assert rows(html) == [dead]
        text = await visitor.main("/queues/sealed")
        assert "This store shows a job only to the worker that claims it." in text
        assert "Ready 1" in text
        assert "Pause the queue" not in text
        assert "This store keeps no records of its workers." in text
        assert (await visitor.post("/queues/sealed", "pause")).status_code == 303
        await visitor.post("/queues/sealed", "retry", [dead])
        assert (await queue.stats()).ready == 2

    asyncio.run(main())


class Reader(WebAccess):
    """Lets everybody look."""

    async def viewer(self, request: Any) -> Viewer | None:
        return Viewer("reader", "read", "token")


def test_readers_see_no_buttons_and_cannot_act() -> None:
    async def work(queue: MemoryQueue, visitor: Visitor) -> None:
        [dead] = await die(queue, NewJob("mail", 1))
        html = await visitor.get("/queues/shop?state=dead")
        main = html[html.index("<main") :]
        assert 'name="action"' not in main
        assert 'name="id"' not in main
        answer = await visitor.post("/queues/shop", "drop", [dead])
        assert answer.status_code == 403
        assert (await queue.stats()).dead == 1

    with_page(work, access=Reader())


def test_an_unknown_queue_is_not_found() -> None:
    async def work(queue: MemoryQueue, visitor: Visitor) -> None:
        assert "There is no queue lost here." in await visitor.main("/queues/lost", 404)

    with_page(work)


def test_a_read_only_copy_can_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.db"

    async def main() -> None:
        async with SqliteQueue(path, "shop") as queue:
            await queue.put([NewJob("mail", number) for number in range(3)])
        before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        path.chmod(0o444)
        monkeypatch.setattr(sqlite_file, "may_create_in", lambda folder: False)
        async with SqliteQueue(path, "shop", create=False) as queue:
            visitor = Visitor(queue)
            assert rows(await visitor.get("/queues/shop")) == ["1", "2", "3"]
            for page in ("/", "/queues/shop/jobs/1"):
                await visitor.get(page)
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before

    asyncio.run(main())
