"""The history of targets in a fleet's SQLite file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pollwise.fleet.history.packing import packed
from pollwise.fleet.history.values import (
    PERIODS_KEPT,
    Period,
    PeriodState,
    RollupLength,
    TargetRollup,
)
from pollwise.fleet.stores.base import SavedTarget, TargetTimes
from pollwise.fleet.stores.history_rows import (
    KEPT,
    place_of,
    rollup_from,
    rollup_row,
    times_from,
    window_places,
)
from pollwise.storage.sqlite.file import SqliteFile


class TargetHistoryTables(SqliteFile):
    """Blocking calls for history, on the connection of the fleet's tables."""

    def keep_history(self, periods: Sequence[Period], rollups: Sequence[TargetRollup]) -> None:
        """Save finished rows, in the open transaction."""
        many, sql, fleet = self.connect().executemany, self._sql, self._bound["fleet"]
        names = {each.target for each in periods} | {each.target for each in rollups}
        many(sql["history_target"], [(fleet, name) for name in names])
        many(
            sql["save_rollup"],
            [(*rollup_row(each), packed(each.figures), fleet, each.target) for each in rollups],
        )
        many(
            sql["save_period"],
            [
                (each.started_at, each.ended_at, each.state, each.reason, fleet, each.target)
                for each in periods
            ],
        )
        days = {each.target for each in rollups if each.length == "day"}
        for id in self._history_ids(days):
            for length, kept in KEPT.items():
                self._change("prune_rollups", id=id, length=length, kept=kept)
        for id in self._history_ids({each.target for each in periods}):
            self._change("prune_periods", id=id, kept=PERIODS_KEPT)

    def _history_ids(self, names: Iterable[str]) -> list[int]:
        return [id for (id,) in self._rows("history_ids", names=json.dumps(list(names)))]

    def forget_history(self, names: Iterable[str]) -> None:
        """Delete the history of these targets, in the open transaction."""
        for id in self._history_ids(names):
            for what in ("forget_rollups", "forget_periods", "forget_target"):
                self._change(what, id=id)

    def rollups(
        self, names: Sequence[str], length: RollupLength, since: float, *, figures: bool = True
    ) -> list[TargetRollup]:
        number, first = place_of(length, since)
        listed = json.dumps(list(names))
        rows = self._rows("rollups", names=listed, length=number, since=first, figures=figures)
        return [rollup_from(length, *row) for row in rows]

    def spent(
        self, names: Sequence[str], windows: Sequence[tuple[RollupLength, float]], until: float
    ) -> list[TargetTimes]:
        places = json.dumps(window_places(windows, until))
        rows = self._rows("spent", names=json.dumps(list(names)), windows=places)
        return [TargetTimes(saved_from(*row), times_from(json.loads(sums))) for *row, sums in rows]

    def periods(
        self,
        names: Sequence[str] | None,
        since: float,
        *,
        state: PeriodState | None = None,
        before: float | None = None,
        limit: int = PERIODS_KEPT,
    ) -> list[Period]:
        bounds = {"since": since, "before": 1e300 if before is None else before, "limit": limit}
        if names is None and state == "down":
            return [Period(*row) for row in self._rows("incidents", **bounds)]
        listed = None if names is None else json.dumps(list(names))
        rows = self._rows("periods", names=listed, state=state, **bounds)
        return [Period(*row) for row in rows]


def saved_from(*row: Any) -> SavedTarget:
    """The saved target of a row."""
    name, due, paused, *rest, type, group, more = row
    return SavedTarget(name, due, bool(paused), *rest, more=_plain(more), type=type, group=group)  # type: ignore[misc]


def _plain(text: str) -> dict[str, Any]:
    """The JSON object in a text; invalid JSON, written by hand, counts as empty."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
