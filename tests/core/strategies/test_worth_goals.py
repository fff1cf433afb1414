"""The goals of Worth, on seeded traffic: budgets are kept and latencies met."""

from __future__ import annotations

import math
import random
from bisect import bisect_right

import pytest

from pollwise.core.outcome import Outcome
from pollwise.core.strategies.goals import (
    MEAN_LEAN_MAX,
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
    assert most_in(HOUR, run.polled) <= 1.02 * 600 + 1


def day_and_night(seed: int, days: int) -> list[float]:
    """Ten items an hour for half of each day, 720 for the other half."""
    rng = random.Random(seed)
    found, at = [], 0.0
    while at < days * 24 * HOUR:
        rate = (10 if at % (24 * HOUR) < 12 * HOUR else 720) / HOUR
        at += rng.expovariate(rate)
        found.append(at)
    return found


def test_a_budget_of_a_day_is_spent_where_it_helps() -> None:
    arrivals = day_and_night(1, days=2)
    even = replay(Worth.budget(polls_per_hour=300, max_interval="10m"), arrivals)
    uneven = replay(Worth.budget(polls_per_day=7200, max_interval="10m"), arrivals)
    assert most_in(24 * HOUR, uneven.polled) <= 1.06 * 7200
    assert sum(uneven.waits) < 0.85 * sum(even.waits)


def test_a_budget_never_waits_longer_than_until_the_next_poll_is_earned() -> None:
    goal = BudgetGoal(600, HOUR, 0.02)
    at = 0.0
    for _ in range(1000):
        goal.polled(at, 0.001, goal.price(1.0))
        assert goal.soonest(at) <= 2 * 6.0
        goal.delayed(100.0)
        at += 0.001


def test_a_budget_in_dollars_is_one_in_polls_a_day() -> None:
    arrivals = poisson(0.5, 500, seed=4)
    dollars = Worth.budget(dollars_per_month=720, price=1 / 600)  # 600 polls an hour
    polls = Worth.budget(polls_per_day=24 * 600)
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


@pytest.mark.parametrize("stamps", [True, False])
def test_a_p95_takes_no_more_polls_than_a_fixed_interval(stamps: bool) -> None:
    run = replay(Worth.latency(p95="2s"), poisson(0.5, 8000, seed=9), stamps=stamps)
    assert run.polls <= 1.02 * run.span / (run.p95() / 0.95)


def test_a_p95_is_spent_at_night() -> None:
    run = replay(Worth.latency(p95="2s"), day_and_night(3, days=2))
    assert run.p95() <= 2.0
    assert run.polls < 0.8 * run.span / (2.0 / 0.95)
    assert max(run.waits) <= 60.0


def test_a_p95_knows_the_period_of_batches() -> None:
    rng = random.Random(14)
    batches = [300.0 * n + rng.random() for n in range(1, 120) for _ in range(20)]
    strategy = Worth.latency(p95="2s", max_interval="5m")
    run = replay(strategy, sorted(batches))
    assert run.state["period"] == pytest.approx(300.0, rel=0.01)
    assert run.p95() <= 2.2  # 5 % are six batches
    assert run.polls < 0.9 * run.span / (2.0 / 0.95)


@pytest.mark.parametrize("goal", [{"p95": "2s"}, {"mean": "1s"}])
def test_silence_is_polled_at_the_max_interval(goal: dict[str, str]) -> None:
    strategy = Worth.latency(**goal)
    run = replay(strategy, [], until=8 * HOUR)
    assert run.delays[-1] == strategy.max_interval
    assert run.polls < 1.2 * 8 * HOUR / strategy.max_interval


def test_a_mean_wait_takes_no_more_polls_than_a_fixed_interval() -> None:
    rng = random.Random(10)
    spikes = [at + 2 * rng.random() for at in poisson(0.001, 20, seed=11) for _ in range(300)]
    arrivals = sorted([*spikes, *poisson(0.05, 1000, seed=12)])
    run = replay(Worth.latency(mean="1s"), arrivals)
    assert run.polls <= 1.02 * run.span / 2.0 + 30


def test_the_lean_of_a_mean_wait_is_bounded() -> None:
    goal = MeanWaitGoal(1.0)
    for _ in range(10_000):
        goal.waited([0.0], 1, 1.0)
    assert 0.0 < goal.lean <= MEAN_LEAN_MAX
    for _ in range(10_000):
        goal.waited([40.0], 1, 1.0)
    assert goal.lean == -MEAN_LEAN_MAX


def test_a_price_is_what_it_is() -> None:
    goal = PriceGoal(3.0)
    goal.polled(1.0, 1.0, 3.0)
    goal.waited([1.0], 1, 3.0)
    goal.spread(1, 1.0, 3.0)
    goal.delayed(2.0)
    assert (goal.price(0.1), goal.price(10.0), goal.lean, goal.soonest(1.0)) == (3.0, 3.0, 0, 0)


def test_goals_begin_with_one_item_in_each_interval() -> None:
    assert MeanWaitGoal(3.0).price(0.0) == pytest.approx(6.0 / 2)  # an interval of 6 s
    budget = BudgetGoal(600, HOUR, 0.0)
    assert budget.price(0.0) == pytest.approx(6.0 / 2 * math.exp(budget.lean))


def test_items_that_come_evenly_are_late_by_their_share() -> None:
    goal = P95WaitGoal(1.0)
    goal.spread(1000, 1.0, 1.0)  # none was late
    ahead = goal.lean
    goal.spread(1000, 2.0, 1.0)  # half of them were
    assert goal.lean < 0.0 < ahead


def test_a_forecast_of_nothing_is_a_score() -> None:
    goal = P95WaitGoal(1.0)
    goal.score([0.0, 1e-300, 1e300], 10.0)
    assert goal.pause(lambda s: 0.0, 60.0) == pytest.approx(60.0)


def test_a_p95_beyond_the_max_interval_is_polled_at_that() -> None:
    run = replay(Worth.latency(p95="2m", max_interval="30s"), poisson(0.1, 200, seed=13))
    assert run.delays[-1] == 30.0


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_numbers_of_numpy_are_numbers(kind: str) -> None:
    np = pytest.importorskip("numpy")
    every = (
        Worth(poll_cost=1, wait_cost=1), Worth.budget(polls_per_hour=600),
        Worth.latency(p95="2s"), Worth.latency(mean="2s"),
    )  # fmt: skip
    for strategy in every:
        pacer = strategy.pacer()
        for n in range(1, 50):
            waits = tuple(np.linspace(0.1, 0.9, 4).astype(kind))
            pause = pacer.after(Outcome(getattr(np, kind)(n), np.int64(4), None, waits))
            assert strategy.min_interval <= pause.delay <= strategy.max_interval
            assert type(pause.delay) is float
        assert {type(each) for each in pacer.state().values()} <= {float, type(None)}
