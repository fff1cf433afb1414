"""When an agent polls: as the controller suggests, else less and less often while idle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pollwise.core.outcome import Outcome, Pause, Plain
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Pacer, Strategy

#: The longest pause of a busy and of an idle agent, as a fraction of the heartbeat timeout.
BUSY_SHARE = 0.25
IDLE_SHARE = 0.75


@dataclass
class Suggestion:
    """What the controller suggested last, and the limits from the registration.

    next_poll: seconds until the next poll; None if it did not say.
    min_interval: the minimum interval of an idle worker.
    max_interval: the longest time between two requests.
    """

    next_poll: float | None = None
    min_interval: float = 0.0
    max_interval: float = float("inf")


@dataclass(frozen=True)
class Suggested(Strategy):
    """Polls when the controller suggests; as `Adaptive` if it suggests nothing.

    told: the suggestions to one agent.
    """

    otherwise: Adaptive
    told: Suggestion = field(compare=False)

    name: ClassVar[str] = "suggested"
    settings: ClassVar[Mapping[str, str]] = {}

    @property
    def min_interval(self) -> float:
        return min(self.told.min_interval, self.otherwise.min_interval)

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
        delay = max(min(delay, told.max_interval), self._strategy.min_interval)
        return Pause(delay, 0.0, pause.changes if told.next_poll is None else ())

    def state(self) -> dict[str, Plain]:
        return {**self._otherwise.state(), "suggested": self._strategy.told.next_poll}
