"""What a poll saw, for the parts of a fleet that follow its targets: history and alerts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pollwise.fleet.engine.running_target import RunningTarget
from pollwise.fleet.targets import Reading


@dataclass(frozen=True, slots=True)
class Observation:
    """A finished poll. Times are of the event loop's clock.

    at: when it ended. took: its seconds.
    before: the reading before this poll; `entry.reading` is the one after it.
    error: why it failed; None after a success.
    """

    at: float
    took: float
    changed: bool = False
    before: Reading | None = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


class PollObserver(Protocol):
    """Follows the targets of a run. Called once for each finished poll, after the target's state
    was updated and before it is saved."""

    def observed(self, entry: RunningTarget, seen: Observation) -> None: ...
