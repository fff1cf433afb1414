"""The page of a target: its readings over time, its last facts and error, and orders for it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

from markupsafe import Markup

from pollwise.errors import PollwiseError
from pollwise.fleet.recent import PastReading
from pollwise.web.charts import Series, strip
from pollwise.web.pages.fleet.page import address_of, source_of, who_of
from pollwise.web.pages.fleet.past import RANGES, over_time, shown_past
from pollwise.web.pages.fleet.rows import EXPLAINED, ORDER_WORDS, TargetRow, padded, tone_of
from pollwise.web.redaction import redacted
from pollwise.web.texts import age, counted
from pollwise.web.tree import tree
from pollwise.web.view import NotShown, Refused, View, Visit


class FleetTargetPage(View):
    """One target of a fleet."""

    name = "target"
    path = "/fleets/{slug}/targets/{name:path}"
    template = "fleet/target.html"
    actions: ClassVar[Mapping[str, str]] = dict.fromkeys(ORDER_WORDS, "operate")

    async def marker(self, visit: Visit) -> Hashable:
        """When it was polled last, and what an order changes."""
        try:
            saved = await source_of(visit).target(visit.path["name"])
        except (PollwiseError, OSError) as error:
            return str(error)
        if saved is None:
            return "gone"
        return saved.polled_at, saved.due, saved.paused, saved.state

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        source, name = source_of(visit), visit.path["name"]
        values: dict[str, Any] = {"source": source, "name": name, "row": None, "error": None}
        try:
            row = await self._row(visit)
            asked = visit.query.get("range", "")
            range = asked if asked in RANGES else "24h"
            now = self.web.sources.clock.epoch()
            values["past"] = await shown_past(source.store, name, range, now)
            values |= {"range": range, "ranges": RANGES}
            values["alerts"] = await source.alerts_of(name)
        except (PollwiseError, OSError) as error:
            return {**values, "error": str(error)}
        snapshot = await source.snapshot()
        facts = redacted(row.state.facts, self.web.rules)
        return {
            **values,
            "row": row,
            "shown": snapshot,
            "explained": EXPLAINED.get(row.word, ""),
            "strip": strip([_cell(each) for each in padded(row.readings)], _about(row.readings)),
            "latency": _latency(row.readings),
            "intervals": _intervals(row.readings),
            "facts": tree(facts, "facts") if facts else None,
        }

    async def _row(self, visit: Visit) -> TargetRow:
        source, name = source_of(visit), visit.path["name"]
        saved = await source.target(name)
        if saved is None:
            raise NotShown(
                f"The fleet {source.title} has no target {name[:100]!r}, or it was never polled."
            )
        return TargetRow(saved, self.web.sources.clock.epoch(), await source.pending([name]))

    async def act(self, visit: Visit, action: str, form: Mapping[str, str]) -> str:
        source, name = source_of(visit), visit.path["name"]
        if await source.target(name) is None:
            raise Refused(f"The fleet {source.title} has no target {name[:100]!r} any more.")
        done = await source.order(action, [name], who_of(visit), address_of(visit))
        word = ORDER_WORDS[action].capitalize()
        return (
            f"{word}: done." if done else f"{word}: ordered. The polling node does it in seconds."
        )


def _cell(reading: PastReading | None) -> tuple[str, str]:
    if reading is None:
        return "none", "not polled yet"
    how = "failed" if not reading.ok else "changed" if reading.changed else "unchanged"
    return tone_of(reading), f"{how} after {age(reading.latency)}; next after {age(reading.wait)}"


def _about(readings: Sequence[PastReading]) -> str:
    failed = sum(not each.ok for each in readings)
    return f"The last {counted(len(readings), 'poll')}: {failed} failed"


def _times(readings: Sequence[PastReading]) -> list[float]:
    return [each.at for each in readings]


def _latency(readings: Sequence[PastReading]) -> Markup | None:
    took = [each.latency if each.ok else None for each in readings]
    failed = [None if each.ok else each.latency for each in readings]
    series = [Series("succeeded", took, "teal"), Series("failed", failed, "red")]
    return over_time(series if any(failed) else series[:1], _times(readings), "Latency of polls")


def _intervals(readings: Sequence[PastReading]) -> Markup | None:
    waits = Series("planned", [each.wait for each in readings], "violet")
    return over_time([waits], _times(readings), "Time until the next poll")
