"""Freshness: what changes or is stale is polled sooner, what is quiet later."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.outcome import Outcome
from pollwise.core.strategies.freshness import Freshness, FreshnessPacer, staleness_score
from pollwise.errors import ConfigError
from tests.core.strategies.pacing import saw, turns

FRESH = Freshness()


def watched(pacer: FreshnessPacer, rate: float, polls: int, seed: int = 1) -> float:
    """The interval after so many polls of a reading that changes at `rate`, at the pacer's pace."""
    rng, now, delay = random.Random(seed), 0.0, pacer.first().delay
    next_change = rng.expovariate(rate)
    pacer.after(saw(0, at=now))
    for _ in range(polls):
        now += delay
        found = 0
        while next_change <= now:
            found, next_change = 1, next_change + rng.expovariate(rate)
        delay = pacer.after(saw(found, 1, at=now)).delay
    return delay


def test_it_begins_at_its_base() -> None:
    assert FRESH.pacer().first().delay == 10.0


@pytest.mark.parametrize(
    ("every", "expected"), [(1.0, 5.0), (10.0, 10.0), (160.0, 40.0), (1e6, 300.0)]
)
def test_the_interval_follows_how_often_the_reading_changes(every: float, expected: float) -> None:
    """√(base × the mean time between changes), within min_interval and max_interval."""
    ends = [watched(FRESH.pacer(), 1 / every, 300, seed) for seed in range(9)]
    assert sorted(ends)[4] == pytest.approx(expected, rel=0.3), f"seeds 0-8: {ends}"


def test_a_healthy_target_that_changes_does_not_drift_to_the_max_interval() -> None:
    """Where the formula it is from settles at 220 to 280 s, whatever happens."""
    assert watched(FRESH.pacer(), 1 / 60, 200) < 45.0


def test_a_target_that_turns_busy_is_followed_and_one_that_turns_quiet_is_left() -> None:
    pacer = FRESH.pacer()
    quiet = watched(pacer, 1e-6, 100)
    assert quiet == pytest.approx(300.0, rel=0.01)
    delay, polls, now = quiet, 0, 1e6
    pacer.after(saw(0, at=now, failed=True))
    while delay > 100.0:
        now += delay
        delay = pacer.after(saw(1, 1, at=now)).delay
        polls += 1
    assert polls <= 8


def test_each_error_shortens_the_interval_and_successes_forgive_it() -> None:
    pacer = Freshness(base_interval="60s").pacer()
    pacer.after(saw(0, at=0.0))
    before = pacer.after(saw(0, at=60.0)).delay
    failed = [pacer.after(saw(0, at=60.0 + n, failed=True)).delay for n in (1, 2, 3)]
    assert before > failed[0] > failed[1] > failed[2]
    assert pacer.state()["errors"] == 3.0
    recovered = [pacer.after(saw(0, at=64.0 + n)).delay for n in range(12)]
    assert recovered == sorted(recovered)
    assert pacer.state()["errors"] == pytest.approx(3 / 2**12)
    assert recovered[-1] > before * 0.9


def test_a_failure_teaches_nothing_about_changes() -> None:
    one, other = FRESH.pacer(), FRESH.pacer()
    for pacer in (one, other):
        pacer.after(saw(0, at=0.0))
    other.after(saw(0, at=30.0, failed=True))
    for pacer in (one, other):
        pacer.after(saw(1, 1, at=60.0))
    assert one.changes.rate == other.changes.rate


def test_the_staler_the_sooner() -> None:
    """Long without a success, each failure brings the interval nearer to the min_interval."""
    ages = (-1.0, 0.0, 75.0, 300.0, 1e9, None)
    assert [staleness_score(age, 300.0) for age in ages] == [0, 0, 0.25, 1, 1, 1]
    pacer = Freshness(base_interval="100s").pacer()
    pacer.after(saw(0, at=0.0))
    delays = [pacer.after(saw(0, at=at, failed=True)).delay for at in (100.0, 200.0, 300.0, 400.0)]
    assert delays == sorted(delays, reverse=True)
    for at in range(500, 1200, 100):
        pacer.after(saw(0, at=float(at), failed=True))
    assert pacer.first().delay == 5.0


