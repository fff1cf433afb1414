"""The fast path gives what the real loop gives, poll by poll, to the bit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise import Adaptive, BatchFill, Ewma, Fixed, Strategy
from pollwise.core.outcome import Plain
from pollwise.core.strategies.fixed import FixedPacer
from pollwise.errors import ConfigError
from pollwise.lab.replay import base
from pollwise.lab.replay import fast as module
from pollwise.lab.replay.base import Replay, Situation, Trace
from pollwise.lab.replay.engine import reference
from pollwise.lab.replay.fast import fast, lean, sweep
from pollwise.lab.traces.synthetic import workload
from pollwise.strategies import Outcome, Pacer, Pause
from tests.lab.replay.replaying import Doubtful, known_strategies, same, trace_of, traces

PLAIN = st.builds(
    Situation,
    capacity=st.one_of(st.none(), st.integers(1, 6)),
    concurrency=st.one_of(st.none(), st.integers(1, 6)),
    drain=st.sampled_from([True, False, None]),
    timestamps=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(traces(), known_strategies(), PLAIN)
def test_compiled_equals_the_real_loop(
    trace: Trace, strategy: Strategy, situation: Situation
) -> None:
    real = reference(trace, strategy, situation, keep_polls=True)
    assert same(fast(trace, strategy, situation, keep_polls=True), real)
    assert same(lean(trace, strategy, situation, keep_polls=True), real)


@settings(max_examples=100, deadline=None)
@given(traces(), st.one_of(known_strategies(), st.just(Doubtful())), PLAIN, st.integers(0, 99))
def test_lean_equals_the_real_loop_with_jitter_and_strange_strategies(
    trace: Trace, strategy: Strategy, situation: Situation, seed: int
) -> None:
    situation = replace(situation, jitter=True)
    real = reference(trace, strategy, situation, seed=seed, keep_polls=True)
    assert same(fast(trace, strategy, situation, seed=seed, keep_polls=True), real)


@pytest.mark.parametrize(
    "strategy",
    [
        Fixed("1.7s"),
        Adaptive(0.3, 9, backoff_multiplier=1.3),
        BatchFill(),
        Ewma(),
        Ewma.responsive(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("name", ["bursty", "self-exciting"])
def test_equal_over_hours_of_traffic(strategy: Strategy, name: str) -> None:
    trace = workload(name, seed=3, hours=2)
    for situation in (Situation(), Situation(capacity=7)):
        real = reference(trace, strategy, situation, keep_polls=True)
        assert same(fast(trace, strategy, situation, keep_polls=True), real)


@pytest.mark.parametrize(
    "strategy",
    [Fixed("3d"), Adaptive("20s", "200d", backoff_multiplier=9.0), Fixed(1e-3), Doubtful()],
    ids=repr,
)
def test_equal_where_sums_of_floats_are_rough(strategy: Strategy) -> None:
    """Pauses above asyncio's longest sleep of a day, and years of seconds."""
    end = 9e7 if strategy.max_interval > 86400 else 20.0
    trace = trace_of([0.0, 1e-9, 1 / 3, end / 7, end / 3, end])
    real = reference(trace, strategy, keep_polls=True)
    assert same(fast(trace, strategy, keep_polls=True), real)


def test_a_third_party_strategy_takes_the_lean_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_run_compiled", None)  # calling it would raise
    trace = workload("steady", hours=0.5)
    assert same(
        fast(trace, Doubtful(), keep_polls=True), reference(trace, Doubtful(), keep_polls=True)
    )


def test_a_subclass_is_not_mistaken_for_its_parent() -> None:
    class Eager(Fixed):
        def pacer(self) -> FixedPacer:  # type: ignore[override]
            return Fixed(self.interval / 2).pacer()

    trace = trace_of([1.0, 99.5])
    assert fast(trace, Eager(1)).polls == fast(trace, Fixed(0.5)).polls


