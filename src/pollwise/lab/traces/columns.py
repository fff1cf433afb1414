"""Reads the times or the counts of a file, whose form is recognised by its content.

CSV and plain lines are read here; `logs`, `documents` and `metrics` have the other forms.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from pollwise.errors import ConfigError
from pollwise.lab.traces import documents, logs, metrics
from pollwise.lab.traces.lines import (
    SIZE_MAX,
    BadFile,
    BadLine,
    Cell,
    TraceText,
    listed,
    meant,
    opened,
)
from pollwise.lab.traces.metrics import ExportedSeries, Values
from pollwise.lab.traces.stamps import is_web_stamp, moment_of, number_of

#: Usual names of columns with times, most specific first.
TIME_NAMES = (
    *documents.LOG_KEYS,
    *("arrival", "arrivals", "arrived_at", "timestamp", "timestamps", "time", "ts", "at"),
    *("created_at", "created", "sent_at", "event_time", "datetime", "date", "msec"),
)
#: Usual names of columns with counts.
COUNT_NAMES = ("count", "counts", "n", "arrivals", "requests", "invocations", "value", "total")

_DELIMITERS = ",;\t|"


@dataclass(slots=True)
class Column:
    """What was found in a file: cells with times or counts, or series of metrics.

    span: set if the file states it.
    log: it is a log, which may be out of order.
    series, values: the series of metrics, and what their values are if the file says it.
    """

    cells: list[Cell] = field(default_factory=list)
    span: float | None = None
    log: bool = False
    series: list[ExportedSeries] | None = None
    values: Values = "auto"


def read_column(
    path: Path, column: str | int | None, names: Iterable[str], size_max: int = SIZE_MAX
) -> Column:
    """Read the column with this name or number (from 1); None picks one of `names`, or the only."""
    with opened(path, size_max) as text:
        found = _recognised(text, column, tuple(names))
        found.span = text.span
        return found


def _recognised(text: TraceText, column: str | int | None, names: tuple[str, ...]) -> Column:
    lines = text.cells()
    first = next(lines, None)
    if first is None:
        raise BadFile("holds no arrivals; give a file with one arrival a line")
    pattern = None if column is not None else logs.pattern_of(first.value)
    if pattern is not None and names != COUNT_NAMES:
        return Column(list(logs.times(chain([first], lines), pattern)), log=True)
    if first.value.lstrip().startswith(("{", "[")):
        return _from_json(documents.values(text, first, lines), column, names)
    try:
        cells = list(_from_table(chain([first], lines), column, names))
    except csv.Error as error:
        raise BadFile(f"is not CSV: {error}; convert it first") from None
    return Column(cells, log=bool(cells) and is_web_stamp(cells[0].value))


def _from_json(values: Iterator[Cell], column: str | int | None, names: tuple[str, ...]) -> Column:
    if isinstance(column, int) or (column is not None and column.isdecimal()):
        raise BadFile(f"holds JSON; name the column, not its number {column}")
    document = next(values)
    metric = metrics.series_of(document.value)
    if metric is not None:
        more = next(values, None)
        if more is not None:
            raise BadLine(more.where, "a second document follows; put each into a file of its own")
        return Column(series=metric[0], values=metric[1])
    found = documents.records(chain([document], values), names)
    cells = list(documents.times(found, column, names))
    log = documents.is_log(document.value, names) or (bool(cells) and is_web_stamp(cells[0].value))
    return Column(cells, log=log)


# CSV and plain lines


def _from_table(
    lines: Iterator[Cell], column: str | int | None, names: tuple[str, ...]
) -> Iterator[Cell]:
    first = next(lines)
    delimiter = max(_DELIMITERS, key=first.value.count)
    at = [first.where]

    def texts() -> Iterator[str]:
        for line in chain([first], lines):
            at[0] = line.where
            yield line.value

    rows = csv.reader(texts(), delimiter=delimiter, skipinitialspace=True)
    head = [cell.strip() for cell in next(rows)]
    try:
        index, titled = _place(head, column, names)
    except ConfigError as error:
        raise BadLine(first.where, str(error)) from None
    if not titled:
        yield Cell(first.where, head[index])
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
    known = listed(head)
    raise ConfigError(f"no column is named {column!r}{meant(str(column), head)}; known: {known}")


def _guessed(head: list[str], names: tuple[str, ...]) -> tuple[int, bool]:
    lower = [title.lower() for title in head]
    for name in names:
        if name in lower:
            return lower.index(name), True
    for index, cell in enumerate(head):
        if _is_value(cell):
            return index, False
    if len(head) > 1:
        raise ConfigError(f"which column? name one of: {listed(head)}")
    return 0, _is_title(head[0])


def _is_title(cell: str) -> bool:
    return (cell[:1].isalpha() or cell.startswith("_")) and not _is_value(cell)


def _is_value(cell: str) -> bool:
    """True for a number (nan included) or a time."""
    return number_of(cell) is not None or moment_of(cell) is not None
