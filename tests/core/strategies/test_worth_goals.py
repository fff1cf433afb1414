"""The goals of Worth, on seeded traffic: budgets are kept and latencies met."""

from __future__ import annotations

import random
from bisect import bisect_right

import pytest

from pollwise.core.strategies.goals import (
    STEER_MAX,
    BudgetGoal,
    MeanWaitGoal,
    P95WaitGoal,
    PriceGoal,
)
from pollwise.core.strategies.worth import Worth
from tests.core.strategies.worth_replay import poisson, replay

HOUR = 3600.0


def most_in(window: float, polled: list[float]) -> int:
    """The most polls in any window of that length."""
    return max(bisect_right(polled, at + window) - n for n, at in enumerate(polled))


def bursts(seed: int, hours: float) -> list[float]:
    """On for a minute or two, off for ten or so."""
    rng = random.Random(seed)
    at, arrivals = 0.0, []
    while at < hours * HOUR:
        at += rng.expovariate(1 / 600)
        arrivals += [at + each for each in poisson(3.0, rng.randint(100, 400), rng.random())]
        at = arrivals[-1]
    return arrivals


@pytest.mark.parametrize("per_hour", [120, 600])
def test_a_budget_is_kept_over_six_hours(per_hour: int) -> None:
    arrivals = poisson(0.2, 5500, seed=1)  # seven and a half hours
    run = replay(Worth.budget(polls_per_hour=per_hour, max_interval="10m"), arrivals)
    for start in (0.0, 0.5 * HOUR, HOUR):
        polls = sum(start < at <= start + 6 * HOUR for at in run.polled)
        assert polls == pytest.approx(6 * per_hour, rel=0.05)


def test_a_budget_is_not_overrun_in_a_burst() -> None:
    quiet = poisson(0.01, 100, seed=2)
    burst = [quiet[-1] + each for each in poisson(20.0, 30_000, seed=3)]
    run = replay(Worth.budget(polls_per_hour=600, max_interval="10m"), [*quiet, *burst])
    assert most_in(HOUR, run.polled) <= 1.2 * 600 + 1


def test_a_budget_in_dollars_is_one_in_polls() -> None:
    arrivals = poisson(0.5, 500, seed=4)
    dollars = Worth.budget(dollars_per_month=720, price=1 / 600)  # 600 polls an hour
    polls = Worth.budget(polls_per_hour=600)
    assert replay(dollars, arrivals).polled == pytest.approx(replay(polls, arrivals).polled)


def test_a_small_budget_is_kept_as_well() -> None:
    run = replay(Worth.budget(polls_per_hour=4, max_interval="4h"), poisson(0.02, 4000, seed=5))
    assert run.polls / (run.span / HOUR) == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize("stamps", [True, False])
def test_p95_is_met_in_steady_traffic(stamps: bool) -> None:
    run = replay(Worth.latency(p95="2s"), poisson(1.0, 6000, seed=6), stamps=stamps)
    assert 1.6 <= run.p95() <= 2.1


def test_p95_is_met_in_bursts() -> None:
    run = replay(Worth.latency(p95="2s"), bursts(7, hours=3))
    assert 1.6 <= run.p95() <= 2.1
    assert run.polls < 0.9 * run.span / (2.0 / 0.95)  # and with fewer polls than a fixed interval


@pytest.mark.parametrize("stamps", [True, False])
def test_the_mean_wait_is_met(stamps: bool) -> None:
    run = replay(Worth.latency(mean="2s"), poisson(1.0, 6000, seed=8), stamps=stamps)
    assert sum(run.waits) / len(run.waits) == pytest.approx(2.0, rel=0.05)


def test_a_latency_that_cannot_be_missed_is_not_chased_for_ever() -> None:
    goal = MeanWaitGoal(1.0)
    for _ in range(10_000):
        goal.waited([0.0], 1.0)
    assert goal.steer == STEER_MAX
    for _ in range(2 * 1000):
        goal.waited([4.0], 1.0)
    assert goal.steer == -STEER_MAX


def test_a_price_is_what_it_is() -> None:
    goal = PriceGoal(3.0)
    goal.polled(1.0)
    goal.waited([1.0], 1.0)
    goal.spread(1.0, 1.0)
    assert (goal.price(0.1), goal.price(10.0), goal.steer, goal.soonest()) == (3.0, 3.0, 0.0, 0.0)


def test_steered_prices_begin_where_steady_traffic_needs_them() -> None:
    for goal in (BudgetGoal(600), MeanWaitGoal(3.0), P95WaitGoal(5.7)):
        assert goal.price(2.0) == pytest.approx(2.0 * 6.0**2 / 2)  # an interval of 6 s


def test_items_that_come_evenly_are_late_by_their_share() -> None:
    goal = P95WaitGoal(1.0)
    goal.spread(100.0, 1.0)  # 5 % waited more than 95 % of the interval
    assert goal.steer == pytest.approx(0.0)
    goal.spread(100.0, 0.5)
    assert goal.steer > 0.0
    goal.spread(100.0, 2.0)
    assert goal.steer < 0.0
