"""Fixed: the same pause, whatever is found. Predictable latency, the highest cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, overload

from pollwise.core.outcome import Outcome, Pause, Plain
from pollwise.core.strategies.base import Pacer, State, Strategy, restored
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError


@dataclass(frozen=True, init=False, slots=True)
class Fixed(Strategy):
    """Poll every `interval`, exactly: no jitter, and no poll at once after a full batch, unless
    `drain` is on.

    interval: the delay after every poll.
    hold: how long each poll may block at the server. An interval of 0 needs a hold: polling
    without any pause is a busy loop.
    """

    interval: float
    hold: float

    name: ClassVar[str] = "fixed"
    drains: ClassVar[bool] = False

    def __init__(self, interval: Duration = "500ms", *, hold: Duration = 0) -> None:
        held = seconds(hold, "hold")
        pause = seconds(interval, "interval")
        if pause == 0 and held == 0:
            raise ConfigError(
                f"interval = {interval!r} polls without any pause; give an interval above 0, "
                "or a hold for a source that can long-poll"
            )
        self._set(interval=pause, hold=held)

    @property
    def min_interval(self) -> float:
        return self.interval

    @property
    def max_interval(self) -> float:
        return self.interval

    @overload
    def pacer(self) -> FixedPacer: ...
    @overload
    def pacer(self, state: State | None) -> Pacer: ...
    def pacer(self, state: State | None = None) -> Pacer:
        return FixedPacer(self) if state is None else restored(self, state).pacer


class FixedPacer(Pacer):
    def __init__(self, strategy: Fixed) -> None:
        self._strategy = strategy
        self._pause = Pause(strategy.interval, strategy.hold)

    def first(self) -> Pause:
        return self._pause

    def after(self, outcome: Outcome) -> Pause:
        return self._pause

    def state(self) -> dict[str, Plain]:
        return {"interval": self._pause.delay}
