"""Reads times: numbers of a unit, ISO 8601, and the stamps of web servers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pollwise.durations import shown
from pollwise.lab.numeric import np
from pollwise.lab.replay.base import Seconds
from pollwise.lab.traces.lines import BadLine, Cell

Unit = Literal["auto", "s", "ms", "us", "ns", "iso"]

#: How many of a unit make a second.
_A_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_CALLED = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
#: A number this large is since 1970 in this unit: 1e11 ms are in 1973, 1e11 s in 5138.
_FROM = (("ns", 1e17), ("us", 1e14), ("ms", 1e11))
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
#: A time as web servers write it: 14/Nov/2026:10:00:00 +0000, in brackets or not.
_WEB_STAMP = re.compile(
    r"\[?(\d{1,2})/([A-Z][a-z]{2})/(\d{4}):(\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?: ([+-]\d{4}))?\]?",
    re.ASCII,
)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_CLOCK = re.compile(r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?", re.ASCII)
_ZONE = re.compile(r"\d\d:?\d\d(?:[.,]\d+)? ?\]?(Z|[+-]\d\d(?::?\d\d)?)\]?$", re.ASCII)
#: Times since 1970 are plausible from 1990 to 2100.
EPOCH_FROM = 631_152_000.0
EPOCH_UNTIL = 4_102_444_800.0
_KNOWN = "seconds, milliseconds, ISO 8601 or 14/Nov/2026:10:00:00 +0000"


def in_seconds(cells: Sequence[Cell], unit: Unit) -> Seconds:
    """The cells in seconds; checks that all are valid and in the same unit."""
    first = cells[0]
    if unit == "iso" or (unit == "auto" and number_of(first.value) is None):
        return np.array([_moment(cell, first, unit) for cell in cells])
    numbers = np.array([_checked_number(cell, first) for cell in cells])
    sizes = np.searchsorted([least for _, least in reversed(_FROM)], numbers, side="right")
    units = ("s", *(name for name, _ in reversed(_FROM)))
    looks = units[int(sizes[0])]
    strange = np.flatnonzero(sizes != sizes[0])
    if len(strange):
        cell = cells[int(strange[0])]
        other = units[int(sizes[strange[0]])]
        raise cell.wrong(
            f"looks like {_CALLED[other]}, and {shown(first.value)} in {first.place} like "
            f"{_CALLED[looks]}; use one unit for all"
        )
    if unit == "auto":
        unit = looks  # type: ignore[assignment]
    elif sizes[0] and unit != looks:
        raise first.wrong(
            f"looks like {_CALLED[looks]}, not {_CALLED[unit]}; "
            f"leave the unit out, or give {looks!r}"
        )
    return numbers / _A_SECOND[unit]


def moment_of(value: Any) -> float | None:
    """A date and time as text, in seconds since 1970; without a time zone it is UTC."""
    if not isinstance(value, str):
        return None
    text = value.strip()
    found = _WEB_STAMP.fullmatch(text)
    if found is not None:
        day, month, year, clock, zone = found.groups()
        if month not in MONTHS:
            return None
        text = f"{year}-{MONTHS.index(month) + 1:02}-{int(day):02}T{clock}{zone or ''}"
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def is_web_stamp(value: Any) -> bool:
    """True for a time as web servers write it."""
    return isinstance(value, str) and _WEB_STAMP.fullmatch(value.strip()) is not None


def is_day(value: Any) -> bool:
    """True for a date without a time of day."""
    return isinstance(value, str) and _DAY.fullmatch(value.strip()) is not None


def is_clock(value: str) -> bool:
    """True for a time of day without a date."""
    return _CLOCK.fullmatch(value.strip()) is not None


def is_epoch(value: Any) -> bool:
    """True for a number that is a time since 1970, in a unit that its size tells."""
    number = number_of(value)
    if number is None or not math.isfinite(number):
        return False
    unit = next((unit for unit, least in _FROM if number >= least), "s")
    return EPOCH_FROM <= number / _A_SECOND[unit] < EPOCH_UNTIL


def zone_of(value: Any) -> str | None:
    """The time zone of a date as it is written; None without one."""
    found = _ZONE.search(value.strip()) if isinstance(value, str) else None
    return found[1] if found else None


def unit_of(cell: Cell, unit: Unit) -> str:
    """The unit in which this cell is read, in words."""
    number = number_of(cell.value)
    if unit == "iso" or number is None:
        return "dates"
    return _CALLED[next((u for u, n in _FROM if number >= n), "s") if unit == "auto" else unit]


def number_of(value: Any) -> float | None:
    """A number, also one that is written as text; else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _checked_number(cell: Cell, first: Cell) -> float:
    number = number_of(cell.value)
    if number is None:
        if cell.value in ("", None):
            raise BadLine(cell.where, "there is no value; remove the line, or give one")
        if moment_of(cell.value) is not None:
            raise cell.wrong(
                f"is a date, and {shown(first.value)} in {first.place} a number; use one unit for "
                "all"
            )
        raise cell.wrong(f"is not a time; give {_KNOWN}")
    if not math.isfinite(number):
        raise cell.wrong("is not a time; remove the line")
    if number < 0:
        raise cell.wrong("is negative; count from the first arrival or 1970")
    return number


def _moment(cell: Cell, first: Cell, unit: Unit) -> float:
    parsed = moment_of(cell.value)
    if parsed is not None:
        return parsed
    if cell.value in ("", None):
        raise BadLine(cell.where, "there is no value; remove the line, or give one")
    if unit == "auto" and cell is not first and number_of(cell.value) is not None:
        raise cell.wrong(
            f"is a number, and {shown(first.value)} in {first.place} a date; use one unit for all"
        )
    raise cell.wrong(f"is not a time; give {'ISO 8601' if unit == 'iso' else _KNOWN}")
