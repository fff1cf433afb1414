"""State that survives: restarts in mid-flight, stores that fail, clocks that are set."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pollwise.errors import ProbeRefused, StoreError, StoreUnavailable
from pollwise.fleet import Fleet, Reading, Target
from pollwise.fleet.stores.base import FleetStore, SavedTarget, SaveExtras
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import ChoreFailed
from pollwise.runtime.jobs import NewJob
from tests.fleet.world import SAME, SetClock, Watch, fleet_for, now, running
from tests.support.kit import Seen, virtually


def restarted(path: Path, *parts: Any) -> None:
    """Run each part under a clock of its own, which begins where the one before ended."""
    epoch = 1_767_225_600.0
    for part in parts:
        clock = VirtualClock(epoch)

        async def main(part: Any = part, clock: VirtualClock = clock) -> float:
            store = SqliteFleetStore(path)
            try:
                await part(clock, store)
            finally:
                await store.close()
            return clock.epoch()

        epoch = clock.run(main())


def test_a_restart_in_mid_flight_keeps_everything(tmp_path: Path) -> None:
    watch, beliefs = Watch(), {}
    was: dict[str, Any] = {}
    down = True

    def answer(target: Target) -> object:
        if target.name == "dead":
            return ProbeRefused("404") if down else SAME
        if target.name == "open":
            return OSError("down") if down else SAME
        if target.name == "busy":
            return str(now())
        return Reading(b"\x00\xff", facts={"status": 200}, validators={"etag": "x"})

    async def flying(target: Target, context: Any) -> Reading:
        if context.last is not None:
            await asyncio.sleep(500)
        return SAME

    def fleet_of(clock: VirtualClock, store: FleetStore) -> Fleet:
        fleet = fleet_for(clock, store=store, grace=0)
        for name in ("busy", "still", "dead", "open", "paused"):
            fleet.add(Target(name, watch.probe(answer)))
        fleet.add(Target("fixed", watch.probe(answer), "100s"))
        fleet.add(Target("flying", flying, timeout="1000s"))
        return fleet

    async def first(clock: VirtualClock, store: FleetStore) -> None:
        fleet = fleet_of(clock, store)
        async with running(fleet):
            fleet.pause("paused")
            while len(watch.at["open"]) < 4:
                await asyncio.sleep(0.5)
            await asyncio.sleep(2)
            assert fleet.target("flying").polling
            was.update({state.name: state for state in fleet.state().target_list})
            beliefs["busy"] = fleet.target("busy").changes_per_second
            assert fleet.target("open").state == "open"

    async def second(clock: VirtualClock, store: FleetStore) -> None:
        fleet = fleet_of(clock, store)
        watch.at.clear()
        async with running(fleet):
            await asyncio.sleep(0.01)
            for name, before in was.items():
                state = fleet.target(name)
                assert state.state == before.state, name
                assert state.failures == before.failures
                assert state.error == before.error
                assert state.paused == before.paused
                assert state.facts == before.facts
                for field in ("next_at", "succeeded_at", "failed_at", "changed_at", "polled_at"):
                    one, other = getattr(state, field), getattr(before, field)
                    assert one == (other if other is None else pytest.approx(other)), (name, field)
            assert fleet.target("busy").changes_per_second == pytest.approx(beliefs["busy"])
            assert fleet.target("dead").permanent
            assert fleet.target("flying").polling, "it is polled again at once: it was due"
            nonlocal down
            down = False
            await asyncio.sleep(100)
            assert fleet.target("open").state == "closed"
            assert fleet.target("dead").state == "dead"
            assert watch.at["paused"] == []
            fixed = clock.epoch() - now() + watch.at["fixed"][0]
            assert fixed == pytest.approx(was["fixed"].next_at)
            await asyncio.sleep(1800)
            assert fleet.target("dead").state == "closed", "rechecked by the new process"

    restarted(tmp_path / "fleet.db", first, second)


def test_an_etag_and_the_reading_are_there_after_a_restart(tmp_path: Path) -> None:
    last: list[Reading | None] = []

    async def probe(target: Target, context: Any) -> Reading:
        last.append(context.last)
        return Reading(b"\x00\xff", validators={"etag": "x"})

    async def part(clock: VirtualClock, store: FleetStore) -> None:
        fleet = fleet_for(clock, store=store)
        fleet.add(Target("t", probe))
        changes: list[Any] = []
        fleet.on_change(changes.append)
        async with running(fleet):
            await asyncio.sleep(11)
        assert changes == []

    restarted(tmp_path / "fleet.db", part, part)
    assert last[0] is None
    assert len(last) >= 2
    assert last[-1] == Reading(b"\x00\xff", validators={"etag": "x"})


def test_a_removed_target_is_forgotten_and_a_fleet_keeps_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"

    async def main(clock: VirtualClock) -> None:
        mine, yours = SqliteFleetStore(path), SqliteFleetStore(path, "yours")
        fleet = fleet_for(clock, store=mine)
        fleet.add(*[Target(name, Watch().probe(), "1s") for name in "abc"])
        async with running(fleet):
            await asyncio.sleep(5)
            fleet.remove("b")
            await asyncio.sleep(5)
            assert {each.name for each in await mine.load()} == {"a", "c"}
            fleet.remove("c")
            fleet.add(Target("c", Watch().probe(), "1s"))
            await asyncio.sleep(5)
        assert {each.name for each in await mine.load()} == {"a", "c"}
        assert await yours.load() == []
        await mine.close()
        await yours.close()
        with pytest.raises(StoreError, match="closed"):
            await mine.load()

    virtually(main)


def test_the_file_of_a_queue_may_hold_a_fleet_too(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def main(clock: VirtualClock) -> None:
        queue, store = SqliteQueue(path, clock=clock, watch=0), SqliteFleetStore(path)
        await queue.stats()
        await store.save([SavedTarget("a", 1.0, more={"reading": {"value": "x"}})])
        assert [each.name for each in await store.load()] == ["a"]
        await queue.put([NewJob("k", {})])
        assert (await queue.stats()).ready == 1
        await queue.close()
        await store.close()

    virtually(main)


def test_a_store_that_cannot_be_opened(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        (tmp_path / "text.db").write_text("this is no database, but long enough to be read as one")
        with pytest.raises(StoreError, match="not a SQLite database"):
            await SqliteFleetStore(tmp_path / "text.db").load()
        fleet = fleet_for(clock, store=SqliteFleetStore(tmp_path / "no" / "fleet.db"))
        with pytest.raises(StoreError, match="does not exist; create it"):
            await fleet.run()

    virtually(main)


class Faulty(FleetStore):
    """Keeps state in memory, counts calls, and fails on demand."""

    def __init__(self) -> None:
        self.name, self.url = "fleet", "memory"
        self.kept: dict[str, SavedTarget] = {}
        self.batches: list[int] = []
        self.fails = False

    async def load(self, names: Sequence[str] | None = None) -> list[SavedTarget]:
        return list(self.kept.values())

    async def save(
        self, batch: Sequence[SavedTarget], extras: SaveExtras | None = None
    ) -> list[str]:
        await asyncio.sleep(0.1)
        if self.fails:
            raise StoreUnavailable("away")
        self.batches.append(len(batch))
        self.kept |= {each.name: each for each in batch}
        return []

    async def remove(self, names: Sequence[str]) -> None:
        for name in names:
            del self.kept[name]

    async def close(self) -> None: ...


def test_writes_are_batched_and_rest_when_nothing_changes() -> None:
    async def main(clock: VirtualClock) -> None:
        store, watch = Faulty(), Watch()
        fleet = fleet_for(clock, store=store)
        fleet.add(*[Target(f"t{n}", watch.probe(), "1h") for n in range(1000)])
        async with running(fleet):
            await asyncio.sleep(3602)
            assert len(store.batches) <= 3602
            # When they are new, after the first poll, and after the one on their grid.
            assert 2900 <= sum(store.batches) <= 3002
            for n in range(1000):
                fleet.pause(f"t{n}")
            await asyncio.sleep(10)
            batches = len(store.batches)
            await asyncio.sleep(3600)
            assert len(store.batches) == batches, "paused, and yet it writes"
        assert all(each.paused for each in store.kept.values())

    virtually(main)


def test_a_new_target_is_polled_soon_and_shows_when_and_a_restart_keeps_its_phase() -> None:
    async def main(clock: VirtualClock) -> None:
        store, watch = Faulty(), Watch()
        at: dict[str, list[float]] = {}
        began = clock.now()
        for lasting in (1.5, 7198.5, 7200.0):
            fleet = fleet_for(clock, store=store)
            fleet.add(*[Target(f"t{n}", watch.probe(), "1h") for n in range(100)])
            async with running(fleet):
                await asyncio.sleep(lasting)
            at = watch.at
            assert all(
                each.due is not None and each.interval == 3600 for each in store.kept.values()
            )
        assert len(at) == 100
        assert all(began <= each[0] <= began + 60 for each in at.values())
        assert max(each[0] for each in at.values()) > began + 30  # spread, not all at once
        for each in at.values():
            gaps = [later - before for before, later in pairwise(each)]
            assert gaps[0] <= 3600
            assert gaps[1:] == pytest.approx([3600.0] * (len(gaps) - 1))

    virtually(main)


def test_a_failing_store_does_not_stop_polls_and_is_written_later() -> None:
    async def main(clock: VirtualClock) -> None:
        store, watch, seen = Faulty(), Watch(), Seen()
        fleet = fleet_for(clock, seen, store=store)
        fleet.add(*[Target(f"t{n}", watch.probe(), "10s") for n in range(10)])
        async with running(fleet):
            store.fails = True
            await asyncio.sleep(100)
            assert all(len(at) == 10 for at in watch.at.values())
            assert any("state is not saved" in each for each in fleet.state().problems)
            assert fleet.state().unsaved == 10
            assert seen.of(ChoreFailed)
            store.fails = False
            await asyncio.sleep(3)
            assert fleet.state().problems == []
        assert len(store.kept) == 10

    virtually(main)


# Clocks that are set


@pytest.mark.parametrize("by", [-86_400.0, -3600.0, -2.0, 2.0, 3600.0, 86_400.0])
def test_an_adjusted_clock_moves_no_poll(by: float) -> None:
    clock = SetClock()
    store = Faulty()

    async def main() -> None:
        watch = Watch()
        fleet = fleet_for(clock, store=store)
        fleet.add(Target("fixed", watch.probe(), "60s"), Target("paced", watch.probe()))
        async with running(fleet):
            await asyncio.sleep(600)
            clock.set(by)
            await asyncio.sleep(600)
            clock.set(-by)
            await asyncio.sleep(600)
            clock.set(by)
            await asyncio.sleep(90)
            due = fleet.target("paced").next_at
            assert store.kept["paced"].due == pytest.approx(due)
            assert store.kept["fixed"].due == pytest.approx(fleet.target("fixed").next_at)
        gaps = [b - a for a, b in pairwise(watch.at["fixed"])]
        assert gaps == pytest.approx([60.0] * len(gaps))
        assert len(watch.at["fixed"]) >= 31
        paced = watch.at["paced"]
        assert all(b - a <= 300 for a, b in pairwise(paced))

    clock.run(main())


def test_quiet_hours_follow_the_wall_clock_even_when_adjusted() -> None:
    clock = SetClock()  # midnight, UTC

    async def main() -> None:
        watch = Watch()
        fleet = fleet_for(clock)
        for n in range(20):
            fleet.add(Target(f"t{n}", watch.probe(), "10s", quiet="22:00-06:00"))
        fleet.add(Target("paced", watch.probe(), quiet="22:00-06:00"))
        async with running(fleet):
            await asyncio.sleep(3600)
            assert not watch.at, "it is one o'clock at night"
            clock.set(4 * 3600)  # five
            await asyncio.sleep(3600 - 120)
            assert not watch.at
            await asyncio.sleep(240)  # two minutes past six
            assert len(watch.at) == 21
            assert len({at[0] for at in watch.at.values()}) == 21, "not all at once"
            clock.set(-3600)  # five again
            await asyncio.sleep(120)  # noticed
            watch.at.clear()
            await asyncio.sleep(3000)
            assert not watch.at
            await asyncio.sleep(3600)
            assert len(watch.at) == 21
            fleet.poll_now("paced")
            clock.set(15 * 3600)  # late in the evening
            await asyncio.sleep(120)
            watch.at.clear()
            fleet.poll_now("paced")
            await asyncio.sleep(1)
            assert list(watch.at) == ["paced"], "people may ask at any time"

    clock.run(main())
