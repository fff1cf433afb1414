"""The page of a job: its life, what it carries, its files, and what can be done with it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from html import unescape
from typing import Any

import httpx

from pollwise.controller.attempts import Attempt
from pollwise.errors import StoreUnavailable
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.jobs import Job, JobFailure, JobInfo, NewJob, Progress, Settlement
from pollwise.runtime.payloads.encryption import AesGcm
from pollwise.runtime.payloads.keys import Key, Keys
from pollwise.web.app import Web, application
from pollwise.web.pages.job.life import life_of
from pollwise.web.sources import Sources
from tests.web.viewers import Somebody, browsing

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


@dataclass
class Site:
    """A web interface over one queue in memory."""

    http: httpx.AsyncClient
    queue: MemoryQueue
    access: Somebody

    async def put(self, kind: str = "mail", payload: Any = None, **more: Any) -> str:
        [job_id] = await self.queue.put(NewJob(kind, payload, **more))
        return job_id

    async def page(self, job_id: str) -> str:
        answer = await self.http.get(f"/queues/default/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return answer.text

    async def post(self, job_id: str, action: str, **fields: str) -> httpx.Response:
        form = {"csrf": self.access.csrf, "action": action, **fields}
        return await self.http.post(f"/queues/default/jobs/{job_id}", data=form)

    async def dead(self, error: str = "boom", traceback: str = "") -> str:
        job_id = await self.put(payload={"to": "ada"})
        await self.end(Settlement.dead, error, traceback)
        return job_id

    async def end(self, how: Any, *more: Any, **options: Any) -> None:
        [claim] = await self.queue.claim("worker-1", 1, "1m")
        await self.queue.settle([how(claim, *more, **options)])


def on_site(test: Callable[[Site], Awaitable[None]]) -> Callable[[], None]:
    """A test that gets a web interface of its own."""

    async def run() -> None:
        queue, access, sources = MemoryQueue(keep="1d"), Somebody("operate"), Sources()
        sources.add_queue(queue)
        async with browsing(application(Web(sources, access))) as http:
            await test(Site(http, queue, access))

    def tested() -> None:
        asyncio.run(run())

    tested.__doc__ = test.__doc__
    return tested


def text_of(page: str) -> str:
    """What a reader sees, on one line."""
    main = page.partition("<main")[2]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", main)).split())


@on_site
async def test_the_page_shows_what_a_waiting_job_carries(site: Site) -> None:
    job_id = await site.put(
        payload={"to": "ada", "token": "s3cret"}, key="k 1", unique="u-1", priority=7,
        delay="1h", headers={"tenant": "7", "authorization": "Bearer s3cret123"},
    )  # fmt: skip
    page = await site.page(job_id)
    shown = text_of(page)
    for each in ("mail", "delayed", 'to : "ada"', "u-1", "Priority 7", "Due in 59 min", "tenant"):
        assert each in shown
    assert "s3cret" not in page
    assert page.count('class="redacted"') == 2


@on_site
async def test_a_running_job_shows_its_progress_and_its_worker(site: Site) -> None:
    job_id = await site.put()
    [claim] = await site.queue.claim("worker-1", 1, "1m")
    await site.queue.renew([claim], "1m", {job_id: Progress(0.4, "page 4 of 10")})
    page = await site.page(job_id)
    assert 'value="0.4"' in page
    assert "page 4 of 10" in page
    assert "Attempt 1 runs" in page
    assert 'href="/queues/default/workers/worker-1"' in page


@on_site
async def test_the_life_of_a_job_lists_its_attempts_with_error_and_traceback(site: Site) -> None:
    job_id = await site.put()
    await site.end(Settlement.retry, 0, "first error")
    await site.end(Settlement.dead, "second error", "File x, line 1")
    shown = text_of(await site.page(job_id))
    order = ["Put", "Attempt 1 failed", "first error", "Attempt 2 failed", "worker-1",
             "second error", "Traceback", "File x, line 1", "Dead"]  # fmt: skip
    places = [shown.index(each) for each in order]
    assert places == sorted(places)


@on_site
async def test_a_result_is_shown(site: Site) -> None:
    job_id = await site.put()
    await site.end(Settlement.done, {"sent": 3, "password": "hunter2"})
    page = await site.page(job_id)
    assert "sent : 3" in text_of(page)
    assert "hunter2" not in page


def test_a_lapsed_lease_is_not_shown_as_an_error_of_the_job() -> None:
    attempt = Attempt(1, state="failed", ended_at=5.0, error="the lease of w 1 ran out")
    info = _info(errors=("the lease of w 1 ran out",))
    moment = next(each for each in life_of(info, [attempt], 9.0) if each.attempt == 1)
    assert (moment.title, moment.worker, moment.error) == ("Attempt 1 lease ran out", "w 1", None)


def test_attempts_that_are_no_longer_recorded_are_named() -> None:
    titles = [each.title for each in life_of(_info(attempt=9), [Attempt(7), Attempt(8)], 9.0)]
    assert titles[:2] == ["Put", "Attempts 1 to 6"]


def _info(*, attempt: int = 1, errors: tuple[str, ...] = ()) -> JobInfo:
    job = Job("1", "default", "mail", None, None, 0, attempt, 1.0, 1.0, None)
    failures = tuple(JobFailure(5.0, 1, error) for error in errors)
    return JobInfo(job, "ready", 5.0, None, failures)


@on_site
async def test_every_field_is_escaped(site: Site) -> None:
    job_id = await site.put(
        HOSTILE[:150], {HOSTILE: [HOSTILE]}, key=HOSTILE, unique=HOSTILE, headers={HOSTILE: HOSTILE}
    )
    [claim] = await site.queue.claim(HOSTILE, 1, "1m")
    await site.queue.renew([claim], "1m", {job_id: Progress(0.1, HOSTILE)})
    running = await site.page(job_id)
    await site.queue.settle([Settlement.dead(claim, HOSTILE, HOSTILE)])
    for page in (running, await site.page(job_id)):
        assert "<script>alert" not in page
        assert "<img" not in page


@on_site
async def test_retry_cancel_and_drop_change_the_store(site: Site) -> None:
    job_id = await site.dead()
    answer = await site.post(job_id, "retry")
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/queues/default/jobs/{job_id}"
    info = await site.queue.get(job_id)
    assert info is not None
    assert info.state == "ready"
    await site.post(job_id, "cancel")
    info = await site.queue.get(job_id)
    assert info is not None
    assert info.state == "cancelled"
    dead = await site.dead()
    answer = await site.post(dead, "drop", back="/")
    assert answer.headers["location"] == "/"
    assert await site.queue.get(dead) is None
    assert [action for action, _ in site.access.noted] == ["retry", "cancel", "drop"]


@on_site
async def test_a_running_job_is_asked_to_cancel(site: Site) -> None:
    job_id = await site.put()
    await site.queue.claim("worker-1", 1, "1m")
    await site.post(job_id, "cancel")
    assert "Cancel requested" in await site.page(job_id)


@on_site
async def test_what_cannot_be_done_is_refused_and_changes_nothing(site: Site) -> None:
    job_id = await site.put()
    for action in ("retry", "drop"):
        await site.post(job_id, action)
    await site.post("999", "cancel")
    await site.post("999", "again")
    info = await site.queue.get(job_id)
    assert info is not None
    assert info.state == "ready"
    assert {action for action, _ in site.access.noted} == {
        "retry refused", "drop refused", "cancel refused", "again refused",
    }  # fmt: skip


@on_site
async def test_put_again_copies_the_job_without_unique_and_trace(site: Site) -> None:
    headers = {
        "tenant": "7",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }
    job_id = await site.put(payload={"a": 1}, key="k", priority=3, unique="u", headers=headers)
    answer = await site.post(job_id, "again")
    new_id = answer.headers["location"].rpartition("/")[2]
    assert new_id != job_id
    info = await site.queue.get(new_id)
    assert info is not None
    job = info.job
    assert (job.kind, job.payload, job.key, job.priority) == ("mail", {"a": 1}, "k", 3)
    assert (job.unique, dict(job.headers)) == (None, {"tenant": "7"})


@on_site
async def test_an_encrypted_job_is_not_decoded_and_not_put_again(site: Site) -> None:
    site.queue.use_codec(AesGcm(Keys((Key("k1", b"x" * 32),))))
    job_id = await site.put(payload={"iban": "DE0212345"})
    await site.end(Settlement.done, {"iban": "DE0212345"})
    page = await site.page(job_id)
    assert "key id k1" in page
    assert "The result is encrypted" in page
    assert "DE0212345" not in page
    await site.post(job_id, "again")
    assert [action for action, _ in site.access.noted] == ["again refused"]
    for what in ("payload", "result"):
        answer = await site.http.get(f"/queues/default/jobs/{job_id}/raw/{what}")
        assert answer.status_code == 404


@on_site
async def test_large_payloads_are_cut_on_the_page_and_whole_in_the_download(site: Site) -> None:
    job_id = await site.put(payload={"list": list(range(90_000)), "deep": "<b>" * 50_000})
    page = await site.page(job_id)
    assert len(page) < 250_000
    assert "89,900 more" in page
    answer = await site.http.get(f"/queues/default/jobs/{job_id}/raw/payload")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["list"][-1] == 89_999


@on_site
async def test_what_is_not_there_is_not_found(site: Site) -> None:
    job_id = await site.put()
    for path in (
        "999",
        f"{job_id}/raw/x",
        f"{job_id}/log",
        f"{job_id}/files/artefacts/a",
        "999/raw/payload",
    ):
        assert (await site.http.get(f"/queues/default/jobs/{path}")).status_code == 404
    assert (await site.http.get(f"/queues/other/jobs/{job_id}")).status_code == 404


@on_site
async def test_who_may_only_read_sees_no_buttons(site: Site) -> None:
    job_id = await site.dead()
    site.access.scope = "read"
    page = await site.page(job_id)
    assert 'name="action"' not in page
    assert (await site.post(job_id, "retry")).status_code == 403
    site.access.scope = "operate"
    site.access.read_only = True
    assert 'name="action"' not in await site.page(job_id)
    assert (await site.post(job_id, "retry")).status_code == 403


@on_site
async def test_a_store_that_does_not_answer_becomes_a_notice(site: Site) -> None:
    async def fail(_: str) -> None:
        raise StoreUnavailable("the store is away")

    site.queue.get = fail  # type: ignore[method-assign, assignment]
    assert "the store is away" in await site.page("1")
