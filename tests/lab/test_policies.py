"""How the lab names strategies, and which settings it tries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.batch_fill import BatchFill
from pollwise.core.strategies.ewma import Ewma
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.worth import Worth
from pollwise.errors import ConfigError
from pollwise.lab.policies import (
    USUAL,
    Axis,
    CostTerms,
    known,
    label,
    parse,
    parse_one,
    rounded,
    space,
)

TERMS = CostTerms(5e-6, 0.01 / 3600)


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("adaptive", Adaptive()),
        (" Adaptive ", Adaptive()),
        ("adaptive 200ms 10s", Adaptive("200ms", "10s")),
        ("adaptive 200ms to 10s", Adaptive("200ms", "10s")),
        ("adaptive max_interval=30s", Adaptive(max_interval="30s")),
        ("adaptive backoff_multiplier=1.5", Adaptive(backoff_multiplier=1.5)),
        ("fixed 500ms", Fixed("500ms")),
        ("fixed 2", Fixed(2)),
        ("fixed 0 hold=20s", Fixed(0, hold="20s")),
        ("batch-fill 1s 4s hold=20s", BatchFill("1s", "4s", hold=20)),
        ("ewma", Ewma()),
        ("ewma alpha=0.5", Ewma(alpha=0.5)),
        ("ewma idle_interval=25s", Ewma(idle_interval=25)),
        (
            "ewma 2s to 40s",
            Ewma(
                very_high_interval=2,
                high_interval=10,
                medium_interval=20,
                low_interval=30,
                idle_interval=40,
            ),
        ),
        ("worth", Worth(poll_cost=5e-6, wait_cost=0.01 / 3600)),
        ("worth max_interval=5m", Worth(poll_cost=5e-6, wait_cost=0.01 / 3600, max_interval="5m")),
        ("worth wait_cost=1e-3", Worth(poll_cost=5e-6, wait_cost=1e-3)),
        ("worth p95_wait=2s", Worth(p95_wait="2s")),
        ("worth polls_per_hour=720", Worth(polls_per_hour=720)),
    ],
)
def test_a_policy_can_be_written_and_is_called_so_that_it_can_be_again(
    text: str, strategy: Strategy
) -> None:
    assert parse_one(text, TERMS) == strategy
    assert parse_one(label(strategy, TERMS), TERMS) == strategy
    if not text.startswith("worth "):
        assert parse_one(label(strategy), TERMS) == strategy


def test_labels() -> None:
    labels = [label(each, TERMS) for each in parse(USUAL, TERMS)]
    assert labels == [
        "worth", "adaptive 100ms to 5s", "fixed 500ms", "batch_fill 1s to 8s", "ewma 1s to 20s",
    ]  # fmt: skip


def test_a_policy_named_twice_is_compared_once() -> None:
    assert parse("adaptive,fixed 1s,adaptive 100ms 5s", TERMS) == [Adaptive(), Fixed(1)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("adaptiv", "did you mean 'adaptive'?"),
        ("zzz", "known: adaptive, fixed, batch_fill, ewma, worth"),
        ("", "empty entry"),
        ("adaptive,,fixed", "empty entry"),
        ("fixed 1s 2s", "'2s' in 'fixed 1s 2s' is too much"),
        ("worth 1s", "is too much"),
        ("fixed 1s interval=2s", "interval is given twice"),
        ("adaptive max_intervall=5s", "did you mean 'max_interval'?"),
        ("fixed x", "interval = 'x' in 'fixed x' is not a duration"),
        ("ewma alpha=much", "must be a number"),
        ("adaptive 5s 1s", "min_interval = 5.0 is above max_interval = 1.0"),
        ("ewma 5s 1s", "min_interval = 5.0 is above max_interval = 1.0"),
        ("fixed 0", "polls without any pause"),
        ("worth p95_wait=2s polls_per_hour=3", "2 goals"),
    ],
)
def test_what_is_no_policy(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(text, TERMS)
    assert says in str(refused.value)


def test_free_polls_cost_worth_next_to_nothing() -> None:
    strategy = parse_one("worth", CostTerms(0.0, 1.0))
    assert isinstance(strategy, Worth)
    assert strategy.poll_cost == pytest.approx(1e-6)


def test_the_best_interval_of_a_steady_rate() -> None:
    """√(2c/(wλ))"""
    assert CostTerms(2.0, 1.0).best_interval(1.0) == pytest.approx(2.0)


# Settings to try

DELAYS = st.floats(1e-3, 1e4)


@given(st.sampled_from(sorted(known())), DELAYS, DELAYS)
def test_every_point_of_a_space_is_a_strategy_within_its_bounds(
    name: str, one: float, other: float
) -> None:
    low, high = min(one, other), max(one, other)
    tried = space(name, low, high, TERMS)
    points = tried.grid()
    for point in (points[0], points[len(points) // 2], points[-1]):
        for each in (point, *tried.around(point, 0.5)):
            strategy = tried.strategy(each)
            assert strategy.name == name
            # Settings are rounded to two digits, so that people can read them.
            assert 0.94 * low <= strategy.min_interval
            assert strategy.max_interval <= 1.06 * high


def test_a_grid_reaches_both_ends() -> None:
    assert Axis("interval", 0.1, 10.0).points(3) == pytest.approx([0.1, 1.0, 10.0])
    assert Axis("interval", 2.0, 2.0).points(3) == [2.0]
    tried = {
        each.min_interval for each in map(space("fixed", 0.1, 10, TERMS).strategy, [(0.1,), (10,)])
    }
    assert tried == {0.1, 10.0}


@given(st.floats(1e-9, 1e9))
def test_rounding_keeps_two_digits(value: float) -> None:
    assert rounded(value) == pytest.approx(value, rel=0.05)
    assert len(f"{rounded(value):.6e}".partition("e")[0].replace(".", "").rstrip("0")) <= 2
