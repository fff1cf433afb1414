"""The Prometheus sink: events in, the metrics of DESIGN.md out."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from prometheus_client import CollectorRegistry

from pollwise.core import breaker, outcome
from pollwise.errors import ConfigError
from pollwise.fleet.stores.base import TARGET_STATES
from pollwise.observe.fleet_metrics import BREAKER_STATES
from pollwise.observe.metrics import DURATION_BUCKETS, METRICS
from pollwise.observe.prometheus import PrometheusSink
from pollwise.observe.sink import RESULTS
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.events import (
    AlertClosed,
    AlertOpened,
    BreakerChanged,
    BudgetShort,
    ChoreFailed,
    ChoreRecovered,
    ConcurrencyChanged,
    ControllerCounted,
    Event,
    Events,
    FleetCounted,
    FleetOrdered,
    FleetReloadFailed,
    FleetSettingsChanged,
    FleetStarted,
    FleetStopped,
    FleetStopping,
    FleetTargetsChanged,
    HandlersDiffer,
    HandlerStuck,
    HintPushed,
    HintsLost,
    HintsProven,
    JobCancelled,
    JobDead,
    JobDelivered,
    JobDied,
    JobDone,
    JobEvent,
    JobGivenBack,
    JobGivenUp,
    JobIsolated,
    JobLapsed,
    JobLocked,
    JobLost,
    JobPut,
    JobReported,
    JobRetried,
    JobSnoozed,
    JobStarted,
    JobTakenOver,
    JobUnhandled,
    JournalGrew,
    KeyBlocked,
    KeyGivenBack,
    KeyLost,
    KindTally,
    KindUnhandled,
    LimitsChanged,
    LimitTally,
    LoopBlocked,
    LoopResumed,
    NoticeFailed,
    NoticeSent,
    OutboxMeasured,
    PaceChanged,
    PaceRestored,
    PatternUnmatched,
    PlacesFree,
    PlacesTaken,
    PollAnswered,
    PollFailed,
    PollFinished,
    PollRecovered,
    PushChanged,
    QueueGone,
    QueueMeasured,
    QueuesLeftOut,
    RecordDead,
    RecordFellBack,
    RecordHandled,
    RecordLocked,
    RecordRetried,
    RecordSnoozed,
    RecordUnhandled,
    RelayResumed,
    RelayStandsBy,
    RelayStarted,
    RelayStopped,
    RelayStopping,
    RequestAnswered,
    RunRecycled,
    ScheduleChanged,
    TargetAdded,
    TargetBreakerOpened,
    TargetChanged,
    TargetDead,
    TargetFailed,
    TargetPolled,
    TargetPolling,
    TargetRecovered,
    TargetRemoved,
    TargetStateChanged,
    TargetStuck,
    TargetTally,
    ThreadsAbandoned,
    TickPut,
    TickSkipped,
    TicksMissed,
    WindowPassed,
    WorkerGone,
    WorkerRegistered,
    WorkerSilent,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
    all_events,
)
from pollwise.runtime.jobs import STATES, Job, NewJob
from pollwise.testing import VirtualClock
from pollwise.worker import Worker, WorkerRunOptions
from pollwise.worker.measuring import KINDS_SHOWN, OTHER

#: Events that no metric is made of, and why.
UNCOUNTED = {
    TargetBreakerOpened: "its failures are counted, and the open breakers have a gauge",
    JournalGrew: "names a reader that an operator must end; doctor shows the size of the log",
    TickPut: "its job is counted, and late schedules have a gauge",
    TickSkipped: "for people; late schedules have a gauge",
    TicksMissed: "for people; late schedules have a gauge",
    ScheduleChanged: "for people; what is in code is set at the start",
    LimitsChanged: "for people; what is in code is set at the start",
    JobIsolated: "for people; the leases that ran out before were counted",
    LoopResumed: "its beginning is counted",
    QueuesLeftOut: "told once; what is measured has metrics",
    PlacesFree: "the threads that still occupy places have a gauge",
    ChoreRecovered: "its failures were counted",
    PaceRestored: "told once, at the start; the interval has a gauge",
    PollRecovered: "the polls that failed were counted, and so is the one that came back",
    WindowPassed: "for people, who must poll more often; the items found are counted",
    WorkerStopping: "the end is counted by what becomes of the jobs",
    WorkerRegistered: "workers are counted when somebody asks for it",
    WorkerGone: "workers are counted when somebody asks for it",
    WorkerSilent: "workers are counted when somebody asks for it",
    JobDied: "the report of its last attempt is counted",
    RelayStopping: "the end is counted by what becomes of the keys",
    HandlersDiffer: "told once, at the start; standing by has a gauge",
    PatternUnmatched: "told once, at the start",
    FleetStarted: "its targets are counted one by one",
    FleetStopping: "as the start; its end is counted",
    JobLocked: "each job is counted as given back",
    RecordLocked: "for people; the record waits, and is counted as such",
    ConcurrencyChanged: "what people asked for is for the log",
    FleetOrdered: "as a change of the concurrency",
    FleetSettingsChanged: "as what people asked for",
    FleetTargetsChanged: "each target that was added or removed is an event of its own",
    FleetReloadFailed: "for people; it is a problem in the state of the fleet",
    BudgetShort: "for people; the polls are counted",
    TargetChanged: "counted as the result of a poll",
    TargetFailed: "counted as the result of a poll",
    TargetRecovered: "counted as the result of a poll",
    TargetDead: "counted by how it fares",
}
ENDS: list[tuple[type[JobEvent], tuple[Any, ...], str]] = [
    (JobDone, (0.2,), "done"),
    (JobRetried, ("no", 1.0, 0.2), "retried"),
    (JobDead, ("no",), "dead"),
    (JobCancelled, (), "cancelled"),
    (JobSnoozed, (9.0,), "snoozed"),
    (JobGivenBack, ("stop",), "given_back"),
    (JobUnhandled, (9.0,), "unhandled"),
    (JobLost, (), "lost"),
]


@pytest.fixture
def sink() -> PrometheusSink:
    return PrometheusSink(price=0.5, by_target=True)


def value(sink: PrometheusSink, name: str, queue: str = "q", **labels: str) -> float | None:
    found: float | None = sink.registry.get_sample_value(name, {"queue": queue, **labels})
    return found


def series(sink: PrometheusSink, queue: str = "q") -> set[str]:
    """The names of all samples of a queue."""
    return {
        sample.name
        for family in sink.registry.collect()
        for sample in family.samples
        if sample.labels.get("queue") == queue
    }


def polled(found: int = 0, queue: str = "q", **given: Any) -> PollFinished:
    usual = {"capacity": 8, "took": 0.003, "interval": 0.2, "delay": 0.2, "hold": 0.0}
    usual |= {"hinted": False, "average": 2.5, "forecast": 0.5}
    return PollFinished(
        queue, found, **{**usual, "hinted": False, "average": 2.5, "forecast": 0.5, **given}
    )


def started(job: str = "1", worker: str = "w", queue: str = "q") -> JobStarted:
    return JobStarted(queue, worker, job, "greet", 1, 0.05)


def worker_started(worker: str = "w", queue: str = "q") -> WorkerStarted:
    return WorkerStarted(queue, worker, ("greet", "mail"), 8, "Adaptive()")


# Names


def test_the_names_of_the_design() -> None:
    names = {metric.name for metric in METRICS}
    assert {
        "pollwise_worker_poll_interval_seconds",
        "pollwise_worker_poll_total",
        "pollwise_worker_poll_empty_total",
        "pollwise_worker_backoff_total",
        "pollwise_poll_cost_dollars_total",
    } <= names
    assert len(names) == len(METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_say_unit_and_type_as_prometheus_wants(metric: Any) -> None:
    assert metric.name.startswith("pollwise_")
    assert metric.name.endswith("_total") == (metric.type == "counter")
    if metric.type == "histogram":
        assert metric.name.endswith("_seconds")
    assert metric.help.endswith(".")
    if metric.name.startswith(("pollwise_fleet_alert_", "pollwise_fleet_notice_")):
        assert "target" not in metric.labels
    elif metric.name.startswith("pollwise_fleet_"):
        own = (
            metric.labels[:-1] if metric.labels[-1:] in (("result",), ("state",)) else metric.labels
        )
        assert own in ((), ("type",), ("type", "group"), ("type", "group", "target"))
    else:
        outbox = metric.name.startswith("pollwise_outbox_")
        assert metric.labels[0] == ("outbox" if outbox else "queue")


def fleet_events() -> Iterator[Event]:
    t = ("f", "t", "http")
    yield FleetStarted("f", 1, 64, "Freshness()", 2.0)
    yield BudgetShort("f", 3.0, 2.0)
    yield FleetOrdered("f", "pause", ("t",), 1, "cli: me@here")
    yield FleetTargetsChanged("f", 1, 0, 0, ("a",), "file")
    yield FleetReloadFailed("f", "fleet.toml", "it is wrong")
    yield FleetSettingsChanged("f", ("fleet.polling.enabled=False",), "api: token from ::1")
    yield TargetAdded(*t)
    yield TargetPolling(*t, 0.1)
    yield TargetPolled(*t, "changed", 0.2, 10.0, 5)
    yield TargetChanged(*t, "another")
    yield TargetFailed(*t, "no", 3, 30.0)
    yield TargetBreakerOpened(*t, "no", 3, 30.0)
    yield TargetStateChanged(*t, "open", "confirming")
    counts = tuple((state, n) for n, state in enumerate(STATES))
    limits = (LimitTally("mail", 2, 3, 5),)
    tallies = (KindTally("mail", counts, 7.5),)
    yield QueueMeasured("q", tallies, ("",), True, 2, (("s", 90.0),), limits)
    yield TickPut("q", "w", "s", "mail", 90.0, "7", 0.1)
    yield TickSkipped("q", "w", "s", "mail", 90.0)
    yield TicksMissed("q", "w", "s", "mail", 90.0, 30.0)
    yield ScheduleChanged("q", "w", "s", "mail", "set")
    yield LimitsChanged("q", "w", "mail", "set", "5 at a time")
    yield QueueGone("gone")
    yield QueuesLeftOut("q", ("more",), 1)
    yield TargetRecovered(*t, 3)
    yield TargetDead(*t, "no", False, 1800.0)
    yield TargetStuck(*t, 35.0)
    states = tuple((state, 0) for state in TARGET_STATES)
    breakers = (("closed", 0), ("half-open", 0), ("open", 1))
    counted = TargetTally("http", "", 1, states, breakers, 0, 1, 0, 0, 0, 0, 0, 5.0, 0.5)
    yield FleetCounted("f", (counted,), 5, 0)
    yield AlertOpened(*t, "a1", "down", "critical", "no answer")
    yield AlertClosed(*t, "a1", "down", "critical", 60.0)
    yield NoticeSent(*t, "ops", "opened", "a1", 0.5)
    yield NoticeFailed(*t, "ops", "closed", "a1", 1, "no")


def of_the_executor(at: str) -> Iterator[Event]:
    yield ThreadsAbandoned(at, 2, 2)
    yield PlacesTaken(at, 2)
    yield PlacesFree(at, 1)
    yield ThreadsAbandoned(at, 1, 2)
    yield HandlerStuck(at, "job 1 of kind greet", 10.0)
    yield LoopBlocked(at, "job 1 of kind greet", 20.0)
    yield LoopResumed(at, "job 1 of kind greet", 70.0)
    yield RunRecycled(at, "2 runs have ended")


def every_event() -> Iterator[Event]:
    """One of each event, a worker's start first, so that every metric has a value."""
    yield worker_started()
    yield polled(3, hinted=True)
    yield polled(0)
    yield PollFailed("q", "OSError: gone", 1, 1.0)
    yield PollRecovered("q", 1)
    yield PaceChanged("q", "back-off", 0.1, 0.2)
    yield PaceRestored("q", 30.0, "")
    yield WindowPassed("q", 100)
    for kind, values, _ in ENDS:
        yield started()
        yield kind("q", "w", "1", "greet", 1, *values)
    yield BreakerChanged("q", "greet", "open")
    yield ChoreFailed("q", "settle", "no")
    yield ChoreRecovered("q", "settle", 1)
    yield KindUnhandled("q", "w", "unknown", "1", None)
    yield ConcurrencyChanged("q", "w", 8, 4)
    yield JobIsolated("q", "w", "1", "greet", 3, 60.0)
    yield JobTakenOver("q", "w", "1", "greet", 2, "w0")
    yield JobLocked("q", "w", "1", "greet", "no key", 30.0)
    yield from of_the_executor("q")
    yield HintsProven("q", 0.01)
    yield HintsLost("q", "the line was cut", "look at it")
    yield JournalGrew("q", 32 * 1024 * 1024, "a reader keeps it", "end it")
    yield from of_the_controller()
    yield from fleet_events()
    yield WorkerStopping("q", "w", 0, 30.0)
    yield from every_event_of_an_outbox()
    yield WorkerStopped("q", "w", 0)
    yield TargetRemoved("f", "t", "http")
    yield FleetStopping("f", 0, 5.0)
    yield FleetStopped("f", 0)


