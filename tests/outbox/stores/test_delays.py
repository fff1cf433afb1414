"""What every store of an outbox does: the suite. Delayed records, `unique`, replays."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from pollwise.errors import OutboxError, UniqueConflict
from pollwise.outbox import Outbox
from pollwise.outbox.records import KeySettlement, NewRecord
from pollwise.runtime.hints import Hint
from tests.outbox.stores.benches import STORES, StoreBench, bench_of
from tests.outbox.stores.test_stores import by_key, claim, ids, payloads, put
from tests.outbox.stores.test_views import counts, kill


@pytest.fixture(params=STORES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> StoreBench:
    return bench_of(request.param, request, tmp_path)


def test_a_delayed_record_holds_up_nobody_and_then_takes_its_place(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        now = bench.clock.epoch()
        at = datetime.fromtimestamp(now + 20, UTC)
        reminder, alone = await store.put(
            [NewRecord("e", "later", "a", delay="10s"), NewRecord("e", "alone", at=at)]
        )
        await put(store, "a", "a")
        [held] = await claim(store)
        assert payloads(held) == [0, 1]
        shown = {each.record.id: each for each in await store.records("delayed")}
        assert sorted(shown) == sorted([reminder, alone])
        assert (shown[reminder].since, shown[alone].since) == (now + 10, now + 20)
        assert shown[reminder].why == "its time"
        assert counts(await store.stats()) == {"leased": 1, "ready": 1}
        assert (await store.stats()).delayed == 2
        await bench.elapse(10)
        assert await claim(store) == [], "its key is held"
        await store.settle([KeySettlement(held, 1)])
        [held] = await claim(store)
        assert payloads(held) == ["later", 1], "before what is not handled yet"
        assert held.records[0].record.created_at == now + 10
        assert ids(held)[0] == reminder
        await bench.elapse(10)
        assert payloads((await by_key(store))[None]) == ["alone"]

    bench.run(main())


def test_a_pause_ends_when_a_delay_is_over(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await store.put(NewRecord("e", 1, "a", delay=10))
        hint = Hint()
        store.hints().join(hint)
        assert await claim(store) == []
        store.hints().asleep(hint)
        began = bench.clock.now()
        assert await hint.wait(60)
        assert bench.clock.now() - began == pytest.approx(10, abs=0.1)
        assert len(await claim(store)) == 1

    bench.run(main())


def test_a_delayed_record_does_not_pass_a_dead_one(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await store.put(NewRecord("e", "later", "a", delay=10))
        await put(store, "a")
        await kill(store, "a")
        await bench.elapse(10)
        assert await claim(store) == []
        await store.retry()
        [held] = await claim(store)
        assert payloads(held) == ["later", 0]

    bench.run(main())


def test_a_moment_in_the_past_is_now(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await store.put(NewRecord("e", 1, at=5.0))
        [held] = await claim(store)
        assert held.records[0].record.created_at == bench.clock.epoch()

    bench.run(main())


@pytest.mark.parametrize("keep", [None, "1h"])
def test_a_unique_is_taken_while_its_record_is_there(bench: StoreBench, keep: str | None) -> None:
    async def main() -> None:
        store = await bench.store(keep=keep)
        once = NewRecord("paid", {"a": 1, "b": 2}, "k", unique="order-17")
        first, again, other = await store.put(
            [once, NewRecord("paid", {"b": 2, "a": 1}, unique="order-17"), NewRecord("e")]
        )
        assert first == again != other
        assert await store.put([NewRecord("e", 5), once]) != [first, first]
        assert len(await store.records(kind="paid")) == 1
        before = len(await store.records())
        for clash in (NewRecord("paid", 3, unique="order-17"), NewRecord("e", unique="order-17")):
            with pytest.raises(UniqueConflict, match=r"order-17.*nothing was put"):
                await store.put([NewRecord("e", 6), clash])
        with pytest.raises(UniqueConflict, match="of this put"):
            await store.put([NewRecord("e", 1, unique="x"), NewRecord("e", 2, unique="x")])
        assert len(await store.records()) == before
        claims = await claim(store)
        await store.settle([KeySettlement(each, 1) for each in claims])
        [second] = await store.put(once)
        assert (second == first) is (keep is not None)

    bench.run(main())


def test_kept_records_are_replayed_in_order(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store(keep="1d")
        made = await put(store, *"aab", None, kind="one")
        await bench.elapse(100)
        await put(store, "a", kind="two")
        claims = await claim(store)
        await store.settle([KeySettlement(each, len(each.records)) for each in claims])
        await put(store, "a", kind="new")
        now = bench.clock.epoch()
        for chosen, count in (
            ({}, 5), ({"kind": "one"}, 4), ({"key": "a"}, 3), ({"until": now}, 4),
            ({"since": now, "kind": "one"}, 0),
            ({"since": datetime.fromtimestamp(now, UTC) - timedelta(seconds=1)}, 1),
        ):  # fmt: skip
            assert await store.replay(**chosen, dry_run=True) == count
        assert counts(await store.stats()) == {"done": 5, "ready": 1}
        assert await store.replay(kind="one") == 4
        found = await by_key(store)
        assert payloads(found["a"]) == [0, 1, 0], "old ones first, the one of kind two is done"
        assert ids(found["a"])[:2] == made[:2]
        assert ids(found[None]) == made[3:]
        assert found["a"].records[0].progress == ""
        await store.settle([KeySettlement(each, len(each.records)) for each in found.values()])
        assert counts(await store.stats()) == {"done": 6}

    bench.run(main())


def test_a_thousand_kept_records_are_replayed_once_each(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store(keep="1d")
        await put(store, *[f"k{n % 50}" for n in range(2500)])
        for again in range(2):
            seen: list[object] = []
            while claims := await claim(store):
                seen += [held.record.payload for each in claims for held in each.records]
                await store.settle([KeySettlement(each, len(each.records)) for each in claims])
            assert sorted(map(int, map(str, seen))) == list(range(2500))
            assert await store.replay(until=bench.clock.epoch() + 1) == 2500, again

    bench.run(main())


@pytest.mark.parametrize("more", [{"delay": "1s", "at": 5}, {"unique": ""}, {"delay": -1}])
def test_what_makes_no_sense_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(OutboxError):
        NewRecord("e", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_put_takes_them_in_the_users_transaction(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bench = bench_of(store, request, tmp_path)

    async def main() -> None:
        made = await bench.store()
        outbox = Outbox(made)
        dsn = str(getattr(made, "path", ""))
        with (
            sqlite3.connect(dsn)
            if store == "sqlite"
            else psycopg.connect(request.getfixturevalue("postgres").dsn())
        ) as connection:
            [first] = outbox.put(connection, "e", 1, key="k", delay="1h", unique="u")
            assert outbox.put(connection, "e", 1, unique="u") == [first]
            with pytest.raises(UniqueConflict):
                outbox.put(connection, "e", 2, unique="u")
            with pytest.raises(OutboxError, match="belong to a kind"):
                outbox.put(connection, NewRecord("e"), unique="u")
        [info] = await made.records("delayed")
        assert (info.record.id, info.record.key) == (first, "k")

    bench.run(main())
