"""Traces: arrival times from files, what they look like, and how to cut them in two.

A trace file has one arrival a line: seconds, milliseconds (since 1970 or since anything), or ISO
8601; as a plain column, CSV or NDJSON, gzip or not. Or it has one bin a line, with how many arrived
in it.
"""

from __future__ import annotations

import gzip
import math
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from pollwise.durations import Duration, seconds, short, shown
from pollwise.errors import ConfigError
from pollwise.lab.needs import np
from pollwise.lab.replay.results import Seconds, Trace
from pollwise.lab.traces.columns import COUNT_NAMES, SPAN_MARK, TIME_NAMES, Cell, read_column, wrong

Unit = Literal["auto", "s", "ms", "us", "ns", "iso"]

#: How many of a unit make a second.
_A_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_CALLED = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
#: A number from so many on is since 1970 in this unit: 1e11 ms are 1973, 1e11 s the year 5138.
_FROM = (("ns", 1e17), ("us", 1e14), ("ms", 1e11))
#: No silence is so long, in seconds (20 years): a stamp is missing, or in another unit.
GAP_MAX = 20 * 365 * 86400.0
#: The most arrivals that counts may add up to.
ARRIVALS_MAX = 50_000_000
#: Arrivals a window holds on average, for figures over windows.
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

    column: its name, or its number from 1; found by its name where a header tells, else the first.
    unit: "s", "ms", "us", "ns", "iso"; "auto" takes small numbers for seconds and tells moments
        since 1970 by their size. ISO 8601 without a zone is UTC.
    bins: the column counts arrivals in bins of this length, one bin a line, without gaps. They are
        spread evenly at random inside their bin, by `seed`; the trace begins with the first bin.
    name: what reports call the trace; the file's name, unless given.
    sort: put arrivals in order, instead of refusing a file that is not.

    Arrivals are shifted to start at 0, except in a file by `write`, which says its span.
    """
    path = Path(path)
    if unit not in get_args(Unit):
        raise ConfigError(f"unit = {unit!r} is none of {', '.join(get_args(Unit))}")
    called = name or path.name.removesuffix(".gz").rsplit(".", 1)[0] or path.name
    found = read_column(path, column, TIME_NAMES if bins is None else COUNT_NAMES)
    if not found.cells:
        raise ConfigError(f"{path} holds no arrivals under its header; give one a line")
    if bins is not None:
        return _spread(found.cells, seconds(bins, "bins", positive=True), seed, path, called)
    stamps = _stamps(found.cells, unit, path)
    if sort:
        stamps = np.sort(stamps)
    _check_order(stamps, found.cells, path)
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
    """Write a trace so that `read` gives it back exactly; packed, where the name ends in .gz.

    The file appears when it is complete, or not at all.
    """
    path = Path(path)
    lines = [f"{SPAN_MARK} {trace.span!r}", *map(repr, trace.arrivals.tolist()), ""]
    text = "\n".join(lines).encode()
    if path.suffix == ".gz":
        text = gzip.compress(text, mtime=0)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(text)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def split(trace: Trace, share: float) -> tuple[Trace, Trace]:
    """Cut a trace at `share` of its span, to tune on the first part and test on the second."""
    if not 0 < share < 1:
        raise ConfigError(f"share = {share!r} must be between 0 and 1: the first part's share")
    cut = trace.span * share
    before = trace.arrivals < cut
    if before.all() or not before.any():
        raise ConfigError(
            f"trace {trace.name!r} has all its {len(trace.arrivals)} arrivals on one side of "
            f"{short(cut)}; cut it elsewhere, or take a longer trace"
        )
    first = Trace(f"{trace.name} (first part)", trace.arrivals[before], cut)
    rest = np.maximum(trace.arrivals[~before] - cut, 0.0)
    length = max(trace.span - cut, float(rest[-1]))
    return first, Trace(f"{trace.name} (second part)", rest, length)


def halves(trace: Trace) -> tuple[Trace, Trace]:
    """Cut a trace in the middle of its span."""
    return split(trace, 0.5)


@dataclass(frozen=True)
class Summary:
    """What a trace looks like.

    cv: standard deviation over mean of the gaps; 1 for arrivals at random.
    burstiness: (cv - 1) / (cv + 1): -1 like clockwork, 0 at random, towards 1 in bursts.
    longest_gap: between two arrivals, in seconds.
    dispersion: variance over mean of the counts in windows; 1 at random, above 1 in bursts.
    headroom: E√λ / √Eλ over windows. Who knew the rate at each moment would pay this share of
        what the best fixed interval costs: 1 is nothing to win, 0.7 is 30 % at the best. Patterns
        inside a window can be worth more; what chance does to counts makes it look a little lower
        (0.99 at a steady rate).
    window: how long those windows are, in seconds; they hold 10 arrivals on average.
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


