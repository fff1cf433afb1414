"""A web interface over queues in memory, for tests of pages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.jobs import JobInfo, NewJob
from pollwise.web.app import Web, application
from pollwise.web.sources import QueueSource, Sources
from tests.web.viewers import Somebody, browsing

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


@dataclass
class QueueSite:
    """A web interface over the queues `default` and `other`, and its viewer."""

    http: httpx.AsyncClient
    queue: Queue
    access: Somebody
    source: QueueSource

    async def get(self, path: str, status: int = 200) -> str:
        answer = await self.http.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    async def post(self, path: str, action: str, **form: str) -> str:
        """Send a form; returns the address of the page that follows."""
        answer = await self.http.post(path, data=self._form(action, form))
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])

    async def refused(self, path: str, action: str, **form: str) -> None:
        """Send a form that the viewer may not send."""
        answer = await self.http.post(path, data=self._form(action, form))
        assert answer.status_code == 403, answer.text

    def _form(self, action: str, form: Mapping[str, str]) -> dict[str, str]:
        return {**form, "csrf": self.access.csrf, "action": action}

    async def put(self, kind: str = "mail", payload: Any = None, **more: Any) -> str:
        [job_id] = await self.queue.put(NewJob(kind, payload, **more))
        return job_id

    async def job(self, job_id: str) -> JobInfo:
        info = await self.queue.get(job_id)
        assert info is not None
        return info

    async def end(self, how: Callable[..., Any], *more: Any) -> None:
        """Claim a job and settle it."""
        [claim] = await self.queue.claim("worker-1", 1, "1m")
        await self.queue.settle([how(claim, *more)])

    @property
    def noted(self) -> list[str]:
        """The actions in the audit log."""
        return [action for action, _ in self.access.noted]


def on_site(test: Callable[[QueueSite], Awaitable[None]]) -> Callable[[], None]:
    """A test that gets a web interface of its own."""

    async def run() -> None:
        queue, access, sources = MemoryQueue(keep="1d"), Somebody("operate"), Sources()
        source = sources.add_queue(queue)
        sources.add_queue(MemoryQueue("other"))
        async with browsing(application(Web(sources, access))) as http:
            await test(QueueSite(http, queue, access, source))

    def tested() -> None:
        asyncio.run(run())

    return tested
