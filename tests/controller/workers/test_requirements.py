"""Jobs whose requirement the state does not know are handed out all the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import NewJob
from tests.controller.farm import KEEP, farm_on


def test_after_another_queues_controller_deleted_it(tmp_path: Path) -> None:
    clock = VirtualClock()

    async def main() -> None:
        one, two = (MemoryQueue(name, clock=clock, keep=KEEP) for name in "ab")
        state = SqliteState(tmp_path / "state.db", clock=clock)
        async with state, farm_on(one, clock, tmp_path, state=state) as a:
            async with farm_on(two, clock, tmp_path, admin=False, state=state) as b:
                b.admin = a.admin
                job = await b.put(requires={"platform": "ios"})
                await a.put()
                for _ in range(60):
                    await asyncio.sleep(3000)
                    await a.call("GET", "/api/jobs")
                agent = await b.register(platform="ios")
                await asyncio.sleep(60)
                assert (await agent.job())["id"] == job["id"]

    clock.run(main())


def test_after_the_state_was_lost(tmp_path: Path) -> None:
    clock = VirtualClock()

    async def main() -> None:
        queue = MemoryQueue("a", clock=clock, keep=KEEP)
        async with farm_on(queue, clock, tmp_path) as before:
            job = await before.put(requires={"platform": "ios"})
        async with farm_on(queue, clock, tmp_path) as after:
            agent = await after.register(platform="ios")
            await asyncio.sleep(60)
            assert (await agent.job())["id"] == job["id"]

    clock.run(main())


def test_put_without_a_controller(tmp_path: Path) -> None:
    clock = VirtualClock()

    async def main() -> None:
        queue = MemoryQueue("a", clock=clock, keep=KEEP)
        async with farm_on(queue, clock, tmp_path) as farm:
            [job_id] = await queue.put(NewJob("build"))
            agent = await farm.register(platform="ios")
            await asyncio.sleep(60)
            assert (await agent.job())["id"] == job_id

    clock.run(main())


def test_a_pause_of_a_kind_holds_whatever_its_jobs_require(tmp_path: Path) -> None:
    clock = VirtualClock()

    async def main() -> None:
        queue = MemoryQueue("a", clock=clock, keep=KEEP)
        async with farm_on(queue, clock, tmp_path) as farm:
            await queue.pause("build")
            for requires in ({"platform": "ios"}, {"platform": ["ios", "mac"]}, {}):
                await farm.put(requires=requires)
            agent = await farm.register(platform="ios", slots=3)
            await asyncio.sleep(60)
            assert (await agent.poll())["job"] is None
            await queue.resume("build")
            await asyncio.sleep(60)
            taken = (await agent.poll(max=3))["jobs"]
            assert [each["kind"] for each in taken] == ["build"] * 3

    clock.run(main())
