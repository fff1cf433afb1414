"""The contract of every strategy.

A strategy is a recipe: immutable, comparable, printable, safe to share. Its pacer is the running
state for one source and is never shared: with one state for several queues, a busy queue would hide
an idle one.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, ClassVar, NamedTuple

from pollwise.core.outcome import Outcome, Pause, Plain
from pollwise.core.strategies.dumps import DumpRefused, dumped, take_over
from pollwise.durations import Duration, seconds, shown
from pollwise.errors import ConfigError

#: The version of what `dump` returns; states of other versions are not used.
STATE_VERSION = 1

#: The result of `Pacer.dump`.
State = Mapping[str, Any]


class Pacer(ABC):
    """The state of a strategy for one source. Deterministic; never raises on a legal outcome."""

    __slots__ = ()  # a fleet has a pacer for each of its targets

    #: How far its time is ahead of the outcomes' time, in seconds: a restored pacer keeps its own.
    ahead: float = 0.0

    def begin(self, at: float) -> None:  # noqa: B027, few pacers need it
        """The first pause begins now: at `at`, on the clock of the outcomes."""

    @abstractmethod
    def first(self) -> Pause:
        """The pause before the first poll."""

    @abstractmethod
    def after(self, outcome: Outcome) -> Pause:
        """The pause after a poll. A failed poll is not evidence and changes nothing."""

    @abstractmethod
    def state(self) -> dict[str, Plain]:
        """The running state as plain values, for logs, metrics and views."""

    def dump(self) -> dict[str, Any]:
        """All that was learned, as JSON values: `strategy.pacer(state)` goes on from there.

        Its times are of the clock of the outcomes, which must go on as well.
        """
        return {**_recipe(self), "learned": dumped(self, Strategy)}

    def resume(self, at: float) -> None:  # noqa: B027, most strategies need not know
        """Polling goes on at `at` after an interruption; nothing is known about the time before.

        Without this call, the time since the last poll counts as a normal pause.
        """


class Strategy(ABC):
    """A recipe for the pause between polls."""

    #: The name of this strategy in settings.
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
        """The shortest pause, in seconds."""

    @property
    @abstractmethod
    def max_interval(self) -> float:
        """The longest pause, in seconds."""

    @property
    def longest_hold(self) -> float:
        """The longest `hold` a pause of this strategy asks for, in seconds."""
        return float(getattr(self, "hold", 0.0))

    def for_source(self, can_hold: bool) -> Strategy:
        """Return this strategy as it suits a source that can hold a poll, or cannot."""
        return self

    @abstractmethod
    def pacer(self) -> Pacer:
        """A fresh pacer, for one source.

        All strategies of Pollwise also take a `state`, and return a pacer that goes on from the
        `dump` of another one. A state that does not fit is not used: see `restored`. Your own
        strategies can leave `state` out, because `restored` works with every strategy.
        """

    def _set(self, **values: object) -> None:
        """Set the fields of a new strategy; nothing changes them later."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


class Restored(NamedTuple):
    """The pacer for a state. problem: why it is a fresh one; "" if it took over the state."""

    pacer: Pacer
    problem: str


def restored(strategy: Strategy, state: object, ahead: float = 0.0) -> Restored:
    """A pacer that goes on from a state; a fresh one if the state does not fit. Never raises.

    ahead: how far the times of the state are ahead of those of the outcomes to come, in seconds.
    """
    fresh = strategy.pacer()
    wanted = _recipe(fresh)
    if not isinstance(state, Mapping):
        return Restored(fresh, "it is not an object")
    for name, value in wanted.items():
        if state.get(name) != value:
            return Restored(fresh, f"its {name} is {str(state.get(name))[:40]!r}, not {value!r}")
    try:
        take_over(fresh, state.get("learned"), Strategy)
        pacer = RestoredPacer(strategy, fresh, ahead)
        pacer.state()
        if pacer.allows(pacer.first()):
            return Restored(pacer, "")
        problem = "its pause is out of bounds"
    except DumpRefused as error:
        problem = str(error)
    except Exception as error:  # the numbers do not fit together
        problem = f"{type(error).__name__}: {error}"[:100]
    return Restored(strategy.pacer(), problem)


def _recipe(pacer: Pacer) -> dict[str, Any]:
    """The entries that must be equal in a state and in a pacer that takes it over."""
    names = {*getattr(pacer, "__dict__", ()), *getattr(pacer, "__slots__", ())}
    values = [getattr(pacer, name, None) for name in sorted(names)]
    strategy = next((each for each in values if isinstance(each, Strategy)), None)
    name, said = (type(pacer).__name__, "") if strategy is None else (strategy.name, repr(strategy))
    arguments = sha256(said.encode()).hexdigest()[:16]
    return {"version": STATE_VERSION, "strategy": name, "arguments": arguments}


class RestoredPacer(Pacer):
    """A pacer that took over a stored state, which may be damaged in a way that no check finds.

    If it raises, or leaves the bounds of the strategy, a fresh one takes its place.
    """

    __slots__ = ("_pacer", "_strategy", "ahead")

    def __init__(self, strategy: Strategy, pacer: Pacer, ahead: float) -> None:
        self._strategy = strategy
        self._pacer = pacer
        self.ahead: float = ahead

    def allows(self, pause: Pause) -> bool:
        """True if the strategy may answer this pause, and its numbers are finite."""
        strategy = self._strategy
        return (
            strategy.min_interval <= pause.delay <= strategy.max_interval
            and 0.0 <= pause.hold <= strategy.longest_hold
            and math.isfinite(pause.forecast or 0.0)
            and math.isfinite(pause.average or 0.0)
        )

    def begin(self, at: float) -> None:
        self._pacer.begin(at + self.ahead)

    def first(self) -> Pause:
        return self._pacer.first()

    def after(self, outcome: Outcome) -> Pause:
        if self.ahead:
            outcome = replace(outcome, at=outcome.at + self.ahead)
        try:
            pause = self._pacer.after(outcome)
            if self.allows(pause):
                return pause
        except Exception:  # noqa: S110 - the state was damaged
            pass
        self._pacer = self._strategy.pacer()
        return self._pacer.after(outcome)

    def state(self) -> dict[str, Plain]:
        return self._pacer.state()

    def dump(self) -> dict[str, Any]:
        return self._pacer.dump()

    def resume(self, at: float) -> None:
        self._pacer.resume(at + self.ahead)


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
        what = "" if isinstance(value, (int, float)) else "a number "
        raise ConfigError(
            f"{name} = {shown(value)} must be {what}above {above:g} and {limit}: {why}"
        )
    return float(value)


def whole_number(value: int, name: str, why: str) -> int:
    """Check a whole number of at least 1; `why` says what it is for."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} = {shown(value)} must be a whole number of at least 1: {why}")
    return value
