"""Alerts and notices that wait for the next save of their target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pollwise.alerts.values import Alert, Notice
from pollwise.fleet.stores.base import SaveExtras

_Rows = tuple[list[Alert], list[Notice]]


class UnsavedAlerts:
    """By the name of their target. Each alert is kept once, in its newest state."""

    def __init__(self) -> None:
        self._rows: dict[str, _Rows] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, target: str, alert: Alert | None, notices: Sequence[Notice]) -> None:
        alerts, unsent = self._rows.setdefault(target, ([], []))
        if alert is not None:
            alerts[:] = [each for each in alerts if each.id != alert.id]
            alerts.append(alert)
        unsent += notices

    def take(self, targets: Iterable[str]) -> dict[str, _Rows]:
        """Remove and return what belongs to these targets."""
        if not self._rows:
            return {}
        return {name: self._rows.pop(name) for name in targets if name in self._rows}

    def give_back(self, taken: dict[str, _Rows]) -> None:
        """Put back what could not be saved, before what was added meanwhile."""
        for name, (alerts, notices) in taken.items():
            newer, more = self._rows.get(name, ([], []))
            known = {each.id for each in newer}
            older = [each for each in alerts if each.id not in known]
            self._rows[name] = ([*older, *newer], [*notices, *more])


def with_alerts(extras: SaveExtras | None, taken: Mapping[str, _Rows]) -> SaveExtras:
    """The extra rows of a save, with these alerts and notices."""
    return replace(
        extras or SaveExtras(),
        alerts=[each for alerts, _ in taken.values() for each in alerts],
        notices=[each for _, notices in taken.values() for each in notices],
    )
