"""Completion: poll something that will finish, when it is likely to have finished.

**The rule.** A poll costs c; each second from the end of a run to the poll that finds it costs w.
The times that earlier runs took say how likely a poll finds the end. Polls are made at the times
that have the least expected total cost: none while no run ever ended that early, close together
where most runs end, and further and further apart after that.

**Evidence.** A poll that finds nothing says: not finished yet. One that finds something says that
the end came after the last poll before it; if `waits` says how long ago, the end is known exactly.
A failed poll is not evidence. After the end, the next run begins.

Polls are planned by `pollwise.core.forecast.best_polls`, with the forecast of
`pollwise.core.forecast.durations`; `docs/why/until.md` derives both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from pollwise.core.forecast.durations import Durations
from pollwise.core.outcome import Outcome, Pause, Plain
from pollwise.core.strategies.base import Pacer, Strategy, bounds, number_within
from pollwise.durations import Duration, shown
from pollwise.errors import ConfigError

AT_MAX = 1e12  # seconds; later times count as this


@dataclass(frozen=True, init=False, slots=True)
class Completion(Strategy):
    """Poll a run that will finish, at the times that cost least by how long earlier runs took.

    poll_cost: what one poll costs.
    wait_cost: what each second costs between the end of a run and the poll that finds it, in the
    same currency. The default costs say: a poll is worth one second of waiting.
    history: how long earlier runs took. Pacers learn into it, so runs of the same kind share one;
    by default, each pacer has its own.
    min_interval: the shortest delay.
    max_interval: the longest delay.
    """

    poll_cost: float
    wait_cost: float
    history: Durations | None
    min_interval: float
    max_interval: float

    name: ClassVar[str] = "completion"
    drains: ClassVar[bool] = False
    plans_first: ClassVar[bool] = True

    def __init__(
        self,
        *,
        poll_cost: float = 1.0,
        wait_cost: float = 1.0,
        history: Durations | None = None,
        min_interval: Duration = "100ms",
        max_interval: Duration = "1h",
    ) -> None:
        poll = number_within(poll_cost, "poll_cost", 0.0, math.inf, "what one poll costs")
        why = "what it costs that a finished run waits one second"
        wait = number_within(wait_cost, "wait_cost", 0.0, math.inf, why)
        if history is not None and not isinstance(history, Durations):
            raise ConfigError(f"history = {shown(history)} must be a Durations, or None")
        low, high = bounds(min_interval, max_interval)
        self._set(poll_cost=poll, wait_cost=wait, history=history)
        self._set(min_interval=low, max_interval=high)

    def pacer(self) -> CompletionPacer:
        return CompletionPacer(self)


class CompletionPacer(Pacer):
    """Paces one run after the other.

    The first run begins when the loop calls `begin`, else one pause before its first poll. A saved
    pace does not contain the history: save that with `Durations.dump`.
    """

    _history: Final[Durations]

    def __init__(self, strategy: Completion) -> None:
        self._strategy = strategy
        self._history = Durations() if strategy.history is None else strategy.history
        self._price = strategy.poll_cost / strategy.wait_cost
        self._began: float | None = None
        self._last = 0.0  # the last poll that was evidence, in seconds since the run began
        self._delay = self._decide()

    def begin(self, at: float) -> None:
        self._began = max(-AT_MAX, min(float(at), AT_MAX))

    def first(self) -> Pause:
        return Pause(self._delay)

    def after(self, outcome: Outcome) -> Pause:
        at = max(-AT_MAX, min(float(outcome.at), AT_MAX))
        if self._began is None:
            self._began = at - self._delay
        if outcome.failed:
            return Pause(self._delay)
        elapsed = max(at - self._began, self._last)
        if outcome.found:
            self._learn(elapsed, outcome.waits)
            self._began, elapsed = at, 0.0
        self._last = elapsed
        self._delay = self._decide()
        return Pause(self._delay)

    def _learn(self, elapsed: float, waits: tuple[float, ...]) -> None:
        if waits:
            self._history.add(min(max(elapsed - float(max(waits)), self._last), elapsed))
        else:
            self._history.add_between(self._last, elapsed)

    def _decide(self) -> float:
        delay = self._history.next_poll(self._price, self._last) - self._last
        return max(self._strategy.min_interval, min(delay, self._strategy.max_interval))

    def state(self) -> dict[str, Plain]:
        return {
            "interval": self._delay,
            "elapsed": self._last,
            "runs": self._history.runs,
            "price_ratio": self._price,
        }
