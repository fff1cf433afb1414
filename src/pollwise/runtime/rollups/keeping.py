"""The calls of a store that are about its history; a queue and an outbox's store have the same.

Rows of workers are folded after at most two hours, so that the size of the history does not depend
on how many workers there are: 10,080 minutes and 2,160 hours, each with at most 51 kinds.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from pollwise.core.strategies.saved_pace import PACE_KEPT
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, Unsupported
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import checked_name
from pollwise.runtime.rollups.points import HOUR, MINUTE, HistoryPoint, grouped
from pollwise.runtime.rollups.rows import (
    BY_HOUR,
    BY_MINUTE,
    BY_WORKER,
    LENGTHS,
    PACE,
    PACE_AT,
    HistoryRange,
    HistoryRow,
    encoded,
    points_of,
)
from pollwise.runtime.store import distinct

#: How long history is kept by minute, in seconds.
HISTORY_MINUTES_KEPT = 7 * 86400.0
#: How long history is kept by hour, in seconds.
HISTORY_HOURS_KEPT = 90 * 86400.0
#: How long the rows of each worker are kept apart, in seconds; less if there are many workers.
HISTORY_WORKERS_KEPT = 2 * HOUR
#: The minimum of that, because a worker may write a row again within this time.
HISTORY_WORKERS_KEPT_MIN = 10 * MINUTE
#: How long the pace of workers that are gone is kept, in seconds.
PACES_KEPT = PACE_KEPT
#: The maximum number of paces.
PACES_MAX = 20
#: How many rows of workers are kept apart at most, roughly.
HISTORY_WORKER_ROWS = 5_000
#: How many rows one step of folding reads.
FOLD_ROWS = 500
#: Rows that begin this many seconds in the future were written by a wrong clock, and are deleted.
FUTURE = 86400.0
_END = 2**40
_PACES = HistoryRange(PACE, PACE_AT, PACE_AT + 1, FOLD_ROWS)


class HistoryChoice(NamedTuple):
    """The checked arguments of `history`."""

    span: float
    kinds: tuple[str, ...] | None
    hourly: bool
    worker: str | None


class PaceKept(NamedTuple):
    """A pace that a worker learned: its key, when it was saved, and what `PollLoop.dump` gave."""

    key: str
    saved_at: float
    state: dict[str, Any]


class KeptHistory(ABC):
    """The history of a store. A store implements the methods with a leading underscore."""

    #: The same as `WorkStore.clock`.
    clock: Clock

    async def history(
        self,
        since: Duration = "24h",
        kinds: Sequence[str] | None = None,
        by: Literal["minute", "hour"] | None = None,
        *,
        worker: str | None = None,
    ) -> list[HistoryPoint]:
        """Return what workers did until now, by minute and kind or by hour and kind.

        since: how far back, for example "24h".
        by: None takes minutes for up to a day, else hours. Minutes are kept for 7 days; what is
            older comes by hour (`HistoryPoint.seconds`), for up to 90 days.
        kinds: only these; None means all, and the polls, which have the kind "".
        worker: only what workers of this name did. This is known for the last ten minutes at least,
            and for two hours unless there are many workers.

        Workers write about once a minute, so the last minute or two are incomplete.
        """
        self._check_history()
        span = seconds(since, "since", positive=True)
        if by not in (None, "minute", "hour"):
            raise ConfigError(f"by = {by!r} must be 'minute' or 'hour'")
        wanted = distinct(kinds, "kinds")
        if worker is not None:
            checked_name(worker, "worker", ConfigError)
        hourly = by == "hour" or (by is None and span > 86400.0)
        chosen = None if wanted is None else tuple(wanted)
        return await self._history_of(HistoryChoice(span, chosen, hourly, worker))

    async def _history_of(self, asked: HistoryChoice) -> list[HistoryPoint]:
        """As `history`; an `http://` queue asks its controller."""
        span, worker, length = asked.span, asked.worker, HOUR if asked.hourly else MINUTE
        now = self.clock.epoch()
        first = max(now - min(span, HISTORY_HOURS_KEPT), 0.0) // length * length
        until, week_ago = int(now + FUTURE), _week_ago(now)
        ranges = [HistoryRange(BY_WORKER, int(first), until)]
        if worker is None:
            # Each minute is also part of its hour: read one of the two.
            minutes_from = until if asked.hourly else max(int(first), week_ago)
            hour = int(first // HOUR * HOUR)
            ranges += [
                HistoryRange(BY_MINUTE, minutes_from, until),
                HistoryRange(BY_HOUR, hour, until if asked.hourly else week_ago),
            ]
        parts = await self._read_history([each for each in ranges if each.since < each.until])
        rows = [
            row
            for part in parts
            for row in part
            if worker is None or row.writer.partition(" ")[2] == worker
        ]
        chosen = None if asked.kinds is None else frozenset(asked.kinds)
        points = [
            point
            for row in rows
            for point in points_of(row)
            if chosen is None or point.kind in chosen
        ]
        return grouped(points, length)

    async def paces(self) -> list[PaceKept]:
        """The paces that workers learned, for those that start; none if the store keeps none."""
        try:
            self._check_history()
        except Unsupported:
            return []
        [rows] = await self._read_history([_PACES])
        found = [pace for row in rows if (pace := pace_of(row)) is not None]
        return sorted(found, key=lambda pace: pace.saved_at)[-PACES_MAX:]

    async def fold_history(self) -> bool:
        """Fold and delete what is due, a bounded number of rows; True if there may be more.

        For the chore of workers. Several may do it at the same time: each row counts once.
        """
        now = self.clock.epoch()
        apart_until = (now - HISTORY_WORKERS_KEPT_MIN) // MINUTE * MINUTE
        due = [
            HistoryRange(BY_HOUR, 0, _whole(now - HISTORY_HOURS_KEPT), FOLD_ROWS),
            HistoryRange(BY_WORKER, _whole(now + FUTURE), _END, FOLD_ROWS),
            HistoryRange(BY_MINUTE, 0, _week_ago(now), FOLD_ROWS),
            HistoryRange(BY_WORKER, 0, _whole(apart_until), FOLD_ROWS),
            _PACES,
        ]
        old_hours, future, minutes, by_worker, paces = await self._read_history(due)
        if old := [*old_hours, *future, *minutes, *_old_paces(paces, now)]:
            await self._replace_history(old, [])
        kept_apart = now - _kept_apart(by_worker)
        folded = [row for row in by_worker if row.at < kept_apart // MINUTE * MINUTE]
        await self._fold(folded)
        return any(len(rows) == FOLD_ROWS for rows in (old_hours, future, minutes, folded))

    async def _fold(self, old: Sequence[HistoryRow]) -> None:
        """Fold the rows of workers into one row for each minute, and into one for each hour."""
        if not old:
            return
        levels = (BY_MINUTE, BY_HOUR)
        changed = {level: {_start(row, level) for row in old} for level in levels}
        found = await self._read_history(
            [HistoryRange(level, min(changed[level]), max(changed[level]) + 1) for level in levels]
        )
        gone, new = list(old), []
        for level, rows in zip(levels, found, strict=True):
            there = [row for row in rows if row.at in changed[level]]
            intervals: dict[int, list[HistoryPoint]] = {}
            for row in (*old, *there):
                intervals.setdefault(_start(row, level), []).extend(points_of(row))
            gone += there
            new += [
                HistoryRow(level, at, "", encoded(grouped(points, LENGTHS[level])))
                for at, points in intervals.items()
            ]
        await self._replace_history(gone, new)

    # What a store implements

    def _check_history(self) -> None:  # noqa: B027 - only where a store may keep none
        """Raise `Unsupported` if the store keeps no history."""

    @abstractmethod
    async def _read_history(self, ranges: Sequence[HistoryRange]) -> list[list[HistoryRow]]:
        """The rows of each range, by time and writer, in one round trip."""

    @abstractmethod
    async def _replace_history(self, old: Sequence[HistoryRow], new: Sequence[HistoryRow]) -> bool:
        """Delete the old rows and write the new ones.

        Do nothing, and return False, if an old row does not exist any more, or if a new row exists
        already and is not among the old ones.
        """


def pace_of(row: HistoryRow) -> PaceKept | None:
    """The pace in a row; None if it is not valid."""
    try:
        state = json.loads(row.value)
        return PaceKept(row.writer, float(state["saved_at"]), dict(state))
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None


def _old_paces(rows: Sequence[HistoryRow], now: float) -> list[HistoryRow]:
    """The rows of paces to delete: old ones, damaged ones, and those above the limit."""
    paces = {row: pace_of(row) for row in rows}
    saved = {row: pace.saved_at for row, pace in paces.items() if pace is not None}
    kept = [row for row, at in saved.items() if now - PACES_KEPT <= at <= now + FUTURE]
    newest = sorted(kept, key=lambda row: saved[row])[-PACES_MAX:]
    return [row for row in rows if row not in newest]


def _kept_apart(oldest: Sequence[HistoryRow]) -> float:
    """How long the rows of each worker are kept apart, in seconds: less if there are many."""
    if len(oldest) < FOLD_ROWS:
        return HISTORY_WORKERS_KEPT
    rows_per_second = len(oldest) / (oldest[-1].at - oldest[0].at + MINUTE)
    fitting = HISTORY_WORKER_ROWS / rows_per_second
    return max(min(fitting, HISTORY_WORKERS_KEPT), HISTORY_WORKERS_KEPT_MIN)


def _week_ago(now: float) -> int:
    """The start of the first hour whose minutes are kept."""
    return _whole((now - HISTORY_MINUTES_KEPT) // HOUR * HOUR)


def _start(row: HistoryRow, level: int) -> int:
    """The start of a row's interval at a level."""
    return int(row.at // LENGTHS[level] * LENGTHS[level])


def _whole(time: float) -> int:
    return max(int(time), 0)


class HistoryTable:
    """Rows in a dictionary of this process."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int, str], str] = {}

    def write(self, rows: Iterable[HistoryRow]) -> None:
        for row in rows:
            self._rows[row.key] = row.value

    def read(self, asked: HistoryRange) -> list[HistoryRow]:
        found = sorted(
            (key, value)
            for key, value in self._rows.items()
            if key[0] == asked.level and asked.since <= key[1] < asked.until
        )
        return [HistoryRow(*key, value) for key, value in found[: asked.limit]]

    def replace(self, old: Iterable[HistoryRow], new: Iterable[HistoryRow]) -> bool:
        gone, made = {row.key for row in old}, {row.key: row.value for row in new}
        if not gone <= self._rows.keys() or (made.keys() - gone) & self._rows.keys():
            return False
        for key in gone:
            del self._rows[key]
        self._rows |= made
        return True
