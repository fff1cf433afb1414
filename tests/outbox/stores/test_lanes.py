"""What every store of an outbox does: the suite. Lanes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollwise.errors import ConfigError
from pollwise.outbox.records import KeyClaim, KeySettlement, NewRecord
from pollwise.outbox.stores.base import OutboxStore
from tests.outbox.stores.benches import STORES, StoreBench, bench_of
from tests.outbox.stores.test_stores import claim, ids, payloads, put
from tests.outbox.stores.test_views import counts

LANES = {"mail": "m", "bill": "b"}


@pytest.fixture(params=STORES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> StoreBench:
    return bench_of(request.param, request, tmp_path)


async def fan_out(store: OutboxStore) -> None:
    """Hand all records that can be claimed to both lanes."""
    claims = [each for each in await claim(store) if not each.lane]
    ends = [KeySettlement(c, len(c.records), lanes=(LANES,) * len(c.records)) for c in claims]
    assert await store.settle(ends) == []


async def by_lane(store: OutboxStore) -> dict[tuple[str, str | None], KeyClaim]:
    found = [*await claim(store), *await claim(store)]  # the first reads the lanes
    return {(each.lane, each.key): each for each in found}


async def done(store: OutboxStore, claims: list[KeyClaim]) -> None:
    assert await store.settle([KeySettlement(c, len(c.records)) for c in claims]) == []


def test_a_record_goes_through_each_lane_by_itself(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        made = await put(store, "a", "a", None)
        assert await store._read_lanes() == ()
        await fan_out(store)
        claims = await by_lane(store)
        assert sorted(claims, key=str) == sorted(
            [("mail", "a"), ("bill", "a"), ("mail", None), ("bill", None)], key=str
        )
        for lane in ("mail", "bill"):
            assert ids(claims[lane, "a"]) == made[:2], "under the ids of the records"
            assert payloads(claims[lane, "a"]) == [0, 1]
            assert ids(claims[lane, None]) == made[2:]
            held = claims[lane, "a"].records[0]
            assert (held.progress, held.record.key) == (LANES[lane], "a")
        assert len({each.name for each in claims.values()}) == 4
        await store.settle([KeySettlement(claims["mail", "a"], 0, "retry", delay=60.0)])
        await done(store, [claims["bill", "a"], claims["bill", None]])
        await put(store, "a")
        await fan_out(store)
        again = await by_lane(store)
        assert list(again) == [("bill", "a")], "mail waits, bill goes on"
        await done(store, [again["bill", "a"], claims["mail", None]])
        await bench.elapse(60)
        last = await by_lane(store)
        assert payloads(last["mail", "a"]) == [0, 1, 0]
        await done(store, list(last.values()))
        assert await store.records() == []
        assert counts(await store.stats()) == {}

    bench.run(main())


@pytest.mark.parametrize("keep", [None, "1h"])
def test_a_record_is_done_when_all_its_lanes_are(bench: StoreBench, keep: str | None) -> None:
    async def main() -> None:
        store = await bench.store(keep=keep)
        [first] = await put(store, "a")
        await fan_out(store)
        claims = await by_lane(store)
        await done(store, [claims["mail", "a"]])
        [left] = await store.records()
        assert (left.record.id, left.lane, left.state) == (first, "bill", "leased")
        await done(store, [claims["bill", "a"]])
        kept = await store.records()
        assert [(each.record.id, each.lane, each.state) for each in kept] == (
            [(first, "", "done")] if keep else []
        )
        await bench.elapse(3601)
        assert await store.prune() == len(kept)

    bench.run(main())


def test_a_dead_copy_blocks_its_lane_only(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        first, second = await put(store, "a", "a")
        await fan_out(store)
        claims = await by_lane(store)
        end = KeySettlement(claims["mail", "a"], 0, "dead", error="bad", progress="P")
        await store.settle([end, KeySettlement(claims["bill", "a"], 1)])
        assert list(await by_lane(store)) == [("bill", "a")]
        stats = await store.stats()
        assert counts(stats.lanes["mail"]) == {
            "ready": 1, "dead": 1, "keys_blocked": 1, "behind": 1,
        }  # fmt: skip
        assert counts(stats.lanes["bill"]) == {"leased": 1}
        assert counts(stats) == {
            "ready": 1, "leased": 1, "dead": 1, "keys_blocked": 1, "behind": 1,
        }  # fmt: skip
        [blocked] = await store.blocked()
        assert (blocked.key, blocked.lane, blocked.record_id) == ("a", "mail", first)
        [dead] = await store.records("dead")
        assert (dead.record.id, dead.lane, dead.error) == (first, "mail", "bad")
        [waits] = await store.records("ready")
        assert (waits.record.id, waits.why) == (second, f"record {first} of its key: bad")
        assert [each.lane for each in await store.get(first)] == ["mail"]
        with pytest.raises(ConfigError, match="it has: bill, mail"):
            await store.retry(lane="post")
        assert await store.retry([first], lane="bill") == 0
        assert await store.retry([first], lane="mail") == 1
        [again] = (await by_lane(store)).values()
        assert (again.lane, ids(again)) == ("mail", [first, second])
        assert (again.records[0].progress, again.records[0].retried) == ("P", True)

    bench.run(main())


def test_dropping_the_last_copy_completes_the_record(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store(keep="1h")
        [first] = await store.put(NewRecord("e", 0, "a", unique="u"))
        await fan_out(store)
        claims = await by_lane(store)
        await done(store, [claims["bill", "a"]])
        await store.settle([KeySettlement(claims["mail", "a"], 0, "dead", error="bad")])
        assert await store.put(NewRecord("e", 0, "a", unique="u")) == [first]
        assert await store.drop(keys=["a"]) == 1
        assert [(each.record.id, each.state) for each in await store.records()] == [(first, "done")]

    bench.run(main())


def test_lost_claims_hand_nothing_to_lanes(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a", "b")
        old = await claim(store)
        await bench.elapse(31)
        [new] = await store.claim("other", 1, 1, 30)
        late = [KeySettlement(each, 1, lanes=(LANES,)) for each in old]
        assert [each.key for each in await store.settle(late)] == [new.key]
        shown = [(each.record.key, each.lane) for each in await store.records()]
        free = "b" if new.key == "a" else "a"
        assert sorted(shown) == sorted([(new.key, ""), (free, "bill"), (free, "mail")])
        assert await store.settle(late) == old, "once only"
        assert len(await store.records()) == 3

    bench.run(main())


def test_a_lane_is_forgotten_when_it_is_empty(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a")
        await fan_out(store)
        claims = await by_lane(store)
        await done(store, [claims["bill", "a"]])
        await store.forget_lanes([])
        assert await store._read_lanes() == ("mail",)
        await store.settle([KeySettlement(claims["mail", "a"], 0, "dead", error="bad")])
        await store.forget_lanes([])
        assert await store._read_lanes() == ("mail",), "for its dead record"
        await store.drop()
        await store.forget_lanes(["mail"])
        assert await store._read_lanes() == ("mail",), "it is in use"
        assert await claim(store) == []
        await store.forget_lanes([])
        assert await claim(store) == []
        assert store.lanes == ()

    bench.run(main())


def test_a_claim_is_divided_among_the_lanes(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, *[f"k{n}" for n in range(10)])
        await fan_out(store)
        await put(store, *[f"k{n}" for n in range(10)])
        assert await store.claim("looks", 1, 1, 0.001)
        await bench.elapse(1)
        found = await store.claim("r", 9, 1, 30)
        assert sorted(each.lane for each in found) == ["", "", "", *["bill"] * 3, *["mail"] * 3]
        found = await store.claim("r", 100, 1, 30, {"mail": 2})
        lanes = [each.lane for each in found]
        assert (lanes.count(""), lanes.count("bill"), lanes.count("mail")) == (7, 7, 2)
        assert named_lanes(await store.renew(found, 30)) == []

    bench.run(main())


def named_lanes(claims: list[KeyClaim]) -> list[str]:
    return [each.lane for each in claims]


def test_settlements_for_lanes_are_checked(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a")
        [held] = await claim(store)
        with pytest.raises(ConfigError, match="2 entries for 1 completed"):
            KeySettlement(held, 1, lanes=(LANES, LANES))

    bench.run(main())