def test_a_target_never_reached_is_as_stale_as_can_be() -> None:
    pacer = FRESH.pacer()
    assert pacer.age(50.0) is None
    assert pacer.after(saw(0, at=1.0, failed=True)).delay < 10.0
    pacer.after(saw(0, at=2.0))
    assert pacer.age(50.0) == 48.0


def test_polls_that_wait_for_a_place_stretch_it() -> None:
    def after(queued: int) -> float:
        pacer = Freshness(base_interval="60s").pacer()
        pacer.after(saw(0, at=0.0))
        pacer.queued = queued
        return pacer.after(saw(0, at=60.0)).delay

    alone = after(0)
    assert after(1) == alone
    target = (alone - 0.4 * Freshness(base_interval="60s").pacer().first().delay) / 0.6
    assert target > 0
    assert after(2) > alone
    assert after(11) > after(2)
    assert after(10**9) == 300.0


def test_a_reading_that_tells_when_it_changed_teaches_more() -> None:
    told, untold = FRESH.pacer(), FRESH.pacer()
    for pacer, waits in ((told, (0.5,)), (untold, ())):
        pacer.after(saw(0, at=0.0))
        for n in range(1, 40):
            pacer.after(Outcome(60.0 * n, 1, 1, waits))
    assert told.changes.rate == pytest.approx(2.0, rel=0.2)
    assert 1 / 60 < untold.changes.rate < 0.8 * told.changes.rate


def test_changes_are_reported_when_the_interval_doubled_or_halved() -> None:
    pacer, now, seen = FRESH.pacer(), 0.0, []
    for _ in range(200):
        pause = pacer.after(saw(0, at=now))
        seen += turns(pause)
        now += pause.delay
    assert [what for what, _, _ in seen] == ["back-off"] * len(seen)
    assert 3 <= len(seen) <= 5  # 10 s to 300 s
    assert all(after >= 2 * before for _, before, after in seen)


@given(st.floats(1e-3, 1e6), st.floats(0, 1e6))
def test_the_state_shows_the_rate_of_change(base: float, at: float) -> None:
    pacer = Freshness(base, base, base * 2).pacer()
    pacer.after(saw(0, at=at))
    state = pacer.state()
    assert state["changes_per_second"] == pytest.approx(1 / base)
    assert math.isfinite(float(str(state["interval"])))


@pytest.mark.parametrize("base", ["1s", "6m"])
def test_the_base_lies_between_min_interval_and_max_interval(base: str) -> None:
    with pytest.raises(
        ConfigError, match=f"base_interval = '{base}' must be from min_interval = '5s' to"
    ):
        Freshness(base)


@pytest.mark.parametrize(
    ("given", "adjusted"),
    [
        ({}, Freshness("10s", "5s", "5m")),
        ({"base_interval": 20.0}, Freshness("20s", "5s", "5m")),
        ({"min_interval": 60.0}, Freshness("1m", "1m", "5m")),
        ({"min_interval": 600.0}, Freshness("10m", "10m", "10m")),
        ({"max_interval": 3.0}, Freshness("3s", "3s", "3s")),
        ({"min_interval": 1.0, "max_interval": 8.0}, Freshness("8s", "1s", "8s")),
    ],
)
def test_adjusted_moves_what_is_not_given_only_as_far_as_it_must(
    given: dict[str, float], adjusted: Freshness
) -> None:
    assert Freshness("10s", "5s", "5m").adjusted(**given) == adjusted


def test_adjusted_refuses_bounds_that_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="is above max_interval"):
        Freshness().adjusted(min_interval=9.0, max_interval=8.0)
