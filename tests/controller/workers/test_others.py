"""Two controllers on one store: what one of them does reaches those who wait at the other.

The chores that would find it later do not run here, so only the news between controllers brings it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection

from pollwise.controller.opening import queue_named, state_at
from pollwise.runtime.clock import VirtualClock
from tests.controller.farm import Agent, Farm, farm_on, soon, two_queues, virtually_on_farm
from tests.controller.http.test_live import DEADLINE, Live, heard, live, pushed, run, until

KEEP_S = 3600.0
#: Longer than a test.
HOLD = 50.0
IOS: Any = {"platform": "ios"}

Two = Callable[[], Any]


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def two(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Two:
    """Opens two controllers on one store; neither looks for new kinds by itself."""
    for module in ("pollwise.controller.controller", "pollwise.controller.workers.registry"):
        monkeypatch.setattr(f"{module}.REQUIREMENTS_EVERY", 3600.0)
    name, state = "agents", None
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/jobs.db"
    elif request.param == "postgres":
        url = request.getfixturevalue("postgres").create_database(f"others_{uuid.uuid4().hex}")
    else:
        url, name = request.getfixturevalue("redis").url(), f"agents-{uuid.uuid4().hex}"
        state = f"sqlite:///{tmp_path}/state.db"

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Live, Live]]:
        one, other = (queue_named(url, name, KEEP_S) for _ in range(2))
        await one.migrate()
        async with state_at(state or url) as made:
            await made.migrate()
        given: Any = {"state": state, "max_wait": "50s", "min_interval": "10ms"}
        async with live(tmp_path, one, **given) as here:
            async with live(tmp_path, other, admin=here.admin, **given) as there:
                here.http.timeout = httpx.Timeout(2 * HOLD)
                yield here, there

    return opened


async def until_heard(farm: Live) -> None:
    """Until news of other controllers arrives here; a SQLite file has no check for it."""
    hints = farm.queue.hints()
    if not farm.queue.url.startswith("sqlite"):
        await until(lambda: hints.proven_at is not None)


async def held(farm: Live, agent: Agent, **given: Any) -> asyncio.Future[dict[str, Any]]:
    """A poll that is held now; its answer."""

    async def poll() -> dict[str, Any]:
        answer = await agent.post(wait=HOLD, **given)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    polling = asyncio.ensure_future(poll())
    await until(lambda: farm.controller.poller.held == 1 or polling.done())
    await until_heard(farm)
    return polling


async def hinted_job(agent: Agent, socket: ClientConnection) -> dict[str, Any]:
    """Poll whenever a hint comes, until there is a job."""
    while True:
        await heard(socket, "hint")
        answer = await agent.get()
        found = answer.json().get("job") if answer.status_code == 200 else None
        if found is not None:
            job: dict[str, Any] = found
            return job


def test_a_held_poll_gets_jobs_of_new_kinds_and_cancels(two: Two) -> None:
    async def main() -> None:
        async with two() as (here, there):
            agent = await here.register(slots=3, **IOS)
            running: list[dict[str, str]] = []
            for kind in ("build", "test"):  # the second within the second after the first
                polling = await held(here, agent, running=running)
                job = await there.put(kind, requires=IOS)
                answer = await asyncio.wait_for(polling, DEADLINE)
                assert answer["job"]["id"] == job["id"]
                running.append({"job_id": job["id"]})
            polling = await held(here, agent, running=running)
            cancelled = running[0]["job_id"]
            await there.call("POST", f"/api/jobs/{cancelled}/cancel")
            assert (await asyncio.wait_for(polling, DEADLINE))["cancel"] == [cancelled]

    run(main())


def test_a_websocket_gets_hints_for_new_kinds_and_cancels(two: Two) -> None:
    async def main() -> None:
        async with two() as (here, there):
            agent = await here.register(**IOS)
            async with pushed(here, agent) as socket:
                await heard(socket, "hint")
                assert (await agent.poll())["job"] is None
                await until_heard(here)
                for kind in ("build", "build", "test"):
                    put = await there.put(kind, requires=IOS)
                    job = await asyncio.wait_for(hinted_job(agent, socket), DEADLINE)
                    assert job["id"] == put["id"]
                    await agent.finish(job)
                    assert (await agent.poll())["job"] is None
                put = await there.put("test", requires=IOS)
                await asyncio.wait_for(hinted_job(agent, socket), DEADLINE)
                await there.call("POST", f"/api/jobs/{put['id']}/cancel")
                assert await heard(socket, "cancel") == put["id"]

    run(main())


def test_news_that_comes_between_two_held_polls_is_kept(two: Two) -> None:
    async def main() -> None:
        async with two() as (here, there):
            agent = await here.register(**IOS)
            polling = await held(here, agent)
            await there.put("build", requires=IOS)
            first = (await asyncio.wait_for(polling, DEADLINE))["job"]
            await until(lambda: here.controller.poller.held == 0)
            job = await there.put("test", requires=IOS)
            answer = await agent.post(
                wait=HOLD, finished=[{"job_id": first["id"], "state": "done"}]
            )
            assert answer.json()["job"]["id"] == job["id"]

    run(main())


def test_handing_out_jobs_reads_no_changes(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        await farm.put("build", requires=IOS)
        waits, works = await farm.register(), await farm.register(**IOS)
        await works.finish(await works.job())
        polling = asyncio.ensure_future(waits.poll(wait=50))
        await soon(lambda: farm.controller.poller.held == 1)
        reads = 0
        read = farm.controller.runs.read_all

        async def counted() -> None:
            nonlocal reads
            reads += 1
            await read()

        farm.controller.runs.read_all = counted  # type: ignore[method-assign]
        for _ in range(5):
            await farm.put("build", requires=IOS)
            await works.finish(await works.job())
            await asyncio.sleep(2)
        assert reads == 0
        polling.cancel()

    virtually_on_farm(main, tmp_path)


def test_a_worker_that_was_only_read_stays_offline(tmp_path: Path) -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with two_queues(tmp_path, clock) as (one, other):
            async with farm_on(one, clock, tmp_path) as here:
                async with farm_on(other, clock, tmp_path, admin=False) as there:
                    there.admin = here.admin
                    agent = await here.register()
                    await asyncio.sleep(600)
                    assert await there.controller.registry.get(agent.id) is not None
                    shown = await there.call("GET", f"/api/workers/{agent.id}")
                    assert shown["state"] == "offline"
                    again = Agent(there.http, {"worker_id": agent.id, "token": agent.token})
                    await again.poll()
                    shown = await there.call("GET", f"/api/workers/{agent.id}")
                    assert shown["state"] == "online"

    clock.run(main())
