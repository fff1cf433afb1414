"""Changes: how often a reading changes, learned from polls at irregular times.

A poll that finds a new reading shows only that it changed at least once since the last poll, so
each poll is weighed by its gap (`docs/why/freshness.md`). The estimate of the rate λ is a Gamma
distribution, two numbers. After an unchanged poll it is exactly a Gamma again. After a changed poll
it is not, so it is replaced by the Gamma of the same mean and variance, which are known in closed
form. If the reading says when it last changed, this is exact as well. Old polls fade slowly.
"""

from __future__ import annotations

import math
import sys

#: The first estimate counts as this many changes seen: little, so that a target that changes at
#: every poll is recognised soon.
FIRST_WEIGHT = 0.15
#: About how many of the newest polls count.
MEMORY = 50.0
#: A change with at most this probability is a surprise.
SURPRISE = 0.1
#: The share of the quiet time before a surprise that still counts: so a target that becomes busy
#: after a long quiet time is recognised in about 20 polls.
QUIET_KEPT = 0.7

_RATE_MIN, _RATE_MAX = 1e-12, 1e12
_TINY = sys.float_info.min


class ChangeRate:
    """An estimate of the rate of change of one reading, in changes a second."""

    __slots__ = ("_changes", "_seconds")

    def __init__(self, expected: float, weight: float = FIRST_WEIGHT) -> None:
        """
        expected: the rate to assume at first.
        weight: how many observed changes this assumption counts as.
        """
        expected = min(max(expected, _RATE_MIN), _RATE_MAX)
        self._changes = weight
        self._seconds = weight / expected

    @property
    def rate(self) -> float:
        """The changes a second to expect."""
        return min(max(self._changes / self._seconds, _RATE_MIN), _RATE_MAX)

    @property
    def weight(self) -> float:
        """How many observed changes the estimate counts as; a higher number is more certain."""
        return self._changes

    def unchanged(self, gap: float) -> None:
        """A poll `gap` seconds after the last one found the same reading."""
        if gap > 0:
            self._forget()
            self._spend(gap)

    def changed(self, gap: float, age: float | None = None) -> None:
        """A poll `gap` seconds after the last one found a new reading.

        age: how long ago it last changed, if the reading says so.
        """
        if gap / self._seconds < _TINY:  # zero, or too short to mean anything
            return
        self._forget()
        if age is not None:
            self._changes += 1.0
            self._spend(min(max(age, 0.0), gap))
            return
        if -math.expm1(-self.rate * gap) < SURPRISE:
            self._seconds *= QUIET_KEPT
        n, s = self._changes, self._seconds
        # q^n is the probability that nothing changes within the gap.
        log_q = -math.log1p(gap / s)
        chance = -math.expm1(n * log_q)
        mean = n / s * -math.expm1((n + 1) * log_q) / chance
        square = n * (n + 1) / s / s * -math.expm1((n + 2) * log_q) / chance
        variance = max(square - mean * mean, mean * mean / (2 * MEMORY))
        self._changes = mean * mean / variance
        self._seconds = mean / variance

    def _spend(self, seconds: float) -> None:
        # Squares of the rate must stay above 0.
        self._seconds = min(self._seconds + seconds, self._changes / _RATE_MIN)

    def _forget(self) -> None:
        kept = max(1.0 - 1.0 / MEMORY, min(FIRST_WEIGHT / self._changes, 1.0))
        self._changes *= kept
        self._seconds *= kept
