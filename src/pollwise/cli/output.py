"""Output of commands: tables for people, one JSON document per command for scripts.

The contents of jobs come from others, so they are never interpreted: neither as rich's markup nor
as control sequences of the terminal.
"""

from __future__ import annotations

import io
import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

#: The width of a table in a pipe, where each row should stay on one line for `grep`.
PIPE_WIDTH = 10_000
NOTHING = "–"

# Format characters that some scripts and emoji need; they do not move the cursor.
_JOINERS = "\u200c\u200d"


class Unread(Exception):
    """The reader of the output has gone: `pollwise queue list … | head` is not an error."""


class _Pipe(Console):
    def on_broken_pipe(self) -> None:
        raise Unread  # rich would end the process with code 1


out = _Pipe(highlight=False)
err = _Pipe(stderr=True, highlight=False)


def fail(message: str) -> None:
    """Print an error to standard error."""
    err.print(Text.assemble(("error: ", "bold red"), visible_lines(message)), soft_wrap=True)


def warn(message: str) -> None:
    """Print a warning to standard error."""
    err.print(Text.assemble(("warning: ", "bold yellow"), visible_lines(message)), soft_wrap=True)


def say(*parts: str | tuple[str, str]) -> None:
    """Print one line: text, or (text, style). Only the terminal may wrap it."""
    out.print(Text.assemble(*parts), soft_wrap=True)


def say_aside(message: str) -> None:
    """Print a remark to standard error."""
    err.print(Text(visible_lines(message)), soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON document on one line, in ASCII."""
    try:
        sys.stdout.write(json.dumps(value, default=str) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise Unread from None


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str = "",
    narrow: Sequence[str] = (),
    cut: str = "",
) -> None:
    """Print a plain table, or `empty` if there are no rows.

    narrow: columns that keep their width while others shrink.
    cut: the column that ends in an ellipsis if too long; others continue on the next line.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in narrow)
    for row in rows:
        table.add_row(*(_cell(cell, name == cut) for name, cell in zip(columns, row, strict=True)))
    if table.row_count:
        print_wide(table)
    else:
        say(empty)


def print_wide(shown: RenderableType) -> None:
    """Print at the width of the terminal; in a pipe, at full width."""
    if out.is_terminal:
        out.print(shown)
        return
    wide = _Pipe(highlight=False, width=PIPE_WIDTH, file=io.StringIO())
    wide.print(shown)
    lines = wide.file.getvalue().splitlines()  # type: ignore[attr-defined]
    for line in lines:
        say(line.rstrip())


def _cell(value: object, cut: bool) -> Text:
    text = "" if value is None else visible(str(value))
    # Text, not str: rich must not read it as markup.
    return Text(text, no_wrap=True, overflow="ellipsis") if cut else Text(text)


def visible(text: str) -> str:
    """Escape control and invisible characters: "\\x1b[31m" is printed as written here."""
    if text.isprintable():
        return text
    return "".join(
        char if _shows(char) else char.encode("unicode_escape").decode() for char in text
    )


def visible_lines(text: str) -> str:
    """Like `visible`, but keep line breaks."""
    return "\n".join(visible(line) for line in text.split("\n"))


def _shows(char: str) -> bool:
    return char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs"


def moment(epoch: float) -> str:
    """Seconds since 1970 as date and time in UTC."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def rounded(seconds: float) -> str:
    """A duration with about two significant digits."""
    if 0 < seconds < 10 and seconds != round(seconds):
        return f"{seconds:.1f}s"
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02}h"
