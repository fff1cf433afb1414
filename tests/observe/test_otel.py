"""The OpenTelemetry sink: the same metrics as the Prometheus sink, from the same events."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from pollwise.observe.metrics import DURATION_BUCKETS, METRICS
from pollwise.observe.otel import OtelSink
from pollwise.observe.prometheus import PrometheusSink
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import (
    Event,
    Events,
    FleetStopped,
    RelayStopped,
    TargetPolled,
    TargetRemoved,
    WorkerStopped,
)
from pollwise.runtime.jobs import NewJob
from pollwise.worker import Worker
from tests.observe.test_prometheus import every_event
from tests.support.kit import options, virtually

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


def test_gauges_go_with_the_last_worker_and_what_was_counted_stays_for_the_last_export() -> None:
    reader = InMemoryMetricReader()
    events = fed(OtelSink(MeterProvider([reader])))

    def left(kind: str) -> set[str]:
        names = {metric.otel_name for metric in METRICS if metric.type == kind}
        return {name for name, labels in read(reader) if ("queue", "q") in labels} & names

    counted = left("counter")
    assert "pollwise.worker.poll" in counted
    assert "pollwise.worker.job_running" in left("gauge")
    stop: Event = WorkerStopped("q", "w", 0)
    events.emit(stop)
    assert left("gauge") == set()
    assert left("counter") == counted


def test_what_a_worker_counted_can_be_read_after_it_stopped() -> None:
    reader = InMemoryMetricReader()

    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        await queue.put([NewJob("greet"), NewJob("greet")])
        worker = Worker(queue, options=options(), clock=clock)
        worker.handle("greet")(lambda job: None)
        OtelSink(MeterProvider([reader])).subscribe(worker.events)
        await worker.run_once()

    virtually(main)
    labels = frozenset({"queue": "default", "kind": "greet", "result": "done"}.items())
    assert read(reader)["pollwise.worker.job", labels].value == 2


def test_a_fleet_leaves_its_counters_but_not_those_of_targets_that_were_removed() -> None:
    reader = InMemoryMetricReader()
    events = Events(quiet=True)
    OtelSink(MeterProvider([reader]), by_target=True).subscribe(events)
    for name in ("kept", "removed"):
        events.emit(TargetPolled("f", name, "http", "failed", 0.2, 10.0, 5))
    events.emit(TargetRemoved("f", "removed", "http"))
    events.emit(FleetStopped("f", 0))
    found = [dict(labels) for name, labels in read(reader) if name == "pollwise.fleet.poll"]
    assert [each["target"] for each in found] == ["kept"]


def test_without_a_provider_nothing_is_kept_and_nothing_fails() -> None:
    fed(OtelSink())
