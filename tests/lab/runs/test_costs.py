from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.core.forecast.durations import Durations
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.completion import Completion
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError
from pollwise.lab.numeric import np
from pollwise.lab.runs import costs

runs = st.lists(st.floats(0.5, 500), min_size=1, max_size=20)


@given(runs, st.floats(0.5, 100))
def test_a_fixed_interval_costs_what_its_replay_costs(took: list[float], interval: float) -> None:
    shortcut = costs.at_interval(interval, np.array(took))
    replayed = costs.replay(Fixed(interval), took)
    assert shortcut.cost(2.0) == pytest.approx(replayed.cost(2.0), abs=len(took) * (interval + 2.0))


@given(runs, st.floats(0.1, 5), st.floats(1.1, 3))
def test_a_back_off_costs_what_its_replay_costs(
    took: list[float], start: float, factor: float
) -> None:
    times = costs.back_off(start, factor, 60.0, max(took))
    replayed = costs.replay(Adaptive(start, 60.0, backoff_multiplier=factor), took)
    assert costs.at_times(times, np.array(took)).polls == pytest.approx(
        replayed.polls, abs=len(took)
    )


@settings(max_examples=20, deadline=None)
@given(runs, st.floats(0.1, 50))
def test_nothing_in_hindsight_is_cheaper_than_the_best(took: list[float], price: float) -> None:
    array = np.array(took)
    strategy, best = costs.best_interval(array, price)
    assert costs.at_interval(strategy.interval, array) == best
    for interval in (*(each * 1.000001 for each in took), 10.03):
        assert best.cost(price) <= costs.at_interval(interval, array).cost(price) * 1.05
    assert best.runs == len(took)
    assert best.cost(price) >= price * len(took)


def test_the_best_back_off_is_one_of_those_tried() -> None:
    took = np.array([10.0, 12.0, 300.0])
    (start, factor), best = costs.best_back_off(took, 1.0)
    assert best == costs.at_times(costs.back_off(start, factor, math.inf, 300.0), took)


def test_completion_learns_from_run_to_run() -> None:
    took = [100.0] * 30
    found = list(costs.each_run(Completion(poll_cost=2.0), took))
    assert sum(each.polls for each in found[-10:]) < sum(each.polls for each in found[:10])
    history = Durations()
    costs.replay(Completion(poll_cost=2.0, history=history), took)
    assert history.runs == 30


def test_endless_polling_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "POLLS_MAX", 100)
    with pytest.raises(ConfigError, match="fixed polls a run of 1000 s more than 100 times"):
        costs.replay(Fixed(1.0), [1000.0])
