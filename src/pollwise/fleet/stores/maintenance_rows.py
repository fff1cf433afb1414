"""Maintenance windows as rows of a table, the same for all stores."""

from __future__ import annotations

import json
from typing import Any

from pollwise.alerts.quiet import Quiet
from pollwise.alerts.windows import WINDOWS_MAX, MaintenanceWindow
from pollwise.errors import ConfigError, StoreError


def row_of_window(window: MaintenanceWindow) -> dict[str, Any]:
    """The columns of a window, by name."""
    return {
        "id": window.id,
        "targets": json.dumps(window.targets),
        "groups": json.dumps(window.groups),
        "every": None if window.every is None else str(window.every),
        "starts_at": window.starts_at,
        "ends_at": window.ends_at,
        "note": window.note,
        "made_by": window.made_by,
        "made_at": window.made_at,
    }


def window_of_row(
    id: str, targets: str, groups: str, every: str | None, *rest: Any
) -> MaintenanceWindow:
    """The window of a row."""
    try:
        hours = None if every is None else Quiet.parsed(every, "every")
    except ConfigError as error:
        raise StoreError(f"maintenance {id} cannot be read: {error}; remove it") from None
    names = (tuple(json.loads(targets)), tuple(json.loads(groups)))
    return MaintenanceWindow(id, *names, hours, *rest)


def too_many_windows() -> ConfigError:
    return ConfigError(
        f"there are {WINDOWS_MAX} maintenance windows already; remove some, or let one recur"
    )