def of_the_controller() -> Iterator[Event]:
    run = ("q", "w", "1", "greet", 1)
    yield WorkerRegistered("q", "w", "mini")
    yield PollAnswered("q", "w", "empty", 0, 0.001)
    yield PushChanged("q", "w", 1)
    yield HintPushed("q", "w")
    yield JobPut("q", "1", "greet")
    yield JobDelivered(*run, 0.5)
    yield JobDelivered(*run, 0.0, True)
    yield JobReported(*run, "failed", 2.0, "no")
    yield JobDied(*run, "no")
    yield JobLapsed(*run)
    yield JobGivenUp(*run, "silent")
    yield ControllerCounted("q", (("queued", 3),), 2, 1, 0)
    yield RequestAnswered("q", "GET", "/api/jobs", 200, 0.01)
    yield WorkerSilent("q", "w", "mini", 120.0)
    yield WorkerGone("q", "w", "silent", "mini")


def every_event_of_an_outbox() -> Iterator[Event]:
    at = "outbox:shop"
    record = (at, "r", "7", "order.placed", "order-7")
    yield RelayStarted(at, "r", ("publish",), 64, "BatchFill()")
    yield polled(3, at, hinted=True)
    yield polled(0, at)
    yield PollFailed(at, "OSError: gone", 1, 1.0)
    yield PaceChanged(at, "back-off", 1.0, 2.0)
    yield RecordHandled(*record, 0.02, 0.01, ("publish",), lane="bill")
    yield RecordRetried(*record, "publish", 1, "no", 2.0, lane="bill")
    yield RecordSnoozed(*record, "publish", 2.0, lane="bill")
    yield RecordFellBack(*record, "publish", 4, "no", lane="bill")
    yield RecordUnhandled(*record, 1.0, lane="bill")
    yield RecordLocked(*record, "no key", 30.0, lane="bill")
    yield RecordDead(*record, "no", "", ("audit",), ("publish",), lane="bill")
    yield KeyBlocked(at, "r", "order-7", "7")
    yield KeyGivenBack(at, "r", "order-7", 3, "the relay stops")
    yield KeyLost(at, "r", "order-7", "7")
    yield OutboxMeasured(at, "r", 5, 1, 1, 2, 1, 4, 60.0, lane="bill", relays=3)
    yield RelayStandsBy(at, "r", "newer", ("publish",))
    yield RelayResumed(at, "r")
    yield HandlersDiffer(at, "r", "older", ("publish",))
    yield PatternUnmatched(at, "r", "publish", "order.*", ("invoice.sent",))
    yield BreakerChanged(at, "publish", "open")
    yield ChoreFailed(at, "settle", "no")
    yield from of_the_executor(at)
    yield HintsProven(at, 0.01)
    yield HintsLost(at, "the line was cut", "look at it")
    yield RelayStopping(at, "r", 0, 30.0)