@pytest.mark.parametrize(
    ("situation", "need"),
    [
        (Situation(workers=2), "several workers"),
        (Situation(handler_time=1, concurrency=1), "handlers"),
        (Situation(hints=True), "hints"),
        (Situation(poll_latency=0.1), "latency"),
        (Situation(failure_share=0.1), "failing"),
    ],
)
def test_fast_refuses_what_it_does_not_know(situation: Situation, need: str) -> None:
    with pytest.raises(ConfigError, match=f"{need}.*use replay"):
        fast(trace_of([1.0]), Fixed(), situation)


def test_fast_refuses_holds_but_not_a_source_that_could_hold() -> None:
    situation = Situation(hold=True)
    with pytest.raises(ConfigError, match="holds"):
        fast(trace_of([1.0]), Fixed(hold=20), situation)
    assert fast(trace_of([1.0]), Fixed(), situation).requests == {"poll": 3}


class Restless(Doubtful):
    min_interval = 0.0

    def pacer(self) -> Pacer:
        return _RestlessPacer()


class _RestlessPacer(Pacer):
    def first(self) -> Pause:
        return Pause(0.0)

    def after(self, outcome: Outcome) -> Pause:
        return Pause(0.0)

    def state(self) -> dict[str, Plain]:
        return {}


@pytest.mark.parametrize("engine", [fast, lean, reference])
@pytest.mark.parametrize("strategy", [Fixed(1e-300), Restless()], ids=["tiny", "restless"])
def test_a_strategy_that_never_pauses_is_an_error_not_a_hang(
    engine: Callable[..., Replay], strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "POLLS_MAX", 20_000)
    with pytest.raises(ConfigError, match="polls without end"):
        engine(trace_of([5.0]), strategy, Situation())


def test_a_sweep_keeps_the_order_and_tells_of_its_progress() -> None:
    told: list[tuple[int, int]] = []
    strategies = [Fixed(1), Adaptive(), Ewma()]
    trace = workload("on-off", hours=1)
    swept = sweep(trace, iter(strategies), progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert [replay.strategy for replay in swept] == [repr(strategy) for strategy in strategies]
    assert [replay.polls for replay in swept] == [fast(trace, s).polls for s in strategies]


def test_polls_are_kept_only_when_asked_for() -> None:
    trace = trace_of([1.0])
    assert fast(trace, Fixed()).poll_times is None
    assert lean(trace, Fixed(), Situation()).poll_times is None
    assert reference(trace, Fixed()).poll_times is None


def polls_a_minute(polls: int = 20_000_000) -> dict[str, float]:
    """Measure the compiled loops on this machine: polls a minute on one core, by strategy."""
    interval = 0.5
    span = polls * interval
    arrivals = np.linspace(0.0, span, polls // 20, endpoint=False)
    trace = Trace("benchmark", arrivals, span)
    figures = {}
    for strategy in (
        Fixed(interval),
        Adaptive(interval, 2 * interval),
        BatchFill(interval, 2 * interval),
        Ewma(
            idle_interval=1,
            low_interval=interval,
            medium_interval=interval,
            high_interval=interval,
            very_high_interval=interval,
        ),
    ):
        fast(Trace("warm-up", arrivals[:10], span), strategy)
        began = time.perf_counter()
        counted = fast(trace, strategy).polls
        figures[strategy.name] = counted / (time.perf_counter() - began) * 60
    return figures


def test_twenty_million_polls_a_minute() -> None:
    """The goal is passed a hundredfold, so a busy machine does not matter."""
    for name, figure in polls_a_minute(2_000_000).items():
        assert figure > 20e6, name


def test_memory_order_does_not_matter() -> None:
    """A view with strides is a trace like any other."""
    arrivals = np.arange(0.0, 100.0, 0.5)[::2]
    trace = Trace("strided", arrivals, 100.0)
    assert same(
        fast(trace, Adaptive(), keep_polls=True), reference(trace, Adaptive(), keep_polls=True)
    )
