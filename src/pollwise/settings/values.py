"""Readers turn written values into values, and values back into text.

There is one reader for each type, whatever layer the value comes from: an environment variable can
only hold text, so "8" and 8 mean the same everywhere. A reader that refuses a value raises a
ValueError whose text continues the sentence "worker.lease = '1x' (pollwise.toml) …". The caller
knows the key and the origin.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from pollwise import durations
from pollwise.durations import Duration, seconds, short
from pollwise.errors import ConfigError, did_you_mean
from pollwise.runtime.redact import HIDDEN, is_secret, without_secrets, without_user

_YES = {"true", "yes", "on", "1"}
_NO = {"false", "no", "off", "0"}
# Keys and variables whose value should be a URL. In others, an @ may be part of a name.
_OF_URL = re.compile(r"(?:queue|store|database|state)\Z", re.IGNORECASE)


def shown(value: object, key: str = "") -> str:
    """A value as errors show it: quoted, without secrets, and shortened."""
    if is_secret(key.rpartition(".")[2]):
        return HIDDEN
    if isinstance(value, Mapping):
        return "{…}"
    if isinstance(value, (list, tuple, set)):
        return "[…]"
    if isinstance(value, str):
        hiding = without_user if _OF_URL.search(key) else without_secrets
        return durations.shown(hiding(value))
    return durations.shown(value)


class ValueReader(ABC):
    """Reads the values of one type. As an annotation, it makes pydantic use it too."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The type as the reference page names it."""

    @abstractmethod
    def read(self, value: object) -> object:
        """The value, or a ValueError."""

    def text(self, value: Any) -> str:
        """A value as text that `read` accepts, without secrets."""
        return str(value)

    def toml(self, value: Any) -> str:
        """A value as it is written in a TOML file."""
        return self.text(value)

    def __get_pydantic_core_schema__(
        self, source: type, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))


@dataclass(frozen=True)
class IntegerReader(ValueReader):
    """A whole number. Without bounds here, the code that uses the number checks it."""

    low: int | None = None
    high: int | None = None

    @property
    def kind(self) -> str:
        return "whole number" + between(self.low, self.high)

    def read(self, value: object) -> int:
        number = value
        if isinstance(value, str):
            with suppress(ValueError):
                number = int(value)
        if isinstance(number, bool) or not isinstance(number, int) or outside(self, number):
            raise ValueError(f"must be a {self.kind}")
        return number


class NumberReader(ValueReader):
    """A number. The code that uses it checks its bounds."""

    kind = "number"

    def read(self, value: object) -> float:
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            with suppress(ValueError, OverflowError):
                return float(value)
        raise ValueError("must be a number, such as 2 or 0.5")


@dataclass(frozen=True)
class DurationReader(ValueReader):
    """A duration, read into seconds. Its keys have a variant in milliseconds that ends in `_ms`."""

    low: float | None = None
    high: float | None = None

    @property
    def kind(self) -> str:
        bounds = (None if each is None else short(each) for each in (self.low, self.high))
        return "duration" + between(*bounds)

    def read(self, value: Any) -> float:
        length = read_seconds(value)
        if outside(self, length):
            raise ValueError(f"must be a {self.kind}")
        return length

    def text(self, value: float) -> str:
        for text in (short(value), f"{value}s"):
            with suppress(ConfigError):
                if seconds(text) == value:
                    return text
        return repr(value)

    def toml(self, value: float) -> str:
        return quoted(self.text(value))