def of_outbox(sink: PrometheusSink, name: str, **labels: str) -> float | None:
    found: float | None = sink.registry.get_sample_value(name, {"outbox": "shop", **labels})
    return found


def test_the_events_of_an_outbox_make_its_metrics_and_leave_with_its_last_relay(
    sink: PrometheusSink,
) -> None:
    for event in every_event_of_an_outbox():
        if type(event) not in UNCOUNTED:
            sink(event)
    for result in ("handled", "retried", "snoozed", "fell_back", "unhandled", "dead"):
        labels = {"kind": "order.placed", "result": result, "lane": "bill"}
        assert of_outbox(sink, "pollwise_outbox_record_total", **labels) == 1
    for result in ("done", "retried", "snoozed", "fell_back", "gave_up"):
        labels = {"handler": "publish", "result": result}
        assert of_outbox(sink, "pollwise_outbox_handler_total", **labels) == 1
    labels = {"handler": "audit", "result": "done"}
    assert of_outbox(sink, "pollwise_outbox_handler_total", **labels) == 1
    for result in ("blocked", "given_back", "lost"):
        assert of_outbox(sink, "pollwise_outbox_key_total", result=result, lane="") == 1
    assert of_outbox(sink, "pollwise_outbox_poll_total") == 2
    assert of_outbox(sink, "pollwise_outbox_found_total") == 3
    assert of_outbox(sink, "pollwise_outbox_keys_blocked", lane="bill") == 1
    assert of_outbox(sink, "pollwise_outbox_records_behind", lane="bill") == 4
    assert of_outbox(sink, "pollwise_outbox_records", state="dead", lane="bill") == 2
    assert of_outbox(sink, "pollwise_outbox_oldest_age_seconds", lane="bill") == 60
    assert of_outbox(sink, "pollwise_outbox_relays") == 3
    assert of_outbox(sink, "pollwise_outbox_measured_timestamp_seconds")
    assert of_outbox(sink, "pollwise_outbox_standing_by") == 0
    assert of_outbox(sink, "pollwise_outbox_abandoned_threads") == 1
    assert of_outbox(sink, "pollwise_outbox_places_taken_total") == 1
    lag = "pollwise_outbox_record_lag_seconds_sum"
    assert of_outbox(sink, lag, kind="order.placed", lane="bill") == 0.02
    assert of_outbox(sink, "pollwise_outbox_breaker_state", handler="publish") == 2
    sink(worker_started(queue="shop"))  # a queue of the same name
    sink(RelayStopped("outbox:shop", "r", 0))
    left = {s.name for f in sink.registry.collect() for s in f.samples if "outbox" in s.labels}
    assert left == set()
    assert value(sink, "pollwise_worker_poll_total", "shop") == 0


