"""Trust: how far a pause follows a forecast."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.forecast.trust import FIRST, LEAST, MOST, Trust

lengths = st.floats(1e-6, 1e6)


@given(lengths)
def test_without_a_forecast_the_pause_is_the_usual_interval(usual: float) -> None:
    assert Trust().interval(usual, usual, usual) == pytest.approx(usual)


@given(lengths, lengths, lengths, st.lists(st.floats(0, 1e9), max_size=30))
def test_a_pause_lies_about_between_the_usual_one_and_the_forecast(
    usual: float, now: float, own: float, waited: list[float]
) -> None:
    trust = Trust()
    for each in waited:
        trust.interval(usual, now, own)
        trust.learn(each)
    widest = MOST * (abs(math.log(now / usual)) + abs(math.log(own / now)))
    assert abs(math.log(trust.interval(usual, now, own) / usual)) <= widest + 1e-6


@pytest.mark.parametrize("own", [3.0, 0.3])
def test_a_forecast_that_does_not_pay_is_not_followed(own: float) -> None:
    trust = Trust()
    for _ in range(2000):
        length = trust.interval(1.0, own, own)
        trust.learn(length * length)  # as at a steady rate, whose best interval is 1
    assert trust.interval(1.0, own, own) == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("own", [3.0, 0.3])
def test_a_forecast_that_pays_is_followed(own: float) -> None:
    trust = Trust()
    for _ in range(2000):
        length = trust.interval(1.0, own, own)
        trust.learn((length / own) ** 2)  # the rate is what the forecast says
    assert trust.interval(1.0, own, own) == pytest.approx(own, rel=0.05)


def test_one_pause_moves_little_and_evidence_fades() -> None:
    trust = Trust()
    trust.interval(1.0, 2.0, 2.0)
    trust.learn(3.0)
    moved = trust.interval(1.0, 2.0, 2.0)
    assert 2.0 ** (FIRST[0] - 0.1) < moved < 2.0 ** FIRST[0]
    trust.fade(0.5)
    assert trust.interval(1.0, 2.0, 2.0) == moved
    assert LEAST == 0.0
