"""Records put in the user's own transaction, by each library, against real databases."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_type

import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy.orm import Session, sessionmaker

from pollwise.errors import OutboxError, PayloadError, SchemaError, StoreError
from pollwise.outbox import Outbox
from pollwise.outbox.records import NewRecord
from pollwise.outbox.stores.postgres.identity import PostgresIdentity
from pollwise.outbox.stores.postgres.store import TABLES
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.outbox.writers.put import OutboxTarget, put
from pollwise.storage.postgres.schema import script
from tests.outbox.writers.ways import (
    WAYS,
    Asyncpg,
    ConnectionPsycopg2,
    Database,
    DjangoSqlite,
    Psycopg,
    Sqlite3,
    Way,
    sqlite_query,
)
from tests.support.servers import Postgres
from tests.support.traces import Traces, header_of, parent_of

if TYPE_CHECKING:
    import aiosqlite
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import scoped_session

    def types(
        target: OutboxTarget,
        plain: sqlite3.Connection
        | sqlite3.Cursor
        | psycopg.Connection
        | sqlalchemy.Connection
        | Session
        | scoped_session[Session],
        awaited: aiosqlite.Connection | psycopg.AsyncConnection | AsyncConnection | AsyncSession,
    ) -> None:
        """What a put returns is known by the type of what it is put on."""
        assert_type(put(target, plain, ONE), list[str])
        _ = assert_type(put(target, awaited, ONE), Coroutine[Any, Any, list[str]])


RECORDS = {
    "sqlite": 'SELECT seq, kind, payload, "key", headers FROM pollwise_outbox ORDER BY seq',
    "postgresql": (
        "SELECT seq, kind, payload, CASE WHEN ascii(key) >= 32 THEN key END, "
        "coalesce(headers, '{}') FROM pollwise.outbox_records ORDER BY seq"
    ),
}
ONE = [NewRecord("order.placed", {"id": 17}, "order-17")]

Open = Callable[..., Way]


def migrated(path: Path) -> None:
    async def main() -> None:
        async with SqliteOutboxStore(path) as store:
            await store.migrate()

    asyncio.run(main())


def sqlite_database(folder: Path) -> Database:
    path = folder / "shop.db"
    migrated(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE orders (id integer)")
    connection.close()
    target = SqliteOutboxStore(path).target()
    return Database("sqlite", str(path), target, lambda sql: sqlite_query(path, sql))


@pytest.fixture(scope="session")
def shop(postgres: Postgres) -> str:
    dsn = postgres.create_database("writers")
    postgres.execute(script("pollwise", TABLES), dbname="writers")
    postgres.execute("CREATE TABLE orders (id integer)", dbname="writers")
    return dsn


def postgres_database(postgres: Postgres, dsn: str) -> Database:
    postgres.execute("TRUNCATE orders", dbname="writers")
    postgres.execute("TRUNCATE pollwise.outbox_records", dbname="writers")
    url = "postgresql:///writers?outbox=default"
    target = OutboxTarget("postgresql", "default", url, identity=PostgresIdentity(dsn, url))
    return Database("postgresql", dsn, target, lambda sql: postgres.execute(sql, dbname="writers"))


@pytest.fixture
def database(way_of: type[Way], tmp_path: Path, request: pytest.FixtureRequest) -> Database:
    if way_of.dialect == "sqlite":
        return sqlite_database(tmp_path)
    postgres = request.getfixturevalue("postgres")
    return postgres_database(postgres, request.getfixturevalue("shop"))


@pytest.fixture(params=WAYS, ids=lambda way: str(way.__name__))
def way_of(request: pytest.FixtureRequest) -> type[Way]:
    found: type[Way] = request.param
    return found


@pytest.fixture
def opened(way_of: type[Way], database: Database) -> Iterator[Open]:
    ways: list[Way] = []

    def made(**options: Any) -> Way:
        ways.append(way_of(database, **options))
        return ways[-1]

    yield made
    for way in ways:
        way.close()


def found(database: Database) -> list[tuple[Any, ...]]:
    return database.query(RECORDS[database.dialect])


def orders(database: Database) -> list[int]:
    return [number for (number,) in database.query("SELECT id FROM orders ORDER BY id")]


def test_a_record_is_there_with_the_commit_and_not_before(opened: Open, database: Database) -> None:
    way = opened()
    way.begin()
    way.run("INSERT INTO orders (id) VALUES (17)")
    [record_id] = way.put(ONE)
    assert found(database) == [], "seen before the commit"
    way.commit()
    assert found(database) == [(int(record_id), "order.placed", '{"id":17}', "order-17", "{}")]
    assert orders(database) == [17]


def test_a_put_may_come_first(opened: Open, database: Database) -> None:
    way = opened()
    way.begin()
    way.put(ONE)
    way.run("INSERT INTO orders (id) VALUES (17)")
    assert found(database) == [], "seen before the commit"
    way.commit()
    assert len(found(database)) == 1


def test_a_rollback_takes_the_record_back(opened: Open, database: Database) -> None:
    way = opened()
    way.begin()
    way.run("INSERT INTO orders (id) VALUES (17)")
    way.put(ONE)
    way.rollback()
    assert found(database) == []
    assert orders(database) == []
    way.begin()
    way.put(ONE)
    way.commit()
    assert len(found(database)) == 1


def test_a_savepoint_takes_back_what_was_put_after_it(opened: Open, database: Database) -> None:
    way = opened()
    way.begin()
    way.put([NewRecord("first")])
    way.savepoint()
    way.put([NewRecord("second")])
    way.rollback_to_savepoint()
    way.put([NewRecord("third")])
    way.commit()
    assert [row[1] for row in found(database)] == ["first", "third"]


def test_several_records_are_in_the_order_they_were_given(opened: Open, database: Database) -> None:
    awkward = {"text": "100% of :all, \"quoted\" 'so' \\ ü \u0000 \U0001f600", "n": 2**70, "x": 0.1}
    records = [
        NewRecord("first", awkward, "schlüssel %s", {"tenant": "ü %"}),
        NewRecord("second", None),
        NewRecord("third", [1, {"a": []}], "a", {"traceparent": "x"}),
        *(NewRecord(f"n{n}") for n in range(200)),
    ]
    way = opened()
    way.begin()
    ids = way.put(records)
    way.commit()
    rows = found(database)
    assert [str(row[0]) for row in rows] == ids
    assert [row[1:] for row in rows] == [
        (r.kind, r.encoded, r.key, r.encoded_headers) for r in records
    ]


def test_nothing_is_put_by_nothing(opened: Open, database: Database) -> None:
    way = opened()
    way.begin()
    assert way.put([]) == []
    way.commit()
    assert found(database) == []


ADVICE = {
    "sqlite3": (
        'Begin one first, `connection.execute("BEGIN")`, or leave out isolation_level=None and '
        "autocommit=True; then your own statements, the put, and the commit."
    ),
    "aiosqlite": (
        'Begin one first, `await connection.execute("BEGIN")`, or leave out isolation_level=None '
        "and autocommit=True; then your own statements, the put, and the commit."
    ),
    "Psycopg": (
        "Put within `with connection.transaction():`, with your own statements, or leave out "
        "autocommit=True."
    ),
    "AsyncPsycopg": (
        "Put within `async with connection.transaction():`, with your own statements, or leave "
        "out autocommit=True."
    ),
    "psycopg2": "Set `connection.autocommit = False`, and commit when all is done.",
    "asyncpg": "Put within `async with connection.transaction():`, with your own statements.",
    "Connection": (
        'Leave out isolation_level="AUTOCOMMIT" for this connection or its engine: '
        "`with engine.begin() as connection:`."
    ),
    "Session": (
        'Leave out isolation_level="AUTOCOMMIT" for the session\'s engine: '
        "`with Session.begin() as session:`."
    ),
    "Django": "Put within `with transaction.atomic():`, where your own data is saved.",
}


def advice_for(way: type[Way]) -> str:
    if way.library == "psycopg":
        return ADVICE["AsyncPsycopg" if "Async" in way.__name__ else "Psycopg"]
    if way.library == "SQLAlchemy":
        return ADVICE["Session" if "Session" in way.__name__ else "Connection"]
    return ADVICE[way.library]


def test_a_connection_in_no_transaction_is_refused(opened: Open, database: Database) -> None:
    way = opened(autocommit=True)
    with pytest.raises(OutboxError) as refused:
        way.put(ONE)
    assert str(refused.value) == (
        f"the {way.library} connection has no open transaction, so the record would be committed "
        "even if your data is not. " + advice_for(type(way))
    )
    assert found(database) == []


def test_a_connection_to_another_kind_of_database_is_refused(
    opened: Open, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = ("SQLite", "Postgres") if database.dialect == "sqlite" else ("Postgres", "SQLite")
    elsewhere: Any = "postgresql" if database.dialect == "sqlite" else "sqlite"
    way = opened()
    way.begin()
    monkeypatch.setattr(database, "target", OutboxTarget(elsewhere, "default", "other:///shop"))
    with pytest.raises(OutboxError) as refused:
        way.put(ONE)
    assert str(refused.value) == (
        f"the {way.library} connection is to {mine}, but the outbox is in {other}, other:///shop. "
        "A record must be in the same database as the data it describes. Give a connection to that "
        "database."
    )
    way.rollback()


def test_a_database_that_is_not_migrated_is_told(
    opened: Open, database: Database, way_of: type[Way], monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.dialect == "sqlite":
        connection = sqlite3.connect(database.where)
        connection.execute("DROP TABLE pollwise_outbox")
        connection.close()
        said = "no such table: pollwise_outbox"
    else:
        monkeypatch.setattr(
            database,
            "target",
            OutboxTarget("postgresql", "default", "postgresql:///writers", "nobody"),
        )
        said = 'schema "nobody" does not exist'
    way = opened()
    way.begin()
    with pytest.raises(SchemaError) as refused:
        way.put(ONE)
    told = str(refused.value)
    by_whom = "" if database.dialect == "sqlite" else ", as a role that may create tables"
    assert told == f"{database.target.url}: {said}. Run `pollwise outbox migrate URL`{by_whom}."
    way.rollback()


def test_a_role_that_may_not_put_is_told(postgres: Postgres, shop: str) -> None:
    database = postgres_database(postgres, shop)
    postgres.create_role("guest", "secret")
    dsn = postgres.dsn("writers", "guest", password="secret")
    with psycopg.connect(dsn) as connection:
        with pytest.raises(StoreError) as refused:
            put(database.target, connection, ONE)
    assert str(refused.value) == (
        f"{database.target.url}: permission denied for schema pollwise. Grant the role USAGE on "
        "schema 'pollwise', SELECT and USAGE on its sequence outbox_seq, and INSERT on its outbox "
        "tables; delay, at and unique also need SELECT."
    )


# How a transaction comes about


def test_a_transaction_begun_under_autocommit_is_one(postgres: Postgres, shop: str) -> None:
    database = postgres_database(postgres, shop)
    with psycopg.connect(shop, autocommit=True) as connection:
        with connection.transaction(), connection.transaction():
            put(database.target, connection, ONE)
        with pytest.raises(OutboxError, match="has no open transaction"):
            put(database.target, connection, ONE)
    with closing(psycopg2.connect(shop)) as older:
        older.autocommit = True
        older.cursor().execute("BEGIN")
        put(database.target, older, ONE)
        older.cursor().execute("COMMIT")
    assert len(found(database)) == 2


def test_a_transaction_of_any_isolation_will_do(postgres: Postgres, shop: str) -> None:
    database = postgres_database(postgres, shop)
    for level in psycopg.IsolationLevel:
        with psycopg.connect(shop) as connection:
            connection.isolation_level = level
            put(database.target, connection, ONE)
    assert len(found(database)) == 4


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_sqlalchemy_by_its_options(postgres: Postgres, shop: str, driver: str) -> None:
    database = postgres_database(postgres, shop)
    engine = sqlalchemy.create_engine(database.url(driver))
    with engine.connect() as connection:
        alone = connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(OutboxError, match="has no open transaction"):
            put(database.target, alone, ONE)
        assert not connection.in_transaction(), "what was begun for the check was not ended"
        alone.exec_driver_sql("BEGIN")
        put(database.target, alone, ONE)
        alone.exec_driver_sql("COMMIT")
    with engine.begin() as connection:
        put(database.target, connection, ONE)
    engine.dispose()
    assert len(found(database)) == 2


def test_sqlalchemy_that_begins_by_an_event(tmp_path: Path) -> None:
    """SQLAlchemy's own advice for SQLite: the driver begins nothing, an event does."""
    database = sqlite_database(tmp_path)
    engine = sqlalchemy.create_engine(
        database.url("pysqlite"), connect_args={"isolation_level": None}
    )
    with engine.connect() as connection, pytest.raises(OutboxError, match="no open transaction"):
        put(database.target, connection, ONE)
    sqlalchemy.event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN"))
    with engine.begin() as connection:
        put(database.target, connection, ONE)
        assert found(database) == []
    with Session(engine) as session:
        put(database.target, session, ONE)
        session.rollback()
    engine.dispose()
    assert len(found(database)) == 1


