"""Adds, ends and removes the maintenance windows of a fleet: in its store, or in memory without
one. The windows of its file are changed in the file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pollwise.alerts.texts import moment_text
from pollwise.alerts.windows import MaintenanceWindow, MaintenanceWindows, read_window
from pollwise.durations import shown
from pollwise.errors import ConfigError, did_you_mean
from pollwise.fleet.stores.base import FleetStore


class NoSuchWindow(ConfigError):
    """There is no maintenance window with this id."""


class MaintenanceBook:
    """The maintenance windows of one fleet.

    store: where they are kept; None keeps them in `known` only.
    known: those that the fleet uses; with the windows of its file.
    """

    def __init__(self, store: FleetStore | None, known: MaintenanceWindows) -> None:
        self._store = store
        self._known = known

    async def windows(self) -> list[MaintenanceWindow]:
        """All windows, those of the file first."""
        if self._store is not None:
            self._known.set_stored(await self._store.maintenance())
        return list(self._known)

    async def add(
        self,
        table: Mapping[str, Any],
        by: str,
        now: float,
        *,
        targets: Collection[str],
        groups: Collection[str],
    ) -> MaintenanceWindow:
        """Add the window of a table; ConfigError has everything that is wrong with it.

        targets, groups: all names of the fleet.
        """
        problems: list[str] = []
        window = read_window(table, now, problems.append, targets=targets, groups=groups)
        if window is None:
            raise ConfigError("; ".join(problems))
        window = replace(window, made_by=by)
        await self._keep(window)
        return window

    async def end(self, id: str, now: float) -> MaintenanceWindow:
        """End a window that is under way; one that recurs begins again at its next time."""
        window = (await self._changeable(id)).ended(now)
        await self._keep(window)
        return window

    async def remove(self, id: str) -> MaintenanceWindow:
        """Delete a window, whether it is under way or not."""
        window = await self._changeable(id)
        if self._store is not None:
            await self._store.remove_maintenance(id)
        self._known.set_stored([each for each in self._known.stored if each.id != id])
        return window

    async def _changeable(self, id: str) -> MaintenanceWindow:
        known = {each.id: each for each in await self.windows()}
        found = known.get(id)
        if found is None:
            near = did_you_mean(id, known, "list them to see their ids")
            raise NoSuchWindow(f"there is no maintenance window {shown(id)}; {near}")
        if found.from_file:
            raise ConfigError(f"maintenance {id} is in the fleet's file; change it there")
        return found

    async def _keep(self, window: MaintenanceWindow) -> None:
        if self._store is not None:
            await self._store.keep_maintenance(window)
        others = [each for each in self._known.stored if each.id != window.id]
        self._known.set_stored([*others, window])


def in_words(window: MaintenanceWindow, now: float) -> str:
    """When a window is, for the audit log and for people."""
    parts = [] if window.every is None else [f"every {window.every}"]
    if window.starts_at is not None and (window.every is None or window.starts_at > now):
        parts.append(f"from {moment_text(window.starts_at)}")
    if window.ends_at is not None:
        parts.append(f"until {moment_text(window.ends_at)}")
    return " ".join(parts)
