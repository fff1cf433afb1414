"""Puts that replace, while workers claim and settle: the last payload of each name always runs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pollwise
from pollwise.errors import JobError, LeaseLost, UniqueConflict
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.redis.queue import RedisQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.jobs import NewJob, Settlement
from tests.cli.console import good
from tests.queues.benches import migrated
from tests.support.servers import Postgres

NAMES = ("a", "b", "c")
PUTS = 60


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Queue]:
    if request.param == "sqlite":
        return lambda: SqliteQueue(tmp_path / "jobs.db", synchronous="off")
    server = request.getfixturevalue(request.param)
    name = f"replace-{uuid.uuid4().hex}"
    if request.param == "redis":
        return lambda: RedisQueue(server.url(), name)
    dsn = migrated(server.dsn())
    return lambda: PostgresQueue(dsn, name)


def test_no_update_is_lost_among_claims(opened: Callable[[], Queue]) -> None:
    """Several producers replace the same names in batches; workers claim, fail and give back."""
    ran: dict[str, list[int]] = {name: [] for name in NAMES}
    producing = True

    async def produce(queue: Queue, number: int) -> None:
        for version in range(PUTS):
            batch = [
                NewJob("x", [name, number, version], unique=f"{name}{number}", replace=True)
                for name in NAMES
            ]
            await queue.put([*batch, NewJob("x", ["other", number, version])])

    async def work(queue: Queue, number: int) -> None:
        while producing or (await queue.stats()).ready:
            for claim in await queue.claim(f"w{number}", 3, "30s"):
                name, producer, version = claim.job.payload
                again = claim.job.attempt == 1 and version % 5 == 4
                end = Settlement.retry(claim, 0, "again") if again else Settlement.done(claim)
                try:
                    await queue.settle([end])
                except LeaseLost:
                    continue
                if not again and name in ran:
                    ran[name].append(producer * 1000 + version)

    async def main() -> None:
        nonlocal producing
        queues = [opened() for _ in range(4)]
        workers = [asyncio.create_task(work(queues[n], n)) for n in range(2)]
        await asyncio.gather(*(produce(queues[2 + n], n) for n in range(2)))
        producing = False
        await asyncio.gather(*workers)
        assert (await queues[0].stats()).dead == 0
        for queue in queues:
            await queue.close()

    asyncio.run(main())
    for name in NAMES:
        for producer in range(2):
            versions = [each - producer * 1000 for each in ran[name] if each // 1000 == producer]
            assert max(versions) == PUTS - 1, f"{name}: the last payload did not run: {versions}"


def test_a_put_in_a_transaction_of_ones_own_replaces(postgres: Postgres) -> None:
    dsn = migrated(postgres.dsn())

    async def main() -> None:
        async with PostgresQueue(dsn, f"replace-{uuid.uuid4().hex}") as queue:
            [first] = await queue.put(NewJob("x", 1, unique="u"))
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                again = await queue.put(
                    NewJob("x", 2, unique="u", replace=True), connection=connection
                )
                await connection.rollback()
                assert again == [first]
                info = await queue.get(first)
                assert info is not None
                assert info.job.payload == 1
                await queue.put(NewJob("x", 3, unique="u", replace=True), connection=connection)
                await connection.commit()
            info = await queue.get(first)
            assert info is not None
            assert info.job.payload == 3

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"replace": True}, "replace needs unique"),
        ({"debounce": "5s"}, "debounce = '5s' needs unique"),
        ({"debounce": "5s", "unique": "u", "delay": 3}, "not both"),
        ({"debounce": "soon", "unique": "u"}, "debounce = 'soon'"),
        ({"debounce": "5s", "unique": "u", "run_at": 5.0}, "not both"),
    ],
)
def test_what_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(JobError, match=told.replace("(", r"\(")):
        NewJob("x", **options)


def test_the_conflict_names_both() -> None:
    async def main() -> None:
        queue = MemoryQueue()
        await queue.put(NewJob("x", 1, unique="u", key="k"))
        with pytest.raises(
            UniqueConflict, match="job 1 of kind 'x' and key 'k', and `replace` keeps"
        ):
            await queue.put(NewJob("x", 2, unique="u", replace=True))
        with pytest.raises(UniqueConflict, match="Use another unique, or replace=True"):
            await queue.put(NewJob("x", 2, unique="u", key="k"))

    asyncio.run(main())


def test_tasks_and_commands_take_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    worker = pollwise.Worker("sqlite:///jobs.db")

    @worker.task()
    async def index(version: int) -> None: ...

    debounced = index.options(unique="u", debounce="1h")
    first = debounced.put_sync(version=1)
    assert debounced.put_sync(version=2).id == first.id
    url = "sqlite:///jobs.db"
    facts = good("queue", "show", url, first.id, "--json").json()
    assert (facts["payload"], facts["state"]) == ({"version": 2}, "delayed")
    again = good("queue", "put", url, "index", '{"version": 3}', "--unique", "u", "--replace")
    assert again.out.strip() == first.id
    assert good("queue", "show", url, first.id, "--json").json()["state"] == "ready"
    good("queue", "put", url, "index", '{"version": 4}', "--unique", "u", "--debounce", "1h")
    facts = good("queue", "show", url, first.id, "--json").json()
    assert (facts["payload"], facts["state"]) == ({"version": 4}, "delayed")
    asyncio.run(worker.close())
