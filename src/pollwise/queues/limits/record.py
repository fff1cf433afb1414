"""The limits of a kind, as users state them and as their note keeps them.

A note of the topic "limits", with the kind as its name, has this JSON, without what is not used:

    most            how many jobs of the kind are leased at a time
    most_each       the same for each limit group
    rate            [amount, seconds, burst]: how many start in this many seconds
    rate_each       the same for each limit group
    fair            true if groups take turns; they always do if something is limited for each group
    weights         how many jobs a group gets in each turn, if that is not 1: {"acme": 3}
    by              the argument of the task that names the limit group, for people
    origin          "code" if a worker set it at its start, "calls" if somebody set it
    set_at          when, in seconds since 1970

A rate is kept by one number for the kind, and one for each group: `full_at`, when all of its
allowance will have come back. With `step = seconds / amount`:

    full_at         min(full_at, now + burst * step): it was set under a slower rate, or the clock
                    was set back. A claim that finds it higher stores this, even if it gets nothing.
    room(now)       floor((now + burst * step - max(full_at, now) + SLACK) / step), from 0 to burst
    after n starts  full_at = max(full_at, now) + n * step
    next start      when room is 1 again: full_at - (burst - 1) * step

`now` is read when the claim has the lock of the kind: if a claim came with an earlier time than the
one before it, it would lower full_at, and give the rate more room.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pollwise.durations import Duration, seconds, short
from pollwise.errors import ConfigError
from pollwise.queues.notes import NOTE_VALUE_MAX, TIME_MAX
from pollwise.runtime.jobs.fields import DELAY_MAX, checked_name

#: The largest number of a limit.
LIMIT_MAX = 1_000_000
#: The largest weight of a group.
WEIGHT_MAX = 1000
#: How many weights the text of limits names.
WEIGHTS_SHOWN = 5
#: The shortest time of a rate, in seconds: claims divide by it.
PER_MIN = 1e-6
#: The share of a rate that may start at once, unless `burst` says otherwise. With it, a window of
#: `per` sees at most 1.05 times the rate.
BURST_SHARE = 0.05
#: Seconds by which a start may be early, because times are rounded: at the time of the next start
#: there must be room for it. It does not add up.
SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `most` jobs of a kind run at a time, over all workers.

    Jobs that are claimed count, until they are settled or their lease runs out.

    by: an argument of the task; each of its values, such as each tenant, then has its own limit.
    """

    most: int
    by: str | None = None

    def __post_init__(self) -> None:
        _check_whole(self.most, "the number of a Concurrency", LIMIT_MAX)
        _check_by(self.by)

    def __str__(self) -> str:
        return f"{self.most} at a time{_each(self.by)}"


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `amount` jobs of a kind start in each `per`, over all workers.

    Starts are spread: 60 in a minute are one in a second.

    by: as for `Concurrency`.
    burst: how many may start at once after a quiet time, so w seconds see at most
        `amount / per * w + burst` starts; 5 % of the amount unless given, and at least 1.
    """

    amount: int
    per: Duration = "1m"
    by: str | None = None
    burst: int | None = None

    def __post_init__(self) -> None:
        _check_whole(self.amount, "the amount of a Rate", LIMIT_MAX)
        per = seconds(self.per, "per", positive=True)
        if per < PER_MIN:
            raise ConfigError(f"per = {self.per!r} is below the limit of a microsecond")
        if per > DELAY_MAX:
            raise ConfigError(f"per = {self.per!r} is above the limit of ten years")
        object.__setattr__(self, "per", per)
        if self.burst is None:
            object.__setattr__(self, "burst", max(int(self.amount * BURST_SHARE), 1))
        _check_whole(self.burst, "the burst of a Rate", LIMIT_MAX)
        _check_by(self.by)

    def __str__(self) -> str:
        per = short(seconds(self.per))
        return f"{self.amount} in {per}, {self.burst} at once{_each(self.by)}"


Limit = Concurrency | Rate


@dataclass(frozen=True, slots=True)
class KindRate:
    """A rate as claims use it; see the module for the arithmetic."""

    amount: int
    per: float
    burst: int

    @property
    def step(self) -> float:
        """Seconds between two starts."""
        return self.per / self.amount

    @property
    def free(self) -> float:
        """The seconds until all of the allowance comes back."""
        return self.burst * self.step

    def room(self, full_at: float, now: float) -> int:
        """How many may start now."""
        left = now + self.free - self.after(full_at, now, 0)
        return max(min(int((left + SLACK) / self.step), self.burst), 0)

    def after(self, full_at: float, now: float, starts: int) -> float:
        """The new `full_at` after some start now."""
        known = now + self.free if self.too_high(full_at, now) else full_at
        return max(known, now) + starts * self.step

    def too_high(self, full_at: float, now: float) -> bool:
        """True if a claim must store a lower `full_at` even if it starts nothing."""
        return full_at > now + self.free + SLACK

    def next_start(self, full_at: float, now: float) -> float | None:
        """When the next one may start; None: now."""
        if self.room(full_at, now):
            return None
        return self.after(full_at, now, 0) - (self.burst - 1) * self.step


@dataclass(frozen=True, slots=True)
class KindLimits:
    """All limits of one kind, as they are stored.

    most, most_each: how many jobs of the kind, or of each limit group, may run at a time.
    rate, rate_each: how many may start in a period.
    fair: True if groups take turns; they always do if something is limited for each group.
    weights: how many jobs a group gets in each turn; 1 if it is not named.
    by: the argument of the task that is the limit group, for people.
    origin: "code" if a worker set the limits at its start, "calls" if somebody set them.
    set_at: when, in seconds since 1970.
    """

    kind: str
    most: int | None = None
    most_each: int | None = None
    rate: KindRate | None = None
    rate_each: KindRate | None = None
    fair: bool = False
    weights: Mapping[str, int] = field(default_factory=dict)
    by: str | None = None
    origin: Literal["code", "calls"] = "calls"
    set_at: float = 0.0

    @property
    def grouped(self) -> bool:
        """True if limit groups take turns."""
        return self.fair or self.most_each is not None or self.rate_each is not None

    @property
    def text(self) -> str:
        """A text for people, such as: 50 at a time; 100 in 1m, 5 at once for each tenant."""
        each = self.by or "group"
        parts: list[str] = []
        for most, by in ((self.most, None), (self.most_each, each)):
            if most is not None:
                parts.append(str(Concurrency(most, by)))
        for rate, by in ((self.rate, None), (self.rate_each, each)):
            if rate is not None:
                parts.append(str(Rate(rate.amount, rate.per, by, rate.burst)))
        if self.fair:
            parts.append(f"fair by {each}")
        if self.weights:
            some = [f"{group}={weight}" for group, weight in self.weights.items()]
            more = ", …" if len(some) > WEIGHTS_SHOWN else ""
            parts.append(f"weights {', '.join(some[:WEIGHTS_SHOWN])}{more}")
        return "; ".join(parts)

    def same_as(self, other: KindLimits | None) -> bool:
        """True if claims keep to the same limits."""
        return other is not None and self.to_note(plain=True) == other.to_note(plain=True)

    def to_note(self, *, plain: bool = False) -> str:
        """The value of its note; plain: without who set it, and when."""
        value: dict[str, Any] = {
            "most": self.most,
            "most_each": self.most_each,
            "rate": None if self.rate is None else _rate_value(self.rate),
            "rate_each": None if self.rate_each is None else _rate_value(self.rate_each),
            "fair": self.fair or None,
            "weights": dict(self.weights) or None,
            "by": self.by,
        }
        if not plain:
            value |= {"origin": self.origin, "set_at": self.set_at}
        kept = {name: each for name, each in value.items() if each is not None}
        return json.dumps(kept, ensure_ascii=False, separators=(",", ":"))


def kind_limits(
    kind: str,
    limits: Limit | Iterable[Limit] = (),
    *,
    fair_by: str | None = None,
    weights: Mapping[str, int] | None = None,
    origin: Literal["code", "calls"] = "calls",
    set_at: float = 0.0,
) -> KindLimits:
    """The limits of a kind from what a user states. Raises ConfigError.

    fair_by: an argument of the task: its values are groups, which take turns.
    weights: how many jobs a group gets in each turn; 1 if it is not named.
    """
    several = isinstance(limits, Iterable) and not isinstance(limits, str)
    listed: list[Any] = list(limits) if several else [limits]  # type: ignore[arg-type]
    names = {limit.by for limit in listed if isinstance(limit, Concurrency | Rate) and limit.by}
    if fair_by is not None:
        _check_by(fair_by, "fair_by")
        names.add(fair_by)
    if len(names) > 1:
        raise ConfigError(
            f"the limits of {kind!r} name several arguments: {', '.join(sorted(names))}; a job has "
            "one limit group, so give all `by` and `fair_by` the same argument"
        )
    found: dict[str, Any] = {}
    for limit in listed:
        if not isinstance(limit, Concurrency | Rate):
            raise ConfigError(f"limit = {limit!r} must be a Rate or a Concurrency, or a list")
        name = ("rate" if isinstance(limit, Rate) else "most") + ("_each" if limit.by else "")
        if name in found:
            raise ConfigError(
                f"the limits of {kind!r} have two of the same sort: {limit}; keep the stricter one"
            )
        if isinstance(limit, Rate):
            found[name] = KindRate(limit.amount, seconds(limit.per), limit.burst or 1)
        else:
            found[name] = limit.most
    if not found and fair_by is None:
        raise ConfigError(f"{kind!r} has no limit; give limit=… or fair_by=…")
    made = KindLimits(
        checked_name(kind, "kind", ConfigError), **found, fair=fair_by is not None,
        weights=_checked_weights(weights), by=next(iter(names), None), origin=origin,
        set_at=set_at,
    )  # fmt: skip
    _check_weights_used(made)
    size = len(made.to_note().encode())
    if size > NOTE_VALUE_MAX:
        raise ConfigError(
            f"the limits of {kind!r} have {size} bytes of JSON; at most {NOTE_VALUE_MAX}: give "
            "fewer weights"
        )
    return made


def limits_from(kind: str, text: str) -> KindLimits | None:
    """Read a note, which another process wrote; None if it is not valid."""
    try:
        return checked_note(kind, text)
    except ConfigError:
        return None


def checked_note(kind: str, text: str) -> KindLimits:
    """Read a note that somebody sends. Raises ConfigError."""
    try:
        if len(text.encode()) > NOTE_VALUE_MAX:
            raise ConfigError(f"it has more than {NOTE_VALUE_MAX} bytes")
        value = json.loads(text, parse_constant=_no_number)
        by, set_at, weights = value.get("by"), value.get("set_at", 0.0), value.get("weights")
        if isinstance(set_at, bool) or not 0 <= set_at < TIME_MAX:
            raise ConfigError(f"set_at = {set_at!r} must be seconds since 1970")
        if weights is not None:
            weights = {name: _plain(weight) for name, weight in weights.items()}
        _check_by(by)
        made = KindLimits(
            kind, _most_in(value, "most"), _most_in(value, "most_each"), _rate_in(value, "rate"),
            _rate_in(value, "rate_each"), value.get("fair") is True,
            _checked_weights(weights), by, "code" if value.get("origin") == "code" else "calls",
            float(set_at),
        )  # fmt: skip
        _check_weights_used(made)
        if not made.grouped and made.most is None and made.rate is None:
            raise ConfigError("it has no limit")
    except ConfigError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise ConfigError("it is not JSON as Pollwise writes it") from None
    return made


def _rate_value(rate: KindRate) -> list[float]:
    return [rate.amount, rate.per, rate.burst]


def _each(by: str | None) -> str:
    return f" for each {by}" if by else ""


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _plain(value: object) -> Any:
    """A number of JSON: 5.0 and 5 are the same."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _most_in(note: Mapping[str, Any], name: str) -> int | None:
    value = _plain(note.get(name))
    if value is not None:
        _check_whole(value, name, LIMIT_MAX)
    return value  # type: ignore[no-any-return]