def test_what_is_known_at_the_start_begins_at_0(sink: PrometheusSink) -> None:
    """A rate of Prometheus sees no increase in a counter that begins at 1."""
    sink(worker_started())
    for result in ("done", "retried", "dead", "lost"):
        assert value(sink, "pollwise_worker_job_total", kind="mail", result=result) == 0
    sink(RelayStarted("outbox:shop", "r", ("publish",), 64, "BatchFill()"))
    for result in ("done", "retried", "gave_up"):
        labels = {"handler": "publish", "result": result}
        assert of_outbox(sink, "pollwise_outbox_handler_total", **labels) == 0
    sink(JobPut("q", "1", "build"))
    for result in ("delivered", "done", "failed", "dead", "lapsed"):
        assert value(sink, "pollwise_controller_job_total", kind="build", result=result) == 0


def test_the_counters_of_a_group_of_targets_begin_at_0() -> None:
    sink = PrometheusSink()
    sink(TargetPolled("f", "t", "http", "changed", 0.2, 10.0, 5))
    group = {"type": "http", "group": ""}
    assert sink.registry.get_sample_value("pollwise_fleet_stuck_total", group) == 0
    failed = {**group, "result": "failed"}
    assert sink.registry.get_sample_value("pollwise_fleet_poll_total", failed) == 0
    sink(NoticeFailed("f", "t", "http", "ops", "opened", "a1", 1, "no"))
    sent = {"channel": "ops", "result": "sent"}
    assert sink.registry.get_sample_value("pollwise_fleet_notice_total", sent) == 0


