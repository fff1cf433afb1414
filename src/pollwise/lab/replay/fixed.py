"""What fixed polling would have done with the same arrivals, as a formula without numpy.

`pollwise demo` shows it beside a live strategy: a poll every `interval` that finds all arrivals
since the one before, and after a full batch the next poll at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

# 0.3 / 0.1 is a little less than 3, and a poll at 0.3 s is within 0.3 s.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class FixedPolling:
    """The polls of a fixed interval over a period of time, and how long each item waited."""

    polls: int
    empty: int
    waits: tuple[float, ...]


def polled_every(
    interval: float, arrivals: Sequence[float], seconds: float, capacity: int
) -> FixedPolling:
    """Poll arrivals (seconds since the start) every `interval`, first after one interval."""
    turns = max(math.floor(seconds / interval + ROUNDING), 0)
    found: Counter[int] = Counter()
    waits = []
    for arrival in arrivals:
        turn = max(math.ceil(arrival / interval), 1)
        if turn <= turns:
            found[turn] += 1
            waits.append(max(turn * interval - arrival, 0.0))
    drains = sum(count // capacity for count in found.values())
    # After batches that are all full comes a poll that finds nothing.
    empty = sum(count % capacity == 0 for count in found.values())
    return FixedPolling(turns + drains, turns - len(found) + empty, tuple(waits))


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of the values does not exceed, or None."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]
