"""A worker in another process: it is seen, respects a pause, follows an order, and is gone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pollwise.cli.queue.steering import pause_text
from pollwise.queues.notes import pause_from
from pollwise.queues.presence import WorkerInfo
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import NewJob

CHILD = Path(__file__).parent / "children" / "steered.py"


async def until(happened: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(240):
        while not await happened():
            await asyncio.sleep(0.02)  # real time: the worker is another process


def test_a_worker_of_another_process_is_steered(shared_url: str) -> None:
    async def main(child: subprocess.Popen[str]) -> None:
        queue = open_queue(shared_url)

        async def there() -> bool:
            return bool(await queue.workers())

        async def only_mail_waits() -> bool:
            stats = await queue.stats()
            return (stats.ready, stats.leased) == (2, 0)

        async def nothing_left() -> bool:
            stats = await queue.stats()
            return not stats.ready + stats.leased

        async def has_four() -> bool:
            return [info.concurrency for info in await queue.workers()] == [4]

        async def gone() -> bool:
            return not await queue.workers()

        async with queue:
            await queue.migrate()
            await until(there)
            [info] = await queue.workers()
            assert (info.name, info.pid, info.concurrency) == ("steered", child.pid, 2)
            assert info.kinds is not None
            assert sorted(info.kinds) == ["mail", "resize"]
            await queue.pause("mail", by="ann", why="down")
            await queue.put([NewJob("mail", 1), NewJob("resize", 2), NewJob("mail", 3)])
            await until(only_mail_waits)
            if queue.capabilities.hints != "process":  # else it takes a minute
                assert await queue.set_concurrency("steered", 4) == 1
                await until(has_four)  # the broadcast of the order came, and a record after it
            assert (await queue.stats()).ready == 2
            assert await queue.resume("mail")
            await until(nothing_left)
            child.terminate()
            await until(gone)  # long before its record would count as old

    with subprocess.Popen(
        [sys.executable, str(CHILD), shared_url], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            asyncio.run(main(child))
        finally:
            child.terminate()
        assert child.stdout is not None
        ran = child.stdout.read().split("\n")
    assert ran[0] == "ran resize 2"
    assert sorted(ran[1:3]) == ["ran mail 1", "ran mail 3"]


def test_what_another_process_wrote_is_not_trusted() -> None:
    hostile = {
        "name": "w" * 10_000,
        "kinds": ["k"] * 10_000,
        "host": "a\ud800b\0",
        "pid": "7",
        "busy": 1e300,
        "running": [{"id": 7}, "x", {"id": "a", "kind": "b", "since": None}] * 100,
        "started_at": float("nan"),
        "breakers": "text",
        "hints": 1,
    }
    info = WorkerInfo.from_value(hostile)
    assert info is not None
    assert (len(info.name), info.pid, info.busy, info.hints) == (200, 0, 0, False)
    assert info.host == r"a\ud800b\0", "what no store can keep and no answer can send"
    assert info.kinds is not None
    assert (len(info.kinds), info.breakers) == (100, ())
    assert len(info.running) <= 20
    others: list[object] = [None, [], {}, {"name": 7}, "x"]
    assert [WorkerInfo.from_value(other) for other in others] == [None] * 5


@pytest.mark.parametrize("at", [1e300, float("nan"), float("inf"), -1e12, "now", True])
def test_the_time_of_a_hostile_pause_can_be_shown(at: object) -> None:
    pause = pause_from({"by": 7, "why": None, "at": at})
    assert (pause.by, pause.why, pause.at) == ("7", "", 0.0)
    assert "1970" in pause_text(None, pause)
