"""A put on a session of SQLAlchemy's ORM flushes it: records must not precede their data."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session
from sqlalchemy.orm import sessionmaker as session_maker

from pollwise.outbox import NewRecord, Outbox, open_store
from pollwise.outbox.stores.base import OutboxStore
from tests.support.servers import Postgres


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orm_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(unique=True)


class Shop:
    """An outbox beside a table of orders; `url` has `{}` for the driver."""

    def __init__(self, outbox: Outbox, url: str, drivers: tuple[str, str]) -> None:
        self.outbox = outbox
        self.plain, self.awaited = (url.format(driver) for driver in drivers)
        asyncio.run(self._migrate())
        engine = sqlalchemy.create_engine(self.plain)
        Base.metadata.drop_all(engine)
        Base.metadata.create_all(engine)
        engine.dispose()

    async def _migrate(self) -> None:
        async with self._opened() as store:
            await store.migrate()

    def _opened(self) -> OutboxStore:
        return open_store(str(self.outbox.database), name=self.outbox.name)

    def payloads(self) -> list[Any]:
        async def main() -> list[Any]:
            async with self._opened() as store:
                return [info.record.payload for info in await store.records()]

        return asyncio.run(main())


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    if request.param == "sqlite":
        with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        path = f"{tmp_path}/shop.db"
        yield Shop(Outbox(f"sqlite:///{path}"), "sqlite+{}:///" + path, ("pysqlite", "aiosqlite"))
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    dsn = postgres.dsn()
    url = "postgresql+{}" + dsn.removeprefix("postgresql")
    made = Shop(Outbox(dsn, name=f"flush-{request.node.name}"), url, ("psycopg", "asyncpg"))
    yield made


@pytest.mark.parametrize("scoped", [False, True])
def test_a_put_flushes_the_session_before_it_reads_the_payload(shop: Shop, scoped: bool) -> None:
    engine = sqlalchemy.create_engine(shop.plain)
    session: Any = scoped_session(session_maker(engine)) if scoped else Session(engine)
    with session.begin(), session.no_autoflush:
        order = Order(state="placed")
        session.add(order)
        shop.outbox.put(session, "order.placed", lambda: {"id": order.id})
        assert order.id == 1
        shop.outbox.put(session, "order.told", {"id": order.id})
        session.add(Order(state="another"))
        assert shop.outbox.put(session, []) == []
        assert session.new  # nothing was put, so nothing was flushed
        shop.outbox.put(session, NewRecord("order.given", {"id": 2}))
        assert not session.new
    session.close()
    engine.dispose()
    assert shop.payloads() == [{"id": 1}, {"id": 1}, {"id": 2}]


def test_an_async_session_is_flushed_too(shop: Shop) -> None:
    async def main() -> None:
        engine = create_async_engine(shop.awaited)
        async with AsyncSession(engine) as session, session.begin():
            order = Order(state="placed")
            session.add(order)
            await shop.outbox.put(session, "order.placed", lambda: {"id": order.id})
            assert order.id == 1
        await engine.dispose()

    asyncio.run(main())
    assert shop.payloads() == [{"id": 1}]


def test_data_that_cannot_be_written_puts_nothing(shop: Shop) -> None:
    engine = sqlalchemy.create_engine(shop.plain)
    with Session(engine) as session:
        session.add(Order(state="placed"))
        session.commit()
        session.add(Order(state="placed"))
        with pytest.raises(IntegrityError):  # in the put, not in the commit
            shop.outbox.put(session, "order.placed", {"id": 2})
        session.rollback()
        session.commit()
    engine.dispose()
    assert shop.payloads() == []


def test_changes_of_one_row_are_told_in_the_order_they_are_made(postgres: Postgres) -> None:
    """The lock of the row is taken before the record's number is drawn."""
    dsn = postgres.dsn()
    shop = Shop(Outbox(dsn, name="told"), "postgresql+{}" + dsn.removeprefix("postgresql"),
                ("psycopg", "asyncpg"))  # fmt: skip
    engine = sqlalchemy.create_engine(shop.plain)
    with Session(engine) as one, Session(engine) as two:
        one.add(Order(id=1, state="placed"))
        one.commit()
        for session, state in ((one, "paid"), (two, "shipped")):
            session.execute(sqlalchemy.text("SET LOCAL lock_timeout = '50ms'"))
            session.get_one(Order, 1).state = state
        shop.outbox.put(one, "order.changed", "paid", key="order-1")
        with pytest.raises(OperationalError, match="lock timeout"):  # it waits for the first
            shop.outbox.put(two, "order.changed", "shipped", key="order-1")
        two.rollback()
        one.commit()
        two.get_one(Order, 1).state = "shipped"
        shop.outbox.put(two, "order.changed", "shipped", key="order-1")
        two.commit()
    engine.dispose()
    assert shop.payloads() == ["paid", "shipped"]
