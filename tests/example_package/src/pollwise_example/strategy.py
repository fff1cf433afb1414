from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pollwise.durations import Duration, seconds
from pollwise.strategies import Outcome, Pacer, Pause, Strategy, bounds


@dataclass(frozen=True, init=False, slots=True)
class Patient(Strategy):
    """Poll often while items come, and seldom when none has come for a while.

    min_interval: the pause while items come.
    max_interval: the pause when none has come for the time of `patience`.
    patience: how long to keep polling often after an item.
    """

    min_interval: float
    max_interval: float
    patience: float

    name: ClassVar[str] = "patient"

    def __init__(
        self,
        min_interval: Duration = "500ms",
        max_interval: Duration = "1m",
        *,
        patience: Duration = "30s",
    ) -> None:
        low, high = bounds(min_interval, max_interval)
        self._set(min_interval=low, max_interval=high, patience=seconds(patience, "patience"))

    def pacer(self) -> PatientPacer:
        return PatientPacer(self)


class PatientPacer(Pacer):
    def __init__(self, strategy: Patient) -> None:
        self._strategy = strategy
        self._pause = Pause(strategy.min_interval)
        self._item_at: float | None = None

    def first(self) -> Pause:
        return self._pause

    def after(self, outcome: Outcome) -> Pause:
        if outcome.failed:  # a failed poll is not an empty one
            return self._pause
        if outcome.found or self._item_at is None:
            self._item_at = outcome.at
        often = outcome.at - self._item_at <= self._strategy.patience
        interval = self._strategy.min_interval if often else self._strategy.max_interval
        self._pause = Pause(interval)
        return self._pause

    def state(self) -> dict[str, float | int | str | bool | None]:
        return {"interval": self._pause.delay, "item_at": self._item_at}
