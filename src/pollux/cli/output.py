"""What commands print: tables for people, one JSON document a command for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def fail(message: str) -> None:
    """Say on standard error what was wrong."""
    err.print(Text.assemble(("error: ", "bold red"), message))


def warn(message: str) -> None:
    """Say on standard error what to change soon."""
    err.print(Text.assemble(("warning: ", "bold yellow"), message))


def print_json(value: Any) -> None:
    """One JSON document on one line of standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "") -> None:
    """A plain table; `empty` is said instead when there are no rows."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    count = 0
    for row in rows:
        # Text, not str: what jobs contain must never be read as markup.
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
        count += 1
    out.print(table if count else Text(empty))


def moment(epoch: float) -> str:
    """Seconds since 1970 as people read them, in UTC."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
