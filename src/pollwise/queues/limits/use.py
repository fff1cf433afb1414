"""How much of a limit is used, and who waits for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pollwise.queues.limits.record import KindLimits

#: Waiting jobs are counted up to this number, for the kind and for each group.
WAITING_MAX = 1000


@dataclass(frozen=True, slots=True)
class GroupUse:
    """One limit group of a kind; the group of jobs that have none is "".

    running: the number of its leased jobs.
    waiting: the number of its ready jobs; at most WAITING_MAX.
    next_at: when its rate lets the next one start, in seconds since 1970; None: now.
    """

    group: str
    running: int
    waiting: int
    next_at: float | None = None


@dataclass(frozen=True, slots=True)
class LimitUse:
    """The limits of one kind, and how they are used.

    running, waiting, next_at: as in `GroupUse`, for the kind.
    groups: those with jobs that run or wait, the fullest first; some of them if there are many.
        Empty if groups do not take turns.
    """

    limits: KindLimits
    running: int
    waiting: int
    next_at: float | None = None
    groups: tuple[GroupUse, ...] = ()

    def full(self, group: GroupUse | None = None) -> bool:
        """True if no other job of the kind, or of this group, may start until one ends."""
        most, most_each = self.limits.most, self.limits.most_each
        if most is not None and self.running >= most:
            return True
        return group is not None and most_each is not None and group.running >= most_each


def fullest(groups: Iterable[GroupUse], most: int) -> tuple[GroupUse, ...]:
    """The groups with the most jobs that run or wait, at most this many."""
    found = [each for each in groups if each.running or each.waiting]
    found.sort(key=lambda each: (-each.running - each.waiting, each.group))
    return tuple(found[:most])
