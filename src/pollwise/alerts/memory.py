"""Alerts in memory, for a fleet without a store: the same views, but nothing survives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pollwise.alerts.values import ALERTS_PER_TARGET, Alert, AlertFilter, AlertPage

#: How many closed alerts are kept in all.
CLOSED_MAX = 10_000


class MemoryAlerts:
    """The alerts of one fleet. Bounded: the oldest closed ones are dropped."""

    def __init__(self) -> None:
        self._alerts: dict[str, Alert] = {}

    def save(self, alerts: Sequence[Alert]) -> None:
        """Keep these, each in place of the one with its id; its acknowledgement and its summary
        stay."""
        for alert in alerts:
            before = self._alerts.get(alert.id)
            if before is not None:
                if before.state == "closed":
                    continue
                alert = replace(
                    alert,
                    summary=before.summary,
                    acknowledged_at=before.acknowledged_at,
                    acknowledged_by=before.acknowledged_by,
                    note=before.note,
                )
            self._alerts[alert.id] = alert
            if alert.state == "closed":
                self._prune(alert.target)

    def _prune(self, target: str) -> None:
        closed = sorted(each.id for each in self._alerts.values() if each.state == "closed")
        ours = [each for each in closed if self._alerts[each].target == target]
        for each in {*closed[:-CLOSED_MAX], *ours[:-ALERTS_PER_TARGET]}:
            del self._alerts[each]

    def alerts(self, chosen: AlertFilter) -> AlertPage:
        found = [each for each in self._alerts.values() if chosen.matches(each)]
        found.sort(key=lambda each: each.id, reverse=True)
        return AlertPage.of(found[: chosen.limit + 1], chosen.limit)

    def alert(self, id: str) -> Alert | None:
        return self._alerts.get(id)

    def acknowledge(self, ids: Sequence[str], by: str, note: str, now: float) -> list[Alert]:
        """Acknowledge these open alerts; returns those that were open."""
        known = []
        for id in ids:
            alert = self._alerts.get(id)
            if alert is not None and alert.state == "open":
                alert = replace(alert, acknowledged_at=now, acknowledged_by=by, note=note)
                self._alerts[id] = alert
                known.append(alert)
        return known
