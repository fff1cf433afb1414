"""What an outbox's statements cost on SQLite: an index for each, and no growth with the backlog.

Cost is counted in steps of SQLite's virtual machine, so that the tests do not depend on the
machine they run on.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pollwise.outbox.records import KeySettlement, NewRecord
from pollwise.outbox.stores.sqlite.calls import ROWS_MAX, STATEMENTS
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.runtime.clock import VirtualClock
from tests.support.sqlite_cost import Meter, plan_of


@pytest.mark.parametrize("name", STATEMENTS)
def test_statements_use_an_index(name: str) -> None:
    plan = plan_of("pollwise.outbox.stores.sqlite", STATEMENTS[name])
    scans = [step for step in plan if re.search(r"SCAN (pollwise_outbox\w*|r|k|b)\b", step)]
    assert not scans, f"{name} reads a whole table: {plan}"


Backlog = Callable[[SqliteOutboxStore, int], Awaitable[Any]]


async def put(store: SqliteOutboxStore, records: list[NewRecord]) -> None:
    for start in range(0, len(records), 10_000):
        await store.put(records[start : start + 10_000])


async def settle_in(store: SqliteOutboxStore) -> None:
    """Let claims come by all that is new, as they do in the course of time."""
    while (await store._call(store._calls.new_and_due))[0]:
        claims = await store.claim("r", 1000, 1, "30s")
        await store.settle([KeySettlement(claim, 0, "retry", 1e6) for claim in claims])


async def behind_a_blocked_key(store: SqliteOutboxStore, count: int) -> None:
    await put(store, [NewRecord("e", n, "blocked") for n in range(count)])
    [claim] = await store.claim("r", 1, 1, "30s")
    await store.settle([KeySettlement(claim, 0, "dead", error="no")])
    await settle_in(store)


async def in_keys_that_wait(store: SqliteOutboxStore, count: int) -> None:
    await put(store, [NewRecord("e", n, f"k{n}") for n in range(count)])
    await settle_in(store)


async def dead(store: SqliteOutboxStore, count: int) -> None:
    await put(store, [NewRecord("e", n) for n in range(count)])
    while claims := await store.claim("r", 1000, 1, "30s"):
        await store.settle([KeySettlement(claim, 0, "dead", error="no") for claim in claims])


async def kept(store: SqliteOutboxStore, count: int) -> None:
    await put(store, [NewRecord("e", n, "kept") for n in range(count)])
    while claims := await store.claim("r", 1000, 1000, "30s"):
        await store.settle([KeySettlement(claim, len(claim.records)) for claim in claims])


async def of_another_outbox(store: SqliteOutboxStore, count: int) -> None:
    other = SqliteOutboxStore(store.path, "other", clock=store.clock, watch=0)
    await put(other, [NewRecord("e", n, f"k{n % 7}") for n in range(count)])
    await other.close()


async def steps_of(path: Path, backlog: Backlog, count: int, clock: VirtualClock) -> list[int]:
    """The steps of an empty claim, a put, a claim and a settlement behind such a backlog."""
    store = SqliteOutboxStore(path, clock=clock, watch=0, keep="1h")
    await store.migrate()
    await backlog(store, count)
    meter, found = Meter(), []
    with meter.reading(store._calls.connect()):
        assert await store.claim("r", 10, 10, "30s") == []
    found.append(meter.steps)
    with meter.reading(store._calls.connect()):
        await store.put([NewRecord("e", 0, "mine"), NewRecord("e", 0)])
    found.append(meter.steps)
    with meter.reading(store._calls.connect()):
        claims = await store.claim("r", 10, 10, "30s")
    found.append(meter.steps)
    assert len(claims) == 2
    with meter.reading(store._calls.connect()):
        await store.settle([KeySettlement(claim, 1) for claim in claims])
    found.append(meter.steps)
    await store.close()
    return found


@pytest.mark.parametrize(
    "backlog", [behind_a_blocked_key, in_keys_that_wait, dead, kept, of_another_outbox]
)
def test_costs_do_not_grow_with_what_cannot_be_claimed(tmp_path: Path, backlog: Backlog) -> None:
    async def main(clock: VirtualClock) -> None:
        few = await steps_of(tmp_path / "few.db", backlog, 100, clock)
        many = await steps_of(tmp_path / "many.db", backlog, 10_000, clock)
        assert all(b < a * 1.5 + 100 for a, b in zip(few, many, strict=True)), (few, many)

    clock = VirtualClock()
    clock.run(main(clock))


def test_a_claim_comes_by_so_many_new_records_and_no_more(tmp_path: Path) -> None:
    """A flood of one key is worked off in bounded turns, so that writers have theirs."""

    async def main(clock: VirtualClock) -> None:
        store = SqliteOutboxStore(tmp_path / "shop.db", clock=clock, watch=0)
        await store.migrate()
        flood = 3 * ROWS_MAX
        await put(store, [NewRecord("e", n, "flood") for n in range(flood)])
        await store.put(NewRecord("e", "late", "other"))
        meter, turns = Meter(), 0
        claims: list[Any] = []
        while len(claims) < 2:
            with meter.reading(store._calls.connect()):
                claims += await store.claim("r", 100, 1, "30s")
            turns += 1
            assert meter.steps < 100 * ROWS_MAX, "one turn was a long one"
        assert turns == 4
        assert [claim.records[0].record.payload for claim in claims] == [0, "late"]
        await store.close()

    clock = VirtualClock()
    clock.run(main(clock))
