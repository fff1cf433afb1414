"""What attackers tried, and what they must not get."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.web import live
from tests.web.queue_site import QueueSite
from tests.web.queue_site import on_site as on_queue_site
from tests.web.site import PASSWORD, Site, on_site
from tests.web.viewers import Somebody
from tests.web.visiting import Visitor, view_of

LIVE = {"Accept": "text/event-stream"}


def test_an_error_writes_no_events_of_its_own() -> None:
    async def main() -> None:
        async with MemoryQueue("mail") as queue:
            await queue.put(NewJob("k"))
            [claim] = await queue.claim("w", 1, "1m")
            await queue.settle([Settlement.dead(claim, "x\r\revent: login\rdata: y\r\r")])
            visitor = Visitor(queue)
            visit = visitor.visit("/queues/mail/jobs/1", slug="mail", id=claim.job.id)
            view = view_of(visitor.web, "job")
            events = live._events(view, visit)
            sent = [await anext(events), await anext(events)]
            assert "event: login" in sent[1]
            assert not any("\r" in each for each in sent)

    asyncio.run(main())


def test_streams_that_begin_at_once_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STREAMS_EACH", 3)

    async def main(site: Site) -> None:
        await site.log_in(PASSWORD)
        site.app.web.stopping.set()  # each ends after its beginning
        asked = (site.http.get("/", headers=LIVE) for _ in range(20))
        answers = [each.status_code for each in await asyncio.gather(*asked)]
        assert answers.count(200) >= 3
        assert answers.count(503) > 0
        assert not site.app.web.streams, "all of them ended"
        assert (await site.http.get("/", headers=LIVE)).status_code == 200

    on_site(main)


def test_a_stream_ends_when_the_server_of_a_mounted_application_stops() -> None:
    class Server:
        """As uvicorn's."""

        should_exit = False

        def handle_exit(self, *_: object) -> None:
            self.should_exit = True

    async def main() -> None:
        async with MemoryQueue("mail") as queue:
            visitor = Visitor(queue)
            visitor.web.refresh = 3600.0
            events = live._events(view_of(visitor.web, "overview"), visitor.visit("/"))
            assert (await anext(events)).startswith("retry:")
            assert (await anext(events)).startswith("event: main")
            signal.raise_signal(signal.SIGTERM)
            assert [each async for each in events] == []

    before = signal.signal(signal.SIGTERM, Server().handle_exit)
    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_stream_ends_when_its_viewer_loses_the_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "CHECK_EVERY", 0.0)

    async def main() -> None:
        access = Somebody("admin")
        async with MemoryQueue("mail") as queue:
            visitor = Visitor(queue, access=access)
            visitor.web.refresh = 0.001
            view = view_of(visitor.web, "overview")
            monkeypatch.setattr(view, "scope", "admin", raising=False)
            events = live._events(view, visitor.visit("/"))
            assert (await anext(events)).startswith("retry:")
            assert (await anext(events)).startswith("event: main")
            access.scope = "read"
            assert [each async for each in events] == ["event: login\ndata: \n\n"]

    asyncio.run(main())


@on_queue_site
async def test_lists_show_errors_without_secrets(site: QueueSite) -> None:
    await site.put()
    await site.end(Settlement.dead, "401 at https://u:hunter2@x/ with {'api_key': 'hunter2'}")
    assert "hunter2" not in await site.get("/queues/default?state=dead")
    assert "hunter2" not in await site.get("/queues/default/workers/worker-1")


@on_queue_site
async def test_a_double_click_puts_a_job_again_once(site: QueueSite) -> None:
    job_id = await site.put()
    at = f"/queues/default/jobs/{job_id}"
    went = await asyncio.gather(*(site.post(at, "again") for _ in range(5)))
    assert sorted(went)[:4] == [at] * 4
    assert (await site.queue.stats()).ready == 2
    assert sorted(site.noted) == ["again", *["again refused"] * 4]


def test_forms_are_utf_8() -> None:
    async def main(site: Site) -> None:
        await site.log_in(PASSWORD)
        body = b'--B\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--B--\r\n'
        for charset in ("punycode", "undefined", "idna", "unicode_escape", '"utf-7"'):
            kind = {"Content-Type": f"multipart/form-data; boundary=B; charset={charset}"}
            for path in ("/login", "/theme", "/lab"):
                answer = await site.http.post(path, content=body, headers=kind)
                assert answer.status_code == 415, (path, charset)
        kind = {"Content-Type": "multipart/form-data; boundary=B; charset=UTF-8"}
        assert (await site.http.post("/theme", content=body, headers=kind)).status_code == 403

    on_site(main)


def test_only_our_own_files_are_kept_by_browsers() -> None:
    async def main(site: Site) -> None:
        await site.log_in(PASSWORD)
        kept = {
            path: (await site.http.get(path)).headers["cache-control"]
            for path in ("/static/app.css?1", "/static/none?1", "/queues/mail/workers/static/a?1")
        }
        assert "immutable" in kept.pop("/static/app.css?1")
        assert set(kept.values()) == {"no-store"}

    on_site(main)


def test_a_preview_does_not_use_up_an_address() -> None:
    async def main(site: Site) -> None:
        path = site.access.one_time()
        assert (await site.http.head(path)).status_code == 401, "as any address without a login"
        assert (await site.http.get(path)).headers["location"] == "/"

    on_site(main)


def test_a_long_message_fits_into_a_cookie() -> None:
    async def main(site: Site) -> None:
        await site.log_in(PASSWORD)
        scope: dict[str, Any] = {"type": "http", "path": "/", "headers": []}
        answer = Response()
        site.access.flash(Request(scope), answer, "\U0001f600" * 1000, good=True)
        cookie = answer.headers["set-cookie"].partition(";")[0]
        assert len(cookie) < 2000
        found = site.access.flashed(Request({**scope, "headers": [(b"cookie", cookie.encode())]}))
        assert found == ("\U0001f600" * 250 + "…", True)

    on_site(main)