def test_django_without_its_autocommit(tmp_path: Path) -> None:
    database = sqlite_database(tmp_path)
    way = DjangoSqlite(database)
    way.connection.set_autocommit(False)
    way.put(ONE)
    assert found(database) == []
    way.connection.commit()
    way.close()
    assert len(found(database)) == 1


@pytest.mark.parametrize("way_of", [Psycopg, Asyncpg, ConnectionPsycopg2], indirect=True)
def test_the_hint_is_sent_by_the_commit(
    opened: Open, database: Database, postgres: Postgres
) -> None:
    way = opened()
    [(channel,)] = postgres.execute("SELECT pollwise.outbox_channel('default')", dbname="writers")
    with psycopg.connect(database.where, autocommit=True) as listener:
        listener.execute(f"LISTEN {channel}")
        way.begin()
        way.put(ONE)
        way.rollback()
        way.begin()
        way.put([NewRecord("a"), NewRecord("b")])
        assert list(listener.notifies(timeout=0)) == [], "sent before the commit"
        way.commit()
        [hint] = listener.notifies(timeout=30, stop_after=1)
        assert json.loads(hint.payload)[0] == "hint"
        assert list(listener.notifies(timeout=0)) == [], "one is enough"


# SQLite


def test_another_file_than_the_outbox_is_refused(tmp_path: Path) -> None:
    database = sqlite_database(tmp_path)
    other = tmp_path / "other.db"
    migrated(other)
    connection = sqlite3.connect(other)
    with pytest.raises(OutboxError) as refused:
        put(database.target, connection, ONE)
    assert str(refused.value) == (
        f"the connection is to another database ({other}) than the outbox, {database.target.url}, "
        "so no relay would find the record. Give a connection to that file, or change the outbox's "
        "URL."
    )
    connection.close()
    connection = sqlite3.connect(":memory:")
    with pytest.raises(OutboxError, match=r"another database \(in memory\) than the outbox"):
        put(database.target, connection, ONE)
    connection.close()


