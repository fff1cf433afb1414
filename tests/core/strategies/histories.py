"""Histories of polls for property tests: any pacer must accept them."""

from __future__ import annotations

from hypothesis import strategies as st

from pollwise.core.outcome import Outcome

gaps = st.just(0.0) | st.floats(0, 100) | st.floats(0, 1e300)
capacities = st.none() | st.just(10) | st.integers(0, 100) | st.integers(0, 10**400)
counts = st.just(0) | st.integers(0, 30) | st.integers(0, 10**400)


@st.composite
def histories(draw: st.DrawFn) -> list[Outcome]:
    """Polls of one source in order of time; any of them may have failed."""
    at = draw(st.just(0.0) | st.floats(-1e300, 1e300))
    outcomes = []
    for gap in draw(st.lists(gaps, max_size=30)):
        at += gap
        failed = draw(st.sampled_from([False] * 4 + [True]))
        found = 0 if failed else draw(counts)
        waits = tuple(draw(st.lists(st.floats(0, 1e6) | st.floats(0, 1e300), max_size=3)))
        outcomes.append(Outcome(at, found, draw(capacities), waits, failed, draw(st.booleans())))
    return outcomes
