"""Migrations only add, so a worker of the version before runs on the new schema.

There is one first migration per store and part; these are frozen. A later one may create tables
and indexes, add columns that have a default or may be NULL, add functions, and grant reads. Here,
code of today works on tables that such a migration has changed, as it will while a later version is
rolled out.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pollwise
from pollwise import Worker, WorkerRunOptions
from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.postgres.state import PostgresState
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.controller.state.values import WorkerRow
from pollwise.fleet.stores.base import FleetStore, SavedTarget
from pollwise.fleet.stores.urls import open_store as open_fleet
from pollwise.outbox.records import KeySettlement, NewRecord
from pollwise.outbox.stores.base import OutboxStore
from pollwise.outbox.stores.urls import open_store as open_outbox
from pollwise.queues.base import Queue
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import NewJob, Progress, Settlement
from tests.support.servers import Postgres

SOURCE = Path(pollwise.__file__).parent
MIGRATIONS = sorted(SOURCE.rglob("0*.sql"))

#: The digests of released migrations. To change tables, add the next migration instead.
FROZEN = {
    "controller/state/postgres/0001_controller.sql": "03787a9cb0233e30",
    "controller/state/sqlite/0001_controller.sql": "3438059243694d9b",
    "fleet/stores/postgres/0001_fleet.sql": "c177a2c20f92cd10",
    "fleet/stores/sqlite/0001_fleet.sql": "2970d6644a9a0c6c",
    "outbox/stores/postgres/0001_outbox.sql": "3f4570ce45565ab8",
    "outbox/stores/sqlite/0001_outbox.sql": "fecb2837db789926",
    "queues/postgres/tables/0001_jobs.sql": "9956b1a7c3c9a6ee",
    "queues/sqlite/0001_jobs.sql": "cef0188939d6aea9",
    "sources/cursors/0001_cursors.sql": "e2ad91a4cab4b77c",
    "waiting/0001_durations.sql": "4465ff5f0127b0a6",
}

#: What a migration after the first may do.
ADDS = re.compile(
    r"CREATE (TABLE|INDEX|UNIQUE INDEX|FUNCTION|TRIGGER|VIEW)|CREATE OR REPLACE FUNCTION"
    r"|ALTER TABLE \S+ ADD COLUMN (?!.*NOT NULL(?!.*DEFAULT))|GRANT SELECT "
    r"|DROP TRIGGER "  # SQLite's way to replace one
    r"|DROP FUNCTION \S+claim\(",  # to give its answer a column; what reads it ignores more
)


def test_the_first_migrations_are_frozen() -> None:
    names = {path: path.relative_to(SOURCE).as_posix() for path in MIGRATIONS}
    found = {
        name: hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path, name in names.items()
        if path.name.startswith("0001")
    }
    assert found == FROZEN


def statements_of(script: str) -> list[str]:
    """The first line of each statement at the top level of a script."""
    plain = re.sub(r"\$(\w*)\$.*?\$\1\$", "''", script, flags=re.DOTALL)
    plain = re.sub(r"BEGIN.*?END;", ";", re.sub(r"--.*", "", plain), flags=re.DOTALL)
    return [" ".join(each.split()) for each in plain.split(";") if each.strip()]


def test_later_migrations_only_add() -> None:
    for path in MIGRATIONS:
        if not path.name.startswith("0001"):
            for statement in statements_of(path.read_text("utf-8")):
                assert ADDS.match(statement), f"{path.name} does more than add: {statement[:80]}"


@pytest.mark.parametrize(
    ("statement", "adds"),
    [
        ("ALTER TABLE jobs ADD COLUMN tags text", True),
        ("ALTER TABLE jobs ADD COLUMN tags text NOT NULL DEFAULT ''", True),
        ("ALTER TABLE jobs ADD COLUMN tags text NOT NULL", False),
        ("ALTER TABLE jobs DROP COLUMN kind", False),
        ("DROP INDEX jobs_ready", False),
        ("DROP TRIGGER jobs_head_ended", True),
        ("CREATE TABLE more (id integer)", True),
        ("UPDATE jobs SET state = 7", False),
    ],
)
def test_what_counts_as_adding(statement: str, adds: bool) -> None:
    assert bool(ADDS.match(statement)) is adds


# Code of today on tables of tomorrow


def upgrade_sqlite(path: Path) -> None:
    """Add a column to each table and an index, as a later version might, and raise the versions."""
    with closing(sqlite3.connect(path)) as connection, connection:
        tables = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'pollwise%'"
            )
        ]
        for name in tables:
            if name.endswith("_schema"):
                connection.execute(
                    f"INSERT INTO {name} (version) SELECT max(version) + 1 FROM {name}"
                )
            else:
                connection.execute(f"ALTER TABLE {name} ADD COLUMN later_text TEXT")
                connection.execute(
                    f"ALTER TABLE {name} ADD COLUMN later_number INTEGER NOT NULL DEFAULT 0"
                )
                connection.execute(f"CREATE INDEX later_{name} ON {name} (later_number)")


def upgrade_postgres(postgres: Postgres, database: str) -> None:
    tables = postgres.execute(
        "SELECT table_name FROM information_schema.tables "
        "WHERE table_schema = 'pollwise' AND table_type = 'BASE TABLE'",
        dbname=database,
    )
    assert len(tables) > 10
    for (name,) in tables:
        if name.endswith("migrations"):
            postgres.execute(
                f"INSERT INTO pollwise.{name} (version) "
                f"SELECT max(version) + 1 FROM pollwise.{name}",
                dbname=database,
            )
        else:
            postgres.execute(
                f"ALTER TABLE pollwise.{name} ADD COLUMN later_text text, "
                "ADD COLUMN later_number integer NOT NULL DEFAULT 0",
                dbname=database,
            )


async def work(queue: Queue) -> None:
    """A worker runs a job, and every call of the queue is made."""
    ran: list[Any] = []
    worker = Worker(queue)

    @worker.handle("job")
    async def handle(job: Any) -> None:
        ran.append((job.payload, dict(job.headers)))
        worker.stop()

    await queue.put(NewJob("job", 1, headers={"a": "b"}, unique="u"))
    await worker.run(WorkerRunOptions(signals=False))
    assert ran == [(1, {"a": "b"})]
    kept, cancelled = await queue.put([NewJob("other", 2), NewJob("other", 3, key="k")])
    [first] = await queue.claim("w", 1, 60, kinds=["other"])
    assert (await queue.renew([first], 60, {kept: Progress(0.5)})).lost == ()
    await queue.cancel([cancelled])
    await queue.settle([Settlement.done(first, {"answer": 42})])
    info = await queue.get(kept)
    assert info is not None
    assert info.result == {"answer": 42}
    assert await queue.retry([cancelled]) == 1
    [again] = await queue.claim("w", 1, 60)
    await queue.settle([Settlement.dead(again, "no")])
    assert await queue.drop() == 1


async def relay(store: OutboxStore) -> None:
    await store.put(NewRecord("paid", {"order": 1}, key="k"))
    [claim] = await store.claim("relay", 1, 1, 60)
    assert [each.record.payload for each in claim.records] == [{"order": 1}]
    assert await store.renew([claim], 60) == []
    assert await store.settle([KeySettlement(claim, done=1)]) == []


async def control(state: ControllerState, name: str) -> None:
    await state.add_worker(WorkerRow(name, "mini", {"platform": "ios"}, token_hash=name))
    await state.require(name, "", {})
    assert name in [each.kind for each in await state.requirements()]
    assert (await state.append_log(name, 1, 0, b"log", 100, b"cut")) is not None
    assert await state.read_log(name, 0, 10) == b"log"
    await state.note(name, "test")
    assert (await state.list_audit(limit=1))[0].who == name


async def watch(store: FleetStore) -> None:
    await store.save([SavedTarget("a")])
    assert [each.name for each in await store.load(["a"])] == ["a"]


async def use_all(url: str, state: ControllerState, name: str) -> None:
    """Everything that has tables, in one database."""
    queue = open_queue(f"{url}?keep=1h&queue={name}")
    outbox, fleet = open_outbox(url), open_fleet(url)
    async with queue, outbox, state:
        for store in (queue, outbox, fleet, state):
            await store.migrate()
        await work(queue)
        await relay(outbox)
        await watch(fleet)
        await control(state, name)
    await fleet.close()


def test_on_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "all.db"
    asyncio.run(use_all(f"sqlite:///{path}", SqliteState(path), "first"))
    upgrade_sqlite(path)
    asyncio.run(use_all(f"sqlite:///{path}", SqliteState(path), "later"))


def test_on_postgres(postgres: Postgres) -> None:
    url = postgres.create_database("upgrades")
    asyncio.run(use_all(url, PostgresState(url), "first"))
    upgrade_postgres(postgres, "upgrades")
    asyncio.run(use_all(url, PostgresState(url), "later"))


# Tables of yesterday


def test_sqlite_jobs_of_version_1(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        first = SOURCE / "queues/sqlite/0001_jobs.sql"
        connection.executescript(first.read_text("utf-8"))
        connection.executescript(
            "CREATE TABLE pollwise_schema (version INTEGER PRIMARY KEY);"
            "INSERT INTO pollwise_schema VALUES (1);"
            "INSERT INTO pollwise_jobs (queue, kind, payload, state, priority, since, run_at,"
            " created_at, attempt, token, worker)"
            " VALUES ('default', 'job', '1', 3, 0, 1, 1, 1, 1, 1, 'gone')"
        )

    async def main() -> None:
        async with open_queue(f"sqlite:///{path}") as queue:
            [claim] = await queue.claim("w", 5, 60)
            assert (claim.job.payload, claim.job.attempt, claim.suspect) == (1, 2, False)
            await queue.settle([Settlement.done(claim)])

    asyncio.run(main())


def test_postgres_claims_of_version_1(postgres: Postgres) -> None:
    """A worker of version 1 calls the function that takes no `ahead`."""
    url = postgres.create_database("version_1")

    async def main() -> None:
        async with open_queue(url) as queue:
            await queue.migrate()
            [job_id] = await queue.put(NewJob("job", 1))
            old = "SELECT seq, attempt FROM pollwise.claim($1, $2, $3, $4, $5, $6, $7, $8, $9)"
            with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor) as old_one:
                values = ["default", "old", 5, 0.01, None, False, None, None, None]
                rows = old_one.execute(old, values).fetchall()
            assert rows[0] == (int(job_id), 1)
            await asyncio.sleep(0.02)  # real time: the lease is over then
            [claim] = await queue.claim("new", 5, 60, ahead=True)
            assert (claim.job.attempt, claim.suspect) == (2, False)

    asyncio.run(main())
