"""Events of what a queue keeps beside its jobs: schedules and limits."""

from __future__ import annotations

import logging
from typing import ClassVar, Literal

from pollwise.runtime.events.base import Event, event


@event
class TickEvent(Event):
    """Something that happened at a tick of a schedule, which was due at `tick` (since 1970)."""

    worker: str
    schedule: str
    kind: str
    tick: float


@event
class TickPut(TickEvent):
    """A worker put the job of a tick, `late` seconds after the tick was due."""

    job: str
    late: float


@event
class TickSkipped(TickEvent):
    """A tick put no job, because the job of an earlier tick has not ended."""

    level: ClassVar[int] = logging.INFO


@event
class TicksMissed(TickEvent):
    """No worker put the jobs of some ticks in time, from `first` to `tick`, and none will."""

    level: ClassVar[int] = logging.WARNING

    first: float


@event
class ScheduleChanged(Event):
    """A worker set a schedule that is in its code, or removed one that is in no code any more."""

    level: ClassVar[int] = logging.INFO

    worker: str
    schedule: str
    kind: str
    change: Literal["set", "removed"]


@event
class LimitsChanged(Event):
    """A worker set the limits of a kind that are in its code, or removed limits that are in no code
    any more. `limits` describes them in words."""

    level: ClassVar[int] = logging.INFO

    worker: str
    kind: str
    change: Literal["set", "removed"]
    limits: str
