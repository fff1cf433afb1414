"""When a target is given up on: after how many failures, whose number it is, and what it costs."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from pollwise.errors import ProbeRefused
from pollwise.fleet import FailureRules, Target
from pollwise.fleet.file import FleetFileError, read_text
from pollwise.runtime.clock import VirtualClock
from pollwise.settings import FleetSettings
from tests.fleet.world import PACED, SAME, Watch, fleet_for, now, running
from tests.support.kit import virtually

OUTAGE = (100.0, 220.0)
USUAL = FailureRules()


def seen_again_after(dead_after: int | None, rules: FailureRules = USUAL) -> float:
    """How long after an outage of two minutes its end is seen."""
    watch = Watch()
    seen: list[float] = []

    def answer(target: Target) -> object:
        if OUTAGE[0] <= now() < OUTAGE[1]:
            return OSError("no answer")
        seen.append(now())
        return SAME

    async def main(clock: VirtualClock) -> None:
        fleet = fleet_for(clock, rules=rules)
        fleet.add(Target("t", watch.probe(answer), "10s", dead_after=dead_after))
        async with running(fleet):
            await asyncio.sleep(2 * 3600)
            assert fleet.target("t").state == "closed"  # it comes back by itself

    virtually(main)
    return next(at for at in seen if at > OUTAGE[1]) - OUTAGE[1]


def test_an_outage_of_two_minutes_makes_no_dead_target() -> None:
    assert seen_again_after(None) <= 120


def test_the_end_is_seen_within_the_half_open_delay_until_the_target_is_dead() -> None:
    assert seen_again_after(20) <= 120
    assert seen_again_after(None, FailureRules(dead_after=20)) <= 120
    assert 480 < seen_again_after(5) <= 600
    assert 480 < seen_again_after(5, FailureRules(dead_after=20)) <= 600  # its own number counts
    assert 1600 < seen_again_after(None, FailureRules(dead_after=5, recheck=1800.0)) <= 1800


def test_the_tutorial_states_how_long_an_outage_may_last() -> None:
    def lasts(dead_after: int, u: float) -> float:
        verdicts = [
            FailureRules().failed(
                n, permanent=False, dead=False, soon=5.0, u=u, dead_after=dead_after
            )
            for n in range(1, dead_after)
        ]
        assert all(not each.dead and each.delay <= 300 for each in verdicts)
        return sum(each.delay for each in verdicts)

    assert lasts(5, 0.0) == 100.0
    assert 18 * 60 < lasts(10, 1.0) < lasts(10, 0.0) < 23 * 60  # "about twenty minutes"
    assert 55 * 60 < lasts(20, 1.0) < lasts(20, 0.0) < 75 * 60  # "about an hour"


def test_a_group_gives_its_targets_their_number_and_a_target_has_its_own() -> None:
    text = """
[group.far]
type = "ping"
dead_after = 20

[[target]]
name = "a"
group = "far"
address = "a.example"

[[target]]
name = "b"
group = "far"
address = "b.example"
dead_after = 3

[[target]]
name = "c"
type = "ping"
address = "c.example"
"""
    found = {each.name: each.dead_after for each in read_text(text).targets}
    assert found == {"a": 20, "b": 3, "c": None}


@pytest.mark.parametrize("wrong", ["0", "-1", "1.5", "true", "'many'", "10000000"])
def test_an_invalid_number_of_failures_is_refused(wrong: str) -> None:
    text = f"[[target]]\nname = 'a'\ntype = 'ping'\naddress = 'h'\ndead_after = {wrong}\n"
    with pytest.raises(FleetFileError) as told:
        read_text(text)
    [(line, what)] = told.value.problems
    assert line == 1
    assert "target 'a': dead_after = " in what
    assert "must be a whole number from 1 to 1000000" in what


def test_the_settings_begin_with_the_rules_of_code() -> None:
    settings = FleetSettings()
    rules = FailureRules()
    for name in ("dead_after", "recheck", "max_retry_after"):
        assert getattr(settings, name) == getattr(rules, name), name


def test_the_interval_of_a_dead_target_is_its_recheck() -> None:
    async def main(clock: VirtualClock) -> None:
        fleet = fleet_for(clock)
        fleet.add(Target("t", Watch().probe(lambda _: ProbeRefused("404")), **PACED))
        async with running(fleet):
            await asyncio.sleep(100)
            state = fleet.target("t")
            assert (state.state, state.interval) == ("dead", 600.0)
            assert fleet.saved("t").interval == 600.0

    virtually(main)


@pytest.mark.parametrize("error", [ProbeRefused("404: no such page"), OSError("no answer")])
def test_an_exact_interval_is_exact_until_the_target_is_dead(error: Exception) -> None:
    async def main(clock: VirtualClock) -> None:
        watch, broken = Watch(), False
        fleet = fleet_for(clock)
        fleet.add(Target("t", watch.probe(lambda _: error if broken else SAME), "10s"))
        async with running(fleet):
            await asyncio.sleep(100)
            broken, began = True, now()
            await asyncio.sleep(120)
            broken = False
            await asyncio.sleep(60)
            gaps = [after - before for before, after in pairwise(watch.at["t"]) if after > began]
            assert max(gaps) == pytest.approx(10.0)
            assert fleet.target("t").failures == 0
            broken, began = True, now()
            await asyncio.sleep(1000)
            assert fleet.target("t").state == "open"
            await asyncio.sleep(500)
            assert fleet.target("t").state == "dead"  # after about twenty minutes, as others
            assert now() - watch.at["t"][-1] < 600

    virtually(main)
