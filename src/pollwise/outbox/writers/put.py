"""The write side: records put inside the user's own transaction, whatever library that is of.

The record is a row that the user's connection inserts, so it commits or rolls back with the user's
data, and relays see it only after the commit. A connection that commits each statement by itself
is refused: the guarantee would be void.

What was given is recognised by the names of its classes, so nothing is imported that the user has
not imported: the module of a library's writer is loaded when the first of its connections comes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Iterable
from importlib import import_module
from typing import Any, Protocol, overload

from pollwise.errors import OutboxError
from pollwise.outbox.records import NewRecord
from pollwise.outbox.writers.common import OutboxTarget, RecordWriter

__all__ = ["AsyncTransaction", "OutboxTarget", "SyncTransaction", "put", "writer_of"]


class SyncTransaction(Protocol):
    """What has a plain `commit`: sqlite3, psycopg, SQLAlchemy (Connection, Session), Django."""

    def commit(self) -> None: ...


class AsyncTransaction(Protocol):
    """What has a `commit` to await: psycopg, SQLAlchemy and aiosqlite where they are async."""

    def commit(self) -> Awaitable[None]: ...


class AsyncpgTransaction(Protocol):
    """A connection of asyncpg, which has no commit: its transactions do."""

    def is_in_transaction(self) -> bool: ...


#: By the package and the name of a class: the module and the class of its writer.
_WRITERS: dict[tuple[str, str], tuple[str, str]] = {
    ("sqlite3", "Connection"): ("sqlite", "Sqlite3Writer"),
    ("sqlite3", "Cursor"): ("sqlite", "Sqlite3CursorWriter"),
    ("aiosqlite", "Connection"): ("sqlite", "AiosqliteWriter"),
    ("psycopg", "Connection"): ("postgres", "PsycopgWriter"),
    ("psycopg", "AsyncConnection"): ("postgres", "AsyncPsycopgWriter"),
    ("psycopg2", "connection"): ("postgres", "Psycopg2Writer"),
    ("asyncpg", "Connection"): ("postgres", "AsyncpgWriter"),
    ("asyncpg", "PoolConnectionProxy"): ("postgres", "AsyncpgWriter"),
    ("sqlalchemy", "Connection"): ("sqlalchemy", "ConnectionWriter"),
    ("sqlalchemy", "Session"): ("sqlalchemy", "SessionWriter"),
    ("sqlalchemy", "scoped_session"): ("sqlalchemy", "ScopedSessionWriter"),
    ("sqlalchemy", "AsyncConnection"): ("sqlalchemy", "AsyncConnectionWriter"),
    ("sqlalchemy", "AsyncSession"): ("sqlalchemy", "AsyncSessionWriter"),
    ("sqlalchemy", "async_scoped_session"): ("sqlalchemy", "AsyncScopedSessionWriter"),
    ("django", "BaseDatabaseWrapper"): ("django", "DjangoWriter"),
    ("django", "ConnectionProxy"): ("django", "DjangoProxyWriter"),
}

#: What is easily given instead of a connection, and what to give.
_INSTEAD: dict[tuple[str, str], str] = {
    ("sqlalchemy", "Engine"): "give a connection: `with engine.begin() as connection:`",
    ("sqlalchemy", "AsyncEngine"): "give a connection: `async with engine.begin() as connection:`",
    ("sqlalchemy", "sessionmaker"): "give a session: `with Session.begin() as session:`",
    (
        "sqlalchemy",
        "async_sessionmaker",
    ): "give a session: `async with Session.begin() as session:`",
    ("sqlalchemy", "RootTransaction"): "give its connection: `transaction.connection`",
    ("sqlalchemy", "SessionTransaction"): "give its session: `transaction.session`",
    ("sqlalchemy", "NestedTransaction"): "give its connection: `transaction.connection`",
    ("psycopg", "Cursor"): "give its connection: `cursor.connection`",
    ("psycopg", "AsyncCursor"): "give its connection: `cursor.connection`",
    ("psycopg", "Transaction"): "give its connection: `transaction.connection`",
    ("psycopg", "AsyncTransaction"): "give its connection: `transaction.connection`",
    ("psycopg2", "cursor"): "give its connection: `cursor.connection`",
    (
        "psycopg_pool",
        "ConnectionPool",
    ): "give a connection: `with pool.connection() as connection:`",
    ("psycopg_pool", "AsyncConnectionPool"): (
        "give a connection: `async with pool.connection() as connection:`"
    ),
    ("asyncpg", "Pool"): "give a connection: `async with pool.acquire() as connection:`",
    ("asyncpg", "Transaction"): "give the connection that the transaction was begun on",
    ("django", "Atomic"): "give `django.db.connection`",
    ("django", "BaseConnectionHandler"): "give one of them: `connections['default']`",
    ("django", "CursorWrapper"): "give its connection: `cursor.db`",
}


@overload
def put(
    target: OutboxTarget, tx: SyncTransaction | sqlite3.Cursor, records: Iterable[NewRecord]
) -> list[str]: ...


@overload
def put(
    target: OutboxTarget, tx: AsyncTransaction | AsyncpgTransaction, records: Iterable[NewRecord]
) -> Awaitable[list[str]]: ...


def put(target: OutboxTarget, tx: Any, records: Iterable[NewRecord]) -> Any:
    """Put records in the transaction that is open on `tx`; return their ids in order.

    tx: a connection or session, see `_WRITERS`. With an async one the answer is to be awaited.
    records: as the outbox's store has checked them.
    Raises before anything is inserted: OutboxError for what is no connection, is in no transaction
    or is one to another database than the outbox.
    """
    return writer_of(tx).put(target, list(records))


def writer_of(tx: object) -> RecordWriter:
    """What can write on this connection or session."""
    for known in _names(tx):
        if known in _WRITERS:
            module, name = _WRITERS[known]
            made: RecordWriter = getattr(import_module(f"pollwise.outbox.writers.{module}"), name)(
                tx
            )
            return made
    shown = f"{type(tx).__module__}.{type(tx).__qualname__}"
    for known in _names(tx):
        if known in _INSTEAD:
            raise OutboxError(f"{shown} is no connection; {_INSTEAD[known]}")
    raise OutboxError(
        f"{shown} is no connection that the outbox knows; give one of sqlite3, aiosqlite, psycopg, "
        "psycopg2, asyncpg or Django, or a connection or session of SQLAlchemy"
    )


def _names(tx: object) -> list[tuple[str, str]]:
    """The package and the name of each of its classes."""
    return [(each.__module__.partition(".")[0], each.__name__) for each in type(tx).__mro__]