def test_clients_of_a_controller_cannot_make_any_number_of_series(sink: PrometheusSink) -> None:
    for number in range(KINDS_SHOWN + 50):
        sink(JobPut("q", str(number), f"kind {number}"))
        sink(JobDelivered("q", "w", str(number), f"kind {number}", 1, 0.5))
    name = "pollwise_controller_job_total"
    kinds = {
        sample.labels["kind"]
        for family in sink.registry.collect()
        for sample in family.samples
        if sample.name.startswith("pollwise_controller_job")
    }
    assert len(kinds) == KINDS_SHOWN + 1
    assert value(sink, name, kind="kind 0", result="put") == 1
    assert value(sink, name, kind=OTHER, result="put") == 50


def test_every_metric_is_exported_as_the_table_says(sink: PrometheusSink) -> None:
    events = Events(quiet=True)
    sink.subscribe(events)
    for event in every_event():
        if isinstance(event, (WorkerStopped, RelayStopped)):
            break
        events.emit(event)
    families = {family.name: family for family in sink.registry.collect()}
    for metric in METRICS:
        family = families.pop(metric.name.removesuffix("_total"))
        assert (family.type, family.documentation) == (metric.type, metric.help)
        samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
        assert samples, f"{metric.name} has no sample"
        for sample in samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
    assert families == {}


