"""Writers for connections of sqlite3 and aiosqlite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pollwise.outbox.writers.common import AsyncWriter, PlainWriter, Rows


class Sqlite3Writer(PlainWriter):
    """A `sqlite3.Connection`."""

    library = "sqlite3"
    begin = (
        'Begin one first, `connection.execute("BEGIN")`, or leave out isolation_level=None and '
        "autocommit=True; then your own statements, the put, and the commit."
    )
    dialect = "sqlite"

    def in_transaction(self) -> bool:
        return opens_transactions(self.tx) or bool(self.tx.in_transaction)

    def rows(self, statement: str, values: Mapping[str, Any]) -> Rows:
        cursor = self.tx.cursor()
        try:
            cursor.row_factory = None  # the user's own may return anything
            found: Rows = cursor.execute(statement, values).fetchall()
            return found
        finally:
            cursor.close()


class Sqlite3CursorWriter(Sqlite3Writer):
    """A `sqlite3.Cursor`: uses its connection, so the cursor keeps its position."""

    def __init__(self, tx: Any) -> None:
        super().__init__(tx.connection)


class AiosqliteWriter(AsyncWriter):
    """An `aiosqlite.Connection`."""

    library = "aiosqlite"
    begin = (
        'Begin one first, `await connection.execute("BEGIN")`, or leave out isolation_level=None '
        "and autocommit=True; then your own statements, the put, and the commit."
    )
    dialect = "sqlite"

    def in_transaction(self) -> bool:
        return opens_transactions(self.tx) or bool(self.tx.in_transaction)

    async def rows(self, statement: str, values: Mapping[str, Any]) -> Rows:
        async with self.tx.cursor() as cursor:
            cursor.row_factory = None
            await cursor.execute(statement, values)
            return [tuple(row) for row in await cursor.fetchall()]


def opens_transactions(connection: Any) -> bool:
    """True if a connection of sqlite3 opens a transaction itself before an INSERT."""
    autocommit = getattr(connection, "autocommit", None)  # since Python 3.12
    if isinstance(autocommit, bool):
        return not autocommit
    return connection.isolation_level is not None
