"""Shares: a budget of polls a second, shared out among targets that change at different rates.

The best rates are known for three goals, given each target's rate of change λ and weight w:

- *delay*: keep the time short until a change is seen. r = √(wλ / κ)
- *freshness*: keep the last reading as few changes behind as possible, where the second change
  missed counts half of the first, and so on. r = (-λ + √(λ² + 4wλ / κ)) / 2, as in LambdaCrawl.
- *age*: keep the last reading of each target young, however often it changes. r = √(w / κ)

κ is the value of one more poll a second, the same for all targets; it is found by bisection, so
that all rates add up to the budget. Each rate stays within the target's own bounds. A fleet may
have a million targets, so nothing here iterates over all of them: targets with about the same rate
of change share a bucket, and κ is found over buckets. `docs/why/freshness.md` says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pollwise.errors import ConfigError

Form = Literal["age", "delay", "freshness"]

#: Buckets for each doubling of the rate of change.
FINENESS = 8
#: κ is computed again after this share of the estimates has changed ...
STALE_SHARE = 1 / 8
#: ... and at least this many of them.
STALE_MIN = 16
_KAPPA_MIN, _KAPPA_MAX = 1e-30, 1e30


def delay_rate(change: float, weight: float, kappa: float) -> float:
    """The polls a second that keep changes unseen for the shortest time."""
    return math.sqrt(weight * change / kappa)


def freshness_rate(change: float, weight: float, kappa: float) -> float:
    """The polls a second that keep the reading the fewest changes behind."""
    # Rearranged from the formula above, which loses precision where the root is close to λ.
    return 2 * weight / kappa / (1 + math.sqrt(1 + 4 * weight / (kappa * change)))


def age_rate(change: float, weight: float, kappa: float) -> float:
    """The polls a second that keep the readings youngest; the rate of change does not matter."""
    return math.sqrt(weight / kappa)


RATES: Mapping[Form, Callable[[float, float, float], float]] = {
    "age": age_rate,
    "delay": delay_rate,
    "freshness": freshness_rate,
}


@dataclass(slots=True, eq=False)
class Share:
    """One target's share of a budget."""

    weight: float
    min_interval: float
    max_interval: float
    change: float
    bucket: _Bucket | None = None


@dataclass(slots=True, eq=False)
class _Bucket:
    """Targets of one weight, min_interval and max_interval that change about equally often."""

    key: tuple[float, float, float, int]
    weight: float
    min_interval: float
    max_interval: float
    count: int = 0
    change: float = 0.0  # sum over its targets


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
            raise ConfigError(f"form = {form!r} must be one of {', '.join(RATES)}")
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
        """The polls a second that the max_intervals need; a smaller budget cannot keep them."""
        return sum(bucket.count / bucket.max_interval for bucket in self._buckets.values())

    def join(self, weight: float, min_interval: float, max_interval: float, change: float) -> Share:
        """Add a target with these bounds of its interval and `change` changes a second."""
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
        """Set the estimated changes a second of this target."""
        self._exit(share)
        share.change = change
        self._enter(share)
        self._moved += 1

    def interval(self, share: Share) -> float:
        """The current seconds between two polls of this target."""
        kappa = self._kappa
        if kappa is None or self._moved > max(STALE_MIN, self._count * STALE_SHARE):
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
            bucket = self._buckets[key] = _Bucket(key, *key[:3])
        bucket.count += 1
        bucket.change += share.change
        share.bucket = bucket

    def _exit(self, share: Share) -> None:
        bucket = share.bucket
        if bucket is None:
            raise ConfigError("this share was already removed")
        bucket.count -= 1
        bucket.change -= share.change
        share.bucket = None
        if not bucket.count:
            del self._buckets[bucket.key]

    def _solved(self) -> float:
        low, high = _KAPPA_MIN, _KAPPA_MAX
        if self._kappa is not None:  # estimates change slowly
            low, high = self._kappa / 16, self._kappa * 16
            if not self._spent(low) >= self._budget >= self._spent(high):
                low, high = _KAPPA_MIN, _KAPPA_MAX
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
        """The polls a second of all targets at this `kappa`."""
        spent = 0.0
        for bucket in self._buckets.values():
            rate = self._rate(bucket.change / bucket.count, bucket.weight, kappa)
            spent += bucket.count * min(
                max(rate, 1.0 / bucket.max_interval), 1.0 / bucket.min_interval
            )
        return spent