def _rate_in(note: Mapping[str, Any], name: str) -> KindRate | None:
    value = note.get(name)
    if value is None:
        return None
    amount, per, burst = map(_plain, value)
    _check_whole(amount, f"the amount of {name}", LIMIT_MAX)
    _check_whole(burst, f"the burst of {name}", LIMIT_MAX)
    if isinstance(per, bool) or not PER_MIN <= per <= DELAY_MAX:
        raise ConfigError(f"the seconds of {name}, {per!r}, are not from {PER_MIN} to ten years")
    return KindRate(amount, float(per), burst)


def _check_whole(value: object, what: str, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{what} = {value!r} must be a whole number from 1 to {most}")


def _check_by(by: object, name: str = "by") -> None:
    if by is not None and (not isinstance(by, str) or not by or not by.isprintable()):
        raise ConfigError(f"{name} = {by!r} must be the name of an argument of the task, or None")


def _checked_weights(weights: Mapping[str, int] | None) -> dict[str, int]:
    if weights is not None and not isinstance(weights, Mapping):
        raise ConfigError(f"weights = {weights!r} must be groups and numbers, as in {{'acme': 3}}")
    made = dict(weights or {})
    for group, weight in made.items():
        checked_name(group, "a group in weights", ConfigError)
        _check_whole(weight, f"the weight of {group!r}", WEIGHT_MAX)
    return made


def _check_weights_used(limits: KindLimits) -> None:
    if limits.weights and not limits.grouped:
        raise ConfigError(
            f"weights of {limits.kind!r} have no effect without groups; give fair_by, or a limit "
            "with by"
        )
