"""What happens to polls, and to what serves them: hints, breakers, chores."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from pollwise.runtime.events.base import Event


@dataclass(frozen=True, slots=True)
class PollFinished(Event):
    """A poll came back. An empty one is counted by metrics and neither logged nor traced."""

    found: int
    capacity: int | None
    took: float
    interval: float
    delay: float
    hold: float
    hinted: bool


@dataclass(frozen=True, slots=True)
class PollFailed(Event):
    """A poll raised. The next comes after `delay`, by the loop's retry, not by its pacer."""

    level: ClassVar[int] = logging.WARNING

    error: str
    failures: int
    delay: float


@dataclass(frozen=True, slots=True)
class PollRecovered(Event):
    """A poll came back after `failures` that had not."""

    level: ClassVar[int] = logging.INFO

    failures: int


@dataclass(frozen=True, slots=True)
class PaceChanged(Event):
    """A pacer turned: back-off, speed-up, reset, class or decay."""

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
    """A recurring chore (lease renewal, retention) raised; it comes again at its next turn."""

    level: ClassVar[int] = logging.WARNING

    chore: str
    error: str


@dataclass(frozen=True, slots=True)
class HintsProven(Event):
    """A message sent the way hints travel came back after `took`: the long interval may be used."""

    level: ClassVar[int] = logging.INFO

    took: float


@dataclass(frozen=True, slots=True)
class HintsLost(Event):
    """Hints do not arrive any more; polls go by their strategy's own max_interval until they do."""

    level: ClassVar[int] = logging.WARNING

    reason: str
    advice: str
