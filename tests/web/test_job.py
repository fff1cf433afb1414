"""The page of a job: its life, what it carries, its files, and what can be done with it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from html import unescape
from typing import Any

from pollwise.controller import Controller
from pollwise.controller.attempts import Attempt
from pollwise.errors import StoreUnavailable
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.presence import WorkerInfo
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.jobs import Job, JobFailure, JobInfo, Progress, Settlement
from pollwise.runtime.payloads.encryption import AesGcm
from pollwise.runtime.payloads.keys import Key, Keys
from pollwise.web.app import Web, application
from pollwise.web.pages.job.life import life_of, was_retried
from pollwise.web.redaction import RedactionRules
from pollwise.web.sources import Sources
from tests.web.queue_site import HOSTILE, QueueSite, on_site
from tests.web.viewers import Somebody, browsing

AT = "/queues/default/jobs/"


def text_of(page: str) -> str:
    """What a reader sees, on one line."""
    main = page.partition("<main")[2]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", main)).split())


def worker(*kinds: str, **more: object) -> WorkerInfo:
    value = {"name": "w", "instance": "i", "kinds": kinds, "concurrency": 1, **more}
    info = WorkerInfo.from_value(value)
    assert info is not None
    return info


@on_site
async def test_the_page_shows_what_a_waiting_job_carries(site: QueueSite) -> None:
    job_id = await site.put(
        payload={"to": "ada", "token": "s3cret"}, key="k 1", unique="u-1", priority=7,
        delay="1h", headers={"tenant": "7", "authorization": "Bearer s3cret123"},
    )  # fmt: skip
    page = await site.get(AT + job_id)
    shown = text_of(page)
    for each in ("mail", "delayed", 'to : "ada"', "u-1", "Priority 7", "Due in 59 min", "tenant"):
        assert each in shown
    assert 'href="/queues/default?key=k+1"' in page
    assert "s3cret" not in page
    assert page.count('class="redacted"') == 2


@on_site
async def test_a_running_job_shows_its_progress_and_its_worker(site: QueueSite) -> None:
    job_id = await site.put()
    [claim] = await site.queue.claim("worker-1", 1, "1m")
    await site.queue.renew([claim], "1m", {job_id: Progress(0.4, "page 4 of 10")})
    page = await site.get(AT + job_id)
    assert 'value="0.4"' in page
    assert "page 4 of 10" in page
    assert "Attempt 1 runs" in page
    assert 'href="/queues/default/workers/worker-1"' in page


@on_site
async def test_the_life_of_a_job_lists_its_attempts_with_their_errors(site: QueueSite) -> None:
    job_id = await site.put()
    await site.end(Settlement.retry, 0, "first error")
    await site.end(Settlement.dead, "second error at https://u:hunter2@x/", "File x, line 1")
    page = await site.get(AT + job_id)
    order = ("Put", "Attempt 1 failed", "first error", "Attempt 2 failed", "worker-1",
             "second error", "Traceback", "File x, line 1", "Dead")  # fmt: skip
    places = [text_of(page).index(each) for each in order]
    assert places == sorted(places)
    assert "hunter2" not in page


@dataclass
class Audited:
    """A state that has an audit log."""

    entries: list[AuditEntry]

    async def list_audit(self, *, what: str, **asked: Any) -> list[AuditEntry]:
        return [each for each in self.entries if (each.what, each.action) == (what, "job.retry")]


@on_site
async def test_the_life_of_a_job_says_who_retried_it_and_when(site: QueueSite) -> None:
    """For those who may operate; without an audit log at least that it was retried."""
    job_id = await site.put()
    await site.end(Settlement.dead, "first error")
    await site.queue.retry([job_id])
    at = (await site.job(job_id)).job.run_at
    order = ("Put", "Attempt 1 failed", "Retried", "by a command, a program", "Ready")
    page = text_of(await site.get(AT + job_id))
    assert [page.index(each) for each in order] == sorted(page.index(each) for each in order)
    audited = Audited([AuditEntry("token:01a1 (Ada)", "job.retry", AT + job_id, at=at)])
    site.access.state = audited  # type: ignore[assignment]
    page = text_of(await site.get(AT + job_id))
    order = ("Put", "Attempt 1 failed", "Retried", "by Ada", "Ready")
    assert [page.index(each) for each in order] == sorted(page.index(each) for each in order)
    site.access.scope = "read"
    page = text_of(await site.get(AT + job_id))
    assert "Retried" in page
    assert "Ada" not in page


@on_site
async def test_a_result_is_shown_without_secrets(site: QueueSite) -> None:
    job_id = await site.put()
    await site.end(Settlement.done, {"sent": 3, "password": "hunter2"})
    page = await site.get(AT + job_id)
    assert "sent : 3" in text_of(page)
    assert "hunter2" not in page


@on_site
async def test_rules_of_the_web_interface_decide_what_is_hidden(site: QueueSite) -> None:
    job_id = await site.put(payload={"iban": "DE02", "password": "shown"}, headers={"iban": "DE03"})
    web = Web(Sources(), site.access, rules=RedactionRules(["payload.iban"]))
    web.sources.queues["default"] = site.source
    async with browsing(application(web)) as http:
        for path in (job_id, f"{job_id}/raw/payload"):
            page = (await http.get(AT + path)).text
            assert "DE02" not in page
            assert "shown" in page
        assert "DE03" in (await http.get(AT + job_id)).text


@on_site
async def test_a_ready_job_says_what_it_waits_for(site: QueueSite) -> None:
    job_id = await site.put()
    assert "No worker is running." in await site.get(AT + job_id)
    for info, says in (
        (worker("sms"), "No running worker has a handler"),
        (worker("mail", breakers=["mail"]), "open breaker"),
        (worker("mail", busy=1), "and all of them are busy"),
        (worker("mail"), "1 running worker has a handler for its kind."),
    ):
        await site.queue.record_worker(info, 60)
        site.source.forget()
        assert says in await site.get(AT + job_id)
    for kind, says in (
        ("mail", "Its kind is paused by ops: rain"),
        (None, "whole queue is paused"),
    ):
        await site.queue.pause(kind, by="ops", why="rain")
        site.source.forget()
        assert says in await site.get(AT + job_id)


@on_site
async def test_a_blocked_job_links_to_the_job_that_it_waits_for(site: QueueSite) -> None:
    first, _, third = [await site.put(key="k") for _ in range(3)]
    for state in ("ready", "leased"):
        page = await site.get(AT + third)
        assert f"which is {state}: " in page
        assert f'href="{AT}{first}"' in page
        await site.queue.claim("worker-1", 1, "1m")


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
async def test_every_field_is_escaped(site: QueueSite) -> None:
    job_id = await site.put(
        HOSTILE[:150], {HOSTILE: [HOSTILE]}, key=HOSTILE, unique=HOSTILE, headers={HOSTILE: HOSTILE}
    )
    [claim] = await site.queue.claim(HOSTILE, 1, "1m")
    await site.queue.renew([claim], "1m", {job_id: Progress(0.1, HOSTILE)})
    running = await site.get(AT + job_id)
    await site.queue.settle([Settlement.dead(claim, HOSTILE, HOSTILE)])
    for page in (running, await site.get(AT + job_id)):
        assert "<script>alert" not in page
        assert "<img" not in page


@on_site
async def test_retry_cancel_and_drop_change_the_store(site: QueueSite) -> None:
    job_id = await site.put()
    await site.end(Settlement.dead, "boom")
    assert await site.post(AT + job_id, "retry") == AT + job_id
    assert (await site.job(job_id)).state == "ready"
    await site.post(AT + job_id, "cancel")
    assert (await site.job(job_id)).state == "cancelled"
    dead = await site.put()
    await site.end(Settlement.dead, "boom")
    assert await site.post(AT + dead, "drop", back="/queues/default") == "/queues/default"
    assert await site.queue.get(dead) is None
    assert site.noted == ["retry", "cancel", "drop"]


@on_site
async def test_a_cancelled_job_that_is_not_kept_leaves_to_its_queue(site: QueueSite) -> None:
    site.queue.keep = None
    assert await site.post(AT + await site.put(), "cancel") == "/queues/default"


@on_site
async def test_a_running_job_is_asked_to_cancel(site: QueueSite) -> None:
    job_id = await site.put()
    await site.queue.claim("worker-1", 1, "1m")
    await site.post(AT + job_id, "cancel")
    assert "Cancel requested" in await site.get(AT + job_id)


@on_site
async def test_what_cannot_be_done_is_refused_and_changes_nothing(site: QueueSite) -> None:
    job_id = await site.put()
    for path, action in ((job_id, "retry"), (job_id, "drop"), ("999", "cancel"), ("999", "again")):
        await site.post(AT + path, action)
    assert (await site.job(job_id)).state == "ready"
    assert site.noted == ["retry refused", "drop refused", "cancel refused", "again refused"]


@on_site
async def test_put_again_copies_the_job_without_unique_and_trace(site: QueueSite) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = {"tenant": "7", "traceparent": trace}
    job_id = await site.put(payload={"a": 1}, key="k", priority=3, unique="u", headers=headers)
    new_id = (await site.post(AT + job_id, "again")).removeprefix(AT)
    assert new_id != job_id
    job = (await site.job(new_id)).job
    assert (job.kind, job.payload, job.key, job.priority) == ("mail", {"a": 1}, "k", 3)
    assert (job.unique, dict(job.headers)) == (None, {"tenant": "7"})


@on_site
async def test_an_encrypted_job_is_not_decoded_and_not_put_again(site: QueueSite) -> None:
    site.queue.use_codec(AesGcm(Keys((Key("k1", b"x" * 32),))))
    job_id = await site.put(payload={"iban": "DE0212345"})
    await site.end(Settlement.done, {"iban": "DE0212345"})
    page = await site.get(AT + job_id)
    assert "key id k1" in page
    assert "The result is encrypted" in page
    assert "DE0212345" not in page
    await site.post(AT + job_id, "again")
    assert site.noted == ["again refused"]
    for what in ("payload", "result"):
        assert "DE0212345" not in await site.get(f"{AT}{job_id}/raw/{what}", 404)


@on_site
async def test_large_payloads_are_cut_on_the_page_and_whole_in_the_download(
    site: QueueSite,
) -> None:
    job_id = await site.put(payload={"list": list(range(90_000)), "text": "<b>" * 50_000})
    page = await site.get(AT + job_id)
    assert len(page) < 250_000
    assert "89,900 more" in page
    answer = await site.http.get(f"{AT}{job_id}/raw/payload")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["list"][-1] == 89_999


class DeadJobsOnly(MemoryQueue):
    """As SQS: it lists dead jobs only, and shows none by its id."""

    capabilities = replace(MemoryQueue.capabilities, views=False)

    async def _find(self, job_id: str) -> JobInfo | None:
        raise self._no_views("show one job")


@on_site
async def test_a_store_that_lists_dead_jobs_only_shows_these(site: QueueSite) -> None:
    site.queue = queue = DeadJobsOnly()
    site.source._use = lambda: queue
    job_id = await site.put(payload={"to": "ada"})
    assert "shows no other jobs" in await site.get(AT + job_id, 404)
    await site.end(Settlement.dead, "boom")
    assert "boom" in await site.get(AT + job_id)
    assert "ada" in await site.get(f"{AT}{job_id}/raw/payload")


@on_site
async def test_what_is_not_there_is_not_found(site: QueueSite) -> None:
    job_id = await site.put()
    for path in ("raw/x", "log", "files/artefacts/a"):
        await site.get(f"{AT}{job_id}/{path}", 404)
    for path in ("999", "999/raw/payload", "999/log"):
        await site.get(AT + path, 404)
    await site.get(f"/queues/nowhere/jobs/{job_id}", 404)


@on_site
async def test_who_may_only_read_sees_no_buttons(site: QueueSite) -> None:
    job_id = await site.put()
    for scope, read_only in (("read", False), ("operate", True)):
        site.access.scope, site.access.read_only = scope, read_only  # type: ignore[assignment]
        assert 'name="action"' not in await site.get(AT + job_id)
        await site.refused(AT + job_id, "cancel")
    assert (await site.job(job_id)).state == "ready"


@on_site
async def test_a_store_that_does_not_answer_becomes_a_notice(site: QueueSite) -> None:
    async def fail(_: str) -> None:
        raise StoreUnavailable("the store is away")

    site.queue.get = fail  # type: ignore[method-assign, assignment]
    assert "the store is away" in await site.get(AT + "1")


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for each in data:
        yield each


def test_a_controllers_job_has_its_log_and_files() -> None:
    async def run() -> None:
        async with Controller("memory://") as controller:
            sources = Sources(controller=controller)
            source = sources.add_queue(controller.queue)
            access = Somebody("operate")
            job_id = await controller.put("build", {"ref": "main"}, attempts=5)
            [claim] = await controller.queue.claim("a" * 32, 1, "1m")
            lines = b"\x1b[31mred\x1b[0m <script>\nopen https://u:hunter2@x/\n"
            await controller.logs.append(claim, 0, b"begin\n" + lines)
            folder = controller.jobs.folder_of(job_id)
            await controller.artefacts.save(folder, "out/a <b>.html", pieces(b"<b>", b"bold"))
            async with browsing(application(Web(sources, access))) as http:
                site = QueueSite(http, controller.queue, access, source)
                at = f"/queues/{source.slug}/jobs/{job_id}"
                page = await site.get(at)
                assert "red &lt;script&gt;" in page
                assert "hunter2" not in page
                assert "1 of 5" in text_of(page)
                log = await http.get(f"{at}/log?attempt=1")
                assert log.headers["content-disposition"].startswith("attachment")
                assert "begin\n" in log.text
                assert "hunter2" not in log.text
                await site.get(f"{at}/log?attempt=7", 404)
                link = re.search(rf'href="({at}/files/[^"]+)"', page)
                assert link is not None
                answer = await http.get(unescape(link[1]))
                assert answer.content == b"<b>bold"
                assert answer.headers["content-type"] == "application/octet-stream"
                for name in ("nothing", "..%2f..%2fetc%2fpasswd"):
                    await site.get(f"{at}/files/artefacts/{name}", 404)
                # Put again: who does it becomes who put it.
                new = (await site.post(at, "again")).rpartition("/")[2]
                info = await controller.queue.get(new)
                assert info is not None
                assert info.job.headers["pollwise-by"] == "test"
                assert info.job.headers["pollwise-attempts"] == "5"

    asyncio.run(run())


@on_site
async def test_a_job_that_failed_again_after_its_retry_still_says_so(site: QueueSite) -> None:
    job_id = await site.put()
    await site.end(Settlement.retry, 0, "one")
    await site.end(Settlement.dead, "two")
    assert not was_retried(await site.job(job_id))
    await site.queue.retry([job_id])
    assert was_retried(await site.job(job_id))
    await site.end(Settlement.dead, "three")
    assert was_retried(await site.job(job_id))
    page = text_of(await site.get(AT + job_id))
    order = ("Attempt 2 failed", "Retried", "three", "Dead")
    assert [page.index(each) for each in order] == sorted(page.index(each) for each in order)
