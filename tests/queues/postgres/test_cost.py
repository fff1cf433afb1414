"""What a call of a PostgresQueue costs, also with a backlog; and the vacuum that keeps it so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from pollwise.queues.notes import NewNote
from pollwise.queues.postgres import pages
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.views import JobFilter
from pollwise.runtime.jobs import NewJob, Progress, Settlement
from tests.queues.benches import migrated
from tests.queues.postgres.kit import GRANTS, drain, fresh, run
from tests.support.daemons import wait_until
from tests.support.servers import Postgres
from tests.support.touched import Touched


def test_one_statement_a_call(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def not_sent(message: str) -> None:
        """Hints that have a call of their own are not counted."""

    async def main() -> None:
        async with fresh(dsn) as queue:
            monkeypatch.setattr(queue._transport, "send", not_sent)
            await queue.stats()

            async def cost(call: Coroutine[Any, Any, Any], statements: int = 1) -> Any:
                before = queue.database.connections.count
                result = await call
                assert queue.database.connections.count == before + statements
                return result

            jobs = [NewJob("ab"[n % 2], n, key=f"k{n % 3}", unique=f"u{n}") for n in range(9)]
            await cost(queue.put(jobs))
            await cost(queue.put(jobs))  # all twins
            claims = await cost(queue.claim("w", 10, 60))
            assert len(claims) == 3
            await cost(queue.renew(claims, 60, {claims[0].job.id: Progress(0.5)}))
            await cost(queue.cancel([claims[0].job.id, claims[1].job.id]))
            ways = [Settlement.done(claims[0]), Settlement.dead(claims[1], "x")]
            await cost(queue.settle([*ways, Settlement.retry(claims[2], 5)]))
            await cost(queue.stats())
            await cost(queue.stats_by_kind())
            await cost(queue.jobs("leased", kind=["a", "b"], worker="w"))
            await cost(queue.retry(), 2)  # the first looks for flows that must not go on

    run(main)


def blocks_of(postgres: Postgres, backlog: int, keyed: bool) -> dict[str, int]:
    """How many blocks of the table and its indexes each call looks at."""
    dsn = migrated(postgres.create_database(f"cost{backlog}{keyed}"))
    key = "'k' || i % 1000" if keyed else "NULL"
    postgres.execute(
        "INSERT INTO pollwise.jobs (queue, kind, payload, state, since, run_at, created_at, key)"
        f" SELECT 'cost', 'job', 'null', CASE WHEN {keyed} AND i > 1000 THEN 2 ELSE 0 END,"
        f" i, i, i, {key} FROM generate_series(1, {backlog}) AS i",
        dbname=f"cost{backlog}{keyed}",
    )
    spent: dict[str, int] = {}

    async def main() -> None:
        async with PostgresQueue(dsn, "cost", connections=1) as queue:

            async def touched() -> int:
                statement = (
                    b"SELECT sum(pg_stat_get_blocks_fetched(c.oid))::bigint FROM pg_class AS c"
                    b" WHERE c.relnamespace = 'pollwise'::regnamespace"
                )
                await queue.database.connections.rows(b"SELECT pg_stat_force_next_flush()")
                await queue.database.connections.rows(b"SELECT pg_stat_clear_snapshot()")
                [(blocks,)] = await queue.database.connections.rows(statement)
                return int(blocks)

            for turn in range(3):  # the first warms the caches up
                before = await touched()
                claims = await queue.claim("w", 20, 60, kinds=["job"])
                assert len(claims) == 20
                spent["claim"] = await touched() - before
                before = await touched()
                assert len(await queue.jobs("leased", worker="w", limit=20)) == 20
                spent["page"] = await touched() - before
                before = await touched()
                await queue.settle([Settlement.done(claim) for claim in claims])
                spent["settle"] = await touched() - before
                before = await touched()
                put = await queue.put([NewJob("job", turn, key=f"k{n}") for n in range(20)])
                spent["put"] = await touched() - before
                before = await touched()
                assert await queue.cancel(put) == dict.fromkeys(put, "cancelled")
                spent["cancel"] = await touched() - before
                for name, view in views_of(queue).items():
                    before = await touched()
                    await view()
                    spent[name] = await touched() - before

    asyncio.run(main())
    return spent


def views_of(queue: PostgresQueue) -> dict[str, Callable[[], Awaitable[Any]]]:
    filters = [JobFilter(), JobFilter("ready"), JobFilter("blocked")]
    filters += [JobFilter(error="none"), JobFilter(kinds=("none",)), JobFilter(key="k7", limit=1)]
    shown = {f"{chosen}": partial(queue.page, chosen) for chosen in filters}
    return {
        "stats": partial(queue.stats, 100),
        "by kind": partial(queue.stats_by_kind, 100),
        "names": queue.names,
        **shown,
    }


@pytest.mark.parametrize("keyed", [False, True])
def test_calls_do_not_cost_more_with_a_backlog(
    postgres: Postgres, keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "EXAMINED_MAX", 100)
    small, large = (blocks_of(postgres, backlog, keyed) for backlog in (2_000, 100_000))
    views = [call for call in small if call.startswith(("stats", "by kind", "names", "JobFilter"))]
    for call, blocks in small.items():
        if call in views:  # at most a few blocks for each job that they may examine
            assert large[call] <= 400, f"{call}: {large} at 100,000"
            continue
        # A larger table has indexes that are a level higher, no more.
        assert large[call] <= blocks * 1.6 + 10, f"{call}: {small} at 2,000 and {large} at 100,000"


def test_the_table_is_vacuumed_beside_the_work(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pollwise.storage.postgres.database.VACUUM_EVERY", 50)
    dsn = migrated(postgres.create_database("vacuum"))
    count = (
        "SELECT pg_stat_force_next_flush(), vacuum_count FROM pg_stat_user_tables"
        " WHERE relname = 'jobs'"
    )

    async def main() -> None:
        async with PostgresQueue(dsn) as queue:
            await queue.put([NewJob("job", n) for n in range(100)])
            await drain(queue)
            assert queue.database._vacuum is not None
            await queue.database._vacuum

    run(main)
    wait_until(lambda: postgres.execute(count, dbname="vacuum")[0][1] == 1, "the vacuum")


def test_a_role_that_may_not_vacuum_does_not_try(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pollwise.storage.postgres.database.VACUUM_EVERY", 50)
    postgres.create_role("sweeper", "hunter2")
    migrated(postgres.dsn(), "swept")
    postgres.execute(GRANTS.replace("granted", "swept").replace("runner", "sweeper"))

    async def main() -> None:
        async with fresh(postgres.dsn(user="sweeper"), schema="swept") as queue:
            await queue.put([NewJob("job", n) for n in range(100)])
            await drain(queue)
            assert queue.database._vacuum is not None
            await queue.database._vacuum

    run(main)
    assert "permission denied to vacuum" not in postgres.log()


def test_what_keys_cost_does_not_grow_with_their_line(postgres: Postgres) -> None:
    """A key with a long line of blocked jobs costs what one with a short line costs."""

    async def main() -> None:
        took = []
        for line in (10, 5000):
            async with fresh(migrated(postgres.dsn())) as queue:
                await queue.put([NewJob("job", n, key="k") for n in range(line)])
                [(plan,)] = await queue.database.connections.rows(
                    b"SELECT count(*) FROM pollwise.jobs WHERE queue = $1 AND state <> 2",
                    [queue.name.encode()],
                )
                took.append(plan)
        assert took == [1, 1], "only the first of a key is looked at by claims"

    run(main)


def test_a_slice_of_a_prune_costs_no_more_with_a_backlog(postgres: Postgres) -> None:
    def make(due: int) -> str:
        name = f"prune{due}"
        dsn = migrated(postgres.create_database(name))
        # Before the jobs that are due, some that stay for their results.
        postgres.execute(
            "INSERT INTO pollwise.jobs (queue, kind, payload, state, since, run_at, created_at,"
            " expires_at) SELECT 'cost', 'job', 'null', 5, i, i, i,"
            " CASE WHEN i <= 50 THEN 1e12 END"
            f" FROM generate_series(1, {due + 50}) AS i",
            dbname=name,
        )
        postgres.execute("VACUUM pollwise.jobs", dbname=name)  # not analysed
        return dsn

    async def blocks(dsn: str) -> list[int]:
        spent = []
        async with PostgresQueue(dsn, "cost", connections=1, keep=60) as queue:
            for _ in range(3):
                before = await touched_blocks(queue)
                assert await queue.prune() == 1000
                spent.append(await touched_blocks(queue) - before)
            while await queue.prune() == 1000:
                pass
            stats = await queue.stats()
            assert stats.done == 50
        return spent

    few, many = (asyncio.run(blocks(make(due))) for due in (3500, 30_000))
    assert max(many) <= 1.5 * max(few)


async def touched_blocks(queue: PostgresQueue) -> int:
    """How many blocks of the tables and indexes were looked at."""
    connections = queue.database.connections
    await connections.rows(b"SELECT pg_stat_force_next_flush()")
    await connections.rows(b"SELECT pg_stat_clear_snapshot()")
    [(blocks,)] = await connections.rows(
        b"SELECT sum(pg_stat_get_blocks_fetched(c.oid))::bigint FROM pg_class AS c"
        b" WHERE c.relnamespace = 'pollwise'::regnamespace"
    )
    return int(blocks)


async def put_kinds(queue: PostgresQueue, kinds: int) -> None:
    """Two jobs of each kind."""
    await queue.database.connections.rows(
        b"INSERT INTO pollwise.jobs (queue, kind, payload, state, since, run_at, created_at)"
        b" SELECT $1, 'k' || lpad((i % $2::integer)::text, 5, '0'), 'null', 0, i, i, i"
        b" FROM generate_series(1, 2 * $2::integer) AS i",
        [queue.name.encode(), str(kinds).encode()],
    )


def test_claims_of_any_kind_come_to_all_kinds(dsn: str) -> None:
    async def main() -> None:
        async with fresh(dsn, connections=1) as queue:
            await put_kinds(queue, 4500)
            places = [(await queue.claim("w", 1, 60))[0].job.kind for _ in range(2)]
            assert places[0] < "k02000" <= places[1] < "k04000", "the next goes on after them"
            while await queue.claim("w", 1000, 60):
                pass
            assert (await queue.stats()).ready == 0

    run(main)


def test_a_claim_of_any_kind_reads_a_bounded_number_of_kinds(dsn: str) -> None:
    async def main() -> None:
        read = []
        for kinds in (2500, 10000):
            async with fresh(dsn, connections=1) as queue:
                await put_kinds(queue, kinds)
                touched = Touched(queue.database)
                assert len(await queue.claim("w", 20, 60)) == 20
                read.append(touched.most["claim"])
        assert read[1] < 1.5 * read[0], read

    run(main)


def test_a_record_of_a_worker_is_written_without_the_others(dsn: str) -> None:
    async def main() -> None:
        read = []
        for workers in (100, 5000):
            async with fresh(dsn, connections=1) as queue:
                await queue.database.connections.rows(
                    b"INSERT INTO pollwise.notes (queue, topic, name, value, until)"
                    b" SELECT $1, 'workers', 'w' || i, '{}', 1e10"
                    b" FROM generate_series(1, $2::integer) AS i",
                    [queue.name.encode(), str(workers).encode()],
                )
                await queue._write_note(NewNote("workers", "mine", "1", 60))
                touched = Touched(queue.database)
                for value in ("2", "3", None):
                    assert (await queue._write_note(NewNote("workers", "mine", value, 60))).done
                read.append(touched.most["note"])
        assert read[1] < read[0] + 20, read

    run(main)
