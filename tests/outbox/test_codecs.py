"""An outbox with a codec: what writers put, what relays handle, and what waits for its key."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pydantic
import pytest

from pollwise import NewRecord, Outbox, Record
from pollwise.codecs import AesGcm, Key, Keys, Zlib
from pollwise.errors import ConfigError, PayloadError, UniqueConflict
from pollwise.outbox import open_store
from pollwise.runtime.events import RecordDead, RecordLocked, RecordRetried
from tests.outbox.relays import Bench
from tests.support.servers import Postgres

CODEC = AesGcm(Keys((Key("k1", bytes(32)),)))
CARD = "4111-1111"


class Payment(pydantic.BaseModel):
    card: str


def test_a_relay_handles_what_was_encrypted_and_waits_for_a_key() -> None:
    bench = Bench()
    bench.store.use_codec([Zlib(), CODEC])
    outbox = bench.outbox()
    got: list[Any] = []

    @outbox.handle("pay")
    async def pay(payment: Payment, record: Record) -> None:
        got.append((payment.card, record.attempt, repr(record)))

    async def main() -> None:
        await bench.store.put(NewRecord("pay", {"card": CARD}, "k"))
        [info] = await bench.store.records()
        assert info.record.payload == {"card": CARD}
        bench.store.use_codec(None)
        [info] = await bench.store.records()
        assert CARD not in repr(info)
        async with outbox.running():
            while len(bench.events(RecordLocked)) < 3:
                await bench.clock.sleep(1)
            assert not got
            bench.store.use_codec([Zlib(), CODEC])
            while not got:
                await bench.clock.sleep(1)

    bench.run(main())
    [(card, attempt, shown)] = got
    assert (card, attempt) == (CARD, 1)
    assert CARD not in shown
    assert "this process has no codec" in bench.events(RecordLocked)[0].reason
    assert not bench.events(RecordDead)


def test_errors_do_not_tell_and_changed_records_are_dead() -> None:
    bench = Bench()
    bench.store.use_codec(CODEC)
    outbox = bench.outbox()

    @outbox.handle("pay")
    async def pay(record: Record) -> None:
        raise ValueError(f"no {record.payload['card']}")

    @outbox.handle("refund", fallback=lambda record: 1 / 0)
    async def refund(payment: Payment) -> None: ...

    async def main() -> None:
        [moved] = bench.store.sealed([NewRecord("pay", {"card": CARD})])
        await bench.store.put(
            [NewRecord("pay", {"card": CARD}, "a"), NewRecord("refund", {"card": [CARD]}, "b")]
        )
        bench.store.use_codec(None)
        await bench.store.put(NewRecord("refund", json.loads(moved.encoded), "c"))
        bench.store.use_codec(CODEC)
        async with outbox.running():
            while len(bench.events(RecordDead)) < 2 or not bench.events(RecordRetried):
                await bench.clock.sleep(1)

    bench.run(main())
    retried = bench.events(RecordRetried)[0]
    hidden = "(hidden, because the payload is encrypted)"
    assert retried.error == f"ValueError: {hidden}"
    dead = {event.key: event.error for event in bench.events(RecordDead)}
    assert "refund: the payload does not fit the handler 'refund': card: string_type" in dead["b"]
    assert f"its fallback: ZeroDivisionError: {hidden}" in dead["b"]
    assert "or moved here from another kind or queue" in dead["c"]
    assert CARD not in repr(bench.told)


async def migrate(outbox: Outbox) -> None:
    await outbox.store.migrate()
    await outbox.close()


def check(outbox: Outbox, connection: Any) -> None:
    """Put the same record again, and another one with the same `unique`."""
    first = outbox.put(connection, "pay", {"card": CARD, "n": 1}, key="k", unique="once")
    again = outbox.put(connection, "pay", lambda: {"n": 1, "card": CARD}, key="k", unique="once")
    assert again == first
    outbox.put(connection, [NewRecord("pay", {"card": CARD}, "k")])
    with pytest.raises(UniqueConflict):
        outbox.put(connection, "pay", {"card": CARD, "n": 2}, unique="once")


async def check_views(url: str) -> None:
    async with open_store(url, codec=CODEC) as store:
        found = [info.record.payload for info in await store.records()]
        assert found == [{"card": CARD, "n": 1}, {"card": CARD}]
    async with open_store(url) as store:
        assert CARD not in repr(await store.records())


def test_writers_on_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    outbox = Outbox(f"{url}?max_payload_bytes=300", codec=CODEC)
    asyncio.run(migrate(outbox))
    connection = sqlite3.connect(tmp_path / "shop.db")
    with connection:
        check(outbox, connection)
        with pytest.raises(PayloadError, match="the limit max_payload_bytes is 300"):
            outbox.put(connection, "pay", "x" * 290)
        rows = connection.execute("SELECT payload FROM pollwise_outbox").fetchall()
    connection.close()
    assert CARD not in repr(rows)
    asyncio.run(check_views(url))
    with pytest.raises(ConfigError, match="codec was given with a store"):
        Outbox(outbox.store, codec=CODEC)


def test_writers_on_postgres(postgres: Postgres) -> None:
    url = postgres.dsn()
    outbox = Outbox(url, name="codecs", codec=CODEC)
    asyncio.run(migrate(outbox))
    with psycopg.connect(url) as connection:
        first = outbox.put(connection, "pay", {"card": CARD, "n": 1}, key="k", unique="once")
        connection.commit()
        again = outbox.put(connection, "pay", {"n": 1, "card": CARD}, key="k", unique="once")
        assert again == first
        outbox.put(connection, [NewRecord("pay", {"card": CARD}, "k")])
        connection.commit()
        with pytest.raises(UniqueConflict):
            outbox.put(connection, "pay", {"card": CARD, "n": 2}, unique="once")
    where = f"{url}{'&' if '?' in url else '?'}outbox=codecs"
    asyncio.run(check_views(where))