def test_histograms_have_our_buckets(sink: PrometheusSink) -> None:
    sink(polled())
    for bound in DURATION_BUCKETS:
        name = "pollwise_worker_poll_duration_seconds_bucket"
        assert value(sink, name, le=str(float(bound))) == (1.0 if bound >= 0.003 else 0.0)


# Events


def test_every_event_is_counted_or_knowingly_not(sink: PrometheusSink) -> None:
    assert set(sink._react) | set(UNCOUNTED) == set(all_events())
    assert not set(sink._react) & set(UNCOUNTED)
    assert {type(event) for event in every_event()} | {RelayStopped} == set(all_events())


def test_a_sink_takes_only_what_it_counts(caplog: pytest.LogCaptureFixture) -> None:
    events = Events(quiet=True)
    unsubscribe = PrometheusSink().subscribe(events)
    assert not any(events.wants(kind) for kind in UNCOUNTED)
    with caplog.at_level(logging.ERROR):
        for event in every_event():
            events.emit(event)
    assert caplog.records == []  # no sink failed
    unsubscribe()
    assert not events.wants(PollFinished)


def test_polls(sink: PrometheusSink) -> None:
    for event in (polled(0), polled(3, interval=0.4, hinted=True), polled(0, interval=0.8)):
        sink(event)
    sink(PollFailed("q", "no", 1, 1.0))
    expected = {
        "pollwise_worker_poll_total": 3,
        "pollwise_worker_poll_empty_total": 2,
        "pollwise_worker_poll_failed_total": 1,
        "pollwise_worker_poll_hinted_total": 1,
        "pollwise_worker_found_total": 3,
        "pollwise_worker_poll_interval_seconds": 0.8,
        "pollwise_worker_poll_duration_seconds_count": 3,
        "pollwise_poll_cost_dollars_total": 1.5,
    }
    assert {name: value(sink, name) for name in expected} == expected
    sink(polled(0, interval=0.0, delay=0.0, hold=15.0))  # the wait of a held poll
    assert value(sink, "pollwise_worker_poll_interval_seconds") == 15.0


@pytest.mark.parametrize("what", get_args(get_type_hints(outcome.Change)["what"]))
def test_pace_changes(sink: PrometheusSink, what: str) -> None:
    sink(worker_started())
    sink(PaceChanged("q", what, 0.1, 0.2))
    assert value(sink, "pollwise_worker_pace_change_total", what=what) == 1
    assert value(sink, "pollwise_worker_backoff_total") == (1 if what == "back-off" else 0)


def test_breakers(sink: PrometheusSink) -> None:
    assert set(BREAKER_STATES) == set(get_args(breaker.State))
    for state, number in BREAKER_STATES.items():
        sink(BreakerChanged("q", "greet", state))
        assert value(sink, "pollwise_worker_breaker_state", kind="greet") == number


def test_chores(sink: PrometheusSink) -> None:
    sink(ChoreFailed("q", "settle", "no"))
    assert value(sink, "pollwise_worker_chore_failed_total", chore="settle") == 1


