"""Targets and readings: what a fleet polls, how, and what comes back.

A target is an immutable definition, checked when it is created. Everything that changes while it is
polled (its due time, its state, its last reading) belongs to the fleet.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from pollwise.alerts.quiet import Quiet
from pollwise.alerts.rules import AlertRule, checked_rules
from pollwise.core.outcome import Plain
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.durations import Duration, seconds, short, shown
from pollwise.errors import ConfigError
from pollwise.fleet.locations.values import CONFIRM_FROM_MAX

#: Longer values are kept and compared as their digest.
VALUE_MAX = 256
#: Longer texts of a reading are cut, in bytes.
CONTENT_MAX = 32 * 1024
DIFF_MAX = 4 * 1024
#: Maximum length of a name, and maximum timeout in seconds.
NAME_MAX = 255
TIMEOUT_MAX = 3600.0
#: The timeout of a target that has none of its own.
TIMEOUT = 30.0
#: Minimum seconds between two polls that `detect_within` leaves.
DETECT_INTERVAL_MIN = 1.0
#: Maximum of `dead_after`: ten years, with a breaker that lets a poll through every five minutes.
DEAD_AFTER_MAX = 1_000_000

Value = bytes | str | None

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of one poll of a target.

    value: compared with the last reading; a value above 256 bytes is kept as its digest.
    changed_at: when the source last changed, in seconds since 1970, if it says so.
    facts: plain values for views: a status code, milliseconds, days left of a certificate.
    summary: one line for people.
    validators: for a conditional next poll: an ETag, a Last-Modified.
    content: the text to compare the next one with, for a probe that shows what changed; kept up to
        32 KiB.
    diff: what the last change of that text was, as a unified diff; kept up to 4 KiB.

    Every store and channel can take it: half of a surrogate pair, which JSON allows, is escaped in
    all texts, and facts become text if they are not plain values.
    """

    value: Value = None
    changed_at: float | None = None
    facts: Mapping[str, Plain] = field(default_factory=lambda: _NOTHING)
    summary: str = ""
    validators: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    content: str = ""
    diff: str = ""

    def __post_init__(self) -> None:
        if self.content or self.diff:
            object.__setattr__(self, "content", _bounded(self.content, CONTENT_MAX))
            object.__setattr__(self, "diff", _bounded(self.diff, DIFF_MAX))
        value = self.value
        if value is not None and len(value) > VALUE_MAX:
            raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
            object.__setattr__(self, "value", f"sha256:{hashlib.sha256(raw).hexdigest()}")
        elif isinstance(value, str) and not value.isascii():
            object.__setattr__(self, "value", _encodable(value))
        if not self.summary.isascii():
            object.__setattr__(self, "summary", _encodable(self.summary))
        for each in self.facts.values():
            if not _is_plain(each):
                facts = {key: _as_plain(fact) for key, fact in self.facts.items()}
                object.__setattr__(self, "facts", facts)
                break

    @classmethod
    def of(cls, answer: object) -> Reading:
        """The reading of a probe's return value: text, bytes, None, or anything JSON can encode."""
        if isinstance(answer, Reading):
            return answer
        if answer is None or isinstance(answer, (str, bytes)):
            return cls(answer)
        return cls(json.dumps(answer, sort_keys=True, default=str))

    def kept(self) -> dict[str, Any]:
        """The reading as plain values, for a store."""
        value: object = self.value
        if isinstance(value, bytes):
            value = {"base64": base64.b64encode(value).decode()}
        kept = {
            "value": value,
            "changed_at": self.changed_at,
            "facts": dict(self.facts),
            "summary": self.summary,
            "validators": dict(self.validators),
            "content": self.content,
            "diff": self.diff,
        }
        return {name: each for name, each in kept.items() if each or name == "value"}

    @classmethod
    def restored(cls, kept: Mapping[str, Any]) -> Reading:
        """The reading with these values of `kept()`."""
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
            kept.get("content", ""),
            kept.get("diff", ""),
        )


@dataclass(frozen=True, slots=True)
class ProbeContext:
    """The circumstances of a poll.

    last: the previous reading, with its validators; None at the first poll.
    deadline: when the poll is cancelled, in the event loop's time.
    epoch: the current time in seconds since 1970, by the fleet's clock.
    """

    last: Reading | None
    deadline: float
    epoch: float


