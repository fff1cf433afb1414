"""How SQL stores number and read the rows of a target's history."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pollwise.fleet.history.packing import unpacked
from pollwise.fleet.history.values import (
    DAY,
    DAYS_KEPT,
    HOUR,
    HOURS_KEPT,
    NO_POLLS,
    RollupLength,
    TargetRollup,
    TimeInStates,
)

#: How a length is stored, its seconds, and how many roll-ups of it are kept for each target.
_LENGTHS: dict[RollupLength, tuple[int, float]] = {"hour": (0, HOUR), "day": (1, DAY)}
KEPT = {0: HOURS_KEPT, 1: DAYS_KEPT}
_MS = 1000.0


def place_of(length: RollupLength, since: float) -> tuple[int, int]:
    """The stored length, and the first hour or day that begins at `since` or later."""
    number, seconds = _LENGTHS[length]
    return number, math.ceil(since / seconds)


def window_places(
    windows: Sequence[tuple[RollupLength, float]], until: float
) -> list[tuple[int, int, int]]:
    """The stored length of each window, and its first and last hour or day."""
    places = [(place_of(length, since), _LENGTHS[length][1]) for length, since in windows]
    return [(number, first, math.floor(until / seconds)) for (number, first), seconds in places]


def rollup_row(rollup: TargetRollup) -> tuple[int, int, int, int, int]:
    """Length, place and milliseconds in each state."""
    times = rollup.times
    place = place_of(rollup.length, rollup.at)
    return *place, *(round(each * _MS) for each in (times.up, times.down, times.maintenance))  # type: ignore[return-value]


def rollup_from(
    length: RollupLength, name: str, at: int, up: int, down: int, maintenance: int, raw: Any
) -> TargetRollup:
    """The roll-up of a row. raw: its packed figures; None if they were left out."""
    _, seconds = _LENGTHS[length]
    figures = NO_POLLS if raw is None else unpacked(bytes(raw))
    return TargetRollup(name, length, at * seconds, _times(up, down, maintenance), figures)


def times_from(sums: Iterable[Sequence[float]]) -> tuple[TimeInStates, ...]:
    """Sums of milliseconds, as values."""
    return tuple(_times(*each) for each in sums)


def _times(up: float, down: float, maintenance: float) -> TimeInStates:
    return TimeInStates(up / _MS, down / _MS, maintenance / _MS)
