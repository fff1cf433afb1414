"""Logging in: sessions, forms, limits, and what attackers try."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from pollwise import web as pollwise_web
from pollwise.errors import ConfigError
from pollwise.queues.memory import MemoryQueue
from pollwise.testing import VirtualClock
from pollwise.web import access as web_access
from pollwise.web.access import Viewer
from pollwise.web.security.forms import is_local
from pollwise.web.security.limits import (
    ADDRESS_ATTEMPTS,
    ALL_ATTEMPTS,
    SESSION_EVERY,
    TOKEN_SESSIONS,
    LoginLimits,
)
from pollwise.web.security.passwords import Password, read_password
from tests.web.site import PASSWORD, Site, csrf_in, on_site

WRONG = "not a valid token or password"


def test_nothing_is_shown_without_a_login() -> None:
    async def main(site: Site) -> None:
        for path in ("/", "/audit", "/tokens"):
            answer = await site.http.get(path)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/login")
        assert (await site.http.get("/audit?who=a")).headers["location"] == (
            "/login?next=%2Faudit%3Fwho%3Da"
        )
        live = await site.http.get("/", headers={"Accept": "text/event-stream"})
        assert live.text.startswith("event: login")
        assert (await site.http.post("/theme", data={"theme": "dark"})).status_code == 303
        for path in ("/nothing", "/static/nothing", "/queues/mail/nothing"):
            unknown = await site.http.get(path)
            assert unknown.status_code == 401, "nobody learns what exists"
            assert 'href="/queues' not in unknown.text
        assert (await site.http.post("/audit")).status_code == 401
        for path in ("/livez", "/readyz"):
            assert (await site.http.get(path)).json() == {"status": "ok"}

    on_site(main)


def test_a_password_logs_in_and_out() -> None:
    async def main(site: Site) -> None:
        answer = await site.log_in(PASSWORD, next="/audit")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/audit"
        cookie = next(c for c in answer.headers.get_list("set-cookie") if "session" in c)
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert "Path=/" in cookie
        assert "Secure" not in cookie
        page = await site.http.get("/")
        assert page.status_code == 200
        assert "Log out" in page.text
        stolen = dict(site.http.cookies)
        out = await site.http.post("/logout", data={"csrf": csrf_in(page.text)})
        assert out.headers["location"] == "/login"
        assert (await site.http.get("/")).status_code == 303
        async with site.browser(cookies=stolen) as thief:
            assert (await thief.get("/")).status_code == 303
        assert await site.audit() == [("logout", "password"), ("login", "password")]

    on_site(main)


def test_a_cookie_is_secure_under_https() -> None:
    async def main(site: Site) -> None:
        async with site.browser(base_url="https://web") as http:
            answer = await site.log_in(PASSWORD, http)
            assert all("Secure" in each for each in answer.headers.get_list("set-cookie"))

    on_site(main)


@pytest.mark.parametrize("scope", ["read", "operate", "admin", "put", "worker"])
def test_tokens_log_in_by_scope(scope: str) -> None:
    async def main(site: Site) -> None:
        row, secret = await site.tokens.make(scope, "Ada")
        answer = await site.log_in(secret)
        if scope in ("put", "worker"):
            assert answer.status_code == 401
            assert WRONG in answer.text
            return
        assert answer.status_code == 303
        assert f"Ada <small>{scope}" in (await site.http.get("/")).text
        assert (await site.http.get("/tokens")).status_code == (200 if scope == "admin" else 403)
        kept = await site.state.token(row.id)
        assert kept is not None
        assert kept.last_used_at is not None

    on_site(main)


def test_a_session_ends_with_its_token() -> None:
    async def main(site: Site) -> None:
        for end in ("revoke", "rotate", "expire", "time"):
            row, secret = await site.tokens.make("read", end, expires_in="1h")
            async with site.browser() as http:
                assert (await site.log_in(secret, http)).status_code == 303
                assert (await http.get("/")).status_code == 200
                if end == "revoke":
                    await site.tokens.revoke(row.id)
                elif end == "rotate":
                    await site.tokens.rotate(row.id)
                else:
                    await site.clock.sleep(3600)
                await site.clock.sleep(6)  # another process did it: the owner is remembered
                assert (await http.get("/")).status_code == 303, end

    on_site(main)


def test_a_session_ends_with_the_password_and_with_time() -> None:
    async def main(site: Site) -> None:
        await site.log_in(PASSWORD)
        assert (await site.http.get("/")).status_code == 200
        other = pollwise_web.app(MemoryQueue(), password="another password", state=site.state)
        async with site.browser(app=other, cookies=dict(site.http.cookies)) as http:
            assert (await http.get("/")).status_code == 303
        await site.clock.sleep(12 * 3600 + 1)
        async with site.browser(cookies=dict(site.http.cookies)) as http:
            assert (await http.get("/")).status_code == 303

    on_site(main)


def test_cookies_cannot_be_forged() -> None:
    async def main(site: Site) -> None:
        await site.log_in(PASSWORD)
        name, value = next((n, v) for n, v in site.http.cookies.items() if "session" in n)
        body, _, code = value.rpartition(".")
        login = site.access.signer.signed("login", ["password", "", "x"], 1000)
        forged = [
            "", ".", "a.b", body, f"{body}.", f".{code}", f"{body}A.{code}",
            f"{body}.{code[:-2]}AA", value * 20, "\xff", login,
            site.access.signer.signed("session", ["password"], 1000),
            site.access.signer.signed("session", ["password", "", "x"], 1000),
            site.access.signer.signed("session", ["link", "", "x"], 1000),
            site.access.signer.signed("session", ["", "", ""], 1000),
        ]  # fmt: skip
        for each in forged:
            cookie = f"{name}={each}".encode("latin-1")
            async with site.browser(headers={"Cookie": cookie}) as http:
                assert (await http.get("/")).status_code == 303, each

    on_site(main)


def test_a_login_begins_a_new_session() -> None:
    """An attacker who plants a cookie must not share the session of the victim."""

    async def main(site: Site) -> None:
        await site.log_in(PASSWORD)
        planted = dict(site.http.cookies)
        _, secret = await site.tokens.make("read", "victim")
        async with site.browser(cookies={k: v for k, v in planted.items() if "login" in k}) as http:
            await site.log_in(secret, http)
            fresh = {k: v for k, v in http.cookies.items() if "session" in k}
            assert fresh
            assert not set(fresh.values()) & set(planted.values())

    on_site(main)


def test_forms_need_the_token_of_their_session() -> None:
    async def main(site: Site) -> None:
        await site.log_in(PASSWORD)
        mine = csrf_in((await site.http.get("/tokens")).text)
        form = {"action": "token.create", "name": "x", "scope": "read", "life": "30d"}
        async with site.browser() as http:
            await site.log_in(PASSWORD, http)
            theirs = csrf_in((await http.get("/tokens")).text)
        assert theirs != mine
        for csrf in ({}, {"csrf": ""}, {"csrf": theirs}, {"csrf": mine[:-1]}, {"csrf": "é"}):
            assert (await site.http.post("/tokens", data={**form, **csrf})).status_code == 403
        for headers in (
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://web.evil.example"},
        ):
            data = {**form, "csrf": mine}
            answer = await site.http.post("/tokens", data=data, headers=headers)
            assert answer.status_code == 403, headers
            page = await site.http.get("/login", headers=headers)
            data = {"csrf": csrf_in(page.text) if page.status_code == 200 else "", "secret": "x"}
            assert (await site.http.post("/login", data=data, headers=headers)).status_code == 403
        assert await site.state.list_tokens() == []
        for headers in ({"Origin": "http://web"}, {"Sec-Fetch-Site": "same-origin"}, {}):
            answer = await site.http.post("/tokens", data={**form, "csrf": mine}, headers=headers)
            assert answer.status_code == 200
        assert len(await site.state.list_tokens()) == 3

    on_site(main)


def test_a_login_form_belongs_to_its_browser() -> None:
    async def main(site: Site) -> None:
        csrf = csrf_in((await site.http.get("/login")).text)
        async with site.browser() as other:
            answer = await other.post("/login", data={"csrf": csrf, "secret": PASSWORD})
            assert answer.status_code == 400
            assert "session" not in str(answer.headers.get_list("set-cookie"))
        await site.clock.sleep(3601)
        late = await site.http.post("/login", data={"csrf": csrf, "secret": PASSWORD})
        assert late.status_code == 400

    on_site(main)


HOSTILE_TARGETS = (
    "//evil.example", "/\\evil.example", "\\\\evil.example", "https://evil.example", "/\t/evil",
    "/\n/evil.example", "///evil.example", "javascript:alert(1)", "/a\r\nSet-Cookie: x=1", "evil",
    "/../../x", "/%2e%2E/x", "/ /evil", "/login?next=/", "/logout", "/once/x", "/" + "a" * 3000,
    "@evil.example",
)  # fmt: skip


def test_no_redirect_leaves_the_site() -> None:
    async def main(site: Site) -> None:
        for target in HOSTILE_TARGETS:
            async with site.browser() as http:
                assert target not in (await http.get("/login", params={"next": target})).text
                answer = await site.log_in(PASSWORD, http, next=target)
                assert answer.headers["location"] == "/", target
                again = await http.get("/login", params={"next": target})
                assert again.headers["location"] == "/"
                csrf = csrf_in((await http.get("/")).text)
                form = {"csrf": csrf, "theme": "dark", "back": target}
                back = await http.post("/theme", data=form)
                if not target.startswith(("/login", "/logout", "/once")):
                    assert back.headers["location"] == "/theme", target
                assert "x=1" not in str(back.headers.get_list("set-cookie"))

    on_site(main)
    assert is_local("/queues/mail?state=dead&key=a%2Fb")
    assert is_local("/pollwise/x", "/pollwise")
    assert not is_local("/other/x", "/pollwise")
    assert not is_local("/pollwisely", "/pollwise")


def test_the_host_of_a_request_is_in_no_link() -> None:
    async def main(site: Site) -> None:
        headers = {"Host": "evil.example", "X-Forwarded-Host": "evil.example"}
        for path in ("/", "/login", "/login/", "/audit/", "/nothing"):
            answer = await site.http.get(path, headers=headers)
            assert "evil" not in answer.text + str(answer.headers)

    on_site(main)


def test_attempts_are_limited_by_address() -> None:
    async def main(site: Site) -> None:
        for _ in range(ADDRESS_ATTEMPTS):
            answer = await site.log_in("wrong")
            assert answer.status_code == 401
            assert WRONG in answer.text
        refused = await site.log_in(PASSWORD)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        spoof = {"X-Forwarded-For": "198.51.100.9", "Forwarded": "for=198.51.100.9"}
        async with site.browser(headers=spoof) as http:
            assert (await site.log_in(PASSWORD, http)).status_code == 429
        async with site.browser("192.0.2.2") as http:
            assert (await site.log_in(PASSWORD, http)).status_code == 303
        _, secret = await site.tokens.make("read", "owner")
        async with site.browser() as http:
            assert (await site.log_in("pollwise_wrong", http)).status_code == 429
            assert (await site.log_in(secret, http)).status_code == 303, "the owner gets in"
        await site.clock.sleep(31)
        assert (await site.log_in(PASSWORD)).status_code == 303
        failed = [each for each in await site.audit() if each[0] == "login.failed"]
        assert failed == [("login.failed", "nobody")] * ADDRESS_ATTEMPTS

    on_site(main)


def test_sessions_of_one_token_are_limited_because_each_is_an_entry_of_the_audit_log() -> None:
    async def main(site: Site) -> None:
        _, secret = await site.tokens.make("read", "flood")
        found = []
        for n in range(TOKEN_SESSIONS + 20):
            async with site.browser(f"192.0.2.{n}") as http:
                found.append(await site.log_in(secret, http))
        assert [each.status_code for each in found] == [303] * TOKEN_SESSIONS + [429] * 20
        assert "Too many logins with this token" in found[-1].text
        assert 0 < int(found[-1].headers["retry-after"]) <= SESSION_EVERY
        assert len([each for each in await site.audit() if each[0] == "login"]) == TOKEN_SESSIONS
        _, other = await site.tokens.make("read", "other")
        async with site.browser("198.51.100.1") as http:
            assert (await site.log_in(other, http)).status_code == 303
            await site.clock.sleep(SESSION_EVERY + 1)
        async with site.browser("198.51.100.2") as http:
            assert (await site.log_in(secret, http)).status_code == 303

    on_site(main)


def test_the_audit_log_is_pruned_until_it_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_access, "PRUNED_AT_ONCE", 10)

    async def main(site: Site) -> None:
        state = site.state
        for n in range(45):
            await state.note("somebody", "old", str(n))
        monkeypatch.setattr(web_access, "AUDIT_KEPT", 100)
        await site.clock.sleep(200)
        for _ in range(6):  # entries that follow each other: more than one in PRUNE_EVERY
            await site.log_in("wrong")
        kept = await state.list_audit(limit=100)
        assert "old" not in {each.action for each in kept}

    on_site(main)


def test_attempts_from_many_addresses_are_limited_together() -> None:
    clock = VirtualClock()
    limits = LoginLimits(clock)

    async def main() -> None:
        assert limits.begin("192.0.2.1") == 0
        limits.succeeded("192.0.2.1")
        tried = sum(limits.begin(f"10.0.{n // 250}.{n % 250}") == 0 for n in range(1000))
        assert tried == ALL_ATTEMPTS
        assert limits.begin("198.51.100.1") > 0
        assert limits.begin("192.0.2.1") == 0, "who logged in before is not locked out"
        for n in range(11_000):
            limits.begin(f"2001:db8:{n:x}::1")
        assert len(limits._by) <= 10_000
        await clock.sleep(1e6)
        one = [limits.begin(f"2001:db8::{n:x}") for n in range(50)]
        assert sum(wait == 0 for wait in one) == ADDRESS_ATTEMPTS, "64 bits count as one"

    clock.run(main())


def test_an_address_that_logs_in_once() -> None:
    async def main(site: Site) -> None:
        path, late = site.access.one_time(), site.access.one_time()
        assert (await site.http.get(path)).headers["location"] == "/"
        assert (await site.http.get("/tokens")).status_code == 200
        assert (await site.http.get(path)).status_code == 303  # logged in already
        async with site.browser() as http:
            assert (await http.get(path)).status_code == 401
            await site.clock.sleep(601)
            assert (await http.get(late)).status_code == 401
            assert (await http.get("/once/x")).status_code == 401
        other = pollwise_web.app(MemoryQueue(), password=PASSWORD, state=site.state)
        async with site.browser(app=other, cookies=dict(site.http.cookies)) as http:
            assert (await http.get("/")).status_code == 303, "it is for one process"

    on_site(main)


def test_under_a_mount_path() -> None:
    async def main(site: Site) -> None:
        outer = Starlette()
        outer.mount("/admin/jobs", site.app)
        async with site.browser(app=outer) as http:
            asked = await http.get("/admin/jobs/audit")
            assert asked.headers["location"] == "/admin/jobs/login?next=%2Fadmin%2Fjobs%2Faudit"
            answer = await site.log_in(PASSWORD, http, "/admin/jobs", next="/admin/jobs/audit")
            assert answer.headers["location"] == "/admin/jobs/audit"
            assert all("Path=/admin/jobs" in c for c in answer.headers.get_list("set-cookie"))
            page = await http.get("/admin/jobs/")
            links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
            assert links
            assert all(link.startswith("/admin/jobs/") for link in links), links
            for link in links:
                if "/static/" in link:
                    assert (await http.get(link)).status_code == 200
            evil = await site.log_in(PASSWORD, http, "/admin/jobs", next="/other")
            assert evil.headers["location"] == "/admin/jobs/"

    on_site(main)


def test_read_only_lets_nobody_change_anything() -> None:
    async def main(site: Site) -> None:
        await site.log_in(PASSWORD)
        page = await site.http.get("/")
        assert "read-only" in page.text
        csrf = csrf_in(page.text)
        form = {"csrf": csrf, "action": "token.create", "name": "x", "scope": "read"}
        assert (await site.http.post("/tokens", data=form)).status_code == 403
        refused = await site.http.get("/tokens")
        assert refused.status_code == 403
        assert "Not allowed: this web interface is read-only." in refused.text
        assert await site.state.list_tokens() == []
        assert (await site.http.post("/logout", data={"csrf": csrf})).status_code == 303

    on_site(main, read_only=True)


def test_forms_have_limits() -> None:
    async def main(site: Site) -> None:
        await site.log_in(PASSWORD)
        csrf = csrf_in((await site.http.get("/")).text)
        form = {"csrf": csrf, "theme": "dark"}

        async def post(**given: Any) -> int:
            return (await site.http.post("/theme", **given)).status_code

        assert await post(data={**form, "x": "a" * 300_000}) == 413
        assert await post(data={**form, **{f"f{n}": "" for n in range(1001)}}) in (400, 413)
        assert await post(json=form) == 415
        assert await post(data=form, files={"x": b"a"}) == 400
        assert await post(data=form) == 303
        assert (await site.http.get("/theme")).status_code == 405
        assert (await site.http.get("/?" + "a" * 9000)).status_code == 400
        assert (await site.http.request("BREW", "/")).status_code == 405

    on_site(main)


def test_an_error_shows_nothing_of_the_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(site: Site) -> None:
        async def broken(*_: object) -> None:
            raise ValueError("postgresql://app:hunter2@db")

        monkeypatch.setattr(site.app.web.access, "_found", broken)
        transport = httpx.ASGITransport(site.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://web") as http:
            answer = await http.get("/")
        assert answer.status_code == 500
        assert "hunter2" not in answer.text
        assert "Content-Security-Policy" in answer.headers

    on_site(main)


# The application's own login


def test_the_application_says_who_looks() -> None:
    async def authorise(request: Request) -> Viewer | None:
        name = request.headers.get("x-user")
        return None if name is None else Viewer(name, "operate")

    async def main(site: Site) -> None:
        assert (await site.http.get("/")).headers["location"] == "/accounts/login"
        ada, bob = {"X-User": "ada"}, {"X-User": "bob"}
        page = await site.http.get("/", headers=ada)
        assert "ada <small>operate" in page.text
        assert "Log out" not in page.text
        assert (await site.http.get("/tokens", headers=ada)).status_code == 404
        assert (await site.http.get("/login", headers=ada)).status_code == 404
        form = {"csrf": csrf_in(page.text), "theme": "dark"}
        assert (await site.http.post("/theme", data=form, headers=bob)).status_code == 403
        assert (await site.http.post("/theme", data=form, headers=ada)).status_code == 303

    on_site(main, authorise=authorise, password=None, login="/accounts/login")


def test_a_wrong_answer_of_authorise_lets_nobody_in() -> None:
    async def main(site: Site) -> None:
        with pytest.raises(TypeError, match="authorise returned bool"):
            await site.http.get("/")

    on_site(main, authorise=lambda request: True, password=None)


def test_it_is_closed_unless_it_is_opened() -> None:
    with pytest.raises(ConfigError, match="open to everybody"):
        pollwise_web.app("sqlite:///jobs.db")
    with pytest.raises(ConfigError, match="both authorise and password"):
        pollwise_web.app(authorise=pollwise_web.everybody, password=PASSWORD)

    async def main() -> None:
        queue = MemoryQueue()
        async with pollwise_web.app(queue, authorise=pollwise_web.everybody) as app:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                assert (await http.get("/")).status_code == 200
        await queue.stats()  # a queue that was given stays open

    asyncio.run(main())


def test_without_a_login_only_addresses_are_answered() -> None:
    """A name could be made to point here by the page of somebody else: DNS rebinding."""
    good = ["localhost", "LOCALHOST:8430", "localhost.", "127.0.0.1", "127.1.2.3:80", "[::1]",
            "[::1]:8430", "192.168.1.7:8430"]  # fmt: skip
    bad = ["evil.example", "evil.example:8430", "127.0.0.1.evil.example", "localhost.evil.example",
           "evil.localhost.example", "localhost:80:80", "localhost@evil.example", "::1", "",
           "[localhost]", "[127.0.0.1]", "127.0.0.1:", "evil.example#localhost",
           "localhost:99999999"]  # fmt: skip

    async def main() -> None:
        async with pollwise_web.app(MemoryQueue(), authorise=pollwise_web.everybody) as app:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
                for host in (*good, *bad):
                    answer = await http.get("/", headers={"Host": host})
                    assert answer.status_code == (200 if host in good else 403), host
                    acted = await http.post("/theme", headers={"Host": host})
                    assert (acted.status_code == 403) or host in good, host
                refused = await http.get("/", headers={"Host": "evil.example"})
                assert "only at localhost" in refused.text
                twice = [("Host", "localhost"), ("Host", "evil.example")]
                assert (await http.get("/", headers=twice)).status_code == 403

    asyncio.run(main())


def test_password_files_are_private(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n# not the password\n")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=r"password file .* has the mode 0644.*chmod 600"):
        read_password(file)
    file.chmod(0o600)
    password = Password(read_password(file))
    assert password.is_it(PASSWORD)
    assert not password.is_it(PASSWORD + "x")
    assert not password.is_it("")
    assert PASSWORD not in repr(password)
    with pytest.raises(ConfigError, match="5 characters"):
        Password("short")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_password(tmp_path / "missing")
