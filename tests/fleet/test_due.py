"""What is due, in one place: quiet hours, pauses, dead targets and a clock that was set back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pollwise.fleet import Target
from pollwise.fleet.goals import Goals, shortfalls
from pollwise.fleet.stores.base import SavedTarget, TargetOrder, viewed
from pollwise.fleet.stores.paging import OVERDUE, counts_of, plan_of
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.fleet.views import TargetState, after_orders, saved_state, states, summary
from pollwise.runtime.clock import VirtualClock
from tests.fleet.world import SAME, SetClock, Watch, fleet_for, now, running
from tests.support.kit import virtually

AT = 1.8e9
HOUR = 3600.0
NIGHT = "22:00-06:00"


def found(every: list[TargetState], **goals: float) -> list[str]:
    return shortfalls(every, Goals(**goals), AT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plan", "given"),
    [
        ("paused", {"paused": True, "due": 1.0}),
        ("polling", {"polling": True, "due": 1.0}),
        ("elsewhere", {"elsewhere": True, "due": 1.0}),
        ("overdue", {"due": 100.0 - OVERDUE - 0.1}),
        ("overdue", {"due": 90.0, "deferred": True}),  # its quiet hours ended, and no poll came
        ("due", {"due": 100.0 - OVERDUE}),
        ("due", {"due": 100.0}),
        ("quiet", {"due": 101.0, "deferred": True}),
        ("planned", {"due": 101.0}),
        ("unplanned", {"due": None}),
        ("unplanned", {"due": float("inf")}),
        ("overdue", {"due": 101.0, "succeeded_at": 106.0}),  # the clock was set back
        ("planned", {"due": 101.0, "succeeded_at": 104.0}),  # two hosts differ by a little
    ],
)
def test_plans(plan: str, given: dict[str, object]) -> None:
    assert plan_of(now=100.0, **given) == plan  # type: ignore[arg-type]


def test_quiet_hours_are_no_outage(tmp_path: Path) -> None:
    """In the process and in its store: nothing is due, stale or missed in a whole night."""

    async def main(clock: SetClock) -> None:
        clock.set((19.75 * HOUR - clock.epoch()) % 86400)  # no need for the day before
        store, watch = SqliteFleetStore(tmp_path / "fleet.db", clock=clock), Watch()
        fleet = fleet_for(clock, store=store)
        fails = [ConnectionError("no answer")]
        fleet.add(
            Target("well", watch.probe(), "10s", quiet=NIGHT),
            Target("paced", watch.probe(), quiet=NIGHT),
            Target("awake", watch.probe(), "10s"),
            # It fails from 20:00 on, so it was stale when its quiet hours began.
            Target("ill", watch.probe(lambda _: fails[0] if now() > begins - 2 * HOUR else SAME),
                   "10s", quiet=NIGHT, dead_after=10**6),
        )  # fmt: skip
        begins = (22 * HOUR - clock.epoch()) % 86400
        async with running(fleet):
            await asyncio.sleep(begins + 7 * HOUR)  # five in the morning

            def seen(every: list[TargetState]) -> None:
                plans = {each.name: each.plan for each in every}
                assert plans["well"] == plans["paced"] == plans["ill"] == "quiet"
                assert {each.name for each in every if each.stale} == {"ill"}
                figures = summary(every)
                assert (figures["quiet"], figures["overdue"]) == (3, 0)
                assert figures["stalest"] == "awake"
                [well] = [each for each in every if each.name == "well"]
                assert well.staleness is not None
                assert well.staleness > 6.9 * HOUR
                assert well.next_at == pytest.approx(clock.epoch() + HOUR, abs=11)
                assert well.deferred_since == pytest.approx(clock.epoch() - 7 * HOUR, abs=11)
                for goals in (Goals(), Goals(max_staleness=400.0)):
                    missed = shortfalls(every, goals, clock.epoch())
                    assert len(missed) == 1, missed
                    assert "1 of 4 targets is older than" in missed[0]
                    assert "the stalest is 'ill'" in missed[0]

            here = fleet.state()
            seen(here.target_list)
            assert (here.overdue, here.quiet, here.stale, here.stalest) == (0, 3, 1, "awake")
            kept = await store.load()
            seen(states([fleet.definition(name) for name in fleet.names()], kept, clock.epoch()))
            seen(states([], kept, clock.epoch()))  # without the file
            assert (await store.counts()).overdue == fleet.counts().overdue == 0
            polls = len(watch.at["well"])
            await asyncio.sleep(HOUR + 60)
            assert len(watch.at["well"]) > polls
            assert fleet.target("well").plan in ("planned", "due", "polling")
            assert fleet.target("well").deferred_since is None
        await store.close()

    clock = SetClock()
    clock.run(main(clock))


def test_a_target_that_waits_for_its_quiet_hours_to_end_keeps_them_after_a_restart(
    tmp_path: Path,
) -> None:
    async def main(clock: SetClock) -> None:
        clock.set((21.75 * HOUR - clock.epoch()) % 86400)
        store, watch = SqliteFleetStore(tmp_path / "fleet.db", clock=clock), Watch()
        fleet = fleet_for(clock, store=store)
        fleet.add(Target("well", watch.probe(), "10s", quiet=NIGHT))
        begins = (22 * HOUR - clock.epoch()) % 86400
        async with running(fleet):
            await asyncio.sleep(begins + HOUR)
        polls = len(watch.at["well"])
        for quiet in (NIGHT, None):
            again = fleet_for(clock, store=store)
            again.add(Target("well", watch.probe(), "10s", quiet=quiet))
            async with running(again):
                await asyncio.sleep(60)
                assert (len(watch.at["well"]) > polls) is (quiet is None)
        await store.close()

    clock = SetClock()
    clock.run(main(clock))


def test_a_clock_that_was_set_back_is_not_green(tmp_path: Path) -> None:
    async def main(clock: SetClock) -> None:
        store, watch = SqliteFleetStore(tmp_path / "fleet.db", clock=clock), Watch()
        fleet = fleet_for(clock, store=store)
        fleet.add(*(Target(f"t{n}", watch.probe(), "10s") for n in range(3)))
        async with running(fleet):
            await asyncio.sleep(60)
        clock.set(-HOUR)

        async def missed() -> list[str]:
            every = states([], await store.load(), clock.epoch())
            return shortfalls(every, Goals(), clock.epoch())

        [said] = await missed()
        assert said.startswith("3 targets were not polled since the clock was set back")
        assert (await store.counts()).overdue == 3
        again = fleet_for(clock, store=store)
        again.add(*(Target(f"t{n}", watch.probe(), "10s") for n in range(3)))
        async with running(again):
            await asyncio.sleep(2)  # saved with times of the right clock
            assert await missed() == []
            assert again.state().overdue == 0
        await store.close()

    clock = SetClock()
    clock.run(main(clock))


def test_only_what_should_have_been_polled_counts() -> None:
    now = AT

    def target(name: str, **given: object) -> TargetState:
        kept = SavedTarget(name, now + 5, interval=10.0)
        return saved_state(None, replace(kept, **given), now)  # type: ignore[arg-type]

    never = target("never")
    assert found([never]) == [
        "no target was polled yet; wait if `pollwise fleet run` has just started"
    ]
    paused, quiet = target("p", paused=True), target("q", more={"deferred": now - HOUR})
    assert found([paused]) == found([quiet]) == found([paused, quiet]) == []
    assert len(found([never, paused, quiet])) == 1
    late = [target(f"t{n}", due=now - 60, polled_at=now - 70, succeeded_at=now - 70)
            for n in range(3)]  # fmt: skip
    assert found(late, max_due=2, max_staleness=100.0) == [
        "3 polls are overdue by more than 5s; the goal (fleet.max_due) is at most 2"
    ]


def test_a_failing_target_shows_the_delay_that_its_failures_ask_for() -> None:
    kept = SavedTarget(
        "dead", AT + 500, state="dead", failures=12, polled_at=AT - 100, interval=5.0
    )
    assert saved_state(None, kept, AT).interval == 600.0
    for well in (replace(kept, state="closed", failures=0), replace(kept, more={"deferred": AT})):
        assert saved_state(None, well, AT).interval == 5.0


def test_what_waits_for_the_budget_is_due() -> None:
    """And overdue if it waits for long: it should have been polled."""

    async def main(clock: VirtualClock) -> None:
        watch, fleet = Watch(), fleet_for(clock, budget=1.0)
        fleet.add(*(Target(f"t{n}", watch.probe()) for n in range(30)))
        async with running(fleet):
            await asyncio.sleep(300)
            for name in fleet.names():
                fleet.poll_now(name)
            for seconds, overdue in ((0.5, False), (10.0, True)):
                await asyncio.sleep(seconds)
                whole = fleet.state()
                plans = Counter(each.plan for each in whole.target_list)
                assert plans["due"] + plans["overdue"] == whole.due > 10
                assert plans["overdue"] == whole.overdue
                assert bool(whole.overdue) is overdue
            await asyncio.sleep(60)
            assert fleet.state().overdue == 0

    virtually(main)


def test_the_score_is_the_share_of_the_longest_interval() -> None:
    async def main(clock: VirtualClock) -> None:
        watch, fleet = Watch(), fleet_for(clock)
        fleet.add(Target("a", watch.probe(), min_interval="60s", base_interval="200s"))
        fleet.add(Target("b", watch.probe(lambda _: OSError()), "10s"))
        async with running(fleet):
            while fleet.target("a").succeeded_at is None:
                await asyncio.sleep(1)
            await asyncio.sleep(30)
            age = fleet.target("a").staleness
            assert age is not None
            assert fleet.target("a").score == pytest.approx(age / 300.0)
            assert fleet.target("b").score == 1.0
            assert fleet.target("b").down_since is not None

    virtually(main)


@pytest.mark.parametrize(
    ("orders", "fits"),
    [
        (("pause",), lambda each: each.paused),
        (("pause", "resume"), lambda each: not each.paused),
        (("resume", "pause", "poll-now"), lambda each: each.paused),
        (("close-breaker",), lambda each: each.state == "closed" and not each.failures),
        (("retry",), lambda each: each.state == "dead" and each.failures == 5),
    ],
)
def test_pending_orders_count_for_the_next_order(
    orders: tuple[str, ...], fits: Callable[[TargetState], bool]
) -> None:
    kept = [SavedTarget("a", state="dead", failures=5), SavedTarget("b")]
    a, b = states([], kept, 0.0, [TargetOrder("a", what) for what in orders])
    assert (a.pending, b.pending) == (orders, ())
    assert summary([a, b])["pending"] == len(orders)
    assert fits(after_orders(a))
    assert after_orders(b) is b


def test_counts_in_memory_are_those_of_the_views() -> None:
    kept = [
        SavedTarget("late", 90.0), SavedTarget("paused", 90.0, paused=True),
        SavedTarget("back", 101.0, succeeded_at=200.0), SavedTarget("well", 101.0),
    ]  # fmt: skip
    every = states([], kept, 100.0)
    assert counts_of(map(viewed, kept), 100.0).overdue == summary(every)["overdue"] == 2
