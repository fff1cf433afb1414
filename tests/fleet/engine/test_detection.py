"""`detect_within`: how soon an outage is noticed, and its end, whatever the state of the target."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.errors import ConfigError, ProbeError, ProbeRefused
from pollwise.fleet import FailureRules, Fleet, FleetRunOptions, Target
from pollwise.fleet.engine.options import GroupPace
from pollwise.fleet.file import FleetFileError, read_text
from pollwise.runtime.clock import VirtualClock
from tests.fleet.world import SAME, Watch, fleet_for, now, running
from tests.support.kit import virtually


def busy() -> ProbeError:
    error = ProbeError("503")
    error.retry_after = 86_400.0
    return error


@pytest.mark.parametrize("error", [OSError("down"), ProbeRefused("404"), busy()])
@pytest.mark.parametrize("budget", [None, 20.0])
def test_outages_and_their_ends_are_noticed_in_time(
    error: BaseException, budget: float | None
) -> None:
    """Of all lengths, on paced, fixed and other strategies, while its breaker is open and dead."""
    within, takes = 60.0, 2.0

    async def main(clock: VirtualClock) -> None:
        random, watch = Random(4), Watch()
        down = False
        fleet = fleet_for(clock, budget=budget, rules=FailureRules(dead_after=5))
        for n, strategy in enumerate([None, None, "30s", Adaptive("5s", "10m")] * 5):
            probe = watch.probe(lambda _: error if down else SAME, takes=takes)
            fleet.add(Target(f"t{n}", probe, strategy, timeout="10s", detect_within=within))
        names = fleet.names()
        async with running(fleet):
            await asyncio.sleep(2000)
            for length in (30.0, 200.0, 900.0, 3000.0, 500.0):
                await asyncio.sleep(within + random.uniform(0, 300))
                assert all(fleet.target(name).failures == 0 for name in names), "noticed its end"
                down = True
                await asyncio.sleep(max(length, within + takes))
                assert all(fleet.target(name).failures for name in names), "noticed the outage"
                down = False
        for name in names:
            ends = [at + takes for at in watch.at[name]]
            gaps = [start - end for end, start in zip(ends, watch.at[name][1:], strict=False)]
            late = 0.0 if budget is None else 1.0  # all may be due at once
            assert max(gaps) <= within - 10.0 + late + 1e-6, name

    virtually(main)


def test_what_it_needs_is_asked_of_the_budget() -> None:
    async def main(clock: VirtualClock) -> None:
        fleet = fleet_for(clock, budget=0.5)
        failing = Watch().probe(lambda _: ProbeRefused("404"))
        fleet.add(*[Target(f"t{n}", Watch().probe(), max_interval="1h") for n in range(20)])
        fleet.add(*[Target(f"d{n}", failing, timeout="5s", detect_within="25s") for n in range(20)])
        async with running(fleet):
            await asyncio.sleep(600)
            assert fleet.state().dead == 20
            assert fleet.state().budget_asked == pytest.approx(20 / 20 + 20 / 3600)
            assert any("need 1.01 polls a second" in each for each in fleet.state().problems)

    virtually(main)


def test_the_fleets_own_is_for_targets_without_one() -> None:
    fleet = Fleet(FleetRunOptions(detect_within="2m"))
    probe = Watch().probe()
    fleet.add(Target("a", probe), Target("b", probe, detect_within="1m"), Target("c", probe, "30s"))
    entries = {name: fleet._known(name) for name in "abc"}
    assert [entries[name].within for name in "abc"] == [90.0, 30.0, 90.0]
    assert [entries[name].strategy.max_interval for name in "abc"] == [90.0, 30.0, 30.0]
    fleet.pace({None: GroupPace(Freshness("60s", "50s", "10m"))})
    assert fleet._known("b").strategy == Freshness("30s", "30s", "30s"), "the more specific wins"
    fleet.pace({None: GroupPace(Freshness("100s", "50s", "10m"), enabled=False)})
    assert fleet._known("a").strategy == Fixed("90s")
    with pytest.raises(ConfigError, match="'d': the fleet's detect_within = 2m and interval = 5m"):
        fleet.add(Target("d", probe, "5m"))
    assert "d" not in fleet


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"detect_within": "30s"}, "must be at least 1s longer than its timeout of 30s"),
        ({"detect_within": "0s"}, "detect_within"),
        ({"detect_within": "60s", "interval": "31s"}, "interval must be at most 30s"),
        ({"detect_within": "60s", "min_interval": "40s"}, "min_interval must be at most 30s"),
        ({"detect_within": "60s", "base_interval": "40s"}, "base_interval must be at most 30s"),
        ({"detect_within": "60s", "interval": Adaptive("31s", "5m")}, "must be at most 30s"),
    ],
)
def test_contradictions_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"target 't': .*{said}"):
        Target("t", Watch().probe(), **wrong)


def test_a_group_gives_it_to_its_targets() -> None:
    text = """
[group.shop]
type = "ping"
timeout = "5s"
detect_within = "45s"

[[target]]
name = "a"
group = "shop"
address = "a.example"

[[target]]
name = "b"
group = "shop"
address = "b.example"
detect_within = "20s"
"""
    found = {each.name: each.within() for each in read_text(text).targets}
    assert found == {"a": 40.0, "b": 15.0}
    with pytest.raises(FleetFileError, match="group 'shop': detect_within = 3s must be at least"):
        read_text(text.replace('"45s"', '"3s"').replace('detect_within = "20s"', ""))


# A wall clock that was set back, and a restart


@pytest.mark.parametrize("back", [60.0, 3600.0, 86_400.0])
def test_a_clock_set_back_before_a_restart_silences_no_target_beyond_its_own_delay(
    back: float,
) -> None:
    async def main(clock: VirtualClock) -> None:
        watch = Watch()
        down = OSError("down")
        fleet = fleet_for(clock)
        fleet.add(Target("fixed", watch.probe(), "20s"), Target("paced", watch.probe()))
        fleet.add(Target("failing", watch.probe(lambda _: down), "10s"))
        fleet.add(Target("dead", watch.probe(lambda _: ProbeRefused("404")), "10s"))
        async with running(fleet):
            await asyncio.sleep(130)
            planned = {
                name: (each.due or 0.0) - (each.polled_at or 0.0)
                for name in fleet.names()
                for each in [fleet.saved(name)]
            }
        assert planned["fixed"] <= 20
        assert planned["failing"] < 130
        clock._epoch -= back
        watch.at.clear()
        began = now()
        async with running(fleet):
            await asyncio.sleep(0.1)
            for name in fleet.names():
                state = fleet.target(name)
                assert state.polled_at is None or state.polled_at <= clock.epoch()
            await asyncio.sleep(600)
        for name, longest in planned.items():
            assert watch.at[name][0] - began <= longest + 1e-6, name
        assert max(b - a for a, b in pairwise(watch.at["paced"])) <= 300

    virtually(main)
