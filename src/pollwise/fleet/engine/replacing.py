"""A new definition for a target that is polled: what stays, and what begins again."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pollwise.core.grid import spread
from pollwise.fleet.engine.running_target import GONE, RunningTarget
from pollwise.fleet.engine.scheduler import FIRST_WITHIN, Scheduler
from pollwise.fleet.targets import Target

#: Not part of a definition: a target that moves from the API to the file is the same target.
_ASIDE = frozenset(("origin", "written"))
_DEFINED = tuple(each.name for each in fields(Target) if each.name not in _ASIDE)
#: What decides what is polled. If one of these changes, the last reading is of something else.
_POLLED = ("probe", "options")


@dataclass(frozen=True, slots=True)
class ReplacedTargets:
    """What a new set of targets changed, as names. Targets that stay as they are, are not named."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


def same(one: Target, other: Target) -> bool:
    """True if two targets have the same definition."""
    return one is other or all(getattr(one, key) == getattr(other, key) for key in _DEFINED)


def replace(
    scheduler: Scheduler, old: RunningTarget, defined: RunningTarget, now: float
) -> RunningTarget:
    """Poll a target as newly `defined`, keeping its state and what was learned.

    If the same thing is polled, at its planned time; else soon, spread over a minute so that many
    changed targets are not polled at once. The result of a poll in progress is dropped.
    """
    target, strategy = defined.target, defined.strategy
    new = RunningTarget(target, defined.probe, defined.host, old.strategy)
    for name in RunningTarget.__slots__:
        setattr(new, name, getattr(old, name))
    new.target, new.probe, new.host, new.within = (
        target, defined.probe, defined.host, defined.within,
    )  # fmt: skip
    new.place, new.share = GONE, None
    new.due = scheduler.deferred.get(old, old.due)  # quiet hours are applied again
    if any(getattr(old.target, key) != getattr(target, key) for key in _POLLED):
        new.reading = None  # the next one is a first reading, not a change
        within = min(FIRST_WITHIN, strategy.max_interval)
        new.due = min(new.due, now + spread(target.name) * within)
    if new.due > now + new.within:
        new.due = now + spread(target.name) * new.within
    scheduler.remove(target.name)
    scheduler.add([new], now)
    if strategy != new.strategy:
        scheduler.repace(new, strategy, now)
    return new
