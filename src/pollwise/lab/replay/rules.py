"""What every replay goes by, whichever engine runs it.

**When it begins.** Time 0 is the trace's beginning, and the first poll is at 0; with `jitter`, at a
random point of the first pause, as in the real loop.

**When it ends.** Polling goes on until the span is over and every item is found. Every poll that
began before the span's end counts; of those that began later only the ones that found something,
for they belong to arrivals of the trace. So `Fixed("1s")` over an hour is 3,600 polls, and one more
if it found something at the end. A poll that was under way when the replay ended counts as empty.

**How long an item waits.** From its arrival until the answer of the poll that found it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pollwise.core.outcome import Outcome, Pause, Plain
from pollwise.core.retry import Retry
from pollwise.core.strategies.base import Pacer, Strategy
from pollwise.durations import short
from pollwise.errors import ConfigError
from pollwise.lab.needs import np
from pollwise.lab.replay.results import Replay, Seconds, Situation, Trace
from pollwise.runtime.loop import POLL_RETRY

#: Polls in a row that find nothing while no time passes; after so many, none ever will.
STUCK_AFTER = 10_000
#: The most polls of one replay; a year at 63 a second.
POLLS_MAX = 2_000_000_000
#: How a failed poll is retried where nothing is drawn: the loop's own way, without its jitter.
EXACT_RETRY = Retry.exponential("1s", max_delay="60s", attempts=None, jitter=0)


def retry_of(situation: Situation) -> Retry:
    return POLL_RETRY if situation.jitter else EXACT_RETRY


def drawn_by(seed: int, who: str) -> random.Random:
    """Random numbers for one part of a replay, so that no part's draws move another's."""
    return random.Random(f"{seed}/{who}")


def most_found(situation: Situation) -> int | None:
    """The most that any poll can find: the capacity, and no more than there are places."""
    limits = [n for n in (situation.capacity, situation.concurrency) if n is not None]
    return min(limits) if limits else None


def too_many_polls(strategy: Strategy, trace: Trace) -> ConfigError:
    """The error for a strategy whose pauses are so short that the replay would not end."""
    return ConfigError(
        f"{strategy!r} polls on and on: its pauses hardly move the clock, and {POLLS_MAX:,} polls "
        f"would not reach the end of {trace.name!r} ({short(trace.span)}); give a longer "
        f"min_interval, a "
        "shorter trace, or a hold and a situation with `hold=True`"
    )


def check(trace: Trace, strategy: Strategy, situation: Situation) -> None:
    """Refuse what cannot be replayed, before anything runs."""
    check_arrivals(trace.arrivals, trace.span, f"trace {trace.name!r}")
    if not isinstance(strategy, Strategy):
        raise ConfigError(
            f"strategy = {strategy!r} is no strategy; give e.g. Adaptive('100ms', '5s')"
        )
    if strategy.longest_hold and not situation.hold:
        raise ConfigError(
            f"{strategy!r} holds its polls, and the situation's source cannot; replay it with "
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
            "that fail; if all did, nothing would ever be found"
        )


def check_arrivals(arrivals: Seconds, span: float, what: str) -> None:
    """Refuse arrivals that are not numbers in order, from 0 to the end of the span."""
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
        none = "; None where there is no limit" if optional else ""
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
    """Put a replay's figures together."""
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


class Exactly(Strategy):
    """Another strategy without jitter, for one poller.

    The loop draws within the strategy's bounds. These bounds are always the last pause, so that
    there is nothing to draw.
    """

    name: ClassVar[str] = "exactly"
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

    def pacer(self) -> Pacer:
        return _ExactPacer(self, self._strategy.pacer())

    def note(self, pause: Pause) -> Pause:
        self._delay = pause.delay
        return pause

    def __repr__(self) -> str:
        return repr(self._strategy)


class _ExactPacer(Pacer):
    def __init__(self, strategy: Exactly, real: Pacer) -> None:
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
