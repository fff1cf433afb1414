"""A put on a connection to another database than the outbox's is refused, whatever the library."""

from __future__ import annotations

import asyncio
import logging

import psycopg
import pytest

from pollwise.errors import OutboxError
from pollwise.outbox import Outbox
from pollwise.outbox.records import NewRecord
from pollwise.outbox.stores.postgres.store import TABLES, PostgresOutboxStore
from pollwise.storage.postgres.schema import script
from tests.outbox.writers.ways import WAYS, Database, Way
from tests.support.servers import Postgres

ONE = [NewRecord("order.placed", {"id": 17}, "order-17")]
COUNT = "SELECT count(*) FROM pollwise.outbox_records"


def migrated(server: Postgres, name: str) -> str:
    dsn = server.create_database(name)
    server.execute(script("pollwise", TABLES), dbname=name)
    server.execute("CREATE TABLE orders (id integer)", dbname=name)
    return dsn


@pytest.fixture(scope="module")
def home(postgres: Postgres) -> str:
    return migrated(postgres, "home")


@pytest.fixture(scope="module")
def other(postgres: Postgres) -> str:
    return migrated(postgres, "other")


@pytest.fixture(params=[w for w in WAYS if w.dialect == "postgresql"], ids=lambda w: w.__name__)
def way_of(request: pytest.FixtureRequest) -> type[Way]:
    found: type[Way] = request.param
    return found


def test_a_put_on_another_migrated_database_is_refused(
    postgres: Postgres, home: str, other: str, way_of: type[Way]
) -> None:
    target = PostgresOutboxStore(home).target()

    def count(name: str) -> int:
        [(found,)] = postgres.execute(COUNT, dbname=name)
        return int(found)

    def opened(name: str, dsn: str) -> Way:
        query = lambda sql: postgres.execute(sql, dbname=name)  # noqa: E731
        return way_of(Database("postgresql", dsn, target, query))

    before = count("home")
    wrong = opened("other", other)
    wrong.begin()
    with pytest.raises(OutboxError) as refused:
        wrong.put(ONE)
    wrong.rollback()
    wrong.close()
    assert str(refused.value) == (
        f"the connection is to another database than the outbox, {target.url}, so no relay would "
        "find the record. Give a connection to that database, or change the outbox's URL. If the "
        "database was replaced, by an upgrade, repeat the transaction."
    )
    right = opened("home", home)
    right.begin()
    right.run("INSERT INTO orders VALUES (17)")
    assert len(right.put(ONE)) == 1
    right.commit()
    right.close()
    assert (count("home"), count("other")) == (before + 1, 0)


def test_a_database_of_the_same_name_on_another_server_is_refused(
    postgres_oldest: Postgres, home: str
) -> None:
    elsewhere = migrated(postgres_oldest, "home")
    with psycopg.connect(elsewhere) as connection, pytest.raises(OutboxError, match="another data"):
        Outbox(home).put(connection, "order.placed")


def test_a_pooler_and_a_role_with_few_permissions_are_accepted(
    postgres: Postgres, home: str
) -> None:
    postgres.create_role("putter", "hunter2")
    for grant in (
        "USAGE ON SCHEMA pollwise",
        "SELECT, USAGE ON SEQUENCE pollwise.outbox_seq",
        "INSERT ON pollwise.outbox_records",
    ):
        postgres.execute(f"GRANT {grant} TO putter", dbname="home")
    pooler = postgres.pgbouncer()
    outbox = Outbox(pooler.dsn("home"))
    with psycopg.connect(postgres.dsn("home", "putter")) as connection:
        assert len(outbox.put(connection, "order.placed")) == 1
    with psycopg.connect(pooler.dsn("home"), prepare_threshold=None) as connection:
        assert len(Outbox(home).put(connection, "order.placed")) == 1


def test_a_database_that_was_replaced_is_recognised_at_the_next_put(home: str, other: str) -> None:
    outbox = Outbox(home)
    target = outbox.store.target()
    assert target.identity is not None
    target.identity.read()
    elsewhere = PostgresOutboxStore(other).target().identity
    assert elsewhere is not None
    target.identity._found = elsewhere.read()  # type: ignore[attr-defined]  # as before an upgrade
    with psycopg.connect(home) as connection:
        with pytest.raises(OutboxError, match="repeat the transaction"):
            outbox.put(connection, "order.placed")
        connection.rollback()
        assert len(outbox.put(connection, "order.placed")) == 1


@pytest.mark.parametrize("way", ["plain", "async"])
def test_where_the_outbox_cannot_be_reached_puts_are_accepted_with_a_warning(
    home: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox("postgresql://app:hunter2@127.0.0.1:1/shop")

    async def put() -> None:
        async with await psycopg.AsyncConnection.connect(home) as connection:
            await outbox.put(connection, "order.placed")

    with caplog.at_level(logging.WARNING, "pollwise"):
        for _ in range(2):
            if way == "async":
                asyncio.run(put())
                continue
            with psycopg.connect(home) as connection:
                outbox.put(connection, "order.placed")
    [warning] = caplog.messages
    assert "puts are not checked" in warning
    assert "hunter2" not in warning
