"""The state of a fleet and of its targets as plain values. Times are in seconds since 1970, None if
never."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pollwise.fleet.engine.restore import saved
from pollwise.fleet.engine.running_target import FLIGHT, WAITING, RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.stores.base import TARGET_STATES, SavedTarget
from pollwise.fleet.targets import Target

#: A target is stale if its last success is older than this many intervals plus its timeout.
STALE_INTERVALS = 2.0
#: Type and timeout of a target that only the store knows.
UNKNOWN = "?"
TIMEOUT = 30.0
#: Maximum number of names in `dead_targets`.
NAMES_MAX = 100


@dataclass(frozen=True, slots=True)
class TargetState:
    """The state of one target.

    state: closed, confirming, backing off, open, half-open or dead.
    next_at: time of the next poll; None while it is paused or polled by another node.
    staleness: age of its last success; None if it never succeeded.
    """

    name: str
    type: str
    group: str | None
    state: str
    paused: bool
    polling: bool
    waiting: bool
    held: bool
    next_at: float | None
    interval: float
    failures: int
    error: str | None
    permanent: bool
    polled_at: float | None
    succeeded_at: float | None
    failed_at: float | None
    changed_at: float | None
    staleness: float | None
    stale: bool
    changes_per_second: float | None
    summary: str | None
    facts: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class FleetState:
    """The state of a fleet.

    targets: number of targets. target_list: the state of each, sorted by name.
    queue_depth: targets whose next poll is planned, due or not. due: those that are due and wait
        for a slot or for their host.
    states: number of targets in each state. stale: number of targets that are older than they
        should be. never: number that never succeeded.
    problems: what is wrong with the fleet itself, for people.
    """

    name: str
    running: bool
    targets: int
    queue_depth: int
    due: int
    in_flight: int
    stuck: int
    paused: int
    dead: int
    stale: int
    states: dict[str, int]
    dead_targets: list[str]
    stalest: str | None
    staleness: float | None
    never: int
    polls: int
    budget: float | None
    budget_asked: float | None
    unsaved: int
    problems: list[str]
    target_list: list[TargetState] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def saved_state(
    target: Target | None, kept: SavedTarget, now: float, *, held: bool = True
) -> TargetState:
    """The state of one target; all times are in seconds since 1970."""
    reading = kept.more.get("reading") or {}
    changes = kept.more.get("changes")
    age = None if kept.succeeded_at is None else max(now - kept.succeeded_at, 0.0)
    interval = kept.interval or 0.0
    timeout = TIMEOUT if target is None else target.timeout
    state = kept.state
    due = kept.due if kept.due is not None and math.isfinite(kept.due) else None
    if state == "open" and due is not None and due <= now:
        state = "half-open"
    quiet = target is not None and target.quiet is not None
    stale = kept.failures > 0 if age is None else age > STALE_INTERVALS * interval + timeout
    if kept.paused or (quiet and not kept.failures):
        stale = False
    return TargetState(
        name=kept.name,
        type=UNKNOWN if target is None else target.type,
        group=None if target is None else target.group,
        state=state,
        paused=kept.paused,
        polling=False,
        waiting=False,
        held=held,
        next_at=None if kept.paused else due,
        interval=interval,
        failures=kept.failures,
        error=kept.error,
        permanent=bool(kept.more.get("permanent")),
        polled_at=kept.polled_at,
        succeeded_at=kept.succeeded_at,
        failed_at=kept.failed_at,
        changed_at=kept.changed_at,
        staleness=age,
        stale=stale,
        changes_per_second=changes[0] if changes else None,
        summary=reading.get("summary"),
        facts=reading.get("facts") or {},
    )


def target_state(entry: RunningTarget, scheduler: Scheduler, now: float) -> TargetState:
    """The state of one target now."""
    held, offset = entry.until > now, scheduler.offset
    kept = saved_state(entry.target, saved(entry, scheduler), now + offset, held=held)
    return replace(
        kept,
        state=scheduler.state(entry, now),
        polling=entry.place == FLIGHT,
        waiting=entry.place == WAITING,
        next_at=entry.due + offset if held and not entry.paused else None,
    )


def staleness(entry: RunningTarget, now: float) -> float | None:
    """Age of the last success; None if there was none."""
    return None if entry.succeeded_at is None else max(now - entry.succeeded_at, 0.0)


def is_stale(entry: RunningTarget, now: float) -> bool:
    """True if it is older than its interval allows; a target that was never polled is not."""
    if entry.paused or (entry.target.quiet is not None and not entry.failures):
        return False
    age = staleness(entry, now)
    if age is None:
        return entry.failures > 0
    return age > STALE_INTERVALS * entry.interval + entry.target.timeout


def fleet_state(
    scheduler: Scheduler,
    now: float,
    *,
    name: str,
    running: bool,
    stuck: int,
    polls: int,
    unsaved: int,
    save_error: str | None,
) -> FleetState:
    """The state of the whole fleet now, without `target_list`; walks over all targets."""
    states: Counter[str] = Counter()
    dead: list[str] = []
    paused = stale = never = 0
    oldest: RunningTarget | None = None
    for entry in scheduler.entries.values():
        states[scheduler.state(entry, now)] += 1
        paused += entry.paused
        stale += is_stale(entry, now)
        never += entry.succeeded_at is None
        if entry.dead and len(dead) < NAMES_MAX:
            dead.append(entry.target.name)
        if entry.succeeded_at is not None and not entry.paused:
            if oldest is None or entry.succeeded_at < (oldest.succeeded_at or 0.0):
                oldest = entry
    budget = scheduler.budget
    problems = []
    if save_error is not None:
        problems.append(f"state is not saved: {save_error}")
    if stuck:
        problems.append(f"{stuck} poll(s) still run after their cancellation at the deadline")
    if budget is not None and budget.asked > budget.polls:
        problems.append(
            f"fixed intervals, rechecks and max_intervals need {budget.asked:.3g} polls a second, "
            f"but the budget is {budget.polls:.3g}: raise it, or the max_intervals"
        )
    return FleetState(
        name=name,
        running=running,
        targets=len(scheduler.entries),
        queue_depth=scheduler.depth,
        due=scheduler.count_due(now, max(len(scheduler.entries), 1)),
        in_flight=scheduler.flying,
        stuck=stuck,
        paused=paused,
        dead=states["dead"],
        stale=stale,
        states={each: states[each] for each in TARGET_STATES},
        dead_targets=dead,
        stalest=None if oldest is None else oldest.target.name,
        staleness=None if oldest is None else staleness(oldest, now),
        never=never,
        polls=polls,
        budget=None if budget is None else budget.polls,
        budget_asked=None if budget is None else budget.asked,
        unsaved=unsaved,
        problems=problems,
    )
