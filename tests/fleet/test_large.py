"""A large fleet: its state is counted and listed in portions, and only what is shown is made."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.strategies.freshness import Freshness
from pollwise.fleet import Target, viewing, views
from pollwise.fleet.api.requests import Operator
from pollwise.fleet.api.state import STATES_AT_ONCE, StateRoutes
from pollwise.fleet.control import Control
from pollwise.fleet.engine.failures import FailureRules
from pollwise.fleet.engine.restore import saved
from pollwise.fleet.engine.running_target import AGENDA, FLIGHT, WAITING, RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.fleet.views import Census, is_stale_here, plan_here, saved_state
from pollwise.runtime.clock import VirtualClock
from tests.fleet.test_api import desk
from tests.fleet.world import SAME, Watch, fleet_for, running

NOW = 1000.0


def test_a_state_that_no_target_has_is_answered_without_making_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Counter[str] = Counter()
    steps: list[int] = []
    state_of, count = views.target_state, Census.count

    def counted(entry: RunningTarget, *rest: Any) -> Any:
        made[entry.target.name] += 1
        return state_of(entry, *rest)

    def counted_step(self: Census, entries: Any) -> None:
        entries = list(entries)
        steps.append(len(entries))
        count(self, entries)

    monkeypatch.setattr(viewing, "target_state", counted)
    monkeypatch.setattr(Census, "count", counted_step)

    async def main(clock: VirtualClock, watch: Watch) -> None:
        large = fleet_for(clock)
        probe = watch.probe(lambda each: OSError("no") if "7777" in each.name else SAME)
        large.add(*(Target(f"t{n:05}", probe, "5m", group=f"g{n % 3}") for n in range(10_000)))
        async with running(large), desk(Control(large), tmp_path) as client:
            await asyncio.sleep(400)
            steps.clear()
            none = await client.good("GET", "/api/fleet/state?state=dead")
            assert (none["target_list"], none["next"], none["targets"]) == ([], None, 10_000)
            assert not made
            assert (sum(steps), max(steps)) == (10_000, viewing.PORTION)
            state = large._scheduler.state(large._known("t07777"))
            failing = await client.good("GET", f"/api/fleet/state?state={state}")
            assert [each["name"] for each in failing["target_list"]] == ["t07777"]
            found, after = [], ""
            while after is not None:
                page = await client.good(
                    "GET", f"/api/fleet/state?group=g1&state=closed&limit=900&after={after}"
                )
                found += [each["name"] for each in page["target_list"]]
                after = page["next"]
            assert found == [f"t{n:05}" for n in range(10_000) if n % 3 == 1 and n != 7777]
            assert set(made.values()) <= {1, 2}

    clock, watch = VirtualClock(), Watch()
    clock.run(main(clock, watch))


def test_an_answer_examines_and_makes_only_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count is used again for a while, a group has an index, and a page makes only its rows."""
    made: list[str] = []
    counted: list[int] = []
    examined: list[int] = []
    state_of, count, matching = views.target_state, Census.count, viewing.FleetWithViews.matching

    def noted(entry: RunningTarget, *rest: Any) -> Any:
        made.append(entry.target.name)
        return state_of(entry, *rest)

    def noted_count(self: Census, entries: Any) -> None:
        counted.append(len(entries))
        count(self, entries)

    def noted_match(self: Any, names: Any, *rest: Any) -> Any:
        examined.append(len(names))
        return matching(self, names, *rest)

    monkeypatch.setattr(viewing, "target_state", noted)
    monkeypatch.setattr(viewing, "COUNTING_SHARE", math.inf)  # until something is changed
    monkeypatch.setattr(Census, "count", noted_count)
    monkeypatch.setattr(viewing.FleetWithViews, "matching", noted_match)

    async def main(clock: VirtualClock, watch: Watch) -> None:
        large = fleet_for(clock)
        large.add(
            *(Target(f"t{n:05}", watch.probe(), "5m", group=f"g{n % 10}") for n in range(10_000))
        )
        async with running(large), desk(Control(large), tmp_path) as client:

            async def ask(query: str) -> tuple[dict[str, Any], int, int, int]:
                for each in (made, counted, examined):
                    each.clear()
                answer = await client.good("GET", f"/api/fleet/state?{query}")
                return answer, sum(counted), sum(examined), len(made)

            await asyncio.sleep(400)
            assert (await ask("limit=0"))[1:] == (10_000, 0, 0)
            assert (await ask("limit=0"))[1:] == (0, 0, 0)
            assert (await ask("group=nobody"))[1:] == (0, 0, 0)
            assert (await ask("state=dead"))[1:] == (0, 10_000, 0)
            answer, *costs = await ask("group=g3&limit=100&after=t05000")
            assert [each["name"] for each in answer["target_list"]][:2] == ["t05003", "t05013"]
            assert costs[0] == 0
            assert costs[1] == 500
            assert costs[2] <= 100 + STATES_AT_ONCE
            # What was ordered or changed is counted at once.
            large.pause("t00003")
            answer, *costs = await ask("limit=0")
            assert (answer["paused"], costs[0]) == (1, 10_000)
            large.remove("t00013")
            answer, *costs = await ask("group=g3&limit=2")
            assert [each["name"] for each in answer["target_list"]] == ["t00003", "t00023"]
            assert answer["targets"] == 9_999

    clock, watch = VirtualClock(), Watch()
    clock.run(main(clock, watch))


