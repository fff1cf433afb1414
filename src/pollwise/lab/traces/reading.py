"""Reads, writes, describes and splits traces.

A trace file has one arrival a line: seconds or milliseconds (since 1970 or any other time), or ISO
8601; as a plain column, CSV or NDJSON, gzipped or not. Or it has one bin a line, with the number of
arrivals in it.
"""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from pollwise.durations import Duration, seconds, short, shown
from pollwise.errors import ConfigError
from pollwise.lab import files
from pollwise.lab.numeric import np
from pollwise.lab.replay.base import Seconds, Trace
from pollwise.lab.traces.columns import (
    COUNT_NAMES,
    SPAN_MARK,
    TIME_NAMES,
    BadLine,
    Cell,
    read_column,
)

Unit = Literal["auto", "s", "ms", "us", "ns", "iso"]

#: How many of a unit make a second.
_A_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_CALLED = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
#: A number this large is since 1970 in this unit: 1e11 ms are in 1973, 1e11 s in 5138.
_FROM = (("ns", 1e17), ("us", 1e14), ("ms", 1e11))
#: A longer gap, in seconds (20 years), means that a stamp is missing or in another unit.
GAP_MAX = 20 * 365 * 86400.0
#: The maximum number of arrivals in a file of counts.
ARRIVALS_MAX = 50_000_000
#: The average number of arrivals in a window, for figures over windows.
WINDOW_HOLDS = 10


def read(
    path: str | Path,
    *,
    column: str | int | None = None,
    unit: Unit = "auto",
    bins: Duration | None = None,
    seed: int = 0,
    name: str | None = None,
    sort: bool = False,
) -> Trace:
    """Read a trace from a file.

    column: its name, or its number from 1; by default found by its header, else the first.
    unit: "s", "ms", "us", "ns", "iso"; "auto" reads small numbers as seconds and recognises times
        since 1970 by their size. ISO 8601 without a time zone is UTC.
    bins: the column counts arrivals in bins of this length, one bin a line, without gaps. Arrivals
        are placed at random inside their bin, by `seed`; the trace begins with the first bin.
    name: the name of the trace in reports; by default the file's name.
    sort: sort the arrivals instead of refusing a file that is not in order.

    Arrivals are shifted to start at 0, except in a file from `write`, which states its span.
    """
    path = Path(path)
    if unit not in get_args(Unit):
        raise ConfigError(f"unit = {unit!r} is not one of {', '.join(get_args(Unit))}")
    called = name or path.name.removesuffix(".gz").rsplit(".", 1)[0] or path.name
    try:
        found = read_column(path, column, TIME_NAMES if bins is None else COUNT_NAMES)
        if not found.cells:
            raise ConfigError(f"{path} holds no arrivals under its header; give one a line")
        if bins is not None:
            return _spread(found.cells, seconds(bins, "bins", positive=True), seed, path, called)
        stamps = _stamps(found.cells, unit)
        if sort:
            stamps = np.sort(stamps)
        _check_order(stamps, found.cells, path)
    except BadLine as error:
        raise ConfigError(f"{path}, {error}") from None
    if found.span is not None:
        if not stamps[-1] <= found.span < math.inf:
            raise ConfigError(
                f"{path} says its span is {found.span:g} s and has an arrival at {stamps[-1]:g} s; "
                f"correct or delete the line `{SPAN_MARK} …`"
            )
        return Trace(called, stamps, found.span)
    stamps = stamps - stamps[0]
    return Trace(called, stamps, float(stamps[-1]))


def write(trace: Trace, path: str | Path) -> None:
    """Write a trace that `read` reads back exactly; gzipped if the name ends in .gz.

    The file appears when it is complete, or not at all.
    """
    path = Path(path)
    lines = [f"{SPAN_MARK} {trace.span!r}", *map(repr, trace.arrivals.tolist()), ""]
    text = "\n".join(lines).encode()
    if path.suffix == ".gz":
        text = gzip.compress(text, mtime=0)
    files.write(path, text)


def split(trace: Trace, share: float) -> tuple[Trace, Trace]:
    """Split a trace at this share of its span, to tune on the first part and test on the second."""
    if not 0 < share < 1:
        raise ConfigError(f"share = {share!r} must be between 0 and 1: the first part's share")
    cut = trace.span * share
    before = trace.arrivals < cut
    if before.all() or not before.any():
        raise ConfigError(
            f"trace {trace.name!r} has all its {len(trace.arrivals)} arrivals on one side of "
            f"{short(cut)}; split it elsewhere, or use a longer trace"
        )
    first = Trace(f"{trace.name} (first part)", trace.arrivals[before], cut)
    rest = np.maximum(trace.arrivals[~before] - cut, 0.0)
    length = max(trace.span - cut, float(rest[-1]))
    return first, Trace(f"{trace.name} (second part)", rest, length)


@dataclass(frozen=True)
class TraceSummary:
    """A trace in figures.

    cv: standard deviation of the gaps divided by their mean; 1 for random arrivals.
    burstiness: (cv - 1) / (cv + 1): -1 for regular arrivals, 0 for random ones, near 1 for bursts.
    longest_gap: between two arrivals, in seconds.
    dispersion: variance of the counts in windows divided by their mean; 1 for random arrivals,
        more for bursts.
    headroom: E√λ / √Eλ over windows: the cost of a poller that knows the rate at each moment, as a
        share of the cost of the best fixed interval. 1 means no possible saving, 0.7 at most 30 %.
        Patterns inside a window can save more; randomness makes the figure a little lower (0.99 at
        a steady rate).
    window: the length of those windows, in seconds; they hold 10 arrivals on average.
    """

    n: int
    span: float
    rate: float
    cv: float
    burstiness: float
    longest_gap: float
    dispersion: float
    headroom: float
    window: float


