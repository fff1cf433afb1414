"""Reports: how a fleet fares by what its store says, for whoever does not run it; and its goals.

A fleet saves at most once a second, so what the store says is that old. A target whose time has
come a moment ago is being polled, as far as one can tell from outside.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pollwise.durations import short
from pollwise.fleet.stores.base import TARGET_STATES, SavedTarget
from pollwise.fleet.targets import Target
from pollwise.fleet.views import NAMES_MAX, STALE_INTERVALS, TargetState

#: A target is overdue so many seconds after its time: until then its poll, or the saving of it, is
#: under way.
OVERDUE = 5.0
#: The type, and the timeout, of a target that only the store knows.
UNKNOWN = "?"
TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Goals:
    """What a fleet should keep to.

    max_due: so many polls are due and not begun at the most. (How many are planned, the queue
        depth, is no goal: a fleet that is well has as many as it has targets.)
    max_staleness: no target's last success is older; None allows each twice its interval and its
        timeout.
    max_dead: so many targets are dead letters at the most; paused ones do not count.
    """

    max_due: int = 50
    max_staleness: float | None = None
    max_dead: int = 0


def states(
    targets: Iterable[Target], saved: Iterable[SavedTarget], now: float
) -> list[TargetState]:
    """How each target fares, by what was saved; those never saved were never polled."""
    kept = {each.name: each for each in saved}
    known = {target.name: target for target in targets}
    names = known or kept  # without a file of targets, what the store has
    return [state(known.get(name), kept.get(name, SavedTarget(name)), now) for name in names]


def state(
    target: Target | None, kept: SavedTarget, now: float, *, held: bool = True
) -> TargetState:
    """How one target fares; `now` is in seconds since 1970, as all times."""
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


def summary(every: Sequence[TargetState], now: float) -> dict[str, Any]:
    """How they fare together."""
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
    """Whether its poll should have been seen by now; of one never planned, nobody knows."""
    return each.next_at is not None and each.next_at < now - OVERDUE


def stalest_first(every: Iterable[TargetState]) -> list[TargetState]:
    """What deserves a look first: the oldest success, never before all, paused ones last."""

    def order(each: TargetState) -> tuple[bool, float, str]:
        never = float("inf") if each.staleness is None else each.staleness
        return each.paused, -never, each.name

    return sorted(every, key=order)


def unpolled(every: Iterable[TargetState], now: float, start: str) -> str:
    """That nobody polls: how old the figures are, and the command that mends it."""
    latest = last_poll(every)
    if latest is None:
        told = "no target was ever polled"
    else:
        told = f"the figures are of {about(now - latest)} ago"
    return f"no node polls this fleet; {told}; start: {start}"


def about(age: float) -> str:
    """An age for a glance, in its largest unit: nobody needs the seconds of a day."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if age >= 2 * length:
            return f"{int(age // length)}{unit}"
    return f"{max(int(age), 0)}s"


def last_poll(every: Iterable[TargetState]) -> float | None:
    """When the last poll of all was; None when there was none."""
    return max((each.polled_at for each in every if each.polled_at is not None), default=None)


def shortfalls(
    every: Sequence[TargetState], goals: Goals, now: float, notice: str | None = None
) -> list[str]:
    """Where a fleet misses its goals, each as a sentence; none when it keeps to them.

    Dead letters have a goal of their own, so how stale they are does not count. Paused targets
    count nowhere. A fleet of which no target was ever polled keeps to nothing, nor does one that
    nobody polls: `notice` says so, where it is known.
    """
    found = [] if notice is None else [notice]
    late = sum(overdue(each, now) for each in every)
    if late > goals.max_due:
        are = "poll is due and was" if late == 1 else "polls are due and were"
        found.append(
            f"{late} {are} not made for more than {short(OVERDUE)}; the goal (fleet.max_due) is "
            f"{goals.max_due} at the most"
        )
    asked = [each for each in every if not each.paused]
    dead = sorted(each.name for each in asked if each.state == "dead")
    if len(dead) > goals.max_dead:
        are = "target is dead" if len(dead) == 1 else "targets are dead"
        listed = ", ".join(map(repr, dead[:3])) + (", …" if len(dead) > 3 else "")
        found.append(
            f"{len(dead)} {are} ({listed}); the goal (fleet.max_dead) is {goals.max_dead} at the "
            "most, and `pollwise fleet dead` tells why"
        )
    live = [each for each in asked if each.state != "dead"]
    stale = [each for each in live if _is_stale(each, goals)]
    if stale:
        first = stalest_first(stale)[0]
        age = (
            "which never had a success"
            if first.staleness is None
            else f"whose last success was {short(round(first.staleness))} ago"
        )
        limit = (
            "twice their interval and their timeout"
            if goals.max_staleness is None
            else short(goals.max_staleness)
        )
        found.append(
            f"{len(stale)} of {len(every)} targets are staler than {limit} (fleet.max_staleness); "
            f"the stalest is {first.name!r}, {age}"
        )
    if notice is None and every and last_poll(every) is None:
        found.append("no target was polled yet; if `pollwise fleet run` has just started, wait")
    return found


def _is_stale(each: TargetState, goals: Goals) -> bool:
    if goals.max_staleness is None:
        return each.stale
    if each.staleness is None:
        return each.failures > 0
    return each.staleness > goals.max_staleness


def told(each: TargetState) -> Mapping[str, Any]:
    """One target for the API and for scripts: what happened last, and when; null when never."""
    return {
        **each.as_dict(),
        "last_success_at": each.succeeded_at,
        "last_error": each.error,
        "last_error_at": each.failed_at,
    }
