"""Writers for connections of psycopg, psycopg2 and asyncpg."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pollwise.outbox.writers.common import AsyncWriter, PlainWriter, Rows, pyformat
from pollwise.storage.sql import numbered

#: libpq's status of a connection without an open transaction, in psycopg and psycopg2.
IDLE = 0


class PsycopgWriter(PlainWriter):
    """A `psycopg.Connection`."""

    library = "psycopg"
    begin = (
        "Put within `with connection.transaction():`, with your own statements, or leave out "
        "autocommit=True."
    )
    dialect = "postgresql"

    def in_transaction(self) -> bool:
        return psycopg_in_transaction(self.tx)

    def rows(self, statement: str, values: Mapping[str, Any]) -> Rows:
        from psycopg.rows import tuple_row

        with self.tx.cursor(row_factory=tuple_row) as cursor:
            found: Rows = cursor.execute(pyformat(statement), values).fetchall()
            return found


class AsyncPsycopgWriter(AsyncWriter):
    """A `psycopg.AsyncConnection`."""

    library = "psycopg"
    begin = (
        "Put within `async with connection.transaction():`, with your own statements, or leave "
        "out autocommit=True."
    )
    dialect = "postgresql"

    def in_transaction(self) -> bool:
        return psycopg_in_transaction(self.tx)

    async def rows(self, statement: str, values: Mapping[str, Any]) -> Rows:
        from psycopg.rows import tuple_row

        async with self.tx.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(pyformat(statement), values)
            found: Rows = await cursor.fetchall()
            return found


class Psycopg2Writer(PlainWriter):
    """A `psycopg2` connection."""

    library = "psycopg2"
    begin = "Set `connection.autocommit = False`, and commit when all is done."
    dialect = "postgresql"

    def in_transaction(self) -> bool:
        return not self.tx.autocommit or self.tx.get_transaction_status() != IDLE

    def rows(self, statement: str, values: Mapping[str, Any]) -> Rows:
        from psycopg2.extensions import cursor as plain_cursor

        with self.tx.cursor(cursor_factory=plain_cursor) as cursor:
            cursor.execute(pyformat(statement), values)
            found: Rows = cursor.fetchall()
            return found


class AsyncpgWriter(AsyncWriter):
    """An `asyncpg.Connection`, also from a pool."""

    library = "asyncpg"
    begin = "Put within `async with connection.transaction():`, with your own statements."
    dialect = "postgresql"

    def in_transaction(self) -> bool:
        return bool(self.tx.is_in_transaction())

    async def rows(self, statement: str, values: Mapping[str, Any]) -> Rows:
        text, names = numbered(statement)
        return [tuple(row) for row in await self.tx.fetch(text, *(values[name] for name in names))]


def psycopg_in_transaction(connection: Any) -> bool:
    return not connection.autocommit or connection.info.transaction_status != IDLE