def test_the_figures_of_a_store_are_used_again_for_a_while() -> None:
    asked: list[float] = []

    async def main(clock: VirtualClock, watch: Watch) -> None:
        fleet = fleet_for(clock)
        fleet.add(Target("a", watch.probe(), "10s"))
        control = Control(fleet)

        class Slow(SqliteFleetStore):
            async def figures(self) -> dict[str, Any]:
                asked.append(clock.now())
                await clock.sleep(0.1)
                return {"targets": len(asked)}

        async def anybody(*_: object) -> str:
            return "somebody"

        routes, store = StateRoutes(control, anybody), Slow("unused.db")
        async with running(fleet):
            for _ in range(10):
                assert (await routes._store_figures(store))["targets"] == 1
            await clock.sleep(viewing.COUNTING_SHARE * 0.1)
            assert (await routes._store_figures(store))["targets"] == 2
            await routes._ordered(Operator("somebody", ""), "pause", ["a"])
            assert (await routes._store_figures(store))["targets"] == 3

    clock, watch = VirtualClock(), Watch()
    clock.run(main(clock, watch))


def test_a_state_for_views_leaves_out_what_only_a_restart_needs() -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        fleet = fleet_for(clock)
        fleet.add(Target("a", watch.probe(), "10s"))
        async with running(fleet):
            await asyncio.sleep(60)
            entry, scheduler = fleet._known("a"), fleet._scheduler
            whole, part = saved(entry, scheduler), saved(entry, scheduler, whole=False)
            assert {"recent"} <= whole.more.keys() - part.more.keys()
            assert saved_state(entry.target, part, NOW) == saved_state(entry.target, whole, NOW)

    clock, watch = VirtualClock(), Watch()
    clock.run(main(clock, watch))


TIMES = st.none() | st.floats(NOW - 500, NOW + 50)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "succeeded_at": TIMES,
                "due": st.floats(NOW - 100, NOW + 100) | st.just(math.inf),
                "place": st.sampled_from([AGENDA, WAITING, FLIGHT]),
                "until": st.sampled_from([math.inf, -math.inf, NOW + 5]),
                "failures": st.integers(0, 20),
                "dead": st.booleans(),
                "paused": st.booleans(),
                "interval": st.floats(1, 300),
            }
        ),
        max_size=8,
    )
)
def test_a_census_counts_what_each_target_shows(rows: list[dict[str, Any]]) -> None:
    scheduler = Scheduler(FailureRules(), None, None, Random(1))

    async def probe(target: Target, context: object) -> object:
        return SAME

    for number, row in enumerate(rows):
        target = Target(f"t{number}", probe)
        entry = RunningTarget(target, probe, None, Freshness())
        for key, value in row.items():
            setattr(entry, key, value)
        scheduler.entries[target.name] = entry
    entries = list(scheduler.entries.values())
    census = Census(scheduler, NOW)
    census.count(entries[:3])
    census.count(entries[3:])
    assert +census.states == Counter(map(scheduler.state, entries))
    assert +census.plans == Counter(plan_here(each, scheduler, NOW) for each in entries)
    assert census.stale == sum(is_stale_here(each, scheduler, NOW) for each in entries)
    assert census.never == sum(each.succeeded_at is None for each in entries)
    assert census.held == sum(each.until > NOW for each in entries)
    resting = ("paused", "quiet")
    ages = [
        each.succeeded_at
        for each in entries
        if each.succeeded_at is not None and plan_here(each, scheduler, NOW) not in resting
    ]
    oldest = census.oldest
    assert (None if oldest is None else oldest.succeeded_at) == min(ages, default=None)
