"""History as a store keeps it: rows of three levels, each with the figures of an interval as JSON.

A running worker writes a row for each minute (level `BY_WORKER`), under its own name, so that
workers never wait for each other. Later they are folded, both into one row for each minute
(`BY_MINUTE`) and into one for each hour (`BY_HOUR`). Rows by minute are deleted after a week; those
by hour let charts of many days read few rows. A reader adds up the rows of workers and of one of
the other two levels.

Rows of a fourth level (`PACE`) keep something else: the paces that were learned, for a restart
(`pollwise.runtime.rollups.kept_pace`). They are written with the others, in the same call.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pollwise.errors import ConfigError
from pollwise.runtime.jobs import NAME_LENGTH_MAX, storable
from pollwise.runtime.rollups.histogram import BUCKETS, EMPTY, Histogram
from pollwise.runtime.rollups.points import HOUR, MINUTE, HistoryPoint, with_other_kinds

BY_WORKER, BY_MINUTE, BY_HOUR, PACE = range(4)
#: The time of the rows of paces: a later one replaces an earlier one.
PACE_AT = 0
#: The length of the intervals of each level, in seconds.
LENGTHS = {BY_WORKER: MINUTE, BY_MINUTE: MINUTE, BY_HOUR: HOUR}
#: How many kinds a row names at most; those with the fewest jobs are added up as "…other".
KINDS_PER_ROW_MAX = 50
#: The largest value of a row, in bytes of JSON.
ROW_BYTES_MAX = 16 * 1024
#: How many rows one write has at most.
ROWS_PER_WRITE_MAX = 60
#: Counts of this size and above are refused.
_COUNT_MAX = 10**15
_FORMAT = 1
_PACE_KEY = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}", re.ASCII)


class HistoryRow(NamedTuple):
    """A row: its level, the start of its interval (whole seconds since 1970), who wrote it (""
    if it was folded), and its figures as `encoded` writes them.

    Of a pace: PACE, PACE_AT, its key, and what `PollLoop.dump` returned, as JSON."""

    level: int
    at: int
    writer: str
    value: str

    @property
    def key(self) -> tuple[int, int, str]:
        return self[:3]


class HistoryRange(NamedTuple):
    """The rows to read: those of a level that begin from `since` on and before `until`.

    limit: how many at most, the oldest first; None for all.
    """

    level: int
    since: int
    until: int
    limit: int | None = None


def encoded(points: Iterable[HistoryPoint]) -> str:
    """The figures of one interval as JSON, within ROW_BYTES_MAX and KINDS_PER_ROW_MAX.

    Each kind once; "" has the polls and nothing else, and the others have no polls.
    """
    listed, most = list(points), KINDS_PER_ROW_MAX
    while True:
        listed = with_other_kinds(listed, most)
        text = json.dumps(_value(listed), ensure_ascii=False, separators=(",", ":"))
        if len(text) * 4 <= ROW_BYTES_MAX or len(text.encode()) <= ROW_BYTES_MAX or not most:
            return text
        most //= 2


def _value(points: Iterable[HistoryPoint]) -> list[Any]:
    polls: list[Any] | None = None
    kinds = []
    for each in points:
        if not each.kind:
            low, high = each.interval_low, each.interval_high
            polls = [
                each.polls, each.empty_polls, each.failed_polls, each.hinted,
                _short(each.worker_seconds), _short(each.interval_total),
                None if low is None else _short(low), None if high is None else _short(high),
            ]  # fmt: skip
        else:
            counts = [each.done, each.failed, each.dead, each.found]
            kinds.append([each.kind, *counts, _flat(each.waits), _flat(each.durations)])
    return [_FORMAT, polls, kinds]


def _flat(histogram: Histogram) -> list[Any]:
    flat: list[Any] = [_short(histogram.total)]
    for pair in histogram.counts:
        flat += pair
    return flat if histogram.counts else []


def _short(number: float) -> float:
    """A number of seconds to the microsecond, without the digits that a sum makes up."""
    return round(number, 6)


def points_of(row: HistoryRow) -> tuple[HistoryPoint, ...]:
    """The figures of a row; none if its value is not valid."""
    length = LENGTHS.get(row.level)
    if length is None:
        return ()
    return _decoded(math.floor(row.at / length) * length, length, row.value)


@lru_cache(maxsize=8192)  # the rows of the past stay as they are, and charts read them again
def _decoded(at: float, length: float, value: str) -> tuple[HistoryPoint, ...]:
    try:
        version, polls, kinds = json.loads(value)
        if version != _FORMAT:
            return ()
        points = [_kind_from(at, length, each) for each in kinds[: 2 * KINDS_PER_ROW_MAX]]
        if polls is not None:
            points.insert(0, _polls_from(at, length, polls))
        return tuple(points)
    except (ValueError, TypeError, LookupError, RecursionError):
        return ()


def _polls_from(at: float, length: float, value: Sequence[Any]) -> HistoryPoint:
    polls, empty, failed, hinted, there, total, low, high = value
    return HistoryPoint(
        at,
        length,
        polls=_count(polls),
        empty_polls=_count(empty),
        failed_polls=_count(failed),
        hinted=_count(hinted),
        worker_seconds=_time(there),
        interval_total=_time(total),
        interval_low=None if low is None else _time(low),
        interval_high=None if high is None else _time(high),
    )


def _kind_from(at: float, length: float, value: Sequence[Any]) -> HistoryPoint:
    kind, done, failed, dead, found, waits, durations = value
    if not isinstance(kind, str):
        raise TypeError(kind)
    return HistoryPoint(
        at,
        length,
        storable(kind, NAME_LENGTH_MAX) or "",
        done=_count(done),
        failed=_count(failed),
        dead=_count(dead),
        found=_count(found),
        waits=_histogram(waits),
        durations=_histogram(durations),
    )


def _histogram(flat: Sequence[Any]) -> Histogram:
    if not flat:
        return EMPTY
    buckets, hits = flat[1::2], flat[2::2]
    # Charts read thousands of these, so they are checked all at once.
    if len(buckets) != len(hits) or set(map(type, flat[1:])) - {int}:
        raise ValueError(flat)
    if buckets != sorted(set(buckets)) or min(hits) < 1 or max(hits) >= _COUNT_MAX:
        raise ValueError(flat)
    if not 0 <= buckets[0] <= buckets[-1] < BUCKETS:
        raise ValueError(flat)
    return Histogram(tuple(zip(buckets, hits, strict=True)), _time(flat[0]))


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _COUNT_MAX:
        raise ValueError(value)
    return value


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(value)
    if not 0.0 <= value < _COUNT_MAX:
        raise ValueError(value)
    return float(value)


def checked_rows(rows: Sequence[HistoryRow], writer: str) -> tuple[HistoryRow, ...]:
    """Refuse rows that a worker does not write: too many, too large, or under another name."""
    paces = sum(row.level == PACE for row in rows)
    if (of_history := len(rows) - paces) > ROWS_PER_WRITE_MAX:
        raise ConfigError(f"{of_history} rows of history; at most {ROWS_PER_WRITE_MAX} at once")
    if paces > 1:
        raise ConfigError("a worker writes at most one pace at a time")
    for row in rows:
        size = len(row.value.encode("utf-8", "replace"))
        if row.level == PACE:
            if row.at != PACE_AT or not _PACE_KEY.fullmatch(row.writer):
                raise ConfigError(f"a pace has the key {row.writer[:40]!r}, which is not valid")
        elif row.level != BY_WORKER or row.writer != writer or not 0 <= row.at < 2**40:
            raise ConfigError(
                f"a row of history at {row.at} by {row.writer[:40]!r} (level {row.level}) is not "
                f"one of the worker {writer[:40]!r}"
            )
        if size > ROW_BYTES_MAX:
            raise ConfigError(f"a row of history of {size} bytes is above {ROW_BYTES_MAX}")
    return tuple(rows)
