"""Laws of replays, in every situation that the reference can play."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise import Adaptive, Ewma, Fixed, Strategy
from pollwise.core.strategies.fixed import FixedPacer
from pollwise.errors import ConfigError
from pollwise.lab.replay.base import Situation, Trace
from pollwise.lab.replay.engine import reference, replay
from pollwise.lab.traces.synthetic import workload
from tests.lab.replay.replaying import Doubtful, known_strategies, same, trace_of, traces

ANY = st.builds(
    Situation,
    capacity=st.one_of(st.none(), st.integers(1, 5)),
    drain=st.booleans(),
    hold=st.just(True),
    workers=st.integers(1, 3),
    handler_time=st.sampled_from([0.0, 0.3, 4.0]),
    concurrency=st.one_of(st.none(), st.integers(1, 3)),
    hints=st.booleans(),
    poll_latency=st.sampled_from([0.0, 0.02, 1.0]),
    failure_share=st.sampled_from([0.0, 0.3]),
    timestamps=st.booleans(),
    jitter=st.booleans(),
)
HELD = st.sampled_from([Fixed(0, hold=5), Adaptive(hold=20), Ewma(held=True)])


@settings(max_examples=150, deadline=None)
@given(traces(25), st.one_of(known_strategies(), HELD), ANY, st.integers(0, 9))
def test_nothing_is_lost_and_everything_is_counted(
    trace: Trace, strategy: Strategy, situation: Situation, seed: int
) -> None:
    played = reference(trace, strategy, situation, seed=seed, keep_polls=True)
    assert played.found == len(played.waits) == len(trace.arrivals)
    assert (played.waits >= situation.poll_latency / 2 - 1e-9).all()
    assert played.poll_times is not None
    assert len(played.poll_times) == played.polls == sum(played.requests.values())
    assert (np.diff(played.poll_times) >= 0).all()
    with_items = played.polls - played.empty - played.failed
    assert min(with_items, played.empty, played.failed) >= 0
    assert with_items <= played.found
    assert bool(situation.failure_share) or not played.failed
    assert same(played, reference(trace, strategy, situation, seed=seed, keep_polls=True))


@settings(max_examples=100, deadline=None)
@given(traces(), known_strategies())
def test_an_item_waits_for_the_next_poll(trace: Trace, strategy: Strategy) -> None:
    played = replay(trace, strategy, keep_polls=True)
    assert played.poll_times is not None
    found_by = np.searchsorted(played.poll_times, trace.arrivals)
    assert np.array_equal(played.waits, played.poll_times[found_by] - trace.arrivals)
    assert (played.waits <= strategy.max_interval + 1e-9).all()


# Beginning and end


def test_an_hour_at_a_second_is_3600_polls() -> None:
    assert replay(trace_of([0.0], span=3600), Fixed(1)).polls == 3600
    assert replay(trace_of([], span=3600), Fixed(1)).polls == 3600


def test_after_the_span_only_polls_that_find_something_count() -> None:
    trace = trace_of([0.5, 9.5], span=10)
    for engine in (replay, reference):
        played = engine(trace, Fixed(4), keep_polls=True)
        assert played.poll_times is not None
        assert played.poll_times.tolist() == [0, 4, 8, 12]
        assert engine(trace, Fixed(4), Situation(workers=3)).polls == 3 * 3 + 1


def test_what_a_batch_limit_leaves_behind_is_polled_for_after_the_end() -> None:
    trace = trace_of([0.5] * 7, span=1)
    drained = replay(trace, Fixed(1), Situation(capacity=2, drain=True), keep_polls=True)
    assert drained.poll_times is not None
    assert drained.poll_times.tolist() == [0, 1, 1, 1, 1]
    slow = replay(trace, Fixed(1), Situation(capacity=2), keep_polls=True)
    assert slow.poll_times is not None
    assert slow.poll_times.tolist() == [0, 1, 2, 3, 4]
    assert slow.waits.tolist() == [0.5, 0.5, 1.5, 1.5, 2.5, 2.5, 3.5]


# Holds


def test_a_held_poll_returns_the_moment_an_item_arrives() -> None:
    trace = workload("steady", seed=2, hours=0.5)
    played = replay(trace, Fixed(0, hold=20), Situation(hold=True))
    assert played.waits.max() == 0
    assert played.requests == {"held poll": played.polls}
    assert played.empty < 20


def test_holding_longest_is_cheapest() -> None:
    trace = workload("bursty", seed=2, hours=1)
    held = [replay(trace, Fixed(0, hold=hold), Situation(hold=True)) for hold in (1, 5, 20)]
    assert held[0].polls > held[1].polls > held[2].polls
    assert all(played.waits.max() == 0 for played in held)


def test_holds_and_latency_add_up() -> None:
    situation = Situation(hold=True, poll_latency=0.2)
    played = replay(trace_of([3.0], span=3), Fixed(0, hold=10), situation, keep_polls=True)
    assert played.poll_times is not None
    assert played.poll_times.tolist() == [0.0]
    assert played.waits.tolist() == pytest.approx([0.1])


def test_a_strategy_that_holds_needs_a_source_that_can() -> None:
    with pytest.raises(ConfigError, match=r"Situation\(hold=True\)"):
        replay(trace_of([1.0]), Adaptive(hold=20))


def test_several_held_polls_share_the_arrivals() -> None:
    trace = trace_of([1.0, 2.0, 2.0, 5.0], span=6)
    played = replay(trace, Fixed(0, hold=60), Situation(hold=True, workers=2, capacity=1))
    assert played.waits.tolist() == [0, 0, 0, 0]
    assert played.found == 4


# Hints


@pytest.mark.parametrize("latency", [0.0, 0.03, 0.5])
def test_with_hints_an_item_waits_for_the_latency_alone(latency: float) -> None:
    trace = trace_of(np.arange(5.0, 500.0, 7.3))
    situation = Situation(hints=True, poll_latency=latency)
    played = replay(trace, Adaptive("1s", "60s"), situation)
    assert played.waits == pytest.approx(latency)


def test_hints_wake_as_many_as_there_is_work() -> None:
    trace = trace_of([10.0, 10.0], span=11)
    alone = Situation(hints=True, workers=5, capacity=1)
    played = replay(trace, Fixed(60), alone)
    assert played.waits.tolist() == [0, 0]
    # Five at the start; two for the two, each of which drains; and one that each full poll wakes.
    assert played.polls <= 5 + 2 + 2 + 2


def test_news_during_a_poll_is_not_forgotten() -> None:
    """It arrives after the look and before the answer: the hint skips the next pause."""
    played = replay(
        trace_of([0.8], span=1), Fixed(60), Situation(hints=True, poll_latency=1.0), keep_polls=True
    )
    assert played.poll_times is not None
    assert played.poll_times.tolist() == [0, 1]


# Workers


@settings(max_examples=40, deadline=None)
@given(traces(20), known_strategies(), st.one_of(st.none(), st.integers(1, 3)))
def test_more_workers_never_poll_less_nor_wait_longer(
    trace: Trace, strategy: Strategy, capacity: int | None
) -> None:
    """At a fixed interval; a pacer that adapts may be led astray by what others took."""
    polls, waits = [], []
    for workers in (1, 2, 4):
        situation = Situation(workers=workers, capacity=capacity)
        played = reference(trace, Fixed(strategy.min_interval), situation)
        polls.append(played.polls)
        waits.append(played.waits.sum())
    assert polls == sorted(polls)
    assert waits == sorted(waits, reverse=True)


def test_workers_with_jitter_spread_and_shorten_the_waits() -> None:
    trace = workload("steady", seed=1, hours=1)
    lone = replay(trace, Adaptive("1s", "10s"), Situation(jitter=True))
    four = replay(trace, Adaptive("1s", "10s"), Situation(jitter=True, workers=4))
    assert four.mean_wait < 0.6 * lone.mean_wait
    assert four.polls > lone.polls


# Failures, handlers


def test_failures_come_at_their_share_and_back_off() -> None:
    trace = workload("steady", seed=1, hours=1)
    clean = replay(trace, Fixed(1), Situation())
    shaky = replay(trace, Fixed(1), Situation(failure_share=0.2), seed=4)
    assert shaky.failed / shaky.polls == pytest.approx(0.2, abs=0.03)
    assert shaky.polls < clean.polls  # retries wait 1, 2, 4 s
    assert shaky.mean_wait > clean.mean_wait
    assert shaky.polls != replay(trace, Fixed(1), Situation(failure_share=0.2), seed=5).polls


def test_handlers_hold_up_the_claims() -> None:
    trace = trace_of([0.0, 0.0, 0.0, 0.0], span=1)
    situation = Situation(handler_time=10, concurrency=1)
    played = replay(trace, Fixed(1), situation)
    assert played.waits.tolist() == [0, 10, 20, 30]
    two = replay(trace, Fixed(1), replace(situation, workers=2))
    assert two.waits.tolist() == [0, 0, 10, 10]
    free = replay(trace, Fixed(1), Situation(handler_time=10))
    assert free.waits.tolist() == [0, 0, 0, 0]


def test_the_pacer_is_told_waits_only_with_timestamps() -> None:
    trace = workload("bursty", seed=1, hours=0.5)
    told = replay(trace, Doubtful())
    assert told.polls != replay(trace, Doubtful(), Situation(timestamps=False)).polls


# Bad input


@pytest.mark.parametrize(
    ("given_", "match"),
    [
        ({"capacity": 0}, "capacity = 0 must be a whole number, 1 or more, or None"),
        ({"concurrency": 1.5}, "concurrency = 1.5"),
        ({"workers": 0}, "workers = 0"),
        ({"workers": None}, "workers = None"),
        ({"workers": True}, "workers = True"),
        ({"handler_time": -1.0}, "handler_time = -1.0"),
        ({"poll_latency": math.inf}, "poll_latency = inf"),
        ({"poll_latency": math.nan}, "poll_latency = nan"),
        ({"failure_share": 1.0}, "nothing would ever be found"),
        ({"failure_share": -0.1}, "failure_share"),
    ],
)
def test_a_situation_that_cannot_be_is_refused(given_: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        replay(trace_of([1.0]), Fixed(), Situation(**given_))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trace", "match"),
    [
        (Trace("t", np.array([1.0, 3.0, 2.0]), 5.0), "arrival 3 at 2 s comes after one at 3 s"),
        (Trace("t", np.array([1.0, math.nan]), 5.0), "arrival 2 is nan"),
        (Trace("t", np.array([-1.0, 2.0]), 5.0), "within its span"),
        (Trace("t", np.array([1.0, 9.0]), 5.0), "within its span"),
        (Trace("t", np.array([1.0]), math.inf), "span inf"),
    ],
)
def test_a_trace_that_cannot_be_is_refused(trace: Trace, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        replay(trace, Fixed())


def test_a_strategy_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="not a strategy"):
        replay(trace_of([1.0]), "adaptive")  # type: ignore[arg-type]


def test_what_a_pacer_raises_comes_out() -> None:
    class Broken(Fixed):
        def pacer(self) -> FixedPacer:  # type: ignore[override]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        reference(trace_of([1.0]), Broken(1))
