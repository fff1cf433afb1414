"""How often a reading changes, learned from looks at irregular times."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.forecast.changes import FIRST_WEIGHT, MEMORY, ChangeRate

gaps = st.floats(0, 1e9)


def learned(rate: float, gaps: list[float], seed: int, expected: float = 1.0) -> ChangeRate:
    """What is believed after looks at these gaps of a reading that changes at `rate`."""
    rng, belief = random.Random(seed), ChangeRate(expected)
    for gap in gaps:
        if rng.random() < -math.expm1(-rate * gap):
            belief.changed(gap)
        else:
            belief.unchanged(gap)
    return belief


@given(st.floats(1e-9, 1e9))
def test_before_any_poll_it_is_what_is_expected(expected: float) -> None:
    belief = ChangeRate(expected)
    assert belief.rate == pytest.approx(expected)
    assert belief.weight == FIRST_WEIGHT


@pytest.mark.parametrize("rate", [0.003, 0.1, 1.0, 7.0])
@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_the_rate_is_found_from_irregular_polls(rate: float, spread: float) -> None:
    """Over many targets, the belief is right on average, though a look tells one bit."""
    rng = random.Random(f"{rate} {spread}")
    beliefs = []
    for seed in range(60):
        # About one change a look: spread 4 draws gaps over more than a factor of 10 either way.
        gaps = [math.exp(rng.uniform(-1, 1) * math.log(2 * spread)) / rate for _ in range(200)]
        beliefs.append(learned(rate, gaps, seed).rate)
    mean = sum(beliefs) / len(beliefs)
    assert mean == pytest.approx(rate, rel=0.15), f"seeds 0-59 of rate {rate}, spread {spread}"
    assert sum(0.5 * rate < each < 2 * rate for each in beliefs) >= 54


def test_counting_changes_would_be_wrong_and_this_is_not() -> None:
    """Looks far apart find a change nearly every time: they hide how many there were."""
    belief = learned(1.0, [3.0] * 400, seed=7)
    assert belief.rate == pytest.approx(1.0, rel=0.35)
    assert belief.rate > 2 / 3  # changes found a second: about 0.32


def test_a_target_that_always_changes_is_soon_believed() -> None:
    belief = ChangeRate(expected=0.01)
    rates = []
    for _ in range(6):
        belief.changed(1.0)
        rates.append(belief.rate)
    assert rates == sorted(rates)
    assert rates[-1] > 30 * 0.01


@given(st.floats(1e-6, 1e6), st.lists(st.tuples(gaps, st.booleans()), max_size=60))
def test_any_polls_leave_a_sound_estimate(expected: float, looks: list[tuple[float, bool]]) -> None:
    belief = ChangeRate(expected)
    for gap, changed in looks:
        before = belief.rate
        if changed:
            belief.changed(gap)
            assert belief.rate >= before * (1 - 1e-9)
        else:
            belief.unchanged(gap)
            assert belief.rate <= before * (1 + 1e-9)
        assert 0 < belief.rate < math.inf
        assert 0 < belief.weight <= 2 * MEMORY + 2


@given(st.floats(1e-3, 1e3), st.lists(st.floats(0, 100), min_size=1, max_size=20))
def test_quiet_polls_add_up_however_they_are_sliced(expected: float, slices: list[float]) -> None:
    """Before anything is known there is nothing to forget, and seconds add up."""
    many, once = ChangeRate(expected), ChangeRate(expected)
    for gap in slices:
        many.unchanged(gap)
    once.unchanged(math.fsum(slices))
    assert many.rate == pytest.approx(once.rate)


def test_a_reading_that_tells_when_it_changed_is_counted_exactly() -> None:
    belief = ChangeRate(expected=1.0, weight=2.0)
    belief.changed(gap=10.0, age=3.0)
    kept = 2.0 * (1 - 1 / MEMORY)
    assert belief.rate == pytest.approx((kept + 1) / (kept + 3.0))


def test_an_age_beyond_all_bounds_leaves_a_sound_estimate() -> None:
    rate = ChangeRate(1.0)
    rate.changed(1e200, 1e200)
    rate.changed(1e190)
    assert 0 < rate.rate < math.inf
    assert 0 < rate.weight < math.inf


def test_saturated_polls_with_the_time_of_change_still_find_the_rate() -> None:
    """Every look finds a change; when it was says how many there must have been."""
    rng, belief = random.Random(3), ChangeRate(expected=0.01)
    for _ in range(200):
        belief.changed(gap=60.0, age=min(rng.expovariate(2.0), 60.0))
    assert belief.rate == pytest.approx(2.0, rel=0.5)


def test_old_polls_are_forgotten() -> None:
    belief, quiet_looks = learned(1.0, [1.0] * 2000, seed=1), 0
    while belief.rate > 0.1:
        belief.unchanged(10.0)
        quiet_looks += 1
    assert quiet_looks <= 60, "two thousand busy looks outweigh so many quiet ones"


@pytest.mark.parametrize("gap", [0.0, -5.0, 5e-324])
def test_a_clock_that_stood_or_stepped_back_tells_nothing(gap: float) -> None:
    belief = ChangeRate(1.0)
    belief.changed(gap)
    belief.unchanged(gap)
    assert belief.rate == pytest.approx(1.0)
