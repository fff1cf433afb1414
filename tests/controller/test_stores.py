"""One whole job at a controller on every store that a controller can use."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from pollwise.controller.opening import AGENTS, queue_named, state_at, state_of
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import Clock
from tests.controller.farm import Agent, Farm, farm_on

#: How long finished jobs are kept, in seconds.
KEEP = 3600.0
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}

#: Makes the queue of a controller, and where its state is: None for beside the queue.
Place = Callable[[], tuple[Queue, str | None]]


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    state = f"sqlite:///{tmp_path}/state.db"
    match request.param:
        case "memory":
            return lambda: (MemoryQueue(AGENTS, keep=KEEP), state)
        case "sqlite":
            return lambda: (queue_named(f"sqlite:///{tmp_path}/jobs.db", AGENTS, KEEP), None)
        case "postgres":
            server = request.getfixturevalue("postgres")
            url = server.create_database(f"stores_{uuid.uuid4().hex}")
            return lambda: (queue_named(url, AGENTS, KEEP), None)
        case "redis":
            url = request.getfixturevalue("redis").url()
            name = f"agents-{uuid.uuid4().hex}"
            return lambda: (queue_named(url, name, KEEP), state)
        case _:
            return lambda: (queue_named(f"file://{tmp_path}/bucket", AGENTS, KEEP), state)


def on_store(place: Place, folder: Path, main: Callable[[Farm], Any], **options: Any) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            queue, url = place()
            await stack.enter_async_context(queue)
            await queue.migrate()
            state = state_of(queue) if url is None else state_at(url)
            await stack.enter_async_context(state)
            await state.migrate()
            given = {"min_interval": "10ms", **options, "state": state}
            async with farm_on(queue, Clock(), folder, **given) as farm:
                await main(farm)

    asyncio.run(run())


async def job_for(agent: Agent) -> Any:
    """Poll until there is a job."""
    async with asyncio.timeout(30):
        while True:
            answer = await agent.get(wait=2)
            assert answer.status_code in (200, 429), answer.text
            if answer.status_code == 200 and (job := answer.json()["job"]):
                return job
            await asyncio.sleep(0.05)  # real time: stores tell of their news in their own


async def until_state(farm: Farm, job_id: str, state: str) -> Any:
    async with asyncio.timeout(30):
        while (job := await farm.job(job_id))["state"] != state:
            await asyncio.sleep(0.05)  # real time: stores tell of their news in their own
    return job


def test_a_job_from_put_to_result(place: Place, tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register(platform="ios")
        given: dict[str, Any] = {"requires": {"platform": "ios"}, "headers": TRACE, "timeout_s": 60}
        put = await farm.put("build", {"ref": "main"}, unique="u", priority=3, **given)
        assert (put["state"], put["waiting_for"]) == ("ready", None)
        work = await job_for(agent)
        assert (work["id"], work["kind"], work["payload"]) == (put["id"], "build", {"ref": "main"})
        assert (work["headers"], work["requires"]) == (TRACE, {"platform": "ios"})
        assert (work["attempt"], work["priority"], work["timeout_s"]) == (1, 3, 60)
        assert (await agent.heartbeat(put["id"], progress=0.5, message="linking")).is_success
        runs = await farm.job(put["id"])
        assert (runs["state"], runs["worker_id"]) == ("leased", agent.id)
        assert (runs["progress"], runs["message"]) == (0.5, "linking")
        path = f"/api/jobs/{put['id']}"
        for method, where in (("POST", "logs?offset=0"), ("PUT", "artefacts/a.txt")):
            sent = await farm.http.request(
                method, f"{path}/{where}", content=b"hello", headers=agent.headers
            )
            assert sent.is_success, sent.text
        assert (await farm.call("GET", f"{path}/result", 409))["error"]["code"] == "not_done"
        assert (await agent.finish(put, result={"size": 7}))["lost"] == []
        done = await until_state(farm, put["id"], "done")
        assert (done["result"], done["worker_id"], done["attempt"]) == ({"size": 7}, agent.id, 1)
        assert await farm.call("GET", f"{path}/result") == {"size": 7}
        for where in ("logs", "artefacts/a.txt"):
            assert (await farm.http.get(f"{path}/{where}", headers=farm.admin)).text == "hello"
        assert (await agent.finish(put, result={"size": 7}))["lost"] == [], (
            "a report may come twice"
        )
        assert (await farm.call("GET", "/api/stats"))["jobs"]["done"] == 1

    on_store(place, tmp_path, main)


def test_a_job_that_is_cancelled_while_it_runs(place: Place, tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        put = await farm.put()
        await job_for(agent)
        asked = await farm.call("POST", f"/api/jobs/{put['id']}/cancel")
        assert (asked["state"], asked["cancel"]) == ("leased", True)
        async with asyncio.timeout(30):
            while not (await agent.poll(max=0, running=put["id"]))["cancel"]:
                await asyncio.sleep(0.05)  # real time: it is told with a renewal of the lease
        await agent.finish(put, "cancelled")
        ended = await until_state(farm, put["id"], "cancelled")
        assert (ended["cancel"], ended["result"]) == (False, None)
        waits = await farm.put()
        cancelled = await farm.call("POST", f"/api/jobs/{waits['id']}/cancel")
        assert cancelled["state"] == "cancelled"

    on_store(place, tmp_path, main, heartbeat_timeout="2s")


def test_a_job_that_fails_and_is_retried(place: Place, tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        put = await farm.put(attempts=1, timeout_s=9)
        await job_for(agent)
        await agent.finish(put, "failed", exit_code=3)
        dead = await until_state(farm, put["id"], "dead")
        assert dead["error"] == "it ended with exit code 3"
        assert [each["attempt"] for each in dead["errors"]] == [1]
        await farm.call("POST", f"/api/jobs/{put['id']}/retry")
        work = await job_for(agent)
        assert (work["id"], work["attempt"], work["timeout_s"]) == (put["id"], 1, 9)
        await agent.finish(put)
        assert (await until_state(farm, put["id"], "done"))["attempts"] == 1

    on_store(place, tmp_path, main)


def test_jobs_are_listed_in_pages(place: Place, tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        jobs = [(await farm.put("build", number))["id"] for number in range(5)]
        found: list[str] = []
        path: str | None = "/api/jobs?limit=2"
        while path:
            page = await farm.call("GET", path)
            found += [job["id"] for job in page["jobs"]]
            path = page["next"] and f"/api/jobs?limit=2&after={page['next']}"
        assert sorted(found) == sorted(jobs)

    on_store(place, tmp_path, main)
