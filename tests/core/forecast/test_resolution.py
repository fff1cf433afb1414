"""Resolution: the step of rounded stamps is recognised, and waits are spread over it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.forecast.resolution import AGREED_MAX, COARSEST, Resolution


def told(step: float, count: int, seed: int, mean: float = 3.0, noise: float = 0.0) -> Resolution:
    """What is known after items at random, with stamps rounded down to a step (0: exact)."""
    rng, resolution = random.Random(seed), Resolution()
    at = last = 0.0
    for _ in range(count):
        at += rng.expovariate(1 / mean)
        stamp = math.floor(at / step) * step if step else at
        stamp += noise * rng.uniform(-1, 1)
        resolution.learn(stamp - last)
        last = stamp
    return resolution


@pytest.mark.parametrize("step", [0.001, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_step_of_rounded_stamps_is_recognised(step: float, seed: int) -> None:
    resolution = told(step, 300, seed, mean=4 * step)
    assert resolution.step == pytest.approx(step)


def test_clocks_that_read_a_little_differently_do_no_harm() -> None:
    assert told(1.0, 300, seed=1, noise=0.004).step == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_exact_stamps_have_no_step(seed: int) -> None:
    assert told(0.0, 1000, seed).step < 0.01  # of intervals of seconds


def test_batches_at_a_period_are_no_rounding() -> None:
    resolution = Resolution()
    for _ in range(100):
        resolution.learn(60.0)
    assert COARSEST < 60.0
    assert resolution.step == 0.0


def test_a_step_that_ends_is_forgotten() -> None:
    resolution = told(1.0, 300, seed=2)
    rng = random.Random(3)
    for _ in range(AGREED_MAX):
        resolution.learn(rng.uniform(0.1, 0.9))
    assert resolution.step < 0.5


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=50))
def test_any_times_leave_a_sound_step(between: list[float]) -> None:
    resolution = Resolution()
    for each in between:
        resolution.learn(each)
        assert 0.0 <= resolution.step <= COARSEST


@given(st.lists(st.floats(0, 1e6), max_size=30), st.floats(1e-3, 1e3))
def test_spread_waits_lie_in_the_step_of_their_stamp(waits: list[float], span: float) -> None:
    resolution = told(1.0, 300, seed=4)
    for wait, spread in zip(waits, resolution.spread(waits, span), strict=True):
        assert max(wait - resolution.step, 0.0) - 1e-6 <= spread <= wait
        assert spread == wait or spread <= span


def test_waits_fill_the_step_evenly() -> None:
    resolution = told(1.0, 300, seed=5)
    spread = sorted(resolution.spread([5.0] * 1000, span=60.0))
    assert spread == pytest.approx([4.0 + n / 1000 for n in range(1000)], abs=0.003)
