"""Finds the time in each line of a log: of a web server, or with the time at the beginning."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pollwise.durations import shown
from pollwise.lab.traces.lines import BadLine, Cell

#: Common and combined logs of nginx and Apache, or their stamps alone.
_WEB = re.compile(
    r"(?:^|\[)(\d{1,2}/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d(?:\.\d{1,9})?)( [+-]\d{4})?(?=[\]\s]|$)",
    re.ASCII,
)
#: A time, then text: journalctl -o short-iso, exports of CloudWatch to S3, logging of Python.
_DATED = re.compile(
    r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?) ?(Z|[+-]\d\d:?\d\d)?\]? +[^\s]",
    re.ASCII,
)
_EXAMPLES = {_WEB: "[14/Nov/2026:10:00:00 +0000]", _DATED: "2026-11-14T10:00:00Z"}


def pattern_of(line: str) -> re.Pattern[str] | None:
    """How the lines of a log like this one are read; None if it is not the line of a log."""
    if _WEB.search(line):
        return _WEB
    return _DATED if _DATED.match(line) else None


def times(lines: Iterator[Cell], pattern: re.Pattern[str]) -> Iterator[Cell]:
    """The time of each line, as text."""
    for line in lines:
        found = pattern.search(line.value) if pattern is _WEB else pattern.match(line.value)
        if found is None:
            raise BadLine(
                line.where,
                f"{shown(line.value.rstrip())} has no time such as {_EXAMPLES[pattern]}, like the "
                "lines before; remove the line",
            )
        yield Cell(line.where, f"{found[1]}{found[2] or ''}")
