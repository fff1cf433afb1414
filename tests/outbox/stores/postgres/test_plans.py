"""What the statements of an outbox read does not grow with its backlog, whatever statistics say.

Each is called with a batch while few and while many records and keys are in each state.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from pollwise.outbox.records import KeyClaim, KeySettlement, NewRecord, writer_of
from pollwise.outbox.stores import walks
from pollwise.outbox.stores.postgres.store import PostgresOutboxStore
from pollwise.runtime.rollups.rows import HistoryRange, HistoryRow
from pollwise.storage.postgres.params import numbers, text, texts
from tests.outbox.stores.benches import migrated
from tests.support.servers import Postgres
from tests.support.touched import STATISTICS, Statistics, Touched, analyze, grown, prepare

BATCH = 40
SMALL, LARGE = 300, 3_000
LANES = {"mail": "", "bill": ""}

#: Statements that are not looked at, and why.
APART = {
    **dict.fromkeys(("version", "versions", "may_vacuum", "vacuum", "send"), "upkeep"),
    **dict.fromkeys(("shown", "write_history"), "a part of others"),
    **dict.fromkeys(("list", "list_dead"), "they filter what they read; pages do not"),
    **dict.fromkeys(("replay", "replayable"), "they look at all kept records"),
}
RECORDS = """
INSERT INTO {schema}.outbox_records
    (seq, created_at, since, state, outbox, line, key, kind, payload, "unique", origin)
SELECT s.seq, s.i, {since}, {state}, {outbox},
       {outbox} || chr(31) || coalesce({key}, chr(1) || s.seq), {key}, '{kind}', '1', {unique},
       {origin}
FROM (SELECT nextval('{schema}.outbox_seq') AS seq, i
      FROM generate_series({at}, {to}) AS i OFFSET 0) AS s
