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
from pollwise.controller.state import encoding as state_rows
from pollwise.controller.state.base import ControllerState, new_id
from pollwise.controller.state.postgres.state import PostgresState
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.controller.state.values import ArtefactRow, Contact, JobRow, RunEnding, RunRow
from pollwise.errors import ConfigError, SchemaError, StoreError
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.clock import Clock, VirtualClock
from pollwise.runtime.jobs import NewJob
from pollwise.storage.sql import statements
from tests.support.proxy import Proxy
from tests.support.servers import Postgres

CLOCK = Clock()


@pytest.fixture
def schema(postgres: Postgres) -> Iterator[str]:
    name = f"state_{uuid.uuid4().hex[:12]}"
    yield name
    postgres.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


def a_job(**given: Any) -> JobRow:
    return replace(JobRow(new_id(CLOCK), "build"), **given)


def a_run(job: JobRow, worker: str = "w1", **given: Any) -> RunRow:
    made = RunRow(job.id, worker, "q1", 1, worker, job.kind, job.round, 1, CLOCK.epoch() + 120)
    return replace(made, **given)


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
            await state.add_jobs([a_job()])
            await queue.put(NewJob("build"))
            await asyncio.gather(
                *(state.add_jobs([a_job()]) for _ in range(20)),
                *(queue.put(NewJob("build")) for _ in range(20)),
            )
            assert (await queue.stats()).ready == 21
            assert (await state.stats(60)).jobs["putting"] == 21

    asyncio.run(main())


def test_a_file_that_is_missing_newer_or_nothing_of_ours(tmp_path: Path) -> None:
    async def main() -> None:
        async with SqliteState(tmp_path / "no.db", create=False) as state:
            with pytest.raises(StoreError, match="there is no database"):
                await state.ping()
        async with SqliteState(tmp_path / "new.db") as state:
            await state.ping()
        with sqlite3.connect(tmp_path / "new.db") as connection:
            connection.execute("UPDATE pollwise_controller_schema SET version = 99")
        connection.close()
        async with SqliteState(tmp_path / "new.db") as state:
            with pytest.raises(SchemaError, match="version 99"):
                await state.ping()
        (tmp_path / "text.db").write_text("no database" * 100)
        async with SqliteState(tmp_path / "text.db") as state:
            with pytest.raises(StoreError, match="not a SQLite database"):
                await state.job("x")
        await state.close()
        with pytest.raises(StoreError, match="closed"):
            await state.job("x")

    asyncio.run(main())


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names no file"):
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
            with pytest.raises(ConfigError, match="by itself"):
                state.migration()

    asyncio.run(main())


def test_no_statement_goes_through_all_jobs(tmp_path: Path) -> None:
    """But counting them, and a page of all: that takes the newest."""

    async def make() -> None:
        async with SqliteState(tmp_path / "x.db") as state:
            await state.ping()

    asyncio.run(make())
    connection = sqlite3.connect(tmp_path / "x.db")
    jobs = "pollwise_controller_jobs"
    for name, statement in state_rows.filled(
        statements("pollwise.controller.state.sqlite")
    ).items():
        if name in ("stats", "list_jobs"):
            continue
        values = dict.fromkeys(re.findall(r":(\w+)", statement))
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        assert not [step for step in plan if step.startswith(f"SCAN {jobs}")], (name, plan)
        assert not [step for step in plan if "TEMP B-TREE FOR ORDER" in step], (name, plan)
    connection.close()


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
                await state.job("x")
            assert "CREATE TABLE" in state.migration()
            assert await state.migrate() == [1]
            assert await state.migrate() == []
            await state.ping()
            postgres.execute(f"INSERT INTO {schema}.controller_migrations VALUES (99)")
            with pytest.raises(SchemaError, match="have version 99"):
                await state.ping()

    asyncio.run(main())


def test_many_migrate_at_once_and_the_queue_beside_them(postgres: Postgres, schema: str) -> None:
    async def main() -> None:
        dsn = postgres.dsn()
        states = [PostgresState(dsn, schema=schema) for _ in range(5)]
        queue = PostgresQueue(dsn, "agents", schema=schema)
        await asyncio.gather(queue.migrate(), *(each.migrate() for each in states))
        await states[0].add_jobs([a_job()])
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
            job = a_job()
            await state.add_jobs([job])
            assert None not in await state.deliver([a_run(job)])
            await state.audit([AuditEntry("x", "y")])
            assert await state.end_runs([RunEnding(job.id, "w1", "done")]) == ["ended"]
        async with PostgresState(postgres.dsn(user=role), schema=f"{schema}_x") as state:
            with pytest.raises(StoreError, match="Grant the role CREATE"):
                await state.migrate()

    asyncio.run(main())


