"""Retry: how long to wait after a failure, which failures deserve it, and when to give up.

Failing is not the same as finding nothing, so retries back off on their own and do not change the
pace of polling. This module avoids two common mistakes. A back-off computed as first · multiplierⁿ
overflows once n is large, and then waits forever or not at all: here the exponent stops at the
max_delay. And jitter added before the cap is lost at the cap, where all callers wait in a long
outage: here it is drawn from the part of [(1 - jitter) · d, (1 + jitter) · d] below the max_delay.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pollwise.core.jitter import jittered
from pollwise.durations import Duration, seconds, short
from pollwise.errors import ConfigError

Shape = Literal["exponential", "linear", "fixed", "never"]
Classification = Literal["transient", "permanent"]
Errors = type[BaseException] | Iterable[type[BaseException]]

#: The longest wait that a server may ask for, in seconds, if nothing else is set. Limits per hour
#: are common in APIs, and a wrong header must not silence a poller forever.
RETRY_AFTER_MAX = 3600.0

_FIRST = {"exponential": "first", "linear": "step", "fixed": "delay"}
_JITTER = {"exponential": 0.25, "linear": 0.25}
_GROWTH_MAX = 1e300  # a ratio max_delay/first above this counts as this: powers stay finite


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Retry:
    """A recipe for trying again; build it with `exponential`, `linear`, `fixed` or `never`.

    The constructors share these arguments:

    - `attempts`: how many runs in total, the first included; None for no limit.
    - `jitter`: the share by which a delay may vary either way, in [0, 1), within the max_delay.
    - `include`: the errors worth another attempt; `exclude`: those among them that are not.
      One class or several. An error with an attribute `permanent = True` is never retried.

    >>> retry = Retry.exponential("1s", "60s", attempts=5)
    >>> [retry.delay(n) for n in (1, 2, 3)], retry.exhausted(5)
    ([1.0, 2.0, 4.0], True)
    """

    shape: Shape
    first: float
    max_delay: float = math.inf
    multiplier: float = 1.0
    attempts: int | None
    jitter: float = 0.0
    include: tuple[type[BaseException], ...] = (Exception,)
    exclude: tuple[type[BaseException], ...] = ()

    @classmethod
    def exponential(
        cls,
        first: Duration = "1s",
        max_delay: Duration = "60s",
        *,
        multiplier: float = 2.0,
        attempts: int | None = 5,
        jitter: float = 0.25,
        include: Errors = (Exception,),
        exclude: Errors = (),
    ) -> Retry:
        """Wait `first`, then `multiplier` times longer after each failure, up to `max_delay`."""
        return cls(
            shape="exponential", first=seconds(first, "first"), multiplier=multiplier,
            max_delay=seconds(max_delay, "max_delay"),
            attempts=attempts, jitter=jitter, include=_classes(include, "include"),
            exclude=_classes(exclude, "exclude"),
        )  # fmt: skip

    @classmethod
    def linear(
        cls,
        step: Duration = "5s",
        max_delay: Duration = "60s",
        *,
        attempts: int | None = 5,
        jitter: float = 0.25,
        include: Errors = (Exception,),
        exclude: Errors = (),
    ) -> Retry:
        """Wait `step`, then `step` longer after each failure, up to `max_delay`."""
        return cls(
            shape="linear", first=seconds(step, "step"), max_delay=seconds(max_delay, "max_delay"),
            attempts=attempts, jitter=jitter, include=_classes(include, "include"),
            exclude=_classes(exclude, "exclude"),
        )  # fmt: skip

    @classmethod
    def fixed(
        cls,
        delay: Duration = "5s",
        *,
        attempts: int | None = 5,
        jitter: float = 0.0,
        include: Errors = (Exception,),
        exclude: Errors = (),
    ) -> Retry:
        """Wait `delay` after every failure; exactly that long, unless `jitter` is asked for."""
        return cls(
            shape="fixed", first=seconds(delay, "delay"),
            attempts=attempts, jitter=jitter, include=_classes(include, "include"),
            exclude=_classes(exclude, "exclude"),
        )  # fmt: skip

    @classmethod
    def never(cls) -> Retry:
        """Run once; the first failure is the last."""
        return cls(shape="never", first=0.0, attempts=1)

    def __post_init__(self) -> None:
        if self.shape != "never" and not 0 < self.first <= self.max_delay:
            raise ConfigError(
                f"{_FIRST[self.shape]} = {self.first:g} s must be above 0 "
                f"and at most max_delay = {self.max_delay:g} s"
            )
        check_multiplier(self.multiplier)
        if self.attempts is not None:
            check_count(self.attempts, "attempts", "the first run counts; None for no limit")
        if not _is_number(self.jitter) or not 0 <= self.jitter < 1:
            raise ConfigError(f"jitter = {self.jitter!r} must be a share in [0, 1); 0.25 is ±25 %")

    def delay(self, failures: int, u: float = 0.5) -> float:
        """Return the pause in seconds before the next attempt, after `failures` failures in a row.

        `u` in [0, 1) places the pause within its jitter; 0.5 is the middle.
        """
        if failures < 1:
            raise ConfigError(
                f"failures = {failures!r} must be 1 or more: a retry follows a failure"
            )
        return jittered(self._pause(failures), 0.0, self.max_delay, u, self.jitter)

    def exhausted(self, failures: int) -> bool:
        """Return True if `failures` failures have used up all attempts."""
        return self.attempts is not None and failures >= self.attempts

    def classify(self, error: BaseException) -> Classification:
        """Return "transient" if trying again may help against `error`, else "permanent"."""
        if getattr(error, "permanent", False) is True or isinstance(error, self.exclude):
            return "permanent"
        return "transient" if isinstance(error, self.include) else "permanent"

    def _pause(self, failures: int) -> float:
        if self.shape == "exponential":
            return grown(self.first, self.multiplier, failures - 1, self.max_delay)
        if self.shape == "linear":
            enough = min(self.max_delay / self.first, _GROWTH_MAX)
            return (
                min(self.first * failures, self.max_delay) if failures < enough else self.max_delay
            )
        return self.first

    def __repr__(self) -> str:
        if self.shape == "never":
            return "Retry.never()"
        shown = [duration_repr(self.first)]
        if self.shape != "fixed":
            shown.append(f"max_delay={duration_repr(self.max_delay)}")
        if self.shape == "exponential" and self.multiplier != 2:
            shown.append(f"multiplier={self.multiplier!r}")
        shown.append(f"attempts={self.attempts!r}")
        if self.jitter != _JITTER.get(self.shape, 0.0):
            shown.append(f"jitter={self.jitter!r}")
        if self.include != (Exception,):
            shown.append(f"include={_named(self.include)}")
        if self.exclude:
            shown.append(f"exclude={_named(self.exclude)}")
        return f"Retry.{self.shape}({', '.join(shown)})"


def asked_wait(error: BaseException, longest: float = math.inf) -> float:
    """The `retry_after` of an error: how long a server asked to wait, at most `longest`.

    0 if it did not ask.
    """
    asked = getattr(error, "retry_after", None)
    if isinstance(asked, bool) or not isinstance(asked, (int, float)) or not asked > 0:
        return 0.0
    return float(min(asked, longest, sys.float_info.max))


def grown(first: float, multiplier: float, steps: int, max_delay: float) -> float:
    """Return first · multiplier^steps, at most `max_delay`, for any number of steps.

    The power is only taken where it stays below the max_delay, so it cannot overflow.

    >>> grown(1.0, 2.0, 5, 60.0), grown(1.0, 2.0, 10**9, 60.0)
    (32.0, 60.0)
    """
    if multiplier == 1:
        return first
    enough = math.log(min(max_delay / first, _GROWTH_MAX)) / math.log(multiplier)
    return min(first * multiplier**steps, max_delay) if steps < enough else max_delay


def check_multiplier(multiplier: float) -> None:
    """Check that a delay can be multiplied by it."""
    if not _is_number(multiplier) or not 1 <= multiplier <= sys.float_info.max:
        raise ConfigError(f"multiplier = {multiplier!r} must be a number, 1 or more and finite")


def check_count(count: object, name: str, remark: str) -> None:
    """Check for a whole number of 1 or more; `name` and `remark` go into the error."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"{name} = {count!r} must be a whole number, 1 or more ({remark})")


def duration_repr(value: float) -> str:
    """Write seconds as '1m30s' if that reads back exactly, else as a number."""
    text = short(value)
    return repr(text) if seconds(text) == value else repr(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _classes(errors: object, name: str) -> tuple[type[BaseException], ...]:
    several = errors if isinstance(errors, Iterable) else (errors,)
    classes = tuple(several)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise ConfigError(
                f"{name} = {errors!r} must be exception classes such as (OSError, TimeoutError); "
                f"{each!r} is not one"
            )
    return classes


def _named(classes: tuple[type[BaseException], ...]) -> str:
    names = [f"{each.__module__}.{each.__qualname__}".removeprefix("builtins.") for each in classes]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"
