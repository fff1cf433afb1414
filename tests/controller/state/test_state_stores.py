"""What is particular to a store of the state: files, schemas, and answers that are lost."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pollwise.controller.opening import state_at
from pollwise.controller.state.base import new_id
from pollwise.controller.state.encoding import all_statements
from pollwise.controller.state.postgres.state import PostgresState
from pollwise.controller.state.sqlite.state import DIALECT, SqliteState
from pollwise.controller.state.values import ArtefactRow, Token, WorkerRow
from pollwise.errors import ConfigError, SchemaError, StoreError, StoreUnavailable
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.clock import Clock, VirtualClock
from pollwise.runtime.jobs import NewJob
from tests.support.proxy import Proxy
from tests.support.servers import Postgres

CLOCK = Clock()


@pytest.fixture
def schema(postgres: Postgres) -> Iterator[str]:
    name = f"state_{uuid.uuid4().hex[:12]}"
    yield name
    postgres.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


def a_worker(**given: Any) -> WorkerRow:
    return replace(WorkerRow(new_id(CLOCK), "mac", token_hash=uuid.uuid4().hex), **given)


def a_file(name: str = "a", blob: str = "b") -> ArtefactRow:
    return ArtefactRow("j1", name, blob, 1, "0")


# Ids


def test_ids_sort_by_time_and_cannot_be_guessed() -> None:
    clock = VirtualClock()

    async def main() -> None:
        made = []
        for _ in range(50):
            made.append(new_id(clock))
            await clock.advance(0.001)
        assert made == sorted(made)
        assert len({each[12:] for each in made}) == 50
        assert all(len(each) == 32 and int(each, 16) for each in made)

    clock.run(main())


# SQLite


def test_the_state_shares_the_file_of_its_queue(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def main() -> None:
        async with SqliteQueue(path, "agents") as queue, SqliteState(path) as state:
            await state.add_worker(a_worker())
            await queue.put(NewJob("build"))
            await asyncio.gather(
                *(state.add_worker(a_worker()) for _ in range(20)),
                *(queue.put(NewJob("build")) for _ in range(20)),
            )
            assert (await queue.stats()).ready == 21
            assert await state.count_workers(60) == (21, 21)

    asyncio.run(main())


def test_a_file_that_is_missing_newer_or_nothing_of_ours(tmp_path: Path) -> None:
    async def main() -> None:
        async with SqliteState(tmp_path / "no.db", create=False) as state:
            with pytest.raises(StoreError, match="there is no database"):
                await state.ping()
        async with SqliteState(tmp_path / "new.db") as state:
            await state.ping()
        with sqlite3.connect(tmp_path / "new.db") as connection:
            connection.execute("INSERT INTO pollwise_controller_schema (version) VALUES (99)")
        connection.close()
        async with SqliteState(tmp_path / "new.db") as state:
            await state.ping()  # migrations only add
        (tmp_path / "text.db").write_text("no database" * 100)
        async with SqliteState(tmp_path / "text.db") as state:
            with pytest.raises(StoreError, match="not a SQLite database"):
                await state.token("x")
        await state.close()
        with pytest.raises(StoreError, match="closed"):
            await state.token("x")

    asyncio.run(main())


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a file name"):
        SqliteState("..")
    with pytest.raises(ConfigError, match="synchronous"):
        SqliteState(tmp_path / "x.db", synchronous="maybe")


def test_a_temporary_state_leaves_nothing() -> None:
    async def main() -> Path:
        async with SqliteState.temporary() as state:
            await state.ping()
            assert state.path.exists()
            return state.path.parent

    assert not asyncio.run(main()).exists()


def test_it_makes_its_own_tables(tmp_path: Path) -> None:
    async def main() -> None:
        async with SqliteState(tmp_path / "x.db") as state:
            assert await state.migrate() == []
            await state.ping()

    asyncio.run(main())


def test_files_logs_and_tokens_are_found_by_an_index(tmp_path: Path) -> None:
    """Workers and requirements are few, and the audit log is filtered as people like."""

    async def make() -> None:
        async with SqliteState(tmp_path / "x.db") as state:
            await state.ping()

    asyncio.run(make())
    connection = sqlite3.connect(tmp_path / "x.db")
    for name, statement in all_statements("pollwise.controller.state.sqlite", DIALECT).items():
        values = dict.fromkeys(re.findall(r":(\w+)", statement))
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        scans = [step for step in plan if re.match(r"SCAN pollwise_controller_[aflt]", step)]
        assert not scans or name == "list_audit", (name, plan)
    connection.close()


def test_a_requirement_is_written_once_an_hour(tmp_path: Path) -> None:
    clock, path = VirtualClock(), tmp_path / "x.db"

    def written() -> float:
        connection = sqlite3.connect(path)
        [(used_at,)] = connection.execute("SELECT used_at FROM pollwise_controller_requirements")
        connection.close()
        return float(used_at)

    async def main() -> None:
        async with SqliteState(path, clock=clock) as state:
            await state.require("build", "h", {})
            begin = clock.epoch()
            await clock.advance(3599)
            await state.require("build", "h", {})
            async with SqliteState(path, clock=clock) as other:
                await other.require("build", "h", {})
            assert written() == begin
            await clock.advance(1)
            await state.require("build", "h", {})
            assert written() == begin + 3600
        await state.require("build", "h", {})  # without a call to the store, which is closed

    clock.run(main())


# URLs


def test_the_state_lies_beside_the_queue(tmp_path: Path) -> None:
    async def main() -> None:
        state = state_at(f"sqlite:///{tmp_path}/jobs.db?queue=agents&synchronous=off&keep=7d")
        assert isinstance(state, SqliteState)
        assert state.path == tmp_path / "jobs.db"
        await state.close()
        state = state_at("memory://")
        await state.ping()
        await state.close()
        state = state_at("postgresql://app:secret@db:5/shop?schema=farm&sslmode=disable&timeout=3s")
        assert isinstance(state, PostgresState)
        assert (state.schema, "secret" in state.url) == ("farm", False)
        await state.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://:hunter2@cache/0", "cannot hold the state of a controller"),
        ("sqlite:///jobs.db?quue=x", "did you mean 'queue'"),
        ("postgresql://db/x?shema=x", "did you mean 'schema'"),
        ("nothing", "is not a queue URL"),
        ("sqlite:///", "does not name a file"),
    ],
)
def test_urls_that_hold_no_state(url: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        state_at(url)
    assert "hunter2" not in str(error.value)


# Postgres: migrating


def test_tables_are_made_only_when_told_to(postgres: Postgres, schema: str) -> None:
    async def main() -> None:
        async with PostgresState(postgres.dsn(), schema=schema) as state:
            with pytest.raises(SchemaError, match="Run `pollwise serve URL --migrate`"):
                await state.ping()
            with pytest.raises(SchemaError, match="does not exist"):
                await state.token("x")
            assert await state.migrate() == [1, 2, 3]
            assert await state.migrate() == []
            await state.ping()
            postgres.execute(f"INSERT INTO {schema}.controller_migrations VALUES (99)")
            await state.ping()  # migrations only add

    asyncio.run(main())


def test_many_migrate_at_once_and_the_queue_beside_them(postgres: Postgres, schema: str) -> None:
    async def main() -> None:
        dsn = postgres.dsn()
        states = [PostgresState(dsn, schema=schema) for _ in range(5)]
        queue = PostgresQueue(dsn, "agents", schema=schema)
        await asyncio.gather(queue.migrate(), *(each.migrate() for each in states))
        await states[0].add_worker(a_worker())
        await queue.put(NewJob("build"))
        await queue.close()
        for each in states:
            await each.close()

    asyncio.run(main())


def test_a_role_that_owns_nothing_can_work(postgres: Postgres, schema: str) -> None:
    role = f"farm_{uuid.uuid4().hex[:8]}"
    postgres.create_role(role)

    async def main() -> None:
        async with PostgresState(postgres.dsn(), schema=schema) as owner:
            await owner.migrate()
        postgres.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        tables = f"ALL TABLES IN SCHEMA {schema}"
        postgres.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {role}")
        async with PostgresState(postgres.dsn(user=role), schema=schema) as state:
            await state.add_worker(a_worker())
            await state.audit([AuditEntry("x", "y")])
            await state.put_artefact(a_file(), 5)
            await state.append_log("j1", 1, 0, b"x", 10, b"")
            await state.forget(["j1"])
        async with PostgresState(postgres.dsn(user=role), schema=f"{schema}_x") as state:
            with pytest.raises(StoreError, match="Grant the role CREATE"):
                await state.migrate()

    asyncio.run(main())


def test_behind_a_pooler(pgbouncer: Any, postgres: Postgres, schema: str) -> None:
    async def main() -> None:
        async with PostgresState(pgbouncer.dsn(), schema=schema) as state:
            await state.migrate()
            await asyncio.gather(*(state.add_worker(a_worker()) for _ in range(20)))
            assert await state.count_workers(60) == (20, 20)

    asyncio.run(main())


def test_the_servers_clock_decides(postgres: Postgres, schema: str) -> None:
    class Wrong(Clock):
        def epoch(self) -> float:
            return super().epoch() - 10_000.0

    async def main() -> None:
        async with PostgresState(postgres.dsn(), schema=schema, clock=Wrong()) as state:
            await state.migrate()
            worker = await state.add_worker(a_worker())
            assert abs(worker.registered_at - CLOCK.epoch()) < 60
            assert await state.count_workers(60) == (1, 1)

    asyncio.run(main())


# Postgres: lost answers


def test_calls_whose_answer_is_lost_are_made_once(postgres: Postgres, schema: str) -> None:
    """The connection breaks after the server did what it was told: it is not done twice."""

    async def main(proxy: Proxy) -> None:
        async with PostgresState(proxy.through(postgres.dsn()), schema=schema) as state:
            await state.migrate()
            lose = proxy.lose_answer
            worker, token = a_worker(), Token(new_id(CLOCK), "ci", "put", "h1")
            lose(b"controller_workers")
            assert (await state.add_worker(worker)).id == worker.id
            lose(b"controller_tokens")
            assert (await state.add_token(token)).id == token.id
            lose(b"controller_tokens")
            rotated = await state.rotate_token(token.id, "h1", "h2", None)
            assert rotated is not None
            assert rotated.hash == "h2"
            lose(b"controller_append_run_log")
            place = await state.append_log("j1", 1, 0, b"once", 100, b"")
            assert place is not None
            assert await state.read_log("j1", 0, 100) == b"once"
            lose(b"controller_put_artefact")
            assert await state.put_artefact(a_file(), 5) is None
            assert len(await state.artefacts("j1")) == 1
            lose(b"controller_audit")
            with pytest.raises(StoreUnavailable):
                await state.audit([AuditEntry("x", "y")])
            assert len(await state.list_audit()) == 1
            proxy.await_lost(6)

    with Proxy(postgres.port) as proxy:
        asyncio.run(main(proxy))


# Several controllers


def test_controllers_that_write_and_forget_one_folder(postgres: Postgres, schema: str) -> None:
    """Appends, files and sweeps at once: nothing fails, and what is forgotten is gone."""

    async def main() -> None:
        states = [PostgresState(postgres.dsn(), schema=schema) for _ in range(3)]
        await states[0].migrate()

        async def write(state: PostgresState, part: int) -> None:
            for n in range(20):
                await state.append_log("j1", part, 0, b"x" * (n + 1), 1000, b"")
                await state.put_artefact(a_file(f"f{part}", f"{part}-{n}"), 5)

        async def sweep(state: PostgresState) -> None:
            for _ in range(20):
                await state.forget(["j1", "j2"])

        await asyncio.gather(write(states[0], 1), write(states[1], 1), sweep(states[2]))
        place = await states[0].log_place("j1")
        assert len(await states[0].read_log("j1", 0, 1000)) == place.size
        await states[0].forget(["j1"])
        [(left,)] = postgres.execute(
            f"SELECT (SELECT count(*) FROM {schema}.controller_log_bytes)"
            f" + (SELECT count(*) FROM {schema}.controller_artefacts)"
        )
        assert left == 0
        for each in states:
            await each.close()

    asyncio.run(main())
