"""What fixed polling would have done, against polls made one by one."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pollwise.lab.replay.fixed import percentile, polled_every


@pytest.mark.parametrize(
    ("interval", "arrivals", "seconds", "polls", "empty", "waits"),
    [
        (1.0, [], 10.0, 10, 10, []),
        (1.0, [], 0.5, 0, 0, []),
        (1.0, [], 0.0, 0, 0, []),
        (0.1, [], 0.3, 3, 3, []),  # 0.3 / 0.1 is a little less than 3
        (1.0, [0.0, 0.25, 1.0, 1.5], 3.0, 3, 1, [1.0, 0.75, 0.0, 0.5]),
        (1.0, [2.5], 2.9, 2, 2, []),  # it comes after the last poll
        (1.0, [0.5] * 3, 1.0, 1, 0, [0.5] * 3),
        (1.0, [0.5] * 4, 1.0, 2, 1, [0.5] * 4),  # full, so a look more, in vain
        (1.0, [0.5] * 5, 1.0, 2, 0, [0.5] * 5),
        (1.0, [0.5] * 8, 2.0, 4, 2, [0.5] * 8),
    ],
)
def test_worked_out_by_hand(
    interval: float,
    arrivals: list[float],
    seconds: float,
    polls: int,
    empty: int,
    waits: list[float],
) -> None:
    found = polled_every(interval, arrivals, seconds, capacity=4)
    assert (found.polls, found.empty) == (polls, empty)
    assert found.waits == pytest.approx(waits)


def one_by_one(
    interval: int, arrivals: list[int], seconds: int, capacity: int
) -> tuple[int, int, list[int]]:
    """The same, by looking at the times one after the other; whole numbers, so exactly."""
    left, polls, empty, waits = sorted(arrivals), 0, 0, []
    for now in range(interval, seconds + 1, interval):
        full = True
        while full:
            batch = [at for at in left if at <= now][:capacity]
            left = left[len(batch) :]
            waits += [now - at for at in batch]
            polls += 1
            empty += not batch
            full = len(batch) == capacity
    return polls, empty, waits


@given(
    st.integers(1, 20), st.lists(st.integers(0, 200), max_size=60), st.integers(0, 200),
    st.integers(1, 8),
)  # fmt: skip
@example(10, [10] * 8, 10, 4)
def test_it_is_what_polling_would_have_done(
    interval: int, arrivals: list[int], seconds: int, capacity: int
) -> None:
    found = polled_every(interval, sorted(arrivals), seconds, capacity)
    polls, empty, waits = one_by_one(interval, arrivals, seconds, capacity)
    assert (found.polls, found.empty, sorted(found.waits)) == (polls, empty, sorted(waits))


@given(st.floats(0.01, 10), st.lists(st.floats(0, 1000), max_size=30), st.floats(0, 1000))
def test_waits_are_within_an_interval(
    interval: float, arrivals: list[float], seconds: float
) -> None:
    found = polled_every(interval, arrivals, seconds, capacity=8)
    assert all(0 <= wait <= interval * (1 + 1e-9) for wait in found.waits)
    assert 0 <= found.empty <= found.polls
    assert len(found.waits) <= len(arrivals)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([3.0], 0.5, 3.0),
        ([3.0], 0.0, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0),
        ([4.0, 1.0, 3.0, 2.0], 0.51, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 0.95, 4.0),
        ([4.0, 1.0, 3.0, 2.0], 1.0, 4.0),
    ],
)
def test_percentile(values: list[float], share: float, expected: float | None) -> None:
    assert percentile(values, share) == expected


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0, 1))
def test_a_percentile_is_the_smallest_that_enough_do_not_exceed(
    values: list[float], share: float
) -> None:
    found = percentile(values, share)
    assert found is not None
    needed = math.ceil(share * len(values))
    assert sum(value <= found for value in values) >= needed
    assert sum(value < found for value in values) < max(needed, 1)
