"""How much of a limit is used, and who waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from pollwise.queues.limits.record import KindLimits

#: Waiting jobs are counted up to this number, for the kind and for each group.
WAITING_MAX = 1000


@dataclass(frozen=True, slots=True)
class GroupUse:
    """One limit group of a kind; the group of jobs that have none is "".

    running: its jobs that are leased. waiting: its jobs that are ready; at most WAITING_MAX.
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
    """

    limits: KindLimits
    running: int
    waiting: int
    next_at: float | None = None
    groups: tuple[GroupUse, ...] = ()
