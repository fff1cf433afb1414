"""The state of a target to save, and how it is restored after a restart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pollwise.alerts.lifecycle import RuleState
from pollwise.core.forecast.changes import ChangeRate
from pollwise.core.outcome import Outcome
from pollwise.core.strategies.freshness import JITTER
from pollwise.core.strategies.saved_pace import pace_restored, pace_saved
from pollwise.fleet.engine.failures import FailureRules
from pollwise.fleet.engine.running_target import RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.history.tracker import TargetTracker
from pollwise.fleet.locations.values import SeenFrom
from pollwise.fleet.recent import as_text, from_text
from pollwise.fleet.stores.base import SavedTarget
from pollwise.fleet.targets import Reading

#: How often the last success is given to a new pacer, which smooths, so that one is not enough.
REPEATS = 4
#: Missed polls are made up within half the target's interval, within this many seconds, and within
#: CATCH_UP_STEP seconds for each target that missed its poll: few targets need no spreading.
CATCH_UP_WITHIN = 60.0
CATCH_UP_STEP = 0.02
#: A missed poll of a fixed interval is this many seconds before the next regular one, or half the
#: interval if that is shorter; if there is less time, the regular poll makes up for it.
CATCH_UP_APART = 5.0


def saved(entry: RunningTarget, scheduler: Scheduler, *, whole: bool = True) -> SavedTarget:
    """The state to save, with times in seconds since 1970 by the current wall clock.

    whole: off leaves out what only a restart needs, and the last readings.
    """
    offset = scheduler.offset

    def epoch(at: float | None) -> float | None:
        return None if at is None else at + offset

    more: dict[str, Any] = {}
    if entry.reading is not None:
        more["reading"] = entry.reading.kept()
    learner = entry.learner
    if learner is not None and entry.succeeded_at is not None:
        more["changes"] = [learner.changes.rate, learner.changes.weight]
    elif whole and learner is None and entry.pacer is not None and entry.polled_at is not None:
        more["pace"] = pace_saved(entry.pacer, entry.polled_at, entry.polled_at + offset)
    if entry.permanent:
        more["permanent"] = True
    if entry.failing_since is not None:
        more["failing_since"] = epoch(entry.failing_since)
        if entry.down_since is not None:
            more["down"] = True
    if entry.seen_from is not None:
        more["locations"] = entry.seen_from.kept()
    if whole and entry.target.written:
        more["written"] = entry.target.written
    if entry.target.behind:
        more["behind"] = list(entry.target.behind)
    if whole and entry.alerts:
        more["alerts"] = {key: state.kept(offset) for key, state in entry.alerts.items()}
    if whole and entry.recent:
        more["recent"] = as_text(entry.recent)
    if whole and entry.history is not None:
        more["history"] = entry.history.kept()
    more["max_interval"] = entry.strategy.max_interval
    if scheduler.deferred and entry in scheduler.deferred:
        more["deferred"] = epoch(scheduler.deferred[entry])
    return SavedTarget(
        entry.target.name,
        epoch(entry.due),
        entry.paused,
        scheduler.rules.state(entry.failures, dead=entry.dead, asked=False),
        entry.failures,
        entry.error,
        epoch(entry.polled_at),
        epoch(entry.succeeded_at),
        epoch(entry.failed_at),
        epoch(entry.changed_at),
        scheduler.every(entry),
        more,
        entry.token,
        entry.target.type,
        entry.target.group,
    )


def restore(entry: RunningTarget, kept: SavedTarget, scheduler: Scheduler, now: float) -> None:
    """Give a target its saved state."""
    offset = scheduler.offset

    def local(at: float | None) -> float | None:
        """A time in the past, also if the clock was set back since it was saved."""
        return None if at is None else min(at - offset, now)

    entry.paused = kept.paused
    entry.dead = kept.state == "dead"
    entry.failures = kept.failures
    entry.error = kept.error
    entry.permanent = bool(kept.more.get("permanent"))
    if entry.failures:
        entry.failing_since = local(kept.more.get("failing_since") or kept.failed_at)
        if kept.more.get("down") or entry.dead:
            entry.down_since = entry.failing_since
    entry.polled_at = local(kept.polled_at)
    entry.succeeded_at = local(kept.succeeded_at)
    entry.failed_at = local(kept.failed_at)
    entry.changed_at = local(kept.changed_at)
    if kept.more.get("reading") is not None:
        entry.reading = Reading.restored(kept.more["reading"])
    if entry.target.confirm_from > 1 and kept.more.get("locations") is not None:
        entry.seen_from = SeenFrom.restored(kept.more["locations"])
    alerts = kept.more.get("alerts")
    entry.alerts = None
    if isinstance(alerts, dict):
        entry.alerts = {key: RuleState.restored(each, offset, now) for key, each in alerts.items()}
    entry.recent = from_text(kept.more.get("recent"))
    entry.history = TargetTracker.restored(entry.target.name, kept.more.get("history"))
    strategy = entry.strategy
    if kept.interval is not None and not entry.dead:
        entry.interval = min(max(kept.interval, strategy.min_interval), strategy.max_interval)
    _restore_rate(entry, kept)
    if entry.pacer is not None and entry.learner is None and "pace" in kept.more:
        entry.pacer = pace_restored(strategy, kept.more["pace"], now, now + offset).pacer
    planned = kept.more.get("deferred", kept.due)  # the quiet hours may have changed
    if planned is not None:
        longest = _longest_delay(entry, kept, planned, scheduler.rules)
        entry.due = min(planned - offset, now + longest)


def _longest_delay(
    entry: RunningTarget, kept: SavedTarget, planned: float, rules: FailureRules
) -> float:
    """Maximum seconds until the next poll: the delay that was planned after the last one, as far as
    the current settings allow it. A target must not wait because the wall clock was set back or its
    interval was shortened."""
    strategy, longest = entry.strategy, entry.interval * (1 + JITTER)
    if entry.failures:
        longest = rules.longest(dead=entry.dead, max_interval=strategy.max_interval)
    if kept.polled_at is not None:
        longest = min(longest, max(planned - kept.polled_at, 0.0))
    return min(longest, entry.within)


def catch_up(entries: Iterable[RunningTarget], scheduler: Scheduler, now: float) -> None:
    """Spread the polls of targets that are overdue because no process polled them, the longest due
    first. With a budget, its tokens do that."""
    if scheduler.budget is not None:
        return
    late = sorted(
        (entry for entry in entries if entry.due < now and not entry.paused),
        key=lambda entry: (entry.due, -entry.target.priority, entry.target.name),
    )
    for place, entry in enumerate(late):
        within = min(entry.interval / 2, CATCH_UP_WITHIN, CATCH_UP_STEP * len(late))
        entry.due = now + within * place / len(late)
        if entry.fixed:
            regular = scheduler.on_grid(entry, now)
            apart = min(entry.interval / 2, CATCH_UP_APART)
            entry.due = regular if regular - now < apart else min(entry.due, regular - apart)


def _restore_rate(entry: RunningTarget, kept: SavedTarget) -> None:
    learner, believed = entry.learner, kept.more.get("changes")
    if learner is None or not believed:
        return
    rate, weight = believed
    learner.changes = ChangeRate(rate, weight)
    if entry.succeeded_at is not None:
        for _ in range(REPEATS):
            learner.after(Outcome(entry.succeeded_at, 0, 1))
