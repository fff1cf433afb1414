"""What a poll saw, for the parts of a fleet that follow its targets: history and alerts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pollwise.fleet.engine.running_target import RunningTarget
from pollwise.fleet.targets import Reading, Target
from pollwise.runtime.events import TargetEvent


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


def event_of(
    kind: Callable[..., TargetEvent], fleet: str, target: Target, *facts: Any
) -> TargetEvent:
    """An event of a target of this fleet."""
    return kind(fleet, target.name, target.type, *facts, group=target.group or "")
