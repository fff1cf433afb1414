"""Freshness: poll what changes or is stale sooner, what is quiet later.

The rule of Pulse's scheduler, extended (`docs/why/freshness.md`). A score says how stale a target
is: the age of its last success as a share of the max_interval, or 1 if there never was one. The
staler a target, the closer its interval is to the min_interval. Recent errors shorten it, polls
that wait for a slot stretch it, and it moves smoothly. The interval of a fresh target approaches
√(base / λ) for a reading that changes λ times a second, which is learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, overload

from pollwise.core.forecast.changes import ChangeRate
from pollwise.core.outcome import Change, Outcome, Pause, Plain
from pollwise.core.strategies.base import Pacer, State, Strategy, bounds, restored
from pollwise.durations import Duration, seconds, shown
from pollwise.errors import ConfigError

#: Recent errors shorten the interval: it is divided by 1 + ERROR_WEIGHT · errors.
ERROR_WEIGHT = 0.6
#: The share of recent errors that is left after a success.
ERRORS_KEPT = 0.5
#: The maximum number of recent errors that count.
ERRORS_MAX = 100.0
#: Each poll that waits for a slot, beyond the first, stretches the interval by this share.
QUEUED_WEIGHT = 0.1
#: The weight of the new value in a smoothed interval.
SMOOTHING = 0.6
#: The jitter of the interval, either way.
JITTER = 0.05
#: A change is reported when the interval moved by this factor since the last report.
TURN = 2.0


def staleness_score(age: float | None, max_interval: float) -> float:
    """How stale a target is, from 0 to 1: the age of its last success as a share of its
    max_interval. A target that never succeeded has 1.

    >>> staleness_score(75.0, 300.0), staleness_score(4000.0, 300.0), staleness_score(None, 300.0)
    (0.25, 1.0, 1.0)
    """
    return 1.0 if age is None else min(max(age / max_interval, 0.0), 1.0)


@dataclass(frozen=True, init=False, slots=True)
class Freshness(Strategy):
    """Poll what changes or is stale sooner, what is quiet later.

    base_interval: the interval of a new target, and of one that changes about once in it.
    min_interval: the shortest interval, however often the target changes.
    max_interval: the longest interval, however quiet the target is.
    """

    base_interval: float
    min_interval: float
    max_interval: float

    name: ClassVar[str] = "freshness"

    def __init__(
        self,
        base_interval: Duration = "10s",
        min_interval: Duration = "5s",
        max_interval: Duration = "5m",
    ) -> None:
        low, high = bounds(min_interval, max_interval)
        middle = seconds(base_interval, "base_interval", positive=True)
        if not low <= middle <= high:
            raise ConfigError(
                f"base_interval = {shown(base_interval)} must be from min_interval = "
                f"{shown(min_interval)} to max_interval = {shown(max_interval)}"
            )
        self._set(base_interval=middle, min_interval=low, max_interval=high)

    def adjusted(
        self,
        base_interval: float | None = None,
        min_interval: float | None = None,
        max_interval: float | None = None,
    ) -> Freshness:
        """Return a copy with other intervals; those not given stay, within the given bounds."""
        low = self.min_interval if min_interval is None else min_interval
        high = self.max_interval if max_interval is None else max_interval
        if max_interval is None:
            high = max(high, low)
        if min_interval is None:
            low = min(low, high)
        if base_interval is None:
            base_interval = min(max(self.base_interval, low), high)
        return Freshness(base_interval, low, high)

    @overload
    def pacer(self) -> FreshnessPacer: ...
    @overload
    def pacer(self, state: State | None) -> Pacer: ...
    def pacer(self, state: State | None = None) -> Pacer:
        return FreshnessPacer(self) if state is None else restored(self, state).pacer


class FreshnessPacer(Pacer):
    """The running state for one target. A poll that found something found a changed reading."""

    __slots__ = (
        "_errors", "_interval", "_polled_at", "_reported", "_strategy", "_succeeded_at", "changes",
        "queued",
    )  # fmt: skip

    def __init__(self, strategy: Freshness) -> None:
        self._strategy = strategy
        self._interval = strategy.base_interval
        self._reported = strategy.base_interval
        self._errors = 0.0
        self._polled_at: float | None = None
        self._succeeded_at: float | None = None
        #: How often the reading changes, as estimated.
        self.changes: ChangeRate = ChangeRate(1.0 / strategy.base_interval)
        #: How many polls wait for a slot; set by the fleet.
        self.queued: int = 0

    def first(self) -> Pause:
        return Pause(self._interval)

    def after(self, outcome: Outcome) -> Pause:
        if outcome.failed:
            self._errors = min(self._errors + 1.0, ERRORS_MAX)
        else:
            self._learn(outcome)
            self._errors *= ERRORS_KEPT
            self._succeeded_at = outcome.at
        wanted = SMOOTHING * self._target(outcome.at) + (1 - SMOOTHING) * self._interval
        self._interval = min(max(wanted, self._strategy.min_interval), self._strategy.max_interval)
        return Pause(self._interval, 0.0, self._turns())

    def age(self, now: float) -> float | None:
        """How long ago the last success was; None if there never was one."""
        return None if self._succeeded_at is None else max(now - self._succeeded_at, 0.0)

    def _learn(self, outcome: Outcome) -> None:
        if self._polled_at is not None:
            gap = max(outcome.at - self._polled_at, 0.0)
            if outcome.found:
                self.changes.changed(gap, min(outcome.waits, default=None))
            else:
                self.changes.unchanged(gap)
        self._polled_at = outcome.at

    def _target(self, now: float) -> float:
        strategy = self._strategy
        fresh = min(max(math.sqrt(strategy.base_interval / self.changes.rate),
        strategy.min_interval), strategy.max_interval)  # fmt: skip
        score = staleness_score(self.age(now), strategy.max_interval)
        target = strategy.min_interval + (fresh - strategy.min_interval) * (1.0 - score)
        target /= 1.0 + ERROR_WEIGHT * self._errors
        return target * (1.0 + QUEUED_WEIGHT * max(self.queued - 1, 0))

    def _turns(self) -> tuple[Change, ...]:
        before, now = self._reported, self._interval
        if before / TURN < now < before * TURN:
            return ()
        self._reported = now
        return (Change("back-off" if now > before else "speed-up", before, now),)

    def state(self) -> dict[str, Plain]:
        return {
            "interval": self._interval,
            "changes_per_second": self.changes.rate,
            "errors": self._errors,
            "queued": self.queued,
        }
