"""Decides what happens at a tick, from its schedule and the time, so that all workers agree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pollwise.queues.schedules.record import Schedule

#: How many missed ticks `catch_up="all"` puts at most: the last ones.
CATCH_UP_MAX = 100
#: For how many seconds a tick may be late before it counts as missed. Idle workers poll once a
#: minute where hints arrive.
MISSED_AFTER = 90.0

Outcome = Literal["put", "skipped", "missed", "removed", "lost", "early"]


@dataclass(frozen=True, slots=True)
class TickPlan:
    """The plan for the ticks of a schedule that are due.

    schedule: as it is afterwards, with its next tick. tick: that of the job; None puts no job.
    skipped: the job of the tick before has not ended, so none is put.
    missed: the first and the last tick that get no job because they are too late; None if there are
        none.
    """

    schedule: Schedule
    tick: float | None
    skipped: bool = False
    missed: tuple[float, float] | None = None


def plan_tick(schedule: Schedule, now: float, *, busy: bool) -> TickPlan | None:
    """The plan for the ticks that are due; None if none is.

    busy: the job of its last tick has not ended.
    """
    first = schedule.next_at
    if schedule.paused or first is None or first > now:
        return None
    ticks = schedule.when.due(first, now, CATCH_UP_MAX if schedule.catch_up == "all" else 1)
    tick: float | None = ticks[0]
    done = ticks[0]
    missed = None if done == first else (first, _before(schedule, first, done))
    if schedule.catch_up == "none" and now - done > MISSED_AFTER:
        tick, missed = None, (first, done)
    skipped = busy and tick is not None and schedule.overlap == "skip"
    if skipped:
        tick = None
    after = replace(
        schedule,
        next_at=schedule.when.after(done),
        last_tick=done,
        last_put=schedule.last_put if tick is None else now,
    )
    return TickPlan(after, tick, skipped, missed)


def _before(schedule: Schedule, first: float, tick: float) -> float:
    """The last tick before this one, which is not the first."""
    return schedule.when.due(first, tick - 1e-3)[-1]
