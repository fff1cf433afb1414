from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pollwise.core.jitter import jittered

LAST = math.nextafter(1, 0)  # the greatest u: Random.random() never returns 1

draws = st.floats(0, 1, exclude_max=True)
lengths = st.floats(0, 1e6)


@pytest.mark.parametrize(
    ("delay", "min_interval", "max_interval", "u", "expected"),
    [
        # In the middle: [0.9, 1.1].
        (1.0, 0.1, 5.0, 0.0, 0.9),
        (1.0, 0.1, 5.0, 0.25, 0.95),
        (1.0, 0.1, 5.0, 0.5, 1.0),
        (1.0, 0.1, 5.0, LAST, 1.1),
        # At the max_interval the lower half is left, drawn over in full: [4.5, 5].
        (5.0, 0.1, 5.0, 0.0, 4.5),
        (5.0, 0.1, 5.0, 0.5, 4.75),
        (5.0, 0.1, 5.0, LAST, 5.0),
        # At the min_interval the upper half: [0.1, 0.11].
        (0.1, 0.1, 5.0, 0.0, 0.1),
        (0.1, 0.1, 5.0, 0.5, 0.105),
        (0.1, 0.1, 5.0, LAST, 0.11),
        # Just below the max_interval, [4.32, 5.28] is cut to [4.32, 5].
        (4.8, 0.1, 5.0, 0.5, 4.66),
        # Between bounds closer than 10 %: [9.5, 10].
        (9.8, 9.5, 10.0, 0.5, 9.75),
        # A fixed interval, and a poll that is only held, are exact.
        (0.5, 0.5, 0.5, 0.0, 0.5),
        (0.5, 0.5, 0.5, 0.7, 0.5),
        (0.0, 0.0, 0.0, 0.7, 0.0),
    ],
)
def test_golden(
    delay: float, min_interval: float, max_interval: float, u: float, expected: float
) -> None:
    assert jittered(delay, min_interval, max_interval, u) == pytest.approx(expected, rel=1e-12)


def test_the_share_is_an_argument() -> None:
    assert jittered(4.0, 1.0, 9.0, 0.0, share=0.25) == 3.0
    assert jittered(4.0, 1.0, 9.0, 0.5, share=0.25) == 4.0
    assert jittered(4.0, 1.0, 9.0, 0.3, share=0.0) == 4.0


@given(st.lists(lengths, min_size=3, max_size=3), draws)
@example([1e-300, 1e308, 1e308], LAST)
@example([5e-324, 5e-324, 1.0], 0.5)
def test_within_ten_percent_and_within_the_bounds(three: list[float], u: float) -> None:
    min_interval, delay, max_interval = sorted(three)
    result = jittered(delay, min_interval, max_interval, u)
    assert min_interval <= result <= max_interval
    assert delay * 0.9 <= result <= delay * 1.1


@given(lengths, lengths, st.lists(st.integers(0, 999), unique=True, min_size=2))
def test_there_is_jitter_at_the_max_interval(one: float, other: float, draws: list[int]) -> None:
    min_interval, max_interval = sorted([one, other])
    assume(max_interval > min_interval * 1.0001)
    assume(max_interval > 1e-300)  # below, there are not enough numbers to tell apart
    results = [
        jittered(max_interval, min_interval, max_interval, draw / 1000) for draw in sorted(draws)
    ]
    assert all(earlier < later for earlier, later in pairwise(results))


@given(st.lists(lengths, min_size=3, max_size=3))
def test_the_whole_range_is_reached(three: list[float]) -> None:
    min_interval, delay, max_interval = sorted(three)
    lowest, highest = max(delay * 0.9, min_interval), min(delay * 1.1, max_interval)
    assert jittered(delay, min_interval, max_interval, 0.0) == lowest
    assert jittered(delay, min_interval, max_interval, LAST) == pytest.approx(highest, rel=1e-12)


@given(st.lists(lengths, min_size=3, max_size=3), draws, draws)
def test_the_draw_is_uniform(three: list[float], u: float, v: float) -> None:
    min_interval, delay, max_interval = sorted(three)
    middle = (
        jittered(delay, min_interval, max_interval, u)
        + jittered(delay, min_interval, max_interval, v)
    ) / 2
    assert jittered(delay, min_interval, max_interval, (u + v) / 2) == pytest.approx(
        middle, rel=1e-9
    )
