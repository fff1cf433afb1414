"""What a fleet shows of itself, as plain values: times in seconds since 1970, null when never."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from pollwise.fleet.engine.running_target import FLIGHT, WAITING, RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.stores.base import TARGET_STATES

#: A target is stale when its last success is older than so many of its planned intervals, and its
#: timeout.
STALE_INTERVALS = 2.0
#: The most names that a health report lists.
NAMES_MAX = 100


@dataclass(frozen=True, slots=True)
class TargetState:
    """How one target fares.

    state: closed, confirming, backing off, open, half-open or dead.
    next_at: when it is polled next; null while it is paused or polled elsewhere.
    staleness: the age of its last success; null when it never had one.
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
    """How a fleet fares. A broken target shows here and makes nothing else red.

    queue_depth: targets whose next poll is planned, due or not. due: those of them whose time has
        come, and that wait for a place or for their host.
    states: how many targets fare how. stale: how many are older than they should be.
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


def target_state(entry: RunningTarget, scheduler: Scheduler, now: float) -> TargetState:
    """How one target fares now."""
    offset = scheduler.offset

    def epoch(at: float | None) -> float | None:
        return None if at is None else at + offset

    held = entry.until > now
    parked = entry.paused or not held
    reading, learner = entry.reading, entry.learner
    age = staleness(entry, now)
    return TargetState(
        name=entry.target.name,
        type=entry.target.type,
        group=entry.target.group,
        state=scheduler.state(entry, now),
        paused=entry.paused,
        polling=entry.place == FLIGHT,
        waiting=entry.place == WAITING,
        held=held,
        next_at=None if parked else epoch(entry.due),
        interval=entry.interval,
        failures=entry.failures,
        error=entry.error,
        permanent=entry.permanent,
        polled_at=epoch(entry.polled_at),
        succeeded_at=epoch(entry.succeeded_at),
        failed_at=epoch(entry.failed_at),
        changed_at=epoch(entry.changed_at),
        staleness=age,
        stale=is_stale(entry, now),
        changes_per_second=None if learner is None else learner.changes.rate,
        summary=None if reading is None else reading.summary,
        facts={} if reading is None else dict(reading.facts),
    )


def staleness(entry: RunningTarget, now: float) -> float | None:
    """The age of the last success; None when there was none."""
    return None if entry.succeeded_at is None else max(now - entry.succeeded_at, 0.0)


def is_stale(entry: RunningTarget, now: float) -> bool:
    """Whether it is older than its own plan allows; one that never was polled is not."""
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
    """How the whole fleet fares now; walks over all its targets."""
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
        problems.append(f"{stuck} poll(s) go on though they were cancelled at their deadline")
    if budget is not None and budget.asked > budget.polls:
        problems.append(
            f"fixed intervals, rechecks and max_intervals ask for {budget.asked:.3g} polls a "
            f"second, "
            f"the budget is {budget.polls:.3g}: raise it, or the max_intervals"
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
