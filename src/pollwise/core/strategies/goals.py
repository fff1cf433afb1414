"""The goals of `Worth`: a price ratio, or a controller that steers it to a budget or a latency.

`Worth` needs one number: how many item-seconds of waiting a poll is worth. Prices give it directly.
For a budget or a latency target it is steered: it starts at the ratio that fits steady traffic,
goes up when polls exceed the budget (or items wait too little), and down when they do not. Each
goal counts, in polls or in items, how far it is ahead of its target, and steers by that balance:
while the balance stays bounded, the target is met in the long run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

#: Steering multiplies the price ratio by at most this power of e, up or down.
STEER_MAX = 6.0
#: Budget: how many hours of polls the balance may fall below zero, and how many it may save.
OVERDRAFT, SAVINGS = 0.1, 0.1
#: How far an hour's polls move the logarithm of the price ratio: while they are in the balance, and
#: permanently.
GAIN, DRIFT = 10.0, 2.0
#: A smaller budget is steered as if it were this large, so that a single poll matters little.
HOUR_MIN = 20.0
#: Latency: how far one item that is late, or early, by as much as the target moves it; and for p95,
#: how far one that is late at all does.
MEAN_GAIN = 1.0 / 200.0
P95_GAIN = 1.0 / 50.0
#: The p95 goal aims a little below its target, so that the target is met.
P95_AIM = 0.95
#: Targets are clamped to these limits.
SECONDS_MAX = 1e9
PER_HOUR_MIN, PER_HOUR_MAX = 1e-6, 1e9


class Goal(ABC):
    """Decides what a poll is worth, in item-seconds of waiting."""

    steer = 0.0

    @abstractmethod
    def price(self, rate: float) -> float:
        """The item-seconds that are worth a poll, if items come at `rate` in the long run."""

    def polled(self, span: float) -> None:  # noqa: B027, optional
        """Take into account a poll, `span` seconds after the one before."""

    def waited(self, waits: Sequence[float], weight: float) -> None:  # noqa: B027
        """Take into account the waits of items, each with this weight."""

    def spread(self, found: float, span: float) -> None:  # noqa: B027
        """Take into account items that came in `span` seconds at unknown times: evenly."""

    def soonest(self) -> float:
        """The minimum length of the next pause."""
        return 0.0


class PriceGoal(Goal):
    """A given price ratio."""

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio

    def price(self, rate: float) -> float:
        return self._ratio


class SteeredGoal(Goal):
    """A price ratio that is steered around what `interval` would need in steady traffic."""

    def __init__(self, interval: float) -> None:
        interval = min(interval, SECONDS_MAX)
        self._half_square = 0.5 * interval * interval

    def price(self, rate: float) -> float:
        return rate * self._half_square * math.exp(self.steer)


class BudgetGoal(SteeredGoal):
    """A number of polls an hour."""

    def __init__(self, per_hour: float) -> None:
        per_hour = max(PER_HOUR_MIN, min(per_hour, PER_HOUR_MAX))
        super().__init__(3600.0 / per_hour)
        self._per_second = per_hour / 3600.0
        self._hour = max(per_hour, HOUR_MIN)
        self._balance = 0.0  # hours of polls saved; old ones expire
        self._trend = 0.0  # of the price ratio, over all polls

    def polled(self, span: float) -> None:
        unspent = (span * self._per_second - 1.0) / self._hour
        self._trend = _within(self._trend - DRIFT * unspent, STEER_MAX)
        self._balance = min(self._balance + unspent, SAVINGS)
        self.steer = _within(self._trend - GAIN * self._balance, STEER_MAX)

    def soonest(self) -> float:
        return (1.0 - (OVERDRAFT + self._balance) * self._hour) / self._per_second


class MeanWaitGoal(SteeredGoal):
    """A mean wait of all items, in seconds."""

    def __init__(self, mean: float) -> None:
        super().__init__(2.0 * mean)
        self._mean = mean

    def waited(self, waits: Sequence[float], weight: float) -> None:
        self._count(weight * (len(waits) - sum(waits) / self._mean))

    def spread(self, found: float, span: float) -> None:
        self._count(found * (1.0 - 0.5 * span / self._mean))

    def _count(self, ahead: float) -> None:
        self.steer = _within(self.steer + MEAN_GAIN * ahead, STEER_MAX)


class P95WaitGoal(SteeredGoal):
    """A wait in seconds that all but one item in twenty stay below."""

    def __init__(self, p95: float) -> None:
        super().__init__(p95 / 0.95)
        self._limit = p95 * P95_AIM

    def waited(self, waits: Sequence[float], weight: float) -> None:
        late = sum(wait > self._limit for wait in waits)
        self._count(weight * (0.05 * len(waits) - late))

    def spread(self, found: float, span: float) -> None:
        self._count(found * (0.05 - max(1.0 - self._limit / span, 0.0)))

    def _count(self, ahead: float) -> None:
        self.steer = _within(self.steer + P95_GAIN * ahead, STEER_MAX)


def _within(value: float, limit: float) -> float:
    return max(-limit, min(value, limit))
