"""The history of targets in Postgres: calls of a fleet's store."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pollwise.fleet.history.packing import packed
from pollwise.fleet.history.values import (
    DAYS_KEPT,
    HOURS_KEPT,
    PERIODS_KEPT,
    Period,
    PeriodState,
    RollupLength,
    TargetRollup,
)
from pollwise.fleet.stores.base import FleetStore, SavedTarget, SaveExtras, TargetTimes
from pollwise.fleet.stores.history_rows import (
    place_of,
    rollup_from,
    rollup_row,
    times_from,
    window_places,
)
from pollwise.runtime.jobs import storable
from pollwise.storage.postgres.params import Param, flag, number, numbers, text, texts

if TYPE_CHECKING:
    from pollwise.storage.postgres.database import Database


class PostgresTargetHistory(FleetStore):
    """The calls for history; part of the store of a fleet."""

    keeps_history: ClassVar[bool] = True
    database: Database

    async def rollups(
        self, names: Sequence[str], length: RollupLength, since: float, *, figures: bool = True
    ) -> list[TargetRollup]:
        places = [number(each) for each in place_of(length, since)]
        params = [text(self.name), texts(names), *places, flag(figures)]
        rows = await self.database.rows("rollups", params, safe=True)
        return [rollup_from(length, *row) for row in rows]

    async def spent(
        self, names: Sequence[str], windows: Sequence[tuple[RollupLength, float]], until: float
    ) -> list[TargetTimes]:
        places = zip(*window_places(windows, until), strict=True)
        params = [text(self.name), texts(names), *map(numbers, places)]
        rows = await self.database.rows("spent", params, safe=True)
        return [TargetTimes(saved_from(*row), times_from(json.loads(sums))) for *row, sums in rows]

    async def periods(
        self,
        names: Sequence[str] | None,
        since: float,
        *,
        state: PeriodState | None = None,
        before: float | None = None,
        limit: int = PERIODS_KEPT,
    ) -> list[Period]:
        bounds = [number(since), number(1e300 if before is None else before)]
        if names is None and state == "down":
            what, params = "incidents", [text(self.name), *bounds, number(limit)]
        else:
            listed = None if names is None else texts(names)
            what = "periods"
            params = [text(self.name), listed, *bounds, text(state), number(limit)]
        return [Period(*row) for row in await self.database.rows(what, params, safe=True)]


def history_params(extras: SaveExtras) -> list[Param]:
    """The last parameters of `save_with_extras`: finished rows of history."""
    hours = [each for each in extras.rollups if each.length == "hour"]
    days = [each for each in extras.rollups if each.length != "hour"]
    names, lengths, *columns = _columns(days)
    names_of_hours, _, *columns_of_hours = _columns(hours)
    periods = extras.periods
    return [
        names,
        lengths,
        *columns,
        texts(each.target for each in periods),
        numbers(each.started_at for each in periods),
        numbers(each.ended_at for each in periods),
        texts(each.state for each in periods),
        texts(storable(each.reason) for each in periods),
        *map(number, (HOURS_KEPT, DAYS_KEPT, PERIODS_KEPT)),
        names_of_hours,
        *columns_of_hours,
    ]


def _columns(rollups: Sequence[TargetRollup]) -> list[Param]:
    """Names, lengths, places, three times and figures."""
    columns = list(zip(*map(rollup_row, rollups), strict=True)) or [()] * 5
    return [
        texts(each.target for each in rollups),
        *map(numbers, columns),
        texts(base64.b64encode(packed(each.figures)).decode() for each in rollups),
    ]


def saved_from(*row: Any) -> SavedTarget:
    """The saved target of a row."""
    *fields, type, group, more = row
    return SavedTarget(*fields, more=json.loads(more), type=type, group=group)  # type: ignore[misc]
