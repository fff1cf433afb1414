"""Events of a fleet and its targets."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from pollwise.runtime.events.base import Event


@dataclass(frozen=True, slots=True)
class FleetStarted(Event):
    """A fleet starts to poll its targets. `source` names the fleet in all these events."""

    level: ClassVar[int] = logging.INFO

    targets: int
    concurrency: int
    strategy: str
    budget: float | None


@dataclass(frozen=True, slots=True)
class FleetStopped(Event):
    """A fleet stopped polling; `cancelled` polls were running and are repeated later."""

    level: ClassVar[int] = logging.INFO

    cancelled: int


@dataclass(frozen=True, slots=True)
class BudgetShort(Event):
    """Fixed intervals, rechecks and max_intervals need more polls a second than the budget."""

    level: ClassVar[int] = logging.WARNING

    asked: float
    budget: float


@dataclass(frozen=True, slots=True)
class FleetOrdered(Event):
    """People asked something of targets, and it was done: retry, reset, pause, resume, poll-now.

    targets: their names, the first of them where it was asked of many. count: of how many.
    by: who asked: `cli`, `api` or `view`, and what is known of the person.
    """

    level: ClassVar[int] = logging.INFO

    order: str
    targets: tuple[str, ...]
    count: int
    by: str


@dataclass(frozen=True, slots=True)
class FleetSettingsChanged(Event):
    """Settings of polling were changed while the fleet ran; `by` is as of `FleetOrdered`.

    changes: each as key=value; a key that goes back to what else is set has no value.
    """

    level: ClassVar[int] = logging.INFO

    changes: tuple[str, ...]
    by: str


@dataclass(frozen=True, slots=True)
class TargetEvent(Event):
    """Something that happened to one target. `type` is that of its probe."""

    target: str
    type: str


@dataclass(frozen=True, slots=True)
class TargetAdded(TargetEvent):
    """A target was added to a fleet."""


@dataclass(frozen=True, slots=True)
class TargetRemoved(TargetEvent):
    """A target was removed from a fleet."""


@dataclass(frozen=True, slots=True)
class TargetPolling(TargetEvent):
    """A poll of a target begins, `late` seconds after it was due."""

    late: float


@dataclass(frozen=True, slots=True)
class TargetPolled(TargetEvent):
    """A poll of a target ended: `changed`, `unchanged`, `failed`, or `dropped` without a result.

    delay: seconds until the next poll. depth: how many polls are planned. due: how many of those
    waited for a slot when they were last counted.
    """

    result: str
    took: float
    delay: float
    depth: int
    due: int = 0


@dataclass(frozen=True, slots=True)
class TargetChanged(TargetEvent):
    """A reading differs from the one before."""

    level: ClassVar[int] = logging.INFO

    summary: str


@dataclass(frozen=True, slots=True)
class TargetFailed(TargetEvent):
    """A poll failed, the last of `failures` in a row; the next follows after `delay`."""

    level: ClassVar[int] = logging.WARNING

    error: str
    failures: int
    delay: float


@dataclass(frozen=True, slots=True)
class TargetRecovered(TargetEvent):
    """A poll succeeded after `failures` failures in a row."""

    level: ClassVar[int] = logging.INFO

    failures: int


@dataclass(frozen=True, slots=True)
class TargetStateChanged(TargetEvent):
    """A target fares otherwise now: closed, confirming, backing off, open or dead."""

    state: str


@dataclass(frozen=True, slots=True)
class TargetDead(TargetEvent):
    """A target became a dead letter; it is still polled, after `delay`."""

    level: ClassVar[int] = logging.ERROR

    error: str
    permanent: bool
    delay: float


@dataclass(frozen=True, slots=True)
class TargetStuck(TargetEvent):
    """A poll was cancelled at its deadline but still runs; its slot was given to others."""

    level: ClassVar[int] = logging.ERROR

    took: float


@dataclass(frozen=True, slots=True)
class ActionFailed(TargetEvent):
    """An action on a change raised, or took too long; the target itself is fine."""

    level: ClassVar[int] = logging.WARNING

    action: str
    error: str
