"""The history of targets as people see it: uptimes, incidents, percentiles, and strips to draw.

Uptime is up ÷ (up + down). Time that is unknown (nobody polled) or in maintenance does not count.
Windows begin at a full hour, and those above a week at a full day (UTC), so a window of 24 hours
covers up to 25. A target that failed counts as down from the first failure of a confirmed outage to
the poll that found it up again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pollwise.durations import Duration, shown
from pollwise.durations import seconds as in_seconds
from pollwise.errors import ConfigError, Unsupported
from pollwise.fleet.history.packing import added_up
from pollwise.fleet.history.tracker import OpenHistory, TargetTracker
from pollwise.fleet.history.values import (
    DAY,
    DAYS_KEPT,
    HOUR,
    NO_TIME,
    PERIODS_KEPT,
    Period,
    PeriodState,
    PollFigures,
    RollupLength,
    TargetRollup,
    TimeInStates,
)
from pollwise.fleet.stores.base import FleetStore, SavedTarget
from pollwise.fleet.stores.paging import TargetFilter

#: The windows of uptimes, in seconds.
UPTIME_WINDOWS: Mapping[str, float] = {
    "24h": DAY, "7d": 7 * DAY, "30d": 30 * DAY, "90d": 90 * DAY,
}  # fmt: skip
#: Windows up to this long are added up from hours, longer ones from days.
BY_HOUR_MAX = 7 * DAY
#: The most targets of one call, and the most cells of a strip.
TARGETS_MAX = 1000
CELLS_MAX = 200
#: The states of targets that may be down.
_FAILING = ("dead", "open", "backing off", "confirming")


@dataclass(frozen=True, slots=True)
class Incident:
    """A time in which a target was down. ended_at: None while it is down."""

    target: str
    started_at: float
    ended_at: float | None
    lasted: float
    reason: str

    @property
    def open(self) -> bool:
        return self.ended_at is None


@dataclass(frozen=True, slots=True)
class Uptimes:
    """The uptimes of one target.

    state: its state now; None if it was never polled.
    windows: time in each state by UPTIME_WINDOWS; `uptime` of each is the share.
    since: when the state began; None if it was never polled.
    """

    target: str
    state: PeriodState | None
    since: float | None
    windows: Mapping[str, TimeInStates]


@dataclass(frozen=True, slots=True)
class StripCell:
    """A cell of a strip: a time, and how long the target was in each state in it.

    state: the worst state in it: down, then maintenance, then up; unknown if nothing was observed.
    """

    at: float
    seconds: float
    times: TimeInStates

    @property
    def state(self) -> PeriodState:
        if self.times.down:
            return "down"
        if self.times.maintenance:
            return "maintenance"
        return "up" if self.times.up else "unknown"


@dataclass(frozen=True, slots=True)
class TargetHistory:
    """The history of one target from `since` to `until`.

    state: its state at the end; None if it was never polled.
    times: how long it was in each state. figures: what its polls gave.
    points: the same for each hour, or each day of a window above a week; oldest first, only those
        in which something was observed.
    periods: without gaps, oldest first; the last one is open. They may begin after `since`: at the
        first poll, or where older ones were deleted.
    incidents: newest first.
    """

    target: str
    since: float
    until: float
    state: PeriodState | None
    times: TimeInStates
    figures: PollFigures
    points: list[TargetRollup]
    periods: list[Period]
    incidents: list[Incident]


def open_history(saved: SavedTarget) -> OpenHistory | None:
    """The unfinished part of a saved target's history; None if it was never polled."""
    tracker = TargetTracker.restored(saved.name, saved.more.get("history"))
    return None if tracker is None else tracker.open()


async def uptimes(store: FleetStore, names: Sequence[str], now: float) -> dict[str, Uptimes]:
    """The uptimes of these targets by name, in one query; those that are not saved are left out."""
    _check(store)
    _check_targets(names)
    windows = [window_of(each, now) for each in UPTIME_WINDOWS.values()]
    found = {}
    for each in await store.spent(names, windows, now):
        opened = open_history(each.saved)
        rest = _open_rollups_of(opened, now)
        spent = {
            name: times + _total(each for each in rest[length] if each.at >= since)
            for name, times, (length, since) in zip(
                UPTIME_WINDOWS, each.spent, windows, strict=True
            )
        }
        name = each.saved.name
        if opened is None:
            found[name] = Uptimes(name, None, None, spent)
        else:
            last = _open_periods(opened, name, now)[-1]
            found[name] = Uptimes(name, last.state, last.started_at, spent)
    return found


async def strips(
    store: FleetStore, names: Sequence[str], now: float, *, cells: int = 90, seconds: float = DAY
) -> dict[str, list[StripCell]]:
    """Cells to draw for these targets by name, oldest first; the last one is not over yet.

    seconds: the length of a cell: whole hours up to seven days back, or whole days.
    Two queries for all targets.
    """
    _check(store)
    _check_targets(names)
    length, size = _cell(cells, seconds)
    first = math.floor(now / seconds) - cells + 1
    rows = await store.rollups(names, length, first * seconds, figures=False)
    found: dict[str, list[TargetRollup]] = {}
    for row in rows:
        found.setdefault(row.target, []).append(row)
    strip: dict[str, list[StripCell]] = {}
    for saved in await store.load(names):
        opened = open_history(saved)
        some = _without_open(found.get(saved.name, []), opened)
        if opened is not None:
            some += _open_rollups(opened, length, now)
        strip[saved.name] = _cells(some, first, cells, size)
    return strip


