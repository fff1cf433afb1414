"""Events of polls, hints, breakers and chores."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from pollwise.runtime.events.base import Event


@dataclass(frozen=True, slots=True)
class PollFinished(Event):
    """A poll returned. Empty polls are counted by metrics, but neither logged nor traced."""

    found: int
    capacity: int | None
    took: float
    interval: float
    delay: float
    hold: float
    hinted: bool
    average: float | None = None


@dataclass(frozen=True, slots=True)
class PollFailed(Event):
    """A poll raised. The next follows after `delay`, set by the retry and not by the pacer."""

    level: ClassVar[int] = logging.WARNING

    error: str
    failures: int
    delay: float


@dataclass(frozen=True, slots=True)
class PollRecovered(Event):
    """A poll succeeded after `failures` failures in a row."""

    level: ClassVar[int] = logging.INFO

    failures: int


@dataclass(frozen=True, slots=True)
class PaceChanged(Event):
    """A pacer changed course: back-off, speed-up, reset, class or decay."""

    what: str
    before: float | str
    after: float | str


@dataclass(frozen=True, slots=True)
class BreakerChanged(Event):
    """The breaker of a kind, or of an outbox's handler, opened, went half-open or closed."""

    level: ClassVar[int] = logging.WARNING

    kind: str
    state: str


@dataclass(frozen=True, slots=True)
class ChoreFailed(Event):
    """A recurring chore (lease renewal, retention) raised; it runs again at its next turn."""

    level: ClassVar[int] = logging.WARNING

    chore: str
    error: str


@dataclass(frozen=True, slots=True)
class HintsProven(Event):
    """A check of the hint channel came back after `took`: pauses may use the long interval."""

    level: ClassVar[int] = logging.INFO

    took: float


@dataclass(frozen=True, slots=True)
class HintsLost(Event):
    """Hints no longer arrive; until they do, pauses use the strategy's own intervals."""

    level: ClassVar[int] = logging.WARNING

    reason: str
    advice: str
