"""Ways to a database: every library with supported transactions, with one interface.

All calls are plain; async libraries run on an event loop of their way.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import sqlalchemy
from sqlalchemy.ext import asyncio as sqlalchemy_async
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from pollwise.outbox.records import NewRecord
from pollwise.outbox.writers.put import OutboxTarget, put
from tests.contrib.django.sites import set_up_django


@dataclass
class Database:
    """A migrated database with a table of orders; by its dialect a path or a DSN."""

    dialect: str
    where: str
    target: OutboxTarget
    query: Callable[[str], list[tuple[Any, ...]]]

    def url(self, driver: str) -> str:
        """As SQLAlchemy has it."""
        if self.dialect == "sqlite":
            return f"sqlite+{driver}:///{self.where}"
        return "postgresql+" + driver + self.where.removeprefix("postgresql")


class Way(ABC):
    """A connection and its transactions. `autocommit` makes it commit each statement by itself."""

    dialect: ClassVar[str]
    library: ClassVar[str]

    def __init__(self, database: Database, *, autocommit: bool = False) -> None:
        self.database = database
        self.autocommit = autocommit
        self.open()

    def put(self, records: Sequence[NewRecord]) -> list[str]:
        ids: list[str] = put(self.database.target, self.tx, records)
        return ids

    @property
    @abstractmethod
    def tx(self) -> Any: ...

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def run(self, statement: str) -> None: ...

    def begin(self) -> None:
        """Begin a transaction, if the library does not do it."""
        return

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def savepoint(self) -> None:
        self.run("SAVEPOINT here")

    def rollback_to_savepoint(self) -> None:
        self.run("ROLLBACK TO SAVEPOINT here")


class AsyncWay(Way):
    def __init__(self, database: Database, *, autocommit: bool = False) -> None:
        self.runner = asyncio.Runner()
        super().__init__(database, autocommit=autocommit)

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    def put(self, records: Sequence[NewRecord]) -> list[str]:
        async def main() -> list[str]:
            ids: list[str] = await put(self.database.target, self.tx, records)
            return ids

        ids: list[str] = self.wait(main())
        return ids

    def open(self) -> None:
        self.wait(self.aopen())

    @abstractmethod
    async def aopen(self) -> None: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    def close(self) -> None:
        self.wait(self.aclose())
        self.runner.close()


class Plain(Way):
    """A connection as most drivers have it."""

    tx: Any = None

    def run(self, statement: str) -> None:
        self.tx.execute(statement)

    def commit(self) -> None:
        self.tx.commit()

    def rollback(self) -> None:
        self.tx.rollback()

    def close(self) -> None:
        self.tx.close()


class AsyncPlain(AsyncWay):
    tx: Any = None

    def run(self, statement: str) -> None:
        self.wait(self.tx.execute(statement))

    def commit(self) -> None:
        self.wait(self.tx.commit())

    def rollback(self) -> None:
        self.wait(self.tx.rollback())

    async def aclose(self) -> None:
        await self.tx.close()


class Sqlite3(Plain):
    """Python's defaults: an INSERT begins a transaction."""

    dialect = "sqlite"
    library = "sqlite3"

    def open(self) -> None:
        self.tx = sqlite3.connect(
            self.database.where, isolation_level=None if self.autocommit else "DEFERRED"
        )
        self.tx.row_factory = lambda cursor, row: {"row": row}  # of the user's own making


class Sqlite3ByHand(Sqlite3):
    def open(self) -> None:
        self.tx = sqlite3.connect(self.database.where, isolation_level=None)

    def begin(self) -> None:
        self.tx.execute("BEGIN")


class Sqlite3Cursor(Sqlite3):
    def put(self, records: Sequence[NewRecord]) -> list[str]:
        cursor = self.tx.cursor()
        try:
            ids: list[str] = put(self.database.target, cursor, records)
            return ids
        finally:
            cursor.close()


class Aiosqlite(AsyncPlain):
    dialect = "sqlite"
    library = "aiosqlite"

    async def aopen(self) -> None:
        level: Any = None if self.autocommit else "DEFERRED"
        self.tx = await aiosqlite.connect(self.database.where, isolation_level=level)
        self.tx.row_factory = lambda cursor, row: {"row": row}

    def run(self, statement: str) -> None:
        async def main() -> None:
            await (await self.tx.execute(statement)).close()

        self.wait(main())


