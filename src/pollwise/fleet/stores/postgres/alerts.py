"""Alerts of a fleet as Postgres gets them; their notices go to an outbox in the same schema."""

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
from pollwise.outbox.writers.common import row_of
from pollwise.runtime.jobs import storable
from pollwise.storage.postgres.database import Database
from pollwise.storage.postgres.params import Param, number, text, texts

#: The fields of an alert that a save writes.
_WRITTEN = (
    "id", "target", "group", "rule", "when", "severity", "state", "since", "opened_at", "closed_at",
    "summary", "sent", "last_sent_at",
)  # fmt: skip
_TEXTS = frozenset(("target", "group", "rule", "when", "summary"))


class AlertTables:
    """The calls for alerts on the tables of a fleet."""

    def __init__(self, database: Database, fleet: str) -> None:
        self._database = database
        self._fleet = text(fleet)
        self._outbox = text(outbox_of_alerts(fleet))

    def params(self, alerts: Sequence[Alert], notices: Sequence[Notice]) -> list[Param]:
        """The parameters of `save_with_alerts` after those of `save`."""
        rows = [
            {
                name: storable(getattr(each, name)) if name in _TEXTS else getattr(each, name)
                for name in _WRITTEN
            }
            for each in alerts
        ]
        # A target's name is compared with those of the save, so it is written as there.
        records = [(each.target, row_of(record_of(each))) for each in notices]
        return [
            self._outbox,
            text(json.dumps(rows)),
            text(json.dumps(records)),
            number(ALERTS_KEPT),
            number(ALERTS_PER_TARGET),
            self._database.now(),
        ]

    async def page(self, chosen: AlertFilter) -> AlertPage:
        wanted = (chosen.state, chosen.target, chosen.group, chosen.after)
        params = [self._fleet, *map(text, wanted), number(chosen.limit + 1)]
        rows = await self._database.rows("alerts", params, safe=True)
        return AlertPage.of([Alert(*row) for row in rows], chosen.limit)

    async def by_id(self, ids: Sequence[str]) -> list[Alert]:
        rows = await self._database.rows("alerts_by_id", [self._fleet, texts(ids)], safe=True)
        return [Alert(*row) for row in rows]

    async def acknowledge(self, ids: Sequence[str], by: str, note: str) -> list[Alert]:
        said = [text(storable(each)) for each in (by, note)]
        params = [self._fleet, texts(ids), *said, self._database.now()]
        rows = await self._database.rows("acknowledge", params, safe=True)
        return await self.by_id([id for (id,) in rows])

    async def maintenance(self) -> list[MaintenanceWindow]:
        rows = await self._database.rows("maintenance", [self._fleet], safe=True)
        return [window_of_row(*row) for row in rows]

    async def keep_maintenance(self, window: MaintenanceWindow) -> None:
        row = row_of_window(window)
        given: list[Param] = []
        for value in row.values():
            plain = isinstance(value, (int, float))
            given.append(number(value) if plain else text(storable(value) if value else value))
        kept = [number(WINDOWS_KEPT), self._database.now()]
        await self._database.rows("prune_maintenance", [self._fleet, *kept], safe=True)
        params = [self._fleet, *given, number(WINDOWS_MAX)]
        if not await self._database.rows("keep_maintenance", params, safe=True):
            raise too_many_windows()

    async def remove_maintenance(self, id: str) -> bool:
        params = [self._fleet, text(storable(id))]
        return bool(await self._database.rows("remove_maintenance", params, safe=True))