def test_behind_a_pooler(pgbouncer: Any, postgres: Postgres, schema: str) -> None:
    async def main() -> None:
        async with PostgresState(pgbouncer.dsn(), schema=schema) as state:
            await state.migrate()
            jobs = [a_job() for _ in range(20)]
            await asyncio.gather(*(state.add_jobs([job]) for job in jobs))
            await state.deliver([a_run(job) for job in jobs])
            assert (await state.stats(60)).runs == 20

    asyncio.run(main())


def test_the_servers_clock_decides(postgres: Postgres, schema: str) -> None:
    class Wrong(Clock):
        def epoch(self) -> float:
            return super().epoch() - 10_000.0

    async def main() -> None:
        async with PostgresState(postgres.dsn(), schema=schema, clock=Wrong()) as state:
            await state.migrate()
            [job] = await state.add_jobs([a_job()])
            assert abs(job.created_at - CLOCK.epoch()) < 60

    asyncio.run(main())


# Postgres: lost answers


def test_calls_whose_answer_is_lost_are_made_once(postgres: Postgres, schema: str) -> None:
    """The connection breaks after the server did what it was told: it is not done twice."""

    async def main(proxy: Proxy) -> None:
        async with PostgresState(proxy.through(postgres.dsn()), schema=schema) as state:
            await state.migrate()
            job = a_job(unique="u")

            def lose(name: str) -> None:
                proxy.lose_answer(to=name.encode())

            lose("controller_add_jobs")
            [kept] = await state.add_jobs([job])
            assert kept.id == job.id
            lose("controller_mark_ready")
            assert await state.mark_ready([(job.id, 0, "q1")]) == [True]
            lose("controller_deliver")
            run = a_run(job)
            [started] = await state.deliver([run])
            assert started is not None
            lose("controller_contact")
            [found] = await state.contact([Contact(job.id, "w1", progress=0.5)])
            assert found is not None
            lose("controller_append_log")
            place = await state.append_log(job.id, 1, 0, b"once", 100, b"")
            assert place is not None
            assert await state.read_log(job.id, 0, 100) == b"once"
            lose("controller_put_artefact")
            assert await state.put_artefact(ArtefactRow(job.id, "a", "b", 1, "0"), 5) is None
            lose("controller_end_runs")
            assert await state.end_runs([RunEnding(job.id, "w1", "done")]) == ["ended"]
            assert await state.end_runs([RunEnding(job.id, "w1", "done")]) == ["repeated"]
            proxy.await_lost(7)

    with Proxy(postgres.port) as proxy:
        asyncio.run(main(proxy))


# Several controllers


def test_controllers_that_race_agree(postgres: Postgres, schema: str) -> None:
    """Claims, reports, cancels and sweeps at once: each run ends once, nobody waits in a circle."""

    async def main() -> None:
        states = [PostgresState(postgres.dsn(), schema=schema) for _ in range(3)]
        await states[0].migrate()
        jobs = [a_job() for _ in range(60)]
        await states[0].add_jobs(jobs)
        ended: list[str] = []

        async def work(state: ControllerState, worker: str, step: int) -> None:
            mine = jobs[::step]
            for start in range(0, len(mine), 10):
                batch = mine[start : start + 10]
                until = CLOCK.epoch() + 100 + step
                runs = [a_run(job, worker, token=step, until=until) for job in batch]
                got = [row for row in await state.deliver(list(reversed(runs))) if row]
                await state.contact([Contact(row.id, worker, progress=0.1) for row in got])
                verdicts = await state.end_runs([RunEnding(row.id, worker, "done") for row in got])
                told = zip(got, verdicts, strict=True)
                ended.extend(row.id for row, verdict in told if verdict == "ended")

        async def meddle(state: ControllerState) -> None:
            for job in jobs[::7]:
                await state.cancel(job.id)
                await state.release_lapsed(-1000.0, 5)

        await asyncio.gather(
            *(work(states[n % 3], f"w{n}", n + 1) for n in range(6)), meddle(states[0])
        )
        final = await states[1].jobs([job.id for job in jobs])
        assert len(ended) == len(set(ended)), "a run was ended twice"
        for job in jobs:
            row = final[job.id]
            assert (row.state == "done") == (job.id in set(ended)), row
        stats = await states[2].stats(60)
        assert stats.runs == stats.jobs["leased"]
        for each in states:
            await each.close()

    asyncio.run(main())
