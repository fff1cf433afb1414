"""Relays with lanes: each lane handles every record at its own pace, in the order of the keys."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pollwise import Retry
from pollwise.errors import HandlerError
from pollwise.outbox.records import KeySettlement, Record
from pollwise.runtime.events import (
    KeyBlocked,
    OutboxMeasured,
    RecordDead,
    RecordHandled,
    RecordRetried,
)
from tests.outbox.relays import Bench


def test_a_lane_that_fails_does_not_hold_up_the_others() -> None:
    """The first record of a key fails in one lane: the other lane has all of them at once."""
    bench = Bench(keep="1h")

    async def main() -> None:
        outbox = bench.outbox()
        broken = True

        @outbox.handle("*", lane="billing", retry=Retry.fixed("1s", attempts=3))
        async def bill(record: Record) -> None:
            if broken:
                raise OSError("billing is down")
            bench.calls.append(("bill", record.payload))

        outbox.handle("*")(bench.recorder("publish"))
        await bench.put(30)
        async with outbox.running():
            await bench.clock.advance(10)
            assert bench.payloads("publish") == list(range(30))
            assert bench.payloads("bill") == []
            stats = await bench.store.stats()
            assert (stats.lanes["billing"].dead, stats.lanes["billing"].behind) == (1, 29)
            assert stats.lanes["default"].ready == stats.lanes["default"].dead == 0
            assert stats.done == 0, "no record is through all its lanes"
            [dead] = await bench.store.records("dead")
            assert (dead.lane, dead.error) == ("billing", "bill: OSError: billing is down")
            assert {event.lane for event in bench.events(RecordRetried)} == {"billing"}
            assert [event.lane for event in bench.events(RecordDead)] == ["billing"]
            assert [event.lane for event in bench.events(KeyBlocked)] == ["billing"]
            assert {event.lane for event in bench.events(RecordHandled)} == {"default"}
            broken = False
            assert await bench.store.retry(lane="billing") == 1
            await bench.clock.advance(60)
            assert bench.payloads("bill") == list(range(30))
            assert bench.payloads("publish") == list(range(30)), "once"
            assert (await bench.store.stats()).done == 30
            measured = {event.lane: event for event in bench.events(OutboxMeasured)}
            assert sorted(measured) == ["", "billing", "default"]

    bench.run(main())


def test_a_lane_that_hangs_leaves_the_others_their_places() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox(concurrency=4)

        @outbox.handle("*", lane="hangs")
        async def hang(record: Record) -> None:
            bench.calls.append(("hang", record.payload))
            await asyncio.Event().wait()

        outbox.handle("*", lane="quick")(bench.recorder("quick", 0.1))
        for key in range(20):
            await bench.put(5, key=f"k{key}")
        async with outbox.running():
            await bench.clock.advance(30)
            assert sorted(bench.payloads("quick")) == sorted([0, 1, 2, 3, 4] * 20)
            assert len(bench.payloads("hang")) == 2, "half of the places"
            outbox.stop()
            outbox.stop()

    bench.run(main())


def test_a_new_lane_takes_up_what_is_in_the_outbox() -> None:
    """Handlers that were done with a record before it had lanes are not called again."""
    bench = Bench()

    async def main() -> None:
        before = bench.outbox(relay="before")

        @before.handle("*", name="bill", retry=Retry.fixed("5s", attempts=9))
        async def down(record: Record) -> None:
            raise OSError("down")

        before.handle("*")(bench.recorder("publish"))
        await bench.put(3)
        async with before.running():
            await bench.clock.advance(1)
        assert bench.payloads("publish") == [0], "the first one fails, and its key waits"
        after = bench.outbox(relay="after")
        after.handle("*", lane="billing")(bench.recorder("bill"))
        after.handle("*")(bench.recorder("publish"))
        async with after.running():
            await bench.clock.advance(20)
        assert bench.payloads("publish") == [0, 1, 2]
        assert bench.payloads("bill") == [0, 1, 2]
        assert await bench.store.records() == []

    bench.run(main())


def test_when_a_lane_is_removed_its_records_are_still_handled() -> None:
    """By the handlers they were meant for, in whatever lane those are now. Then it is gone."""
    bench = Bench()

    async def main() -> None:
        before = bench.outbox(relay="before")

        @before.handle("*", name="bill", lane="billing", retry=Retry.fixed("30s", attempts=9))
        async def down(record: Record) -> None:
            raise OSError("down")

        before.handle("*")(bench.recorder("publish"))
        await bench.put(3)
        async with before.running():
            await bench.clock.advance(5)
        assert bench.payloads("publish") == [0, 1, 2]
        after = bench.outbox(relay="after")
        after.handle("*")(bench.recorder("bill"))
        after.handle("*")(bench.recorder("publish"))
        await bench.put(1, key="k")
        async with after.running():
            await bench.clock.advance(120)
            assert sorted(bench.payloads("bill")) == [0, 0, 1, 2]
            assert bench.payloads("publish") == [0, 1, 2, 0]
            assert await bench.store._read_lanes() == ()
            await bench.put(1, key="k")
            await bench.clock.advance(10)
        assert bench.payloads("bill")[-1] == 0
        assert await bench.store._read_lanes() == (), "without lanes, nothing is copied"

    bench.run(main())


def test_a_copy_whose_handler_is_gone_is_dead_after_a_while() -> None:
    bench = Bench()

    async def main() -> None:
        await bench.put(1)
        [claim] = await bench.store.claim("r", 1, 1, 30)
        lanes = ({"billing": '{"bill":{"a":0}}'},)
        await bench.store.settle([KeySettlement(claim, 1, lanes=lanes)])
        outbox = bench.outbox()
        outbox.handle("*")(bench.recorder("publish"))
        async with outbox.running():
            await bench.clock.advance(1200)
        [dead] = await bench.store.records("dead")
        assert dead.lane == "billing"
        assert "no handler that was in the lane 'billing'" in str(dead.error)
        assert bench.calls == [], "it was not meant for this handler"

    bench.run(main())


def test_a_relay_without_lanes_hands_records_to_them_while_they_are_in_use() -> None:
    """Two releases run beside each other: each key keeps its order in both handlers."""
    bench = Bench()

    async def main() -> None:
        new = bench.outbox(relay="new", records_per_key=1)
        old = bench.outbox(relay="old", records_per_key=1)
        for outbox, lane in ((old, "default"), (new, "billing")):
            outbox.handle("*", lane=lane)(bench.recorder("bill", 0.3))
            outbox.handle("*")(bench.recorder("publish", 0.01))
        await bench.put(20)
        async with new.running():
            await bench.clock.advance(1)
            async with old.running():
                await bench.clock.advance(120)
        assert bench.payloads("publish") == list(range(20))
        assert await bench.store.records() == []

    bench.run(main())


@pytest.mark.parametrize("lane", ["", "a\nb", 3, None])
def test_a_bad_lane_is_refused(lane: Any) -> None:
    outbox = Bench().outbox()
    with pytest.raises(HandlerError, match="lane = "):
        outbox.handle("*", lane=lane)(print)
    assert outbox.handlers == {}
