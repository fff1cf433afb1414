"""Puts records in the user's own transaction, with any supported library.

A record is a row that the user's connection inserts, so it commits or rolls back with the user's
data, and relays see it only after the commit. A connection in autocommit mode is refused, because
it would commit the record apart from the data.

The names of its classes tell which library a connection belongs to, so this imports no library that
the user has not imported: a writer's module is loaded with its first connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Coroutine
from importlib import import_module
from typing import Any, Protocol, cast, overload

from pollwise.errors import OutboxError
from pollwise.outbox.writers.common import OutboxTarget, Records, RecordWriter

__all__ = [
    "AsyncTransaction",
    "AsyncpgTransaction",
    "OutboxTarget",
    "SyncTransaction",
    "on_commit",
    "put",
    "writer_of",
]

#: The key in a SQLAlchemy session's `info` with the functions to call after its commit.
_AFTER_COMMIT = "pollwise_after_commit"


class SyncTransaction(Protocol):
    """Has a plain `commit`: sqlite3, psycopg, SQLAlchemy (Connection, Session), Django."""

    def commit(self) -> None: ...


class AsyncTransaction(Protocol):
    """Has an async `commit`: async psycopg, async SQLAlchemy and aiosqlite."""

    def commit(self) -> Awaitable[None]: ...


class AsyncpgTransaction(Protocol):
    """A connection of asyncpg; only its transactions have a commit."""

    def is_in_transaction(self) -> bool: ...


#: The module and the class of a writer, by the package and the name of the connection's class.
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

_CURSOR = "give its connection: `cursor.connection`"
_TRANSACTION = "give its connection: `transaction.connection`"
#: Objects that are easily mistaken for a connection, and what to give instead.
_INSTEAD: dict[tuple[str, str], str] = {
    ("sqlalchemy", "Engine"): "give a connection: `with engine.begin() as connection:`",
    ("sqlalchemy", "AsyncEngine"): "give a connection: `async with engine.begin() as connection:`",
    ("sqlalchemy", "sessionmaker"): "give a session: `with Session.begin() as session:`",
    (
        "sqlalchemy",
        "async_sessionmaker",
    ): "give a session: `async with Session.begin() as session:`",
    ("sqlalchemy", "RootTransaction"): _TRANSACTION,
    ("sqlalchemy", "SessionTransaction"): "give its session: `transaction.session`",
    ("sqlalchemy", "NestedTransaction"): _TRANSACTION,
    ("psycopg", "Cursor"): _CURSOR,
    ("psycopg", "AsyncCursor"): _CURSOR,
    ("psycopg", "Transaction"): _TRANSACTION,
    ("psycopg", "AsyncTransaction"): _TRANSACTION,
    ("psycopg2", "cursor"): _CURSOR,
    ("psycopg_pool", "ConnectionPool"): "give one of its connections: `with pool.connection()`",
    ("psycopg_pool", "AsyncConnectionPool"): (
        "give one of its connections: `async with pool.connection()`"
    ),
    ("asyncpg", "Pool"): "give one of its connections: `async with pool.acquire()`",
    ("asyncpg", "Transaction"): "give the connection that the transaction was begun on",
    ("django", "Atomic"): "give `django.db.connection`",
    ("django", "BaseConnectionHandler"): "give one of them: `connections['default']`",
    ("django", "CursorWrapper"): "give its connection: `cursor.db`",
}


@overload
def put(
    target: OutboxTarget, tx: SyncTransaction | sqlite3.Cursor, records: Records
) -> list[str]: ...


@overload
def put(
    target: OutboxTarget, tx: AsyncTransaction | AsyncpgTransaction, records: Records
) -> Coroutine[Any, Any, list[str]]: ...


def put(target: OutboxTarget, tx: Any, records: Records) -> Any:
    """Put records in the open transaction of `tx`; return their ids in order.

    tx: a connection or session, see `_WRITERS`. With an async one, await the result.
    records: already checked by the outbox's store; a function that makes them is called after a
        session of SQLAlchemy is flushed.
    Raises OutboxError before anything is inserted if `tx` is not a connection, has no open
    transaction or belongs to another database than the outbox.
    """
    return writer_of(tx).put(target, records)


def writer_of(tx: object) -> RecordWriter:
    """The writer for this connection or session."""
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
            raise OutboxError(f"{shown} is not a connection; {_INSTEAD[known]}")
    raise OutboxError(
        f"{shown} is not a supported connection; give one of sqlite3, aiosqlite, psycopg, "
        "psycopg2, asyncpg or Django, or a connection or session of SQLAlchemy"
    )


def _names(tx: object) -> list[tuple[str, str]]:
    """The package and the name of each class in its MRO."""
    return [(each.__module__.partition(".")[0], each.__name__) for each in type(tx).__mro__]


# After a commit


def on_commit(tx: object, call: Callable[[], None]) -> None:
    """Call a function after the transaction on `tx` is committed, not if it is rolled back.

    SQLAlchemy's sessions and Django support that; with other libraries nothing is called. They do
    not need it: on Postgres the hint is part of the transaction, and a SQLite file is watched.
    """
    names, session = _names(tx), cast("Any", tx)
    if ("django", "BaseDatabaseWrapper") in names or ("django", "ConnectionProxy") in names:
        from django.db import transaction

        transaction.on_commit(call, using=session.alias)
        return
    if ("sqlalchemy", "scoped_session") in names:
        session = session()
    elif ("sqlalchemy", "async_scoped_session") in names:
        session = session().sync_session
    elif ("sqlalchemy", "AsyncSession") in names:
        session = session.sync_session
    elif ("sqlalchemy", "Session") not in names:
        return
    _after_commit(session, call)


def _after_commit(session: Any, call: Callable[[], None]) -> None:
    from sqlalchemy import event

    # One listener per session, because listeners are never removed. A function that a rolled-back
    # transaction left behind is called by the next commit, and finds nothing.
    waiting: dict[Callable[[], None], None] | None = session.info.get(_AFTER_COMMIT)
    if waiting is None:
        waiting = session.info[_AFTER_COMMIT] = {}
        event.listen(session, "after_commit", lambda _: _call_all(waiting))
    waiting[call] = None


def _call_all(waiting: dict[Callable[[], None], None]) -> None:
    calls = list(waiting)
    waiting.clear()
    for call in calls:
        call()
