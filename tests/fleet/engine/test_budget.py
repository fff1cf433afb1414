"""The budget of a fleet: shared out, and a limit that holds for every second."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from pollwise.core.strategies.freshness import Freshness
from pollwise.errors import ConfigError
from pollwise.fleet import Fleet, FleetRunOptions, Target
from pollwise.fleet.engine.budget import FleetBudget
from pollwise.fleet.engine.failures import FailureRules
from pollwise.fleet.engine.restore import CATCH_UP_APART
from pollwise.fleet.engine.running_target import RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.stores.postgres.store import TABLES, PostgresFleetStore
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import BudgetShort
from pollwise.storage.postgres.schema import script
from tests.fleet.world import SAME, Watch, fleet_for, now, running
from tests.support.kit import Seen, virtually
from tests.support.servers import Postgres


def most_within(starts: Sequence[float], seconds: float) -> int:
    """The largest number of starts in any such span of time."""
    return max((bisect_right(starts, at + seconds) - n for n, at in enumerate(starts)), default=0)


def all_starts(watch: Watch) -> list[float]:
    return sorted(at for each in watch.at.values() for at in each)


def test_a_restart_after_two_minutes_is_no_herd_and_the_longest_due_goes_first() -> None:
    async def main(clock: VirtualClock) -> None:
        watch = Watch()
        fleet = fleet_for(clock, budget=5.0, strategy=Freshness("1m", "5s", "5m"))
        fleet.add(*[Target(f"t{n}", watch.probe(takes=0.05)) for n in range(500)])
        async with running(fleet):
            await asyncio.sleep(1000)
        assert most_within(all_starts(watch), 1.0) <= 5 + 5
        await asyncio.sleep(120)
        due = {name: fleet.saved(name).due or 0.0 for name in fleet.names()}
        watch.at.clear()
        began = now()
        async with running(fleet):
            await asyncio.sleep(140)
        starts = all_starts(watch)
        assert most_within(starts, 1.0) <= 5 + 5
        early = [at for at in starts if at < began + 60]
        assert most_within(early, 1.0) <= 5 + 1, "the bucket is empty after a start"
        for at in range(10, 110, 10):  # and is used, because there is work
            assert sum(began + at - 10 < each <= began + at for each in starts) >= 49
        overdue = {name: at for name, at in due.items() if at < clock.epoch() - 140}
        assert len(overdue) > 400
        first = sorted(overdue, key=lambda name: watch.at[name][0])
        assert first == sorted(overdue, key=lambda name: (overdue[name], name))
        assert max(watch.at[name][0] for name in overdue) <= began + len(overdue) / 5 + 5

    virtually(main)


def test_ten_seconds_stay_within_the_budget_and_are_used_up_when_there_is_work() -> None:
    async def main(clock: VirtualClock) -> None:
        watch, random = Watch(), Random(3)
        down = False

        def answer(_: Target) -> object:
            return OSError("down") if down else str(random.random())

        fleet = fleet_for(clock, budget=80.0, strategy=Freshness("2s", "1s", "1m"), concurrency=200)
        fleet.add(*[Target(f"t{n}", watch.probe(answer, takes=0.2)) for n in range(300)])
        async with running(fleet):
            await asyncio.sleep(120)
            down = True  # 300 targets are confirmed at once
            await asyncio.sleep(60)
            down = False
            for name in fleet.names():
                fleet.poll_now(name)
            await asyncio.sleep(120)
        starts = all_starts(watch)
        assert most_within(starts, 10.0) <= 80 * 10 + 80
        assert most_within(starts, 1.0) <= 80 + 80
        for at in range(10, 120, 10):
            assert sum(at - 10 < each <= at for each in starts) >= 0.9 * 800, at

    virtually(main)


def test_a_stall_saves_up_no_more_than_the_burst() -> None:
    async def main(clock: VirtualClock) -> None:
        watch = Watch()
        fleet = fleet_for(clock, budget=10.0, budget_burst=3)
        fleet.add(*[Target(f"t{n}", watch.probe(), "10s") for n in range(100)])
        async with running(fleet):
            await asyncio.sleep(50)
            watch.at.clear()
            asyncio.get_running_loop().jump(600.0)  # type: ignore[attr-defined]
            await asyncio.sleep(60)
        starts = all_starts(watch)
        assert most_within(starts, 0.0) <= 3
        assert most_within(starts, 1.0) <= 10 + 3
        assert len(starts) >= 10 * 60 - 5

    virtually(main)


def test_an_order_goes_before_those_that_wait_and_takes_a_token() -> None:
    async def main(clock: VirtualClock) -> None:
        watch = Watch()
        fleet = fleet_for(clock, budget=1.0)
        fleet.add(*[Target(f"t{n}", watch.probe(), "10s") for n in range(100)])
        async with running(fleet):
            await asyncio.sleep(300)
            waiting = [name for name in fleet.names() if now() - watch.at[name][-1] < 50]
            watch.at.clear()
            fleet.poll_now(waiting[0])
            await asyncio.sleep(2.5)
            assert waiting[0] in watch.at
            assert len(all_starts(watch)) <= 3

    virtually(main)


@pytest.mark.parametrize("interval", ["10s", "20m", None])
def test_without_a_budget_missed_polls_are_spread_the_longest_due_first(
    interval: str | None,
) -> None:
    async def main(clock: VirtualClock) -> None:
        watch = Watch()
        fleet = fleet_for(clock, concurrency=500, per_host=None)
        fleet.add(*[Target(f"t{n}", watch.probe(), interval) for n in range(400)])
        async with running(fleet):
            await asyncio.sleep(1300)
        await asyncio.sleep(3600)
        due = {name: fleet.saved(name).due or 0.0 for name in fleet.names()}
        watch.at.clear()
        began, restarted = now(), clock.epoch()
        async with running(fleet):
            await asyncio.sleep(60)
        first = {name: at[0] - began for name, at in watch.at.items()}
        assert len(first) == 400
        # Within the shortest of half its interval, a minute, and 20 ms a target.
        longest = 5.0 if interval == "10s" else 8.0
        assert max(first.values()) <= longest
        assert most_within(sorted(first.values()), 1.0) <= 400 / 4
        if interval == "20m":  # of short ones, many wait for the next point of their grid
            near = longest + CATCH_UP_APART
            far = [name for name in due if (due[name] - restarted) % 1200 > near]
            assert len(far) > 390
            assert sorted(far, key=first.__getitem__) == sorted(far, key=lambda n: (due[n], n))

    virtually(main)


def test_a_few_missed_polls_are_made_up_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        watch = Watch()
        fleet = fleet_for(clock)
        fleet.add(*[Target(f"t{n}", watch.probe(), "5m") for n in range(5)])
        async with running(fleet):
            await asyncio.sleep(600)
        await asyncio.sleep(600)
        watch.at.clear()
        async with running(fleet):
            await asyncio.sleep(0.5)
        assert len(watch.at) == 5

    virtually(main)


# Several nodes


async def probe(target: Target, context: object) -> None: ...


@pytest.mark.parametrize("seed", range(5))
def test_the_parts_of_the_nodes_never_exceed_the_budget(seed: int) -> None:
    random = Random(seed)
    names = [f"t{n}" for n in range(30)]
    nodes = []
    for _ in range(3):
        scheduler = Scheduler(FailureRules(), 4, FleetBudget(6.0), Random(1))
        entries = [RunningTarget(Target(name, probe), probe, None, Freshness()) for name in names]
        for entry in entries:
            entry.until = float("-inf")
        scheduler.add(entries, 0.0)
        nodes.append(scheduler)
    holder: dict[str, Scheduler] = {}
    starts: list[float] = []
    at = 0.0
    for _ in range(3000):
        at += random.expovariate(20.0)
        name = random.choice(names)
        before, after = holder.pop(name, None), random.choice([None, *nodes])
        if before is not None:
            before.lose(before.entries[name])
        if after is not None:
            holder[name] = after
            after.hold(after.entries[name], 1, float("inf"), at)
        budgets = [node.budget for node in nodes if node.budget is not None]
        assert sum(each.tokens.rate for each in budgets) == pytest.approx(6.0 * len(holder) / 30)
        for node in nodes:
            for entry in node.entries.values():
                node.poll_now(entry, at)
            while (taken := node.take(at)) is not None:
                starts.append(at)
                node.abandoned(taken)
    assert len(starts) > 300
    # A node may always start one poll, however small its part.
    assert most_within(starts, 1.0) <= 6 + 6 + len(nodes)
    assert most_within(starts, 10.0) <= 60 + 6 + len(nodes)


def test_nodes_that_come_and_go_keep_the_budget_together(postgres: Postgres) -> None:
    postgres.execute(script("pollwise", TABLES))
    clock = VirtualClock()
    watch = Watch()

    def node(name: str) -> Fleet:
        store = PostgresFleetStore(postgres.dsn(), "budget", clock=clock)
        fleet = fleet_for(clock, budget=10.0, store=store, node=name, lease="3s")
        fleet.add(*[Target(f"t{n}", watch.probe(), "5s") for n in range(100)])
        return fleet

    async def main() -> None:
        one, two = node("one"), node("two")
        async with running(one):
            await asyncio.sleep(20)
            async with running(two):
                await asyncio.sleep(20)
            await asyncio.sleep(20)
        for fleet in (one, two):
            assert fleet.store is not None
            await fleet.store.close()

    clock.run(main())
    starts = all_starts(watch)
    assert most_within(starts, 1.0) <= 10 + 10 + 1
    assert most_within(starts, 10.0) <= 100 + 10 + 1
    assert len(starts) >= 0.9 * 10 * 60
    assert not watch.wrong


# Goals


def rare_changes_unseen(goal: str | None) -> tuple[float, int]:
    """How long rare changes stay unseen on average, and the polls that took: 20 targets change
    about every 20 seconds and 180 about twice an hour, with 4 polls a second; None: all targets
    are polled every 50 seconds, which are as many polls."""
    random, began, lasts = Random(5), 900.0, 6000.0
    changes: dict[str, list[float]] = {}
    for n in range(200):
        at, times = 0.0, []
        while (at := at + random.expovariate(1 / 20 if n < 20 else 1 / 1800)) < lasts:
            times.append(at)
        changes[f"{'busy' if n < 20 else 'rare'}{n}"] = times
    seen: dict[str, int] = dict.fromkeys(changes, 0)
    waits: list[float] = []
    polls = 0

    def answer(target: Target) -> object:
        nonlocal polls
        times, at = changes[target.name], now()
        count = bisect_right(times, at)
        if at >= began:
            polls += 1
            if target.name.startswith("rare"):
                waits.extend(at - each for each in times[seen[target.name] : count])
        seen[target.name] = count
        return str(count)

    async def main(clock: VirtualClock) -> None:
        watch = Watch()
        given: dict[str, Any] = {} if goal is None else {"budget": 4.0, "goal": goal}
        fleet = fleet_for(clock, strategy=Freshness("50s", "5s", "10m"), **given)
        interval = "50s" if goal is None else None
        fleet.add(*[Target(name, watch.probe(answer), interval) for name in changes])
        async with running(fleet):
            await asyncio.sleep(lasts)

    virtually(main)
    return sum(waits) / len(waits), polls


def test_with_the_goal_age_rare_changes_are_seen_as_early_as_with_fixed_polling() -> None:
    fixed, polls = rare_changes_unseen(None)
    by_age, polls_by_age = rare_changes_unseen("age")
    by_changes, _ = rare_changes_unseen("changes")
    assert fixed == pytest.approx(25, rel=0.1)
    assert polls_by_age <= polls * 1.01
    assert by_age <= fixed * 1.1
    assert by_changes > 1.5 * fixed, "what the other goal is for"


# What may be given


@pytest.mark.parametrize("burst", [0, 0.5, float("inf"), float("nan"), True, "many"])
def test_an_invalid_burst_is_refused(burst: Any) -> None:
    with pytest.raises(ConfigError, match=r"budget_burst = .* must be a finite number of polls, 1"):
        FleetRunOptions(budget=5, budget_burst=burst)


def test_a_burst_without_a_budget_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no effect without a budget"):
        FleetRunOptions(budget_burst=5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"goal": "age"}, "goal = 'age' has no effect without a budget"),
        ({"goal": "luck", "budget": 5}, "goal = 'luck' must be one of changes, age"),
    ],
)
def test_an_invalid_goal_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        FleetRunOptions(**given)


# Sharing


def test_a_budget_is_kept_and_goes_where_the_changes_are() -> None:
    async def main(clock: VirtualClock) -> None:
        watch, random = Watch(), Random(3)

        def answer(target: Target) -> object:
            busy = int(target.name[1:]) % 10 == 0
            return str(random.random()) if busy else SAME

        fleet = fleet_for(clock, budget=5.0, strategy=Freshness("1m", "1s", "30m"))
        for n in range(200):
            fleet.add(Target(f"t{n}", watch.probe(answer)))
        for n in range(20):
            fleet.add(Target(f"f{n}", watch.probe(), "10s"))  # two polls a second, exactly
        async with running(fleet):
            await asyncio.sleep(3 * 3600)
            counts = {name: len(at) for name, at in watch.at.items()}
            await asyncio.sleep(3600)
        hour = {name: len(at) - counts.get(name, 0) for name, at in watch.at.items()}
        assert sum(hour.values()) == pytest.approx(5.0 * 3600, rel=0.1)
        assert all(hour[f"f{n}"] == 360 for n in range(20))
        busy = sum(hour[f"t{n}"] for n in range(0, 200, 10)) / 20
        still = sum(count for name, count in hour.items() if name[0] == "t") / 200
        assert busy > 3 * still
        assert min(hour.values()) >= 2, "nobody starves"

    virtually(main)


def test_a_budget_that_is_too_small_is_reported_once() -> None:
    async def main(clock: VirtualClock) -> None:
        seen = Seen()
        fleet = fleet_for(clock, seen, budget=1.0)
        for n in range(20):
            fleet.add(Target(f"t{n}", Watch().probe(), "10s"))
        async with running(fleet):
            await asyncio.sleep(100)
            assert any("budget" in problem for problem in fleet.state().problems)
        assert len(seen.of(BudgetShort)) == 1

    virtually(main)
