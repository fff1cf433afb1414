"""Relays write what they did, minute by minute, with their announcements."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pollwise.core.retry import Retry
from pollwise.errors import ConfigError, Reject, SchemaError, Snooze
from pollwise.outbox.records import NewRecord, Record, writer_of
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.runtime.events import ChoreFailed, PollFinished
from pollwise.runtime.rollups import Histogram, HistoryPoint, by_kind, merged
from pollwise.runtime.rollups.rows import BY_WORKER, HistoryRow, encoded
from tests.outbox.relays import Bench
from tests.outbox.stores.benches import STORES, StoreBench, bench_of

HANDLERS = {"publish": ["*"]}
HOUR = 3600.0


def row(relay: str, at: float, done: int) -> HistoryRow:
    point = HistoryPoint(at, kind="paid", done=done, waits=Histogram.of([0.5]))
    polls = HistoryPoint(at, polls=2, worker_seconds=60.0)
    return HistoryRow(BY_WORKER, int(at), writer_of(relay), encoded([polls, point]))


@pytest.fixture(params=STORES)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> StoreBench:
    return bench_of(request.param, request, tmp_path)


def test_history_in_every_store(stores: StoreBench) -> None:
    async def main() -> None:
        store, other = await stores.store(), await stores.store()
        now = stores.clock.epoch() // 60 * 60
        times = (now, now - 3 * HOUR, (now - 8 * 86400) // HOUR * HOUR)
        for relay in ("a#1", "b ☃#2"):
            rows = [row(relay, at, 1) for at in times]
            await store.announce_handlers(relay, HANDLERS, 0.0, [row(relay, now, 9)])
            await other.announce_handlers(relay, HANDLERS, 0.0, rows)
        assert [each.relay for each in await store.relays()] == ["a#1", "b ☃#2"]
        for _ in range(3):
            await store.fold_history()
            await other.fold_history()
        points = await store.history("30d", by="minute")
        assert [(each.at, each.done) for each in points if each.kind] == [
            (at, 2) for at in reversed(times)
        ]
        assert by_kind(points)[""].polls == 12
        assert merged(points).waits == Histogram.of([0.5] * 6)
        [mine] = await other.history("1h", ["paid"], worker="b ☃")
        assert mine.done == 1
        await store.announce_handlers("a#1", {}, 1.0, [row("a#1", now + 60, 5)])
        assert merged(await other.history("1h")).done == 7, "a relay that leaves writes the rest"
        with pytest.raises(ConfigError, match="not one of"):
            await store.announce_handlers("a#1", HANDLERS, 0.0, [row("b#1", now, 1)])

    stores.run(main())


def test_what_a_relay_did() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox(relay="r")

        @outbox.handle("*", retry=Retry.fixed("1s", attempts=2))
        async def publish(record: Record) -> None:
            await bench.clock.sleep(0.5)
            if record.payload == "fail" or (record.payload == "once" and record.attempt == 1):
                raise ValueError("no")
            if record.payload == "reject":
                raise Reject("no")
            if record.payload == "snooze" and not snoozed:
                snoozed.append(record.id)
                raise Snooze("1s")

        snoozed: list[str] = []
        for payload in ("good", "good", "fail", "once", "reject", "snooze"):
            await bench.store.put(NewRecord("paid", payload))
        async with outbox.running():
            await bench.clock.advance(200)
        kinds = by_kind(await bench.store.history("1h", worker="r"))
        paid, polls = kinds["paid"], kinds[""]
        assert (paid.done, paid.failed, paid.dead) == (4, 4, 2)
        assert paid.found == 9
        assert paid.waits.count == 6, "retries did not wait for a poll"
        assert paid.durations.mean == pytest.approx(0.5, abs=0.01)
        assert polls.polls == len(bench.events(PollFinished))
        assert polls.worker_seconds == pytest.approx(200, abs=10)

    bench.run(main())


def test_an_outbox_that_is_not_migrated_yet(tmp_path: Path) -> None:
    """A relay runs on tables without the history, and says once that it keeps none."""
    bench, path = Bench(), tmp_path / "shop.db"

    async def main() -> None:
        async with SqliteOutboxStore(path, clock=bench.clock, watch=0) as store:
            await store.migrate()
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DROP TABLE pollwise_outbox_history")
            connection.execute("DROP INDEX pollwise_outbox_dead")
            connection.execute("DROP INDEX pollwise_outbox_keys_blocked")
            connection.execute("DELETE FROM pollwise_outbox_schema WHERE version >= 3")
        async with SqliteOutboxStore(path, clock=bench.clock, watch=0) as store:
            outbox = bench.outbox(store)
            outbox.handle("*")(bench.recorder("publish"))
            await store.put(NewRecord("paid", 1))
            async with outbox.running():
                await bench.clock.advance(3 * HOUR)
            assert bench.payloads("publish") == [1]
            assert [event.chore for event in bench.events(ChoreFailed)] == ["history"]
            with pytest.raises(SchemaError):
                await store.history()
            assert await store.migrate() == [3, 4]
            assert await store.history() == []

    bench.run(main())