async def target_history(
    store: FleetStore, name: str, since: float, now: float
) -> TargetHistory | None:
    """The history of one target from `since` until now; None if it is not saved."""
    _check(store)
    if not now - DAYS_KEPT * DAY <= since < now:
        raise ConfigError(
            f"since = {since!r} must be in the past, at most {DAYS_KEPT} days ago: the "
            "history reaches no further"
        )
    saved = await store.load([name])  # first: finished rows may follow, and are left out below
    if not saved:
        return None
    length, begins = window_of(now - since, now)
    opened = open_history(saved[0])
    points = _without_open(await store.rollups([name], length, begins), opened)
    periods = await store.periods([name], begins, limit=PERIODS_KEPT)
    periods = [each for each in periods if opened is None or each.started_at < opened.started_at]
    periods.reverse()
    if opened is not None:
        points = _merged([*points, *_open_rollups(opened, length, now)])
        periods += _open_periods(opened, name, now)
    points = [each for each in points if each.at >= begins]
    whole = _in_order(periods)
    shown = [
        replace(each, started_at=max(each.started_at, begins))
        for each in whole
        if each.ended_at > begins
    ]
    return TargetHistory(
        name,
        begins,
        now,
        shown[-1].state if shown else None,
        _total(points),
        added_up(each.figures for each in points),
        points,
        shown,
        [each for each in _incidents(whole, now) if (each.ended_at or now) > begins],
    )


async def incidents(
    store: FleetStore,
    since: float,
    now: float,
    *,
    name: str | None = None,
    limit: int = 100,
    before: float | None = None,
) -> list[Incident]:
    """The incidents of a fleet or of one target that ended after `since`, newest first.

    limit: at most this many. before: only those that began before this time, to go on after the
    last one of an earlier call.
    """
    _check(store)
    names = None if name is None else [name]
    opened = await open_incidents(store, now, name=name, limit=limit)
    found = [each for each in opened if before is None or each.started_at < before]
    known = {(each.target, each.started_at) for each in found}
    # Not those of the future, from a clock that was wrong.
    last = now if before is None else min(before, now)
    finished = await store.periods(names, since, state="down", before=last, limit=limit)
    found += [
        Incident(each.target, each.started_at, each.ended_at, each.lasted, each.reason)
        for each in finished
        if (each.target, each.started_at) not in known
    ]
    found.sort(key=lambda each: -each.started_at)
    return found[:limit]


async def open_incidents(
    store: FleetStore, now: float, *, name: str | None = None, limit: int = 100
) -> list[Incident]:
    """The incidents of a fleet or of one target that are not over, newest first; about `limit`."""
    _check(store)
    saved = await _failing(store, None if name is None else [name], limit)
    found = [each for target in saved for each in _open_incidents(target, now)]
    return sorted(found, key=lambda each: -each.started_at)[:limit]


async def _failing(store: FleetStore, names: list[str] | None, limit: int) -> list[SavedTarget]:
    if names is not None:
        return await store.load(names)
    found: list[SavedTarget] = []
    for state in _FAILING:
        page = await store.page(TargetFilter(state=state, limit=min(limit, TARGETS_MAX)))
        found += page.targets
    return found


def _open_incidents(saved: SavedTarget, now: float) -> list[Incident]:
    opened = open_history(saved)
    if opened is None:
        return []
    return [each for each in _incidents(_open_periods(opened, saved.name, now), now) if each.open]


# Windows


def since_of(given: Duration, now: float, name: str = "since") -> float:
    """The time this long ago: "7d", "24h". ConfigError if the history does not reach so far."""
    ago = in_seconds(given, name, positive=True)
    if ago > DAYS_KEPT * DAY:
        raise ConfigError(
            f"{name} = {shown(given)} is above {DAYS_KEPT}d: the history reaches no further"
        )
    return now - ago


def window_of(seconds: float, now: float) -> tuple[RollupLength, float]:
    """Whether a window is added up from hours or from days, and when it begins."""
    if seconds <= BY_HOUR_MAX:
        return "hour", math.floor((now - seconds) / HOUR) * HOUR
    return "day", math.floor((now - seconds) / DAY) * DAY


def _check(store: FleetStore) -> None:
    if not store.keeps_history:
        raise Unsupported(
            f"{type(store).__name__} keeps no history; use a store on SQLite or Postgres"
        )


def _check_targets(names: Sequence[str]) -> None:
    if len(names) > TARGETS_MAX:
        raise ConfigError(f"{len(names)} targets are above the limit of {TARGETS_MAX} at once")


