"""Adaptive: back off when idle, reset when busy.

The rule of qo: an empty poll multiplies the delay up to the max_interval; a poll that found
something puts it back to the min_interval. So the first empty poll after a hit is followed by
min_interval × backoff_multiplier. The delay is a float: whole milliseconds would never grow from 1
ms by a factor below 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, overload

from pollwise.core.outcome import Change, Outcome, Pause, Plain
from pollwise.core.strategies.base import Pacer, State, Strategy, bounds, number_within, restored
from pollwise.durations import Duration, seconds


@dataclass(frozen=True, init=False, slots=True)
class Adaptive(Strategy):
    """Back off from `min_interval` to `max_interval` by `backoff_multiplier` while polls are empty.

    min_interval: the delay after a poll that found something.
    max_interval: the longest delay, and so the longest wait of an item that no hint announces.
    backoff_multiplier: the factor of each back-off; above 1.
    hold: how long each poll may block at the server.
    """

    min_interval: float
    max_interval: float
    backoff_multiplier: float
    hold: float

    name: ClassVar[str] = "adaptive"

    def __init__(
        self,
        min_interval: Duration = "100ms",
        max_interval: Duration = "5s",
        *,
        backoff_multiplier: float = 2.0,
        hold: Duration = 0,
    ) -> None:
        low, high = bounds(min_interval, max_interval)
        why = "each empty poll multiplies the delay by it"
        growth = number_within(backoff_multiplier, "backoff_multiplier", 1.0, math.inf, why)
        self._set(min_interval=low, max_interval=high, hold=seconds(hold, "hold"))
        self._set(backoff_multiplier=growth)

    @overload
    def pacer(self) -> AdaptivePacer: ...
    @overload
    def pacer(self, state: State | None) -> Pacer: ...
    def pacer(self, state: State | None = None) -> Pacer:
        return AdaptivePacer(self) if state is None else restored(self, state).pacer


class AdaptivePacer(Pacer):
    def __init__(self, strategy: Adaptive) -> None:
        self._strategy = strategy
        self._pause = Pause(strategy.min_interval, strategy.hold)
        self._empties = 0
        self._back_offs = 0
        self._resets = 0

    def first(self) -> Pause:
        return self._pause

    def after(self, outcome: Outcome) -> Pause:
        if outcome.failed:
            return Pause(self._pause.delay, self._pause.hold)
        if outcome.found:
            self._empties = 0
            return self._move_to(self._strategy.min_interval)
        self._empties += 1
        grown = self._pause.delay * self._strategy.backoff_multiplier
        return self._move_to(min(grown, self._strategy.max_interval))

    def _move_to(self, delay: float) -> Pause:
        before = self._pause.delay
        changes: tuple[Change, ...] = ()
        if delay > before:
            self._back_offs += 1
            changes = (Change("back-off", before, delay),)
        elif delay < before:
            self._resets += 1
            changes = (Change("reset", before, delay),)
        elif not self._pause.changes:
            return self._pause
        self._pause = Pause(delay, self._strategy.hold, changes)
        return self._pause

    def state(self) -> dict[str, Plain]:
        return {
            "interval": self._pause.delay,
            "empties": self._empties,
            "back_offs": self._back_offs,
            "resets": self._resets,
        }
