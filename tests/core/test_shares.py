"""A budget of polls, shared out among targets that change at different rates."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.shares import (
    RATES,
    STALE_MIN,
    Form,
    Share,
    Shares,
    delay_rate,
    freshness_rate,
)
from pollwise.errors import ConfigError

forms = st.sampled_from(["age", "delay", "freshness"])
changes = st.floats(1e-6, 1e4)


def shared(
    budget: float, rates: Sequence[float], form: Form = "delay", max_interval: float = 1e9
) -> list[float]:
    """The polls a second of targets that change at these rates, all else equal."""
    shares = Shares(budget, form)
    taken = [
        shares.join(1.0, min_interval=1e-9, max_interval=max_interval, change=each)
        for each in rates
    ]
    return [1 / shares.interval(each) for each in taken]


def unseen(form: Form, change: float, rate: float) -> float:
    """What a target costs at this `rate`: its changes' waits, how far it lags, or its age."""
    if form == "age":
        return 1 / rate
    return change / rate if form == "delay" else math.log1p(change / rate)


@given(forms, st.floats(1e-3, 1e3), st.lists(changes, min_size=1, max_size=30))
def test_all_together_make_the_budget(form: Form, budget: float, rates: list[float]) -> None:
    assert sum(shared(budget, rates, form)) == pytest.approx(budget, rel=0.05)


@given(forms, changes, st.floats(1e-3, 1e3), st.floats(1e-6, 1e6))
def test_the_written_formula(form: Form, change: float, weight: float, kappa: float) -> None:
    if form == "delay":
        expected = math.sqrt(weight * change / kappa)
    elif form == "age":
        expected = math.sqrt(weight / kappa)
    else:
        root = math.sqrt(change * change + 4 * weight * change / kappa)
        expected = (root - change) / 2
        if root < change * (1 + 1e-6):  # where the difference of the two has no digits left
            expected = weight / kappa
    assert RATES[form](change, weight, kappa) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("form", ["age", "delay", "freshness"])
def test_no_other_sharing_does_better(form: Form) -> None:
    """Moving a little of the budget from anybody to anybody else only makes it worse."""
    rates = [0.01, 0.05, 0.3, 1.0, 4.0]
    best = shared(2.0, rates, form)
    cost = sum(unseen(form, change, rate) for change, rate in zip(rates, best, strict=True))
    for giver in range(len(rates)):
        for taker in set(range(len(rates))) - {giver}:
            other = list(best)
            step = min(best[giver] * 0.2, 0.05)
            other[giver] -= step
            other[taker] += step
            moved = sum(
                unseen(form, change, rate) for change, rate in zip(rates, other, strict=True)
            )
            assert moved > cost * (1 - 1e-4)


def test_uneven_shares_beat_even_ones() -> None:
    rng = random.Random(5)
    rates = [10 ** rng.uniform(-4, 0) for _ in range(200)]
    best = shared(20.0, rates)
    even = sum(change / (20.0 / 200) for change in rates)
    assert sum(map(lambda change, rate: change / rate, rates, best)) < 0.6 * even


def test_who_changes_a_hundred_times_as_often_is_polled_ten_times_as_often() -> None:
    quick, slow = shared(11.0, [1.0, 0.01])
    assert [quick, slow] == pytest.approx([10.0, 1.0], rel=1e-3)


def test_freshness_polls_hopeless_targets_all_alike() -> None:
    wild, wilder, slow = shared(1.0, [100.0, 1000.0, 0.01], "freshness")
    assert wilder == pytest.approx(wild, rel=0.01)
    assert wild > slow
    wild, wilder, slow = shared(1.0, [100.0, 1000.0, 0.01], "delay")
    assert wilder > 3 * wild > 9 * slow


def test_a_weight_counts_as_so_many_changes() -> None:
    shares = Shares(3.0)
    heavy = shares.join(4.0, min_interval=1e-9, max_interval=1e9, change=0.1)
    light = shares.join(1.0, min_interval=1e-9, max_interval=1e9, change=0.1)
    assert shares.interval(light) == pytest.approx(2 * shares.interval(heavy))


def test_no_target_starves_or_is_polled_faster_than_its_min_interval() -> None:
    shares = Shares(1.0)
    dead = shares.join(1.0, min_interval=1.0, max_interval=300.0, change=1e-12)
    wild = shares.join(1.0, min_interval=5.0, max_interval=300.0, change=1e6)
    others = [shares.join(1.0, min_interval=1.0, max_interval=300.0, change=0.1) for _ in range(20)]
    assert shares.interval(dead) == 300.0
    assert shares.interval(wild) == 5.0
    left = 1.0 - 1 / 300 - 1 / 5
    assert shares.interval(others[0]) == pytest.approx(20 / left, rel=1e-3)


