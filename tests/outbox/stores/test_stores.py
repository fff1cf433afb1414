"""What every store of an outbox does: the suite. Putting, claiming, leases, settling."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pollwise.errors import ConfigError, OutboxError, PayloadError
from pollwise.outbox.records import KeyClaim, KeySettlement, NewRecord
from pollwise.outbox.stores.base import OutboxStore
from pollwise.runtime.hints import Hint
from tests.outbox.stores.benches import STORES, StoreBench, bench_of


@pytest.fixture(params=STORES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> StoreBench:
    return bench_of(request.param, request, tmp_path)


def ids(claim: KeyClaim) -> list[str]:
    return [held.record.id for held in claim.records]


def payloads(claim: KeyClaim) -> list[object]:
    return [held.record.payload for held in claim.records]


def named(claims: list[KeyClaim]) -> list[tuple[str, int]]:
    """Which claims these are; stores name them in any order."""
    return sorted((each.name, each.token) for each in claims)


async def put(store: OutboxStore, *keys: str | None, kind: str = "e") -> list[str]:
    """Records of these keys; the payload of each is its place."""
    return await store.put([NewRecord(kind, n, key=key) for n, key in enumerate(keys)])


async def claim(store: OutboxStore, keys: int = 100, per_key: int = 100) -> list[KeyClaim]:
    """In the order of the records; which key comes first is the store's to say."""
    claims = await store.claim("relay", keys, per_key, "30s")
    return sorted(claims, key=lambda each: int(each.records[0].record.id))


async def by_key(store: OutboxStore) -> dict[str | None, KeyClaim]:
    return {each.key: each for each in await claim(store)}


# Putting and claiming


