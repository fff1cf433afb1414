"""What a running target gathers of its history: the open period, the open hour and the open day.

Pure: callers pass the times. Times are whole milliseconds since 1970, so that sums are exact and a
restart changes nothing: `kept` is saved with the rest of the target's state, and `restored` goes on
from there.

Time is counted up to the newest poll whose meaning is certain, and never twice. A failure that is
not confirmed counts for nothing yet: once it is confirmed, the target was down since the first
failure of the row; if it recovers instead, it was up. A state holds until the next planned poll. If
that poll is missing for another interval and a timeout, the time since it was planned is unknown.

If the wall clock is set back, the period ends and a new one begins at the new time. What was
counted for the time that repeats is replaced when that hour ends again.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pollwise.fleet.history.packing import VALUE_LIMIT, added_up, packed, unpacked
from pollwise.fleet.history.values import (
    NO_POLLS,
    REASON_MAX,
    Period,
    PeriodState,
    PollFigures,
    RollupLength,
    TargetRollup,
    TimeInStates,
)
from pollwise.runtime.rollups.histogram import BUCKETS, Histogram, bucket_of

UP: Final = 0
DOWN: Final = 1
MAINTENANCE: Final = 2
UNKNOWN: Final = 3
STATES: tuple[PeriodState, ...] = ("up", "down", "maintenance", "unknown")

_MS = 1000.0
_HOUR = 3_600_000
_HOURS_A_DAY = 24
_DAY = _HOURS_A_DAY * _HOUR
#: The latest time, in seconds since 1970: a window may have no end.
_LATEST = 1e11
#: A clock that is this much behind the newest poll was set back; the clocks of two nodes may differ
#: by less.
BACK = 60_000
#: The longest time for which a state holds without a poll, in milliseconds: a week.
TRUSTED_MAX = 7 * _DAY
#: The most rows that wait for the store; the oldest are dropped while it cannot be reached.
WAITING_MAX = 400
#: A longer value is not a number.
_NUMBER_MAX = 24
_NUMBER_STARTS = frozenset("0123456789+-.")


@dataclass(frozen=True, slots=True)
class OpenHistory:
    """The part of a target's history that is not finished yet, as views see it.

    state: its state now, since `started_at`.
    outage: when the target went down, outside of a maintenance window, if it was not up since then;
        None if it is up, or went down in a window that is not over.
    seen_at: up to when its time is counted. planned_at: when the next poll is due; the state holds
        until then, and also until `lapses_at` if that has not passed.
    hour, day: the roll-ups of the hour and the day that are not over; the day has only whole hours.
    """

    state: PeriodState
    started_at: float
    outage: float | None
    reason: str
    seen_at: float
    planned_at: float
    lapses_at: float
    hour: TargetRollup
    day: TargetRollup


class TargetTracker:
    """The history of one target while it runs. A fleet may have a million of them."""

    __slots__ = (
        "changed", "covered", "day", "day_times", "failed", "high", "hour", "lapses", "latencies",
        "low", "outage", "planned", "polls", "reason", "seen", "since", "state", "target", "times",
        "took", "total", "values", "waiting",
    )  # fmt: skip

    def __init__(self, target: str, at: int) -> None:
        self.target: str = target
        self.state: int = UNKNOWN
        #: When the open period began, and up to when its time is counted.
        self.since: int = at
        self.seen: int = at
        #: When the next poll is due, and when its absence makes the time since then unknown.
        self.planned: int = at
        self.lapses: int = at
        #: When the maintenance window ends that covers an outage.
        self.covered: int = 0
        #: When the outage began; 0 without one, or if it began in a window that is not over.
        self.outage: int = 0
        self.reason: str = ""
        #: The open hour, counted from 1970, and the time in each state in it.
        self.hour: int = at // _HOUR
        self.times: list[int] = [0, 0, 0, 0]
        #: The whole hours of its day: the times, and the packed figures in base64.
        self.day_times: tuple[int, int, int] = (0, 0, 0)
        self.day: str = ""
        self._clear()
        #: Finished rows that the store does not have yet.
        self.waiting: list[Period | TargetRollup] = []

    def _clear(self) -> None:
        """Begin the figures of an hour."""
        self.polls: int = 0
        self.failed: int = 0
        self.changed: int = 0
        self.took: int = 0
        self.latencies: dict[int, int] = {}
        self.values: int = 0
        self.low: float = 0.0
        self.high: float = 0.0
        self.total: float = 0.0

    # One poll

    def polled(
        self,
        at: float,
        took: float,
        *,
        ok: bool,
        changed: bool,
        value: object,
        failing_since: float | None,
        down_since: float | None,
        error: str,
        planned: float,
        slack: float,
        covered: float | None,
    ) -> None:
        """Count a finished poll. Times are in seconds since 1970.

        failing_since: the first failure of the row. down_since: the same if it is confirmed.
        planned: when the next poll is due. slack: how late it may end, beyond one more interval.
        covered: until when a maintenance window covers the target now; None if none does.
        """
        now = int(at * _MS)
        if now < self.seen - BACK:
            self._set_back(now)
        elif now - took * _MS > self.lapses:
            self._count_to(self.planned)
            self._enter(UNKNOWN, self.seen)
            self._count_to(now)
        if failing_since is None:
            self._count_to(now)
            if self.state != UP:
                self._enter(UP, self.seen)
        elif down_since is None:
            self._count_to(int(failing_since * _MS))
        else:
            self._down(now, int(down_since * _MS), covered, error)
        self._count(took, ok, changed, value)
        wait = max(int(min((planned - at) * _MS, TRUSTED_MAX)), 0)
        self.planned = now + wait
        self.lapses = now + 2 * wait + int(slack * _MS)

    def _down(self, now: int, since: int, covered: float | None, error: str) -> None:
        state = DOWN if covered is None else MAINTENANCE
        until = 0 if covered is None else int(min(covered, _LATEST) * _MS)
        if self.state in (DOWN, MAINTENANCE):
            self._count_to(now)  # which ends a maintenance window that is over
            self.covered = until
            self._enter(state, self.seen, self.reason)
            return
        self._count_to(since)
        self.covered = until
        self._enter(state, self.seen, error[:REASON_MAX])
        self._count_to(now)

    def _count(self, took: float, ok: bool, changed: bool, value: object) -> None:
        self.polls += 1
        if not ok:
            self.failed += 1
            return
        if changed:
            self.changed += 1
        bucket = bucket_of(took)
        self.latencies[bucket] = self.latencies.get(bucket, 0) + 1
        self.took += int(took * 1e6)
        if type(value) is str and value[:1] in _NUMBER_STARTS and len(value) <= _NUMBER_MAX:
            self._count_value(value)

    def _count_value(self, text: str) -> None:
        try:
            value = float(text)
        except ValueError:
            return
        if not abs(value) <= VALUE_LIMIT:
            return
        if self.values:
            self.low, self.high = min(self.low, value), max(self.high, value)
        else:
            self.low = self.high = value
        self.values += 1
        self.total += value

    # Periods and times

    def _enter(self, state: int, at: int, reason: str = "") -> None:
        """End the open period and begin another, unless the state is the same."""
        if state == self.state:
            return
        self._end_period(at)
        self.state, self.since, self.reason = state, at, reason
        if state == DOWN:
            self.outage = self.outage or at
        elif state != MAINTENANCE:
            self.outage = 0

    def _end_period(self, at: int) -> None:
        if at > self.since:
            self._put(
                Period(self.target, STATES[self.state], self.since / _MS, at / _MS, self.reason)
            )

    def _put(self, row: Period | TargetRollup) -> None:
        self.waiting.append(row)
        if len(self.waiting) > WAITING_MAX:
            del self.waiting[0]

    def _count_to(self, to: int) -> None:
        """Count the time up to `to` for the open period's state."""
        if to <= self.seen:
            return
        if self.state == MAINTENANCE and to > self.covered:
            ended = max(self.covered, self.seen)
            self._add(ended)
            self._enter(DOWN, ended, self.reason)
        self._add(to)

    def _add(self, to: int) -> None:
        ends = (self.hour + 1) * _HOUR
        while to >= ends:
            self.times[self.state] += ends - self.seen
            self.seen = ends
            self._end_hour()
            if self.state == UNKNOWN and to >= ends + _HOUR:
                self._skip_to(to // _HOUR)
                self.seen = self.hour * _HOUR
            ends = (self.hour + 1) * _HOUR
        self.times[self.state] += to - self.seen
        self.seen = to

    # Roll-ups

    def _end_hour(self) -> None:
        times, figures = self._times(), self.figures()
        if any(times) or figures.polls:
            self._put(self._rollup("hour", times, figures))
            self.day_times = _plus(self.day_times, times)
            if figures.polls:
                self.day = _text(added_up([_figures(self.day), figures]))
        self.times = [0, 0, 0, 0]
        self._clear()
        self._skip_to(self.hour + 1)

    def _skip_to(self, hour: int) -> None:
        """Go on with another hour; ends the day if it is of another one."""
        if hour // _HOURS_A_DAY != self.hour // _HOURS_A_DAY:
            if any(self.day_times) or self.day:
                self._put(self._rollup("day", self.day_times, _figures(self.day)))
            self.day_times, self.day = (0, 0, 0), ""
        self.hour = hour

    def _rollup(
        self, length: RollupLength, times: tuple[int, int, int], figures: PollFigures
    ) -> TargetRollup:
        hour = self.hour if length == "hour" else self.hour - self.hour % _HOURS_A_DAY
        spent = TimeInStates(*(each / _MS for each in times))
        return TargetRollup(self.target, length, hour * _HOUR / _MS, spent, figures)

    def _times(self) -> tuple[int, int, int]:
        return self.times[UP], self.times[DOWN], self.times[MAINTENANCE]

    def figures(self) -> PollFigures:
        """The figures of the open hour."""
        if not self.polls:
            return NO_POLLS
        latency = Histogram.from_counts(self.latencies, self.took / 1e6)
        numbers = self.values, self.low, self.high, self.total
        return PollFigures(self.polls, self.failed, self.changed, latency, *numbers)

    # The clock

    def _set_back(self, now: int) -> None:
        """Go on at an earlier time."""
        self._end_period(self.seen)
        hour = now // _HOUR
        if hour == self.hour:
            twice = min(self.seen - now, self.times[self.state])
            self.times[self.state] -= twice
        else:
            self._end_hour()
            self._skip_to(hour)
        self.since = self.seen = now
        self.planned = self.lapses = now

    # Saved state

    def take(self) -> list[Period | TargetRollup]:
        """The finished rows, to save them now."""
        taken, self.waiting = self.waiting, []
        return taken

    def give_back(self, rows: list[Period | TargetRollup]) -> None:
        """Rows that could not be saved."""
        self.waiting = [*rows, *self.waiting][-WAITING_MAX:]

    def kept(self) -> list[Any]:
        """The open history as plain values, for a store: short, because each save writes it."""
        latencies: list[int] = []
        for pair in self.latencies.items():
            latencies += pair
        numbers = [self.values, self.low, self.high, self.total] if self.values else []
        day = [*self.day_times, self.day] if self.day or any(self.day_times) else []
        times, seen, planned = self.times, self.seen, self.planned
        return [
            self.state, self.since, seen - self.since, planned - seen, self.lapses - planned,
            self.covered, self.reason, times[UP], times[DOWN], times[MAINTENANCE],
            self.polls, self.failed, self.changed, self.took, latencies, numbers, day,
            self.outage,
        ]  # fmt: skip

    @classmethod
    def restored(cls, target: str, kept: object) -> TargetTracker | None:
        """The tracker with these values of `kept()`; None for anything else."""
        try:
            return cls._restored(target, kept)
        except (TypeError, ValueError, OverflowError):
            return None

    @classmethod
    def _restored(cls, target: str, kept: Any) -> TargetTracker:
        if not isinstance(kept, list):
            raise TypeError(kept)
        (
            state, since, counted, wait, slack, covered, reason, up, down, maintenance,
            polls, failed, changed, took, latencies, numbers, day,
            outage,
        ) = kept  # fmt: skip
        _check_whole(state, most=UNKNOWN)
        _check_whole(
            since, counted, slack, covered, outage, polls, failed, changed, took, *latencies
        )
        _check_whole(up, down, maintenance, most=_HOUR)
        _check_whole(abs(wait), most=TRUSTED_MAX + BACK)
        if not isinstance(reason, str):
            raise TypeError(reason)
        self = cls(target, since + counted)
        self.state, self.since, self.covered = state, since, covered
        self.outage = outage
        self.planned = self.seen + wait
        self.lapses = self.planned + slack
        self.reason = reason[:REASON_MAX]
        self.times = [up, down, maintenance, 0]
        self.polls, self.failed, self.changed, self.took = polls, failed, changed, took
        self.latencies = dict(zip(latencies[::2], latencies[1::2], strict=True))
        if any(bucket >= BUCKETS for bucket in self.latencies):
            raise ValueError(latencies)
        if numbers:
            self._restore_numbers(*numbers)
        if day:
            *spent, figures = day
            _check_whole(*spent, most=_DAY)
            self.day_times, self.day = _plus(spent, (0, 0, 0)), str(figures)
        return self

    def _restore_numbers(self, values: int, low: float, high: float, total: float) -> None:
        _check_whole(values)
        if not all(isinstance(each, (int, float)) for each in (low, high, total)):
            raise TypeError(low)
        if not abs(low) <= VALUE_LIMIT or not abs(high) <= VALUE_LIMIT or not math.isfinite(total):
            raise ValueError(low)
        self.values, self.low, self.high, self.total = values, float(low), float(high), float(total)

    def open(self) -> OpenHistory:
        """The open history, for views."""
        return OpenHistory(
            STATES[self.state],
            self.since / _MS,
            self.outage / _MS if self.outage else None,
            self.reason,
            self.seen / _MS,
            self.planned / _MS,
            self.lapses / _MS,
            self._rollup("hour", self._times(), self.figures()),
            self._rollup("day", self.day_times, _figures(self.day)),
        )


def _check_whole(*numbers: Any, most: int = 2**53) -> None:
    if set(map(type, numbers)) - {int} or min(numbers) < 0 or max(numbers) > most:
        raise ValueError(numbers)


def _plus(one: Sequence[int], other: Sequence[int]) -> tuple[int, int, int]:
    # A day in which the clock was set back may have more hours.
    up, down, maintenance = (min(a + b, _DAY) for a, b in zip(one, other, strict=True))
    return up, down, maintenance


def _text(figures: PollFigures) -> str:
    return base64.b64encode(packed(figures)).decode()


def _figures(text: str) -> PollFigures:
    try:
        return unpacked(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error):
        return NO_POLLS
