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
