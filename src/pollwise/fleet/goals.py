"""The goals of a fleet, and what `pollwise fleet check` reports where it misses them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pollwise.durations import short
from pollwise.fleet.stores.paging import OVERDUE, was_set_back
from pollwise.fleet.views import TargetState, age_without_quiet, counted_targets, stalest_first


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
    count, and quiet hours make no target older. A fleet that no node polls (`notice` says so), or
    whose targets were never polled, misses its goals.
    """
    found = [] if notice is None else [notice]
    overdue = [each for each in every if each.plan == "overdue"]
    back = [each for each in overdue if was_set_back(each.succeeded_at, now)]
    if back:
        was, their = ("target was", "its") if len(back) == 1 else ("targets were", "their")
        found.append(
            f"{len(back)} {was} not polled since the clock was set back: {their} last success is "
            f"in the future, such as that of {back[0].name!r}"
        )
    late = len(overdue) - len(back)
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
    stale = [each for each in live if _misses(each, goals, now)]
    if stale:
        first = stalest_first(stale)[0]
        age = (
            "which never succeeded"
            if first.staleness is None
            else f"whose last success was {short(round(first.staleness))} ago"
        )
        are, their = ("is", "its") if len(stale) == 1 else ("are", "their")
        limit = (
            f"twice {their} interval plus {their} timeout"
            if goals.max_staleness is None
            else short(goals.max_staleness)
        )
        found.append(
            f"{len(stale)} of {counted_targets(len(every))} {are} older than {limit} "
            f"(fleet.max_staleness); the stalest is {first.name!r}, {age}"
        )
    expected = [each for each in asked if each.plan != "quiet"]
    if notice is None and expected and last_poll(every) is None:
        found.append("no target was polled yet; wait if `pollwise fleet run` has just started")
    return found


def _misses(each: TargetState, goals: Goals, now: float) -> bool:
    if goals.max_staleness is None:
        return each.stale
    age = age_without_quiet(each.staleness, each.deferred_since, now)
    return each.failures > 0 if age is None else age > goals.max_staleness