class BooleanReader(ValueReader):
    """True or false."""

    kind = "true or false"

    def read(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        word = value.strip().lower() if isinstance(value, str) else ""
        if word not in _YES | _NO:
            raise ValueError("must be true or false")
        return word in _YES

    def text(self, value: bool) -> str:
        return "true" if value else "false"


@dataclass(frozen=True)
class ChoiceReader(ValueReader):
    """One of a few words, in lower or upper case."""

    words: tuple[str, ...]

    @property
    def kind(self) -> str:
        return f"one of {', '.join(self.words)}"

    def read(self, value: object) -> str:
        word = value.strip().lower() if isinstance(value, str) else ""
        if word in self.words:
            return word
        hint = did_you_mean(word, self.words, "")
        raise ValueError(f"must be one of {', '.join(map(repr, self.words))}{hint and f'; {hint}'}")

    def toml(self, value: str) -> str:
        return quoted(value)


@dataclass(frozen=True)
class TextReader(ValueReader):
    """Any text that is not empty."""

    @property
    def kind(self) -> str:
        return "text"

    def read(self, value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise ValueError("must be text that is not empty")
        return value

    def text(self, value: str) -> str:
        return without_secrets(value)

    def toml(self, value: str) -> str:
        return quoted(value)


@dataclass(frozen=True)
class UrlReader(TextReader):
    """The URL of a queue, or of an outbox's database.

    Only its form is checked; opening it shows whether it works.
    """

    what: str = "queue"
    example: str = "sqlite:///jobs.db"

    @property
    def kind(self) -> str:
        return f"{self.what} URL"

    def read(self, value: object) -> str:
        if not isinstance(value, str) or not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", value):
            a = "an" if self.what[0] in "aeiou" else "a"
            raise ValueError(f"is not {a} {self.what} URL; give one like {self.example!r}")
        return value


@dataclass(frozen=True)
class PublishReader(TextReader):
    """Where records are published: `order.*=redis://cache/0?stream=orders`.

    Patterns of kinds are separated by commas. Only its form is checked.
    """

    @property
    def kind(self) -> str:
        return "PATTERN=URL"

    def read(self, value: object) -> str:
        if not isinstance(value, str) or not re.match(r"[^=\s]+=[A-Za-z][A-Za-z0-9+.-]*://", value):
            raise ValueError(
                "is not PATTERN=URL; write like 'order.*=redis://cache/0?stream=orders'"
            )
        return value

    def text(self, value: str) -> str:
        patterns, _, url = value.partition("=")
        # The path of a webhook may be a secret too.
        shown = re.sub(r"(?<=[^/:])/.*", "", url) if url.startswith("http") else url
        return f"{patterns}={without_secrets(shown)}"


@dataclass(frozen=True)
class OptionalReader(ValueReader):
    """A value of another reader, or None, written "none" because TOML has no null."""

    reader: ValueReader

    @property
    def kind(self) -> str:
        return f"{self.reader.kind}, or none"

    def read(self, value: object) -> object:
        if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
            return None
        return self.reader.read(value)

    def text(self, value: object) -> str:
        return "none" if value is None else self.reader.text(value)

    def toml(self, value: object) -> str:
        return quoted("none") if value is None else self.reader.toml(value)


#: The start of a list or an object in JSON. A pattern such as `[ab]*` is neither.
_LIKE_JSON = re.compile(r"""\s*(?:\[\s*["'\]{]|\{)""")


@dataclass(frozen=True)
class ListReader(ValueReader):
    """Several texts: a list, or one text with commas or, where those may be part of a text, spaces.
    A text that is a list in JSON counts as that list. "none" is an empty list.

    commas: texts in one text are separated by commas.
    """

    reader: ValueReader
    commas: bool = True

    @property
    def kind(self) -> str:
        between = "commas" if self.commas else "spaces"
        return f"list of {self.reader.kind}s, or text with {between}"

    def read(self, value: object) -> tuple[Any, ...]:
        if isinstance(value, str) and _LIKE_JSON.match(value):
            try:
                value = json.loads(value)
            except ValueError:
                raise ValueError(
                    "looks like a list in JSON, but is not valid JSON; write like "
                    '\'["one", "two"]\''
                ) from None
        if isinstance(value, str):
            value = value.split(",") if self.commas else value.split()
            value = [each.strip() for each in value if each.strip() not in ("", "none")]
        if not isinstance(value, (list, tuple)):
            raise ValueError("must be a list, or text")  # noqa: TRY004 - as all readers do
        return tuple(map(self._read_one, value))

    def _read_one(self, value: object) -> object:
        try:
            return self.reader.read(value)
        except ValueError as error:
            raise ValueError(f"has {shown(value, 'store')}, which {error}") from None

    def text(self, value: Any) -> str:
        return ("," if self.commas else " ").join(map(self.reader.text, value)) or "none"

    def toml(self, value: Any) -> str:
        return f"[{', '.join(map(self.reader.toml, value))}]"


def is_duration(reader: ValueReader) -> bool:
    return isinstance(
        reader.reader if isinstance(reader, OptionalReader) else reader, DurationReader
    )


def read_seconds(value: Duration) -> float:
    try:
        return seconds(value, "it")
    except ConfigError as error:
        # The caller's sentence needs only the text after name and value. The value may be a
        # password in the wrong place, so it is removed or not quoted at all.
        said, start = str(error), f"it = {durations.shown(value)} "
        plainly = f"is not a duration; give {durations.type_names}"
        raise ValueError(said.removeprefix(start) if said.startswith(start) else plainly) from None


def read_milliseconds(value: object) -> float:
    try:
        return NumberReader().read(value) / 1000
    except ValueError:
        raise ValueError(
            "must be a number of milliseconds; to give a unit, leave `_ms` off the key"
        ) from None


def outside(reader: IntegerReader | DurationReader, value: float) -> bool:
    """True if a value is outside the bounds of its reader."""
    low, high = reader.low, reader.high
    return (low is not None and value < low) or (high is not None and value > high)


def between(low: object | None, high: object | None) -> str:
    if low is None and high is None:
        return ""
    return f" from {low}" if high is None else f" from {low} to {high}"


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