"""
KEYS = """
INSERT INTO {schema}.outbox_keys (outbox, line, state, due, first, relay)
SELECT r.outbox, r.line, {state}, {due}, r.seq, 'other'
FROM {schema}.outbox_records AS r WHERE r.kind = '{kind}' ON CONFLICT DO NOTHING
"""
FAR = "1e12 + i"
PLAIN: dict[str, Any] = {
    "since": "i", "state": 0, "outbox": "'q'", "key": "NULL", "unique": "NULL", "origin": "NULL",
}  # fmt: skip
#: Records of all states.
WAITING: list[dict[str, Any]] = [
    {"kind": "alone", "unique": "'waits ' || i"},
    {"kind": "keyed", "key": "'keyed ' || i"},
    {"kind": "retry", "state": 1, "key": "'retry ' || i"},
    {"kind": "leased", "state": 1, "key": "'leased ' || i"},
    {"kind": "dead", "state": 2, "key": "'dead ' || i"},
    {"kind": "behind", "state": 1, "key": "'dead ' || i"},
    {"kind": "done", "state": 3, "since": FAR},
    {"kind": "late", "state": 5, "since": FAR, "unique": "'late ' || i"},
    {"kind": "lane", "state": 1, "outbox": "'q' || chr(30) || 'mail'", "key": "'lane ' || i",
     "origin": "1e9 + i"},
    {"kind": "lane dead", "state": 2, "outbox": "'q' || chr(30) || 'mail'", "origin": "1e9 + i"},
]  # fmt: skip
IN_WORK: list[dict[str, Any]] = [
    {"kind": "retry", "state": 2, "due": "1e12"},
    {"kind": "leased", "state": 3, "due": "1e12"},
    {"kind": "dead", "state": 4, "due": "'infinity'"},
    {"kind": "lane", "state": 2, "due": "1e12"},
]
HISTORY = """
INSERT INTO {schema}.outbox_history (outbox, level, at, writer, value)
SELECT 'q', 0, i, 'w' || i % 7, '1' FROM generate_series({at}, {to}) AS i
"""


def fill(schema: str, at: int, to: int) -> list[str]:
    place = {"schema": schema, "at": at, "to": to}
    records = [RECORDS.format_map({**PLAIN, **place, **each}) for each in WAITING]
    keys = [KEYS.format_map({**place, **each}) for each in IN_WORK]
    return [*records, *keys, HISTORY.format_map(place)]


def mixed(claims: list[KeyClaim]) -> list[KeySettlement]:
    ways: list[dict[str, Any]] = [
        {"action": "retry", "delay": 1e6, "error": "x", "progress": "p"},
        {"action": "dead", "error": "x"},
        {"action": "give_back", "progress": "p"},
    ]
    return [KeySettlement(each, 0, **ways[n % 3]) for n, each in enumerate(claims)]


async def handle(store: PostgresOutboxStore, touched: Touched) -> None:
    claims = await store.claim("r", BATCH, 5, "10m")
    assert len(claims) == BATCH
    assert not await store.renew(claims, "10m")
    assert not await store.settle([KeySettlement(each, len(each.records)) for each in claims])
    claims = await store.claim("r", BATCH, 5, "10m")
    with touched.of("mixed"):
        assert not await store.settle(mixed(claims))
    dead = [each.records[0].record.id for each in claims[1::3]]
    assert await store.retry(dead[::2]) == len(dead[::2])
    assert await store.drop(dead[1::2]) == len(dead[1::2])
    claims = await store.claim("r", BATCH, 5, "10m")
    lines = [f"\x01{each.records[0].row}" if each.key is None else each.key for each in claims]
    rows = [each.records[0].row for each in claims]
    params = [text(store.name), texts(lines), numbers(rows)]
    assert await store.database.rows("fates", params)
    assert await store.release(keys=[each.key for each in claims if each.key is not None]) >= 0
    with touched.of("of a relay"):  # looks at all keys
        assert await store.release(relay="r") >= 0


async def handle_lanes(store: PostgresOutboxStore, touched: Touched) -> None:
    claims = [each for each in await store.claim("r", BATCH, 1, "10m") if not each.lane]
    ends = [KeySettlement(c, len(c.records), lanes=(LANES,) * len(c.records)) for c in claims]
    assert not await store.settle(ends)
    with touched.of("with lanes"):
        await store.claim("r", 1, 1, "10m")  # reads the lanes
        found = await store.claim("r", 3 * BATCH, 1, "10m")
        copies = [each for each in found if each.lane]
        assert copies
        assert not await store.settle([KeySettlement(each, 1) for each in copies[::2]])
        await store.renew(copies[1::2], "10m")
        assert not await store.settle(
            [KeySettlement(each, 0, action="dead", error="x") for each in copies[1::2]]
        )
        ids = [each.records[0].record.id for each in copies[1::2]]
        await store.retry(ids[::2])
        await store.drop(ids[1::2])
        await store.forget_lanes(["mail", "bill"])


async def use_the_rest(store: PostgresOutboxStore, touched: Touched, tag: str) -> None:
    records = [NewRecord("kind", n, key=f"{tag} {n}", unique=f"{tag} {n}") for n in range(BATCH)]
    put = await store.put(records)
    assert await store.put(records) == put
    await store.put([NewRecord("kind", n, key=f"{tag} {n}") for n in range(BATCH)])
    await store.get(put[0])
    await store.stats(50)
    await store.blocked(20)
    for state in ("ready", "leased", "waiting", "dead", "done", "delayed", None):
        with touched.of(str(state)):
            await store.page(state, limit=20)
    with touched.of("key"):
        await store.page(key=f"{tag} 1", limit=20)
    await store.prune()
    rows = [HistoryRow(0, 10**9 + n, writer_of("r"), "1") for n in range(BATCH)]
    await store.announce_handlers("r", {"a": ["*"]}, 1.0, rows)
    await store.announce_handlers("r", {"a": ["*"]}, 1.0)
    await store.relays()
    await store._read_history([HistoryRange(0, 10**9, 2 * 10**9, 50)])
    new = [HistoryRow(1, 10**9, "", "1")]
    assert await store._replace_history(rows, new)
    assert await store._replace_history(new, [])


async def use_everything(store: PostgresOutboxStore) -> dict[str, int]:
    """The most that each statement read."""
    await store.database.check()
    touched = Touched(store.database)
    await handle(store, touched)
    await handle_lanes(store, touched)
    await use_the_rest(store, touched, uuid.uuid4().hex)
    assert set(store.database.sql) - touched.called - APART.keys() == set(), "not called here"
    del touched.most["release of a relay"]
    return touched.most


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("server", ["postgres", "postgres_oldest"])
def test_no_statement_reads_more_with_a_backlog(
    server: str,
    statistics: Statistics,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walks, "EXAMINED_MAX", 50)
    monkeypatch.setattr(walks, "LISTED_AT_ONCE", 50)
    monkeypatch.setattr("pollwise.outbox.stores.postgres.store.KEYS_EXAMINED", 50)
    found: Postgres = request.getfixturevalue(server)
    schema = f"outbox_plans_{statistics}"
    dsn = migrated(found.dsn(), schema)
    prepare(found, schema, fill(schema, 1, 100), statistics)

    async def use() -> dict[str, int]:
        options: dict[str, Any] = {"schema": schema, "connections": 1, "timeout": "5m"}
        async with PostgresOutboxStore(dsn, "q", keep="100d", **options) as store:
            return await use_everything(store)

    read = []
    for at, to in ((1, SMALL), (SMALL + 1, LARGE)):
        for statement in fill(schema, at, to):
            found.execute(statement)
        found.execute(f"DELETE FROM {schema}.outbox_lanes")
        if statistics == "fresh":
            analyze(found, schema)
        read.append(asyncio.run(use()))
    # Without statistics, the planner takes an outbox to have few rows, and sorts all for a page.
    # The server makes statistics after 100,000 changes.
    views = ("stats", "walk_") if statistics == "none" else ()
    more = [each for each in grown(*read) if not each.startswith(views)]
    assert not more, "\n".join(more)
