"""When an agent polls: as the controller suggests, else less and less often while it is idle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pollwise.core.outcome import Outcome, Pause, Plain
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Pacer, Strategy

#: What a busy agent lets pass of the time after which it would count as gone, as a share.
BUSY_SHARE = 0.25
IDLE_SHARE = 0.75


@dataclass
class Suggestion:
    """What the controller said last, and what follows from its registration.

    next_poll: after how many seconds to poll again; None where it did not say.
    least: the least interval of an idle worker.
    most: the longest that it may be silent.
    """

    next_poll: float | None = None
    least: float = 0.0
    most: float = float("inf")


@dataclass(frozen=True)
class Suggested(Strategy):
    """At the moment that the controller suggests; as `Adaptive` where it does not.

    told: where what it says is noted, of the one agent that goes by this.
    """

    otherwise: Adaptive
    told: Suggestion = field(compare=False)

    name: ClassVar[str] = "suggested"
    settings: ClassVar[Mapping[str, str]] = {}

    @property
    def min_interval(self) -> float:
        return min(self.told.least, self.otherwise.min_interval)

    @property
    def max_interval(self) -> float:
        return max(self.otherwise.max_interval, self.told.next_poll or 0.0)

    @property
    def longest_hold(self) -> float:
        return 0.0

    def pacer(self) -> SuggestedPacer:
        return SuggestedPacer(self)


class SuggestedPacer(Pacer):
    def __init__(self, strategy: Suggested) -> None:
        self._strategy = strategy
        self._otherwise = strategy.otherwise.pacer()

    def first(self) -> Pause:
        return self._otherwise.first()

    def after(self, outcome: Outcome) -> Pause:
        pause = self._otherwise.after(outcome)
        told = self._strategy.told
        delay = pause.delay if told.next_poll is None else told.next_poll
        delay = max(min(delay, told.most), self._strategy.min_interval)
        return Pause(delay, 0.0, pause.changes if told.next_poll is None else ())

    def state(self) -> dict[str, Plain]:
        return {**self._otherwise.state(), "suggested": self._strategy.told.next_poll}
