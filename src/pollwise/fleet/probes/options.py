"""Reads and checks the options of a probe; reports everything that is wrong at once.

Values that may be secret are never shown: of URLs what `shown_url` leaves, of headers and
environments only the names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pollwise.alerts.patterns import Pattern, compile_pattern
from pollwise.durations import seconds, shown
from pollwise.errors import ConfigError, ProbeError, ProbeRefused, did_you_mean
from pollwise.fleet.targets import Target
from pollwise.runtime.redact import HIDDEN, is_secret, shown_url

#: The units of a size: "512KiB".
UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "kib": 1024, "mib": 1024**2}
_CODES = re.compile(r"([1-9])[xX]{2}|(\d{1,3})\s*-\s*(\d{1,3})")
_SIZE = re.compile(r"\s*(\d+)\s*([a-z]*)\s*", re.IGNORECASE)

Problem = tuple[str, str]
T = TypeVar("T")


class BadOptions(ConfigError):
    """Wrong options. `problems` has the name of each and what is wrong with it."""

    def __init__(self, target: str, problems: Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        said = "; ".join(f"{key} {what}".strip() for key, what in problems)
        super().__init__(f"target {target!r}: {said}")


class ProbeOptions:
    """Reads a target's options. Wrong ones are replaced by defaults until `finish()` raises."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.problems: list[Problem] = []
        self._given: Mapping[str, Any] = target.options
        self._known: dict[str, None] = {}

    def wrong(self, key: str, what: str) -> None:
        """Add an error for an option: "must be …"."""
        self.problems.append((key, what))

    def has(self, key: str) -> bool:
        self._known[key] = None
        return self._given.get(key) is not None

    def raw(self, key: str) -> Any:
        self._known[key] = None
        return self._given.get(key)

    def text(self, key: str, default: str = "", *, needed: bool = False) -> str:
        """Text; with `needed` it must be present and not empty."""
        given = self.raw(key)
        if given is None and not needed:
            return default
        if given is None or (needed and given == ""):
            self.wrong(key, "is missing")
        elif not isinstance(given, str):
            self.wrong(key, f"= {_safe(key, given)} must be text")
        else:
            return given
        return default

    def one_of(self, key: str, words: Sequence[str], default: str) -> str:
        given = self.text(key, default)
        folded = given if given in words else next((w for w in words if w == given.lower()), None)
        if folded is None:
            hint = did_you_mean(given.lower(), words, f"give one of {', '.join(words)}")
            self.wrong(key, f"= {_safe(key, given)} is not known; {hint}")
            return default
        return folded

    def _checked(self, key: str, default: T, fits: Callable[[Any], bool], must: str) -> T:
        """The value of an option, if it `fits`; else the default."""
        given = self.raw(key)
        if given is None:
            return default
        if not fits(given):
            self.wrong(key, f"= {_safe(key, given)} must be {must}")
            return default
        return given  # type: ignore[no-any-return]

    def flag(self, key: str, default: bool) -> bool:
        return self._checked(key, default, lambda given: type(given) is bool, "true or false")

    def whole(self, key: str, default: int, minimum: int, maximum: int, also: str = "") -> int:
        must = f"a whole number from {minimum} to {maximum} {also}".rstrip()
        return self._checked(
            key, default, lambda n: type(n) is int and minimum <= n <= maximum, must
        )

    def codes(
        self, key: str, default: Iterable[int], low: int, high: int, what: str
    ) -> frozenset[int]:
        """One code from `low` to `high`, or a list of them; ranges are "200-299" or "2xx"."""
        given = self.raw(key)
        if given is None:
            return frozenset(default)
        written = given if isinstance(given, (list, tuple)) else [given]
        listed: list[Any] = [code for each in written for code in _codes_of(each)]
        if not listed or not all(_is_within(each, low, high) for each in listed):
            self.wrong(key, f"must be {what}, or a list of them")
            return frozenset(default)
        return frozenset(listed)

    def certificates(self, key: str = "ca") -> str | None:
        """The path of a file of certificates."""
        path = self.text(key) or None
        if path is not None and not Path(path).is_file():
            self.wrong(key, f"= {path!r} is not a file; give a file of certificates (PEM)")
        return path

    def duration(self, key: str, default: float) -> float:
        given = self.raw(key)
        if given is None:
            return default
        try:
            return seconds(given, key)
        except ConfigError as error:
            self.wrong(key, str(error).removeprefix(key).strip())
            return default

    def size(self, key: str, default: int) -> int:
        """Bytes, as a number or with a unit: "512KiB"."""
        given = self.raw(key)
        if given is None:
            return default
        if isinstance(given, int) and not isinstance(given, bool) and given > 0:
            return given
        found = _SIZE.fullmatch(given) if isinstance(given, str) else None
        if found is not None and found[2].lower() in UNITS and int(found[1]) > 0:
            return int(found[1]) * UNITS[found[2].lower()]
        self.wrong(key, f"= {_safe(key, given)} must be a number of bytes, or text like '512KiB'")
        return default

    def words(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        given = self.raw(key)
        if given is None:
            return ()
        if not isinstance(given, (list, tuple)) or not all(isinstance(w, str) for w in given):
            self.wrong(key, "must be a list of texts")
            return ()
        return tuple(given)

    def texts(self, key: str) -> dict[str, str]:
        """A table of texts. Errors show only its names: values may be secret."""
        given = self.raw(key)
        if given is None:
            return {}
        if not isinstance(given, Mapping) or not all(isinstance(k, str) for k in given):
            self.wrong(key, "must be a table of texts")
            return {}
        for name, each in given.items():
            if not isinstance(each, str):
                self.wrong(key, f"must have text for {name!r}")
        return {name: each for name, each in given.items() if isinstance(each, str)}

    def headers(self, key: str = "headers") -> dict[str, str]:
        """A table of headers, with their names in lower case."""
        headers: dict[str, str] = {}
        for name, value in self.texts(key).items():
            if not name or not all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in name):
                self.wrong(key, f"has {name!r}, which is not a header name")
            elif not value.isascii() or not value.isprintable():
                self.wrong(key, f"has an invalid value for {name!r}")
            else:
                headers[name.lower()] = value
        return headers

    def pattern(self, key: str) -> Pattern | None:
        """A regular expression."""
        given = self.text(key)
        if not given:
            return None
        try:
            return compile_pattern(given)
        except ConfigError as error:
            self.wrong(key, f"= {error}")
            return None

    def only_one(self, *keys: str) -> None:
        """Refuse two of these together."""
        given = [key for key in keys if self.has(key)]
        if len(given) > 1:
            self.wrong(given[1], f"and {given[0]} contradict each other; give one of them")

    def finish(self) -> None:
        """Raise all errors, unknown options included."""
        for key in self._given:
            if key not in self._known:
                self.wrong(key, f"is not an option; {hint(key, sorted(self._known))}")
        if self.problems:
            raise BadOptions(self.target.name, self.problems)


