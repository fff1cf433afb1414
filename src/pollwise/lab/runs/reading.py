"""Reads how long runs took: one run a line, as a plain column or as CSV, gzipped or not."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from pollwise.durations import seconds, shown
from pollwise.errors import ConfigError
from pollwise.lab.traces.lines import BadFile, BadLine, Cell, listed, meant, opened

#: Usual names of the columns, most specific first.
TIME_NAMES = ("seconds", "duration_s", "duration", "took", "elapsed", "runtime", "time")
GROUP_NAMES = ("group", "name", "kind", "job", "task")
#: The most runs of a file, and the longest run in seconds.
RUNS_MAX = 1_000_000
LONGEST_RUN = 30 * 86400.0


def read(path: Path, column: str | None = None, group: str | None = None) -> dict[str, list[float]]:
    """How long runs took, in order, by group; runs without a group have the group "".

    column, group: the names of the columns, or their numbers from 1; by default those with usual
    names, or else the only column. Durations are numbers of seconds, or written as 250ms or 1m30s.
    """
    found: dict[str, list[float]] = {}
    try:
        with opened(path) as text:
            for count, (name, took) in enumerate(_runs(text.cells(), column, group), 1):
                if count > RUNS_MAX:
                    raise BadFile(f"has more than {RUNS_MAX:,} runs; use a part of it")
                found.setdefault(name, []).append(took)
    except BadLine as error:
        raise ConfigError(f"{path}, {error}") from None
    except BadFile as error:
        raise ConfigError(f"{path} {error}") from None
    except csv.Error as error:
        raise ConfigError(f"{path} is not CSV: {error}; convert it first") from None
    if not found:
        raise ConfigError(f"{path} holds no runs; give a file with one duration a line")
    return found


def _runs(
    lines: Iterator[Cell], column: str | None, group: str | None
) -> Iterator[tuple[str, float]]:
    at: list[int | str] = [0]

    def texts() -> Iterator[str]:
        for line in lines:
            at[0] = line.where
            yield line.value

    rows = csv.reader(texts(), skipinitialspace=True)
    head = [cell.strip() for cell in next(rows, [])]
    if not head:
        return
    titled = not any(map(_is_duration, head))
    taken = _place(head, column, TIME_NAMES, titled, at[0])
    named = None if group is None else _place(head, group, (), titled, at[0])
    if taken is None:
        raise BadLine(at[0], f"which column has the durations? name one of: {listed(head)}")
    if group is None and titled:
        named = next((n for n, title in enumerate(head) if title.lower() in GROUP_NAMES), None)
    title = f"column {head[taken]!r}" if titled else f"column {taken + 1}"
    for row in rows if titled else chain([head], rows):
        if len(row) <= max(taken, named or 0):
            raise BadLine(at[0], f"it has {len(row)} columns; the durations are in {title}")
        try:
            took = seconds(row[taken].strip(), "duration")
        except ConfigError:
            problem = f"{shown(row[taken])} is not a duration; write seconds as 12.5, or 1m30s"
            raise BadLine(at[0], f"{title}: {problem}") from None
        if took > LONGEST_RUN:
            problem = f"{shown(row[taken])} is longer than 30 days; give seconds"
            raise BadLine(at[0], f"{title}: {problem}")
        yield "" if named is None else row[named].strip(), took


def _place(
    head: list[str], wanted: str | None, names: tuple[str, ...], titled: bool, where: int | str
) -> int | None:
    """The index of a column; None if it is not known which."""
    if wanted is None:
        lower = [title.lower() for title in head]
        usual = next((lower.index(name) for name in names if name in lower), None)
        if usual is not None or len(head) > 1:
            return usual if titled else next(n for n, cell in enumerate(head) if _is_duration(cell))
        return 0
    if wanted.isdecimal():
        if not 1 <= int(wanted) <= len(head):
            raise BadLine(where, f"there is no column {wanted}; there are 1 to {len(head)}")
        return int(wanted) - 1
    if not titled:
        raise BadLine(where, f"there is no header to find {wanted!r} in; give the column's number")
    if wanted not in head:
        problem = f"no column is named {wanted!r}{meant(wanted, head)}; known: {listed(head)}"
        raise BadLine(where, problem)
    return head.index(wanted)


def _is_duration(cell: str) -> bool:
    try:
        seconds(cell.strip(), "duration")
    except ConfigError:
        return False
    return True
