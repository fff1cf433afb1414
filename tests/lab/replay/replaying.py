"""Shared by the tests of replays: random traces and strategies, and how replays are compared."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from pollwise import Adaptive, BatchFill, Ewma, Fixed, Strategy
from pollwise.core.outcome import Outcome, Pause, Plain
from pollwise.core.strategies.base import Pacer
from pollwise.lab.replay.base import Replay, Trace


def trace_of(arrivals: Any, span: float | None = None, name: str = "test") -> Trace:
    ordered = np.sort(np.asarray(arrivals, dtype=np.float64))
    last = float(ordered[-1]) if len(ordered) else 0.0
    return Trace(name, ordered, last if span is None else span)


def same(one: Replay, other: Replay) -> bool:
    """Equal in all figures, to the last bit."""
    assert one.poll_times is not None
    assert other.poll_times is not None
    return (
        np.array_equal(one.poll_times, other.poll_times)
        and np.array_equal(one.waits, other.waits)
        and (one.polls, one.empty, one.failed, one.found, one.requests, one.span, one.strategy)
        == (
            other.polls, other.empty, other.failed, other.found, other.requests, other.span,
            other.strategy,
        )
    )  # fmt: skip


class Doubtful(Strategy):
    """A strategy of a third party: its pause depends on every field of an outcome."""

    name = "doubtful"
    min_interval = 0.2
    max_interval = 7.0
    longest_hold = 0.0

    def pacer(self) -> Pacer:
        return _DoubtfulPacer()

    def __repr__(self) -> str:
        return "Doubtful()"


class _DoubtfulPacer(Pacer):
    def __init__(self) -> None:
        self._delay = 1.0

    def first(self) -> Pause:
        return Pause(self._delay)

    def after(self, outcome: Outcome) -> Pause:
        told = sum(outcome.waits) + outcome.found + (outcome.capacity or 0) + outcome.at % 1
        self._delay = min(max(0.9 * self._delay + 0.1 * told, 0.2), 7.0)
        return Pause(self._delay)

    def state(self) -> dict[str, Plain]:
        return {}


@st.composite
def traces(draw: st.DrawFn, most: int = 60) -> Trace:
    """Few or many arrivals: single ones, bursts, equal moments, and silence at the end."""
    gaps = draw(
        st.lists(
            st.one_of(
                st.just(0.0),
                st.floats(1e-6, 0.5),
                st.floats(0.5, 30.0),
                st.sampled_from([0.1, 0.2, 0.25, 0.5, 1.0, 5.0]),  # where polls fall too
            ),
            max_size=most,
        )
    )
    arrivals = np.cumsum(gaps) if gaps else np.empty(0)
    tail = draw(st.sampled_from([0.0, 0.5, 10.0]))
    last = float(arrivals[-1]) if len(arrivals) else 0.0
    return Trace("drawn", arrivals, last + tail)


def _intervals(least: float = 0.05, most: float = 20.0) -> st.SearchStrategy[float]:
    return st.one_of(st.floats(least, most), st.sampled_from([0.1, 0.25, 0.5, 1.0, 3.0]))


def _bounds() -> st.SearchStrategy[tuple[float, float]]:
    return st.tuples(_intervals(), _intervals()).map(lambda pair: (min(pair), max(pair)))


def known_strategies() -> st.SearchStrategy[Strategy]:
    """Those that have a compiled twin, with all their parameters drawn."""
    return st.one_of(
        _intervals().map(Fixed),
        st.builds(
            lambda bounds, growth: Adaptive(*bounds, backoff_multiplier=growth),
            _bounds(),
            st.floats(1.01, 10.0),
        ),
        st.builds(
            lambda bounds, batch: BatchFill(*bounds, batch_size=batch), _bounds(), st.integers(1,
            12)
        ),
        st.builds(_ewma, st.lists(_intervals(), min_size=5, max_size=5), st.floats(0.01, 1.0),
                  st.integers(1, 12), st.floats(0.1, 60.0)),
    )  # fmt: skip


def _ewma(intervals: list[float], alpha: float, drop_after: int, half_life: float) -> Ewma:
    very_high, high, medium, low, idle = sorted(intervals)
    return Ewma(
        idle_interval=idle,
        low_interval=low,
        medium_interval=medium,
        high_interval=high,
        very_high_interval=very_high,
        alpha=alpha,
        drop_after=drop_after,
        half_life=half_life,
    )
