"""What `Worth` is to reach: a price ratio, or a controller that steers it to a budget or a latency.

`Worth` needs one number: how many item-seconds of waiting a poll is worth. A price says it at
once. A budget or a latency target does not, so it is steered: from the ratio that would be right
for steady traffic, up when polls overrun the budget (or items wait too little), down when they do
not. Each goal keeps an account, in polls or in items, of how far ahead of its target it is, and
steers by the balance: a balance that stays bounded is a target that is met in the long run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

#: Steering multiplies the price ratio by at most this power of e, up or down.
STEER_MAX = 6.0
#: Budget: the account may be overdrawn by so many hours of polls, and hold so many unspent.
OVERDRAFT, SAVINGS = 0.1, 0.1
#: How far an hour's polls move the logarithm of the price ratio: while they are on the account, and
#: for good.
GAIN, DRIFT = 10.0, 2.0
#: A smaller budget is steered as if it were so large: a single poll is no news.
HOUR_MIN = 20.0
#: Latency: how far one item that is late, or early, by as much as the target moves it; and for p95,
#: how far one that is late at all does.
MEAN_GAIN = 1.0 / 200.0
P95_GAIN = 1.0 / 50.0
#: p95 is aimed a little below its target, so that it is met and not straddled.
P95_AIM = 0.95
#: Beyond these, a target is no different.
SECONDS_MAX = 1e9
PER_HOUR_MIN, PER_HOUR_MAX = 1e-6, 1e9


class Goal(ABC):
    """Says what a poll is worth, in item-seconds of waiting."""

    steer = 0.0

    @abstractmethod
    def price(self, rate: float) -> float:
        """The item-seconds that are worth a poll, where items come at `rate` in the long run."""

    def polled(self, span: float) -> None:  # noqa: B027, not every goal minds
        """Take into account a poll, `span` seconds after the one before."""

    def waited(self, waits: Sequence[float], weight: float) -> None:  # noqa: B027
        """Take into account items that waited so long, each standing for `weight` of them."""

    def spread(self, found: float, span: float) -> None:  # noqa: B027
        """Take into account items that came in `span` seconds, nobody knows when: evenly."""

    def soonest(self) -> float:
        """How long the next pause must be at least."""
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
    """So many polls an hour."""

    def __init__(self, per_hour: float) -> None:
        per_hour = max(PER_HOUR_MIN, min(per_hour, PER_HOUR_MAX))
        super().__init__(3600.0 / per_hour)
        self._per_second = per_hour / 3600.0
        self._hour = max(per_hour, HOUR_MIN)
        self._balance = 0.0  # hours of polls that were not made; old ones expire
        self._trend = 0.0  # of the price ratio, by all of them

    def polled(self, span: float) -> None:
        unspent = (span * self._per_second - 1.0) / self._hour
        self._trend = _within(self._trend - DRIFT * unspent, STEER_MAX)
        self._balance = min(self._balance + unspent, SAVINGS)
        self.steer = _within(self._trend - GAIN * self._balance, STEER_MAX)

    def soonest(self) -> float:
        return (1.0 - (OVERDRAFT + self._balance) * self._hour) / self._per_second


class MeanWaitGoal(SteeredGoal):
    """So many seconds of waiting, on the average of all items."""

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
    """So many seconds of waiting for all but one item in twenty."""

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
