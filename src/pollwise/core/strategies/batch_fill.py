"""BatchFill: pace by how full each batch was.

The rule of Namastack's outbox: fewer than a quarter of the capacity found doubles the interval, a
full batch halves it, anything between keeps it. Exactly a quarter keeps it: that is what its
documentation promises, though its code doubles there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, overload

from pollwise.core.outcome import Change, Outcome, Pause, Plain
from pollwise.core.strategies.base import Pacer, State, Strategy, bounds, restored, whole_number
from pollwise.durations import Duration, seconds

LOW_LOAD = 0.25
STEP = 2.0


@dataclass(frozen=True, init=False, slots=True)
class BatchFill(Strategy):
    """Double the interval on nearly empty batches, halve it on full ones.

    min_interval: the shortest delay, and the first one.
    max_interval: the longest delay, reached while batches are nearly empty.
    batch_size: the capacity of a batch, for a source that does not state its own. Workers and
        outboxes always do, so it is not a setting.
    hold: how long each poll may block at the server.
    """

    min_interval: float
    max_interval: float
    batch_size: int
    hold: float

    name: ClassVar[str] = "batch_fill"
    not_settings: ClassVar[frozenset[str]] = frozenset({"batch_size"})

    def __init__(
        self,
        min_interval: Duration = "1s",
        max_interval: Duration = "8s",
        *,
        batch_size: int = 10,
        hold: Duration = 0,
    ) -> None:
        low, high = bounds(min_interval, max_interval)
        self._set(min_interval=low, max_interval=high, hold=seconds(hold, "hold"))
        self._set(batch_size=whole_number(batch_size, "batch_size", "a batch holds items"))

    @overload
    def pacer(self) -> BatchFillPacer: ...
    @overload
    def pacer(self, state: State | None) -> Pacer: ...
    def pacer(self, state: State | None = None) -> Pacer:
        return BatchFillPacer(self) if state is None else restored(self, state).pacer


class BatchFillPacer(Pacer):
    def __init__(self, strategy: BatchFill) -> None:
        self._strategy = strategy
        self._interval = strategy.min_interval
        self._fill = 0.0
        self._back_offs = 0
        self._speed_ups = 0

    def first(self) -> Pause:
        return Pause(self._interval, self._strategy.hold)

    def after(self, outcome: Outcome) -> Pause:
        if outcome.failed:
            return self.first()
        before = self._interval
        capacity = outcome.capacity or self._strategy.batch_size
        self._fill = min(outcome.found, capacity) / capacity
        if self._fill < LOW_LOAD:
            self._interval = min(before * STEP, self._strategy.max_interval)
        elif self._fill >= 1.0:
            self._interval = max(before / STEP, self._strategy.min_interval)
        return Pause(self._interval, self._strategy.hold, self._changes_since(before))

    def _changes_since(self, before: float) -> tuple[Change, ...]:
        if self._interval > before:
            self._back_offs += 1
            return (Change("back-off", before, self._interval),)
        if self._interval < before:
            self._speed_ups += 1
            return (Change("speed-up", before, self._interval),)
        return ()

    def state(self) -> dict[str, Plain]:
        return {
            "interval": self._interval,
            "fill": self._fill,
            "back_offs": self._back_offs,
            "speed_ups": self._speed_ups,
        }
