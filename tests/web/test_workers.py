"""The pages about workers: all of them, and one with its pace and its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from pollwise.queues.presence import RunningJob, WorkerInfo
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import NewJob, Progress, Settlement
from pollwise.runtime.rollups import HistoryPoint
from pollwise.runtime.rollups.rows import BY_WORKER, HistoryRow, encoded
from pollwise.web.charts import pace
from tests.web.queue_site import HOSTILE, QueueSite, on_site


async def start(site: QueueSite, name: str = "w-1", **more: Any) -> WorkerInfo:
    """Store the record of a worker, as a running one does."""
    now = Clock().epoch()
    info = WorkerInfo(
        name, f"i-{name}"[:40], "host-1", 4711, "1.2", ("mail", "sms"), 8, 1, 0,
        (RunningJob("77", "mail", now - 90),), now - 600, now, "Adaptive(…)", 0.25, True, (),
    )  # fmt: skip
    info = replace(info, **more)
    await site.queue.record_worker(info, 600)
    return info


@on_site
async def test_the_page_lists_workers_with_what_they_run(site: QueueSite) -> None:
    await start(site, breakers=("sms",))
    page = await site.get("/workers")
    for each in (
        "w-1",
        "host-1",
        "pid 4711",
        "1 of 8",
        "mail",
        "250 ms",
        "hints proven",
        "Adaptive",
    ):
        assert each in page
    assert "breaker open: sms" in page
    assert 'href="/queues/default/jobs/77"' in page
    assert 'href="/queues/default/workers/w-1"' in page


@on_site
async def test_a_worker_that_runs_a_suspect_alone_has_a_badge(site: QueueSite) -> None:
    await start(site, alone="77")
    for path in ("/workers", "/queues/default", "/queues/default/workers/w-1"):
        page = await site.get(path)
        assert "runs a suspect alone" in page, path
        assert "Job 77 may have killed its workers" in page


@on_site
async def test_no_workers_says_how_to_start_one(site: QueueSite) -> None:
    assert "No worker is running" in await site.get("/workers")


@on_site
async def test_workers_are_filtered_and_paged(site: QueueSite) -> None:
    for i in range(120):
        await start(site, f"worker-{i:03}", kinds=("sms",) if i == 7 else ("mail",))
    page = await site.get("/workers")
    assert page.count('id="worker-default-') == 50
    last = await site.get("/workers?page=3")
    assert last.count('id="worker-default-') == 20
    assert "worker-119" in last
    assert (await site.get("/workers?page=99")).count('id="worker-default-') == 20
    for query, name in (("q=KER-042", "worker-042"), ("q=sms", "worker-007")):
        found = await site.get(f"/workers?{query}")
        assert found.count('id="worker-default-') == 1
        assert name in found
    assert "No worker matches" in await site.get("/workers?queue=other")


@on_site
async def test_concurrency_is_changed_from_both_pages(site: QueueSite) -> None:
    info = await start(site)
    form = {"queue": "default", "worker": "w-1"}
    await site.post("/workers", "concurrency", **form, concurrency="16")
    assert await site.queue.record_worker(info, 600) == 16
    await site.post("/queues/default/workers/w-1", "concurrency", concurrency="4")
    assert await site.queue.record_worker(info, 600) == 4
    for wrong in ("0", "-1", "many", "9" * 30, ""):
        await site.post("/workers", "concurrency", **form, concurrency=wrong)
    await site.post("/workers", "concurrency", **{**form, "worker": "nobody"}, concurrency="3")
    await site.post("/workers", "concurrency", **{**form, "queue": "nowhere"}, concurrency="3")
    assert await site.queue.record_worker(info, 600) == 4
    assert site.noted.count("concurrency refused") == 7


@on_site
async def test_a_queue_is_paused_with_a_reason_and_resumed(site: QueueSite) -> None:
    await site.post("/workers", "pause", queue="default", why="disk is full")
    page = await site.get("/workers")
    assert "disk is full" in page
    assert (await site.queue.paused())[None].by == "test"
    await site.post("/workers", "resume", queue="default")
    assert not await site.queue.paused()
    await site.post("/workers", "resume", queue="default")
    assert site.noted[-1] == "resume refused"


@on_site
async def test_a_worker_shows_its_runs_its_jobs_and_its_pace(site: QueueSite) -> None:
    info = await start(site)
    now = int(Clock().epoch() // 60 * 60)
    point = HistoryPoint(
        float(now), polls=40, empty_polls=30, interval_total=60.0, interval_low=0.1,
        interval_high=5.0,
    )  # fmt: skip
    row = HistoryRow(BY_WORKER, now, info.note_name, encoded([point]))
    await site.queue.record_worker(info, 600, [row])
    await site.queue.put([NewJob("mail"), NewJob("mail")])
    first, second = await site.queue.claim("w-1", 2, "1m")
    await site.queue.renew([first], "1m", {first.job.id: Progress(0.5)})
    await site.queue.settle([Settlement.dead(second, "it broke")])
    page = await site.get("/queues/default/workers/w-1")
    assert "interval 100 ms to 5 s, mean 1.5 s; 40 polls, 30 empty" in page
    assert 'value="0.5"' in page
    assert "it broke" in page
    assert page.count('class="tick') + page.count('tone-blue tick"') > 0
    assert "running</span>" in page


@on_site
async def test_a_worker_that_is_gone_shows_what_it_did(site: QueueSite) -> None:
    await site.queue.put(NewJob("mail"))
    await site.queue.claim("w/9?#é", 1, "1m")
    page = await site.get(f"/queues/default/workers/{quote('w/9?#é', safe='')}")
    assert "not running" in page
    job_page = await site.get("/queues/default/jobs/1")
    assert 'href="/queues/default/workers/w/9%3F%23%C3%A9"' in job_page


@on_site
async def test_unknown_workers_and_queues_are_not_found(site: QueueSite) -> None:
    await site.get("/queues/default/workers/nobody", 404)
    await site.get("/queues/nowhere/workers/w-1", 404)
    await site.get(f"/queues/default/workers/{'x' * 300}", 404)
    await site.get("/queues/default/workers/%00", 404)


@on_site
async def test_every_field_of_a_record_is_escaped(site: QueueSite) -> None:
    hostile: dict[str, Any] = {
        "instance": HOSTILE, "host": HOSTILE, "version": HOSTILE, "kinds": (HOSTILE,),
        "running": (RunningJob(HOSTILE, HOSTILE, 1.0), RunningJob("", "a/b", 1.0)),
        "strategy": HOSTILE, "breakers": (HOSTILE,),
    }  # fmt: skip
    await start(site, HOSTILE, **hostile)
    await site.queue.pause(by=HOSTILE, why=HOSTILE)
    await site.queue.pause(HOSTILE)
    for path in ("/workers", f"/queues/default/workers/{quote(HOSTILE, safe='')}"):
        page = await site.get(path)
        assert "<script>alert" not in page
        assert "<img" not in page


@on_site
async def test_who_may_only_read_sees_no_buttons(site: QueueSite) -> None:
    await start(site)
    site.access.scope = "read"
    for path in ("/workers", "/queues/default/workers/w-1"):
        assert 'name="action"' not in await site.get(path)
        await site.refused(path, "pause")


def minutes(*polls: int) -> Sequence[HistoryPoint]:
    return [
        HistoryPoint(60.0 * i, polls=count, empty_polls=count // 2, interval_total=1.0 * count,
                     interval_low=0.1 if count else None, interval_high=4.0 if count else None)
        for i, count in enumerate(polls)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("polls", "ticks", "each"),
    [((4, 0, 6), 10, "jobs<"), ((300, 300), 300, "jobs, a tick for 2<"), ((0, 0), 0, "jobs<")],
)
def test_polls_are_ticks_or_several_polls_are_one(
    polls: tuple[int, ...], ticks: int, each: str
) -> None:
    drawn = pace(minutes(*polls))
    strip = drawn.partition('class="strip"')[2].partition("</svg>")[0]
    assert strip.count("M") == ticks
    found = strip.partition("tone-blue")[2].count("M")
    assert found == ticks // 2
    assert each in drawn