def hint(key: str, known: Sequence[str]) -> str:
    """The end of an error for an unknown key: the nearest known one, else all of them."""
    near = get_close_matches(key, known, 1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"


def failed(
    message: str, *, permanent: bool = False, retry_after: float | None = None
) -> ProbeError:
    """The error of a failed poll. The message says what was polled, without secrets.

    permanent: polling again would not help (no such page, not allowed): once
        confirmed, the target is dead.
    retry_after: seconds that the source asked to wait before the next poll.
    """
    error = ProbeRefused(message) if permanent else ProbeError(message)
    error.retry_after = retry_after
    return error


def _codes_of(given: object) -> list[object]:
    """The codes that are meant by one value."""
    found = _CODES.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        return [given]
    if found[1]:
        return list(range(int(found[1]) * 100, int(found[1]) * 100 + 100))
    return list(range(int(found[2]), int(found[3]) + 1)) or [given]


def _is_within(given: object, low: int, high: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and low <= given <= high


def _safe(key: str, given: object) -> str:
    if is_secret(key):
        return HIDDEN
    return shown(_plain(given))


def _plain(given: object) -> object:
    """The part of a value that may be shown."""
    if isinstance(given, str):
        return shown_url(given)
    if isinstance(given, (list, tuple)):
        return [_plain(each) for each in given]
    if isinstance(given, Mapping):
        return dict.fromkeys(given, HIDDEN)
    return given
