"""The goals of `Worth`: a price, a budget of polls, or a latency.

A price says how many item-seconds of waiting a poll is worth. For a budget or a mean wait, the
price that meets it is computed from what earlier prices gave: with a price c, the mean wait grows
as √c and the number of polls falls as 1/√c, whatever the traffic. A balance counts how far the goal
is ahead of its target; the price leans towards what keeps the balance even. A budget of polls is
also a limit: savings that are used up lengthen the pause. A mean wait never takes more polls than
the fixed interval with that mean wait.

For a 95th percentile no price is right: an item is late or it is not. So the goal is a budget of
late items. A poll that comes later makes those items late that would have been found in time. That
costs least when few items arrive, so every item gets a score: the rate that was forecast for the
moment it arrived. The items with the lowest scores, one in twenty, may be late. A threshold
separates them from the others: when the rate forecast for a moment reaches it, the next poll is due
one target time after that moment.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

#: How long a goal remembers, in seconds: some days, because traffic has a daily rhythm.
MEMORY_SECONDS = 3 * 86400.0
#: Targets are clamped to these limits.
SECONDS_MAX = 1e9
PER_HOUR_MIN, PER_HOUR_MAX = 1e-6, 1e9

#: Mean wait: how many items it remembers.
ITEMS_REMEMBERED = 5000.0
#: How far a balance of all items moves the logarithm of the price, and the maximum.
MEAN_LEAN, MEAN_LEAN_MAX = 4.0, 4.0
#: How many more polls than a fixed interval it may make: at the start, and at most.
CREDIT, CREDIT_MAX = 30.0, 20_000.0
#: That fixed interval, in mean waits. It is a little below 2 and not a whole number: otherwise it
#: would meet batches at whole seconds at the same place each time.
FIXED = 1.973
#: Budget: how many periods it remembers.
PERIODS = 2.0
#: A period counts as at least this many polls.
PERIOD_POLLS = 50.0
#: The least number of polls that may be saved.
SAVED_MIN = 2.0
#: The share of the possible savings that is aimed at.
LEVEL = 0.5
#: How far full savings move the logarithm of the price.
SAVED_LEAN = 2.0
#: The savings at the start, as a share.
FIRST = 0.1
#: The most that a pause made longer counts, in polls that were not made.
FACTOR_MAX = 5.0

#: Late items: the share that is aimed at, a little below one in twenty.
LATE = 0.048
#: The bins of scores for each doubling of the rate, and the exponent of the lowest rate.
BINS, LOWEST = 8, -40
#: How many doublings of the rate have bins.
DOUBLINGS = 64
#: From this many items on, the threshold is used.
SCORES_MIN = 20.0
#: The balance that is aimed at, as a share of all late items that were allowed.
RESERVE = 0.05
#: How far a balance below or above the reserve moves the logarithm of the share that is late.
LEAN_BELOW, LEAN_ABOVE = 12.0, 1.0
#: The maximum of each.
LEAN_BELOW_MAX, LEAN_ABOVE_MAX = 3.0, 1.0
#: How many items may be late because of one pause: RISK, and RISK_SHARE of the balance.
RISK, RISK_SHARE = 1.0, 0.1
#: With a debt, this number falls: to 0 when the debt is DEBT_SHARE of what was allowed, and DEBT.
DEBT_SHARE, DEBT = 0.05, 3.0
#: The search for the end of a pause: its first step, as a share of the target, and their growth.
STEP, GROWTH = 0.1, 1.4
#: The threshold is computed again after this many polls.
THRESHOLD_EVERY = 8


class Goal(ABC):
    """Decides what a poll is worth, in item-seconds of waiting."""

    @abstractmethod
    def price(self, rate: float) -> float:
        """The item-seconds that are worth a poll, if items come at `rate` in the long run."""

    def polled(self, at: float, span: float, price: float) -> None:  # noqa: B027, optional
        """Take into account a poll at `at`, `span` seconds after the one before."""

    def waited(self, waits: Sequence[float], found: int, price: float) -> None:  # noqa: B027
        """Take into account how long items waited, after a pause at this price."""

    def spread(self, found: int, span: float, price: float) -> None:  # noqa: B027
        """Take into account items that came in `span` seconds at unknown times: evenly."""

    def soonest(self, at: float) -> float:
        """The minimum length of the next pause."""
        return 0.0

    def delayed(self, factor: float) -> None:  # noqa: B027
        """Take into account that `soonest` made a pause longer by this factor."""

    @property
    def lean(self) -> float:
        """How far the goal leans to fewer polls (above 0) or more (below 0)."""
        return 0.0


class PriceGoal(Goal):
    """A given price ratio."""

    _ratio: Final[float]

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio

    def price(self, rate: float) -> float:
        return self._ratio


class BudgetGoal(Goal):
    """A number of polls in each period.

    saved: how many of them may be saved for later, as a share. No time has more polls than its
        budget and the savings.
    """

    _per_second: Final[float]
    _memory: Final[float]
    _saved_max: Final[float]

    def __init__(self, per_hour: float, period: float, saved: float) -> None:
        per_hour = max(PER_HOUR_MIN, min(per_hour, PER_HOUR_MAX))
        self._per_second = per_hour / 3600.0
        self._memory = PERIODS * max(period, PERIOD_POLLS / self._per_second)
        self._saved_max = max(saved * period * self._per_second, SAVED_MIN)
        self._saved = FIRST * self._saved_max
        # Ten polls are assumed, of a source with one item in each interval.
        self._time = 10.0 / self._per_second
        self._roots = 10.0 * math.sqrt(0.5 / self._per_second)  # of the prices of all polls

    def price(self, rate: float) -> float:
        root = self._roots / (self._time * self._per_second)
        return root * root * math.exp(self.lean)

    @property
    def lean(self) -> float:
        return SAVED_LEAN * (LEVEL - self._saved / self._saved_max)

    def polled(self, at: float, span: float, price: float) -> None:
        left = math.exp(-span / self._memory)
        self._time = left * self._time + span
        self._roots = left * self._roots + math.sqrt(price)
        saved = self._saved + span * self._per_second - 1.0
        self._saved = max(min(saved, self._saved_max), -1.0)

    def soonest(self, at: float) -> float:
        return max(1.0 - self._saved, 0.0) / self._per_second

    def delayed(self, factor: float) -> None:
        """Take into account that the budget made a pause longer by this factor."""
        price = self.price(0.0)
        self._roots += (min(factor, FACTOR_MAX) - 1.0) * math.sqrt(price)


class MeanWaitGoal(Goal):
    """A mean wait of all items, in seconds."""

    _mean: Final[float]
    _fixed: Final[float]

    def __init__(self, mean: float) -> None:
        self._mean = min(mean, SECONDS_MAX)
        # One item is assumed, at a rate of one in twice the mean.
        self._items = 1.0
        self._scaled = math.sqrt(self._mean)  # waits, over the roots of their prices
        self._balance = 0.0  # in mean waits
        self._fixed = FIXED * self._mean
        self._credit = CREDIT  # polls that a fixed interval would have made, and this goal did not

    def price(self, rate: float) -> float:
        root = self._mean * self._items / self._scaled
        return root * root * math.exp(self.lean)

    @property
    def lean(self) -> float:
        return _within(MEAN_LEAN * self._balance / (self._items + 20.0), MEAN_LEAN_MAX)

    def polled(self, at: float, span: float, price: float) -> None:
        self._credit = min(self._credit + span / self._fixed - 1.0, CREDIT_MAX)

    def soonest(self, at: float) -> float:
        return self._fixed if self._credit < 0.0 else 0.0

    def waited(self, waits: Sequence[float], found: int, price: float) -> None:
        self._count(found, sum(waits) * found / len(waits), price)

    def spread(self, found: int, span: float, price: float) -> None:
        self._count(found, 0.5 * span * found, price)

    def _count(self, found: int, total: float, price: float) -> None:
        total = max(0.0, min(total, SECONDS_MAX * found))
        left = math.exp(-found / ITEMS_REMEMBERED)
        self._items = left * self._items + found
        self._scaled = left * self._scaled + total / math.sqrt(price)
        self._balance = left * self._balance + found - total / self._mean


class P95WaitGoal(Goal):
    """A wait in seconds that all but one item in twenty stay below."""

    _limit: Final[float]

    def __init__(self, p95: float) -> None:
        self._limit = min(p95, SECONDS_MAX)
        self._scores = [0.0] * (BINS * DOUBLINGS)  # items by the rate forecast for their moment
        self._items = 0.0
        self._balance = 0.0  # late items that are left
        self._threshold = math.inf
        self._due = 0
        self._unfaded = 0.0

    def price(self, rate: float) -> float:
        return 0.5 * rate * self._limit * self._limit

    @property
    def lean(self) -> float:
        ahead = self._balance / (LATE * self._items + 5.0) - RESERVE
        if ahead < 0.0:
            return max(LEAN_BELOW * ahead, -LEAN_BELOW_MAX)
        return min(LEAN_ABOVE * ahead, LEAN_ABOVE_MAX)

    def polled(self, at: float, span: float, price: float) -> None:
        self._unfaded += span

    def waited(self, waits: Sequence[float], found: int, price: float) -> None:
        late = sum(map(self._limit.__lt__, waits))
        self._count(found, found * late / len(waits))

    def spread(self, found: int, span: float, price: float) -> None:
        self._count(found, found * max(1.0 - self._limit / span, 0.0))

    def _count(self, found: int, late: float) -> None:
        self._items += found
        self._balance = min(self._balance + LATE * found - late, LATE * self._items + 1.0)

    def score(self, rates: Sequence[float], weight: float) -> None:
        """Take into account the rates that were forecast for the moments of items."""
        for rate in rates:
            place = math.floor(BINS * (math.log2(rate) - LOWEST)) if rate > 0.0 else 0
            self._scores[max(0, min(place, len(self._scores) - 1))] += weight

    def pause(self, rate_ahead: Callable[[float], float], longest: float) -> float:
        """How long to pause, if `rate_ahead(s)` is forecast for s seconds from now."""
        self._due -= 1
        if self._due <= 0:
            self._due = THRESHOLD_EVERY
            self._settle()
        threshold, risk = self._threshold, self._risk()
        put_off, step = 0.0, STEP * self._limit
        longest -= self._limit
        while put_off < longest:
            rate = rate_ahead(put_off)
            if rate >= threshold:
                break
            if rate * step >= risk:
                put_off += risk / rate
                break
            risk -= rate * step
            put_off += step
            step *= GROWTH
        return self._limit + min(put_off, max(longest, 0.0))

    def _risk(self) -> float:
        if self._balance > 0.0:
            return RISK + RISK_SHARE * self._balance
        return RISK * max(0.0, 1.0 + self._balance / (DEBT_SHARE * LATE * self._items + DEBT))

    def _settle(self) -> None:
        """Forget a little, and find the threshold again."""
        left = math.exp(-self._unfaded / MEMORY_SECONDS)
        self._unfaded = 0.0
        self._items *= left
        self._balance *= left
        self._scores = scores = [left * each for each in self._scores]
        total = sum(scores)
        if total < SCORES_MIN:
            self._threshold = math.inf
            return
        wanted = min(LATE * math.exp(self.lean), 1.0) * total
        place, last = 0, len(scores) - 1
        while place < last and scores[place] < wanted:
            wanted -= scores[place]
            place += 1
        share = min(wanted / scores[place], 1.0) if scores[place] else 0.0
        self._threshold = 2.0 ** ((place + share) / BINS + LOWEST)


def _within(value: float, limit: float) -> float:
    return max(-limit, min(value, limit))
