"""Replays without an event loop, for the plain case.

The plain case is one poller, short polls that answer at once and never fail, no hints, and no
handlers that occupy slots. Then a replay is a short loop: poll, ask the pacer, sleep. For `Fixed`,
`Adaptive`, `BatchFill` and `Ewma` the loop is compiled together with the pacer; for every other
strategy it is Python around the real pacer. Both give exactly what `reference` gives.
"""

from __future__ import annotations

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
from pollwise.lab.numeric import np
from pollwise.lab.replay import base
from pollwise.lab.replay.base import Replay, Seconds, Situation, Trace

#: Called with the number of replays done and their total.
Progress = Callable[[int, int], None]


def why_not(strategy: Strategy, situation: Situation) -> str | None:
    """The feature that needs the event loop, or None in the plain case."""
    needs = {
        "several workers": situation.workers > 1,
        "handlers that occupy slots": bool(situation.handler_time and situation.concurrency),
        "hints": situation.hints,
        "holds": strategy.longest_hold > 0,  # a source that can hold a poll does so when asked
        "poll latency": situation.poll_latency > 0,
        "failing polls": situation.failure_share > 0,
    }
    return next((need for need, there in needs.items() if there), None)


def fast(
    trace: Trace,
    strategy: Strategy,
    situation: Situation = base.PLAIN,
    *,
    seed: int = 0,
    keep_polls: bool = False,
) -> Replay:
    """Replay the plain case; a ConfigError for any other."""
    strategy = base.checked(trace, strategy, situation)
    need = why_not(strategy, situation)
    if need is not None:
        raise ConfigError(f"the fast path does not support {need}; use replay() or reference()")
    compiled = None if situation.jitter else _compiled_form(strategy)
    if compiled is None:
        return lean(trace, strategy, situation, seed=seed, keep_polls=keep_polls)
    return _run_compiled(trace, strategy, compiled, situation, keep_polls)


def sweep(
    trace: Trace,
    strategies: Iterable[Strategy],
    situation: Situation = base.PLAIN,
    *,
    seed: int = 0,
    keep_polls: bool = False,
    progress: Progress | None = None,
) -> list[Replay]:
    """Replay a trace with each strategy, in order; calls `progress(done, total)` after each."""
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
class _CompiledStrategy:
    """A strategy for the compiled loop: which one, its numbers, and its first state."""

    kind: int
    numbers: tuple[float, ...]
    delay: float
    full: float = 0.0


def _compiled_form(strategy: Strategy) -> _CompiledStrategy | None:
    from pollwise.lab.replay import kernels

    if type(strategy) is Fixed:
        return _CompiledStrategy(kernels.FIXED, (strategy.interval,), strategy.interval)
    if type(strategy) is Adaptive:
        numbers = (strategy.min_interval, strategy.max_interval, strategy.backoff_multiplier)
        return _CompiledStrategy(kernels.ADAPTIVE, numbers, strategy.min_interval)
    if type(strategy) is BatchFill:
        limits = (strategy.min_interval, strategy.max_interval, float(strategy.batch_size))
        return _CompiledStrategy(
            kernels.BATCH_FILL,
            (*limits, batch_fill.LOW_LOAD, batch_fill.STEP),
            strategy.min_interval,
        )
    if type(strategy) is Ewma:
        return _compiled_ewma(strategy)
    return None


def _compiled_ewma(strategy: Ewma) -> _CompiledStrategy:
    from pollwise.lab.replay import kernels

    intervals = tuple(strategy.interval_of(volume) for volume in ewma.CLASSES)
    own = (strategy.alpha, float(strategy.drop_after), strategy.half_life)
    shared = (
        ewma.LOW, ewma.MEDIUM, ewma.HIGH, ewma.SATURATED, ewma.SPIKE, ewma.NEGLIGIBLE,
        float(ewma.EMPTIES_BEFORE_DECAY), ewma.COUNTED_MAX, 0.5, ewma.OUTDATED,
    )  # fmt: skip
    numbers = (*intervals, *own, *shared)
    return _CompiledStrategy(kernels.EWMA, numbers, strategy.idle_interval, full=ewma.COUNTED_MAX)


def _run_compiled(
    trace: Trace,
    strategy: Strategy,
    compiled: _CompiledStrategy,
    situation: Situation,
    keep_polls: bool,
) -> Replay:
    from pollwise.lab.replay import kernels

    arrivals = np.ascontiguousarray(trace.arrivals, dtype=np.float64)
    waits = np.empty(len(arrivals))
    state = kernels.first_state(compiled.delay, compiled.full)
    numbers = np.array(compiled.numbers)
    capacity = base.most_found(situation) or 0

    def run(times: Seconds) -> tuple[int, int]:
        return kernels.replay(
            arrivals, float(trace.span), compiled.kind, numbers, state, capacity,
            base.drains(strategy, situation), base.STUCK_AFTER, base.POLLS_MAX, waits, times,
        )  # fmt: skip

    polls, empty = run(np.empty(0))
    if polls < 0:
        raise base.too_many_polls(strategy, trace)
    times = None
    if keep_polls:
        times = np.empty(polls)  # counting first is cheaper than growing the array
        run(times)
    return base.result(trace, strategy, polls=polls, empty=empty, waits=waits, poll_times=times)


# Plain Python


def lean(
    trace: Trace,
    strategy: Strategy,
    situation: Situation,
    *,
    seed: int = 0,
    keep_polls: bool = False,
) -> Replay:
    """Replay the plain case with the real pacer of any strategy, and with the loop's jitter."""
    from pollwise.lab.replay.kernels import woken_at

    arrivals = trace.arrivals.tolist()
    capacity = base.most_found(situation)
    drains = base.drains(strategy, situation)
    pacer = strategy.pacer()
    draw = base.drawn_by(seed, "worker 0").random if situation.jitter else None
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
        if drains and outcome.full:
            continue
        if draw:
            delay = jittered(delay, strategy.min_interval, strategy.max_interval, draw())
        before, now = now, woken_at(now, delay)
        stuck = stuck + 1 if now == before and not found else 0
        if stuck > base.STUCK_AFTER or polls > base.POLLS_MAX:
            raise base.too_many_polls(strategy, trace)
    return base.result(
        trace,
        strategy,
        polls=polls,
        empty=empty,
        waits=base.as_seconds(waits),
        poll_times=base.as_seconds(times) if keep_polls else None,
    )