def test_a_file_is_the_same_by_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = sqlite_database(tmp_path)
    (tmp_path / "link.db").symlink_to(tmp_path / "shop.db")
    monkeypatch.chdir(tmp_path)
    for name in ("link.db", "shop.db"):
        connection = sqlite3.connect(name)
        put(database.target, connection, ONE)
        connection.close()
    connection = sqlite3.connect(":memory:")
    connection.execute("ATTACH 'shop.db' AS shop")
    put(database.target, connection, ONE)
    connection.commit()
    connection.close()
    assert len(found(database)) == 1


def test_a_plain_insert_is_a_put(tmp_path: Path) -> None:
    database = sqlite_database(tmp_path)
    with sqlite3.connect(database.where) as connection:
        connection.execute(
            'INSERT INTO pollwise_outbox (kind, payload, "key") VALUES (?, ?, ?)',
            ("order.placed", '{"id": 17}', "order-17"),
        )
        for bad in (
            "(kind, payload) VALUES ('', '1')",
            "(kind, payload) VALUES ('a', '{')",
            "(kind, payload, \"key\") VALUES ('a', '1', '')",
            "(kind, payload, headers) VALUES ('a', '1', '[]')",
            "(kind, payload) VALUES (x'ff', '1')",
            "(kind, payload, \"key\") VALUES ('a', '1', x'ff')",
            "(kind, payload, created_at) VALUES ('a', '1', '2026-01-01')",
            "(kind, payload, created_at) VALUES ('a', '1', 9e999)",
        ):
            with pytest.raises(sqlite3.IntegrityError):
                connection.execute(f"INSERT INTO pollwise_outbox {bad}")
    connection.close()

    async def main() -> None:
        async with SqliteOutboxStore(database.where) as store:
            [claim] = await store.claim("r", 10, 10, "30s")
            record = claim.records[0].record
            assert (record.kind, record.payload, record.key) == (
                "order.placed", {"id": 17}, "order-17",
            )  # fmt: skip
            assert abs(record.created_at - store.clock.epoch()) < 60

    asyncio.run(main())


