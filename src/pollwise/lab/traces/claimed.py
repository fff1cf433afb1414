"""Which jobs were claimed when, from the history that workers keep. It needs no numpy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pollwise.errors import ConfigError
from pollwise.runtime.rollups import HistoryPoint, merged

#: How exact a trace from a queue's history is.
HOW_REBUILT = (
    "Rebuilt from the counts and waits that workers or relays kept for each minute: an arrival "
    "is placed at random in its minute, less the wait that was measured. Bursts within a minute "
    "are smoothed, and a retry counts as another arrival."
)


@dataclass(frozen=True, slots=True)
class ClaimedJobs:
    """Jobs that were claimed in an interval of `seconds` from `at` on.

    waits: how many of them had waited from the first up to the second number of seconds.
    """

    at: float
    seconds: float
    found: int
    waits: Sequence[tuple[float, float, int]]


def claimed_in(
    points: Iterable[HistoryPoint], name: str, span: float, now: float
) -> tuple[float, list[ClaimedJobs]]:
    """When the history begins, and the jobs that were claimed in each of its intervals.

    name: of the queue, for the error if there are none. span: how far back, in seconds.
    """
    intervals: dict[tuple[float, float], list[HistoryPoint]] = {}
    for each in points:
        if each.found and each.at < now:
            intervals.setdefault((each.at, each.seconds), []).append(each)
    if not intervals:
        raise ConfigError(
            f"nobody has noted an arrival in {name} in this time; choose a longer time, or come "
            "back when its workers have run for some minutes"
        )
    # A queue that is younger than this began with its first job.
    since = max(min(at for at, _ in intervals), now - span)
    found = []
    for (at, length), some in sorted(intervals.items()):
        whole = merged(some)
        # The last interval is not over, and its jobs lie in what has passed of it.
        seconds = min(length, now - at)
        found.append(ClaimedJobs(at, seconds, whole.found, _finite(whole)))
    return since, found


def _finite(point: HistoryPoint) -> list[tuple[float, float, int]]:
    """The histogram of waits without an infinite bound, which JSON does not have."""
    return [
        (low, low if math.isinf(high) else high, hits) for low, high, hits in point.waits.bounds()
    ]
