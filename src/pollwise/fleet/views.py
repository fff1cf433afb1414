"""The state of a fleet and of its targets as plain values, and the goals of a fleet.

Times are in seconds since 1970, None if never. A fleet saves at most once a second, so for other
processes, which see its store, the state is that far behind. A target that became due a moment ago
is probably being polled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pollwise.durations import short
from pollwise.fleet.engine.restore import saved
from pollwise.fleet.engine.run import FleetRun
from pollwise.fleet.engine.running_target import FLIGHT, WAITING, RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.stores.base import TARGET_STATES, SavedTarget
from pollwise.fleet.stores.paging import OVERDUE
from pollwise.fleet.targets import Target

#: A target is stale if its last success is older than this many intervals plus its timeout.
STALE_INTERVALS = 2.0
#: Type and timeout of a target that only the store knows.
UNKNOWN = "?"
TIMEOUT = 30.0
#: The fields of a state that are shown as they are saved.
_AS_SAVED = (
    "name", "paused", "failures", "error", "polled_at", "succeeded_at", "failed_at", "changed_at",
)  # fmt: skip
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
    state = kept.state
    due = kept.due if kept.due is not None and math.isfinite(kept.due) else None
    if state == "open" and due is not None and due <= now:
        state = "half-open"
    return TargetState(
        **{name: getattr(kept, name) for name in _AS_SAVED},
        type=(kept.type or UNKNOWN) if target is None else target.type,
        group=kept.group if target is None else target.group,
        state=state,
        polling=False,
        waiting=False,
        held=held,
        next_at=None if kept.paused else due,
        interval=interval,
        permanent=bool(kept.more.get("permanent")),
        staleness=age,
        stale=_is_stale(target, kept, age, interval),
        changes_per_second=changes[0] if changes else None,
        summary=reading.get("summary"),
        facts=reading.get("facts") or {},
    )


def _is_stale(
    target: Target | None, seen: SavedTarget | RunningTarget, age: float | None, interval: float
) -> bool:
    """True if it is older than its interval allows; a target that was never polled is not."""
    quiet = target is not None and target.quiet is not None
    if seen.paused or (quiet and not seen.failures):
        return False
    if age is None:
        return seen.failures > 0
    return age > STALE_INTERVALS * interval + (TIMEOUT if target is None else target.timeout)


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


def fleet_state(name: str, scheduler: Scheduler, run: FleetRun | None, now: float) -> FleetState:
    """The state of the whole fleet now, without `target_list`; walks over all targets."""
    states: Counter[str] = Counter()
    dead: list[str] = []
    paused = stale = never = 0
    oldest: RunningTarget | None = None
    for entry in scheduler.entries.values():
        states[scheduler.state(entry, now)] += 1
        paused += entry.paused
        age = None if entry.succeeded_at is None else max(now - entry.succeeded_at, 0.0)
        stale += _is_stale(entry.target, entry, age, entry.interval)
        never += entry.succeeded_at is None
        if entry.dead and len(dead) < NAMES_MAX:
            dead.append(entry.target.name)
        if entry.succeeded_at is not None and not entry.paused:
            if oldest is None or entry.succeeded_at < (oldest.succeeded_at or 0.0):
                oldest = entry
    budget = scheduler.budget
    problems = []
    if run is not None and run.saving.error is not None:
        problems.append(f"state is not saved: {run.saving.error}")
    if run is not None and run.stuck:
        stuck = len(run.stuck)
        problems.append(f"{stuck} poll(s) still run after their cancellation at the deadline")
    if budget is not None and budget.asked > budget.polls:
        problems.append(
            f"fixed intervals, rechecks and max_intervals need {budget.asked:.3g} polls a second, "
            f"but the budget is {budget.polls:.3g}: raise it, or the max_intervals"
        )
    return FleetState(
        name=name,
        running=run is not None,
        targets=len(scheduler.entries),
        queue_depth=scheduler.depth,
        due=scheduler.count_due(now, max(len(scheduler.entries), 1)),
        in_flight=scheduler.flying,
        stuck=0 if run is None else len(run.stuck),
        paused=paused,
        dead=states["dead"],
        stale=stale,
        states={each: states[each] for each in TARGET_STATES},
        dead_targets=dead,
        stalest=None if oldest is None else oldest.target.name,
        staleness=None if oldest is None else max(now - (oldest.succeeded_at or 0.0), 0.0),
        never=never,
        polls=0 if run is None else run.polls,
        budget=None if budget is None else budget.polls,
        budget_asked=None if budget is None else budget.asked,
        unsaved=0 if run is None else run.saving.unsaved,
        problems=problems,
    )


# The saved state, as other processes see it, and its goals


@dataclass(frozen=True, slots=True)
class Goals:
    """The goals of a fleet.

    max_due: maximum number of polls that are overdue. (The queue depth is not a goal: a healthy
        fleet has one planned poll for each target.)
    max_staleness: maximum age of a target's last success; None allows each target twice its
        interval plus its timeout.
    max_dead: maximum number of dead targets; paused ones do not count.
    """

    max_due: int = 50
    max_staleness: float | None = None
    max_dead: int = 0


def states(
    targets: Iterable[Target], saved: Iterable[SavedTarget], now: float
) -> list[TargetState]:
    """The saved state of each target; targets without a saved state were never polled."""
    kept = {each.name: each for each in saved}
    known = {target.name: target for target in targets}
    names = known or kept  # without a file of targets, those in the store
    return [saved_state(known.get(name), kept.get(name, SavedTarget(name)), now) for name in names]


def summary(every: Sequence[TargetState], now: float) -> dict[str, Any]:
    """Figures over all targets."""
    states = Counter(each.state for each in every)
    dead = [each.name for each in every if each.state == "dead"]
    ages = [each for each in every if each.staleness is not None and not each.paused]
    oldest = max(ages, key=lambda each: each.staleness or 0.0, default=None)
    return {
        "targets": len(every),
        "queue_depth": sum(each.next_at is not None for each in every),
        "due": sum(overdue(each, now) for each in every),
        "paused": sum(each.paused for each in every),
        "dead": len(dead),
        "dead_targets": dead[:NAMES_MAX],
        "states": {each: states[each] for each in TARGET_STATES},
        "stale": sum(each.stale for each in every),
        "never": sum(each.succeeded_at is None for each in every),
        "stalest": None if oldest is None else oldest.name,
        "staleness": None if oldest is None else oldest.staleness,
    }


def overdue(each: TargetState, now: float) -> bool:
    """True if its poll should have happened by now; False if none is planned."""
    return each.next_at is not None and each.next_at < now - OVERDUE


def stalest_first(every: Iterable[TargetState]) -> list[TargetState]:
    """The targets by the age of their last success: never first, then the oldest; paused last."""

    def order(each: TargetState) -> tuple[bool, float, str]:
        never = float("inf") if each.staleness is None else each.staleness
        return each.paused, -never, each.name

    return sorted(every, key=order)


def unpolled(every: Iterable[TargetState], now: float, start: str) -> str:
    """Warning that no node polls: how old the figures are, and the command to start one."""
    latest = last_poll(every)
    if latest is None:
        age = "no target was ever polled"
    else:
        age = f"the figures are {about(now - latest)} old"
    return f"no node polls this fleet; {age}; start one with: {start}"


def about(age: float) -> str:
    """An age in its largest unit.

    >>> about(7300)
    '2h'
    """
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if age >= 2 * length:
            return f"{int(age // length)}{unit}"
    return f"{max(int(age), 0)}s"


def last_poll(every: Iterable[TargetState]) -> float | None:
    """Time of the last poll of any target; None if there was none."""
    return max((each.polled_at for each in every if each.polled_at is not None), default=None)


def shortfalls(
    every: Sequence[TargetState], goals: Goals, now: float, notice: str | None = None
) -> list[str]:
    """The goals that a fleet misses, each as a sentence; empty if it meets them.

    Dead targets have a goal of their own, so their staleness does not count. Paused targets never
    count. A fleet that no node polls (`notice` says so), or whose targets were never polled, misses
    its goals.
    """
    found = [] if notice is None else [notice]
    late = sum(overdue(each, now) for each in every)
    if late > goals.max_due:
        are = "poll is" if late == 1 else "polls are"
        found.append(
            f"{late} {are} overdue by more than {short(OVERDUE)}; the goal (fleet.max_due) is at "
            f"most {goals.max_due}"
        )
    asked = [each for each in every if not each.paused]
    dead = sorted(each.name for each in asked if each.state == "dead")
    if len(dead) > goals.max_dead:
        are = "target is dead" if len(dead) == 1 else "targets are dead"
        listed = ", ".join(map(repr, dead[:3])) + (", …" if len(dead) > 3 else "")
        found.append(
            f"{len(dead)} {are} ({listed}); the goal (fleet.max_dead) is at most {goals.max_dead}; "
            "`pollwise fleet dead` shows why"
        )
    live = [each for each in asked if each.state != "dead"]
    stale = [each for each in live if _misses(each, goals)]
    if stale:
        first = stalest_first(stale)[0]
        age = (
            "which never succeeded"
            if first.staleness is None
            else f"whose last success was {short(round(first.staleness))} ago"
        )
        limit = (
            "twice their interval plus their timeout"
            if goals.max_staleness is None
            else short(goals.max_staleness)
        )
        found.append(
            f"{len(stale)} of {len(every)} targets are older than {limit} (fleet.max_staleness); "
            f"the stalest is {first.name!r}, {age}"
        )
    if notice is None and every and last_poll(every) is None:
        found.append("no target was polled yet; wait if `pollwise fleet run` has just started")
    return found


def _misses(each: TargetState, goals: Goals) -> bool:
    if goals.max_staleness is None:
        return each.stale
    if each.staleness is None:
        return each.failures > 0
    return each.staleness > goals.max_staleness


def target_json(each: TargetState) -> Mapping[str, Any]:
    """A target for the API and for scripts."""
    return {
        **each.as_dict(),
        "last_success_at": each.succeeded_at,
        "last_error": each.error,
        "last_error_at": each.failed_at,
    }