# What is not a connection


class Nothing:
    pass


def test_what_is_no_connection_is_told(tmp_path: Path) -> None:
    target = sqlite_database(tmp_path).target
    engine = sqlalchemy.create_engine("sqlite://")
    told = {
        Nothing(): (
            "tests.outbox.writers.test_writers.Nothing is not a supported connection; give one of "
            "sqlite3, aiosqlite, psycopg, psycopg2, asyncpg or Django, or a connection or session "
            "of SQLAlchemy"
        ),
        engine: (
            "sqlalchemy.engine.base.Engine is not a connection; give a connection: `with "
            "engine.begin() as connection:`"
        ),
        sessionmaker(engine): (
            "sqlalchemy.orm.session.sessionmaker is not a connection; give a session: `with "
            "Session.begin() as session:`"
        ),
    }
    for tx, words in told.items():
        given: Any = tx
        with pytest.raises(OutboxError) as refused:
            put(target, given, ONE)
        assert str(refused.value) == words
    engine.dispose()


def test_a_session_of_several_databases_is_told(tmp_path: Path) -> None:
    target = sqlite_database(tmp_path).target
    with Session() as session, pytest.raises(OutboxError) as refused:
        put(target, session, ONE)
    assert str(refused.value) == (
        "the session has several databases or none, so the outbox's is not known; give the "
        "connection: `session.connection(bind_arguments={'bind': engine})`"
    )


