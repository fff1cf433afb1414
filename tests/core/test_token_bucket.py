"""The token bucket: the laws of its rate."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.token_bucket import TokenBucket

rates = st.floats(0.01, 1e4)
bursts = st.floats(1.0, 100.0)
steps = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 100.0)), min_size=1, max_size=200)


@given(rates, bursts, steps, st.floats(0, 1e6))
def test_no_span_sees_more_than_the_rate_and_the_burst(
    rate: float, burst: float, gaps: list[float], at: float
) -> None:
    bucket = TokenBucket(rate, burst)
    taken: list[float] = []
    for gap in gaps:
        at += gap
        while bucket.has(at) and len(taken) < 2000:
            bucket.spend()
            taken.append(at)
    for first, began in enumerate(taken):
        for last in range(first, len(taken), 7):
            allowed = rate * (taken[last] - began) + burst
            assert last - first + 1 <= allowed * (1 + 1e-6) + 1e-6


@given(rates, bursts, st.floats(0, 1e6))
def test_what_waits_for_each_token_gets_the_whole_rate(
    rate: float, burst: float, began: float
) -> None:
    bucket, at, taken = TokenBucket(rate, burst), began, 0
    bucket.has(began)
    for _ in range(500):
        if bucket.has(at):
            bucket.spend()
            taken += 1
        else:
            ready = bucket.ready_at(at)
            assert ready > at, "a timer that fires at once would never end"
            at = ready
    assert taken >= rate * (at - began) * 0.99 - 2


@given(rates, bursts, rates, bursts, st.floats(0.1, 100.0))
def test_a_new_rate_counts_from_then_on(
    rate: float, burst: float, other: float, more: float, later: float
) -> None:
    bucket = TokenBucket(rate, burst)
    bucket.has(0.0)
    bucket.resize(other, more, later)
    assert bucket.tokens <= min(rate * later * (1 + 1e-9), burst, more)
    bucket.resize(0.0, 1.0)
    assert bucket.has(later) == (bucket.tokens >= 1 - 1e-9)
    if not bucket.has(later):
        assert bucket.ready_at(later) == math.inf


def test_a_token_that_is_there_is_ready_now() -> None:
    bucket = TokenBucket(2.0, 3.0)
    bucket.has(0.0)
    assert bucket.ready_at(0.25) == 0.5
    assert bucket.ready_at(0.5) == 0.5
    bucket.resize(0.0, 3.0)
    bucket.spend()
    assert bucket.ready_at(9.0) == math.inf
