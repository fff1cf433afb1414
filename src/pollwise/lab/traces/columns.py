"""Reads one column of a file: CSV, NDJSON or plain lines, gzipped or not, with line numbers."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from pollwise.durations import shown
from pollwise.errors import ConfigError

#: Usual names of columns with times, most specific first.
TIME_NAMES = (
    *("arrival", "arrivals", "arrived_at", "timestamp", "timestamps", "time", "ts", "at"),
    *("created_at", "created", "sent_at", "event_time", "datetime", "date"),
)
#: Usual names of columns with counts.
COUNT_NAMES = ("count", "counts", "n", "arrivals", "requests", "invocations", "value", "total")

_GZIP = b"\x1f\x8b"
_DELIMITERS = ",;\t|"
#: First line of a file from `reading.write`: the span, which may end after the last arrival.
SPAN_MARK = "# span:"


class BadLine(Exception):
    """A line of a file that cannot be used; `reading.read` adds the name of the file."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")


@dataclass(frozen=True, slots=True)
class Cell:
    """A value and its line number."""

    line: int
    value: Any

    def wrong(self, problem: str) -> BadLine:
        """The error for this value."""
        return BadLine(self.line, f"{shown(self.value)} {problem}")


@dataclass(slots=True)
class Column:
    """The cells of one column; `span` is set if the file states it."""

    cells: list[Cell]
    span: float | None = None


def read_column(path: Path, column: str | int | None, names: Iterable[str]) -> Column:
    """Read the column with this name or number (from 1); None picks one of `names`, or the only."""
    result = Column([])
    with _opened(path) as lines:
        numbered = _content(lines, result)
        try:
            first = next(numbered, None)
            if first is None:
                raise ConfigError(f"{path} holds no arrivals; give a file with one arrival a line")
            rest = chain([first], numbered)
            text = first.value.lstrip()
            if text.startswith("["):
                raise BadLine(
                    first.line,
                    "this is one JSON array; give one value a line (convert it with jq -c '.[]')",
                )
            cells = _from_objects if text.startswith("{") else _from_table
            result.cells.extend(cells(rest, path, column, tuple(names)))
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path} is not text in UTF-8 with one value a line: {error}; convert it first"
            ) from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ConfigError(
                f"{path} is a damaged gzip file: {error}; download it again"
            ) from None
    return result


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        raw = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; check the path") from None
    with raw:
        packed = raw.read(2) == _GZIP
        raw.seek(0)
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
            yield text


def _content(lines: Iterable[str], column: Column) -> Iterator[Cell]:
    """Lines that are not empty and not comments; the span is noted in `column`."""
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if stripped.startswith(SPAN_MARK):
            try:
                column.span = float(stripped.removeprefix(SPAN_MARK))
            except ValueError:
                raise BadLine(
                    number, f"{shown(stripped)} does not give a span in seconds"
                ) from None
        elif stripped and not stripped.startswith("#"):
            yield Cell(number, line)


# NDJSON


def _from_objects(
    lines: Iterator[Cell], path: Path, column: str | int | None, names: tuple[str, ...]
) -> Iterator[Cell]:
    if isinstance(column, int):
        raise ConfigError(f"{path} holds JSON objects; name the column, not its number {column}")
    for line in lines:
        try:
            record = json.loads(line.value)
        except (ValueError, RecursionError) as error:
            problem = f"not JSON: {error}; give one object a line"
            raise BadLine(line.line, problem) from None
        if not isinstance(record, dict):
            raise BadLine(line.line, f"{shown(record)} is not a JSON object like the lines before")
        if column is None:
            column = _chosen_key(record, names, line.line)
        yield Cell(line.line, _inside(record, column, line.line))


def _chosen_key(record: dict[str, Any], names: tuple[str, ...], line: int) -> str:
    by_name = {key.lower(): key for key in record}
    for name in names:
        if name in by_name:
            return by_name[name]
    if len(record) == 1:
        return next(iter(record))
    raise BadLine(line, f"which column? name one of: {', '.join(map(str, record))}")


def _inside(record: dict[str, Any], column: str, line: int) -> Any:
    if column in record:
        return record[column]
    inner: Any = record
    for key in column.split("."):  # `request.sent_at` is a key inside `request`
        if not isinstance(inner, dict) or key not in inner:
            known = ", ".join(map(str, record))
            raise BadLine(line, f"it has no {column!r}{_meant(column, record)}; it has: {known}")
        inner = inner[key]
    return inner


# CSV and plain lines


def _from_table(
    lines: Iterator[Cell], path: Path, column: str | int | None, names: tuple[str, ...]
) -> Iterator[Cell]:
    first = next(lines)
    delimiter = max(_DELIMITERS, key=first.value.count)
    at = [first.line]

    def texts() -> Iterator[str]:
        for line in chain([first], lines):
            at[0] = line.line
            yield line.value

    rows = csv.reader(texts(), delimiter=delimiter, skipinitialspace=True)
    head = [cell.strip() for cell in next(rows)]
    try:
        index, titled = _place(head, column, names)
    except ConfigError as error:
        raise BadLine(first.line, str(error)) from None
    if not titled:
        yield Cell(first.line, head[index])
    for row in rows:
        if len(row) <= index:
            raise BadLine(at[0], f"it has no column {index + 1}, only {len(row)}")
        yield Cell(at[0], row[index].strip())


def _place(head: list[str], column: str | int | None, names: tuple[str, ...]) -> tuple[int, bool]:
    """The index of the column, and whether the first row is a header."""
    if column is None:
        return _guessed(head, names)
    if str(column).isdecimal():
        index = int(column) - 1
        if not 0 <= index < len(head):
            raise ConfigError(f"there is no column {column}; there are 1 to {len(head)}")
        return index, _is_title(head[index])
    if column in head:
        return head.index(str(column)), True
    if any(map(_is_value, head)):
        raise ConfigError(f"there is no header to find {column!r} in; give the column's number")
    known = ", ".join(head)
    raise ConfigError(f"no column is named {column!r}{_meant(str(column), head)}; known: {known}")


def _guessed(head: list[str], names: tuple[str, ...]) -> tuple[int, bool]:
    lower = [title.lower() for title in head]
    for name in names:
        if name in lower:
            return lower.index(name), True
    for index, cell in enumerate(head):
        if _is_value(cell):
            return index, False
    if len(head) > 1:
        raise ConfigError(f"which column? name one of: {', '.join(head)}")
    return 0, _is_title(head[0])


def _is_title(cell: str) -> bool:
    return (cell[:1].isalpha() or cell.startswith("_")) and not _is_value(cell)


def _is_value(cell: str) -> bool:
    """True for a number (nan included) or a date."""
    try:
        float(cell)
        return True
    except ValueError:
        pass
    try:
        datetime.fromisoformat(cell)
        return True
    except ValueError:
        return False


def _meant(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""