#: Polls a target. It raises if the poll failed; after an error with `permanent = True` (no such
#: page, not allowed) that is confirmed, the target is dead.
Probe = Callable[["Target", ProbeContext], Awaitable[Any]]


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Target:
    """One thing a fleet polls.

    name: its name in views, events and metrics; unique in its fleet.
    probe: an async function of (target, context), or a probe type ("http"), with its `options`.
    interval: a duration is an exact interval, without jitter or drift; a strategy paces this target
        alone; None uses the fleet's strategy.
    base_interval, min_interval, max_interval: where it differs from the fleet's `Freshness`.
    weight: importance of a change here compared with other targets, when a budget is shared.
    priority: of targets that are due together, the highest is polled first.
    timeout: time limit of the whole poll, connecting and reading included.
    host: the number of polls at a time of targets with the same host is limited.
    group: its group in settings, where groups are paced separately.
    quiet: hours in which it is not polled: "22:00-06:00 Europe/Berlin".
    dead_after: number of failures in a row after which it is dead, and polled only every ten
        minutes; None uses the fleet's rules (10, about twenty minutes). Until then its breaker lets
        a poll through at least every 5 minutes.
    detect_within: time within which an outage, and its end, is noticed by a poll, the timeout of
        that poll included; None uses the fleet's. The interval is at most detect_within - timeout,
        also while the target fails, backs off or is dead. Quiet hours and pauses come first.
    confirm_from: number of locations that must see a failure before it counts, that of the node
        that holds the target included; needs nodes at several locations on one store.
    type: its probe type in metrics and views.
    labels: text for views.
    options: options of the probe type.
    alerts: rules by which alerts open: `AlertRule`, or only its condition, such as "down".
    behind: names of targets without which it cannot be reached, such as a router: while one of
        them is down, alerts of this target do not open.
    origin: where its definition is, for views: "code", "file" or "api".
    written: tells whether the definition was changed there, for `pollwise fleet diff`.
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
    detect_within: float | None
    confirm_from: int
    type: str
    labels: Mapping[str, str]
    options: Mapping[str, Any]
    alerts: tuple[AlertRule, ...]
    behind: tuple[str, ...]
    origin: str
    written: str

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
        timeout: Duration = TIMEOUT,
        host: str | None = None,
        group: str | None = None,
        quiet: str | Quiet | None = None,
        dead_after: int | None = None,
        detect_within: Duration | None = None,
        confirm_from: int = 1,
        type: str | None = None,
        labels: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        alerts: Iterable[AlertRule | str] | AlertRule | str = (),
        behind: Sequence[str] | str = (),
        origin: str = "code",
        written: str = "",
    ) -> None:
        _check_name(name)
        if not (callable(probe) or (isinstance(probe, str) and probe)):
            raise ConfigError(
                f"target {name!r}: probe = {shown(probe)} is neither an async function of "
                "(target, context) nor a probe type such as 'http'"
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
                f"to {DEAD_AFTER_MAX}: the failures in a row after which a target is dead"
            )
        if (
            isinstance(confirm_from, bool)
            or not isinstance(confirm_from, int)
            or not 1 <= confirm_from <= CONFIRM_FROM_MAX
        ):
            raise ConfigError(
                f"target {name!r}: confirm_from = {shown(confirm_from)} must be a whole number "
                f"from 1 to {CONFIRM_FROM_MAX}: the locations that must see a failure"
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
        detect = None if detect_within is None else _duration(name, "detect_within", detect_within)
        put(self, "detect_within", detect)
        put(self, "confirm_from", confirm_from)
        put(self, "type", type or (probe if isinstance(probe, str) else "function"))
        put(self, "labels", MappingProxyType(dict(labels)) if labels else _NOTHING)
        put(self, "options", MappingProxyType(dict(options)) if options else _NOTHING)
        put(self, "alerts", checked_rules(alerts, f"target {name!r}") if alerts else ())
        put(self, "behind", _behind(name, behind))
        put(self, "origin", origin)
        put(self, "written", written)
        if given or detect is not None:
            self.strategy(Freshness())  # refuses contradictions now

    def strategy(self, fleets: Strategy, detect_within: float | None = None) -> Strategy:
        """The strategy of this target in a fleet with the strategy `fleets`.

        detect_within: the fleet's, for targets without their own.
        """
        within = self.within(detect_within)
        if self.interval is not None:
            return self.interval
        longest = self.max_interval
        if self.base_interval is None and self.min_interval is None and longest is None:
            if within >= fleets.max_interval or not isinstance(fleets, Freshness):
                return fleets  # the scheduler keeps other strategies within it
        over = fleets if isinstance(fleets, Freshness) else Freshness()
        if within < (over.max_interval if longest is None else longest):
            longest = within
        try:
            return over.adjusted(self.base_interval, self.min_interval, longest)
        except ConfigError as error:
            raise ConfigError(f"target {self.name!r}: {error}") from None

    def within(self, detect_within: float | None = None) -> float:
        """Maximum seconds from the end of a poll to the next one, so that outages are noticed in
        time; infinity if there is no `detect_within`, neither its own nor the fleet's."""
        whose, limit = "", self.detect_within
        if limit is None:
            whose, limit = "the fleet's ", detect_within
        if limit is None:
            return math.inf
        left = limit - self.timeout
        said = f"target {self.name!r}: {whose}detect_within = {short(limit)}"
        if left < DETECT_INTERVAL_MIN:
            raise ConfigError(
                f"{said} must be at least {short(DETECT_INTERVAL_MIN)} longer than its timeout of "
                f"{short(self.timeout)}: a poll may take that long; lower the timeout, or raise "
                "detect_within"
            )
        fixed = None if self.interval is None else self.interval.min_interval
        for key, each in (
            ("interval", fixed), ("base_interval", self.base_interval),
            ("min_interval", self.min_interval),
        ):  # fmt: skip
            if each is not None and each > left:
                raise ConfigError(
                    f"{said} and {key} = {short(each)} contradict each other: with its timeout of "
                    f"{short(self.timeout)}, {key} must be at most {short(left)}"
                )
        return left

    def __repr__(self) -> str:
        # Without its options: a URL there may contain a password.
        return f"Target({self.name!r}, {self.type!r})"


