"""Finds the time in each line of a log, whose form is known by its first line.

| form | its lines |
|---|---|
| web | `… [14/Nov/2026:10:00:00 +0000] …`: nginx, Apache, HAProxy, S3 |
| dated | `2026-11-14T10:00:00Z …`: journald, CloudWatch, Python, Postgres, classic ELB, logcli |
| balancer | `h2 2026-11-14T10:00:00.123456Z app/…`: ALB, NLB |
| syslog | `<34>Nov 14 10:00:00 host …`, without a year; `<165>1 2026-11-14T10:00:00Z host …` |
| errors of nginx, Apache | `2026/11/14 10:00:00 [error] …`, `[Sat Nov 14 10:00:00.9 2026] …` |
| logfmt | `ts=2026-11-14T10:00:00Z level=info …` |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from pollwise.durations import shown
from pollwise.lab.traces.lines import BadLine, Cell
from pollwise.lab.traces.stamps import MONTHS

_ZONED = r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?) ?(Z|[+-]\d\d:?\d\d)?"
_MONTH = rf"({'|'.join(MONTHS)})"


@dataclass(frozen=True, slots=True)
class LogForm:
    """A form of lines.

    text: the time in a match, as ISO 8601, a number, or as web servers write it.
    yearless: that time has no year.
    """

    name: str
    pattern: re.Pattern[str]
    example: str
    text: Callable[[re.Match[str]], str]
    yearless: bool = False


def _form(
    name: str, pattern: str, example: str, text: Callable[[re.Match[str]], str], **rest: bool
) -> LogForm:
    return LogForm(name, re.compile(pattern, re.ASCII), example, text, **rest)


def _joined(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2] or ''}"


_FORMS = (
    # First: the line of a web server may begin with another time, of the syslog that carried it.
    _form(
        "log of a web server",
        r"(?:^|.*?\[)(\d{1,2}/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d(?:\.\d{1,9})?)( [+-]\d{4})?"
        r"(?=[\]\s]|$)",
        "[14/Nov/2026:10:00:00 +0000]",
        _joined,
    ),
    _form("log", rf"\[?{_ZONED}\]? +[^\s]", "2026-11-14T10:00:00Z", _joined),
    _form(
        "log of a load balancer",
        rf"(?:https?|h2|grpcs?|wss?|tls)(?: \d\.\d)? {_ZONED} ",
        "h2 2026-11-14T10:00:00.123456Z",
        _joined,
    ),
    _form("syslog", rf"<\d{{1,3}}>\d {_ZONED} ", "<165>1 2026-11-14T10:00:00Z", _joined),
    _form(
        "syslog",
        rf"(?:<\d{{1,3}}>)?{_MONTH} +(\d{{1,2}}) (\d\d:\d\d:\d\d(?:\.\d{{1,9}})?) [^\s]",
        "Nov 14 10:00:00",
        lambda m: f"{MONTHS.index(m[1]) + 1:02}-{int(m[2]):02}T{m[3]}",
        yearless=True,
    ),
    _form(
        "error log",
        r"(\d{4})/(\d\d)/(\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,9})?) [^\s]",
        "2026/11/14 10:00:00",
        lambda m: f"{m[1]}-{m[2]}-{m[3]}T{m[4]}",
    ),
    _form(
        "error log",
        rf"\[[A-Z][a-z]{{2}} {_MONTH} +(\d{{1,2}}) (\d\d:\d\d:\d\d(?:\.\d{{1,9}})?) (\d{{4}})\]",
        "[Sat Nov 14 10:00:00 2026]",
        lambda m: f"{m[4]}-{MONTHS.index(m[1]) + 1:02}-{int(m[2]):02}T{m[3]}",
    ),
    _form(
        "logfmt",
        r"(?=.*=.*=)(?:.*?\s)?(?:time|ts|timestamp|datetime|at|t)=(?:\"([^\"]+)\"|([^\s\"]+))",
        "ts=2026-11-14T10:00:00Z",
        lambda m: m[1] or m[2],
    ),
)


def form_of(line: str) -> LogForm | None:
    """How the lines of a log like this one are read; None if it is not the line of a log."""
    return next((form for form in _FORMS if form.pattern.match(line)), None)


def times(lines: Iterator[Cell], form: LogForm, year: int) -> Iterator[Cell]:
    """The time of each line, as text. year: of the last line, if lines have none.

    A line that begins with a blank belongs to the line before it.
    """
    found = _read_cells(lines, form)
    return _with_years(list(found), year) if form.yearless else found


def _read_cells(lines: Iterator[Cell], form: LogForm) -> Iterator[Cell]:
    for number, line in enumerate(lines):
        if number and line.value[:1] in " \t":
            continue
        match = form.pattern.match(line.value)
        if match is None:
            raise BadLine(
                line.where,
                f"{shown(line.value.rstrip())} has no time such as {form.example}, like the "
                "lines before; remove the line",
            )
        yield Cell(line.where, form.text(match))


def _with_years(cells: list[Cell], year: int) -> Iterator[Cell]:
    """The times with years: one more after each step from December to January."""
    turns = [b.value[:2] == "01" and a.value[:2] == "12" for a, b in pairwise(cells)]
    year -= sum(turns)
    for cell, turned in zip(cells, [False, *turns], strict=True):
        year += turned
        yield Cell(cell.where, f"{year}-{cell.value}")
