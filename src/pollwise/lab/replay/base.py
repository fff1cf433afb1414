"""Traces, situations and replays, and the rules that every replay follows.

**Start.** Trace and first poll begin at time 0; with `jitter`, the first poll is at a random point
of the first pause, as in the real loop.

**End.** Polling goes on until the span is over and every item is found. Every poll that began
before the end of the span counts. A later poll counts only if it found something, because that
belongs to arrivals of the trace. So `Fixed("1s")` over an hour makes 3,600 polls, and one more if
it found something at the end. A poll that was running when the replay ended counts as empty.

**Wait.** An item waits from its arrival until the answer of the poll that found it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pollwise.core.outcome import Outcome, Pause, Plain
from pollwise.core.retry import Retry
from pollwise.core.strategies.base import Pacer, Strategy
from pollwise.durations import short
from pollwise.errors import ConfigError
from pollwise.lab.numeric import NDArray, np

Seconds = NDArray[np.float64]


#: After this many empty polls in a row without time passing, a replay is stuck.
STUCK_AFTER = 10_000
#: The maximum number of polls of one replay: a year at 63 a second.
POLLS_MAX = 2_000_000_000
#: How a failed poll is retried without `jitter`: as in the loop, but without random delays.
EXACT_RETRY = Retry.exponential("1s", max_delay="60s", attempts=None, jitter=0)


@dataclass(frozen=True)
class Trace:
    """Arrivals in seconds since the trace begins, in order.

    span: how long the trace is; it may end in silence after the last arrival.
    """

    name: str
    arrivals: Seconds
    span: float

    @property
    def rate(self) -> float:
        """Arrivals a second."""
        return len(self.arrivals) / self.span if self.span > 0 else 0.0


@dataclass(frozen=True)
class Situation:
    """What is polled, and how; the defaults are the plain case.

    capacity: how many items a poll can find at most; None for no limit.
    drain: a full poll is followed by another at once; None: by every strategy except `Fixed`.
    hold: the source can hold a poll; without it, a strategy with a `hold` is an error.
    workers: pollers that compete for the same items, each with its own pacer.
    handler_time: seconds for which an item occupies one of a worker's `concurrency` slots.
    concurrency: slots of a worker; None for no limit.
    hints: an arrival ends the pause of a poller.
    poll_latency: seconds from the start of a poll to its answer.
    failure_share: the share of polls that fail, drawn from the seed.
    timestamps: the pacer gets the wait of each item.
    jitter: draw jitter and the spread of the first poll as the real loop does; off in comparisons.
    """

    capacity: int | None = None
    drain: bool | None = None
    hold: bool = False
    workers: int = 1
    handler_time: float = 0.0
    concurrency: int | None = None
    hints: bool = False
    poll_latency: float = 0.0
    failure_share: float = 0.0
    timestamps: bool = True
    jitter: bool = False


PLAIN = Situation()


@dataclass(frozen=True)
class Replay:
    """What a strategy did with a trace.

    waits: how long each item waited until a poll found it, in the order of their arrival.
    poll_times: when each poll began; None unless requested.
    requests: the number of polls by kind: "poll" or "held poll".
    """

    strategy: str
    trace: str
    span: float
    polls: int
    empty: int
    failed: int
    found: int
    waits: Seconds
    poll_times: Seconds | None = None
    requests: dict[str, int] = field(default_factory=dict)

    @property
    def mean_wait(self) -> float:
        return float(self.waits.mean()) if len(self.waits) else 0.0

    def wait(self, share: float) -> float:
        """The wait that this share of the items does not exceed."""
        return (
            float(np.quantile(self.waits, share, method="inverted_cdf")) if len(self.waits) else 0.0
        )

    @property
    def polls_an_hour(self) -> float:
        return self.polls / self.span * 3600 if self.span > 0 else 0.0

    def measures(self) -> dict[str, float]:
        """Polls and waits as plain values, rounded as reports keep them."""
        waits = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
        return {
            "polls_an_hour": figures(self.polls_an_hour),
            "wait_mean_s": figures(self.mean_wait),
            **{f"wait_{name}_s": figures(self.wait(share)) for name, share in waits.items()},
        }

    def cost(self, poll_cost: float, wait_cost: float) -> float:
        """The cost of polls and waiting; `wait_cost` is for one item and one second."""
        return self.polls * poll_cost + float(self.waits.sum()) * wait_cost


def figures(value: float) -> float:
    """A number rounded to five digits, as reports keep it."""
    return float(f"{value:.5g}")


def drawn_by(seed: int, who: str) -> random.Random:
    """Random numbers for one part of a replay, independent of the other parts."""
    return random.Random(f"{seed}/{who}")


def most_found(situation: Situation) -> int | None:
    """How many items a poll can find at most: limited by capacity and by slots."""
    limits = [n for n in (situation.capacity, situation.concurrency) if n is not None]
    return min(limits) if limits else None


def drains(strategy: Strategy, situation: Situation) -> bool:
    """True if a full poll is followed by another at once."""
    return strategy.drains if situation.drain is None else situation.drain


def too_many_polls(strategy: Strategy, trace: Trace) -> ConfigError:
    """The error for a strategy whose pauses are so short that the replay would not end."""
    return ConfigError(
        f"{strategy!r} polls without end: its pauses hardly move the clock, and {POLLS_MAX:,} "
        f"polls would not reach the end of {trace.name!r} ({short(trace.span)}); give a longer "
        "min_interval, a shorter trace, or a hold and a situation with `hold=True`"
    )


def checked(trace: Trace, strategy: Strategy, situation: Situation) -> Strategy:
    """The strategy for this situation; raises a ConfigError for what cannot be replayed."""
    check_arrivals(trace.arrivals, trace.span, f"trace {trace.name!r}")
    if not isinstance(strategy, Strategy):
        raise ConfigError(
            f"strategy = {strategy!r} is not a strategy; give e.g. Adaptive('100ms', '5s')"
        )
    strategy = strategy.for_source(situation.hold)
    if strategy.longest_hold and not situation.hold:
        raise ConfigError(
            f"{strategy!r} holds its polls, but the situation's source cannot; replay it with "
            "Situation(hold=True), or use a strategy without a hold"
        )
    for name in ("capacity", "concurrency"):
        _check_count(getattr(situation, name), name, optional=True)
    _check_count(situation.workers, "workers")
    for name in ("handler_time", "poll_latency"):
        value = getattr(situation, name)
        if not 0 <= value < math.inf:
            raise ConfigError(f"{name} = {value!r} must be a finite number of seconds, 0 or more")
    if not 0 <= situation.failure_share < 1:
        raise ConfigError(
            f"failure_share = {situation.failure_share!r} must be in [0, 1): the share of polls "
            "that fail; if all failed, nothing would ever be found"
        )
    return strategy


def check_arrivals(arrivals: Seconds, span: float, what: str) -> None:
    """Raise a ConfigError unless arrivals are numbers in order, from 0 to the end of the span."""
    if not 0 <= span < math.inf:
        raise ConfigError(f"{what} has the span {span!r}; give a finite number, 0 or more")
    if not len(arrivals):
        return
    if not np.isfinite(arrivals).all():
        where = int(np.argmin(np.isfinite(arrivals)))
        raise ConfigError(f"{what}: arrival {where + 1} is {arrivals[where]}; leave it out")
    steps = np.diff(arrivals)
    if (steps < 0).any():
        where = int(np.argmax(steps < 0)) + 1
        raise ConfigError(
            f"{what} is not in order: arrival {where + 1} at {arrivals[where]:g} s comes after "
            f"one at {arrivals[where - 1]:g} s; sort it"
        )
    if arrivals[0] < 0 or arrivals[-1] > span:
        raise ConfigError(
            f"{what} has arrivals from {arrivals[0]:g} to {arrivals[-1]:g} s, which are not all "
            f"within its span of {span:g} s; shift them to start at 0, or lengthen the span"
        )


def _check_count(value: int | None, name: str, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        none = ", or None for no limit" if optional else ""
        raise ConfigError(f"{name} = {value!r} must be a whole number, 1 or more{none}")


def result(
    trace: Trace,
    strategy: Strategy,
    *,
    polls: int,
    empty: int,
    waits: Seconds,
    poll_times: Seconds | None,
    failed: int = 0,
    held: int = 0,
) -> Replay:
    """A replay from its figures."""
    kinds = {"poll": polls - held, "held poll": held}
    return Replay(
        strategy=repr(strategy),
        trace=trace.name,
        span=trace.span,
        polls=polls,
        empty=empty,
        failed=failed,
        found=len(waits),
        waits=waits,
        poll_times=poll_times,
        requests={kind: count for kind, count in kinds.items() if count},
    )


class WithoutJitter(Strategy):
    """Another strategy without jitter, for one poller.

    The loop draws the jitter within the strategy's bounds. Both bounds are always the last pause
    here, so there is nothing to draw.
    """

    name: ClassVar[str] = "without jitter"
    settings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._delay = 0.0

    @property
    def min_interval(self) -> float:
        return self._delay

    @property
    def max_interval(self) -> float:
        return self._delay

    @property
    def longest_hold(self) -> float:
        return self._strategy.longest_hold

    def for_source(self, can_hold: bool) -> Strategy:
        return WithoutJitter(self._strategy.for_source(can_hold))

    def pacer(self) -> Pacer:
        return _PacerWithoutJitter(self, self._strategy.pacer())

    def note(self, pause: Pause) -> Pause:
        self._delay = pause.delay
        return pause

    def __repr__(self) -> str:
        return repr(self._strategy)


class _PacerWithoutJitter(Pacer):
    def __init__(self, strategy: WithoutJitter, real: Pacer) -> None:
        self._strategy = strategy
        self._real = real

    def first(self) -> Pause:
        return self._strategy.note(self._real.first())

    def after(self, outcome: Outcome) -> Pause:
        return self._strategy.note(self._real.after(outcome))

    def state(self) -> dict[str, Plain]:
        return self._real.state()


def as_seconds(values: Sequence[float]) -> Seconds:
    return np.asarray(values, dtype=np.float64)
