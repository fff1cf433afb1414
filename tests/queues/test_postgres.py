"""PostgresQueue beyond the contract: bad input, migrations, transactions, what a call costs."""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from pollux.clock import VirtualClock
from pollux.errors import (
    ConfigError,
    LeaseLost,
    PayloadError,
    PolluxError,
    SchemaError,
    StoreError,
    StoreUnavailable,
    UniqueConflict,
)
from pollux.jobs import NewJob, Settlement
from pollux.queues.postgres import PostgresQueue
from pollux.queues.sql import migrations
from pollux.queues.urls import open_queue
from tests.daemons import wait_until
from tests.proxy import Proxy
from tests.queues.benches import migrated
from tests.servers import OwnPostgres, PgBouncer, Postgres

names = (f"test {number}" for number in itertools.count())


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    return migrated(postgres.dsn())


def queue_at(dsn: str, **options: Any) -> PostgresQueue:
    """A queue of its own in a shared database."""
    return PostgresQueue(dsn, options.pop("name", None) or next(names), **options)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


@asynccontextmanager
async def fresh(dsn: str, **options: Any) -> AsyncIterator[PostgresQueue]:
    async with queue_at(dsn, **options) as queue:
        assert isinstance(queue, PostgresQueue)
        yield queue


async def drain(queue: PostgresQueue) -> list[Any]:
    """Claim and finish all there is."""
    found = []
    while claims := await queue.claim("w", 100, 60):
        found += [claim.job.payload for claim in claims]
        await queue.settle([Settlement.done(claim) for claim in claims])
    return found


# URLs and bad input


def test_a_url_has_its_options_and_those_of_libpq() -> None:
    queue = open_queue(
        "postgresql://app:hunter2@db:6432/jobs?queue=mail&schema=work&keep=7d&timeout=5s"
        "&connections=9&max_payload_bytes=10&listen=postgresql://direct/jobs&sslmode=require"
        "&target_session_attrs=read-write"
    )
    assert isinstance(queue, PostgresQueue)
    assert (queue.name, queue.schema, queue.keep) == ("mail", "work", 7 * 86400)
    assert queue.max_payload_bytes == 10
    assert queue.url == "postgresql://app@db:6432/jobs?queue=mail&schema=work"
    parts = psycopg.conninfo.conninfo_to_dict(queue._conninfo)
    assert parts["sslmode"] == "require"
    assert parts["password"] == "hunter2"
    assert "schema" not in parts
    assert psycopg.conninfo.conninfo_to_dict(queue._listen)["host"] == "direct"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app@db:6432/jobs?queue=mail",
        "postgresql:///jobs?host=%2Fvar%2Frun%2Fpg&queue=a%20b",
        "postgresql:///jobs?host=a%2Cb&port=1%2C2&queue=x",
        "postgresql://[::1]:5432/jobs?queue=x",
        "postgresql:///?queue=default",
    ],
)
def test_a_queue_can_be_opened_again_by_its_url(url: str) -> None:
    queue = open_queue(url)
    assert open_queue(queue.url).url == queue.url == url
    assert open_queue(url.replace("postgresql:", "postgres:", 1)).url == url


