"""What the values of an answer must be, in words:

    status == UP                  the value at a JSON path, as text or as a number
    items[0].count >= 1           also !=, >, < and <=
    queue.depth in 0..100         a range, both ends included
    version matches ^2[.]         an expression
    not version matches rc        the opposite of any of them

A poll whose answer does not satisfy all of them fails, and its error names the value.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable
from typing import Any

from pollwise.alerts.patterns import Pattern, compile_pattern
from pollwise.durations import shown
from pollwise.errors import ConfigError
from pollwise.fleet.probes.json_paths import follow, json_path

#: The maximum number of checks of one target.
CHECKS_MAX = 50
_FORM = re.compile(r"(not\s+)?(.+?)\s+(==|!=|>=|<=|>|<|matches|in)\s+(\S.*)", re.DOTALL)
_RANGE = re.compile(r"(\S+?)\s*\.\.\s*(\S+)")
_NUMBERS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class ValueCheck:
    """One thing that a value must be."""

    __slots__ = (
        "_high",
        "_low",
        "_negated",
        "_op",
        "_path",
        "_pattern",
        "_text",
        "_where",
        "written",
    )

    def __init__(self, written: object) -> None:
        """ConfigError if it cannot be understood."""
        found = _FORM.fullmatch(written.strip()) if isinstance(written, str) else None
        if found is None or not isinstance(written, str):
            raise ConfigError(
                f"{shown(written)} is not a check; write 'status == UP', 'count in 1..5', "
                "'version matches ^2' or 'not version matches rc'"
            )
        self.written = written.strip()
        self._negated, self._where, self._op = bool(found[1]), found[2], found[3]
        self._path = json_path(self._where)
        self._text = _unquoted(found[4].strip())
        self._pattern: Pattern | None = None
        self._low = self._high = math.nan
        if self._op == "matches":
            self._pattern = compile_pattern(self._text)
        elif self._op == "in":
            ends = _RANGE.fullmatch(self._text)
            low, high = map(_number, ends.groups()) if ends else (None, None)
            if low is None or high is None or low > high:
                raise ConfigError(f"{shown(written)}: {self._text!r} is not a range such as 1..5")
            self._low, self._high = low, high
        elif self._op in _NUMBERS:
            number = _number(self._text)
            if number is None:
                raise ConfigError(f"{shown(written)}: {self._text!r} is not a number")
            self._low = number

    def failing(self, document: Any) -> str | None:
        """What is wrong with a document, for people; None if nothing is."""
        try:
            found = follow(document, self._path)
        except LookupError:
            return f"the answer has nothing at {self._where}, and must have {self.written!r}"
        if self._holds(found) != self._negated:
            return None
        return f"{self._where} is {_text(found)[:80]!r}, and must have {self.written!r}"

    def _holds(self, found: Any) -> bool:
        number = _number(found)
        if self._pattern is not None:
            return self._pattern.matches(_text(found))
        if self._op == "in":
            return number is not None and self._low <= number <= self._high
        if self._op in _NUMBERS:
            return number is not None and _NUMBERS[self._op](number, self._low)
        wanted = _number(self._text)
        same = _text(found) == self._text if None in (number, wanted) else number == wanted
        return same == (self._op == "==")


def _unquoted(text: str) -> str:
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
