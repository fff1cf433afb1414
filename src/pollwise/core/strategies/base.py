"""The contract of every strategy.

A strategy is a recipe: immutable, comparable, printable, safe to share. Its pacer is the running
state for one source and is never shared: with one state for several queues, a busy queue would hide
an idle one.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from typing import ClassVar

from pollwise.core.outcome import Outcome, Pause, Plain
from pollwise.durations import Duration, seconds, shown
from pollwise.errors import ConfigError


class Pacer(ABC):
    """The state of a strategy for one source. Deterministic; never raises on a legal outcome."""

    __slots__ = ()  # a fleet has a pacer for each of its targets

    def begin(self, at: float) -> None:  # noqa: B027 - few pacers need it
        """The first pause begins now; `at` is the time of the clock that outcomes have."""

    @abstractmethod
    def first(self) -> Pause:
        """The pause before the first poll."""

    @abstractmethod
    def after(self, outcome: Outcome) -> Pause:
        """The pause after a poll. A failed poll is not evidence and changes nothing."""

    @abstractmethod
    def state(self) -> dict[str, Plain]:
        """The running state as plain values, for logs, metrics and views."""


class Strategy(ABC):
    """A recipe for the pause between polls."""

    #: What settings call this strategy.
    name: ClassVar[str]
    #: A full batch is followed by the next poll at once, unless the loop's `drain` says otherwise.
    drains: ClassVar[bool] = True
    #: The first poll comes after the whole first pause, not at once or somewhere in that pause.
    plans_first: ClassVar[bool] = False
    #: Arguments that cannot be set in a file: the part that polls knows their value.
    not_settings: ClassVar[frozenset[str]] = frozenset()

    @property
    @abstractmethod
    def min_interval(self) -> float:
        """No pause is shorter, in seconds."""

    @property
    @abstractmethod
    def max_interval(self) -> float:
        """No pause is longer, in seconds."""

    @property
    def longest_hold(self) -> float:
        """The longest `hold` a pause of this strategy asks for, in seconds."""
        return float(getattr(self, "hold", 0.0))

    def for_source(self, can_hold: bool) -> Strategy:
        """This strategy for a source that can hold a poll, or cannot."""
        return self

    @abstractmethod
    def pacer(self) -> Pacer:
        """A fresh pacer, for one source."""

    def _set(self, **values: object) -> None:
        """Set the fields of a new strategy; nothing changes them later."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


def bounds(min_interval: Duration, max_interval: Duration) -> tuple[float, float]:
    """Check both bounds, and return them in seconds."""
    low = seconds(min_interval, "min_interval", positive=True)
    high = seconds(max_interval, "max_interval", positive=True)
    if low > high:
        raise ConfigError(
            f"min_interval = {shown(min_interval)} is above max_interval = {shown(max_interval)}; "
            "lower min_interval or raise max_interval"
        )
    return low, high


def number_within(value: float, name: str, above: float, to: float, why: str) -> float:
    """Check a finite number in (above, to]; `why` says what the number is for."""
    most = min(to, sys.float_info.max)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not above < value <= most:
        limit = "finite" if to == math.inf else f"at most {to:g}"
        raise ConfigError(f"{name} = {shown(value)} must be above {above:g} and {limit}: {why}")
    return float(value)


def whole_number(value: int, name: str, why: str) -> int:
    """Check a whole number of at least 1; `why` says what it is for."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} = {shown(value)} must be a whole number of at least 1: {why}")
    return value
