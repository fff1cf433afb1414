"""What a queue on Postgres refuses, gives up or will not wait for; and how it words that."""

from __future__ import annotations

import asyncio
import gc
import subprocess
from typing import Any

import psycopg
import pytest

from pollwise.errors import ConfigError, SchemaError, StoreError, StoreUnavailable
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.runtime.events import Events, HintsLost
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import NewJob
from pollwise.storage.postgres import connections as postgres_connections
from pollwise.storage.postgres import notify
from tests.queues.benches import migrated
from tests.queues.postgres.kit import names, run
from tests.support.daemons import wait_until
from tests.support.proxy import Proxy
from tests.support.servers import OwnPostgres, Postgres

#: Seconds within which what does not hang has ended, on the slowest machine.
PATIENCE = 240.0


async def waiting_for_locks(dsn: str, application: str) -> int:
    """How many sessions of these wait for a lock."""
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND application_name = %s"
    )
    async with await psycopg.AsyncConnection.connect(dsn) as look:
        [(count,)] = await (await look.execute(query, [application])).fetchall()
        return int(count)


# Calls that take too long


@pytest.mark.parametrize("way", ["direct", "pgbouncer", "libpq before 17"])
def test_a_call_that_took_too_long_is_not_carried_out_later(
    dsn: str, way: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = f"{dsn}?application_name=late"
    if way == "pgbouncer":
        target = request.getfixturevalue("pgbouncer").dsn(application_name="late")
    if way == "libpq before 17":
        monkeypatch.setattr(psycopg.capabilities, "has_cancel_safe", lambda: False)

    async def main() -> None:
        async with PostgresQueue(target, next(names), timeout="300ms") as queue:
            await queue.put(NewJob("job", 1))
            async with await psycopg.AsyncConnection.connect(dsn) as rude:
                await rude.execute("LOCK TABLE pollwise.jobs IN ACCESS EXCLUSIVE MODE")
                for _ in range(3):
                    with pytest.raises(StoreUnavailable) as caught:
                        await queue.put(NewJob("job", 2))
                    assert str(caught.value).endswith(
                        "did not answer within timeout = 0.3 s, so the call may or may "
                        "not be carried out. Check its load and its locks, or raise `timeout`."
                    )
                with pytest.raises(StoreUnavailable):
                    await queue.claim("w", 1, 60)
                assert await waiting_for_locks(dsn, "late") == 0
                await rude.rollback()
            stats = await queue.stats()
            assert (stats.ready, stats.leased) == (1, 0)

    run(main)


def test_what_was_done_when_it_was_cancelled_counts(own_postgres: OwnPostgres) -> None:
    """A commit that waits for a standby is made, and only the waiting can be cancelled."""
    server = own_postgres()
    dsn = migrated(server.dsn())

    async def main() -> None:
        async with PostgresQueue(dsn, timeout="2s") as queue:
            await queue.stats()
            server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            server.execute("SELECT pg_reload_conf()")
            show = b"SELECT current_setting('synchronous_standby_names')"
            async with asyncio.timeout(PATIENCE):
                while await queue.database.connections.rows(show) != [("nobody",)]:
                    pass
            assert len(await queue.put(NewJob("job"))) == 1
            assert (await queue.stats()).ready == 1

    run(main)


def test_migrating_is_given_up_and_cancelled_too(dsn: str) -> None:
    async def main() -> None:
        target = f"{dsn}?application_name=slow"
        async with (
            PostgresQueue(target, schema="slow", timeout="300ms") as queue,
            await psycopg.AsyncConnection.connect(dsn) as rude,
        ):
            await rude.execute("CREATE SCHEMA slow")  # another of this name waits for its end
            with pytest.raises(StoreUnavailable, match=r"within timeout = 0\.3 s"):
                await queue.migrate()
            assert await waiting_for_locks(dsn, "slow") == 0
            await rude.rollback()

    run(main)


# Closing


def test_closing_does_not_wait_for_a_server_that_stands_still(
    own_postgres: OwnPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = own_postgres()
    dsn = migrated(server.dsn())
    monkeypatch.setattr(postgres_connections, "CLOSE_PATIENCE", 0.2)
    monkeypatch.setattr(postgres_connections, "CANCEL_PATIENCE", 0.2)
    monkeypatch.setattr(notify, "SEND_TIMEOUT", 0.2)

    async def main() -> None:
        queue = PostgresQueue(dsn, timeout="1h")
        await queue.stats()
        with server.paused():
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(StoreUnavailable, match=r"within timeout = 0\.2 s"):
                    await queue._transport.send("news")
                calls = [asyncio.ensure_future(queue.put(NewJob("job", n))) for n in range(9)]
                given_up = asyncio.ensure_future(queue.stats())
                await asyncio.sleep(0)
                given_up.cancel()
                await queue.close()
                for call in calls:
                    with pytest.raises(StoreUnavailable, match="was closed before the answer came"):
                        await call

    run(main)


def test_closing_waits_for_calls_that_are_answered(dsn: str) -> None:
    async def main() -> None:
        queue = PostgresQueue(dsn, next(names))
        await queue.stats()
        call = asyncio.ensure_future(queue.put(NewJob("job", 1)))
        await asyncio.sleep(0)
        await queue.close()
        assert len(await call) == 1

    run(main)


@pytest.mark.filterwarnings("ignore")  # what is left behind in an event loop says so
def test_a_queue_whose_event_loop_was_abandoned_can_be_used_and_closed(dsn: str) -> None:
    loop, queue = asyncio.new_event_loop(), PostgresQueue(dsn, next(names))
    loop.run_until_complete(queue.put(NewJob("job", 1)))
    with psycopg.connect(dsn) as rude:
        rude.execute("LOCK TABLE pollwise.jobs IN ACCESS EXCLUSIVE MODE")
        task = loop.create_task(queue.claim("w", 5, 60))
        for _ in range(5):
            loop.run_until_complete(asyncio.sleep(0))
        assert queue.database.connections._begun, "no call is under way"
        loop.close()

    async def main(queue: PostgresQueue) -> None:
        async with asyncio.timeout(PATIENCE):
            await queue.stats()
            await queue.close()

    asyncio.run(main(queue))
    del task, loop, queue
    gc.collect()


def test_a_queue_that_is_dropped_unclosed_lets_go_of_its_connections(
    dsn: str, postgres: Postgres
) -> None:
    async def main() -> None:
        queue = PostgresQueue(f"{dsn}?application_name=dropped", next(names))
        await queue.stats()
        assert "dropped" in postgres.sessions()
        queues = [queue]
        del queue
        with pytest.warns(ResourceWarning, match="was not closed"):
            queues.clear()
        await asyncio.sleep(0)
        wait_until(lambda: "dropped" not in postgres.sessions(), "the connection's end")

    run(main)


# Large batches


@pytest.mark.parametrize("keyed", [False, True])
def test_a_large_batch_of_uniques_is_not_compared_all_with_all(
    postgres: Postgres, keyed: bool
) -> None:
    """The plans are made by the first small puts, for a table that is empty.

    Where all are compared with all, 9,000 take several times as long as the queue waits.
    """
    dsn = migrated(postgres.create_database(f"uniques{keyed}"))

    async def main() -> None:
        async with PostgresQueue(dsn, connections=1, timeout="5s") as queue:
            for number in range(6):
                await queue.put(NewJob("job", 1, unique=f"small {number}"))
            key = "k{}" if keyed else None
            jobs = [
                NewJob("job", n, unique=f"large {n}", key=key and key.format(n))
                for n in range(9_000)
            ]
            ids = await queue.put(jobs)
            assert await queue.put(jobs) == ids, "all twins"
            assert (await queue.stats()).ready == 9_006

    run(main)


# The user's own connection


@pytest.mark.parametrize("factory", [psycopg.RawCursor, psycopg.ClientCursor])
def test_a_put_on_a_connection_with_its_own_kind_of_cursor(dsn: str, factory: Any) -> None:
    async_factory = {
        psycopg.RawCursor: psycopg.AsyncRawCursor,
        psycopg.ClientCursor: psycopg.AsyncClientCursor,
    }[factory]

    async def main() -> None:
        async with PostgresQueue(dsn, next(names)) as queue:
            with psycopg.connect(dsn, cursor_factory=factory) as plain:
                await queue.put(NewJob("job", {"a": "100%s $1"}), connection=plain)
            async with await psycopg.AsyncConnection.connect(
                dsn, cursor_factory=async_factory
            ) as connection:
                await queue.put(NewJob("job", 2, unique="u"), connection=connection)
            assert (await queue.stats()).ready == 2

    run(main)


def test_a_put_on_a_connection_tells_what_is_missing(dsn: str, postgres: Postgres) -> None:
    postgres.create_role("visitor", "hunter2")

    async def main() -> None:
        async with (
            PostgresQueue(dsn, schema="nowhere") as bare,
            PostgresQueue(dsn, next(names)) as queue,
            await psycopg.AsyncConnection.connect(dsn) as connection,
            await psycopg.AsyncConnection.connect(postgres.dsn(user="visitor")) as visitor,
        ):
            with pytest.raises(SchemaError, match=r"nowhere.*pollwise queue migrate"):
                await bare.put(NewJob("job"), connection=connection)
            with pytest.raises(StoreError, match="Grant the role USAGE"):
                await queue.put(NewJob("job"), connection=visitor)
            # The transaction is the user's, and so is what became of it.
            with pytest.raises(psycopg.errors.InFailedSqlTransaction):
                await queue.put(NewJob("job"), connection=connection)
            await connection.rollback()
            await queue.close()
            with pytest.raises(StoreError, match="is closed; open it again"):
                await queue.put(NewJob("job"), connection=connection)

    run(main)


# Conninfos


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("sslmode=requir", 'invalid sslmode value: "requir"'),
        ("target_session_attrs=rw", 'invalid target_session_attrs value: "rw"'),
        ("channel_binding=yes", 'invalid channel_binding value: "yes"'),
        ("sslmode=prefer&sslrootcert=system", "weak sslmode"),
        ("connect_timeout=soon", "connect_timeout = 'soon', which is not a whole number"),
        ("keepalives_idle=1m", "keepalives_idle = '1m', which is not a whole number"),
    ],
)
def test_values_that_libpq_refuses_are_refused_before_it_connects(option: str, says: str) -> None:
    url = f"postgresql://u:hunter2@127.0.0.1:1/d?{option}"
    for conninfo, listen in ((url, None), ("postgresql:///d", url)):
        with pytest.raises(ConfigError) as caught:
            PostgresQueue(conninfo, listen=listen)
        assert says in str(caught.value)
        assert ("listen" if listen else "conninfo") in str(caught.value)
        assert "hunter2" not in str(caught.value)


