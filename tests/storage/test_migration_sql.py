"""What `migrate --sql` prints is one statement, which works inside the user's own migrations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from pollwise.controller.state.postgres.state import TABLES as CONTROLLER
from pollwise.fleet.stores.postgres.store import TABLES as FLEET
from pollwise.outbox.stores.postgres.store import TABLES as OUTBOX
from pollwise.queues.postgres.queue import TABLES as QUEUE
from pollwise.storage.postgres.schema import TableSet, script
from tests.outbox.writers.ways import django_connections
from tests.support.servers import Postgres

PARTS = {"queue": QUEUE, "outbox": OUTBOX, "fleet": FLEET, "controller": CONTROLLER}
OWN = "CREATE TABLE {schema}_own (id integer)"

#: Runs statements in a transaction on a database; the last argument tells whether to roll it back.
Migrate = Callable[[str, list[str], bool], None]


class Undone(Exception):
    """Rolls a transaction back."""


def by_psycopg(dsn: str, statements: list[str], undo: bool) -> None:
    with psycopg.connect(dsn) as connection:
        for statement in statements:
            connection.execute(statement.encode())
        if undo:
            connection.rollback()


def by_alembic(dsn: str, statements: list[str], undo: bool) -> None:
    """As `op.execute` does: with a colon, a statement could have parameters."""
    engine = sqlalchemy.create_engine("postgresql+psycopg" + dsn.removeprefix("postgresql"))
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(sqlalchemy.text(statement))
        connection.rollback() if undo else connection.commit()
    engine.dispose()


def by_async_alembic(dsn: str, statements: list[str], undo: bool) -> None:
    """With asyncpg, which takes one statement at a time."""

    async def main() -> None:
        engine = create_async_engine("postgresql+asyncpg" + dsn.removeprefix("postgresql"))
        async with engine.connect() as connection:
            for statement in statements:
                await connection.execute(sqlalchemy.text(statement))
            await (connection.rollback() if undo else connection.commit())
        await engine.dispose()

    asyncio.run(main())


def by_django(dsn: str, statements: list[str], undo: bool) -> None:
    from django.db.migrations import RunSQL
    from django.db.migrations.state import ProjectState

    with django_database(dsn) as connection:
        try:
            with connection.schema_editor(atomic=True) as editor:
                for statement in statements:
                    state = ProjectState()
                    RunSQL(statement).database_forwards("shop", editor, state, state)
                if undo:
                    raise Undone
        except Undone:
            pass


@contextmanager
def django_database(dsn: str) -> Iterator[Any]:
    connections, parts = django_connections(), psycopg.conninfo.conninfo_to_dict(dsn)
    connections.databases["migrated"] = {
        **connections.databases["default"],
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "USER": parts["user"],
        "HOST": parts["host"],
        "PORT": parts["port"],
    }
    try:
        yield connections["migrated"]
    finally:
        connections["migrated"].close()
        del connections["migrated"], connections.databases["migrated"]


@pytest.mark.parametrize("by", [by_psycopg, by_alembic, by_async_alembic, by_django])
@pytest.mark.parametrize("part", PARTS)
def test_the_sql_is_part_of_the_users_own_transaction(
    postgres: Postgres, part: str, by: Migrate
) -> None:
    tables: TableSet = PARTS[part]
    schema = f"{part}_{by.__name__}"
    sql, own = script(schema, tables), OWN.format(schema=schema)

    def found() -> tuple[bool, bool]:
        [(theirs, ours)] = postgres.execute(
            f"SELECT to_regclass('{schema}_own') IS NOT NULL, "
            f"EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = '{schema}')"
        )
        return bool(theirs), bool(ours)

    by(postgres.dsn(), [own, sql], True)
    assert found() == (False, False)
    by(postgres.dsn(), [own, sql, sql], False)
    assert found() == (True, True)
    [(version,)] = postgres.execute(f"SELECT max(version) FROM {schema}.{tables.record}")
    assert version == tables.newest


@pytest.mark.parametrize("part", PARTS)
def test_a_failure_leaves_nothing_behind_without_a_transaction(
    postgres: Postgres, part: str
) -> None:
    schema = f"{part}_failed"
    broken = script(schema, PARTS[part]).replace("END $migrate$;", "PERFORM 1 / 0; END $migrate$;")
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute(broken.encode())
        found = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,))
        assert found.fetchall() == []
