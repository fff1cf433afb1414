"""`pollwise web` as a process, the pages of `pollwise serve`, and what both refuse."""

from __future__ import annotations

import asyncio
import re
import signal
import stat
from pathlib import Path

import httpx
import pytest

from pollwise.controller import Controller
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import NewJob
from pollwise.web.app import app, mount_beside_api
from tests.cli.console import Command, pollwise
from tests.web.site import csrf_in


def make_store(path: Path, *names: str) -> str:
    async def main() -> None:
        for name in names:
            async with open_queue(f"sqlite:///{path}?queue={name}") as queue:
                await queue.put(NewJob("greet"))

    asyncio.run(main())
    return f"sqlite:///{path}"


def log_in(http: httpx.Client, url: str, secret: str) -> httpx.Response:
    form = {"csrf": csrf_in(http.get(f"{url}/login").text), "secret": secret}
    return http.post(f"{url}/login", data=form, follow_redirects=True)


def test_it_shows_the_queues_of_a_store_and_stops_although_pages_are_live(folder: Path) -> None:
    store = make_store(folder / "jobs.db", "mail", "reports")
    with Command("web", store, "--port", "0") as it, httpx.Client() as http:
        said = it.err.until(r"first admin token is in (\S+),")
        file = Path(said[1])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        url = it.err.until(r"serving on (http://127\.0\.0\.1:\d+)")[1]
        assert http.get(f"{url}/").status_code == 303
        page = log_in(http, url, file.read_text().strip())
        assert page.status_code == 200
        assert re.findall(r'id="queue-([^"]+)"', page.text) == ["mail", "reports"]
        with http.stream("GET", f"{url}/", headers={"Accept": "text/event-stream"}) as stream:
            next(line for line in stream.iter_lines() if line.startswith("event: main"))
            it.send(signal.SIGTERM)
            assert it.end() == 0
    assert not any(file.read_text().strip() in line for line in [*it.out.all, *it.err.all])
    with Command("web", store, "--port", "0") as again:
        again.err.until(r"log in with a token; --link prints an address")
        again.err.until("serving on")
        again.send(signal.SIGTERM)
        assert again.end() == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to show"),
        (("sqlite:///missing.db",), "there is no database at"),
        (("--fleet", "sqlite:///missing.db"), "there is no database at"),
        (("--outbox", "sqlite:///missing.db"), "there is no database at"),
        (("jobs.db",), "has 'jobs.db', which is not a queue URL"),
        (("sqlite:///jobs.db", "--password-file", "open"), "has the mode 0644"),
        (("sqlite:///jobs.db", "--tls-cert", "c.pem"), "tls_key is missing"),
        (("sqlite:///jobs.db", "--root-path", "pollwise"), "is not a path"),
        (("sqlite:///jobs.db", "--trusted-proxy", "everybody"), "not an address or network"),
        (("sqlite:///jobs.db", "--set", "web.redact=a..b"), "redact has"),
        (("sqlite:///jobs.db", "--refresh", "0s"), "web.refresh"),
        (("memory://",), "in this process's memory"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_made(
    folder: Path, words: tuple[str, ...], said: str
) -> None:
    make_store(folder / "jobs.db", "mail")
    (folder / "open").write_text("a long password\n")
    (folder / "open").chmod(0o644)
    result = pollwise("web", *words)
    assert result.code != 0
    assert said in " ".join(result.err.split())
    assert sorted(path.name for path in folder.glob("*.db")) == ["jobs.db"]
    assert not (folder / "pollwise-admin.token").exists()


def test_a_controller_has_pages_beside_its_api(folder: Path) -> None:
    async def main() -> None:
        store = f"sqlite:///{folder}/jobs.db"
        async with Controller(store) as controller:
            web = app(controller=controller)
            web.web.show_store(controller.queue, store)
            mount_beside_api(controller, web)
            await controller.put("sign")
            async with open_queue(f"{store}?queue=mail") as queue:
                await queue.put(NewJob("greet"))
            _, admin = await controller.tokens.make("admin", "Ada")
            transport = httpx.ASGITransport(controller.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://c") as http:
                for path in ("/api/nothing", "/api", "/api/jobs", "/openapi.json"):
                    answer = await http.get(path)
                    assert answer.status_code == 401, path
                    assert answer.json()["error"]["code"] == "unauthorized"
                bearer = {"Authorization": f"Bearer {admin}"}
                unknown = await http.get("/api/nothing", headers=bearer)
                assert unknown.json()["error"]["code"] == "no_such_route"
                assert (await http.get("/livez")).json() == {"status": "ok"}
                assert (await http.post("/livez")).status_code == 405
                assert (await http.get("/")).headers["location"] == "/login"
                form = {"csrf": csrf_in((await http.get("/login")).text), "secret": admin}
                await http.post("/login", data=form)
                page = await http.get("/")
                assert re.findall(r'id="queue-([^"]+)"', page.text) == ["agents", "mail"]
                assert "first admin" not in page.text
                # A session is for pages only, and revoking its token ends it at once.
                assert (await http.get("/api/jobs")).status_code == 401
                [token] = await controller.storage.list_tokens()
                await http.delete(f"/api/tokens/{token.id}", headers=bearer)
                assert (await http.get("/")).status_code == 303
                log = [entry.action for entry in await controller.storage.list_audit()]
                assert log[:2] == ["token.revoke", "login"]
            await web.close()

    asyncio.run(main())


@pytest.mark.parametrize("shown", [True, False])
def test_serve_shows_the_web_interface_at_the_root(folder: Path, shown: bool) -> None:
    words = [] if shown else ["--set", "controller.web=false"]
    with Command("serve", "sqlite:///jobs.db", "--port", "0", *words) as it:
        url = it.err.until(r"serving on (http://127\.0\.0\.1:\d+)")[1]
        answer = httpx.get(f"{url}/")
        assert answer.status_code == (303 if shown else 401)
        assert httpx.get(f"{url}/livez").json() == {"status": "ok"}
        it.send(signal.SIGTERM)
        assert it.end() == 0
