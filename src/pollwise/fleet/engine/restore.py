"""The state of a target to save, and how it is restored after a restart."""

from __future__ import annotations

from typing import Any

from pollwise.core.forecast.changes import ChangeRate
from pollwise.core.outcome import Outcome
from pollwise.fleet.engine.running_target import RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.recent import as_text, from_text
from pollwise.fleet.stores.base import SavedTarget
from pollwise.fleet.targets import Reading

#: How often a new pacer is given the last success: it smooths, and must not start from scratch.
REPEATS = 4


def saved(entry: RunningTarget, scheduler: Scheduler) -> SavedTarget:
    """The state to save, with times in seconds since 1970 by the current wall clock."""
    offset = scheduler.offset

    def epoch(at: float | None) -> float | None:
        return None if at is None else at + offset

    more: dict[str, Any] = {}
    if entry.reading is not None:
        more["reading"] = entry.reading.kept()
    learner = entry.learner
    if learner is not None and entry.succeeded_at is not None:
        more["changes"] = [learner.changes.rate, learner.changes.weight]
    if entry.permanent:
        more["permanent"] = True
    if entry.failing_since is not None:
        more["failing_since"] = epoch(entry.failing_since)
        if entry.down_since is not None:
            more["down"] = True
    if entry.recent:
        more["recent"] = as_text(entry.recent)
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
        entry.interval,
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
    entry.recent = from_text(kept.more.get("recent"))
    strategy = entry.strategy
    if kept.interval is not None:
        entry.interval = min(max(kept.interval, strategy.min_interval), strategy.max_interval)
    _restore_rate(entry, kept)
    planned = kept.more.get("deferred", kept.due)  # the quiet hours may have changed
    if planned is not None:
        due = planned - offset
        # A target must not wait because its interval was shortened or the clock set back.
        rules = scheduler.rules
        longest = (
            rules.recheck if entry.dead else max(strategy.max_interval, rules.breaker.max_delay)
        )
        if entry.target.quiet is None:
            due = min(due, now + longest)
        entry.due = due


def _restore_rate(entry: RunningTarget, kept: SavedTarget) -> None:
    learner, believed = entry.learner, kept.more.get("changes")
    if learner is None or not believed:
        return
    rate, weight = believed
    learner.changes = ChangeRate(rate, weight)
    if entry.succeeded_at is not None:
        for _ in range(REPEATS):
            learner.after(Outcome(entry.succeeded_at, 0, 1))
