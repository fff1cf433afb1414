"""Reads counts and rates over time as JSON: range queries of Prometheus, metrics of CloudWatch.

| what | how it is recognised |
|---|---|
| Prometheus, /api/v1/query_range | `data.resultType` is `matrix` |
| promtool query range -o json | a list of `metric` and `values` |
| aws cloudwatch get-metric-statistics | a list `Datapoints` |
| aws cloudwatch get-metric-data | a list `MetricDataResults` |

Several series are added up. A step without a value has no arrivals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Literal, get_args

from pollwise.durations import shown
from pollwise.errors import ConfigError
from pollwise.lab.numeric import np
from pollwise.lab.replay.base import Seconds
from pollwise.lab.traces.lines import BadLine, listed
from pollwise.lab.traces.stamps import moment_of, number_of

Values = Literal["auto", "rate", "count", "counter"]

#: The most steps between the first and the last value.
STEPS_MAX = 5_000_000
#: Ends of the names of counters that are not in a `rate()` yet.
_COUNTERS = ("_total", "_count")


@dataclass(frozen=True, slots=True)
class ExportedSeries:
    """One series: where it is in its document, its times, and its values.

    is_counter: its name says that it only grows.
    """

    place: str
    at: list[float]
    values: list[float]
    is_counter: bool = False


def series_of(document: Any) -> tuple[list[ExportedSeries], Values] | None:
    """The series of a document, and what their values are; None if it is something else."""
    if isinstance(document, list):
        first = document[0] if document else None
        if isinstance(first, dict) and "metric" in first and "values" in first:
            return _matrix(document, ""), "auto"
        return None
    if not isinstance(document, dict):
        return None
    if isinstance(document.get("Datapoints"), list):
        return [_datapoints(document["Datapoints"])], "count"
    if isinstance(document.get("MetricDataResults"), list):
        return _metric_data(document["MetricDataResults"]), "count"
    if document.get("status") == "error" and "errorType" in document:
        raise BadLine("error", f"Prometheus refused the query: {shown(document.get('error'))}")
    data = document.get("data")
    if isinstance(data, dict) and "resultType" in data:
        if data["resultType"] != "matrix" or not isinstance(data.get("result"), list):
            raise BadLine(
                "data.resultType",
                f"{shown(data['resultType'])} is not a range of time; save the answer of "
                "/api/v1/query_range, not of /api/v1/query",
            )
        return _matrix(data["result"], "data.result"), "auto"
    return None


def counts_of(
    series: list[ExportedSeries], values: Values, step: float | None
) -> tuple[Seconds, float]:
    """The arrivals in each step, and the length of a step in seconds; raises `BadLine`.

    values: what the values are: arrivals a second, in each step, or since the counter began.
    step: the length of a step; None: the longest that fits between the times.
    """
    if values not in get_args(Values):
        raise ConfigError(f"values = {values!r} is not one of {', '.join(get_args(Values))}")
    if values == "auto":
        if not series or not all(each.is_counter for each in series):
            raise BadLine(
                series[0].place if series else "result",
                "are these arrivals a second, or in each step? Give --values rate for rate(…), "
                "--values count for increase(…), --values counter for a counter itself",
            )
        values = "counter"
    moments = sorted({round(at * 1000) for each in series for at in each.at})
    if len(moments) < 2:
        raise BadLine(
            series[0].place if series else "result",
            f"it has {len(moments)} points in time; ask for a longer time, or shorter steps",
        )
    gaps = [after - before for before, after in pairwise(moments)]
    milliseconds = reduce(math.gcd, gaps) if step is None else max(round(step * 1000), 1)
    steps = (moments[-1] - moments[0]) // milliseconds + 1
    if steps > min(STEPS_MAX, 1000 * len(moments)):
        raise BadLine(
            series[0].place,
            f"its {len(moments)} points in time are not at equal steps; ask for one step, or give "
            "its length with --bins",
        )
    length = milliseconds / 1000
    total = np.zeros(steps)
    for each in series:
        _add(total, each, moments[0], milliseconds, values)
    if values == "rate":
        total *= length
    return (total[1:] if values == "counter" else total), length


def whole(counts: Seconds, draw: float) -> Seconds:
    """Whole numbers with the same sums, to within one; draw: a random number from 0 up to 1."""
    sums = np.floor(np.concatenate([[0.0], np.cumsum(counts)]) + draw)
    return np.diff(sums)


def _add(total: Seconds, each: ExportedSeries, begin: int, step: int, values: Values) -> None:
    order = sorted(range(len(each.at)), key=lambda place: each.at[place])
    before: tuple[int, float] | None = None
    for place in order:
        index = (round(each.at[place] * 1000) - begin) // step
        value = each.values[place]
        if values != "counter":
            total[index] += value
        elif before is None:
            before = index, value
        elif index > before[0]:
            # A counter that fell began again at 0.
            grown = value - before[1] if value >= before[1] else value
            total[before[0] + 1 : index + 1] += grown / (index - before[0])
            before = index, value


def _matrix(result: list[Any], place: str) -> list[ExportedSeries]:
    found = []
    for number, each in enumerate(result):
        where = f"{place}[{number}]"
        pairs = each.get("values") if isinstance(each, dict) else None
        if not isinstance(pairs, list):
            raise BadLine(where, f"it has no list of values, but {shown(each)}")
        name = each["metric"].get("__name__") if isinstance(each.get("metric"), dict) else None
        at, values = [], []
        for place_in, pair in enumerate(pairs):
            spot = f"{where}.values[{place_in}]"
            if not isinstance(pair, list) or len(pair) != 2:
                raise BadLine(spot, f"{shown(pair)} is not a time and a value")
            at.append(_time(pair[0], spot))
            values.append(_value(pair[1], spot))
        found.append(ExportedSeries(where, at, values, str(name).endswith(_COUNTERS)))
    return found


def _datapoints(points: list[Any]) -> ExportedSeries:
    at, values = [], []
    for number, point in enumerate(points):
        where = f"Datapoints[{number}]"
        if not isinstance(point, dict):
            raise BadLine(where, f"{shown(point)} is not an object")
        # The sum of a metric in another unit, such as a duration, is not a number of arrivals.
        counted = point.get("Unit") in ("Count", None)
        known = [key for key in ("Sum", "SampleCount") if key in point]
        if not known or (known == ["Sum"] and not counted):
            raise BadLine(
                where,
                f"it does not count: it has {listed(point)}, and its unit is "
                f"{shown(point.get('Unit'))}; ask for --statistics SampleCount",
            )
        at.append(_time(point.get("Timestamp"), where))
        values.append(_value(point[known[0] if counted else "SampleCount"], where))
    return ExportedSeries("Datapoints", at, values)


def _metric_data(results: list[Any]) -> list[ExportedSeries]:
    found = []
    for number, each in enumerate(results):
        where = f"MetricDataResults[{number}]"
        parts = each if isinstance(each, dict) else {}
        at, values = parts.get("Timestamps"), parts.get("Values")
        if not isinstance(at, list) or not isinstance(values, list) or len(at) != len(values):
            raise BadLine(where, "it has no lists Timestamps and Values of the same length")
        times = [_time(each, f"{where}.Timestamps[{n}]") for n, each in enumerate(at)]
        numbers = [_value(each, f"{where}.Values[{n}]") for n, each in enumerate(values)]
        found.append(ExportedSeries(where, times, numbers))
    return found


def _time(value: Any, where: str) -> float:
    """Seconds since 1970, from a number or ISO 8601."""
    number = number_of(value)
    at = moment_of(value) if number is None else number
    if at is None or not 0 <= at < 1e11:
        raise BadLine(where, f"{shown(value)} is not a time; expected seconds or ISO 8601")
    return at


def _value(value: Any, where: str) -> float:
    number = number_of(value)
    if number is None or not 0 <= number < math.inf:
        raise BadLine(where, f"{shown(value)} is not a number of arrivals; expected 0 or more")
    return number