def test_what_is_put_is_claimed_as_it_was_put(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        began = bench.clock.epoch()
        payload = {"id": 17, "what": ["ü", None, 1.5, "\\ \" ' { } \n\t"], "deep": {"a": {}}}
        new = NewRecord("order.placed", payload, "order-17", {"tenant": 'a"b', "trace": "x"})
        [first] = await store.put(new)
        [held] = (await claim(store))[0].records
        record = held.record
        assert (record.id, record.outbox, record.kind) == (first, store.name, "order.placed")
        assert (record.payload, record.key) == (payload, "order-17")
        assert dict(record.headers) == {"tenant": 'a"b', "trace": "x"}
        assert (record.created_at, record.attempt) == (began, 0)
        assert (held.progress, held.retried) == ("", False)

    bench.run(main())


@pytest.mark.parametrize("payload", [None, "", "null", 0, [], {}, "{}", "ü\n"], ids=repr)
def test_any_json_is_a_payload(bench: StoreBench, payload: object) -> None:
    async def main() -> None:
        store = await bench.store()
        await store.put(NewRecord("e", payload))
        [one] = await claim(store)
        assert payloads(one) == [payload]
        assert dict(one.records[0].record.headers) == {}

    bench.run(main())


def test_put_returns_the_ids_in_order(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        assert await store.put([]) == []
        made = await put(store, "a", "b", None, "a")
        assert made == sorted(made, key=int)
        assert len(set(made)) == 4
        found = await store.records()
        assert [info.record.id for info in found] == made
        assert [info.record.key for info in found] == ["a", "b", None, "a"]

    bench.run(main())


def test_an_empty_outbox_has_nothing(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        assert await claim(store) == []
        stats = await store.stats()
        assert (stats.ready, stats.leased, stats.done, stats.oldest_age) == (0, 0, 0, None)
        assert await store.records() == []
        assert await store.blocked() == []

    bench.run(main())


def test_a_run_is_the_first_records_of_a_key(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, *["a", "b"] * 5)
        first = await claim(store, per_key=3)
        assert [(each.key, payloads(each)) for each in first] == [
            ("a", [0, 2, 4]),
            ("b", [1, 3, 5]),
        ]
        assert await claim(store) == [], "their keys are held"
        assert await store.settle([KeySettlement(each, 3) for each in first]) == []
        second = await by_key(store)
        assert payloads(second["a"]) == [6, 8]
        assert payloads(second["b"]) == [7, 9]

    bench.run(main())


def test_a_run_of_large_records_is_short(bench: StoreBench) -> None:
    """A relay that has hundreds of keys to hold could not hold hundreds of long runs."""

    async def main() -> None:
        store = await bench.store()
        await store.put([NewRecord("e", 200_000 * str(n), key="k") for n in range(5)])
        found = []
        while claims := await store.claim("r", 1, 20, "30s"):
            found.append([int(held.record.payload[0]) for held in claims[0].records])
            await store.settle([KeySettlement(claims[0], len(claims[0].records))])
        assert found == [[0, 1], [2, 3], [4]]

    bench.run(main())


def test_a_claim_takes_so_many_keys(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, *[f"k{n}" for n in range(10)], None, None)
        sizes, seen = [], set()
        for _ in range(4):
            claims = await claim(store, keys=4)
            sizes.append(len(claims))
            seen |= {each.name for each in claims}
        assert sizes == [4, 4, 4, 0]
        assert len(seen) == 12

    bench.run(main())


def test_records_without_a_key_are_claimed_by_themselves(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        made = await put(store, None, None, None)
        claims = await claim(store)
        assert [(each.key, ids(each)) for each in claims] == [(None, [each]) for each in made]
        assert await store.settle([KeySettlement(claims[1], 1), KeySettlement(claims[0], 0)]) == []
        assert [ids(each) for each in await claim(store)] == [[made[0]]]

    bench.run(main())


def test_what_comes_behind_a_held_key_waits(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a")
        [held] = await claim(store)
        await put(store, "a", "b")
        assert [each.key for each in await claim(store)] == ["b"]
        await store.settle([KeySettlement(held, 1)])
        assert [each.key for each in await claim(store)] == ["a"]

    bench.run(main())


def test_two_handles_share_an_outbox_and_other_outboxes_are_apart(bench: StoreBench) -> None:
    async def main() -> None:
        one, two = await bench.store(), await bench.store()
        await put(one, "a", "b")
        first, second = await claim(one, keys=1), await claim(two, keys=1)
        assert {first[0].key, second[0].key} == {"a", "b"}
        assert await one.settle([KeySettlement(second[0], 1), KeySettlement(first[0], 1)]) == []
        if one is not two:
            name, bench.name = bench.name, "other"
            other = await bench.store()
            bench.name = name
            before = len(await other.records())
            await put(one, "a")
            assert len(await other.records()) == before

    bench.run(main())


# Leases


def test_a_lease_runs_out_and_the_old_claim_is_fenced_off(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a", None)
        old = await claim(store)
        assert [each.until for each in old] == [bench.clock.epoch() + 30] * 2
        assert [each.lapses for each in old] == [0, 0]
        await bench.elapse(29.9)
        assert await claim(store) == []
        await bench.elapse(0.2)
        new = await claim(store)
        assert [ids(each) for each in new] == [ids(each) for each in old]
        assert [each.lapses for each in new] == [1, 1]
        assert {each.token for each in new}.isdisjoint(each.token for each in old)
        lost = await store.settle([KeySettlement(each, 1) for each in old])
        assert named(lost) == named(old)
        assert named(await store.renew(old, "30s")) == named(old)
        assert (await store.stats()).leased == 2, "nothing of theirs changed"
        assert await store.settle([KeySettlement(each, 1) for each in new]) == []
        assert await store.records() == []

    bench.run(main())


def test_lapses_are_counted_in_a_row(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a")
        for lapses in range(3):
            [held] = await claim(store)
            assert held.lapses == lapses
            await bench.elapse(31)
        [held] = await claim(store)
        await store.settle([KeySettlement(held, 0, "retry")])
        [held] = await claim(store)
        assert held.lapses == 0

    bench.run(main())


def test_a_lease_is_renewed_from_now(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a", "b")
        a, b = await claim(store)
        await bench.elapse(20)
        assert await store.renew([a], "30s") == []
        await bench.elapse(20)
        assert [each.key for each in await claim(store)] == ["b"]
        assert await store.renew([a, b], "30s") == [b]
        assert await store.settle([KeySettlement(a, 1)]) == []

    bench.run(main())


def test_a_late_claim_that_nobody_took_over_still_holds(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a", "b")
        a, b = await claim(store)
        await bench.elapse(31)
        assert await store.settle([KeySettlement(a, 1)]) == []
        assert await store.renew([b], "30s") == []
        assert await claim(store) == []

    bench.run(main())


def test_a_claim_is_settled_once(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a", "a", "b")
        a, b = await claim(store, per_key=1)
        assert await store.settle(
            [KeySettlement(a, 1), KeySettlement(a, 1), KeySettlement(b, 1)]
        ) == [a]
        assert named(await store.settle([KeySettlement(a, 1), KeySettlement(b, 1)])) == named(
            [a, b]
        )
        [again] = await claim(store)
        assert payloads(again) == [1]
        assert await store.settle([KeySettlement(a, 1)]) == [a]
        assert await store.settle([KeySettlement(again, 1)]) == []

    bench.run(main())


def test_a_lost_claim_in_a_batch_does_not_hinder_the_others(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a", "a", "b", "b", "c", "c", "d")
        claims = {each.key: each for each in await claim(store, per_key=2)}
        await store.settle([KeySettlement(claims["a"], 0), KeySettlement(claims["d"], 1)])
        lost = await store.settle(
            [
                KeySettlement(claims["c"], 1, "dead", error="bad"),
                KeySettlement(claims["a"], 2),
                KeySettlement(claims["b"], 1, "retry", delay=5.0, error="later", progress="P"),
                KeySettlement(claims["d"], 0, "dead", error="worse"),
            ]
        )
        assert named(lost) == named([claims["a"], claims["d"]])
        shown = {
            (i.record.key, i.record.payload): (i.state, i.error) for i in await store.records()
        }
        assert shown == {
            ("a", 0): ("ready", None),
            ("a", 1): ("ready", None),
            ("b", 3): ("waiting", "later"),
            ("c", 5): ("dead", "bad"),
        }

    bench.run(main())


# Ends


def test_free_leaves_the_rest_to_be_claimed_at_once(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, *["a"] * 5)
        [held] = await claim(store)
        await store.settle([KeySettlement(held, 2, progress="half")])
        [held] = await claim(store)
        assert payloads(held) == [2, 3, 4]
        assert [each.progress for each in held.records] == ["half", "", ""]

    bench.run(main())


def test_a_retry_waits_and_its_key_with_it(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a", "a", "b")
        claims = await by_key(store)
        end = KeySettlement(claims["a"], 0, "retry", delay=10.0, error="no", progress="1/3")
        await store.settle([end, KeySettlement(claims["b"], 1)])
        await put(store, "a")
        assert await claim(store) == []
        first, *rest = await store.records()
        assert (first.state, first.since) == ("waiting", bench.clock.epoch() + 10)
        assert (first.error, first.progress) == ("no", "1/3")
        assert [each.state for each in rest] == ["ready", "ready"]
        stats = await store.stats()
        assert (stats.ready, stats.waiting, stats.leased) == (2, 1, 0)
        await bench.elapse(10)
        [held] = await claim(store)
        assert payloads(held) == [0, 1, 0]
        assert [each.progress for each in held.records] == ["1/3", "", ""]

    bench.run(main())


def test_progress_is_kept_unless_it_is_given(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a")
        for given, kept in (
            ("one", "one"),
            (None, "one"),
            ("", ""),
            ('{"ü": "\\n"}', '{"ü": "\\n"}'),
        ):
            [held] = await claim(store)
            await store.settle([KeySettlement(held, 0, "retry", progress=given)])
            [info] = await store.records()
            assert info.progress == kept

    bench.run(main())


def test_a_pause_ends_when_a_retry_falls_due(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a")
        [held] = await claim(store)
        await store.settle([KeySettlement(held, 0, "retry", delay=10.0)])
        other = await bench.store()
        hint = Hint()
        other.hints().join(hint)
        assert await claim(other) == []
        other.hints().asleep(hint)
        began = bench.clock.now()
        assert await hint.wait(60)
        assert bench.clock.now() - began == pytest.approx(10, abs=0.1)
        assert len(await claim(other)) == 1

    bench.run(main())


def test_a_pause_ends_when_a_run_leaves_more(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, *["a"] * 5)
        [held] = await claim(store, per_key=2)
        hint = Hint()
        store.hints().join(hint)
        assert await claim(store) == []
        store.hints().asleep(hint)
        waiting = asyncio.ensure_future(hint.wait(20))
        await asyncio.sleep(0)
        await store.settle([KeySettlement(held, 2)])
        assert await waiting
        assert len(await claim(store)) == 1

    bench.run(main())


def test_a_cancelled_claim_claims_nothing(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a", "b", None)
        call = asyncio.ensure_future(claim(store))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert len(await claim(store)) == 3

    bench.run(main())


# What is refused


def test_bad_input_is_refused_before_anything_changes(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store(max_payload_bytes=100)
        for bad in ({"keys": 0}, {"per_key": 0}, {"keys": True}, {"per_key": 1001}):
            with pytest.raises(ConfigError, match="whole number"):
                await claim(store, **bad)
        with pytest.raises(ConfigError):
            await store.claim("relay", 1, 1, 0)
        with pytest.raises(PayloadError, match="max_payload_bytes"):
            await store.put([NewRecord("e"), NewRecord("e", "x" * 100)])
        with pytest.raises(OutboxError, match="NewRecord"):
            await store.put(["order.placed"])  # type: ignore[list-item]
        with pytest.raises(ConfigError, match="state"):
            await store.records("blocked")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="not both"):
            await store.retry(["1"], ["a"])
        with pytest.raises(ConfigError, match="after"):
            await store.records(after="nonsense")
        assert await store.retry(["nonsense", "999999"]) == 0
        assert await store.records() == []

    bench.run(main())
