"""Changes: how often a reading changes, learned from looks at irregular times.

A look that finds another reading than the last one tells only that it changed at least once in
between, and the longer the gap, the less that says. Counting changes per second would thus take a
target that changes all the time for one that changes once a look. Here each look is weighed by its
gap: with changes at a rate λ, a gap of τ shows one with the chance 1 - exp(-λτ).

What is believed about λ is a Gamma distribution, two numbers. An unchanged look keeps it one
exactly. A changed look does not, so it is replaced by the Gamma of the same mean and variance,
which are known in closed form. Where the reading tells when it last changed, even that is exact.
Old looks are forgotten little by little, so that a target may turn busy, or quiet.
"""

from __future__ import annotations

import math
import sys

#: What is believed at first counts as so many changes seen: little, for nothing is known, and a
#: target that changes at every look has to be believed soon.
FIRST_WEIGHT = 0.15
#: About so many looks count, the newest.
MEMORY = 50.0
#: A change that comes as a surprise, so unlikely or more, makes the quiet before it count only so
#: much: a target that was quiet for long and turns busy is followed within some twenty looks.
SURPRISE = 0.1
QUIET_KEPT = 0.7

_LEAST, _MOST = 1e-12, 1e12
_TINY = sys.float_info.min


class ChangeRate:
    """What is believed about the rate of change of one reading, in changes a second."""

    __slots__ = ("_changes", "_seconds")

    def __init__(self, expected: float, weight: float = FIRST_WEIGHT) -> None:
        """
        expected: the rate that is expected before anything was seen.
        weight: as how many changes that expectation counts.
        """
        expected = min(max(expected, _LEAST), _MOST)
        self._changes = weight
        self._seconds = weight / expected

    @property
    def rate(self) -> float:
        """The changes a second to expect."""
        return min(max(self._changes / self._seconds, _LEAST), _MOST)

    @property
    def weight(self) -> float:
        """As how many changes the belief counts; the more, the more certain it is."""
        return self._changes

    def unchanged(self, gap: float) -> None:
        """A look `gap` seconds after the last one found the same reading."""
        if gap > 0:
            self._forget()
            self._seconds = min(self._seconds + gap, self._changes / _LEAST)

    def changed(self, gap: float, age: float | None = None) -> None:
        """A look found another reading than the one `gap` seconds before.

        age: how long ago it changed last, where the reading tells.
        """
        if gap / self._seconds < _TINY:  # none, or too short to tell anything by
            return
        self._forget()
        if age is not None:
            self._changes += 1.0
            self._seconds += min(max(age, 0.0), gap)
            return
        if -math.expm1(-self.rate * gap) < SURPRISE:
            self._seconds *= QUIET_KEPT
        n, s = self._changes, self._seconds
        # q^n is the chance that nothing changes within the gap.
        log_q = -math.log1p(gap / s)
        chance = -math.expm1(n * log_q)
        mean = n / s * -math.expm1((n + 1) * log_q) / chance
        square = n * (n + 1) / s / s * -math.expm1((n + 2) * log_q) / chance
        variance = max(square - mean * mean, mean * mean / (2 * MEMORY))
        self._changes = mean * mean / variance
        self._seconds = mean / variance

    def _forget(self) -> None:
        kept = max(1.0 - 1.0 / MEMORY, min(FIRST_WEIGHT / self._changes, 1.0))
        self._changes *= kept
        self._seconds *= kept
