"""What commands print: tables for people, one JSON document a command for scripts.

What jobs contain was written by others. It is shown, never obeyed: neither as rich's markup nor as
a terminal's control sequence.
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

#: How wide a table may be where no terminal sets the width: rows are for `grep` then.
PIPE_WIDTH = 10_000
NOTHING = "–"

# Format characters without which some scripts and emoji are misspelt; they move no cursor.
_JOINERS = "\u200c\u200d"


class Unread(Exception):
    """Whoever read the output has gone: `pollwise queue list … | head` is no error."""


class _Pipe(Console):
    def on_broken_pipe(self) -> None:
        raise Unread  # rich would end the process with code 1


out = _Pipe(highlight=False)
err = _Pipe(stderr=True, highlight=False)


def fail(message: str) -> None:
    """Say on standard error what was wrong."""
    err.print(Text.assemble(("error: ", "bold red"), visible_lines(message)), soft_wrap=True)


def warn(message: str) -> None:
    """Say on standard error what to change soon."""
    err.print(Text.assemble(("warning: ", "bold yellow"), visible_lines(message)), soft_wrap=True)


def say(*parts: str | tuple[str, str]) -> None:
    """Print one line: text as it is, or (text, style). The terminal wraps it, if anything does."""
    out.print(Text.assemble(*parts), soft_wrap=True)


def say_aside(message: str) -> None:
    """Say on standard error what belongs to no output."""
    err.print(Text(visible_lines(message)), soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on one line of standard output, in ASCII: fit for any pipe and terminal."""
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
    """A plain table; `empty` is said instead when there are no rows.

    narrow: columns that keep their width, while others give way.
    cut: the column whose cells end in an ellipsis where others go on in the next line.
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
    """Print what a terminal would cut, but a pipe shall have whole."""
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
    # Text, not str: it must never be read as markup.
    return Text(text, no_wrap=True, overflow="ellipsis") if cut else Text(text)


def visible(text: str) -> str:
    """Show what would not show, or would move the cursor: "\\x1b[31m" comes out as it is here."""
    if text.isprintable():
        return text
    return "".join(char if _shows(char) else _escaped(char) for char in text)


def visible_lines(text: str) -> str:
    """As `visible`, and line breaks stay."""
    return "\n".join(visible(line) for line in text.split("\n"))


def _shows(char: str) -> bool:
    return char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def moment(epoch: float) -> str:
    """Seconds since 1970 as people read them, in UTC."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