def summary(trace: Trace) -> TraceSummary:
    """The figures of a trace."""
    n = len(trace.arrivals)
    gaps = np.diff(trace.arrivals)
    cv = float(gaps.std() / gaps.mean()) if len(gaps) and gaps.mean() > 0 else 0.0
    window = WINDOW_HOLDS / trace.rate if trace.rate > 0 else trace.span
    counts = _counts(trace, window)
    mean = float(counts.mean()) if len(counts) else 0.0
    return TraceSummary(
        n=n,
        span=trace.span,
        rate=trace.rate,
        cv=cv,
        burstiness=(cv - 1) / (cv + 1) if len(gaps) else 0.0,
        longest_gap=float(gaps.max()) if len(gaps) else 0.0,
        dispersion=float(counts.var() / mean) if mean else 0.0,
        headroom=float(np.sqrt(counts).mean() / math.sqrt(mean)) if mean else 1.0,
        window=window,
    )


def _counts(trace: Trace, window: float) -> Seconds:
    """The arrivals in each whole window, or in the whole trace if it is shorter than one."""
    whole = int(trace.span / window) if window > 0 else 0
    if whole < 1:
        return np.array([float(len(trace.arrivals))])
    counts, _ = np.histogram(trace.arrivals, bins=whole, range=(0.0, whole * window))
    return counts.astype(np.float64)


# Stamps


def _stamps(cells: list[Cell], unit: Unit) -> Seconds:
    """The cells in seconds; checks that all are valid and in the same unit."""
    first = cells[0]
    if unit == "iso" or (unit == "auto" and _number(first.value) is None):
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
            f"looks like {_CALLED[other]}, and {shown(first.value)} in line "
            f"{first.line} like {_CALLED[looks]}; use one unit for all"
        )
    if unit == "auto":
        unit = looks  # type: ignore[assignment]
    elif sizes[0] and unit != looks:
        raise first.wrong(
            f"looks like {_CALLED[looks]}, not {_CALLED[unit]}; "
            f"leave the unit out, or give {looks!r}"
        )
    return numbers / _A_SECOND[unit]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _checked_number(cell: Cell, first: Cell) -> float:
    number = _number(cell.value)
    if number is None:
        if cell.value in ("", None):
            raise BadLine(cell.line, "there is no value; remove the line, or give one")
        if isinstance(cell.value, str) and _parsed(cell.value) is not None:
            raise cell.wrong(
                f"is a date, and {shown(first.value)} in line {first.line} a "
                "number; use one unit for all"
            )
        raise cell.wrong("is not a time; give seconds, milliseconds or ISO 8601")
    if not math.isfinite(number):
        raise cell.wrong("is not a time; remove the line")
    if number < 0:
        raise cell.wrong("is negative; count from the first arrival or 1970")
    return number


def _moment(cell: Cell, first: Cell, unit: Unit) -> float:
    parsed = _parsed(cell.value) if isinstance(cell.value, str) else None
    if parsed is not None:
        return parsed
    if cell.value in ("", None):
        raise BadLine(cell.line, "there is no value; remove the line, or give one")
    if unit == "auto" and cell is not first and _number(cell.value) is not None:
        raise cell.wrong(
            f"is a number, and {shown(first.value)} in line {first.line} a "
            "date; use one unit for all"
        )
    wanted = "ISO 8601" if unit == "iso" else "seconds, milliseconds or ISO 8601"
    raise cell.wrong(f"is not a time; give {wanted}")


def _parsed(text: str) -> float | None:
    """An ISO 8601 time in seconds since 1970; without a time zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _check_order(stamps: Seconds, cells: list[Cell], path: Path) -> None:
    gaps = np.diff(stamps)
    if (gaps < 0).any():
        at = int(np.argmax(gaps < 0)) + 1
        raise cells[at].wrong(
            f"is earlier than {shown(cells[at - 1].value)} in line "
            f"{cells[at - 1].line}; sort the file, or read it with sort=True (--sort)"
        )
    if (gaps > GAP_MAX).any():
        at = int(np.argmax(gaps > GAP_MAX)) + 1
        years = gaps[at - 1] / (365 * 86400)
        raise ConfigError(
            f"{path}: {years:.0f} years without arrivals before {stamps[at]:.15g} s; "
            "a stamp is missing or in another unit"
        )


# Counts


def _spread(cells: list[Cell], length: float, seed: int, path: Path, name: str) -> Trace:
    counts = np.array([_count(cell) for cell in cells], dtype=np.int64)
    total = int(counts.sum())
    if not total:
        raise ConfigError(f"{path} holds no arrivals: all {len(cells)} bins are empty")
    if total > ARRIVALS_MAX:
        raise ConfigError(
            f"{path} counts {total:,} arrivals; the maximum is {ARRIVALS_MAX:,}. Use a part of it."
        )
    draws = np.random.RandomState(seed % 2**32).random_sample(total)
    begins = np.repeat(np.arange(len(counts)) * length, counts)
    return Trace(name, np.sort(begins + draws * length), len(counts) * length)


def _count(cell: Cell) -> int:
    number = _number(cell.value)
    if number is None or not number.is_integer() or not 0 <= number <= ARRIVALS_MAX:
        raise cell.wrong(
            "is not a number of arrivals in a bin; give whole numbers from 0, and name their column"
        )
    return int(number)