def test_the_servers_own_schema_is_refused() -> None:
    with pytest.raises(ConfigError, match="information_schema"):
        PostgresQueue("postgresql:///d", schema="information_schema")


def test_a_server_that_is_down_is_reported_in_one_line() -> None:
    async def main() -> None:
        async with PostgresQueue("postgresql://u@127.0.0.1:1/d") as queue:
            with pytest.raises(StoreUnavailable) as caught:
                await queue.stats()
        said = str(caught.value)
        assert "refused. Check that it runs, and the host." in said
        assert "Is the server running" not in said
        assert "\n" not in said

    run(main)


# Migrations


def test_migrating_without_the_right_to_create_says_which_is_missing(postgres: Postgres) -> None:
    postgres.create_role("timid", "hunter2")
    postgres.execute("CREATE SCHEMA taken")
    postgres.execute("GRANT USAGE ON SCHEMA taken TO timid")

    async def main() -> None:
        for schema, what in (("mine", "database"), ("taken", "schema")):
            async with PostgresQueue(postgres.dsn(user="timid"), schema=schema) as queue:
                with pytest.raises(StoreError) as caught:
                    await queue.migrate()
            assert str(caught.value).endswith(
                f"Grant the role CREATE on the {what}, or print the SQL with --sql for a role "
                "that may."
            )

    run(main)