def test_a_conninfo_need_not_be_a_url() -> None:
    queue = PostgresQueue("host=db dbname=jobs user=app password=hunter2", "mail")
    assert queue.url == "postgresql://app@db/jobs?queue=mail"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://u:hunter2@h/d?quue=x", "did you mean 'queue'?"),
        ("postgresql://u:hunter2@h/d?sslmod=x", "did you mean 'sslmode'?"),
        ("postgresql://u:hunter2@h/d?password=hunter2&password=hunter3", "password is given twice"),
        ("postgresql://u:hunter2@h/d?schema=pg_x", "schema = 'pg_x'"),
        ("postgresql://u:hunter2@h/d?schema=", "schema = ''"),
        ("postgresql://u:hunter2@h/d?connections=0", "connections = 0"),
        ("postgresql://u:hunter2@h/d?connections=x", "connections = 'x'"),
        ("postgresql://u:hunter2@h/d?timeout=0", "timeout = '0'"),
        ("postgresql://u:hunter2@h/d?listen=nonsense%20hunter2", "listen cannot be read"),
        ("postgresql://u:hunter2@h/d#x", "write it as %23"),
        ("postgresql://u:hunter2/x@h/d", "special in a user or a password"),
        ("postgresql://u:hun@ter2@h/d", "special in a user or a password"),
        ("postgresql://u:12/hunter2@h/d", "special in a user or a password"),
        ("postgresql://u:hunter2\uff03@h/d", "is not a queue URL"),
    ],
)
def test_bad_urls_are_refused_without_their_secrets(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_queue(url)
    assert says in str(caught.value)
    for secret in ("hunter", "ter2"):
        assert secret not in str(caught.value)


async def refusal(dsn: str, **options: Any) -> PolluxError:
    """What a first call says."""
    queue = PostgresQueue(dsn, **options)
    try:
        with pytest.raises(PolluxError) as caught:
            await queue.put(NewJob("job"))
    finally:
        await queue.close()
    for secret in ("hunter2", "wrong"):
        assert secret not in str(caught.value)
        assert secret not in repr(caught.value.__cause__)
    return caught.value


def test_who_may_not_or_cannot_is_told_plainly(postgres: Postgres) -> None:
    postgres.create_role("limited", "hunter2")
    good = postgres.dsn(user="limited")
    migrated(postgres.dsn(), "closed")

    async def main() -> None:
        wrong = await refusal(good.replace("hunter2", "wrong"))
        assert type(wrong) is StoreError
        assert "password authentication failed" in str(wrong)
        assert "Check the user and the password." in str(wrong)
        none = await refusal(postgres.dsn("nowhere", "limited"))
        assert type(none) is StoreError
        assert '"nowhere" does not exist' in str(none)
        nobody = await refusal(f"postgresql://nobody:hunter2@127.0.0.1:{postgres.port}/postgres")
        assert type(nobody) is StoreError
        bare = await refusal(good, schema="never made")
        assert type(bare) is SchemaError
        assert "pollux queue migrate" in str(bare)
        closed = await refusal(good, schema="closed")
        assert type(closed) is StoreError
        assert "Grant it USAGE" in str(closed)
        postgres.execute("GRANT USAGE ON SCHEMA closed TO limited")
        postgres.execute("GRANT SELECT ON closed.migrations TO limited")
        half = await refusal(good, schema="closed")
        assert type(half) is StoreError
        assert "INSERT" in str(half)
        away = await refusal("postgresql://app:hunter2@127.0.0.1:1/x")
        assert type(away) is StoreUnavailable
        assert "cannot be reached" in str(away)

    run(main)


GRANTS = """
GRANT USAGE ON SCHEMA granted TO runner;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA granted TO runner;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA granted TO runner;
"""


def test_a_role_with_the_grants_of_the_docs_can_do_everything(postgres: Postgres) -> None:
    postgres.create_role("runner", "hunter2")
    migrated(postgres.dsn(), "granted")
    postgres.execute(GRANTS)

    async def main() -> None:
        async with fresh(postgres.dsn(user="runner"), schema="granted", keep=60) as queue:
            await queue.put([NewJob("job", 1, key="k", unique="u"), NewJob("job", 2, key="k")])
            [claim] = await queue.claim("w", 10, 60)
            await queue.extend([claim], 60)
            await queue.settle([Settlement.dead(claim, "broken")])
            assert await queue.redrive() == 1
            assert await drain(queue) == [2, 1]
            assert (await queue.stats()).done == 2
            assert await queue.drop() == 0
            assert await queue.prune() == 0

    run(main)


def test_a_payload_too_large_is_refused(dsn: str) -> None:
    async def main() -> None:
        async with fresh(dsn, max_payload_bytes=10) as queue:
            with pytest.raises(PayloadError, match="max_payload_bytes is 10"):
                await queue.put(NewJob("job", "x" * 100))

    run(main)


def test_a_batch_too_large_for_postgres_is_refused(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pollux.queues.postgres.BATCH_BYTES_MAX", 1000)

    async def main() -> None:
        async with fresh(dsn) as queue:
            with pytest.raises(PayloadError, match="at most 1000 at once, so split it"):
                await queue.put([NewJob("job", "x" * 400) for _ in range(3)])
            await queue.put([NewJob("job", "x" * 400) for _ in range(2)])

    run(main)


def test_transactions_of_another_kind_are_refused(postgres: Postgres) -> None:
    postgres.create_role("serial", "hunter2", "SUPERUSER")
    postgres.execute("ALTER ROLE serial SET default_transaction_isolation = 'repeatable read'")
    migrated(postgres.dsn())

    async def main() -> None:
        error = await refusal(postgres.dsn(user="serial"))
        assert type(error) is StoreError
        assert "transactions are repeatable read here" in str(error)

    run(main)


# Migrations


def test_a_schema_newer_than_the_code_is_refused(postgres: Postgres) -> None:
    migrated(postgres.dsn(), "newer")
    postgres.execute("INSERT INTO newer.migrations VALUES (99)")

    async def main() -> None:
        error = await refusal(postgres.dsn(), schema="newer")
        assert type(error) is SchemaError
        assert "version 99; this code knows up to" in str(error)
        async with fresh(postgres.dsn(), schema="newer") as queue:
            with pytest.raises(SchemaError, match="Upgrade pollux"):
                await queue.migrate()

    run(main)


def test_a_role_that_may_create_a_schema_migrates(postgres: Postgres) -> None:
    postgres.create_role("maker", "hunter2")
    postgres.execute("GRANT CREATE ON DATABASE postgres TO maker")

    async def main() -> None:
        async with fresh(postgres.dsn(user="maker"), schema="made") as queue:
            assert await queue.migrate() == [version for version, _ in migrations("postgres")]
            assert await queue.migrate() == []
            await queue.put(NewJob("job", 1))
            assert await drain(queue) == [1]

    run(main)


def test_a_role_that_owns_the_schema_migrates(postgres: Postgres) -> None:
    postgres.create_role("owner", "hunter2")
    postgres.execute("CREATE SCHEMA owned AUTHORIZATION owner")

    async def main() -> None:
        async with fresh(postgres.dsn(user="owner"), schema="owned") as queue:
            assert await queue.migrate() == [version for version, _ in migrations("postgres")]

    run(main)


def test_a_role_that_may_not_create_is_told(postgres: Postgres) -> None:
    postgres.create_role("powerless", "hunter2")

    async def main() -> None:
        async with fresh(postgres.dsn(user="powerless"), schema="forbidden") as queue:
            with pytest.raises(StoreError, match="permission denied for database"):
                await queue.migrate()

    run(main)


def test_ten_migrate_at_once(postgres: Postgres) -> None:
    async def main() -> None:
        queues = [queue_at(postgres.dsn(), schema="at once") for _ in range(10)]
        applied = await asyncio.gather(*(queue.migrate() for queue in queues))
        await queues[0].put(NewJob("job", 1))
        assert await drain(queues[0]) == [1]
        for queue in queues:
            await queue.close()
        assert sum(map(bool, applied)) >= 1

    run(main)
    assert postgres.execute('SELECT version FROM "at once".migrations') == [(1,)]


def test_the_printed_sql_makes_the_same_schema(postgres: Postgres) -> None:
    by_call, by_psql = postgres.create_database("by_call"), postgres.create_database("by_psql")
    migrated(by_call)
    text = open_queue(by_psql).migration()
    assert text is not None
    psql = str(postgres.programs / "psql")
    for _ in range(2):  # the second time does no harm
        command = [psql, by_psql, "--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1"]
        subprocess.run(command, input=text.encode(), check=True, capture_output=True)

    def dumped(database: str) -> str:
        dump = subprocess.run(
            [postgres.programs / "pg_dump", "--schema-only", database],
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        return re.sub(r"\\(un)?restrict \w+", "", dump)

    assert dumped(by_psql) == dumped(by_call)
    assert "CREATE FUNCTION pollux.claim" in dumped(by_call)


def test_schemas_are_apart(postgres: Postgres) -> None:
    migrated(postgres.dsn(), "Odd näme")

    async def main() -> None:
        async with (
            fresh(postgres.dsn(), name="same", schema="Odd näme") as odd,
            fresh(migrated(postgres.dsn()), name="same") as plain,
        ):
            await odd.put(NewJob("job", "odd", unique="u"))
            assert await drain(plain) == []
            assert await drain(odd) == ["odd"]

    run(main)


# The user's own transaction


@pytest.mark.parametrize("plain", [True, False])
def test_a_put_joins_the_users_transaction(dsn: str, plain: bool) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:
            if plain:
                with psycopg.connect(dsn) as connection:
                    await queue.put(NewJob("job", "rolled back", key="k"), connection=connection)
                    connection.rollback()
                    [job_id] = await queue.put(NewJob("job", 1, key="k"), connection=connection)
                    assert await queue.peek(job_id) is None, "seen before the commit"
                    await queue.put(NewJob("job", 2, key="k"))  # does not wait for it
                    connection.commit()
            else:
                async with await psycopg.AsyncConnection.connect(dsn) as conn:
                    await queue.put(NewJob("job", "rolled back", key="k"), connection=conn)
                    await conn.rollback()
                    [job_id] = await queue.put(NewJob("job", 1, key="k"), connection=conn)
                    assert await queue.peek(job_id) is None, "seen before the commit"
                    await queue.put(NewJob("job", 2, key="k"))
                    await conn.commit()
            assert await drain(queue) == [1, 2]

    run(main)


def test_a_unique_conflict_leaves_the_users_transaction_alive(dsn: str) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:
            await queue.put(NewJob("job", {"a": 1, "b": 2}, unique="u"))
            async with await psycopg.AsyncConnection.connect(dsn) as conn:
                with pytest.raises(UniqueConflict, match="'u'"):
                    jobs = [NewJob("job", 1), NewJob("job", 2, unique="u")]
                    await queue.put(jobs, connection=conn)
                same = [NewJob("job", {"b": 2, "a": 1}, unique="u"), NewJob("job", 3)]
                await queue.put(same, connection=conn)
                await conn.commit()
            assert await drain(queue) == [{"a": 1, "b": 2}, 3]

    run(main)


def test_an_open_transaction_holds_nobody_up(dsn: str) -> None:
    async def main() -> None:
        async with fresh(dsn, timeout="5s") as queue:
            await queue.put([NewJob("job", n, key="k") for n in range(3)])
            async with await psycopg.AsyncConnection.connect(dsn) as conn:
                await queue.put(NewJob("job", "mine", key="k"), connection=conn)
                assert await drain(queue) == [0, 1, 2]
                await queue.put(NewJob("job", 4, key="k"))
                [claim] = await queue.claim("w", 10, 60)
                await conn.commit()
                assert await queue.claim("w", 10, 60) == [], "one of the key runs"
                await queue.settle([Settlement.done(claim)])
            assert await drain(queue) == ["mine"]

    run(main)


def test_only_a_psycopg_connection_will_do(dsn: str) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:
            with pytest.raises(ConfigError, match="connection = int"):
                await queue.put(NewJob("job"), connection=7)

    run(main)


# What a call costs


def test_one_statement_a_call(dsn: str) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:
            await queue.stats()

            async def cost(call: Coroutine[Any, Any, Any]) -> Any:
                before = queue._connections.count
                result = await call
                assert queue._connections.count == before + 1
                return result

            jobs = [NewJob("ab"[n % 2], n, key=f"k{n % 3}", unique=f"u{n}") for n in range(9)]
            await cost(queue.put(jobs))
            await cost(queue.put(jobs))  # all twins
            claims = await cost(queue.claim("w", 10, 60))
            assert len(claims) == 3
            await cost(queue.extend(claims, 60))
            ways = [Settlement.done(claims[0]), Settlement.dead(claims[1], "x")]
            await cost(queue.settle([*ways, Settlement.retry(claims[2], 5)]))
            await cost(queue.stats())
            await cost(queue.redrive())

    run(main)


def blocks_of(postgres: Postgres, backlog: int, keyed: bool) -> dict[str, int]:
    """How many blocks of the table and its indexes a claim and a settlement look at."""
    dsn = migrated(postgres.create_database(f"cost{backlog}{keyed}"))
    key = "'k' || i % 1000" if keyed else "NULL"
    postgres.execute(
        "INSERT INTO pollux.jobs (queue, kind, payload, state, since, run_at, created_at, key)"
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
                    b" WHERE c.relnamespace = 'pollux'::regnamespace"
                )
                await queue._connections.rows(b"SELECT pg_stat_force_next_flush()")
                await queue._connections.rows(b"SELECT pg_stat_clear_snapshot()")
                [(blocks,)] = await queue._connections.rows(statement)
                return int(blocks)

            for turn in range(3):  # the first warms the caches up
                before = await touched()
                claims = await queue.claim("w", 20, 60, kinds=["job"])
                assert len(claims) == 20
                spent["claim"] = await touched() - before
                before = await touched()
                await queue.settle([Settlement.done(claim) for claim in claims])
                spent["settle"] = await touched() - before
                before = await touched()
                await queue.put([NewJob("job", turn, key=f"k{n}") for n in range(20)])
                spent["put"] = await touched() - before

    asyncio.run(main())
    return spent


@pytest.mark.parametrize("keyed", [False, True])
def test_calls_do_not_cost_more_with_a_backlog(postgres: Postgres, keyed: bool) -> None:
    small, large = (blocks_of(postgres, backlog, keyed) for backlog in (2_000, 100_000))
    for call, blocks in small.items():
        # A larger table has indexes that are a level higher, no more.
        assert large[call] <= blocks * 1.6 + 10, f"{call}: {small} at 2,000 and {large} at 100,000"


def test_the_table_is_vacuumed_beside_the_work(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pollux.queues.postgres.VACUUM_EVERY", 50)
    dsn = migrated(postgres.create_database("vacuum"))
    count = (
        "SELECT pg_stat_force_next_flush(), vacuum_count FROM pg_stat_user_tables"
        " WHERE relname = 'jobs'"
    )

    async def main() -> None:
        async with PostgresQueue(dsn) as queue:
            await queue.put([NewJob("job", n) for n in range(100)])
            await drain(queue)
            assert queue._vacuum is not None
            await queue._vacuum

    run(main)
    wait_until(lambda: postgres.execute(count, dbname="vacuum")[0][1] == 1, "the vacuum")


def test_a_role_that_may_not_vacuum_does_not_try(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pollux.queues.postgres.VACUUM_EVERY", 50)
    postgres.create_role("sweeper", "hunter2")
    migrated(postgres.dsn(), "swept")
    postgres.execute(GRANTS.replace("granted", "swept").replace("runner", "sweeper"))

    async def main() -> None:
        async with fresh(postgres.dsn(user="sweeper"), schema="swept") as queue:
            await queue.put([NewJob("job", n) for n in range(100)])
            await drain(queue)
            assert queue._vacuum is not None
            await queue._vacuum

    run(main)
    assert "permission denied to vacuum" not in postgres.log()


def test_what_keys_cost_does_not_grow_with_their_line(postgres: Postgres) -> None:
    """A key with a long line of blocked jobs costs what one with a short line costs."""

    async def main() -> None:
        took = []
        for line in (10, 5000):
            async with fresh(migrated(postgres.dsn())) as queue:
                await queue.put([NewJob("job", n, key="k") for n in range(line)])
                [(plan,)] = await queue._connections.rows(
                    b"SELECT count(*) FROM pollux.jobs WHERE queue = $1 AND state <> 2",
                    [queue.name.encode()],
                )
                took.append(plan)
        assert took == [1, 1], "only the first of a key is looked at by claims"

    run(main)


# Trouble


def test_a_settlement_whose_answer_is_lost_counts_once(dsn: str, postgres: Postgres) -> None:
    async def main() -> None:
        with Proxy(postgres.port) as proxy:
            async with fresh(proxy.through(dsn), connections=1) as queue:
                await queue.put([NewJob("job", n) for n in range(4)])
                claims = await queue.claim("w", 10, 60)
                ways = [
                    Settlement.done(claims[0]),
                    Settlement.retry(claims[1], 0, "again"),
                    Settlement.dead(claims[2], "broken"),
                    Settlement.give_back(claims[3]),
                ]
                proxy.lose_answer(to=b"settle")
                await queue.settle(ways)
                views = [await queue.peek(claim.job.id) for claim in claims]
                states = [view and (view.state, view.job.attempt) for view in views]
                assert states == [None, ("ready", 1), ("dead", 1), ("ready", 0)]
                with pytest.raises(LeaseLost):
                    await queue.settle(ways)

    run(main)


def test_a_settlement_that_was_lost_is_still_refused_when_another_has_the_job(
    dsn: str, postgres: Postgres
) -> None:
    async def main() -> None:
        with Proxy(postgres.port) as proxy:
            async with fresh(proxy.through(dsn), connections=1) as queue:
                [job_id] = await queue.put(NewJob("job"))
                [old] = await queue.claim("w", 1, 0.001)
                proxy.lose_request(containing=b"settle")
                async with PostgresQueue(dsn, queue.name) as other:
                    while not (new := await other.claim("v", 1, 60)):
                        pass
                    with pytest.raises(LeaseLost) as caught:
                        await queue.settle([Settlement.retry(old)])
                    assert caught.value.lost == (job_id,)
                    await other.settle([Settlement.done(new[0])])

    run(main)


def test_a_server_that_stands_still_is_not_waited_for(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    dsn = migrated(server.dsn())

    async def main() -> None:
        queue = PostgresQueue(dsn, timeout="200ms")
        await queue.put(NewJob("job", 1))
        with server.paused():
            for call in (queue.put(NewJob("job", 2)), queue.claim("w", 1, 60), queue.stats()):
                with pytest.raises(StoreUnavailable, match=r"within timeout = 0\.2 s"):
                    await call
            await queue.close()
        async with PostgresQueue(dsn) as again:
            assert (await again.stats()).ready in (1, 2)

    run(main)


def test_a_restart_is_survived_without_an_error_once_it_is_over(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    dsn = migrated(server.dsn())

    async def main() -> None:
        async with PostgresQueue(dsn) as queue:
            await asyncio.gather(*(queue.put(NewJob("job", n)) for n in range(8)))
            server.restart()
            await asyncio.sleep(0)
            assert sorted(await drain(queue)) == list(range(8))
            server.stop()
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await queue.stats()
            server.start()
            await queue.stats()

    run(main)


def test_a_standby_is_unavailable_not_wrong(own_postgres: OwnPostgres) -> None:
    primary = own_postgres()
    migrated(primary.dsn())
    standby = primary.standby()

    async def main() -> None:
        async with PostgresQueue(standby.dsn()) as queue:
            with pytest.raises(StoreUnavailable, match="read-only"):
                await queue.put(NewJob("job"))
            await asyncio.to_thread(standby.promote)
            await queue.put(NewJob("job", 1))
            assert await drain(queue) == [1]

    run(main)


def test_a_lock_that_others_hold_is_waited_for_no_longer_than_told(dsn: str) -> None:
    async def main() -> None:
        async with fresh(f"{dsn}?options=-c%20statement_timeout%3D100") as queue:
            await queue.put(NewJob("job"))
            with psycopg.connect(dsn) as rude:
                rude.execute("LOCK TABLE pollux.jobs")
                with pytest.raises(StoreUnavailable, match="statement_timeout"):
                    await queue.put(NewJob("job"))
            await queue.put(NewJob("job"))

    run(main)


def test_through_pgbouncer(pgbouncer: PgBouncer, dsn: str) -> None:
    async def main() -> None:
        async with fresh(pgbouncer.dsn()) as queue:
            for turn in range(10):
                calls = (queue.put(NewJob("job", n, key="k")) for n in range(10))
                await asyncio.gather(*calls)
                assert sorted(await drain(queue)) == list(range(10)), turn

    run(main)


# Clocks and loops


def test_the_servers_clock_decides(dsn: str) -> None:
    class Skewed(VirtualClock):
        def epoch(self) -> float:
            return 0.0

        def imposed(self) -> None:
            return None

    async def main() -> None:
        name = next(names)
        async with (
            fresh(dsn, name=name, clock=Skewed()) as early,
            fresh(dsn, name=name) as right,
        ):
            await early.put([NewJob("job", "now"), NewJob("job", "later", delay=60)])
            [claim] = await right.claim("w", 10, 60)
            assert claim.job.payload == "now"
            assert await early.claim("w", 10, 60) == []
            assert (await early.stats()).leased == 1

    run(main)


def test_a_queue_outlives_an_event_loop(dsn: str) -> None:
    queue = queue_at(dsn)

    async def main(turn: int) -> None:
        await queue.put(NewJob("job", turn))
        assert await drain(queue) == [turn]

    for turn in range(3):
        asyncio.run(main(turn))
    asyncio.run(queue.close())


def test_more_calls_than_connections_take_turns(dsn: str, postgres: Postgres) -> None:
    async def main() -> None:
        async with fresh(f"{dsn}?application_name=turns", connections=2) as queue:
            await asyncio.gather(*(queue.put(NewJob("job", n)) for n in range(50)))
            assert postgres.sessions().count("turns") == 2
            assert sorted(await drain(queue)) == list(range(50))

    run(main)
    assert "turns" not in postgres.sessions()