class Psycopg(Plain):
    dialect = "postgresql"
    library = "psycopg"

    def open(self) -> None:
        self.tx = psycopg.connect(
            self.database.where, autocommit=self.autocommit, row_factory=psycopg.rows.dict_row
        )


class PsycopgTransaction(Psycopg):
    """Autocommit, and a transaction by hand."""

    def open(self) -> None:
        self.tx = psycopg.connect(self.database.where, autocommit=True)

    def begin(self) -> None:
        self.tx.execute("BEGIN")


class AsyncPsycopg(AsyncPlain):
    dialect = "postgresql"
    library = "psycopg"

    async def aopen(self) -> None:
        self.tx = await psycopg.AsyncConnection.connect(
            self.database.where, autocommit=self.autocommit, row_factory=psycopg.rows.dict_row
        )


class Psycopg2(Plain):
    dialect = "postgresql"
    library = "psycopg2"

    def open(self) -> None:
        from psycopg2.extras import RealDictCursor

        self.tx = psycopg2.connect(self.database.where, cursor_factory=RealDictCursor)
        self.tx.autocommit = self.autocommit

    def run(self, statement: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute(statement)


class Asyncpg(AsyncWay):
    dialect = "postgresql"
    library = "asyncpg"
    tx: Any = None

    async def aopen(self) -> None:
        self.tx = await asyncpg.connect(self.database.where)

    def begin(self) -> None:
        self.transaction = self.tx.transaction()
        self.wait(self.transaction.start())

    def run(self, statement: str) -> None:
        self.wait(self.tx.execute(statement))

    def commit(self) -> None:
        self.wait(self.transaction.commit())

    def rollback(self) -> None:
        self.wait(self.transaction.rollback())

    def savepoint(self) -> None:
        self.inner = self.tx.transaction()
        self.wait(self.inner.start())

    def rollback_to_savepoint(self) -> None:
        self.wait(self.inner.rollback())

    async def aclose(self) -> None:
        await self.tx.close()


class AsyncpgPool(Asyncpg):
    async def aopen(self) -> None:
        self.pool = await asyncpg.create_pool(self.database.where, min_size=1, max_size=1)
        self.tx = await self.pool.acquire()

    async def aclose(self) -> None:
        await self.pool.release(self.tx)
        await self.pool.close()


class SqlalchemyConnection(Way):
    library = "SQLAlchemy"
    driver: ClassVar[str]
    tx: Any = None

    def open(self) -> None:
        options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if self.autocommit else {}
        self.engine = sqlalchemy.create_engine(self.database.url(self.driver), **options)
        self.tx = self.make()

    def make(self) -> Any:
        return self.engine.connect()

    def run(self, statement: str) -> None:
        self.tx.execute(sqlalchemy.text(statement))

    def commit(self) -> None:
        self.tx.commit()

    def rollback(self) -> None:
        self.tx.rollback()

    def savepoint(self) -> None:
        self.inner = self.tx.begin_nested()

    def rollback_to_savepoint(self) -> None:
        self.inner.rollback()

    def close(self) -> None:
        self.tx.close()
        self.engine.dispose()


class ConnectionSqlite(SqlalchemyConnection):
    dialect, driver = "sqlite", "pysqlite"

    def savepoint(self) -> None:
        # Python's sqlite3 begins no transaction for a savepoint, so there has to be one.
        self.run("INSERT INTO orders (id) VALUES (0)")
        super().savepoint()


class ConnectionPsycopg(SqlalchemyConnection):
    dialect, driver = "postgresql", "psycopg"


class ConnectionPsycopg2(SqlalchemyConnection):
    dialect, driver = "postgresql", "psycopg2"


class SessionSqlite(ConnectionSqlite):
    def make(self) -> Any:
        return Session(self.engine)


class SessionPsycopg(ConnectionPsycopg):
    def make(self) -> Any:
        return Session(self.engine)


class ScopedSession(ConnectionPsycopg2):
    def make(self) -> Any:
        return scoped_session(sessionmaker(self.engine))

    def close(self) -> None:
        self.tx.remove()
        self.engine.dispose()


class SqlalchemyAsyncConnection(AsyncWay):
    library = "SQLAlchemy"
    driver: ClassVar[str]
    tx: Any = None

    async def aopen(self) -> None:
        options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if self.autocommit else {}
        url = self.database.url(self.driver)
        self.engine = sqlalchemy_async.create_async_engine(url, **options)
        self.tx = await self.make()

    async def make(self) -> Any:
        return await self.engine.connect()

    def run(self, statement: str) -> None:
        self.wait(self.tx.execute(sqlalchemy.text(statement)))

    def commit(self) -> None:
        self.wait(self.tx.commit())

    def rollback(self) -> None:
        self.wait(self.tx.rollback())

    def savepoint(self) -> None:
        if self.dialect == "sqlite":
            self.run("INSERT INTO orders (id) VALUES (0)")

        async def main() -> None:
            self.inner = await self.tx.begin_nested()

        self.wait(main())

    def rollback_to_savepoint(self) -> None:
        self.wait(self.inner.rollback())

    async def aclose(self) -> None:
        await self.tx.close()
        await self.engine.dispose()


class AsyncConnectionAiosqlite(SqlalchemyAsyncConnection):
    dialect, driver = "sqlite", "aiosqlite"


class AsyncConnectionAsyncpg(SqlalchemyAsyncConnection):
    dialect, driver = "postgresql", "asyncpg"


class AsyncConnectionPsycopg(SqlalchemyAsyncConnection):
    dialect, driver = "postgresql", "psycopg"


class AsyncSessionAiosqlite(AsyncConnectionAiosqlite):
    async def make(self) -> Any:
        return sqlalchemy_async.AsyncSession(self.engine)


class AsyncSessionAsyncpg(AsyncConnectionAsyncpg):
    async def make(self) -> Any:
        return sqlalchemy_async.AsyncSession(self.engine)


class AsyncScopedSession(AsyncConnectionPsycopg):
    async def make(self) -> Any:
        return sqlalchemy_async.async_scoped_session(
            sqlalchemy_async.async_sessionmaker(self.engine), scopefunc=lambda: "one"
        )

    async def aclose(self) -> None:
        await self.tx.remove()
        await self.engine.dispose()


class Django(Way):
    """One of `connections`; a transaction is an atomic block."""

    library = "Django"

    @property
    def tx(self) -> Any:
        return self.connection

    def open(self) -> None:
        connections = django_connections()
        self.alias = f"pollwise{len(connections.databases)}"
        settings = dict(connections.databases["default"])
        if self.dialect == "sqlite":
            settings |= {"ENGINE": "django.db.backends.sqlite3", "NAME": self.database.where}
        else:
            parts = psycopg.conninfo.conninfo_to_dict(self.database.where)
            settings |= {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts["dbname"],
                "USER": parts["user"],
                "HOST": parts["host"],
                "PORT": parts["port"],
            }
        connections.databases[self.alias] = settings
        self.connection = connections[self.alias]

    def begin(self) -> None:
        from django.db import transaction

        self.atomic = transaction.atomic(using=self.alias)
        self.atomic.__enter__()

    def run(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    def commit(self) -> None:
        self.atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        if self.connection.in_atomic_block:
            self.atomic.__exit__(ValueError, ValueError(), None)

    def savepoint(self) -> None:
        from django.db import transaction

        self.inner = transaction.atomic(using=self.alias)
        self.inner.__enter__()

    def rollback_to_savepoint(self) -> None:
        self.inner.__exit__(ValueError, ValueError(), None)

    def close(self) -> None:
        self.connection.close()


class DjangoSqlite(Django):
    dialect = "sqlite"


class DjangoPostgres(Django):
    dialect = "postgresql"


class DjangoProxy(DjangoSqlite):
    """What `django.db.connection` is."""

    @property
    def tx(self) -> Any:
        from django.db import connections
        from django.utils.connection import ConnectionProxy

        return ConnectionProxy(connections, self.alias)


def django_connections() -> Any:
    set_up_django()
    from django.db import connections

    connections["default"]  # completes the settings
    return connections


WAYS: tuple[type[Way], ...] = (
    Sqlite3, Sqlite3ByHand, Sqlite3Cursor, Aiosqlite,
    Psycopg, PsycopgTransaction, AsyncPsycopg, Psycopg2, Asyncpg, AsyncpgPool,
    ConnectionSqlite, ConnectionPsycopg, ConnectionPsycopg2,
    SessionSqlite, SessionPsycopg, ScopedSession,
    AsyncConnectionAiosqlite, AsyncConnectionAsyncpg, AsyncConnectionPsycopg,
    AsyncSessionAiosqlite, AsyncSessionAsyncpg, AsyncScopedSession,
    DjangoSqlite, DjangoPostgres, DjangoProxy,
)  # fmt: skip


def sqlite_query(path: Path, statement: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()
