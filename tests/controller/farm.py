"""A controller for tests: its application behind an HTTP client, in virtual time."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from pollwise.controller import Controller, ControllerOptions
from pollwise.controller.http.app import ControllerApp
from pollwise.controller.opening import queue_named, state_of
from pollwise.queues.base import Queue
from pollwise.runtime.clock import Clock, VirtualClock
from tests.support.kit import CountedMemory, CountedSqlite, Seen
from tests.support.servers import Postgres

URL = "http://controller"
#: How long finished jobs are kept.
KEEP = "7d"


@cache
def _schema() -> str:
    return json.dumps(Controller("memory://").app.openapi())


def described() -> dict[str, Any]:
    """The schema of the HTTP API: a copy, because generating it takes half a second."""
    schema: dict[str, Any] = json.loads(_schema())
    return schema


class Agent:
    """A registered worker."""

    def __init__(self, http: httpx.AsyncClient, answer: dict[str, Any]) -> None:
        self.http = http
        self.id: str = answer["worker_id"]
        self.token: str = answer["token"]
        self.headers = {"Authorization": f"Bearer {self.token}"}

    async def get(self, **given: Any) -> httpx.Response:
        headers = {**self.headers, **given.pop("headers", {})}
        params = {"worker_id": self.id, **given}
        return await self.http.get("/api/workers/poll", params=params, headers=headers)

    async def post(self, **given: Any) -> httpx.Response:
        body = {"worker_id": self.id, **given}
        return await self.http.post("/api/workers/poll", json=body, headers=self.headers)

    async def poll(self, **given: Any) -> dict[str, Any]:
        """Poll; returns the answer."""
        answer = await self.get(**given)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def job(self, **given: Any) -> dict[str, Any]:
        """Poll; returns a job."""
        found = (await self.poll(**given))["job"]
        assert found is not None, "no job"
        job: dict[str, Any] = found
        return job

    async def finish(
        self, job: dict[str, Any] | str, state: str = "done", **given: Any
    ) -> dict[str, Any]:
        """Report a job without asking for another."""
        job_id = job if isinstance(job, str) else job["id"]
        answer = await self.post(max=0, finished=[{"job_id": job_id, "state": state, **given}])
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def heartbeat(self, job_id: str, **given: Any) -> httpx.Response:
        path = f"/api/jobs/{job_id}/heartbeat"
        return await self.http.post(path, json=given, headers=self.headers)


class Farm:
    """A controller, its queue, and a client with an admin token."""

    def __init__(
        self, controller: Controller, queue: Any, clock: Clock, seen: Seen, http: httpx.AsyncClient
    ) -> None:
        self.controller = controller
        self.queue = queue
        self.clock = clock
        self.seen = seen
        self.http = http
        self.admin: dict[str, str] = {}

    @property
    def app(self) -> ControllerApp:
        return self.controller.app

    async def token(self, scope: str = "admin", **given: Any) -> dict[str, str]:
        """The header of a new token."""
        _, secret = await self.controller.tokens.make(scope, f"test {scope}", **given)
        return {"Authorization": f"Bearer {secret}"}

    async def call(
        self, method: str, path: str, status: int = 200, headers: Any = None, **given: Any
    ) -> Any:
        """Send a request with the admin's token; returns the JSON of an answer with this status."""
        answer = await self.http.request(
            method, path, headers={**self.admin, **(headers or {})}, **given
        )
        assert answer.status_code == status, f"{answer.status_code}: {answer.text}"
        return answer.json()

    async def register(self, name: str = "mini", slots: int = 1, **capabilities: Any) -> Agent:
        body = {"name": name, "capabilities": capabilities, "slots": slots}
        return Agent(self.http, await self.call("POST", "/api/workers/register", 201, json=body))

    async def put(self, kind: str = "build", payload: Any = None, **given: Any) -> Any:
        body = {"kind": kind, "payload": payload, **given}
        return await self.call("POST", "/api/jobs", 201, json=body)

    async def job(self, job_id: str) -> Any:
        return await self.call("GET", f"/api/jobs/{job_id}")


@asynccontextmanager
async def farm_on(
    queue: Queue, clock: Clock, folder: Path, *, admin: bool = True, **options: Any
) -> AsyncIterator[Farm]:
    """A controller on a queue, with a state beside it."""
    seen = Seen()
    chosen = ControllerOptions(artefacts=folder / "artefacts", **options)
    controller = Controller(queue, chosen, clock=clock, events=seen.events)
    transport = httpx.ASGITransport(controller.app, raise_app_exceptions=True)
    async with controller, httpx.AsyncClient(transport=transport, base_url=URL) as http:
        farm = Farm(controller, queue, clock, seen, http)
        if admin:
            farm.admin = await farm.token()
        yield farm


def virtually_on_farm(
    main: Callable[[Farm], Coroutine[Any, Any, None]],
    folder: Path,
    store: str = "memory",
    **options: Any,
) -> None:
    """Run a test on a controller, in virtual time."""
    clock = VirtualClock()
    keep = options.pop("keep", KEEP)

    async def run() -> None:
        async with opened_queue(store, folder, clock, keep) as queue:
            async with farm_on(queue, clock, folder, **options) as farm:
                await main(farm)

    clock.run(run())


@asynccontextmanager
async def opened_queue(
    store: str, folder: Path, clock: Clock, keep: str = KEEP
) -> AsyncIterator[Any]:
    queue: Queue
    if store == "memory":
        queue = CountedMemory("agents", clock=clock, keep=keep)
    else:
        queue = CountedSqlite(
            folder / "jobs.db", "agents", clock=clock, watch=0, synchronous="off", keep=keep
        )
    try:
        yield queue
    finally:
        await queue.close()


@asynccontextmanager
async def two_queues(
    folder: Path, clock: Clock, server: Postgres | None = None
) -> AsyncIterator[tuple[Queue, Queue]]:
    """Two handles of one queue: in a SQLite file, or in a database of its own on a server."""
    if server is None:
        async with opened_queue("sqlite", folder, clock) as one:
            async with opened_queue("sqlite", folder, clock) as two:
                yield one, two
        return
    url = server.create_database(f"farm_{uuid.uuid4().hex}")
    async with queue_named(url, "agents", 7 * 86400.0, clock) as one:
        await one.migrate()
        async with state_of(one) as state:
            await state.migrate()
        async with queue_named(url, "agents", 7 * 86400.0, clock) as two:
            yield one, two


def claims(farm: Farm) -> int:
    """How many claims reached the queue."""
    return farm.queue.calls["claim"] if "calls" in vars(farm.queue) else 0


async def soon(what: Callable[[], bool], within: float = 5.0) -> None:
    """Let the loop run until a condition holds."""
    loop = asyncio.get_running_loop()
    limit = loop.time() + within
    while not what():
        assert loop.time() < limit, "it did not happen"
        await asyncio.sleep(0)