def summary(trace: Trace) -> Summary:
    """Describe a trace in figures."""
    n = len(trace.arrivals)
    gaps = np.diff(trace.arrivals)
    cv = float(gaps.std() / gaps.mean()) if len(gaps) and gaps.mean() > 0 else 0.0
    window = WINDOW_HOLDS / trace.rate if trace.rate > 0 else trace.span
    counts = _counts(trace, window)
    mean = float(counts.mean()) if len(counts) else 0.0
    return Summary(
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
    """How many arrived in each whole window; in all of it, where it is shorter than one."""
    whole = int(trace.span / window) if window > 0 else 0
    if whole < 1:
        return np.array([float(len(trace.arrivals))])
    counts, _ = np.histogram(trace.arrivals, bins=whole, range=(0.0, whole * window))
    return counts.astype(np.float64)


# Stamps


def _stamps(cells: list[Cell], unit: Unit, path: Path) -> Seconds:
    """The cells in seconds, each checked by itself and against the unit of the others."""
    first = cells[0]
    if unit == "iso" or (unit == "auto" and _number(first.value) is None):
        return np.array([_moment(cell, path, first, unit) for cell in cells])
    numbers = np.array([_checked_number(cell, path, first) for cell in cells])
    sizes = np.searchsorted([least for _, least in reversed(_FROM)], numbers, side="right")
    units = ("s", *(name for name, _ in reversed(_FROM)))
    looks = units[int(sizes[0])]
    strange = np.flatnonzero(sizes != sizes[0])
    if len(strange):
        cell = cells[int(strange[0])]
        other = units[int(sizes[strange[0]])]
        raise wrong(
            path,
            cell.line,
            f"{shown(cell.value)} looks like {_CALLED[other]}, and {shown(first.value)} in line "
            f"{first.line} like {_CALLED[looks]}; bring all to one unit",
        )
    if unit == "auto":
        unit = looks  # type: ignore[assignment]
    elif sizes[0] and unit != looks:
        raise wrong(
            path,
            first.line,
            f"{shown(first.value)} looks like {_CALLED[looks]}, not {_CALLED[unit]}; "
            f"leave the unit out, or say {looks!r}",
        )
    return numbers / _A_SECOND[unit]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _checked_number(cell: Cell, path: Path, first: Cell) -> float:
    number = _number(cell.value)
    if number is None:
        if cell.value in ("", None):
            raise wrong(path, cell.line, "there is no value; leave the line out, or give one")
        if isinstance(cell.value, str) and _parsed(cell.value) is not None:
            raise wrong(
                path,
                cell.line,
                f"{shown(cell.value)} is a date, and {shown(first.value)} in line {first.line} a "
                "number; bring all to one unit",
            )
        raise wrong(
            path,
            cell.line,
            f"{shown(cell.value)} is no moment; give seconds, milliseconds or ISO 8601",
        )
    if not math.isfinite(number):
        raise wrong(path, cell.line, f"{shown(cell.value)} is no moment; leave the line out")
    if number < 0:
        raise wrong(
            path,
            cell.line,
            f"{shown(cell.value)} is negative; count from the first arrival or 1970",
        )
    return number


def _moment(cell: Cell, path: Path, first: Cell, unit: Unit) -> float:
    parsed = _parsed(cell.value) if isinstance(cell.value, str) else None
    if parsed is not None:
        return parsed
    if cell.value in ("", None):
        raise wrong(path, cell.line, "there is no value; leave the line out, or give one")
    if unit == "auto" and cell is not first and _number(cell.value) is not None:
        raise wrong(
            path,
            cell.line,
            f"{shown(cell.value)} is a number, and {shown(first.value)} in line {first.line} a "
            "date; bring all to one unit",
        )
    wanted = "ISO 8601" if unit == "iso" else "seconds, milliseconds or ISO 8601"
    raise wrong(path, cell.line, f"{shown(cell.value)} is no moment; give {wanted}")


def _parsed(text: str) -> float | None:
    """An ISO 8601 moment in seconds since 1970; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _check_order(stamps: Seconds, cells: list[Cell], path: Path) -> None:
    gaps = np.diff(stamps)
    if (gaps < 0).any():
        at = int(np.argmax(gaps < 0)) + 1
        raise wrong(
            path,
            cells[at].line,
            f"{shown(cells[at].value)} is earlier than {shown(cells[at - 1].value)} in line "
            f"{cells[at - 1].line}; sort the file, or read it with sort=True (--sort)",
        )
    if (gaps > GAP_MAX).any():
        at = int(np.argmax(gaps > GAP_MAX)) + 1
        years = gaps[at - 1] / (365 * 86400)
        raise ConfigError(
            f"{path}: {years:.0f} years of silence before {stamps[at]:.15g} s; "
            "a stamp is missing or in another unit"
        )


# Counts


def _spread(cells: list[Cell], length: float, seed: int, path: Path, name: str) -> Trace:
    counts = np.array([_count(cell, path) for cell in cells], dtype=np.int64)
    total = int(counts.sum())
    if not total:
        raise ConfigError(f"{path} holds no arrivals: all {len(cells)} bins are empty")
    if total > ARRIVALS_MAX:
        raise ConfigError(
            f"{path} counts {total:,} arrivals; the most is {ARRIVALS_MAX:,}. Take a part of it."
        )
    draws = np.random.RandomState(seed % 2**32).random_sample(total)
    begins = np.repeat(np.arange(len(counts)) * length, counts)
    return Trace(name, np.sort(begins + draws * length), len(counts) * length)


def _count(cell: Cell, path: Path) -> int:
    number = _number(cell.value)
    if number is None or not number.is_integer() or not 0 <= number <= ARRIVALS_MAX:
        raise wrong(
            path,
            cell.line,
            f"{shown(cell.value)} is no count of arrivals in a bin; give whole numbers from 0 on, "
            "and name the column that has them",
        )
    return int(number)