def test_an_old_style_of_sqlalchemy_is_told(tmp_path: Path) -> None:
    old: Any = type("Connection", (), {"__module__": "sqlalchemy.engine.base"})()
    with pytest.raises(OutboxError) as refused:
        put(sqlite_database(tmp_path).target, old, ONE)
    assert str(refused.value) == (
        "this is a connection in the old style of SQLAlchemy 1.4; use SQLAlchemy 2, or "
        "create_engine(…, future=True)"
    )


def test_what_cannot_be_put_is_told(tmp_path: Path) -> None:
    database = sqlite_database(tmp_path)
    outbox = Outbox(f"sqlite:///{database.where}")
    connection = sqlite3.connect(database.where)
    wrong: Any = ["order.placed"]
    with pytest.raises(OutboxError, match=r"expected a NewRecord, got 'order\.placed'"):
        outbox.put(connection, wrong)
    with pytest.raises(OutboxError, match="put got 10001 records; at most 10000 at once"):
        outbox.put(connection, ONE * 10_001)
    with pytest.raises(PayloadError) as refused:
        outbox.put(connection, "order.placed", {"when": {1, 2}})
    assert str(refused.value) == (
        "the payload of kind 'order.placed' is not JSON: a value of the type set is not JSON. "
        "Use only dict, list, str, int, float (no NaN), bool and None; models of pydantic and "
        "dataclasses; Decimal, datetime, UUID and Enum. Encode anything else yourself."
    )
    assert not connection.in_transaction, "something was executed"
    connection.close()


