"""Shared by the tests of the queue on Postgres: separate queues in a shared database."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pollwise.errors import PollwiseError
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.runtime.jobs import NewJob, Settlement

names = (f"test {number}" for number in itertools.count())

#: The privileges that a role needs, by the docs: for the role `runner` in the schema `granted`.
GRANTS = """
GRANT USAGE ON SCHEMA granted TO runner;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA granted TO runner;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA granted TO runner;
"""


def queue_at(dsn: str, **options: Any) -> PostgresQueue:
    """A new queue in a shared database."""
    return PostgresQueue(dsn, options.pop("name", None) or next(names), **options)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


@asynccontextmanager
async def fresh(dsn: str, **options: Any) -> AsyncIterator[PostgresQueue]:
    async with queue_at(dsn, **options) as queue:
        assert isinstance(queue, PostgresQueue)
        yield queue


async def drain(queue: PostgresQueue) -> list[Any]:
    """Claim and finish all jobs."""
    found = []
    while claims := await queue.claim("w", 100, 60):
        found += [claim.job.payload for claim in claims]
        await queue.settle([Settlement.done(claim) for claim in claims])
    return found


async def refusal(dsn: str, **options: Any) -> PollwiseError:
    """The error of a first call."""
    queue = PostgresQueue(dsn, **options)
    try:
        with pytest.raises(PollwiseError) as caught:
            await queue.put(NewJob("job"))
    finally:
        await queue.close()
    for secret in ("hunter2", "wrong"):
        assert secret not in str(caught.value)
        assert secret not in repr(caught.value.__cause__)
    return caught.value