def test_hints(sink: PrometheusSink) -> None:
    sink(HintsProven("q", 0.01))
    assert value(sink, "pollwise_worker_hints_proven") == 1
    sink(HintsLost("q", "the line was cut", "look at it"))
    assert value(sink, "pollwise_worker_hints_proven") == 0
    assert value(sink, "pollwise_worker_hints_lost_total") == 1


@pytest.mark.parametrize(("kind", "values", "result"), ENDS, ids=lambda each: str(each))
def test_a_job_that_ends_runs_no_more(
    sink: PrometheusSink, kind: type[JobEvent], values: tuple[Any, ...], result: str
) -> None:
    def running() -> float | None:
        return value(sink, "pollwise_worker_job_running", kind="greet")

    sink(worker_started())
    assert running() == 0
    sink(started("1"))
    sink(started("2"))
    assert running() == 2
    sink(kind("q", "w", "1", "greet", 1, *values))
    assert running() == 1
    total = "pollwise_worker_job_total"
    assert value(sink, total, kind="greet", result=result) == 1
    duration = value(sink, "pollwise_worker_job_duration_seconds_count", kind="greet")
    assert duration == (1 if kind in (JobDone, JobRetried) else None)
    assert value(sink, "pollwise_worker_job_wait_seconds_count", kind="greet") == 2
    # A second end of the same run, as when a settlement finds its lease lost, ends it once.
    sink(JobLost("q", "w", "1", "greet", 1))
    assert running() == 1
    assert value(sink, total, kind="greet", result="lost") == (2 if result == "lost" else 1)


def test_every_end_has_a_result() -> None:
    assert {kind: result for kind, _, result in ENDS} == RESULTS
    assert set(RESULTS) == {k for k in all_events() if issubclass(k, JobEvent)} - {
        JobStarted,
        JobTakenOver,
        JobIsolated,
    }


def test_jobs_of_dead_workers_that_are_taken_over_are_counted(sink: PrometheusSink) -> None:
    sink(worker_started())
    name = "pollwise_worker_job_taken_over_total"
    assert value(sink, name, kind="greet") == 0  # so that a rate sees the first
    sink(JobTakenOver("q", "w", "1", "greet", 2, "dead"))
    assert value(sink, name, kind="greet") == 1


def test_what_ends_without_having_started_was_not_running(sink: PrometheusSink) -> None:
    sink(worker_started())
    sink(JobGivenBack("q", "w", "1", "greet", 1, "the worker stops"))
    sink(JobDead("q", "w", "2", "greet", 9, "its worker died"))
    assert value(sink, "pollwise_worker_job_running", kind="greet") == 0


def test_runs_are_told_apart_by_queue_and_worker(sink: PrometheusSink) -> None:
    for queue, worker in (("q", "a"), ("q", "b"), ("r", "a")):
        sink(started("1", worker, queue))
    sink(JobDone("r", "a", "1", "greet", 1, 0.1))
    assert value(sink, "pollwise_worker_job_running", kind="greet") == 2
    assert value(sink, "pollwise_worker_job_running", "r", kind="greet") == 0


# Label sets


def test_counters_begin_at_zero_so_that_a_rate_sees_the_first_step(sink: PrometheusSink) -> None:
    sink(worker_started())
    counters = {m.name for m in METRICS if m.type == "counter" and m.labels == ("queue",)}
    zeros = {name for name in counters if not name.startswith("pollwise_controller_")}
    assert {name: value(sink, name) for name in zeros} == dict.fromkeys(zeros, 0.0)
    for kind in ("greet", "mail"):
        assert value(sink, "pollwise_worker_job_running", kind=kind) == 0
    assert value(sink, "pollwise_worker_poll_interval_seconds") is None  # not known before a poll


def test_without_a_price_there_is_no_cost() -> None:
    sink = PrometheusSink()
    for event in every_event():
        if not isinstance(event, WorkerStopped):
            sink._react.get(type(event), lambda _: None)(event)
    assert "pollwise_poll_cost_dollars_total" not in series(sink)


