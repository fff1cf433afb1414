"""The state of a fleet as its store has it, for other processes; and the goals of a fleet.

A fleet saves at most once a second, so the store is that far behind. A target that became due a
moment ago is probably being polled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pollwise.durations import short
from pollwise.fleet.stores.base import TARGET_STATES, SavedTarget
from pollwise.fleet.targets import Target
from pollwise.fleet.views import NAMES_MAX, TargetState, saved_state

#: A target is overdue this many seconds after its due time: until then it is being polled or saved.
OVERDUE = 5.0


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
    stale = [each for each in live if _is_stale(each, goals)]
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


def _is_stale(each: TargetState, goals: Goals) -> bool:
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
