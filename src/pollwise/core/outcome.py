"""The outcome of a poll, and the pause that a pacer answers with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Plain = float | int | str | bool | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one poll.

    at: when it ended, in seconds of the loop's clock. Never decreases from poll to poll.
    found: how many items it found.
    capacity: how many it could have found; None where the source has no limit.
    waits: how long each found item had waited, where the source knows it.
    failed: the poll raised. That is not the same as finding nothing.
    hinted: a hint ended the pause before it.
    """

    at: float
    found: int
    capacity: int | None = None
    waits: tuple[float, ...] = ()
    failed: bool = False
    hinted: bool = False

    @property
    def full(self) -> bool:
        """True if it found as much as it could, so there may be more."""
        return self.capacity is not None and self.found >= self.capacity > 0


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a pacer's course that is worth an event.

    what: "back-off" (the interval grew), "speed-up" (it shrank a step), "reset" (it fell back
    to where it starts), "class" (another volume class) or "decay" (an average faded with time).
    """

    what: Literal["back-off", "speed-up", "reset", "class", "decay"]
    before: float | str
    after: float | str


@dataclass(frozen=True, slots=True)
class Pause:
    """The answer of a pacer: how long to sleep, and how long the next poll may block.

    delay: seconds of sleep before the next poll, within the strategy's min_interval and
    max_interval. hold: seconds the next poll may block at the server (long polling); 0 asks for a
    short poll. changes: how the pacer's course changed; an explanation, not part of the pause.
    average: the moving average behind it, of a strategy that has one; for metrics.
    forecast: the items a second that a strategy expects, if it has a forecast; for metrics.
    exact: the source has chosen this delay for this poller, so the loop draws no jitter.
    """

    delay: float
    hold: float = 0.0
    changes: tuple[Change, ...] = field(default=(), compare=False)
    average: float | None = field(default=None, compare=False)
    forecast: float | None = field(default=None, compare=False)
    exact: bool = field(default=False, compare=False)