@pytest.mark.parametrize("table", ["jobs", "migrations"])
def test_migrating_over_tables_of_others_is_refused(postgres: Postgres, table: str) -> None:
    dsn = postgres.create_database(f"foreign_{table}")
    postgres.execute(f"CREATE TABLE {table} (id integer)", dbname=f"foreign_{table}")

    async def main() -> None:
        async with PostgresQueue(dsn, schema="public") as queue:
            with pytest.raises(SchemaError) as caught:
                await queue.migrate()
        assert f"a table `{table}` that Pollwise did not create; choose another" in str(
            caught.value
        )

    run(main)


def test_psql_prints_nothing_of_a_migration(postgres: Postgres) -> None:
    dsn = postgres.create_database("silent")
    script = PostgresQueue(dsn).migration()
    assert script is not None
    ran = subprocess.run(
        [postgres.programs / "psql", dsn, "--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1"],
        input=script.encode(),
        check=True,
        capture_output=True,
    )
    assert (ran.stdout, ran.stderr) == (b"", b"")


# Listening


async def loss(queue: PostgresQueue) -> HintsLost:
    """Go to sleep on a queue whose hints do not work, and return what it says."""
    lost: asyncio.Future[HintsLost] = asyncio.get_running_loop().create_future()
    events = Events(quiet=True)

    def note(event: object) -> None:
        if isinstance(event, HintsLost) and not lost.done():
            lost.set_result(event)

    events.subscribe(note)
    queue.hints().report_to(queue.name, events)
    hint = Hint()
    queue.hints().join(hint)
    queue.hints().asleep(hint)
    async with asyncio.timeout(PATIENCE):
        return await lost


def test_a_failed_listening_connection_is_not_blamed_on_poolers(
    dsn: str, postgres: Postgres
) -> None:
    postgres.create_role("deaf", "hunter2")
    wrong = postgres.dsn(user="deaf").replace("hunter2", "hunter3")

    async def main() -> None:
        for listen, reason in (
            ("postgresql://u:hunter2@127.0.0.1:1/d", "cannot be reached"),
            (wrong, "password authentication failed"),
        ):
            async with PostgresQueue(dsn, next(names), listen=listen) as queue:
                told = await loss(queue)
            assert told.advice == "The listening connection could not be opened; see the reason."
            assert reason in told.reason
            assert "\n" not in told.reason
            assert "hunter" not in told.reason

    run(main)


def test_a_listening_connection_that_breaks_is_not_blamed_on_poolers(
    dsn: str, postgres: Postgres
) -> None:
    async def main() -> None:
        with Proxy(postgres.port) as proxy:
            async with PostgresQueue(dsn, next(names), listen=proxy.through(dsn)) as queue:
                waiting = asyncio.ensure_future(loss(queue))
                async with asyncio.timeout(PATIENCE):
                    while queue.hints().proven_at is None:
                        await asyncio.sleep(0.005)  # real time: messages are under way
                proxy.cut()
                told = await waiting
        assert "the listening connection broke (" in told.reason
        assert "\n" not in told.reason
        assert told.advice.startswith("It will be opened again")

    run(main)
