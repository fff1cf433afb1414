"""Hands finished polls to the trackers of their targets, and finished rows to saves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pollwise.alerts.maintenance import Maintenance
from pollwise.fleet.engine.observing import Observation, PollObserver
from pollwise.fleet.engine.running_target import RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.history.tracker import TargetTracker
from pollwise.fleet.history.values import Period, TargetRollup
from pollwise.fleet.recent import PastReading, recorded
from pollwise.fleet.stores.base import FleetStore, SaveExtras

#: Trackers and the finished rows that were taken from them.
TakenRows = list[tuple[TargetTracker, list[Period | TargetRollup]]]


class HistoryRecorder:
    """Follows the targets of a run. maintenance: an outage that it covers is not down."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.maintenance: Maintenance | None = None

    def observed(self, entry: RunningTarget, seen: Observation) -> None:
        offset, target = self._scheduler.offset, entry.target
        at, failing, down = seen.at + offset, entry.failing_since, entry.down_since
        tracker = entry.history
        if tracker is None:
            tracker = entry.history = TargetTracker(target.name, int(at * 1000.0))
        covered = None
        if down is not None and self.maintenance is not None:
            covered = self.maintenance.covers(target.name, target.group, at)
        deferred = self._scheduler.deferred
        reading = entry.reading
        tracker.polled(
            at,
            seen.took,
            ok=seen.error is None,
            changed=seen.changed,
            value=None if reading is None else reading.value,
            failing_since=None if failing is None else failing + offset,
            down_since=None if down is None else down + offset,
            error=seen.error or "",
            # In quiet hours nobody polls.
            planned=(deferred.get(entry, entry.due) if deferred else entry.due) + offset,
            slack=target.timeout,
            covered=covered,
        )


class RecentRecorder:
    """Keeps the last readings of the targets of a run."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def observed(self, entry: RunningTarget, seen: Observation) -> None:
        at = seen.at + self._scheduler.offset
        reading = PastReading(at, seen.error is None, seen.changed, seen.took, entry.due - seen.at)
        entry.recent = recorded(entry.recent, reading)


def recorders(store: FleetStore | None, scheduler: Scheduler) -> list[PollObserver]:
    """What follows the targets of a run: their last readings, and their history if it is kept."""
    recent = RecentRecorder(scheduler)
    if store is None or not store.keeps_history:
        return [recent]
    return [recent, HistoryRecorder(scheduler)]


def ask_maintenance(observers: Iterable[PollObserver], maintenance: Maintenance | None) -> None:
    """Let the history treat outages under maintenance separately."""
    for each in observers:
        if isinstance(each, HistoryRecorder):
            each.maintenance = maintenance


def taken_rows(entries: Iterable[RunningTarget]) -> TakenRows:
    """The finished rows of these targets; they are theirs no more."""
    found = (entry.history for entry in entries)
    return [(each, each.take()) for each in found if each is not None and each.waiting]


def give_back_rows(rows: TakenRows) -> None:
    """Keep rows that could not be saved for the next save."""
    for tracker, some in rows:
        tracker.give_back(some)


def extras_of(rows: TakenRows) -> SaveExtras | None:
    """The rows as a store saves them; None if there are none."""
    every: Sequence[Period | TargetRollup] = [row for _, some in rows for row in some]
    if not every:
        return None
    periods = [row for row in every if isinstance(row, Period)]
    return SaveExtras(periods, [row for row in every if isinstance(row, TargetRollup)])
