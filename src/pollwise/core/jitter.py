"""Jitter that survives at the ceiling.

Idle pollers live at the ceiling. Jitter that is added and then cut off there leaves a fleet
marching in step exactly when it is idle; jitter added after the cut exceeds the ceiling. So the
range is cut first, and the draw is uniform over what is left of it.
"""

from __future__ import annotations


def jittered(delay: float, floor: float, ceiling: float, u: float, share: float = 0.1) -> float:
    """Return the point `u` (0 ≤ u < 1) of [(1-share)·delay, (1+share)·delay] ∩ [floor, ceiling].

    With floor = ceiling (a fixed interval) there is nothing to draw and the delay is exact.
    """
    low = max(delay * (1.0 - share), floor)
    high = min(delay * (1.0 + share), ceiling)
    return min(low + (high - low) * u, high)
