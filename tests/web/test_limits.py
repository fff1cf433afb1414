"""The limits on the page of a queue."""

from __future__ import annotations

import asyncio

from pollwise import Concurrency, Rate
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.jobs import NewJob
from tests.web.visiting import HOSTILE, Visitor

PAGE = "/queues/shop"


def test_shows_limits_their_use_and_who_waits() -> None:
    async def main() -> None:
        queue = MemoryQueue("shop")
        visitor = Visitor(queue)
        await queue.put(NewJob("mail", limit_group=HOSTILE))
        assert "Next start" not in await visitor.main(PAGE)
        await queue.limits.set("mail", [Concurrency(5), Concurrency(1, by="tenant")])
        await queue.limits.set("call", Rate(1, per="1h"))
        await queue.put(
            [NewJob("mail"), NewJob("mail", limit_group="acme"), NewJob("call"), NewJob("call")]
        )
        await queue.claim("w", 2, 30, kinds=["mail"])
        await queue.claim("w", 2, 30, kinds=["call"])
        html = await Visitor(queue).get(PAGE)
        assert HOSTILE not in html
        # On a phone, a label stands before each cell; those without a value are left out.
        assert 'data-label="Limits"></td>' not in html
        assert 'data-label="Group"></td>' not in html
        text = await Visitor(queue).main(PAGE)
        assert "mail 5 at a time; 1 at a time for each tenant 2/5 1 now" in text
        assert "(none) 0/1 1 now" in text
        assert "acme 1/1 0 when one ends" in text
        assert "call 1 in 1h, 1 at once 1 1 in " in text
        await queue.close()

    asyncio.run(main())