def _cell(cells: int, seconds: float) -> tuple[RollupLength, float]:
    if not 1 <= cells <= CELLS_MAX:
        raise ConfigError(f"cells = {cells!r} must be from 1 to {CELLS_MAX}")
    if seconds >= DAY and seconds % DAY == 0:
        return "day", seconds
    if seconds >= HOUR and seconds % HOUR == 0 and cells * seconds <= BY_HOUR_MAX + DAY:
        return "hour", seconds
    raise ConfigError(
        f"seconds = {seconds!r} must be whole days; or whole hours, for cells that reach back at "
        f"most {(BY_HOUR_MAX + DAY) / DAY:g} days"
    )


def _cells(
    rollups: Iterable[TargetRollup], first: int, cells: int, seconds: float
) -> list[StripCell]:
    times = [NO_TIME] * cells
    for each in rollups:
        place = math.floor(each.at / seconds) - first
        if 0 <= place < cells:
            # Most cells are of one row.
            times[place] = times[place] + each.times if times[place] else each.times
    return [StripCell((first + place) * seconds, seconds, each) for place, each in enumerate(times)]


# The part that is not finished


def _without_open(rows: list[TargetRollup], opened: OpenHistory | None) -> list[TargetRollup]:
    """The rows before the open hour and day: later ones were finished after the state was read."""
    if opened is None:
        return rows
    return [
        row for row in rows if row.at < (opened.hour if row.length == "hour" else opened.day).at
    ]


def _open_rollups(opened: OpenHistory, length: RollupLength, now: float) -> list[TargetRollup]:
    """The open roll-ups as hours or days, with the time until now."""
    target = opened.hour.target
    found = [opened.hour] if length == "hour" else [opened.day, opened.hour]
    for each in _open_periods(opened, target, now):
        if each.state != "unknown" and each.ended_at > opened.seen_at:
            started = max(each.started_at, opened.seen_at)
            found += _split(target, each.state, started, each.ended_at)
    size = HOUR if length == "hour" else DAY
    return _merged(
        TargetRollup(target, length, math.floor(each.at / size) * size, each.times, each.figures)
        for each in found
    )


def _split(target: str, state: PeriodState, start: float, end: float) -> list[TargetRollup]:
    """A time in one state, by hours."""
    found = []
    while start < end:
        hour = math.floor(start / HOUR) * HOUR
        until = min(hour + HOUR, end)
        spent = TimeInStates(**{state: until - start})
        found.append(TargetRollup(target, "hour", hour, spent))
        start = until
    return found


def _merged(rollups: Iterable[TargetRollup]) -> list[TargetRollup]:
    """One roll-up for each time, oldest first, without empty ones."""
    by_time: dict[float, TargetRollup] = {}
    for each in rollups:
        other = by_time.get(each.at)
        if other is not None:
            figures = added_up([other.figures, each.figures])
            times = other.times + each.times
            each = TargetRollup(each.target, each.length, each.at, times, figures)
        by_time[each.at] = each
    return [by_time[at] for at in sorted(by_time) if by_time[at].times or by_time[at].figures.polls]


def _open_rollups_of(
    opened: OpenHistory | None, now: float
) -> dict[RollupLength, list[TargetRollup]]:
    if opened is None:
        return {"hour": [], "day": []}
    return {"hour": _open_rollups(opened, "hour", now), "day": _open_rollups(opened, "day", now)}


def _total(rollups: Iterable[TargetRollup]) -> TimeInStates:
    return sum((each.times for each in rollups), NO_TIME)


def _open_periods(opened: OpenHistory, name: str, now: float) -> list[Period]:
    """The open period until now; unknown since the planned poll if that is missing for long."""
    start, reason = opened.started_at, opened.reason
    if now <= opened.lapses_at or opened.state == "unknown":
        return [Period(name, opened.state, start, max(now, opened.seen_at), reason)]
    ended = max(opened.planned_at, opened.seen_at)
    return [
        Period(name, opened.state, start, ended, reason),
        Period(name, "unknown", ended, now),
    ]


def _in_order(periods: Iterable[Period]) -> list[Period]:
    """Periods without overlaps, gaps and equal neighbours, oldest first.

    They overlap if the clock was set back: then a period ends where the next begins. Rows that were
    lost leave a gap, which is unknown.
    """
    found: list[Period] = []
    for each in sorted(periods, key=lambda each: each.started_at):
        if found:
            last = found[-1]
            if last.ended_at > each.started_at:
                found[-1] = last = replace(last, ended_at=each.started_at)
            elif last.ended_at < each.started_at:
                found.append(Period(each.target, "unknown", last.ended_at, each.started_at))
                last = found[-1]
            if last.ended_at <= last.started_at:
                found.pop()
            if found and found[-1].state == each.state:
                each = replace(found.pop(), ended_at=each.ended_at)
        found.append(each)
    return found


def _incidents(periods: Sequence[Period], now: float) -> list[Incident]:
    """The periods of down, newest first."""
    return [
        Incident(
            each.target,
            each.started_at,
            None if each.ended_at >= now else each.ended_at,
            each.lasted,
            each.reason,
        )
        for each in reversed(periods)
        if each.state == "down"
    ]
