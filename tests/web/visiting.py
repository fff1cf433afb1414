"""Visits pages without JavaScript, for tests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import unescape
from typing import Any

import httpx
from starlette.requests import Request

from pollwise.queues.base import Queue
from pollwise.runtime.clock import Clock
from pollwise.web.access import Viewer, WebAccess
from pollwise.web.app import Web, application
from pollwise.web.sources import Sources
from pollwise.web.view import View, Visit
from tests.web.viewers import Everybody

HOSTILE = "<script>alert(1)</script>\"'><img src=x>"


class Visitor:
    """Looks at the pages of some queues."""

    def __init__(
        self, *queues: Queue, access: WebAccess | None = None, clock: Clock | None = None
    ) -> None:
        self.sources = Sources(clock=clock or Clock())
        for queue in queues:
            self.sources.add_queue(queue)
        self.web = Web(self.sources, access or Everybody())
        transport = httpx.ASGITransport(application(self.web))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://test")

    async def get(self, path: str, status: int = 200) -> str:
        answer = await self._client.get(path)
        assert answer.status_code == status, answer.text
        assert "<script>alert" not in answer.text
        assert "<img src=x>" not in answer.text
        return answer.text

    def visit(self, path: str, **parts: str) -> Visit:
        """A request of a live page, as its script sends it."""
        place, _, query = path.partition("?")
        scope = {
            "type": "http", "method": "GET", "path": place, "query_string": query.encode(),
            "headers": [(b"accept", b"text/event-stream"), (b"host", b"test")],
            "path_params": parts,
        }  # fmt: skip
        return Visit(self.web, Request(scope), Viewer("tester", "admin", "token"))

    async def main(self, path: str, status: int = 200) -> str:
        """The text of the page's contents, without tags."""
        html = await self.get(path, status)
        return text_of(html[html.index("<main") : html.index("</main>")])

    async def post(
        self, path: str, action: str, ids: Iterable[str] = (), **fields: str
    ) -> httpx.Response:
        page = await self._client.get(path)
        token = re.search(r'name="csrf" value="([^"]*)"', page.text)
        data: dict[str, Any] = {"csrf": token[1] if token else "", "action": action, **fields}
        return await self._client.post(path, data={**data, "id": list(ids)})


def text_of(html: str) -> str:
    """The text of some HTML in one line."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def view_of(web: Web, name: str) -> View:
    """The page of this name."""
    found = next(each for each in web.views if each.name == name)
    assert isinstance(found, View)
    return found
