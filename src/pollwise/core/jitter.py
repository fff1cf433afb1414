"""Jitter that also works at the max_interval.

Idle pollers are at the max_interval. Jitter that is cut off there is lost, and all pollers poll in
step while idle; jitter added after the cut exceeds the max_interval. So the range is cut first, and
the draw is uniform over the rest.
"""

from __future__ import annotations


def jittered(
    delay: float, min_interval: float, max_interval: float, u: float, share: float = 0.1
) -> float:
    """Return the point `u` (0 ≤ u < 1) of [(1-share)·delay, (1+share)·delay] ∩ [min_interval,
    max_interval].

    With min_interval = max_interval (a fixed interval) there is nothing to draw and the delay is
    exact.
    """
    low = max(delay * (1.0 - share), min_interval)
    high = min(delay * (1.0 + share), max_interval)
    return min(low + (high - low) * u, high)
