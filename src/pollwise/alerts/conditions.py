"""Conditions: what a rule's `when` says, and whether it holds after a poll.

down                 the target failed and the failure is confirmed
breaker open         it failed several times in a row and is polled less often, or is dead
changed              the reading changed
stale 10m            no poll succeeded for ten minutes
latency > 2s         the poll took longer
value >= 100         the reading's value, as a number or as text
days_left < 14       any fact of the reading
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, Literal, NamedTuple

from pollwise.alerts.patterns import Pattern, compile_pattern
from pollwise.core.outcome import Plain
from pollwise.durations import seconds, short, shown
from pollwise.errors import ConfigError, did_you_mean

#: Maximum length of a condition.
WHEN_MAX = 500

ConditionKind = Literal["down", "breaker", "changed", "stale", "field"]

#: The fields that every reading has.
FIELDS = ("latency", "value")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_ORDER = frozenset((">", ">=", "<", "<="))
_FIELD = re.compile(
    r"([A-Za-z_][\w.-]*?)(?:\s*(>=|<=|==|!=|>|<|=)\s*|\s+(matches)(?:\s+|$))(.*)", re.DOTALL
)
_FORMS = (
    "write 'down', 'breaker open', 'changed', 'stale 10m', or a comparison such as 'latency > 2s', "
    "'days_left < 14', 'value == ok' or 'value matches ^ok'"
)


class Sighting(NamedTuple):
    """What a poll saw, as conditions see it.

    ok: the poll succeeded. down: its target counts as down. broken: its breaker is open.
    latency: seconds that the poll took. value, facts: of its reading; empty after a failure.
    """

    ok: bool
    down: bool
    changed: bool = False
    latency: float = 0.0
    value: str | bytes | None = None
    facts: Mapping[str, Plain] = {}
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition.

    after: of `stale`, its seconds.
    field, op, number, text: of a comparison. `number` is None if the right side is only text;
        `text` is the right side as written.
    """

    kind: ConditionKind
    after: float = 0.0
    field: str = ""
    op: str = ""
    number: float | None = None
    text: str = ""
    pattern: Pattern | None = dataclass_field(default=None, compare=False)

    @classmethod
    def parsed(cls, when: object) -> Condition:
        """The condition in a text; ConfigError if it is none.

        >>> Condition.parsed("latency > 2s").number
        2.0
        """
        if not isinstance(when, str) or not when.strip() or not when.isprintable():
            raise ConfigError(f"when = {shown(when)} is not a condition; {_FORMS}")
        if len(when) > WHEN_MAX:
            raise ConfigError(f"when = {shown(when)} is longer than {WHEN_MAX} characters")
        words = when.split()
        if words[0] in ("down", "changed") and len(words) == 1:
            return cls(words[0])  # type: ignore[arg-type]
        if words == ["breaker", "open"]:
            return cls("breaker")
        if words[0] == "stale" and not _FIELD.fullmatch(when.strip()):
            return cls("stale", _stale_after(when, words))
        return _comparison(when)

    def check(self, facts: Collection[str] | None, name: str = "when") -> None:
        """Refuse a field that the readings cannot have. facts: the names of their facts; None if
        they can have any."""
        if self.kind != "field" or facts is None or self.field in FIELDS or self.field in facts:
            return
        known = [*FIELDS, *(each for each in facts if each not in FIELDS)]
        raise ConfigError(
            f"{name} = {shown(str(self))}: these readings have no field {self.field!r}; "
            f"{did_you_mean(self.field, known)}"
        )

    def holds(self, seen: Sighting) -> bool | None:
        """True if it holds after this poll, False if not, None if the poll does not show it.

        `stale` holds only by the passing of time, so a poll can only end it. A comparison says
        nothing after a failed poll, or if the reading lacks the field.
        """
        if self.kind == "down":
            return seen.down
        if self.kind == "breaker":
            return seen.broken
        if self.kind == "changed":
            return seen.ok and seen.changed
        if self.kind == "stale":
            return False if seen.ok else None
        if not seen.ok:
            return None
        if self.field == "latency":
            return self._compares(seen.latency)
        return self._compares(seen.value if self.field == "value" else seen.facts.get(self.field))

    def _compares(self, found: object) -> bool | None:
        if found is None:
            return None
        if self.pattern is not None:
            return self.pattern.matches(_text(found))
        if self.number is not None:
            number = _number(found)
            if number is not None:
                return _COMPARE[self.op](number, self.number / seconds_in(self.field, self.text))
            if self.op in _ORDER:
                return None
        return _COMPARE[self.op](_text(found), self.text)

    def __str__(self) -> str:
        if self.kind == "stale":
            return f"stale {short(self.after)}"
        if self.kind == "field":
            looks_so = self.op != "matches" and self.number is None
            looks_so = looks_so and _number_or_duration(self.text) is not None
            text = f"'{self.text}'" if looks_so else self.text
            return f"{self.field} {self.op} {text}"
        return "breaker open" if self.kind == "breaker" else self.kind


def seconds_in(fact: str, text: str) -> float:
    """Seconds in one unit of the fact, if the right side of its comparison is a duration.

    `ms` and `…_ms` are in milliseconds, `days` and `days_…` in days, all others in seconds.
    """
    if _is_number(text):
        return 1.0
    if fact == "ms" or fact.endswith("_ms"):
        return 0.001
    return 86400.0 if fact == "days" or fact.startswith("days_") else 1.0


def _stale_after(when: str, words: list[str]) -> float:
    if len(words) < 2:
        raise ConfigError(
            f"when = {shown(when)}: say after how long without a success, as in 'stale 10m'"
        )
    return seconds(
        "".join(words[1:]), f"when = {shown(when)}: the time after 'stale'", positive=True
    )


def _comparison(when: str) -> Condition:
    found = _FIELD.fullmatch(when.strip())
    if found is None:
        what = did_you_mean(
            when.split()[0], ("down", "breaker open", "changed", "stale"), otherwise=_FORMS
        )
        raise ConfigError(f"when = {shown(when)} is not a condition; {what}")
    field, op, text = found[1], found[2] or found[3], found[4].strip()
    if op == "=":
        raise ConfigError(f"when = {shown(when)}: compare with '==', as in '{field} == {text}'")
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    if quoted:
        text = text[1:-1]
    elif not text:
        raise ConfigError(
            f"when = {shown(when)} lacks what to compare with, as in '{field} {op} 5'"
        )
    if op == "matches":
        try:
            return Condition("field", 0.0, field, op, None, text, compile_pattern(text))
        except ConfigError as error:
            raise ConfigError(f"when = {shown(when)}: {error}") from None
    number = None if quoted else _number_or_duration(text)
    if number is None and (op in _ORDER or field == "latency"):
        raise ConfigError(
            f"when = {shown(when)}: {shown(text)} is neither a number nor a duration such as '2s', "
            f"so '{field}' cannot be compared with it by '{op}'"
        )
    return Condition("field", 0.0, field, op, number, text)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _number_or_duration(text: str) -> float | None:
    if _is_number(text):
        return float(text)
    try:
        return seconds(text)
    except ConfigError:
        return None


def _number(found: object) -> float | None:
    if isinstance(found, bytes):
        found = _text(found)
    try:
        number = float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _text(found: object) -> str:
    if isinstance(found, bytes):
        return found.decode(errors="replace")
    if isinstance(found, bool):
        return "true" if found else "false"
    return str(found)
