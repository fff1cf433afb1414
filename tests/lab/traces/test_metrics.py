"""Counts and rates of Prometheus and CloudWatch as traces."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.errors import ConfigError
from pollwise.lab.replay.base import Trace
from pollwise.lab.traces.metrics import whole
from pollwise.lab.traces.reading import read

BEGIN = 1_794_650_400.0


def read_from(folder: Path, value: Any, **given: Any) -> Trace:
    path = folder / "metrics.json"
    path.write_text(json.dumps(value))
    return read(path, **given)


def matrix(*series: tuple[dict[str, str], list[tuple[float, float]]]) -> dict[str, Any]:
    result = [
        {"metric": labels, "values": [[at, f"{value!r}"] for at, value in values]}
        for labels, values in series
    ]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def counts_in(trace: Trace, step: float) -> list[int]:
    edges = np.arange(0, trace.span + step / 2, step)
    return np.histogram(trace.arrivals, edges)[0].tolist()  # type: ignore[no-any-return]


def at_steps(values: list[float], step: float = 60.0) -> list[tuple[float, float]]:
    return [(BEGIN + number * step, value) for number, value in enumerate(values)]


COUNTS = st.lists(st.integers(0, 40), min_size=2, max_size=20).filter(any)
STEPS = st.sampled_from([1.0, 15.0, 60.0, 0.5])


@settings(max_examples=20, deadline=None)
@given(COUNTS, STEPS)
def test_counts_rates_and_counters_are_read_back(
    tmp_path_factory: Any, counts: list[int], step: float
) -> None:
    folder = tmp_path_factory.mktemp("prometheus")
    count = matrix(({}, at_steps([float(each) for each in counts], step)))
    rate = matrix(({"job": "x"}, at_steps([each / step for each in counts], step)))
    grown = [float(each) for each in np.cumsum([1000, *counts])]
    counter = matrix(({"__name__": "jobs_total"}, at_steps(grown, step)))
    traces = [
        read_from(folder, count, values="count"),
        read_from(folder, rate, values="rate"),
        read_from(folder, counter),
    ]
    for trace in traces:
        assert trace.span == pytest.approx(step * len(counts))
        assert counts_in(trace, step) == counts


def test_several_series_are_added_and_missing_steps_are_empty(tmp_path: Path) -> None:
    one, other = at_steps([3.0, 0.0, 5.0, 7.0]), at_steps([1.0, 2.0, 0.0, 9.0])
    del one[1], other[1:3]
    found = matrix(({"queue": "a"}, one), ({"queue": "b"}, other))
    # Nothing is known of the second step, but the third shows how long a step is.
    assert counts_in(read_from(tmp_path, found, values="count"), 60.0) == [4, 0, 5, 16]
    promtool = found["data"]["result"]
    assert counts_in(read_from(tmp_path, promtool, values="count"), 60.0) == [4, 0, 5, 16]


def test_a_counter_that_began_again(tmp_path: Path) -> None:
    found = matrix(({"__name__": "http_requests_total"}, at_steps([100.0, 110.0, 4.0, 6.0])))
    assert counts_in(read_from(tmp_path, found), 60.0) == [10, 4, 2]


def test_a_gap_in_a_counter_is_spread(tmp_path: Path) -> None:
    values = at_steps([0.0, 10.0, 20.0, 60.0])
    del values[2]
    found = matrix(({"__name__": "x_count"}, values))
    assert counts_in(read_from(tmp_path, found, bins="1m"), 60.0) == [10, 25, 25]


@given(st.lists(st.floats(0, 50), max_size=40), st.floats(0, 1, exclude_max=True))
def test_parts_of_arrivals_are_kept_in_sum(counts: list[float], draw: float) -> None:
    found = whole(np.array(counts), draw)
    assert (found >= 0).all()
    assert (np.abs(np.cumsum(found) - np.cumsum(counts)) <= 1 + 1e-6).all()


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


@settings(max_examples=20, deadline=None)
@given(COUNTS, st.randoms())
def test_metrics_of_cloudwatch(tmp_path_factory: Any, counts: list[int], order: Any) -> None:
    """Their points come in any order, and empty periods may be left out."""
    folder = tmp_path_factory.mktemp("cloudwatch")
    counts = [1, 1, *counts, 1]
    points = [
        {"Timestamp": stamp(at), "Sum": value, "Unit": "Count"}
        for at, value in at_steps([float(each) for each in counts])
        if value
    ]
    order.shuffle(points)
    made = read_from(folder, {"Label": "Sent", "Datapoints": points})
    assert counts_in(made, 60.0) == counts
    data = {
        "Id": "m1",
        "Timestamps": [each["Timestamp"] for each in points],
        "Values": [each["Sum"] for each in points],
    }
    made = read_from(folder, {"MetricDataResults": [data], "Messages": []})
    assert counts_in(made, 60.0) == counts


def test_runs_are_counted_where_the_sum_is_something_else(tmp_path: Path) -> None:
    points = [
        {"Timestamp": stamp(at), "Sum": 123.4, "SampleCount": 2.0, "Unit": "Milliseconds"}
        for at in (BEGIN, BEGIN + 60)
    ]
    assert counts_in(read_from(tmp_path, {"Datapoints": points}), 60.0) == [2, 2]


VALUES = at_steps([1.0, 2.0])
BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "what is it": (
        matrix(({}, VALUES)), {}, r"data.result\[0\]: are these arrivals a second.*--values rate",
    ),
    "a gauge": (matrix(({"__name__": "depth"}, VALUES)), {}, "--values counter"),
    "nothing found": (matrix(), {}, "--values"),
    "an instant": (
        {"status": "success", "data": {"resultType": "vector", "result": []}}, {},
        "data.resultType: 'vector' is not a range.*query_range",
    ),
    "refused": (
        {"status": "error", "errorType": "bad_data", "error": "parse error"}, {},
        "Prometheus refused the query: 'parse error'",
    ),
    "one step": (matrix(({}, VALUES[:1])), {"values": "count"}, "it has 1 points in time"),
    "NaN": (
        matrix(({}, [*VALUES, (BEGIN + 120, float("nan"))])), {"values": "rate"},
        r"data.result\[0\].values\[2\]: 'nan' is not a number of arrivals",
    ),
    "negative": (matrix(({}, at_steps([1.0, -2.0]))), {"values": "rate"}, "'-2.0' is not a number"),
    "no time": (
        [{"metric": {}, "values": [["x", "1"]]}], {}, r"\[0\].values\[0\]: 'x' is not a time",
    ),
    "no pair": ([{"metric": {}, "values": [7]}], {}, "7 is not a time and a value"),
    "no values": (
        [{"metric": {}, "values": [[1, "1"]]}, {"metric": {}, "histograms": []}], {},
        r"\[1\]: it has no list of values",
    ),
    "odd steps": (
        matrix(({}, [(BEGIN + at, 1.0) for at in (0, 60.001, 86400)])), {"values": "count"},
        "not at equal steps",
    ),
    "an average": (
        {"Datapoints": [{"Timestamp": stamp(BEGIN), "Average": 1, "Unit": "Count"}]}, {},
        r"Datapoints\[0\]: it does not count: it has Timestamp, Average",
    ),
    "a sum of time": (
        {"Datapoints": [{"Timestamp": stamp(BEGIN), "Sum": 1, "Unit": "Seconds"}]}, {},
        "its unit is 'Seconds'; ask for --statistics SampleCount",
    ),
    "lists that differ": (
        {"MetricDataResults": [{"Timestamps": [1], "Values": []}]}, {}, "of the same length",
    ),
    "a word": (matrix(({}, VALUES)), {"values": "level"}, "values = 'level' is not one of"),
    "nothing arrived": (
        matrix(({}, at_steps([0.0, 0.0]))), {"values": "count"}, "all 2 bins are empty",
    ),
    "too many": (
        matrix(({}, at_steps([1e9, 1.0]))), {"values": "count"}, "the maximum is 50,000,000",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_refused(tmp_path: Path, name: str) -> None:
    value, given_, match = BAD[name]
    with pytest.raises(ConfigError, match=match):
        read_from(tmp_path, value, **given_)


def test_a_second_document_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    path.write_text(f"{json.dumps(matrix(({}, VALUES)))}\n" * 2)
    with pytest.raises(ConfigError, match="line 2: a second document follows"):
        read(path, values="count")
