"""The figures and charts of a queue, from the history that its workers keep."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from pollwise.lab.prices import PRICES, Price, dollars_a_month
from pollwise.queues.presence import WorkerInfo
from pollwise.runtime.rollups import HistoryPoint, merged, series
from pollwise.web.charts import Series, columns, lines
from pollwise.web.sources import LATELY, RANGES, QueueSource
from pollwise.web.texts import age, counted, number

HOUR = 3600.0
#: The steps of a sparkline, in seconds.
SPARK_STEP = 300.0
#: What one poll costs, by the scheme of a queue's URL; other stores have no price per call.
POLL_PRICES = {"sqs": PRICES["sqs"], "s3": PRICES["s3-list"]}
_INTERVAL = re.compile(r"interval=([0-9.]+)")


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """What the workers of one queue, or of several, did in the last hour.

    span: how many seconds of the hour are known: less if the workers began later.
    saved: the share of the polls of fixed polling that were saved; None if it is not known.
    saved_why: what it is compared with. dollars: what the polls cost a month; None without a price.
    spark: jobs done a minute over the last hours.
    """

    point: HistoryPoint
    span: float
    spark: Sequence[float | None] = ()
    saved: float | None = None
    saved_why: str = ""
    dollars: float | None = None
    dollars_why: str = ""

    @property
    def ended(self) -> int:
        return self.point.done + self.point.failed

    @property
    def done_per_minute(self) -> float | None:
        return self.point.done / self.span * 60.0 if self.span else None

    @property
    def failed_share(self) -> float | None:
        return self.point.failed / self.ended if self.ended else None

    @property
    def polls_per_hour(self) -> float | None:
        return self.point.polls / self.span * HOUR if self.span else None

    def wait(self, share: float) -> float | None:
        """How long this share of the jobs waited at most, in seconds."""
        return self.point.waits.quantile(share)


def figures_of(
    source: QueueSource, points: Sequence[HistoryPoint], workers: Sequence[WorkerInfo], now: float
) -> QueueFigures:
    """The figures of a queue. points: its history of the last hours."""
    recent = [point for point in points if point.at + point.seconds > now - HOUR]
    point, span = merged(recent), _span(recent, now)
    saved, why = polls_saved(point, workers)
    price = POLL_PRICES.get(source.place.partition(":")[0])
    return QueueFigures(
        point,
        span,
        _spark(points, now),
        saved,
        why,
        None if price is None or not span else dollars_a_month(point.polls, span, price),
        "" if price is None else _priced(price),
    )


class FigureMemory:
    """The last figures of each queue, used again while its history and its workers are the same."""

    def __init__(self) -> None:
        self._last: dict[
            str, tuple[Sequence[HistoryPoint], Sequence[WorkerInfo], QueueFigures]
        ] = {}

    def of(
        self,
        source: QueueSource,
        points: Sequence[HistoryPoint],
        workers: Sequence[WorkerInfo],
        now: float,
    ) -> QueueFigures:
        last = self._last.get(source.slug)
        if last is not None and last[0] is points and last[1] == workers:
            return last[2]
        figures = figures_of(source, points, workers, now)
        self._last[source.slug] = points, workers, figures
        return figures


def total_figures(each: Sequence[QueueFigures]) -> QueueFigures:
    """The figures of several queues together."""
    point = merged(one.point for one in each if one.span)
    dollars = [one.dollars for one in each if one.dollars is not None]
    return QueueFigures(
        point,
        max((one.span for one in each), default=0.0),
        dollars=sum(dollars) if dollars else None,
        dollars_why="; ".join(sorted({one.dollars_why for one in each if one.dollars_why})),
    )


def polls_saved(point: HistoryPoint, workers: Iterable[WorkerInfo]) -> tuple[float | None, str]:
    """The share of polls saved against fixed polling that is as quick, and what that means.

    With a fixed interval, half of the jobs wait for more than half of it. So an interval of twice
    the median wait is as quick, within the bounds of the strategy. Without a job in the hour, hints
    that are proven are as quick as the shortest interval; without them nothing can be said.
    """
    there = list(workers)
    bounds = [float(text) for each in there for text in _INTERVAL.findall(each.strategy)]
    bounds = [each for each in bounds if each > 0]
    if not bounds or not point.polls:
        return None, ""
    shortest, longest = min(bounds), max(bounds)
    median = point.waits.quantile(0.5)
    if median is None and not any(each.hints for each in there):
        return None, ""
    interval = shortest if median is None else min(max(2 * median, shortest), longest)
    fixed = point.polls_at(interval)
    if fixed <= point.polls:
        return None, ""
    wait = "starts a job at once" if median is None else f"starts half of the jobs in {age(median)}"
    return 1 - point.polls / fixed, (
        f"{counted(point.polls, 'poll')} in the last hour. Fixed polling that {wait} polls every "
        f"{age(interval)}: {number(fixed)} polls."
    )


def charts_of(points: Sequence[HistoryPoint], chosen: str, now: float) -> list[Markup]:
    """The charts of a queue over one of RANGES."""
    span, step = RANGES[chosen]
    steps = series(points, step, now - span + step, now)
    times = [point.at for point in steps]
    minutes = step / 60.0
    done = Series("done", [point.done / minutes for point in steps], "green")
    failed = Series("failed", [point.failed / minutes for point in steps], "red")
    waits = [
        Series(
            f"{share * 100:.0f} % within", [point.waits.quantile(share) for point in steps], tone
        )
        for share, tone in ((0.5, "blue"), (0.95, "amber"))
    ]
    return [
        columns([done, failed], times, "Runs ended", "a minute"),
        lines(waits, times, "Wait before a run", shown=age),
    ]


def pace_of(workers: Sequence[WorkerInfo]) -> dict[str, Any] | None:
    """How the workers poll now: the strategies, and the shortest and longest pause."""
    if not workers:
        return None
    intervals = [worker.interval for worker in workers]
    names = sorted({worker.strategy.partition("(")[0] for worker in workers if worker.strategy})
    low, high = age(min(intervals)), age(max(intervals))
    return {
        "every": low if low == high else f"{low} – {high}",
        "longest": high,
        "strategy": ", ".join(names),
        "recipes": "\n".join(sorted({worker.strategy for worker in workers})[:5]),
    }


def _span(points: Sequence[HistoryPoint], now: float) -> float:
    if not points:
        return 0.0
    first = max(min(point.at for point in points), now - HOUR)
    return max(now - first, 60.0)


def _spark(points: Sequence[HistoryPoint], now: float) -> list[float | None]:
    if not points:
        return []
    steps = series(points, SPARK_STEP, now - LATELY + SPARK_STEP, now)
    return [point.done / SPARK_STEP * 60.0 for point in steps]


def _priced(price: Price) -> str:
    return f"{price.what}: the polls of the last hour, over a month. Other requests cost extra."
