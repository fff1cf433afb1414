"""The page of a queue's schedules, and what the overview says of late ones."""

from __future__ import annotations

import asyncio
import re

from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import NewJob
from tests.web.visiting import HOSTILE, Visitor

PAGE = "/queues/shop/schedules"


def test_shows_and_steers_schedules() -> None:
    async def main() -> None:
        queue = MemoryQueue("shop", keep="1h")
        visitor = Visitor(queue)
        assert "This queue has no schedules." in await visitor.main(PAGE)
        name = f"nightly {HOSTILE}"
        await queue.schedules.set(
            name, NewJob("mail", "rosebud"), cron="0 3 * * *", tz="Europe/Zurich", by=HOSTILE
        )
        await queue.schedules.set("often", NewJob("mail"), every="10m")
        html = await visitor.get(PAGE)
        assert HOSTILE not in html
        assert "rosebud" not in html
        text = await visitor.main(PAGE)
        assert f"{name} 0 3 * * * Europe/Zurich mail in " in text
        assert "Schedules (2)" in await visitor.main("/queues/shop")
        await visitor.post(PAGE, "run", name=name)
        [info] = await queue.jobs()
        assert info.job.payload == "rosebud"
        assert f"{info.job.id} live" in await visitor.main(PAGE)
        await visitor.post(PAGE, "pause", name="often")
        often = await queue.schedules.get("often")
        assert often is not None
        assert often.paused
        assert "paused" in await visitor.main(PAGE)
        await visitor.post(PAGE, "resume", name="often")
        await visitor.post(PAGE, "remove", name=name)
        await visitor.post(PAGE, "remove", name="no such one")
        [left] = await queue.schedules.list()
        assert (left.name, left.paused) == ("often", False)
        await queue.close()

    asyncio.run(main())


def test_late_schedules_need_attention() -> None:
    clock = VirtualClock()

    async def main() -> None:
        queue = MemoryQueue("shop", clock=clock)
        visitor = Visitor(queue, clock=clock)
        await queue.schedules.set("often", NewJob("mail"), every="10m")
        await queue.schedules.set("paused", NewJob("mail"), every="10m")
        await queue.schedules.pause("paused")
        assert "late" not in await visitor.main("/")
        await clock.advance(10 * 60 + 200)
        assert re.search(
            r"shop 1 late schedule: often\. No worker has put", await visitor.main("/")
        )
        assert f'<a href="{PAGE}"' in await visitor.get("/")
        assert re.search(r"often every 10m mail late by 3 min", await visitor.main(PAGE))

    clock.run(main())
