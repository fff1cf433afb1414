"""The forecasts behind Worth: regimes, rhythm, cycle."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.forecast.arrivals import RATES, Regimes, Rhythm
from pollwise.core.forecast.cycle import PHASES, SURE, Cycle
from tests.core.strategies.worth_replay import poisson


def watched(counts: list[int], span: float = 1.0, price: float = 1.0) -> Regimes:
    regimes = Regimes()
    for found in counts:
        regimes.observe(found, span)
        regimes.forecast(price, span)
    return regimes


def counts_of(rate: float, polls: int, seed: int) -> list[int]:
    found = [0] * polls
    for at in poisson(rate, int(rate * polls * 2), seed):
        if at < polls:
            found[int(at)] += 1
    return found


# Regimes.


@pytest.mark.parametrize("rate", [0.2, 1.0, 3.3, 40.0])
def test_a_steady_rate_is_found(rate: float) -> None:
    regimes = watched(counts_of(rate, 2000, seed=1))
    now, forecast = regimes.forecast(1.0, 1.0)
    assert regimes.long_run == pytest.approx(rate, rel=0.1)
    assert now == pytest.approx(rate, rel=0.45)  # between two of the rates, there is a choice
    assert forecast == pytest.approx(rate, rel=0.45)


def test_a_burst_is_believed_at_once_and_its_end_soon() -> None:
    counts = [*([0] * 50), *([20] * 20)] * 5
    regimes = watched(counts)
    assert regimes.forecast(1.0, 1.0)[0] == pytest.approx(20, rel=0.4)
    regimes.observe(0, 1.0)
    assert regimes.forecast(1.0, 1.0)[0] < 2
    regimes.observe(20, 1.0)
    assert regimes.forecast(1.0, 1.0)[0] > 10


def test_a_burst_is_expected_to_end_and_silence_as_well() -> None:
    regimes = watched([*([0] * 20), *([20] * 5)] * 60)
    long_price = 1e4  # for intervals that are long beside the burst
    now, forecast = regimes.forecast(long_price, 1.0)
    assert forecast < 0.8 * now
    for _ in range(3):
        regimes.observe(0, 1.0)
    now, forecast = regimes.forecast(long_price, 1.0)
    assert forecast > 2 * now


@given(
    st.lists(
        st.tuples(st.integers(0, 30) | st.integers(0, 10**9), st.floats(1e-6, 1e12)), max_size=40
    ),
    st.floats(1e-15, 1e30),
)
def test_the_belief_is_one_and_the_forecast_a_rate(
    polls: list[tuple[int, float]], price: float
) -> None:
    regimes = Regimes()
    for found, span in polls:
        regimes.observe(found, span)
        now, forecast = regimes.forecast(price, math.sqrt(price / regimes.long_run))
        assert sum(regimes._belief) == pytest.approx(1.0)
        assert len(regimes._belief) == len(regimes._rates) == RATES
        assert 0 < now < math.inf
        assert 0 < forecast < math.inf
        regimes.fade(0.9)


def test_the_rates_move_with_the_long_run_rate() -> None:
    regimes = watched([1000] * 3)
    assert regimes._rates[0] > 1
    for _ in range(200):
        regimes.observe(0, 1e6)
    assert regimes._rates[-1] < 1
    assert sum(regimes._belief) == pytest.approx(1.0)


def test_fading_forgets_the_past_and_not_the_present() -> None:
    regimes = watched(counts_of(3.0, 500, seed=2))
    now = regimes.forecast(1.0, 1.0)[0]
    regimes.fade(0.5)
    assert regimes.forecast(1.0, 1.0)[0] == now
    assert regimes.long_run == pytest.approx(3.0, rel=0.1)
    assert regimes.age == 250


# Rhythm.


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.floats(0, 1e6), st.floats(1e-3, 1e3))
def test_without_evidence_the_interval_is_that_of_a_steady_rate(
    price: float, rate: float, since: float, least: float
) -> None:
    interval = Rhythm().interval(price, rate, since, least, math.inf)
    assert interval == pytest.approx(math.sqrt(2 * price / rate))


def test_times_without_items_are_waited_out() -> None:
    rhythm = Rhythm()
    for _ in range(2000):  # ten items 60 s after the last, where one every 6 s was forecast
        rhythm.learn([60.5], 10.0, 1 / 6, 0.0, 61.0, 1.0)
    assert 20 < rhythm.interval(1.0, 1 / 6, 0.0, 1.0, math.inf) < 62
    assert rhythm.interval(1.0, 1 / 6, 60.0, 1.0, math.inf) < 3
    rhythm.fade(0.0)
    assert rhythm.interval(1.0, 1 / 6, 0.0, 1.0, math.inf) == pytest.approx(math.sqrt(12))


def test_the_search_ends_at_the_max_interval() -> None:
    rhythm = Rhythm()
    for _ in range(1000):
        rhythm.learn([], 0.0, 1e9, 0.0, 1e9, 1.0)  # nothing ever came
    assert rhythm.interval(1.0, 1e-3, 0.0, 1.0, 60.0) >= 60.0
    assert rhythm.interval(1.0, 1e3, 1e12, 1.0, 1e15) > 0  # past the last bin


# Cycle.


def locked(period: float = 60.0, count: int = 8, start: float = 7.0) -> Cycle:
    cycle = Cycle()
    for n in range(count):
        cycle.onset(start + n * period)
    return cycle


def test_a_period_is_confirmed_by_onsets_in_place() -> None:
    periods = [locked(count=count).period for count in range(6)]
    assert periods == [None, None, None, None, 60.0, 60.0]


def test_a_drifting_period_is_followed() -> None:
    cycle = locked()
    at = 7.0 + 7 * 60.0
    for _ in range(30):
        at += 60.6
        cycle.onset(at)
    assert cycle.period == pytest.approx(60.6, rel=0.002)


def test_stray_onsets_and_missing_ones_are_borne() -> None:
    cycle = locked(count=12)
    at = 7.0 + 11 * 60.0
    cycle.onset(at + 25.0)
    assert cycle.period == 60.0
    cycle.onset(at + 180.0)
    assert cycle.period == 60.0
    for n in range(int(SURE * 2)):
        cycle.onset(at + 200.0 + 17.3 * n * n)
    assert cycle.period is None


def test_random_onsets_have_no_period() -> None:
    rng = random.Random(4)
    cycle, at, confirmed = Cycle(), 0.0, 0
    for _ in range(2000):
        at += rng.expovariate(1.0)
        cycle.onset(at)
        confirmed += cycle.period is not None
    assert confirmed < 100


def test_a_new_period_is_found_after_the_old_one() -> None:
    cycle = locked()
    for n in range(1, 40):
        cycle.onset(5000.0 + 45.0 * n)
    assert cycle.period == pytest.approx(45.0)


def test_the_next_batch_is_foreseen() -> None:
    cycle = locked(count=10)
    at = 7.0 + 9 * 60.0
    for n in range(3000):
        tick = at + n * 60.0
        cycle.learn([tick + 0.2], 10.0, 1 / 6, tick - 59.0, tick + 1.0)
    assert 55 < cycle.interval(1.0, 1 / 6, at + 2.0) < 65
    assert cycle.interval(1.0, 1 / 6, at + 59.0) < 3
    cycle.fade(0.0)
    assert cycle.interval(1.0, 1 / 6, at + 2.0) == pytest.approx(math.sqrt(12))


def test_a_time_of_many_periods_teaches_each_phase_alike() -> None:
    cycle = locked()
    cycle.learn([], 0.0, 1.0, 0.0, 1e9)
    assert cycle._forecast == pytest.approx([60.0 / PHASES] * PHASES)
    assert cycle.interval(1e9, 1e-9, 1e9) > 120.0  # and the search has an end
