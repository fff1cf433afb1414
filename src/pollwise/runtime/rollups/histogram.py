"""Histograms of durations with fixed buckets, so that any two of them can be added up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log2

#: Each bucket is 2^(1/4) times as wide as the one before: a quantile is exact to 19 %.
BUCKETS_PER_OCTAVE = 4
#: Bucket 0 holds all durations below this, in seconds (61 µs).
LEAST_POWER = -14
LEAST = 2.0**LEAST_POWER
#: The last bucket holds all durations from 24 days on.
BUCKETS = (21 - LEAST_POWER) * BUCKETS_PER_OCTAVE + 2


#: The bucket of a duration is `int(log2(duration) * BUCKETS_PER_OCTAVE + BUCKET_OF_A_SECOND)`.
BUCKET_OF_A_SECOND = 1.0 - LEAST_POWER * BUCKETS_PER_OCTAVE


def bucket_of(duration: float) -> int:
    """The bucket of a duration in seconds."""
    if not duration >= LEAST:  # also what is not a number
        return 0
    return min(int(log2(duration) * BUCKETS_PER_OCTAVE + BUCKET_OF_A_SECOND), BUCKETS - 1)


def bounds_of(bucket: int) -> tuple[float, float]:
    """The durations that a bucket holds: from the first up to the second, in seconds."""
    low = 0.0 if bucket == 0 else 2.0 ** (LEAST_POWER + (bucket - 1) / BUCKETS_PER_OCTAVE)
    high = 2.0 ** (LEAST_POWER + bucket / BUCKETS_PER_OCTAVE)
    return low, math.inf if bucket == BUCKETS - 1 else high


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often durations of each length occurred.

    counts: pairs of a bucket and how often it was hit, by bucket, none with 0.
    total: the sum of all durations, in seconds.
    """

    counts: tuple[tuple[int, int], ...] = ()
    total: float = 0.0

    @classmethod
    def of(cls, durations: Iterable[float]) -> Histogram:
        counts: dict[int, int] = {}
        total = 0.0
        for duration in durations:
            bucket = bucket_of(duration)
            counts[bucket] = counts.get(bucket, 0) + 1
            total += duration
        return cls.from_counts(counts, total)

    @classmethod
    def from_counts(cls, counts: Mapping[int, int], total: float) -> Histogram:
        return cls(tuple(sorted(counts.items())), total) if counts else EMPTY

    @property
    def count(self) -> int:
        return sum([count for _, count in self.counts])

    @property
    def mean(self) -> float | None:
        """The mean duration in seconds, exact; None without any."""
        count = self.count
        return self.total / count if count else None

    def quantile(self, share: float) -> float | None:
        """The duration that this share (0 to 1) does not exceed; None without any.

        It is in the same bucket as the exact one, so it is wrong by at most 19 %.
        """
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"share = {share!r} must be from 0 to 1")
        count = self.count
        if not count:
            return None
        rank = max(math.ceil(share * count), 1)
        below = 0
        for bucket, hits in self.counts:
            if below + hits >= rank:
                low, high = bounds_of(bucket)
                if math.isinf(high):
                    return low
                return low + (high - low) * (rank - below - 0.5) / hits
            below += hits
        raise AssertionError("the rank is at most the count")

    def bounds(self) -> list[tuple[float, float, int]]:
        """Each bucket that was hit: from, up to (both in seconds), and how often."""
        return [(*bounds_of(bucket), hits) for bucket, hits in self.counts]


#: A histogram of nothing.
EMPTY = Histogram()


def added(histograms: Iterable[Histogram]) -> Histogram:
    """One histogram of all that these hold."""
    some = [each for each in histograms if each.counts]
    if len(some) <= 1:
        return some[0] if some else EMPTY
    counts: dict[int, int] = {}
    for each in some:
        for bucket, hits in each.counts:
            counts[bucket] = counts.get(bucket, 0) + hits
    return Histogram.from_counts(counts, math.fsum(each.total for each in some))
