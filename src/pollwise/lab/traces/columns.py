"""Reads the times or the counts of a file, whose form is recognised by its content.

CSV and plain lines are read here; `logs`, `documents` and `metrics` have the other forms.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path

from pollwise.durations import shown
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
from pollwise.lab.traces.stamps import (
    is_clock,
    is_day,
    is_epoch,
    is_web_stamp,
    moment_of,
    number_of,
)

#: Usual names of columns with times, most specific first.
TIME_NAMES = (
    *documents.LOG_KEYS,
    *("arrival", "arrivals", "arrived_at", "timestamp", "timestamps", "time", "ts", "at"),
    *("created_at", "created", "sent_at", "event_time", "datetime", "date", "msec"),
)
#: Usual names of columns with counts.
COUNT_NAMES = ("count", "counts", "n", "arrivals", "requests", "invocations", "value", "total")

_DELIMITERS = ",;\t|"
#: The columns of a file without a head are judged by this many lines.
_SAMPLE = 100
#: How a dump of Postgres begins, and how its tables do.
_DUMP = re.compile(r"--\s*$|-- PostgreSQL|\\restrict |SET |COPY ")
_COPY = re.compile(r"COPY (\S+) \((.*)\) FROM stdin;")


@dataclass(slots=True)
class Column:
    """What was found in a file: cells with times or counts, or series of metrics.

    span: set if the file states it.
    log: it is a log, which may be out of order.
    called: where its cells were found, in words.
    series, values: the series of metrics, and what their values are if the file says it.
    """

    cells: list[Cell] = field(default_factory=list)
    span: float | None = None
    log: bool = False
    called: str = ""
    series: list[ExportedSeries] | None = None
    values: Values = "auto"


def read_column(
    path: Path, column: str | int | None, names: Iterable[str], size_max: int = SIZE_MAX
) -> Column:
    """Read the column with this name or number (from 1); None picks one of `names`, or the only."""
    with opened(path, size_max) as text:
        year = datetime.fromtimestamp(path.stat().st_mtime, UTC).year
        found = _recognised(text, column, tuple(names), year)
        found.span = text.span
        return found


def _recognised(
    text: TraceText, column: str | int | None, names: tuple[str, ...], year: int
) -> Column:
    lines = text.cells()
    first = next(lines, None)
    if first is None:
        raise BadFile("holds no arrivals; give a file with one arrival a line")
    form = None if column is not None or text.fields else logs.form_of(first.value)
    if form is not None and names != COUNT_NAMES:
        cells = list(logs.times(chain([first], lines), form, year))
        return Column(cells, log=True, called=f"lines of a {form.name}")
    if _DUMP.match(first.value):
        return _from_dump(chain([first], lines), column, names)
    if first.value.lstrip().startswith(("{", "[")):
        return _from_json(documents.values(text, first, lines), column, names)
    try:
        table, called = _from_table(chain([first], lines), text.fields, column, names)
        cells = list(table)
    except csv.Error as error:
        raise BadFile(f"is not CSV: {error}; convert it first") from None
    log = bool(text.fields) or (bool(cells) and is_web_stamp(cells[0].value))
    return Column(cells, log=log, called=called)


def _from_json(values: Iterator[Cell], column: str | int | None, names: tuple[str, ...]) -> Column:
    if isinstance(column, int) or (column is not None and column.isdecimal()):
        raise BadFile(f"holds JSON; name the column, not its number {column}")
    document = next(values)
    streams = documents.streamed(document.value)
    if streams is not None:
        return Column(streams, log=True, called="entries of streams of Loki")
    metric = metrics.series_of(document.value)
    if metric is not None:
        more = next(values, None)
        if more is not None:
            raise BadLine(more.where, "a second document follows; put each into a file of its own")
        return Column(series=metric[0], values=metric[1])
    found = documents.records(chain([document], values), names)
    cells, key = documents.times(found, column, names)
    log = documents.is_log(document.value, names) or (bool(cells) and is_web_stamp(cells[0].value))
    return Column(cells, log=log, called=f"key {key!r}" if key else "values of a list")


# CSV and plain lines


def _from_table(
    lines: Iterator[Cell], fields: list[str], column: str | int | None, names: tuple[str, ...]
) -> tuple[Iterator[Cell], str]:
    """The cells of the column, and what to call it. fields: its head, if the file said it."""
    sample = list(islice(lines, _SAMPLE))
    delimiter = _delimiter(sample, fields)
    at = [sample[0].where]

    def texts() -> Iterator[str]:
        for line in chain(sample, lines):
            at[0] = line.where
            yield line.value

    def rows_of(texts: Iterable[str]) -> Iterator[list[str]]:
        return csv.reader(texts, delimiter=delimiter, skipinitialspace=True)

    looked = [[cell.strip() for cell in row] for row in rows_of(each.value for each in sample)]
    head = fields or looked[0]
    try:
        index, titled = _place(head, column, names, looked)
    except ConfigError as error:
        raise BadLine(sample[0].where, str(error)) from None
    first = looked[1:2] if titled and not fields else looked[:1]
    if first and is_clock(first[0][index]):
        index = next((n for n, cell in enumerate(first[0]) if is_day(cell)), index)
    clock = _clock_beside(first[0], index) if first else None
    called = f"column {index + 1}" if len(head) > 1 else "the only column"
    if titled or fields:
        called += f" {head[index]!r}"
    if clock is not None:
        called += f" and column {clock + 1}" + (f" {head[clock]!r}" if titled or fields else "")

    def cells() -> Iterator[Cell]:
        rows = rows_of(texts())
        if titled and not fields:
            next(rows)
        width = max(index, clock or 0)
        for row in rows:
            if len(row) <= width:
                raise BadLine(at[0], f"it has no column {width + 1}, only {len(row)}")
            text = row[index].strip()
            yield Cell(at[0], text if clock is None else f"{text}T{row[clock].strip()}")

    return cells(), called


def _delimiter(sample: list[Cell], fields: list[str]) -> str:
    """What separates the columns: what is as often in each line, tabs first."""
    counts = {each: {line.value.count(each) for line in sample} for each in _DELIMITERS}
    if fields and not max(counts["\t"]):
        return " "
    if min(counts["\t"]) == max(counts["\t"]) > 0:
        return "\t"
    return max(_DELIMITERS, key=sample[0].value.count)


def _clock_beside(row: list[str], index: int) -> int | None:
    """The column with the time of day, if the chosen one has a date alone."""
    if not is_day(row[index]):
        return None
    return next((n for n, cell in enumerate(row) if is_clock(cell)), None)


def _place(
    head: list[str], column: str | int | None, names: tuple[str, ...], rows: list[list[str]]
) -> tuple[int, bool]:
    """The index of the column, and whether the first row is a header."""
    if column is None:
        return _guessed(head, names, rows)
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


def _guessed(head: list[str], names: tuple[str, ...], rows: list[list[str]]) -> tuple[int, bool]:
    lower = [title.lower() for title in head]
    for name in names:
        if name in lower:
            return lower.index(name), True
    if len(head) == 1:
        return 0, _is_title(head[0])
    if not any(map(_is_value, head)):
        raise ConfigError(f"which column? name one of: {listed(head)}")
    if names == COUNT_NAMES:
        return next(n for n, cell in enumerate(head) if _is_value(cell)), False
    # Without a head, only a column that can be nothing else is taken: ids are numbers, too.
    found = [
        n for n in range(len(head))
        if all(len(row) > n and _is_moment(row[n]) for row in rows)
    ]  # fmt: skip
    if len(found) == 1:
        return found[0], False
    if found:
        which = ", ".join(f"{n + 1} ({shown(head[n])})" for n in found)
        raise ConfigError(f"which column? there is no header, and these hold times: {which}")
    raise ConfigError(
        f"there is no header, and no column of the first {len(rows)} lines holds dates or times "
        "since 1970; give the number of the column with the times"
    )


def _is_moment(cell: str) -> bool:
    """True for what can only be a time."""
    return is_epoch(cell) if number_of(cell) is not None else moment_of(cell) is not None


def _is_title(cell: str) -> bool:
    return (cell[:1].isalpha() or cell.startswith("_")) and not _is_value(cell)


def _is_value(cell: str) -> bool:
    """True for a number (nan included) or a time."""
    return number_of(cell) is not None or moment_of(cell) is not None


# Dumps of Postgres


def _from_dump(lines: Iterator[Cell], column: str | int | None, names: tuple[str, ...]) -> Column:
    """The column of the one table of a dump that has times; with `column`, of its table."""
    table, _, wanted = str(column or "").rpartition(".")
    found: Column | None = None
    others: list[str] = []
    for line in lines:
        begun = _COPY.match(line.value)
        if begun is None:
            continue
        head = [each.strip().strip('"') for each in begun[2].split(",")]
        name = begun[1].replace('"', "")
        chosen = (
            next((n for n in names if n in head), None)
            if column is None
            else wanted
            if wanted in head and name.endswith(table)
            else None
        )
        if chosen is None:
            for each in lines:
                if each.value.rstrip() == "\\.":
                    break
            continue
        others.append(f"{name}.{chosen}")
        cells: list[Cell] = []
        for each in lines:
            if each.value.rstrip("\r\n") == "\\.":
                break
            row = each.value.rstrip("\r\n").split("\t")
            if len(row) != len(head):
                raise BadLine(each.where, f"it has {len(row)} columns, and its table {len(head)}")
            cells.append(Cell(each.where, row[head.index(chosen)]))
        if cells or found is None:
            # A dump is in the order of the table's pages, not of its times.
            found = Column(cells, log=True, called=f"column {chosen!r} of table {name}")
    if len(others) > 1:
        raise BadFile(f"is a dump; which column? name one with its table: {listed(others)}")
    if found is None:
        what = "times" if column is None else repr(column)
        raise BadFile(
            f"is a dump without a table that has a column with {what}; name one as TABLE.COLUMN, "
            "and dump with COPY, not with --inserts"
        )
    return found
