"""When an agent polls: as the controller suggests, else less and less often while idle."""

from __future__ import annotations

from typing import ClassVar

from pollwise.core.outcome import Outcome, Pause, Plain
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Pacer, Strategy

#: The longest pause of a busy and of an idle agent, as a fraction of the heartbeat timeout.
BUSY_SHARE = 0.25
IDLE_SHARE = 0.75
#: The longest pause after polls that failed, as such a fraction.
RETURN_SHARE = 0.5


class Suggested(Strategy, Pacer):
    """Polls when the controller suggests, or at a pace of its own.

    It is for one agent, which keeps these up to date, so it is its own pacer:

    next_poll: seconds until the next poll, as the controller suggested last; None if it did not.
    least: the minimum interval of a worker. most: the longest time between two requests.

    otherwise: the pace where nothing is suggested; its max_interval also limits suggestions.
    own: always keep to `otherwise`.
    """

    name: ClassVar[str] = "suggested"

    def __init__(self, otherwise: Adaptive, *, own: bool = False) -> None:
        self._otherwise = otherwise
        self._own = own
        self._pacer = otherwise.pacer()
        self._share: float | None = None
        self.next_poll: float | None = None
        self.least: float = 0.0
        self.most: float = float("inf")

    @property
    def min_interval(self) -> float:
        return self.least or self._otherwise.min_interval

    @property
    def max_interval(self) -> float:
        return max(self._otherwise.max_interval, self.least)

    def shorten_first(self, share: float | None) -> None:
        """Let the next pause of its own pace be this share of the shortest one; None: a whole one.

        Agents that were started together poll at different times then. The controller does the
        same for those that follow its suggestions.
        """
        self._share = share

    def pacer(self) -> Pacer:
        return self

    def first(self) -> Pause:
        return self._pacer.first()

    def after(self, outcome: Outcome) -> Pause:
        suggested = None if self._own else self.next_poll
        share, self._share = self._share, None
        if share is not None and suggested is None and not outcome.found:
            delay = min(self._otherwise.min_interval * share, self.most)
            return Pause(max(delay, self.least), exact=True)
        pause = self._pacer.after(outcome)
        delay = pause.delay if suggested is None else min(suggested, self.max_interval)
        delay = max(min(delay, self.most), self.least)
        # The controller spreads the polls of its workers, so that jitter would only disturb them.
        changes = pause.changes if suggested is None else ()
        return Pause(delay, 0.0, changes, exact=delay == suggested)

    def state(self) -> dict[str, Plain]:
        return {**self._pacer.state(), "suggested": self.next_poll}