def test_an_outbox_puts_by_its_url(tmp_path: Path) -> None:
    database = sqlite_database(tmp_path)
    outbox = Outbox(f"sqlite:///{database.where}")
    with sqlite3.connect(database.where) as connection:
        [record_id] = outbox.put(connection, "order.placed", {"id": 17}, key="order-17")
    connection.close()
    assert found(database) == [(int(record_id), "order.placed", '{"id":17}', "order-17", "{}")]


def test_subclasses_are_known_by_what_they_are(tmp_path: Path) -> None:
    class Mine(sqlite3.Connection):
        pass

    database = sqlite_database(tmp_path)
    with sqlite3.connect(database.where, factory=Mine) as connection:
        put(database.target, connection, ONE)
    connection.close()
    assert len(found(database)) == 1


def test_errors_of_the_users_own_are_left_as_they_are(tmp_path: Path) -> None:
    database = sqlite_database(tmp_path)
    way, other = Sqlite3(database), sqlite3.connect(database.where, timeout=0, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    way.tx.execute("PRAGMA busy_timeout = 0")
    with pytest.raises(sqlite3.OperationalError, match="database is locked"):
        way.put(ONE)
    other.close()
    way.close()


def test_a_broken_atomic_block_is_left_to_django(tmp_path: Path) -> None:
    from django.db.transaction import TransactionManagementError

    database = sqlite_database(tmp_path)
    way = DjangoSqlite(database)
    way.begin()
    way.connection.set_rollback(True)
    with pytest.raises(TransactionManagementError):
        way.put(ONE)
    way.rollback()
    way.close()


# Trace context


def test_records_carry_the_trace_of_their_put(tmp_path: Path, traces: Traces) -> None:
    database = sqlite_database(tmp_path)
    outbox = Outbox(f"sqlite:///{database.where}")
    with (
        traces.tracer.start_as_current_span("write") as write,
        sqlite3.connect(database.where) as connection,
    ):
        outbox.put(connection, "a")
        outbox.put(connection, "b", headers={"traceparent": "mine"})
    connection.close()
    sent = traces.named("send outbox:default")
    assert [parent_of(each) for each in sent] == [write.get_span_context().span_id] * 2
    assert [row[4] for row in found(database)] == [
        '{"traceparent":"' + header_of(sent[0]) + '"}',
        '{"traceparent":"mine"}',
    ]


# What is not installed

ALONE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {
            "aiosqlite", "asyncpg", "django", "greenlet", "opentelemetry", "psycopg", "psycopg2",
            "psycopg_binary", "psycopg_pool", "sqlalchemy",
        }:
            raise ImportError(f"{name} is not installed here")
        return None

sys.meta_path.insert(0, Blocked())
import asyncio, sqlite3
from pollwise.outbox.records import NewRecord
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.outbox.writers.put import put

async def main():
    async with SqliteOutboxStore(sys.argv[1]) as store:
        await store.migrate()
        connection = sqlite3.connect(sys.argv[1])
        put(store.target(), connection, [NewRecord("a", 1)])
        connection.commit()
        connection.close()
        [claim] = await store.claim("r", 1, 1, 30)
        print(claim.records[0].record.kind)

asyncio.run(main())
"""


def test_nothing_is_imported_that_is_not_installed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path / "shop.db")], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("a\n", "")
