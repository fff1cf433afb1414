"""What the tests of the queue in Redis share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pollwise.queues.base import Queue
from pollwise.queues.redis.queue import RedisQueue


def within(url: str, name: str, work: Callable[[Queue], Coroutine[Any, Any, Any]]) -> Any:
    """What `work(queue)` returns, on a queue that is closed afterwards."""

    async def main() -> Any:
        async with RedisQueue(url, name) as queue:
            return await work(queue)

    return asyncio.run(main())