def test_the_polls_that_the_max_intervals_need() -> None:
    shares = Shares(0.5)
    taken = [shares.join(1.0, 1.0, 10.0, change=0.1) for _ in range(20)]
    assert shares.least == pytest.approx(2.0)  # four times the budget
    assert {shares.interval(each) for each in taken} == {10.0}


def test_those_who_leave_leave_their_share_to_the_others() -> None:
    shares = Shares(10.0)
    stays, leaves = (shares.join(1.0, 1e-6, 1e6, change=1.0) for _ in range(2))
    assert shares.interval(stays) == pytest.approx(0.2, rel=1e-3)
    shares.leave(leaves)
    assert len(shares) == 1
    assert shares.interval(stays) == pytest.approx(0.1, rel=1e-3)
    with pytest.raises(ConfigError, match="was already removed"):
        shares.leave(leaves)


def test_another_budget_takes_hold_at_once() -> None:
    shares = Shares(10.0)
    one = shares.join(1.0, 1e-6, 1e6, change=1.0)
    assert shares.interval(one) == pytest.approx(0.1, rel=1e-3)
    shares.budget = 100.0
    assert shares.interval(one) == pytest.approx(0.01, rel=1e-3)


@given(forms, st.integers(0, 2**32))
def test_beliefs_that_move_keep_the_budget(form: Form, seed: int) -> None:
    rng = random.Random(seed)
    shares = Shares(50.0, form)
    taken: list[Share] = []
    for _ in range(300):
        turn = rng.random()
        if turn < 0.2 or not taken:
            weight = rng.choice([1.0, 1.0, 3.0])
            taken.append(shares.join(weight, 1e-6, 1e6, change=10 ** rng.uniform(-4, 2)))
        elif turn < 0.25:
            shares.leave(taken.pop(rng.randrange(len(taken))))
        else:
            share = rng.choice(taken)
            shares.update(share, share.change * 10 ** rng.uniform(-0.5, 0.5))
    shares.budget = 50.0  # finds κ anew
    if taken:
        spent = sum(1 / shares.interval(each) for each in taken)
        assert spent == pytest.approx(50.0, rel=0.05), f"seed {seed}"
    assert len(shares) == len(taken)


def test_a_million_targets_take_no_walk_over_all_of_them() -> None:
    """Targets alike share a bucket: their number does not count, only how different they are."""
    shares = Shares(1000.0)
    for n in range(5000):
        shares.join(1.0, 1.0, 300.0, change=1e-4 * 1.01 ** (n % 500))
    assert len(shares._buckets) < 64


@pytest.mark.parametrize("budget", [0, -1.0, math.inf, math.nan, "5"])
def test_a_budget_is_polls_a_second(budget: float) -> None:
    message = f"budget = {budget!r} must be polls a second, above 0 and finite"
    with pytest.raises(ConfigError, match=re.escape(message)):
        Shares(budget)


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ConfigError, match="form = 'luck' must be one of age, delay, freshness"):
        Shares(1.0, "luck")  # type: ignore[arg-type]


def test_the_limits_of_the_two_forms() -> None:
    assert delay_rate(0.04, 1.0, 1.0) == pytest.approx(0.2)
    # Where polls are cheap beside the changes, both forms share by the root.
    assert freshness_rate(1e-6, 1.0, 1.0) == pytest.approx(delay_rate(1e-6, 1.0, 1.0), rel=1e-3)


@pytest.mark.parametrize("factor", [1.2, 1e6])
def test_beliefs_that_moved_are_reckoned_with_before_long(factor: float) -> None:
    """Little by little or all at once: the old κ is only where the search begins."""
    shares = Shares(10.0)
    taken = [shares.join(1.0, 1e-9, 1e9, change=0.1) for _ in range(4)]
    assert shares.interval(taken[0]) == pytest.approx(0.4, rel=1e-3)
    for _ in range(STALE_MIN + 1):
        shares.update(taken[0], 0.1 * factor)
    rates = [1 / shares.interval(each) for each in taken]
    assert sum(rates) == pytest.approx(shares.budget, rel=1e-3)
    assert rates[0] / rates[1] == pytest.approx(math.sqrt(factor), rel=1e-3)
