"""Viewers of pages in tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.requests import Request
from starlette.types import ASGIApp

from pollwise.web.access import Viewer, WebAccess, WebScope
from pollwise.web.view import Visit


class Everybody(WebAccess):
    """Lets everybody in, as an admin."""

    read_only = False

    def __init__(self) -> None:
        super().__init__(lambda _: Viewer("local", "admin"), read_only=type(self).read_only)


class Somebody(Everybody):
    """Lets everybody in with one scope, and remembers the entries of the audit log."""

    csrf = "csrf of a test"

    def __init__(self, scope: WebScope = "admin") -> None:
        super().__init__()
        self.scope = scope
        self.noted: list[tuple[str, str]] = []

    async def viewer(self, request: Request) -> Viewer:
        return Viewer("test", self.scope, self.csrf)

    async def note(self, visit: Visit, action: str, what: str) -> None:
        self.noted.append((action, what))


@asynccontextmanager
async def browsing(web: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the web interface, without a server."""
    transport = httpx.ASGITransport(web)
    async with httpx.AsyncClient(transport=transport, base_url="http://web") as http:
        yield http
