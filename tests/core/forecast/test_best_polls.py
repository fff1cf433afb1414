from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.forecast.best_polls import best_polls


def cost(
    times: Sequence[float], finished: Sequence[float], price: float, polls: Sequence[int]
) -> float:
    """What polls cost, from the definition: a poll at each step, and the waiting before it."""
    n, total = 0, 0.0
    while n < len(times) - 1:
        to = polls[n]
        total += price * (1.0 - finished[n])
        for k in range(n, to):
            mean = 0.5 * (finished[k] + finished[k + 1]) - finished[n]
            total += mean * (times[k + 1] - times[k])
        n = to
    return total


def cheapest(times: Sequence[float], finished: Sequence[float], price: float) -> float:
    """The least cost, by trying every next poll after every poll."""
    last = len(times) - 1
    best = [0.0] * (last + 1)
    for n in range(last - 1, -1, -1):
        waiting, options = 0.0, []
        for k in range(n, last):
            mean = 0.5 * (finished[k] + finished[k + 1]) - finished[n]
            waiting += mean * (times[k + 1] - times[k])
            options.append(waiting + best[k + 1])
        best[n] = price * (1.0 - finished[n]) + min(options)
    return best[0]


grids = st.lists(
    st.tuples(st.floats(0.01, 100), st.just(0.0) | st.floats(0.001, 10)), min_size=1, max_size=30
)


@given(grids, st.floats(0.01, 1000))
def test_no_other_polls_cost_less(grid: list[tuple[float, float]], price: float) -> None:
    whole = sum(more for _, more in grid) + 1.0
    times, finished = [0.0], [0.0]
    for step, more in grid:
        times.append(times[-1] + step)
        finished.append(finished[-1] + more / whole)
    polls = best_polls(times, finished, price)
    assert all(n < poll for n, poll in enumerate(polls))
    least = cheapest(times, finished, price)
    assert cost(times, finished, price, polls) == pytest.approx(least, rel=1e-9)


def test_a_run_that_always_takes_as_long_is_polled_once() -> None:
    times = [float(n) for n in range(12)]
    finished = [0.0] * 10 + [1.0, 1.0]  # between 9 and 10 seconds
    assert best_polls(times, finished, 5.0)[0] == 10


def test_cheap_polls_are_made_at_every_chance() -> None:
    times = [float(n) for n in range(6)]
    finished = [n / 5 for n in range(6)]
    assert best_polls(times, finished, 1e-6) == [1, 2, 3, 4, 5]
