"""Targets and readings: what a fleet polls, how, and what came back.

A target is a plan, immutable and checked when it is made. Everything that changes while it is
polled (when it is due, how it fares, its last reading) belongs to the fleet.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pollwise.core.outcome import Plain
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.durations import Duration, seconds, shown
from pollwise.errors import ConfigError
from pollwise.fleet.engine.quiet import Quiet

#: A longer value is kept, and compared, as its digest.
VALUE_MAX = 256
#: The longest name, and the longest poll.
NAME_MAX = 255
TIMEOUT_MAX = 3600.0
#: The most failures in a row until a target is a dead letter: with a breaker that lets a poll
#: through every five minutes, ten years.
DEAD_AFTER_MAX = 1_000_000

Value = bytes | str | None

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Reading:
    """What one poll of a target brought back.

    value: what is compared with the last reading; one of more than 256 bytes is kept as its digest.
    changed_at: when the source changed last, in seconds since 1970, where it tells.
    facts: plain values for views: a status, milliseconds, the days a certificate is valid.
    summary: one line for people.
    validators: what lets the next poll ask for news only: an ETag, a Last-Modified.
    """

    value: Value = None
    changed_at: float | None = None
    facts: Mapping[str, Plain] = field(default_factory=lambda: _NOTHING)
    summary: str = ""
    validators: Mapping[str, str] = field(default_factory=lambda: _NOTHING)

    def __post_init__(self) -> None:
        value = self.value
        if value is not None and len(value) > VALUE_MAX:
            raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
            object.__setattr__(self, "value", f"sha256:{hashlib.sha256(raw).hexdigest()}")

    @classmethod
    def of(cls, answer: object) -> Reading:
        """What a probe returned, as a reading: text, bytes, None, or what JSON can write."""
        if isinstance(answer, Reading):
            return answer
        if answer is None or isinstance(answer, (str, bytes)):
            return cls(answer)
        return cls(json.dumps(answer, sort_keys=True, default=str))

    def kept(self) -> dict[str, Any]:
        """As plain values, for a store."""
        value: object = self.value
        if isinstance(value, bytes):
            value = {"base64": base64.b64encode(value).decode()}
        kept = {
            "value": value,
            "changed_at": self.changed_at,
            "facts": dict(self.facts),
            "summary": self.summary,
            "validators": dict(self.validators),
        }
        return {name: each for name, each in kept.items() if each or name == "value"}

    @classmethod
    def restored(cls, kept: Mapping[str, Any]) -> Reading:
        """The reading that `kept` wrote."""
        value = kept.get("value")
        if isinstance(value, Mapping):
            try:
                value = base64.b64decode(value["base64"], validate=True)
            except (KeyError, TypeError, binascii.Error):
                value = None
        return cls(
            value,
            kept.get("changed_at"),
            kept.get("facts") or _NOTHING,
            kept.get("summary", ""),
            kept.get("validators") or _NOTHING,
        )


@dataclass(frozen=True, slots=True)
class ProbeContext:
    """What a probe may want to know besides its target.

    last: the reading before, with its validators; None at the first poll.
    deadline: when the poll is cancelled, in the event loop's time.
    epoch: the time now, in seconds since 1970, by the fleet's clock.
    """

    last: Reading | None
    deadline: float
    epoch: float


@dataclass(frozen=True, slots=True)
class Changed:
    """A reading that is another than the one before, as handlers of changes get it."""

    target: Target
    before: Reading
    after: Reading
    at: float  # when it was seen, in seconds since 1970
    since: float | None = None  # when the one before was seen first; None for the very first


#: How a target is polled. It raises when the poll failed; an error with `permanent = True` (no
#: such page, not allowed) sends the target to the dead letters at once.
Probe = Callable[["Target", ProbeContext], Awaitable[Any]]
#: What is called with a change.
Action = Callable[[Changed], Any]


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Target:
    """One thing a fleet polls.

    name: names it in views, events and metrics; unique in its fleet.
    probe: an async function of (target, context), or the name of a probe's type ("http"), with
        its `options`.
    interval: a duration is kept exactly, without jitter or drift; a strategy paces the target by
        itself; None takes the fleet's strategy.
    base_interval, min_interval, max_interval: what differs from the fleet's `Freshness`.
    weight: how much a change here counts against one elsewhere, where a budget is shared.
    priority: of those that are due together, the higher goes first.
    timeout: the whole poll, connecting and reading included, ends after so long.
    host: polls of targets with the same host are limited together.
    group: its name in settings, where groups are paced apart.
    quiet: hours in which it is not polled: "22:00-06:00 Europe/Berlin".
    dead_after: so many transient failures in a row make it a dead letter, which is polled every
        half hour only; None goes by the fleet's rules (5, some 100 seconds). Until then its breaker
        lets a poll through every 5 minutes at the least.
    type: the type of its probe, in metrics and views.
    labels: plain text for views.
    options: for the probe, where that is named by its type.
    actions: called with each change of this target, before the fleet's own.
    """

    name: str
    probe: Probe | str
    interval: Strategy | None
    base_interval: float | None
    min_interval: float | None
    max_interval: float | None
    weight: float
    priority: int
    timeout: float
    host: str | None
    group: str | None
    quiet: Quiet | None
    dead_after: int | None
    type: str
    labels: Mapping[str, str]
    options: Mapping[str, Any]
    actions: tuple[Action, ...]

    def __init__(
        self,
        name: str,
        probe: Probe | str,
        interval: Duration | Strategy | None = None,
        *,
        base_interval: Duration | None = None,
        min_interval: Duration | None = None,
        max_interval: Duration | None = None,
        weight: float = 1.0,
        priority: int = 0,
        timeout: Duration = "30s",
        host: str | None = None,
        group: str | None = None,
        quiet: str | Quiet | None = None,
        dead_after: int | None = None,
        type: str | None = None,
        labels: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        actions: tuple[Action, ...] = (),
    ) -> None:
        _check_name(name)
        if not (callable(probe) or (isinstance(probe, str) and probe)):
            raise ConfigError(
                f"target {name!r}: probe = {shown(probe)} is neither an async function of "
                "(target, context) nor the name of a probe's type such as 'http'"
            )
        bounds = (
            ("base_interval", base_interval),
            ("min_interval", min_interval),
            ("max_interval", max_interval),
        )
        given = {key: each for key, each in bounds if each is not None}
        if interval is not None and given:
            raise ConfigError(
                f"target {name!r}: interval and {', '.join(given)} contradict each other; "
                "give the interval, or the bounds of the fleet's strategy for this target"
            )
        if not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
            raise ConfigError(f"target {name!r}: weight = {weight!r} must be above 0 and finite")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise ConfigError(f"target {name!r}: priority = {priority!r} must be a whole number")
        if dead_after is not None and (
            isinstance(dead_after, bool)
            or not isinstance(dead_after, int)
            or not 1 <= dead_after <= DEAD_AFTER_MAX
        ):
            raise ConfigError(
                f"target {name!r}: dead_after = {shown(dead_after)} must be a whole number from 1 "
                f"to {DEAD_AFTER_MAX}: so many failures in a row make a dead letter"
            )
        limit = _duration(name, "timeout", timeout)
        if limit > TIMEOUT_MAX:
            raise ConfigError(
                f"target {name!r}: timeout = {shown(timeout)} is above the limit of "
                f"{TIMEOUT_MAX:g} s"
            )
        put = object.__setattr__
        put(self, "name", name)
        put(self, "probe", probe)
        put(self, "interval", _paced(name, interval))
        for key, each in bounds:
            put(self, key, None if each is None else _duration(name, key, each))
        put(self, "weight", float(weight))
        put(self, "priority", priority)
        put(self, "timeout", limit)
        put(self, "host", host)
        put(self, "group", group)
        put(self, "quiet", _quiet(name, quiet))
        put(self, "dead_after", dead_after)
        put(self, "type", type or (probe if isinstance(probe, str) else "function"))
        put(self, "labels", MappingProxyType(dict(labels)) if labels else _NOTHING)
        put(self, "options", MappingProxyType(dict(options)) if options else _NOTHING)
        put(self, "actions", tuple(actions))
        if given:
            self.strategy(Freshness())  # what contradicts itself is refused now

    def strategy(self, fleets: Strategy) -> Strategy:
        """What paces this target in a fleet with the strategy `fleets`."""
        if self.interval is not None:
            return self.interval
        if self.base_interval is None and self.min_interval is None and self.max_interval is None:
            return fleets
        over = fleets if isinstance(fleets, Freshness) else Freshness()
        min_interval = over.min_interval if self.min_interval is None else self.min_interval
        max_interval = over.max_interval if self.max_interval is None else self.max_interval
        if self.min_interval is not None and self.max_interval is None:
            max_interval = max(max_interval, min_interval)
        if self.max_interval is not None and self.min_interval is None:
            min_interval = min(min_interval, max_interval)
        base_interval = (
            min(max(over.base_interval, min_interval), max_interval)
            if self.base_interval is None
            else self.base_interval
        )
        try:
            return Freshness(base_interval, min_interval, max_interval)
        except ConfigError as error:
            raise ConfigError(f"target {self.name!r}: {error}") from None

    def __repr__(self) -> str:
        # Not its options: a URL there may hold a password.
        return f"Target({self.name!r}, {self.type!r})"


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise ConfigError(f"name = {shown(name)} must be printable text that is not empty")
    if len(name) > NAME_MAX:
        raise ConfigError(f"name = {shown(name)} is longer than {NAME_MAX} characters")


def _duration(name: str, key: str, given: Duration) -> float:
    return seconds(given, f"target {name!r}: {key}", positive=True)


def _paced(name: str, interval: Duration | Strategy | None) -> Strategy | None:
    if interval is None or isinstance(interval, Strategy):
        return interval
    return Fixed(_duration(name, "interval", interval))


def _quiet(name: str, quiet: str | Quiet | None) -> Quiet | None:
    if quiet is None or isinstance(quiet, Quiet):
        return quiet
    try:
        return Quiet.parsed(quiet)
    except ConfigError as error:
        raise ConfigError(f"target {name!r}: {error}") from None
