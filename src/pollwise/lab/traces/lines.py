"""Opens trace files: numbered lines of text, gzipped or not, within limits."""

from __future__ import annotations

import difflib
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from pollwise.durations import shown
from pollwise.errors import ConfigError

#: The longest line, and the longest JSON document, in characters.
LINE_MAX = 1024**2
DOCUMENT_MAX = 64 * 1024**2
#: The most characters of a file, unpacked, and the most lines.
SIZE_MAX = 8 * 1024**3
LINES_MAX = 20_000_000
#: First line of a file from `reading.write`: the span, which may end after the last arrival.
SPAN_MARK = "# span:"
#: A line of a W3C log with the names of its columns.
FIELDS_MARK = "#Fields:"

_GZIP = b"\x1f\x8b"
_MIB = 1024**2


class BadFile(Exception):
    """A file that cannot be used; `reading.read` puts its name before the text."""


class BadLine(Exception):
    """A line of a file that cannot be used, or a place in a JSON document."""

    def __init__(self, where: int | str, problem: str) -> None:
        super().__init__(f"{place_of(where)}: {problem}")


@dataclass(frozen=True, slots=True)
class Cell:
    """A value, and where it is: the number of a line, or a place in a document: `events[3]`."""

    where: int | str
    value: Any

    @property
    def place(self) -> str:
        return place_of(self.where)

    def wrong(self, problem: str) -> BadLine:
        """The error for this value."""
        return BadLine(self.where, f"{shown(self.value)} {problem}")


def place_of(where: int | str) -> str:
    """Where something is in a file, as text."""
    return f"line {where}" if isinstance(where, int) else where


class TraceText:
    """The text of a file, read line by line.

    span: what the file says of its span; None without it.
    fields: what it says of its columns, as CloudFront, IIS and other W3C logs do; else empty.
    """

    def __init__(self, text: TextIO, size_max: int) -> None:
        self._text = text
        self._size_max = size_max
        self._size = 0
        self.number: int = 0
        self.span: float | None = None
        self.fields: list[str] = []

    def cells(self) -> Iterator[Cell]:
        """The lines that are not empty and not comments; notes the span."""
        begun = False
        while line := self._line(begun):
            stripped = line.strip()
            if stripped.startswith(SPAN_MARK):
                self._note_span(stripped)
            elif stripped.startswith(FIELDS_MARK):
                self.fields = stripped.removeprefix(FIELDS_MARK).split()
            elif stripped and not stripped.startswith("#"):
                begun = True
                yield Cell(self.number, line)

    def rest(self, begin: str) -> str:
        """`begin` and all that was not read yet, as one document."""
        whole = begin + self._text.read(DOCUMENT_MAX + 1 - len(begin))
        self._count(len(whole) - len(begin))
        if len(whole) > DOCUMENT_MAX:
            raise BadFile(
                f"is a JSON document of more than {DOCUMENT_MAX // _MIB} MiB; use a part of it, or "
                "write one object a line (jq -c)"
            )
        return whole

    def _line(self, begun: bool) -> str:
        longest = LINE_MAX
        line = self._text.readline(longest + 1)
        if len(line) > longest and not begun and line.lstrip().startswith(("{", "[")):
            longest = DOCUMENT_MAX  # a document may be one line
            line += self._text.readline(longest + 1 - len(line))
        if len(line) > longest:
            raise BadLine(
                self.number + 1,
                f"it is longer than {longest // _MIB} MiB; a line should have one arrival",
            )
        self._count(len(line))
        if line:
            self.number += 1
        if self.number > LINES_MAX:
            raise BadFile(f"has more than {LINES_MAX:,} lines; use a part of it")
        return line

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > self._size_max:
            raise BadFile(f"has more than {self._size_max // _MIB} MiB of text; use a part of it")

    def _note_span(self, line: str) -> None:
        try:
            self.span = float(line.removeprefix(SPAN_MARK))
        except ValueError:
            problem = f"{shown(line)} does not give a span in seconds"
            raise BadLine(self.number, problem) from None


@contextmanager
def opened(path: Path, size_max: int = SIZE_MAX) -> Iterator[TraceText]:
    """The text of a file, unpacked if it is gzipped; raises `BadFile` for what is not text."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; check the path") from None
    with raw:
        try:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
                yield TraceText(text, size_max)
        except UnicodeDecodeError as error:
            problem = f"is not text in UTF-8 with one value a line: {error}; convert it first"
            raise BadFile(problem) from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadFile(f"is a damaged gzip file: {error}; download it again") from None


def meant(name: str, known: Iterable[str]) -> str:
    """A guess for a name that is unknown, to follow it in an error; else an empty text."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def listed(names: Iterable[str]) -> str:
    """Names for an error: at most twenty, each cut to a length that suits it."""
    every = list(names)
    some = [name[:40] for name in every[:20]]
    return ", ".join([*some, "…"] if len(every) > len(some) else some) or "nothing"
