"""Shares: a budget of polls a second, shared out among targets that change at different rates.

Polling each of n targets equally often wastes most of the budget on those that hardly change. The
best rates are known for two goals, given each target's rate of change λ and weight w:

- *delay*: a change shall stay unseen for as short as possible, on average over all changes, each by
  its weight. r = √(wλ / κ): who changes a hundred times as often is polled ten times as often.
- *freshness*: the last reading shall lag behind by as few changes as possible, where the second
  change missed counts half of the first, the third a third, and so on.
  r = (-λ + √(λ² + 4wλ / κ)) / 2, the form of LambdaCrawl. Targets that change far faster than they
  can be polled are all polled alike: a lost cause gets no more for being hopeless.

κ is what one more poll a second would be worth, the same for everybody; it is found by bisection,
so that all rates together make the budget. Each rate is kept within the target's own min_interval
and max_interval: the max_interval is what keeps the quietest from starving.

Beliefs change with every poll, and a fleet may have a million targets, so nothing here walks over
all of them: targets of about the same rate of change share a bucket, and κ is found over buckets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

from pollwise.errors import ConfigError

Form = Literal["delay", "freshness"]

#: Buckets for each doubling of the rate of change.
FINENESS = 8
#: κ is found anew after so many beliefs moved, as a share of the targets, and at least so many.
STALE_SHARE = 1 / 8
STALE_LEAST = 16
_KAPPA_LEAST, _KAPPA_MOST = 1e-30, 1e30


def delay_rate(change: float, weight: float, kappa: float) -> float:
    """The polls a second that keep changes unseen for the shortest time."""
    return math.sqrt(weight * change / kappa)


def freshness_rate(change: float, weight: float, kappa: float) -> float:
    """The polls a second that keep the reading the fewest changes behind."""
    # As written in the head of this module, it would cancel where the root is hardly above λ.
    return 2 * weight / kappa / (1 + math.sqrt(1 + 4 * weight / (kappa * change)))


RATES: Mapping[Form, Callable[[float, float, float], float]] = {
    "delay": delay_rate,
    "freshness": freshness_rate,
}


class Share:
    """One target's share of a budget."""

    __slots__ = ("bucket", "change", "max_interval", "min_interval", "weight")

    def __init__(
        self, weight: float, min_interval: float, max_interval: float, change: float
    ) -> None:
        self.weight = weight
        self.min_interval = min_interval
        self.max_interval = max_interval
        self.change = change
        self.bucket: _Bucket | None = None


class _Bucket:
    """Targets of one weight, min_interval and max_interval that change about equally often."""

    __slots__ = ("change", "count", "key", "max_interval", "min_interval", "weight")

    def __init__(self, key: tuple[float, float, float, int], share: Share) -> None:
        self.key = key
        self.weight = share.weight
        self.min_interval = share.min_interval
        self.max_interval = share.max_interval
        self.count = 0
        self.change = 0.0  # of all together


class Shares:
    """A budget, shared out.

    >>> shares = Shares(budget=11.0)
    >>> quick = shares.join(1.0, min_interval=0.01, max_interval=100.0, change=1.0)
    >>> slow = shares.join(1.0, min_interval=0.01, max_interval=100.0, change=0.01)
    >>> [round(1 / shares.interval(each), 3) for each in (quick, slow)]
    [10.0, 1.0]
    """

    def __init__(self, budget: float, form: Form = "delay") -> None:
        if form not in RATES:
            raise ConfigError(f"form = {form!r} is none of {', '.join(RATES)}")
        self.form = form
        self._rate = RATES[form]
        self._buckets: dict[tuple[float, float, float, int], _Bucket] = {}
        self._count = 0
        self._moved = 0
        self._kappa: float | None = None
        self.budget = budget

    @property
    def budget(self) -> float:
        """The polls a second that are shared out."""
        return self._budget

    @budget.setter
    def budget(self, budget: float) -> None:
        if not (isinstance(budget, (int, float)) and 0 < budget < math.inf):
            raise ConfigError(f"budget = {budget!r} must be polls a second, above 0 and finite")
        self._budget = float(budget)
        self._kappa = None

    def __len__(self) -> int:
        return self._count

    @property
    def least(self) -> float:
        """The polls a second that the max_intervals ask for; more than the budget cannot be had."""
        return sum(bucket.count / bucket.max_interval for bucket in self._buckets.values())

    def join(self, weight: float, min_interval: float, max_interval: float, change: float) -> Share:
        """Take part: with an interval from `min_interval` to `max_interval`, and `change`
        changes a second.
        """
        share = Share(weight, min_interval, max_interval, change)
        self._enter(share)
        self._count += 1
        self._kappa = None
        return share

    def leave(self, share: Share) -> None:
        self._exit(share)
        self._count -= 1
        self._kappa = None

    def update(self, share: Share, change: float) -> None:
        """It is now believed that this target changes so many times a second."""
        self._exit(share)
        share.change = change
        self._enter(share)
        self._moved += 1

    def interval(self, share: Share) -> float:
        """The seconds between two polls of this target, for now."""
        kappa = self._kappa
        if kappa is None or self._moved > max(STALE_LEAST, self._count * STALE_SHARE):
            kappa = self._solved()
        rate = self._rate(share.change, share.weight, kappa)
        if rate * share.max_interval <= 1.0:
            return share.max_interval
        return max(1.0 / rate, share.min_interval)

    def _enter(self, share: Share) -> None:
        place = round(math.log2(share.change) * FINENESS)
        key = (share.weight, share.min_interval, share.max_interval, place)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(key, share)
        bucket.count += 1
        bucket.change += share.change
        share.bucket = bucket

    def _exit(self, share: Share) -> None:
        bucket = share.bucket
        if bucket is None:
            raise ConfigError("this share has left already")
        bucket.count -= 1
        bucket.change -= share.change
        share.bucket = None
        if not bucket.count:
            del self._buckets[bucket.key]

    def _solved(self) -> float:
        low, high = _KAPPA_LEAST, _KAPPA_MOST
        if self._kappa is not None:  # beliefs move little by little
            low, high = self._kappa / 16, self._kappa * 16
            if not self._spent(low) >= self._budget >= self._spent(high):
                low, high = _KAPPA_LEAST, _KAPPA_MOST
        while high > low * (1 + 1e-6):
            middle = math.sqrt(low * high)
            if self._spent(middle) > self._budget:
                low = middle
            else:
                high = middle
        self._kappa = high
        self._moved = 0
        return high

    def _spent(self, kappa: float) -> float:
        """The polls a second of all, if one more were worth `kappa`."""
        spent = 0.0
        for bucket in self._buckets.values():
            rate = self._rate(bucket.change / bucket.count, bucket.weight, kappa)
            spent += bucket.count * min(
                max(rate, 1.0 / bucket.max_interval), 1.0 / bucket.min_interval
            )
        return spent