def test_the_label_sets_of_a_queue_go_with_its_last_worker(sink: PrometheusSink) -> None:
    for worker, queue in (("a", "q"), ("b", "q"), ("c", "r")):
        sink(worker_started(worker, queue))
    for event in every_event():
        if type(event) in sink._react and not isinstance(event, (WorkerStarted, WorkerStopped)):
            sink(event)
    sink(polled(queue="r"))
    before = series(sink)
    sink(WorkerStopped("q", "a", 0))
    assert series(sink) == before
    sink(WorkerStopped("q", "b", 0))
    assert series(sink) == set()
    assert value(sink, "pollwise_worker_poll_total", "r") == 1
    sink(worker_started("d"))
    sink(polled())
    assert value(sink, "pollwise_worker_poll_total") == 1


def test_a_stop_whose_start_was_not_seen_does_no_harm(sink: PrometheusSink) -> None:
    sink(WorkerStopped("q", "early", 0))
    sink(worker_started("a"))
    sink(worker_started("b"))
    sink(polled())
    sink(WorkerStopped("q", "a", 0))
    assert value(sink, "pollwise_worker_poll_total") == 1
    sink(WorkerStopped("q", "b", 0))
    assert series(sink) == set()


def test_a_run_that_never_ended_is_forgotten_with_its_queue(sink: PrometheusSink) -> None:
    sink(worker_started())
    sink(started())
    sink(WorkerStopped("q", "w", 0))
    assert sink._running == set()


def test_a_real_worker_is_counted_and_then_gone() -> None:
    clock = VirtualClock()
    registry = CollectorRegistry()
    sink = PrometheusSink(registry)
    seen: dict[str, float | None] = {}

    async def main() -> None:
        events = Events(quiet=True)
        sink.subscribe(events)
        queue = MemoryQueue("q", clock=clock)
        worker = Worker(queue, events=events)

        @worker.handle("greet")
        async def greet(job: Job) -> None:
            seen["running"] = value(sink, "pollwise_worker_job_running", kind="greet")

        @worker.handle("stop")
        async def stop(job: Job) -> None:
            for name in ("poll_total", "poll_empty_total", "backoff_total", "found_total"):
                seen[name] = value(sink, f"pollwise_worker_{name}")
            worker.stop()

        await queue.put([NewJob("greet"), NewJob("stop", delay="1m")])
        await worker.run(WorkerRunOptions(signals=False, seed=1))

    clock.run(main())
    assert seen["running"] == 1
    assert seen["poll_total"] == (seen["poll_empty_total"] or 0) + 2
    assert (seen["backoff_total"] or 0) >= 5
    assert seen["found_total"] == 2
    assert series(sink) == set()


# Serving


def test_metrics_are_served_on_loopback_until_closed(sink: PrometheusSink) -> None:
    sink(polled())
    served = sink.serve(0)
    host, port = served.url.removeprefix("http://").removesuffix("/metrics").split(":")
    assert host == "127.0.0.1"
    assert int(port) > 0
    with urllib.request.urlopen(served.url, timeout=10) as answer:
        assert b'pollwise_worker_poll_total{queue="q"} 1.0' in answer.read()
    with urllib.request.urlopen(f"http://{host}:{port}/livez", timeout=10) as answer:
        assert (answer.status, json.loads(answer.read())) == (200, {"status": "ok"})
    with pytest.raises(ConfigError, match=f"cannot serve metrics on 127.0.0.1:{port}: .* use"):
        PrometheusSink().serve(int(port))
    served.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 10)


def test_an_address_that_is_not_ours_is_refused(sink: PrometheusSink) -> None:
    with pytest.raises(ConfigError, match="metrics_host"):
        sink.serve(0, "192.0.2.1")


def test_without_the_extra_the_error_says_what_to_install() -> None:
    script = """
import sys
sys.modules["prometheus_client"] = None
try:
    import pollwise.observe.prometheus
except ImportError as error:
    print(type(error).__name__, error)
import pollwise.observe.metrics, pollwise.cli
import pollwise.cli.worker.commands, pollwise.cli.fleet.commands
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert run.returncode == 0, run.stderr
    assert run.stdout == (
        "MissingExtra exporting metrics needs an extra: pip install 'pollwise[metrics]'\n"
    )
