"""Ewma: pace by a moving average of the batch size.

The idea of Arrakis, with its mistakes fixed:

- The average decays by the time since it was last updated, and each decay updates that time. So
  decaying for a and then for b is the same as decaying for a + b.
- "Very high" is reached by full batches, whatever the batch limit: an average of batches of 10 only
  ever approaches 10, so the class begins at 95 % of the capacity where that is less.
- A single spike is clamped to 3 × the average. The second in a row is a rise and counts in full;
  otherwise traffic that starts after a trickle would look like spikes for many polls.
- Drop detection finds an outdated average: several low polls in a row, and an average that is
  still more than 10 % above what they found. It resets the average to that. A steady trickle, whose
  average is right, is not reset. Full polls are never low, and empty ones are left to the decay.
- Only a poll that found something says what a full batch is. Otherwise an empty poll with little
  room could move the average into a busier class and shorten the pause.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, overload

from pollwise.core.outcome import Change, Outcome, Pause, Plain
from pollwise.core.strategies.base import (
    Pacer,
    State,
    Strategy,
    number_within,
    restored,
    whole_number,
)
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError

LOW, MEDIUM, HIGH = 2.0, 5.0, 10.0
SATURATED = 0.95
SPIKE = 3.0
OUTDATED = 1.1
NEGLIGIBLE = 0.2
EMPTIES_BEFORE_DECAY = 2
COUNTED_MAX = 2.0**53  # items in a poll; larger numbers count as this

CLASSES = ("idle", "low", "medium", "high", "very_high")


def decayed(average: float, elapsed: float, half_life: float) -> float:
    """Return what is left of `average` after `elapsed` seconds without items."""
    return float(average * 0.5 ** (elapsed / half_life))


@dataclass(frozen=True, init=False, slots=True)
class Ewma(Strategy):
    """Choose the interval by the class of the smoothed batch size.

    idle_interval: the delay while the average is 0.
    low_interval: the delay while the average is below 2.
    medium_interval: the delay while the average is below 5.
    high_interval: the delay while the average is below 10.
    very_high_interval: the delay while the average is 10 or more, or 95 % of the capacity.
    alpha: weight of the newest batch; lower is steadier, higher more responsive.
    drop_after: this many low polls in a row (one item, not full) reset an average that is still
        more than 10 % above one. Empty polls between them do not count.
    half_life: the time in which the average halves while polls are empty.
    held: use the intervals as holds instead of delays: each poll may block that long at the server.
        None: only if the source can hold a poll.
    """

    idle_interval: float
    low_interval: float
    medium_interval: float
    high_interval: float
    very_high_interval: float
    alpha: float
    drop_after: int
    half_life: float
    held: bool | None

    name: ClassVar[str] = "ewma"

    def __init__(
        self,
        *,
        idle_interval: Duration = "20s",
        low_interval: Duration = "15s",
        medium_interval: Duration = "10s",
        high_interval: Duration = "5s",
        very_high_interval: Duration = "1s",
        alpha: float = 0.3,
        drop_after: int = 10,
        half_life: Duration = "30s",
        held: bool | None = None,
    ) -> None:
        given = {
            "idle_interval": idle_interval,
            "low_interval": low_interval,
            "medium_interval": medium_interval,
            "high_interval": high_interval,
            "very_high_interval": very_high_interval,
        }
        waits = {name: seconds(value, name, positive=True) for name, value in given.items()}
        for quieter, busier in pairwise(given):
            if waits[busier] > waits[quieter]:
                raise ConfigError(
                    f"{busier} = {given[busier]!r} is longer than {quieter} = {given[quieter]!r}; "
                    "a busier class needs an interval no longer than a quieter one"
                )
        if held is not None and not isinstance(held, bool):
            raise ConfigError(f"held = {held!r} must be true, false, or None")
        self._set(
            **waits,
            alpha=number_within(alpha, "alpha", 0.0, 1.0, "the weight of the newest batch"),
            drop_after=whole_number(drop_after, "drop_after", "it counts low polls"),
            half_life=seconds(half_life, "half_life", positive=True),
            held=held,
        )

    @classmethod
    def conservative(cls, *, held: bool | None = None) -> Ewma:
        """Steady: a low alpha and the default intervals."""
        return cls(alpha=0.2, drop_after=10, held=held)

    @classmethod
    def responsive(cls, *, held: bool | None = None) -> Ewma:
        """Responsive: a high alpha, shorter intervals, earlier resets."""
        return cls(
            idle_interval=15, low_interval=10, medium_interval=6, high_interval=3,
            very_high_interval=1, alpha=0.4, drop_after=6, held=held,
        )  # fmt: skip

    @classmethod
    def high_volume(cls, *, held: bool | None = None) -> Ewma:
        """For throughput: short intervals. Pair it with a worker's `lease="60s"`."""
        return cls(
            idle_interval=10, low_interval=8, medium_interval=5, high_interval=2,
            very_high_interval=1, alpha=0.3, drop_after=8, held=held,
        )  # fmt: skip

    @property
    def min_interval(self) -> float:
        return 0.0 if self.held else self.very_high_interval

    @property
    def max_interval(self) -> float:
        return 0.0 if self.held else self.idle_interval

    @property
    def longest_hold(self) -> float:
        return self.idle_interval if self.held else 0.0

    def for_source(self, can_hold: bool) -> Ewma:
        return replace(self, held=True) if self.held is None and can_hold else self

    def interval_of(self, volume: str) -> float:
        """The interval of a class, by its name."""
        interval: float = getattr(self, f"{volume}_interval")
        return interval

    @overload
    def pacer(self) -> EwmaPacer: ...
    @overload
    def pacer(self, state: State | None) -> Pacer: ...
    def pacer(self, state: State | None = None) -> Pacer:
        return EwmaPacer(self) if state is None else restored(self, state).pacer


