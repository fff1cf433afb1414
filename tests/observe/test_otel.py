"""The OpenTelemetry sink: the same metrics as the Prometheus sink, from the same events."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from pollwise.observe.metrics import DURATION_BUCKETS, METRICS
from pollwise.observe.otel import OtelSink
from pollwise.observe.prometheus import PrometheusSink
from pollwise.runtime.events import Event, Events, RelayStopped, WorkerStopped
from tests.observe.test_prometheus import every_event

Found = dict[tuple[str, frozenset[tuple[str, str]]], Any]


def read(reader: InMemoryMetricReader) -> Found:
    data: Any = reader.get_metrics_data()
    return {
        (metric.name, frozenset(point.attributes.items())): point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def fed(*sinks: Any) -> Events:
    events = Events(quiet=True)
    for sink in sinks:
        sink.subscribe(events)
    for event in every_event():
        if isinstance(event, (WorkerStopped, RelayStopped)):
            break
        events.emit(event)
    return events


def test_the_names_come_back_in_an_export_to_prometheus() -> None:
    for metric in METRICS:
        suffix = ("_seconds" if metric.otel_unit else "") + (
            "_total" if metric.type == "counter" else ""
        )
        assert metric.otel_name.replace(".", "_") + suffix == metric.name


def test_every_series_of_prometheus_is_there_with_the_same_labels_and_value() -> None:
    reader = InMemoryMetricReader()
    theirs = PrometheusSink(price=0.5, by_target=True)
    fed(theirs, OtelSink(MeterProvider([reader]), price=0.5, by_target=True))
    found = read(reader)
    names = {metric.name.removesuffix("_total"): metric for metric in METRICS}
    compared = set()
    for family in theirs.registry.collect():
        metric = names[family.name]
        for sample in family.samples:
            if sample.name.endswith(("_created", "_bucket", "_count")):
                continue
            point = found[metric.otel_name, frozenset(sample.labels.items())]
            mine = point.sum if metric.type == "histogram" else point.value
            near = 2.0 if metric.name.endswith(("staleness_seconds", "timestamp_seconds")) else 1e-9
            assert abs(mine - sample.value) <= near, metric.name
            if metric.type == "histogram":
                assert point.explicit_bounds == DURATION_BUCKETS
            compared.add(metric.name)
    assert compared == {metric.name for metric in METRICS}


def test_the_series_of_a_queue_go_with_its_last_worker() -> None:
    reader = InMemoryMetricReader()
    events = fed(OtelSink(MeterProvider([reader])))

    def left() -> set[str]:
        gone = {metric.otel_name for metric in METRICS if metric.type == "histogram"}
        return {name for name, labels in read(reader) if ("queue", "q") in labels} - gone

    assert "pollwise.worker.poll" in left()
    stop: Event = WorkerStopped("q", "w", 0)
    events.emit(stop)
    assert left() == set()


def test_without_a_provider_nothing_is_kept_and_nothing_fails() -> None:
    fed(OtelSink())
