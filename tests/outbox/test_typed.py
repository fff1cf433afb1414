"""Typed records: what handlers with annotations receive, and what becomes of a misfit."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic
import pytest

from pollwise import NewRecord, Outbox, Record, Retry
from pollwise.errors import HandlerError
from pollwise.outbox.typed import takes_payload
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import RecordDead, RecordFellBack, RecordRetried
from tests.outbox.relays import Bench

if TYPE_CHECKING:
    from somewhere import Missing  # type: ignore[import-not-found]

    from pollwise.outbox import records


class Placed(pydantic.BaseModel):
    number: int
    amount: Decimal


@dataclass
class Shipped:
    number: int


PLACED = Placed(number=17, amount=Decimal("19.90"))


def record(payload: Any) -> Record:
    return Record("1", "default", "order.placed", payload, None, {}, 0.0)


def test_a_handler_gets_what_it_is_annotated_with() -> None:
    item = record({"number": 17, "amount": "19.90"})

    def model(order: Placed) -> Any:
        return order

    def with_record(order: Placed, item: Record) -> Any:
        return order, item

    def record_first(item, order: Placed) -> Any:  # type: ignore[no-untyped-def]
        return order, item

    def by_name(item: Record, *, order: Placed) -> Any:
        return order, item

    def with_default(order: Placed, session: str = "own") -> Any:
        return order, session

    class Callable:
        name = "callable"

        def __call__(self, order: Placed) -> Any:
            return order

    @functools.wraps(model)
    def wrapped(*args: Any) -> Any:
        return model(*args)

    assert takes_payload("x", model)(item) == PLACED
    assert takes_payload("x", wrapped)(item) == PLACED
    assert takes_payload("x", Callable())(item) == PLACED
    assert takes_payload("x", functools.partial(model))(item) == PLACED
    assert takes_payload("x", with_default)(item) == (PLACED, "own")
    for both in (with_record, record_first, by_name):
        assert takes_payload("x", both)(item) == (PLACED, item)
    for hint in (Shipped, dict[str, int]):
        model.__annotations__["order"] = hint
        read = takes_payload("x", model)(record({"number": 17}))
        assert read == (Shipped(17) if hint is Shipped else {"number": 17})


def test_untyped_handlers_stay_as_they_are() -> None:
    def nothing(item):  # type: ignore[no-untyped-def]
        ...

    def the_record(item: Record) -> None: ...
    def anything(item: Any, missing: Missing = None) -> None: ...
    def not_imported(item: records.Record) -> Missing: ...
    def base(item: object) -> None: ...
    def many(*records: Placed) -> None: ...

    for function in (nothing, the_record, anything, not_imported, base, many, print):
        assert takes_payload("x", function) is function


def test_what_cannot_be_a_handler_is_told() -> None:
    def two(one: Placed, other: Shipped) -> None: ...
    def missing(one: Missing) -> None: ...
    def odd(one: Clock) -> None: ...

    with pytest.raises(HandlerError, match="takes one and other, but a record has one payload"):
        takes_payload("x", two)
    with pytest.raises(HandlerError, match=r"annotations of the handler 'x' cannot be read: .*Mis"):
        takes_payload("x", missing)
    with pytest.raises(HandlerError, match="the payload of the handler 'x' cannot be JSON"):
        takes_payload("x", odd)


def test_a_misfit_is_retried_as_another_version_may_take_it_and_holds_up_only_its_key() -> None:
    bench = Bench()
    outbox = bench.outbox()
    got: list[Any] = []

    retry = Retry.fixed("1s", attempts=3)

    @outbox.handle("order.placed", retry=retry)
    async def typed(order: Placed) -> None:
        got.append(order)

    @outbox.handle("order.placed", retry=retry)
    def plain(order: Placed, item: Record) -> None:
        got.append(item.key)

    @outbox.handle(
        "order.paid", retry=retry, fallback=lambda item, error: got.append((item.payload, error))
    )
    async def typed_too(order: Placed) -> None: ...

    async def main() -> None:
        bad = {"number": "a secret", "amount": "19.90"}
        await bench.store.put(
            [
                NewRecord("order.placed", bad, "bad"),
                NewRecord("order.placed", PLACED, "good"),
                NewRecord("order.paid", 7, "paid"),
            ]
        )
        async with outbox.running():
            while len(got) < 3 or not bench.events(RecordDead):
                await bench.clock.sleep(0.1)

    bench.run(main())
    assert PLACED in got
    assert "good" in got
    [dead] = bench.events(RecordDead)
    assert dead.key == "bad"
    assert bench.events(RecordRetried)
    assert "the payload does not fit the handler 'typed': number: Input should be a v" in dead.error
    assert "a secret" not in dead.error
    [fell_back] = bench.events(RecordFellBack)
    assert (fell_back.attempt, fell_back.key) == (3, "paid")
    assert any(isinstance(each, tuple) and each[0] == 7 for each in got)


@pytest.mark.parametrize("typed", [PLACED, Shipped(17), {"at": Decimal("1.5")}])
def test_a_writer_puts_the_json(tmp_path: Path, typed: Any) -> None:
    outbox = Outbox(f"sqlite:///{tmp_path / 'shop.db'}")

    async def migrate() -> None:
        await outbox.store.migrate()
        await outbox.close()

    asyncio.run(migrate())
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        outbox.put(connection, "a", typed)
        outbox.put(connection, "a", lambda: typed)
        outbox.put(connection, [NewRecord("a", typed, unique="u"), NewRecord("b", [typed])])
        outbox.put(connection, "a", typed, unique="u")
        rows = connection.execute("SELECT payload FROM pollwise_outbox ORDER BY 1").fetchall()
    connection.close()
    texts = {text for [text] in rows}
    one = NewRecord("a", typed).encoded
    assert texts == {one, f"[{one}]"}
    assert len(rows) == 4
