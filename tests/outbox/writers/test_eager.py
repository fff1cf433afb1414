"""`put(…, eager=True)`: handled right after the commit, by the relay in this process.

Polls come once a minute here, so whatever is handled within the deadline was handled for news of
the commit.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext import asyncio as sqlalchemy_async
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from pollwise.core.strategies.fixed import Fixed
from pollwise.outbox import Outbox, OutboxRunOptions, open_store
from pollwise.outbox.records import Record
from tests.outbox.writers.ways import Database, DjangoProxy, DjangoSqlite
from tests.support.servers import Postgres

#: Real seconds within which news has to arrive; far below the minute between polls.
DEADLINE = 240.0
_names = itertools.count(1)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/shop.db"
    asyncio.run(migrated(url))
    return url


@pytest.fixture
def postgres_url(postgres: Postgres) -> str:
    url = postgres.create_database(f"eager_{next(_names)}")
    asyncio.run(migrated(url))
    return url


async def migrated(url: str) -> None:
    async with open_store(url) as store:
        await store.migrate()


class Shop:
    """An outbox whose relay runs here, and what it was given."""

    def __init__(self, url: str) -> None:
        options = OutboxRunOptions(polling=Fixed("60s"), signals=False)
        self.outbox = Outbox(url, options=options)
        self.seen: asyncio.Queue[Any] = asyncio.Queue()

        @self.outbox.handle("*")
        async def note(record: Record) -> None:
            self.seen.put_nowait(record.payload)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Shop]:
        async with self.outbox.running():
            await self.at_rest()
            yield self

    async def at_rest(self) -> None:
        """Until its first poll is over and it pauses, listening."""
        async with asyncio.timeout(DEADLINE):
            while self.outbox.state().get("polls", 0) < 1:
                self.outbox.wake()
                await asyncio.sleep(0.01)  # real time: another thread, or a server, is waited for

    async def next(self) -> Any:
        async with asyncio.timeout(DEADLINE):
            return await self.seen.get()


async def exercise(shop: Shop, put: Callable[[Any, bool], Awaitable[None]]) -> None:
    """What is rolled back is never handled; what is committed is, at once."""
    async with shop.running():
        await put("rolled back", False)
        await put("committed", True)
        assert await shop.next() == "committed"
        await put("again", True)
        assert await shop.next() == "again"
        assert shop.seen.empty()


def test_sqlite3(sqlite_url: str) -> None:
    shop = Shop(sqlite_url)

    async def put(payload: Any, commit: bool) -> None:
        connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER)")
        connection.execute("INSERT INTO orders VALUES (1)")
        shop.outbox.put(connection, "order.placed", payload, eager=True)
        connection.commit() if commit else connection.rollback()
        connection.close()

    asyncio.run(exercise(shop, put))


def test_psycopg(postgres_url: str) -> None:
    shop = Shop(postgres_url)

    async def put(payload: Any, commit: bool) -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            await shop.outbox.put(connection, "order.placed", payload, eager=True)
            await (connection.commit() if commit else connection.rollback())

    asyncio.run(exercise(shop, put))


def test_a_session_of_sqlalchemy(sqlite_url: str) -> None:
    shop = Shop(sqlite_url + "?watch=0")  # so that only the commit itself can tell
    engine = sqlalchemy.create_engine(sqlite_url)
    session = Session(engine)

    async def put(payload: Any, commit: bool) -> None:
        session.execute(sqlalchemy.text("CREATE TABLE IF NOT EXISTS orders (id INTEGER)"))
        shop.outbox.put(session, "order.placed", payload, eager=True)
        session.commit() if commit else session.rollback()

    asyncio.run(exercise(shop, put))
    session.close()
    engine.dispose()


def test_a_scoped_session_in_a_thread(sqlite_url: str) -> None:
    shop = Shop(sqlite_url + "?watch=0")
    engine = sqlalchemy.create_engine(sqlite_url)
    sessions = scoped_session(sessionmaker(engine))

    def in_thread(payload: Any, commit: bool) -> None:
        sessions.execute(sqlalchemy.text("CREATE TABLE IF NOT EXISTS orders (id INTEGER)"))
        shop.outbox.put(sessions, "order.placed", payload, eager=True)
        sessions.commit() if commit else sessions.rollback()
        sessions.remove()

    async def put(payload: Any, commit: bool) -> None:
        await asyncio.to_thread(in_thread, payload, commit)

    asyncio.run(exercise(shop, put))
    engine.dispose()


def test_an_async_session_of_sqlalchemy(postgres_url: str) -> None:
    shop = Shop(postgres_url)
    url = "postgresql+psycopg" + postgres_url.removeprefix("postgresql")

    async def main() -> None:
        engine = sqlalchemy_async.create_async_engine(url)

        async def put(payload: Any, commit: bool) -> None:
            async with sqlalchemy_async.AsyncSession(engine) as session:
                await shop.outbox.put(session, "order.placed", payload, eager=True)
                await (session.commit() if commit else session.rollback())

        await exercise(shop, put)
        await engine.dispose()

    asyncio.run(main())


@pytest.mark.parametrize("proxy", [False, True])
def test_django(sqlite_url: str, proxy: bool) -> None:
    shop = Shop(sqlite_url + "?watch=0")
    database = Database(
        "sqlite", sqlite_url.removeprefix("sqlite:///"), shop.outbox.store.target(), lambda _: []
    )
    with ThreadPoolExecutor(1) as thread:  # Django's connections belong to a thread
        way = thread.submit(DjangoProxy if proxy else DjangoSqlite, database).result()

        def in_thread(payload: Any, commit: bool) -> None:
            way.begin()
            shop.outbox.put(way.tx, "order.placed", payload, eager=True)
            way.commit() if commit else way.rollback()

        async def put(payload: Any, commit: bool) -> None:
            await asyncio.wrap_future(thread.submit(in_thread, payload, commit))

        asyncio.run(exercise(shop, put))
        thread.submit(way.close).result()


def test_the_record_is_there_for_others_when_no_relay_runs_any_more(sqlite_url: str) -> None:
    """The outbox is the backup: a relay that died before the commit loses nothing."""
    shop = Shop(sqlite_url + "?timeout=100ms")  # the transaction below locks the file
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))

    async def main() -> None:
        async with shop.running():
            connection.execute("CREATE TABLE orders (id INTEGER)")
            connection.execute("INSERT INTO orders VALUES (1)")
            shop.outbox.put(connection, "order.placed", 1, eager=True)
        connection.commit()
        assert shop.seen.empty()
        later = Shop(sqlite_url)
        async with later.running():
            assert await later.next() == 1

    asyncio.run(main())
    connection.close()
