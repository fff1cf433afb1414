"""Shared by the tests of the queue in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pollwise.queues.base import Queue
from pollwise.queues.redis.queue import RedisQueue


def within(url: str, name: str, work: Callable[[Queue], Coroutine[Any, Any, Any]]) -> Any:
    """Call `work(queue)` and return its result; then close the queue."""

    async def main() -> Any:
        async with RedisQueue(url, name) as queue:
            return await work(queue)

    return asyncio.run(main())
