"""Replays without an event loop, for the plain case.

The plain case is one poller, short polls that answer at once and never fail, no hints, and no
handlers that keep places. There a replay is a short loop: look, ask the pacer, sleep. For `Fixed`,
`Adaptive`, `BatchFill` and `Ewma` that loop is compiled, pacer and all; for every other strategy it
is plain Python around the real pacer. Both give what `reference` gives, to the bit.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pollwise.core.jitter import jittered
from pollwise.core.outcome import Outcome
from pollwise.core.strategies import batch_fill, ewma
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.batch_fill import BatchFill
from pollwise.core.strategies.ewma import Ewma
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError
from pollwise.lab.needs import np
from pollwise.lab.replay import rules
from pollwise.lab.replay.results import Replay, Seconds, Situation, Trace

#: Called with how many of how many are done.
Progress = Callable[[int, int], None]


def why_not(strategy: Strategy, situation: Situation) -> str | None:
    """What needs the event loop, or None in the plain case."""
    needs = {
        "several workers": situation.workers > 1,
        "handlers that keep places": bool(situation.handler_time and situation.concurrency),
        "hints": situation.hints,
        "holds": strategy.longest_hold > 0,  # a source that can hold does so for who asks it to
        "poll latency": situation.poll_latency > 0,
        "failing polls": situation.failure_share > 0,
    }
    return next((need for need, there in needs.items() if there), None)


def fast(
    trace: Trace,
    strategy: Strategy,
    situation: Situation | None = None,
    *,
    seed: int = 0,
    keep_polls: bool = False,
) -> Replay:
    """Replay the plain case; an error for any other."""
    situation = situation or Situation()
    rules.check(trace, strategy, situation)
    need = why_not(strategy, situation)
    if need is not None:
        raise ConfigError(f"the fast path knows no {need}; use replay() or reference()")
    twin = None if situation.jitter else _twin_of(strategy)
    if twin is None:
        return lean(trace, strategy, situation, seed=seed, keep_polls=keep_polls)
    return _run_twin(trace, strategy, twin, situation, keep_polls)


def sweep(
    trace: Trace,
    strategies: Iterable[Strategy],
    situation: Situation | None = None,
    *,
    seed: int = 0,
    keep_polls: bool = False,
    progress: Progress | None = None,
) -> list[Replay]:
    """Replay a trace with each strategy, in order; `progress(done, total)` is told of each."""
    from pollwise.lab.replay.engine import replay

    every = list(strategies)
    replays = []
    for done, strategy in enumerate(every, 1):
        replays.append(replay(trace, strategy, situation, seed=seed, keep_polls=keep_polls))
        if progress is not None:
            progress(done, len(every))
    return replays


# Compiled


@dataclass(frozen=True)
class _Twin:
    """A strategy as the compiled loop takes it: which one, its numbers, and its first state."""

    kind: int
    numbers: tuple[float, ...]
    delay: float
    full: float = 0.0


def _twin_of(strategy: Strategy) -> _Twin | None:
    from pollwise.lab.replay import kernels

    if type(strategy) is Fixed:
        return _Twin(kernels.FIXED, (strategy.interval,), strategy.interval)
    if type(strategy) is Adaptive:
        numbers = (strategy.min_interval, strategy.max_interval, strategy.backoff_multiplier)
        return _Twin(kernels.ADAPTIVE, numbers, strategy.min_interval)
    if type(strategy) is BatchFill:
        limits = (strategy.min_interval, strategy.max_interval, float(strategy.batch_size))
        return _Twin(
            kernels.BATCH_FILL,
            (*limits, batch_fill.LOW_LOAD, batch_fill.STEP),
            strategy.min_interval,
        )
    if type(strategy) is Ewma:
        return _ewma_twin(strategy)
    return None


def _ewma_twin(strategy: Ewma) -> _Twin:
    from pollwise.lab.replay import kernels

    intervals = tuple(strategy.interval_of(volume) for volume in ewma.CLASSES)
    own = (strategy.alpha, float(strategy.drop_after), strategy.half_life)
    shared = (
        ewma.LOW,
        ewma.MEDIUM,
        ewma.HIGH,
        ewma.SATURATED,
        ewma.SPIKE,
        ewma.NEGLIGIBLE,
        float(ewma.EMPTIES_BEFORE_DECAY),
        ewma.COUNTED_MAX,
        0.5,
    )
    numbers = (*intervals, *own, *shared)
    return _Twin(kernels.EWMA, numbers, strategy.idle_interval, full=ewma.COUNTED_MAX)


def _run_twin(
    trace: Trace, strategy: Strategy, twin: _Twin, situation: Situation, keep_polls: bool
) -> Replay:
    from pollwise.lab.replay import kernels

    arrivals = np.ascontiguousarray(trace.arrivals, dtype=np.float64)
    waits = np.empty(len(arrivals))
    state = kernels.first_state(twin.delay, twin.full)
    numbers = np.array(twin.numbers)
    capacity = rules.most_found(situation) or 0

    def run(times: Seconds) -> tuple[int, int]:
        return kernels.replay(
            arrivals,
            float(trace.span),
            twin.kind,
            numbers,
            state,
            capacity,
            situation.drain,
            rules.STUCK_AFTER,
            rules.POLLS_MAX,
            waits,
            times,
        )

    polls, empty = run(np.empty(0))
    if polls < 0:
        raise rules.too_many_polls(strategy, trace)
    times = None
    if keep_polls:
        times = np.empty(polls)  # counting first is cheaper than growing
        run(times)
    return rules.result(trace, strategy, polls=polls, empty=empty, waits=waits, poll_times=times)


# Plain Python


def lean(
    trace: Trace,
    strategy: Strategy,
    situation: Situation,
    *,
    seed: int = 0,
    keep_polls: bool = False,
) -> Replay:
    """The plain case around the real pacer of any strategy; draws jitter as the loop does."""
    from pollwise.lab.replay.kernels import woken_at

    arrivals = trace.arrivals.tolist()
    capacity = rules.most_found(situation)
    pacer = strategy.pacer()
    draw = rules.drawn_by(seed, "worker 0").random if situation.jitter else None
    first = pacer.first().delay
    now = woken_at(0.0, first * draw()) if draw else 0.0
    waits: list[float] = []
    times: list[float] = []
    taken = polls = empty = stuck = 0
    while True:
        until = bisect_right(arrivals, now, taken)
        if capacity is not None:
            until = min(until, taken + capacity)
        found = until - taken
        waited = tuple([now - arrival for arrival in arrivals[taken:until]])
        waits += waited
        taken = until
        if found or now < trace.span:
            polls += 1
            empty += not found
            if keep_polls:
                times.append(now)
        if taken == len(arrivals) and now >= trace.span:
            break
        outcome = Outcome(now, found, capacity, waited if situation.timestamps else ())
        delay = pacer.after(outcome).delay
        if situation.drain and outcome.full:
            continue
        if draw:
            delay = jittered(delay, strategy.min_interval, strategy.max_interval, draw())
        before, now = now, woken_at(now, delay)
        stuck = stuck + 1 if now == before and not found else 0
        if stuck > rules.STUCK_AFTER or polls > rules.POLLS_MAX:
            raise rules.too_many_polls(strategy, trace)
    return rules.result(
        trace,
        strategy,
        polls=polls,
        empty=empty,
        waits=rules.as_seconds(waits),
        poll_times=rules.as_seconds(times) if keep_polls else None,
    )


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
