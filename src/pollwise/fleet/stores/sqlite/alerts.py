"""Alerts of a fleet in its SQLite file; their notices go to an outbox in the same file."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pollwise.alerts.notices import outbox_of_alerts, record_of
from pollwise.alerts.values import (
    ALERTS_KEPT,
    ALERTS_PER_TARGET,
    Alert,
    AlertFilter,
    AlertPage,
    Notice,
)
from pollwise.alerts.windows import WINDOWS_KEPT, WINDOWS_MAX, MaintenanceWindow
from pollwise.fleet.stores.maintenance_rows import (
    row_of_window,
    too_many_windows,
    window_of_row,
)
from pollwise.outbox.writers.common import OutboxTarget, put_once
from pollwise.storage.sqlite.file import SqliteFile, transaction


class AlertTables(SqliteFile):
    """Blocking calls for alerts, on the connection of the fleet's tables."""

    def keep_alerts(self, now: float, alerts: Sequence[Alert], notices: Sequence[Notice]) -> None:
        """Save alerts and put their notices, in the open transaction."""
        fleet = self._bound["fleet"]
        connection = self.connect()
        rows = [
            (
                fleet, each.id, each.target, each.group, each.rule, each.when, each.severity,
                each.state, each.since, each.opened_at, each.closed_at, each.summary, each.sent,
                each.last_sent_at,
            )
            for each in alerts
        ]  # fmt: skip
        connection.executemany(self._sql["keep_alert"], rows)
        closed = {each.target for each in alerts if each.state == "closed"}
        if closed:
            self._change("prune_alerts", before=now - ALERTS_KEPT)
        for target in closed:
            self._change("prune_alerts_of", target=target, most=ALERTS_PER_TARGET)
        if notices:
            name = outbox_of_alerts(fleet)
            put_once(
                OutboxTarget("sqlite", name, str(self.path), now=lambda: now),
                [record_of(each) for each in notices],
                lambda statement, values: connection.execute(statement, values).fetchall(),
            )

    def alerts(self, chosen: AlertFilter) -> AlertPage:
        values = {"group": chosen.group, "after": chosen.after, "limit": chosen.limit + 1}
        if chosen.target is not None:
            given = {"target": chosen.target, "state": chosen.state}
            rows = self._rows("alerts_of", **values, **given)
        elif chosen.state == "open":
            rows = self._rows("open_alerts", **values)
        else:
            rows = self._rows("alerts", **values, state=chosen.state)
        return AlertPage.of([Alert(*row) for row in rows], chosen.limit)

    def alerts_by_id(self, ids: Sequence[str]) -> list[Alert]:
        return [Alert(*row) for row in self._rows("alerts_by_id", ids=json.dumps(list(ids)))]

    def acknowledge(self, now: float, ids: Sequence[str], by: str, note: str = "") -> list[Alert]:
        with transaction(self.connect()):
            known = [
                id for id in ids if self._change("acknowledge", now=now, id=id, by=by, note=note)
            ]
            return self.alerts_by_id(known)

    def maintenance(self) -> list[MaintenanceWindow]:
        return [window_of_row(*row) for row in self._rows("maintenance")]

    def keep_maintenance(self, now: float, window: MaintenanceWindow) -> None:
        with transaction(self.connect()):
            self._change("prune_maintenance", before=now - WINDOWS_KEPT)
            if not self._change("keep_maintenance", most=WINDOWS_MAX, **row_of_window(window)):
                raise too_many_windows()

    def remove_maintenance(self, id: str) -> bool:
        with transaction(self.connect()):
            return bool(self._change("remove_maintenance", id=id))
