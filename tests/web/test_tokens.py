"""The pages about tokens and the audit log."""

from __future__ import annotations

import re
from typing import Literal

import pytest
from starlette.requests import Request

from pollwise.web.access import Viewer
from pollwise.web.view import Visit
from tests.web.site import PASSWORD, Site, csrf_in, on_site
from tests.web.visiting import view_of

HOSTILE = "<script>alert(1)</script>"


async def posted(site: Site, action: str, **form: str) -> str:
    """What the page says after an action."""
    csrf = csrf_in((await site.http.get("/tokens")).text)
    data = {"csrf": csrf, "action": action, **form}
    answer = await site.http.post("/tokens", data=data, follow_redirects=True)
    assert answer.status_code == 200
    return answer.text


def test_a_token_is_shown_once() -> None:
    async def main(site: Site) -> None:
        await site.log_in(PASSWORD)
        form = {"name": HOSTILE, "scope": "operate", "life": "90d"}
        page = await posted(site, "token.create", **form)
        secret = re.search(r"<code>(pollwise_[^<]+)</code>", page)
        assert secret
        # Outside of what a live page replaces, and in no cookie.
        assert page.index(secret[1]) < page.index("<main")
        assert secret[1] not in str(site.http.cookies)
        again = await site.http.get("/tokens")
        assert secret[1] not in again.text
        assert HOSTILE not in again.text
        assert "&lt;script&gt;" in again.text
        [token] = await site.state.list_tokens()
        assert (token.scope, token.created_by) == ("operate", "password")
        assert token.expires_at is not None
        assert token.hash not in again.text
        async with site.browser() as http:
            assert (await site.log_in(secret[1], http)).status_code == 303
            assert (await http.get("/tokens")).status_code == 403
            page = await posted(site, "token.rotate", token=token.id)
            assert (await http.get("/")).status_code == 303, "the old secret logged in"
        rotated = re.search(r"<code>(pollwise_[^<]+)</code>", page)
        assert rotated
        assert rotated[1] != secret[1]
        async with site.browser() as http:
            assert (await site.log_in(secret[1], http)).status_code == 401
            assert (await site.log_in(rotated[1], http)).status_code == 303
            assert "is revoked" in await posted(site, "token.revoke", token=token.id)
            assert (await http.get("/")).status_code == 303, "revoked at once"
        assert "token.revoke" not in (await site.http.get("/tokens")).text
        actions = [action for action, _ in await site.audit() if "token" in action]
        assert actions == ["token.revoke", "token.rotate", "token.create"]
        log = str(await site.state.list_audit())
        assert secret[1] not in log
        assert rotated[1] not in log

    on_site(main)


def test_wrong_forms_change_nothing() -> None:
    async def main(site: Site) -> None:
        await site.log_in(PASSWORD)
        create = "token.create"
        assert "none of read" in await posted(site, create, name="x", scope="root")
        assert "not made" in await posted(site, create, name="", scope="read")
        assert "from the list" in await posted(site, create, name="x", scope="read", life="9d")
        assert "no such token" in await posted(site, "token.revoke", token="x" * 500)
        assert "does not exist" in await posted(site, "token.rotate")
        assert await site.state.list_tokens() == []
        csrf = csrf_in((await site.http.get("/tokens")).text)
        unknown = await site.http.post("/tokens", data={"csrf": csrf, "action": "drop"})
        assert unknown.status_code == 400

    on_site(main)


def test_tokens_and_the_audit_log_have_pages() -> None:
    async def main(site: Site) -> None:
        await site.log_in(PASSWORD)
        for n in range(60):
            await site.tokens.make("read", f"token {n:02}")
            await site.state.note(f"who {n % 2}", "job.put", str(n), HOSTILE, "192.0.2.9")
        first = (await site.http.get("/tokens")).text
        [after] = re.findall(r'href="(/tokens[?]after=[^"]+)"', first)
        second = (await site.http.get(after)).text
        names = re.findall(r"<strong>(token \d\d)</strong>", first + second)
        assert sorted(names) == [f"token {n:02}" for n in range(60)]

        page = (await site.http.get("/audit")).text
        assert HOSTILE not in page
        assert "192.0.2.9" in page
        older = re.search(r'href="(/audit[?][^"]*before=\d+)"', page)
        assert older
        rest = (await site.http.get(older[1].replace("&amp;", "&"))).text
        ids = [int(each) for each in re.findall(r'id="audit-(\d+)"', page + rest)]
        assert ids == sorted(ids, reverse=True)
        assert len(ids) == 61
        some = (await site.http.get("/audit", params={"who": "who 1", "action": "job.put"})).text
        assert len(re.findall(r'id="audit-\d+"', some)) == 30
        none = (await site.http.get("/audit", params={"who": HOSTILE, "before": "1e9"})).text
        assert "No entry fits" in none
        assert HOSTILE not in none

    on_site(main)


@pytest.mark.parametrize(("scope", "status"), [("read", 403), ("operate", 200)])
def test_the_audit_log_is_for_those_who_may_act(
    scope: Literal["read", "operate"], status: int
) -> None:
    async def main(site: Site) -> None:
        _, secret = await site.tokens.make(scope, "Ada")
        await site.log_in(secret)
        assert ('href="/audit"' in (await site.http.get("/")).text) == (status == 200)
        assert (await site.http.get("/audit")).status_code == status

    on_site(main)


def test_both_pages_are_live() -> None:
    """A live page renders only a part of its template: that part must be whole."""

    async def main(site: Site) -> None:
        await site.log_in(PASSWORD)
        await site.tokens.make("read", "Ada")
        for path, part in (("/tokens", "Ada"), ("/audit", "login")):
            page = (await site.http.get(path)).text
            web = site.app.web
            view = view_of(web, path[1:])
            scope = {"type": "http", "method": "GET", "path": path, "query_string": b"",
                     "headers": [], "server": ("web", 80)}  # fmt: skip
            visit = Visit(web, Request(scope), Viewer("password", "admin", csrf_in(page)))
            assert part in await web.pages.main(view, visit)
            assert await view.marker(visit) == await view.marker(visit)

    on_site(main)
