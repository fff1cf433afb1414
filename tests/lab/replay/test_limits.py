"""Limits: against brute force, against each other, and against replays."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise import Fixed, Strategy
from pollwise.errors import ConfigError
from pollwise.lab.replay.base import Trace
from pollwise.lab.replay.engine import replay
from pollwise.lab.replay.limits import best_fixed, optimum, sees_arrivals
from pollwise.lab.traces.synthetic import WORKLOADS, workload
from tests.lab.replay.replaying import known_strategies, trace_of, traces

RATIOS = st.one_of(st.floats(0.0, 100.0), st.sampled_from([0.0, 1e-6, 1.0, 1e6]))


def brute_force(arrivals: list[float], ratio: float) -> float:
    """The same recursion without the hull: every last poll before is tried."""
    best = [0.0]
    for i in range(1, len(arrivals) + 1):
        waiting, least = 0.0, math.inf
        for j in range(i - 1, -1, -1):
            waiting += arrivals[i - 1] - arrivals[j]
            least = min(least, best[j] + waiting)
        best.append(ratio + least)
    return best[-1]


@settings(max_examples=300, deadline=None)
@given(traces(), RATIOS)
def test_the_optimum_is_that_of_brute_force(trace: Trace, ratio: float) -> None:
    limit = optimum(trace.arrivals, ratio)
    assert limit.cost == pytest.approx(brute_force(trace.arrivals.tolist(), ratio), abs=1e-9)
    assert limit.cost == pytest.approx(limit.polls * ratio + limit.waiting)
    assert len(limit.poll_times) == limit.polls
    assert set(limit.poll_times.tolist()) <= set(trace.arrivals.tolist())


def test_the_optimum_of_thousands_far_from_zero() -> None:
    arrivals = 1.7e9 + workload("self-exciting", seed=5, hours=3).arrivals[:1500]
    shifted = (arrivals - arrivals[0]).tolist()
    for ratio in (0.5, 20.0, 3000.0):
        assert optimum(arrivals, ratio).cost == pytest.approx(brute_force(shifted, ratio), rel=1e-6)


@settings(max_examples=200, deadline=None)
@given(traces(), known_strategies(), RATIOS)
def test_no_strategy_beats_the_optimum(trace: Trace, strategy: Strategy, ratio: float) -> None:
    least = optimum(trace.arrivals, ratio).cost
    assert replay(trace, strategy).cost(ratio, 1.0) >= least - 1e-6 * (1 + least)


@settings(max_examples=300, deadline=None)
@given(traces(), RATIOS)
def test_who_sees_arrivals_pays_at_most_twice_the_optimum(trace: Trace, ratio: float) -> None:
    seeing, least = sees_arrivals(trace.arrivals, ratio), optimum(trace.arrivals, ratio)
    assert least.cost - 1e-6 <= seeing.cost <= 2 * least.cost * (1 + 1e-9) + 1e-9
    assert seeing.waiting == pytest.approx(seeing.polls * ratio, rel=1e-6, abs=1e-6)


def test_seeing_arrivals_by_hand() -> None:
    # One item alone waits 6 s; three together wait 6 item-seconds.
    limit = sees_arrivals(np.array([0.0, 10.0, 11.0, 12.0]), 6.0)
    assert limit.poll_times.tolist() == [6.0, 13.0]
    assert (limit.polls, limit.waiting, limit.cost) == (2, 12.0, 24.0)


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_best_fixed_interval_is_its_replay_and_beats_its_neighbours(name: str) -> None:
    trace = workload(name, seed=1, hours=6)
    for wanted in (2.0, 30.0):
        ratio = wanted**2 * trace.rate / 2  # √(2 · ratio / rate) is the interval wanted
        interval, cost = best_fixed(trace.arrivals, ratio, trace.span)
        assert cost == replay(trace, Fixed(interval)).cost(ratio, 1.0)
        steps = (0.5, 0.9, 0.99, 0.9999, 1.0001, 1.01, 1.1, 2.0)
        for other in (60.0, wanted, *(interval * step for step in steps)):
            assert cost <= replay(trace, Fixed(other)).cost(ratio, 1.0) * 1.005
        assert optimum(trace.arrivals, ratio).cost < cost


def test_the_best_fixed_interval_of_steady_traffic_is_the_known_one() -> None:
    trace = workload("steady", seed=1, hours=24)
    interval, _ = best_fixed(trace.arrivals, 40.0, trace.span)
    assert interval == pytest.approx(math.sqrt(2 * 40.0 / trace.rate), rel=0.1)


def test_arrivals_by_the_clock_are_polled_by_the_clock() -> None:
    minutes = np.arange(0.0, 7200.0, 60.0)
    interval, cost = best_fixed(minutes, 25.0, 7200.0)
    assert interval == 60.0
    assert cost == 120 * 25.0  # a poll for each, and no waiting


def test_one_arrival_and_none() -> None:
    assert optimum(np.array([5.0]), 3.0).cost == 3.0
    assert optimum(np.empty(0), 3.0).cost == 0.0
    assert sees_arrivals(np.empty(0), 3.0).cost == 0.0
    interval, cost = best_fixed(np.array([5.0]), 3.0, 5.0)
    assert interval == 5.0
    assert cost == 6.0  # at 0 and at 5


@pytest.mark.parametrize("ratio", [-1.0, math.nan, math.inf])
def test_a_ratio_that_is_none(ratio: float) -> None:
    for limit in (optimum, sees_arrivals):
        with pytest.raises(ConfigError, match="ratio"):
            limit(np.array([1.0]), ratio)
    with pytest.raises(ConfigError, match="ratio"):
        best_fixed(np.array([1.0]), ratio, 1.0)


def test_questions_without_an_answer() -> None:
    for arrivals, ratio, span in (([], 1.0, 10.0), ([0.0], 1.0, 0.0), ([1.0], 0.0, 10.0)):
        with pytest.raises(ConfigError, match="there is no best fixed interval"):
            best_fixed(np.array(arrivals), ratio, span)
    with pytest.raises(ConfigError, match="not in order"):
        optimum(np.array([2.0, 1.0]), 1.0)
    assert trace_of([1.0]).rate == 1.0
