"""Reads, writes, describes and splits traces.

A trace file has one arrival a line: seconds or milliseconds (since 1970 or any other time), or ISO
8601; as a plain column, CSV, TSV or NDJSON, gzipped or not. Or it has one bin a line, with the
number of arrivals in it. Logs, dumps of Postgres, and metrics of Prometheus and CloudWatch are read
as they are; `logs`, `documents` and `metrics` list the forms.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from pollwise.durations import Duration, seconds, short, shown
from pollwise.errors import ConfigError
from pollwise.lab import files
from pollwise.lab.numeric import np
from pollwise.lab.replay.base import Seconds, Trace
from pollwise.lab.traces.columns import COUNT_NAMES, TIME_NAMES, Column, read_column
from pollwise.lab.traces.lines import SIZE_MAX, SPAN_MARK, BadFile, BadLine, Cell
from pollwise.lab.traces.metrics import Values, counts_of, whole
from pollwise.lab.traces.stamps import (
    EPOCH_FROM,
    EPOCH_UNTIL,
    Unit,
    in_seconds,
    is_day,
    number_of,
    unit_of,
    zone_of,
)

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
    values: Values = "auto",
    seed: int = 0,
    name: str | None = None,
    sort: bool = False,
    size_max: int = SIZE_MAX,
    tell: Callable[[str], object] | None = None,
) -> Trace:
    """Read a trace from a file, whose form is recognised by its content.

    column: its name, or its number from 1; by default found by its header, else the first.
    unit: "s", "ms", "us", "ns", "iso"; "auto" reads small numbers as seconds and recognises times
        since 1970 by their size. Dates without a time zone are in UTC.
    bins: the column counts arrivals in bins of this length, one bin a line, without gaps. Arrivals
        are placed at random inside their bin, by `seed`; the trace begins with the first bin.
        For metrics, the length of a step; by default it is found.
    values: what metrics count: "rate" (arrivals a second), "count" (in each step), or "counter"
        (since the counter began). "auto" knows counters of Prometheus by their names, and that
        CloudWatch counts in each step.
    name: the name of the trace in reports; by default the file's name.
    sort: sort the arrivals instead of refusing a file that is not in order. Logs are sorted anyway,
        because they are written when work ends.
    size_max: the most characters of the unpacked text.
    tell: is called with a sentence on what the file was taken for: the column, its unit and time
        zone, the first and the last time, and the longest gap.

    Arrivals are shifted to start at 0, except in a file from `write`, which states its span. If all
    times since 1970 are whole seconds, or numbers are and some are equal, the file was rounded, and
    arrivals are placed at random in their second, by `seed`. Numbers with decimals are exact.
    """
    path = Path(path)
    if unit not in get_args(Unit):
        raise ConfigError(f"unit = {unit!r} is not one of {', '.join(get_args(Unit))}")
    called = name or path.name.removesuffix(".gz").rsplit(".", 1)[0] or path.name
    length = None if bins is None else seconds(bins, "bins", positive=True)
    try:
        found = read_column(path, column, TIME_NAMES if bins is None else COUNT_NAMES, size_max)
        if found.series is not None:
            chosen = found.values if values == "auto" else values
            counts, length = counts_of(found.series, chosen, length)
            return _spread(whole(counts, _draws(seed).random_sample()), length, seed, called)
        if values != "auto":
            raise BadFile(f"holds no metrics, so values = {values!r} means nothing; leave it out")
        if not found.cells:
            raise BadFile("holds no arrivals under its header; give one a line")
        if length is not None:
            return _spread(_counts_in(found.cells), length, seed, called)
        return _placed(found, unit, sort, seed, called, tell)
    except BadLine as error:
        raise ConfigError(f"{path}, {error}") from None
    except BadFile as error:
        raise ConfigError(f"{path} {error}") from None


def _placed(
    found: Column,
    unit: Unit,
    sort: bool,
    seed: int,
    called: str,
    tell: Callable[[str], object] | None,
) -> Trace:
    """The trace of stamps."""
    stamps = in_seconds(found.cells, unit)
    dated = number_of(found.cells[0].value) is None
    _check_plausible(stamps, found.cells, dated)
    if sort or found.log:
        stamps = np.sort(stamps)
    _check_order(stamps, found.cells)
    if found.span is not None:
        if not stamps[-1] <= found.span < math.inf:
            raise BadFile(
                f"says its span is {found.span:g} s and has an arrival at {stamps[-1]:g} s; "
                f"correct or delete the line `{SPAN_MARK} …`"
            )
        return Trace(called, stamps, found.span)
    since_1970 = dated or float(stamps[0]) >= EPOCH_FROM
    rounded = not (stamps % 1).any() and (since_1970 or not np.diff(stamps).all())
    rounded = rounded and (dated or not any(map(_is_exact, found.cells)))
    if tell is not None:
        tell(_taken_for(found, unit, stamps, since_1970, rounded))
    stamps = stamps - stamps[0]
    span = float(stamps[-1])
    if rounded:
        within = _draws(seed).random_sample(len(stamps))
        return Trace(called, np.sort(stamps + within), span + 1.0)
    return Trace(called, stamps, span)


def _is_exact(cell: Cell) -> bool:
    """True for a number that is written with decimals."""
    return isinstance(cell.value, float) or "." in str(cell.value)


def _check_plausible(stamps: Seconds, cells: list[Cell], dated: bool) -> None:
    """Refuse days without a time, and years that no log is of."""
    if dated and is_day(cells[0].value) and all(is_day(cell.value) for cell in cells):
        raise BadFile(
            f"has only days, such as {shown(cells[0].value)}, and no times of the day; name "
            "another column, or count per day and read it with bins"
        )
    for at in (int(np.argmin(stamps)), int(np.argmax(stamps))):
        if stamps[at] >= EPOCH_UNTIL or (dated and stamps[at] < EPOCH_FROM):
            raise cells[at].wrong("is not between 1990 and 2100; name another column, or its unit")


def _taken_for(found: Column, unit: Unit, stamps: Seconds, since_1970: bool, rounded: bool) -> str:
    """What the file was taken for, to be checked by its reader."""
    read_as = unit_of(found.cells[0], unit)
    if read_as == "dates":
        zone = zone_of(found.cells[0].value)
        read_as += " without a time zone, read as UTC" if zone is None else f" in the zone {zone}"
    elif since_1970:
        read_as += " since 1970"
    else:
        read_as += " from a beginning that is not known"
    text = f"read {len(stamps):,} times from {found.called or 'the file'}: {read_as}"
    text += f"; from {_when(stamps[0], since_1970)} to {_when(stamps[-1], since_1970)}"
    if len(stamps) > 1:
        gaps = np.diff(stamps)
        at = int(np.argmax(gaps))
        text += f"; longest gap {short(float(f'{gaps[at]:.3g}'))}, after "
        text += _when(stamps[at], since_1970)
    if rounded:
        text += "; whole seconds, so each is placed at random in its second"
    return text


def _when(stamp: float, since_1970: bool) -> str:
    if not since_1970:
        return f"{stamp:.15g} s"
    return datetime.fromtimestamp(float(stamp), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


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


# Stamps and counts


def _check_order(stamps: Seconds, cells: list[Cell]) -> None:
    gaps = np.diff(stamps)
    if (gaps < 0).any():
        at = int(np.argmax(gaps < 0)) + 1
        raise cells[at].wrong(
            f"is earlier than {shown(cells[at - 1].value)} in {cells[at - 1].place}; sort the "
            "file, or read it with sort=True (--sort)"
        )
    if (gaps > GAP_MAX).any():
        at = int(np.argmax(gaps > GAP_MAX)) + 1
        years = gaps[at - 1] / (365 * 86400)
        raise BadFile(
            f"has {years:.0f} years without arrivals before {stamps[at]:.15g} s; "
            "a stamp is missing or in another unit"
        )


def _spread(counts: Seconds, length: float, seed: int, name: str) -> Trace:
    """Arrivals at random inside their bins; counts: whole numbers."""
    total = int(counts.sum())
    if not total:
        raise BadFile(f"holds no arrivals: all {len(counts)} bins are empty")
    if total > ARRIVALS_MAX:
        raise BadFile(
            f"counts {total:,} arrivals; the maximum is {ARRIVALS_MAX:,}. Use a part of it."
        )
    draws = _draws(seed).random_sample(total)
    begins = np.repeat(np.arange(len(counts)) * length, counts.astype(np.int64))
    return Trace(name, np.sort(begins + draws * length), len(counts) * length)


def _draws(seed: int) -> np.random.RandomState:
    return np.random.RandomState(seed % 2**32)


def _counts_in(cells: list[Cell]) -> Seconds:
    return np.array([_count(cell) for cell in cells], dtype=np.float64)


def _count(cell: Cell) -> int:
    number = number_of(cell.value)
    if number is None or not number.is_integer() or not 0 <= number <= ARRIVALS_MAX:
        raise cell.wrong(
            "is not a number of arrivals in a bin; give whole numbers from 0, and name their column"
        )
    return int(number)
