"""A web interface with its own login, and browsers without a server in between."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from pollwise import web as pollwise_web
from pollwise.controller.security.tokens import Tokens
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.queues.memory import MemoryQueue
from pollwise.testing import VirtualClock
from pollwise.web.access import SessionAccess
from pollwise.web.app import WebApp

PASSWORD = "correct horse"


class Site:
    """A web interface with a login, and a browser without a session."""

    def __init__(self, app: WebApp, state: SqliteState, clock: VirtualClock) -> None:
        self.app, self.state, self.clock = app, state, clock
        self.tokens = Tokens(state, clock)
        self.http = self.browser()

    def browser(self, address: str = "192.0.2.1", **given: Any) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(given.pop("app", self.app), client=(address, 1))
        return httpx.AsyncClient(transport=transport, **{"base_url": "http://web", **given})

    @property
    def access(self) -> SessionAccess:
        access = self.app.web.access
        assert isinstance(access, SessionAccess)
        return access

    async def log_in(
        self, secret: str, http: httpx.AsyncClient | None = None, root: str = "", **form: str
    ) -> httpx.Response:
        http = http or self.http
        page = await http.get(f"{root}/login")
        if page.status_code == 303:
            return page
        data = {"csrf": csrf_in(page.text), "secret": secret, **form}
        return await http.post(f"{root}/login", data=data)

    async def audit(self) -> list[tuple[str, str]]:
        return [(each.action, each.who) for each in await self.state.list_audit()]


def csrf_in(page: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found, page
    return found[1]


def on_site(main: Callable[[Site], Awaitable[None]], **given: Any) -> None:
    clock = VirtualClock()

    async def run() -> None:
        async with SqliteState.temporary(clock) as state:
            queue = MemoryQueue("mail", clock=clock)
            options = {"password": PASSWORD, "tokens": True, "state": state, **given}
            app = pollwise_web.app(queue, clock=clock, **options)
            async with app:
                await main(Site(app, state, clock))

    clock.run(run())
