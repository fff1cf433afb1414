"""Rows that came from elsewhere: SQLite keeps text in a numeric column."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pollwise import NewJob
from pollwise.queues.sqlite import SqliteQueue
from pollwise.queues.views import JobFilter
from pollwise.testing.conformance.bench import done

NUMBERS = (
    "state", "priority", "since", "run_at", "created_at", "attempt", "claimed_at", "cancel",
    "lapsed", "lapses", "expires_at", "waits", "held_delay", "token", "ahead",
)  # fmt: skip
TEXTS = (
    "flow",
    "kind",
    "key",
    "unique",
    "worker",
    "held_key",
    "limit_group",
    "headers",
    "result",
    "payload",
)
#: Columns whose text makes a job unreadable; the others are written again by its claim.
READ = ("priority", "run_at", "created_at")


def change(path: Path, column: str, value: Any, number: int) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        text = f'UPDATE pollwise_jobs SET "{column}" = ? WHERE seq = ?'
        database.execute(text, (value, number))


async def look(queue: SqliteQueue) -> None:
    """Everything that shows jobs still does."""
    assert len(await queue.arrivals()) >= 2
    await queue.jobs()
    await queue.stats()
    await queue.stats_by_kind()
    await queue.page(JobFilter())
    for number in (1, 2, 3):
        await queue.get(str(number))
    await queue.prune()


@pytest.mark.parametrize("value", ["text", b"\xff", ""])
@pytest.mark.parametrize("column", [*NUMBERS, "errors", "progress", *TEXTS])
def test_text_in_a_numeric_column_does_not_stop_a_queue(
    tmp_path: Path, column: str, value: Any
) -> None:
    path = tmp_path / "jobs.db"

    async def main() -> None:
        async with SqliteQueue(path, keep="1h") as queue:
            await queue.put([NewJob("a", number) for number in range(3)])
            change(path, column, value, 1)
            await look(queue)
            claims = await queue.claim("w", 10, 30)
            by_id = {claim.job.id: claim.job for claim in claims}
            assert by_id["2"].unreadable is None
            assert by_id["3"].unreadable is None
            if column in READ:
                assert by_id["1"].unreadable == f"its row has no number in {column}"
            await queue.settle(done(claims))
            assert [each.job.payload for each in await queue.jobs("done")][-2:]

    asyncio.run(main())


@pytest.mark.parametrize("value", ["text", b"\xff"])
@pytest.mark.parametrize("column", ["since", "run_at", "claimed_at", "attempt", "expires_at"])
def test_text_in_a_delayed_or_leased_row_does_not_stop_a_queue(
    tmp_path: Path, column: str, value: Any
) -> None:
    path = tmp_path / "jobs.db"

    async def main() -> None:
        async with SqliteQueue(path, keep="1h") as queue:
            await queue.put(NewJob("a", "leased"))
            await queue.claim("gone", 1, 1000)
            await queue.put(NewJob("a", "delayed", delay=1000))
            for number in (1, 2):
                change(path, column, value, number)
            assert await queue.claim("w", 10, 30) == []
            await queue.put(NewJob("a", "good"))
            await look(queue)
            [claim] = await queue.claim("w", 10, 30)
            assert claim.job.payload == "good"

    asyncio.run(main())
