"""A controller as an object: `run`, `stop`, `state`, `stats` and `put`, without a command line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from pollwise import Controller, ControllerOptions
from pollwise.errors import JobError, UniqueConflict
from tests.support.daemons import free_port


async def is_alive(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/livez")).status_code == 200
    except httpx.TransportError:
        return False


def test_run_serves_the_app_until_stop(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port()
        options = ControllerOptions(port=port, signals=False)
        controller = Controller(f"sqlite:///{tmp_path}/jobs.db", options)
        running = asyncio.create_task(controller.run())
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            async with asyncio.timeout(30):
                while not await is_alive(client):
                    assert not running.done(), running.result()
                    await asyncio.sleep(0.02)  # real time: the server is starting
            assert (await client.get("/api/jobs")).status_code == 401
        controller.stop()
        async with asyncio.timeout(30):
            await running

    asyncio.run(main())


def test_put_is_checked_unique_and_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with Controller(f"sqlite:///{tmp_path}/jobs.db") as controller:
            first = await controller.put("build", {"ref": "main"}, unique="main", delay="1s")
            assert await controller.put("build", {"ref": "main"}, unique="main") == first
            with pytest.raises(UniqueConflict, match="main"):
                await controller.put("build", {"ref": "other"}, unique="main")
            with pytest.raises(JobError, match="attempts"):
                await controller.put("build", attempts=0)
            stats = await controller.stats()
            assert stats["jobs"]["delayed"] == 1
            assert controller.state() == {
                "queue": controller.queue.url, "workers_known": 0, "held_polls": 0, "pushes": 0,
            }  # fmt: skip

    asyncio.run(main())