class EwmaPacer(Pacer):
    def __init__(self, strategy: Ewma) -> None:
        self._strategy = strategy
        self._average = 0.0
        self._true_at = 0.0  # when the average was last updated
        self._volume = "idle"
        self._full = COUNTED_MAX  # the capacity of the latest batch
        self._empties = 0
        self._low_polls = 0
        self._spiked = False
        self._resets = 0

    def first(self) -> Pause:
        return self._pause()

    def after(self, outcome: Outcome) -> Pause:
        if outcome.failed:
            return self._pause()
        changes = self._found(outcome) if outcome.found else self._empty(outcome.at)
        volume = self._classify()
        if volume != self._volume:
            changes = (*changes, *self._turn_to(volume))
            self._volume = volume
        return self._pause(changes)

    def _turn_to(self, volume: str) -> tuple[Change, ...]:
        before, after = map(self._strategy.interval_of, (self._volume, volume))
        turn = Change("class", self._volume, volume)
        if before == after:
            return (turn,)
        return (turn, Change("back-off" if after > before else "speed-up", before, after))

    def _found(self, outcome: Outcome) -> tuple[Change, ...]:
        self._empties = 0
        self._true_at = outcome.at
        self._full = min(outcome.capacity or COUNTED_MAX, COUNTED_MAX)
        sample = self._without_spike(min(outcome.found, COUNTED_MAX))
        alpha = self._strategy.alpha
        self._average = alpha * sample + (1.0 - alpha) * self._average
        return self._detect_drop(outcome)

    def _without_spike(self, sample: float) -> float:
        limit = SPIKE * self._average
        above = 0.0 < limit < sample
        clamp = above and not self._spiked
        self._spiked = above
        return limit if clamp else sample

    def _detect_drop(self, outcome: Outcome) -> tuple[Change, ...]:
        if outcome.found >= LOW or outcome.full:
            self._low_polls = 0
            return ()
        self._low_polls += 1
        before = self._average
        if self._low_polls < self._strategy.drop_after or before <= OUTDATED * outcome.found:
            return ()
        self._average = float(outcome.found)  # each of the low polls found this many
        self._low_polls = 0
        self._resets += 1
        return (Change("reset", before, self._average),)

    def _empty(self, at: float) -> tuple[Change, ...]:
        self._empties += 1
        self._spiked = False
        if self._average == 0.0 or self._empties < EMPTIES_BEFORE_DECAY:
            return ()
        before = self._average
        left = decayed(before, at - self._true_at, self._strategy.half_life)
        if left == before:  # no time has passed
            return ()
        self._average = left
        self._true_at = at
        if left < NEGLIGIBLE:
            self._average = 0.0
            self._low_polls = 0
        return (Change("decay", before, self._average),)

    def _classify(self) -> str:
        if self._average == 0.0:
            return "idle"
        if self._average >= min(HIGH, SATURATED * self._full):
            return "very_high"
        if self._average < LOW:
            return "low"
        return "medium" if self._average < MEDIUM else "high"

    def _pause(self, changes: tuple[Change, ...] = ()) -> Pause:
        interval = self._strategy.interval_of(self._volume)
        delay, hold = (0.0, interval) if self._strategy.held else (interval, 0.0)
        return Pause(delay, hold, changes, self._average)

    def resume(self, at: float) -> None:
        """The average does not fade in a time in which nobody polled."""
        self._true_at = at

    def state(self) -> dict[str, Plain]:
        return {
            "interval": self._strategy.interval_of(self._volume),
            "average": self._average,
            "class": self._volume,
            "empties": self._empties,
            "low_polls": self._low_polls,
            "resets": self._resets,
        }
