"""The history of a target on its page: uptimes, latency over time, and incidents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from markupsafe import Markup

from pollwise.fleet.history.values import DAY, HOUR, TimeInStates
from pollwise.fleet.history.views import (
    Incident,
    StripCell,
    TargetHistory,
    strips,
    target_history,
    uptimes,
)
from pollwise.fleet.stores.base import FleetStore
from pollwise.runtime.rollups.histogram import EMPTY
from pollwise.web.charts import Series, lines, strip
from pollwise.web.texts import age, percent

#: The ranges of the charts, and the cells of their strips: how many, and how long.
RANGES: Mapping[str, tuple[float, int, float]] = {
    "24h": (DAY, 24, HOUR),
    "7d": (7 * DAY, 84, 2 * HOUR),
    "90d": (90 * DAY, 90, DAY),
}
#: The most incidents on the page, and the uptime below which a cell is red.
INCIDENTS = 20
DEGRADED = 0.99
#: Units of durations in charts, the largest first.
UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms"))


@dataclass(frozen=True, slots=True)
class ShownPast:
    """The history of one target, drawn. shares: its uptime by window."""

    history: TargetHistory
    shares: Mapping[str, float | None]
    strip: Markup
    latency: Markup | None

    @property
    def incidents(self) -> list[Incident]:
        return self.history.incidents[:INCIDENTS]

    @property
    def percentiles(self) -> list[tuple[str, float | None]]:
        """The percentiles of the latency of successful polls."""
        seen = self.history.figures.latency
        return [
            (name, seen.quantile(q)) for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        ]


async def shown_past(
    store: FleetStore | None, name: str, range: str, now: float
) -> ShownPast | None:
    """The history of a target; None if its store keeps none, or it was never polled."""
    if store is None or not store.keeps_history:
        return None
    length, cells, seconds = RANGES[range]
    history = await target_history(store, name, now - length, now)
    seen = (await uptimes(store, [name], now)).get(name)
    if history is None or seen is None or seen.state is None:
        return None
    drawn = (await strips(store, [name], now, cells=cells, seconds=seconds))[name]
    shares = {window: times.uptime for window, times in seen.windows.items()}
    return ShownPast(history, shares, uptime_strip(drawn, f"Uptime, {range}"), _latency(history))


def uptime_strip(cells: Sequence[StripCell], label: str) -> Markup:
    """A strip of uptimes, with values on hover."""
    return strip([cell_of(each) for each in cells], label)


def cell_of(cell: StripCell) -> tuple[str, str]:
    """The tone and the text of a cell."""
    form = "%Y-%m-%d" if cell.seconds >= DAY else "%b %d %H:%M UTC"
    when = datetime.fromtimestamp(cell.at, UTC).strftime(form)
    return tone_of_times(cell.times), f"{when}: {_said(cell.times)}"


def tone_of_times(times: TimeInStates) -> str:
    uptime = times.uptime
    if uptime is None:
        return "amber" if times.maintenance else "none"
    return "green" if not times.down else "amber" if uptime >= DEGRADED else "red"


def _said(times: TimeInStates) -> str:
    uptime = times.uptime
    if uptime is None:
        return "maintenance" if times.maintenance else "no data"
    return f"{percent(uptime, 2)} up" + (f", down for {age(times.down)}" if times.down else "")


def _latency(history: TargetHistory) -> Markup | None:
    """The median and the 95th percentile of each hour or day; gaps where nothing was polled."""
    seen = {each.at: each.figures.latency for each in history.points}
    if len(seen) < 2:
        return None
    step, at, last = history.points[0].seconds, min(seen), max(seen)
    times: list[float] = []
    while at <= last:
        times.append(at)
        at += step
    found = [seen.get(each, EMPTY) for each in times]
    series = [
        Series("p50", [each.quantile(0.5) for each in found], "teal"),
        Series("p95", [each.quantile(0.95) for each in found], "violet"),
    ]
    return over_time(series, times, "Latency")


def over_time(series: Sequence[Series], times: Sequence[float], title: str) -> Markup | None:
    """Durations as lines, in the unit that fits the longest."""
    if len(times) < 2:
        return None
    longest = max((value or 0.0 for each in series for value in each.values), default=0.0)
    size, unit = next((each for each in UNITS if longest >= each[0] * 2), UNITS[-1])
    scaled = [
        replace(each, values=[None if v is None else v / size for v in each.values])
        for each in series
    ]
    return lines(scaled, times, title, unit)