def _encodable(text: str) -> str:
    """A text without halves of surrogate pairs, which no store and no answer can contain."""
    return text.encode("utf-8", "backslashreplace").decode()


def _is_plain(fact: object) -> bool:
    if isinstance(fact, str):
        return fact.isascii()
    if isinstance(fact, float):
        return math.isfinite(fact)
    return fact is None or isinstance(fact, int)


def _as_plain(fact: object) -> Plain:
    if _is_plain(fact):
        return fact  # type: ignore[return-value]
    if isinstance(fact, float):
        return None  # JSON knows no infinity
    return _encodable(str(fact))


def _bounded(text: str, most: int) -> str:
    text = text if text.isascii() else _encodable(text)
    if len(text) * 4 <= most or len(raw := text.encode("utf-8", "replace")) <= most:
        return text
    return raw[:most].decode("utf-8", "ignore")


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise ConfigError(f"name = {shown(name)} must be printable text that is not empty")
    if any(part in (".", "..") for part in name.split("/")):
        raise ConfigError(
            f"name = {shown(name)} has . or .. between slashes: browsers leave that out of an "
            "address, and show another target; write it differently"
        )
    if len(name) > NAME_MAX:
        raise ConfigError(f"name = {shown(name)} is longer than {NAME_MAX} characters")


def _behind(name: str, behind: object) -> tuple[str, ...]:
    names = [behind] if isinstance(behind, str) else behind
    if not isinstance(names, (list, tuple)) or not all(
        isinstance(each, str) and each for each in names
    ):
        raise ConfigError(
            f"target {name!r}: behind = {shown(behind)} must be the name of a target, or several"
        )
    if name in names:
        raise ConfigError(f"target {name!r}: behind = {name!r} is the target itself")
    return tuple(dict.fromkeys(names))


def _duration(name: str, key: str, given: Duration) -> float:
    return seconds(given, f"target {name!r}: {key}", positive=True)


def _paced(name: str, interval: Duration | Strategy | None) -> Strategy | None:
    if interval is None or isinstance(interval, Strategy):
        return interval
    return _exactly(_duration(name, "interval", interval))


@lru_cache(1000)
def _exactly(interval: float) -> Fixed:
    """One strategy for all targets with this interval."""
    return Fixed(interval)


def _quiet(name: str, quiet: str | Quiet | None) -> Quiet | None:
    if quiet is None or isinstance(quiet, Quiet):
        return quiet
    try:
        return Quiet.parsed(quiet)
    except ConfigError as error:
        raise ConfigError(f"target {name!r}: {error}") from None
