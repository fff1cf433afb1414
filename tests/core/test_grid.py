"""Grids of points in time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.grid import point_after, spread


@given(st.floats(-1e6, 1e6), st.floats(0.01, 1e5), st.floats(-1e6, 1e6))
def test_the_next_point_is_on_the_grid_and_within_one_interval(
    origin: float, interval: float, after: float
) -> None:
    point = point_after(origin, interval, after)
    assert after < point
    assert point - after <= interval * (1 + 1e-6) + 1e-6
    steps = (point - origin) / interval
    assert math.isclose(steps, round(steps), abs_tol=1e-3)


@given(st.text(max_size=20))
def test_a_name_has_one_place_in_the_interval(name: str) -> None:
    assert 0 <= spread(name) < 1
    assert spread(name) == spread(name)


def test_names_are_spread_evenly() -> None:
    places = sorted(spread(f"host-{n}") for n in range(1000))
    assert places == pytest.approx([n / 1000 for n in range(1000)], abs=0.06)


def test_a_point_that_rounding_puts_at_the_time_itself_is_not_after_it() -> None:
    # 515.33 is point 709 of this grid, and the division says that 709 steps are not yet made.
    assert point_after(4.85, 0.72, 515.3299999999999) == pytest.approx(516.05)
