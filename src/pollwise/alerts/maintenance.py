"""Maintenance: times in which alerts of some targets are held back."""

from __future__ import annotations

from typing import Protocol


class Maintenance(Protocol):
    """Knows when targets are under maintenance."""

    def covers(self, target: str, group: str | None, epoch: float) -> float | None:
        """Until when a target is under maintenance at this time, both in seconds since 1970; None
        if it is not."""


class NoMaintenance:
    """No target is ever under maintenance."""

    def covers(self, target: str, group: str | None, epoch: float) -> float | None:
        return None
