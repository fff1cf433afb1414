"""Grids: points in time at a fixed distance, and where each name's grid begins."""

from __future__ import annotations

import hashlib
import math


def spread(name: str) -> float:
    """A fraction of an interval, 0 ≤ u < 1, that is always the same for this name."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56


def point_after(origin: float, interval: float, after: float) -> float:
    """The first of the points origin + k · interval after `after`.

    >>> point_after(3.0, 10.0, 23.0)
    33.0
    """
    steps = math.floor((after - origin) / interval) + 1
    point = origin + steps * interval
    while point <= after:  # rounding error
        steps += 1
        point = origin + steps * interval
    return point
