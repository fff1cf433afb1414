"""Reads the sections of fleet.toml about alerts: maintenance windows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from pollwise.alerts.windows import MaintenanceWindow, read_window

#: Takes the number of a table in its section, if there is one, and what is wrong there.
Wrong = Callable[[int | None, str], None]


def maintenance_of(
    document: Mapping[str, Any],
    targets: Collection[str],
    groups: Collection[str],
    now: float,
    wrong: Wrong,
) -> tuple[MaintenanceWindow, ...]:
    """The windows of `[[maintenance]]`, with ids by their place in the file."""
    tables = document.get("maintenance", [])
    if not isinstance(tables, list):
        wrong(None, "maintenance is not a list of tables; write [[maintenance]]")
        return ()
    found = []
    for number, table in enumerate(tables):

        def refuse(what: str, number: int = number) -> None:
            wrong(number, f"maintenance: {what}")

        window = read_window(table, now, refuse, targets=targets, groups=groups, from_file=True)
        if window is not None:
            # The same at each reading, so that a reload of the same file changes nothing.
            found.append(replace(window, id=f"file-{number + 1}", made_at=0.0))
    return tuple(found)
