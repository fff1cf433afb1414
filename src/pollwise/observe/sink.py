"""What events mean for metrics: once for every sink, whatever library keeps the numbers."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable
from functools import partial
from typing import Any

from pollwise.observe.fleet_metrics import BREAKER_STATES, FleetMetrics
from pollwise.observe.instruments import Instruments, MetricSeries
from pollwise.observe.metrics import METRICS, Metric
from pollwise.runtime import events
from pollwise.runtime.events import Event, Events, JobEvent
from pollwise.worker.measuring import KINDS_SHOWN, OTHER

RESULTS: dict[type[JobEvent], str] = {
    events.JobDone: "done",
    events.JobRetried: "retried",
    events.JobDead: "dead",
    events.JobCancelled: "cancelled",
    events.JobSnoozed: "snoozed",
    events.JobGivenBack: "given_back",
    events.JobUnhandled: "unhandled",
    events.JobLost: "lost",
}
COUNTED: dict[type[Event], str] = {
    events.PlacesTaken: "places_taken",
    events.LoopBlocked: "loop_blocked",
    events.HandlerStuck: "handler_stuck",
    events.RunRecycled: "recycled",
}
RECORD_RESULTS: dict[type[Event], str] = {
    events.RecordHandled: "handled",
    events.RecordRetried: "retried",
    events.RecordDead: "dead",
    events.RecordSnoozed: "snoozed",
    events.RecordFellBack: "fell_back",
    events.RecordUnhandled: "unhandled",
}
#: Counters that begin at 0 for everything that is known at the start, because a rate needs to see
#: the first increase: the results of a kind, and of a handler of an outbox.
KIND_BEGINS, HANDLER_BEGINS = ("done", "retried", "dead", "lost"), ("done", "retried", "gave_up")
KEY_RESULTS: dict[type[Event], str] = {
    events.KeyBlocked: "blocked",
    events.KeyGivenBack: "given_back",
    events.KeyLost: "lost",
}
CONTROLLER_RESULTS: dict[type[Event], str] = {
    events.JobPut: "put",
    events.JobLapsed: "lapsed",
    events.JobGivenUp: "dead",
}
#: As KIND_BEGINS, from the first event about a kind on.
CONTROLLER_BEGINS = ("delivered", "done", "failed", "dead", "lapsed")
WORKER, OUTBOX, CONTROLLER = "pollwise_worker", "pollwise_outbox", "pollwise_controller"
QUEUE = "pollwise_queue"


#: An event of a controller about a job.
_ControllerJob = events.JobPut | events.AgentJobEvent


class MetricsSink:
    """Turns events into the metrics of `pollwise.observe.metrics`.

    price: the price of a poll in dollars; 0 leaves the cost counter out.
    by_target: the metrics of a fleet have a label for each target. That is 3 kB a target and
        scrape; by default they are by type and group.
    When the last worker of a queue stops, the series of that queue are deleted; those of an outbox
    when its last relay stops.
    """

    def __init__(self, instruments: Instruments, price: float, *, by_target: bool) -> None:
        self.instruments = instruments
        self._price = price
        self._workers: Tally[str] = Tally()
        self._running: set[tuple[str, str, str]] = set()
        # By queue, kinds, pauses and schedules.
        self._measured: dict[str, tuple[set[str], set[str], set[str]]] = {}
        self._limits: dict[str, set[tuple[str, str]]] = {}  # by queue, metrics and kinds
        self._polls: dict[tuple[str, str], tuple[MetricSeries, MetricSeries]] = {}
        self._controlled_kinds: dict[str, set[str]] = {}  # by queue
        self._react: dict[type[Event], Callable[[Any], None]] = {
            events.PollFinished: self._poll_finished,
            events.PollFailed: lambda event: self._of(event, "poll_failed_total").inc(),
            events.PaceChanged: self._pace_changed,
            events.JobStarted: self._job_started,
            events.JobTakenOver: lambda event: self._of(
                event, "job_taken_over_total", event.kind
            ).inc(),
            events.KindUnhandled: lambda event: self._of(event, "kind_unhandled", event.kind).set(
                1
            ),
            events.BreakerChanged: self._breaker_changed,
            events.HintsProven: lambda event: self._of(event, "hints_proven").set(1),
            events.HintsLost: self._hints_lost,
            events.ChoreFailed: lambda event: self._of(
                event, "chore_failed_total", event.chore
            ).inc(),
            events.ThreadsAbandoned: lambda event: self._of(event, "abandoned_threads").set(
                event.threads
            ),
            **{kind: partial(self._count, f"{name}_total") for kind, name in COUNTED.items()},
            events.WorkerStarted: self._worker_started,
            events.WorkerStopped: self._stopped,
            events.RelayStarted: self._relay_started,
            events.RelayStopped: self._stopped,
            events.RelayStandsBy: lambda event: self._of(event, "standing_by").inc(),
            events.RelayResumed: lambda event: self._of(event, "standing_by").dec(),
            events.OutboxMeasured: self._outbox_measured,
            events.QueueMeasured: self._queue_measured,
            events.QueueGone: self._queue_gone,
            **dict.fromkeys(RECORD_RESULTS, self._record_noted),
            **dict.fromkeys(KEY_RESULTS, self._key_noted),
            **dict.fromkeys(RESULTS, self._job_ended),
            events.PollAnswered: self._poll_answered,
            events.RequestAnswered: self._request_answered,
            **dict.fromkeys(CONTROLLER_RESULTS, self._controller_job),
            events.JobDelivered: self._job_delivered,
            events.JobReported: self._job_reported,
            events.PushChanged: lambda event: self._controlled(event, "push_connections").set(
                event.connections
            ),
            events.HintPushed: lambda event: self._controlled(event, "hint_total").inc(),
            events.ControllerCounted: self._counted,
            **FleetMetrics(instruments, by_target=by_target).react,
        }

    def subscribe(self, bus: Events) -> Callable[[], None]:
        """Subscribe to events; returns a function that unsubscribes."""
        return bus.subscribe(self, *self._react)

    def __call__(self, event: Event) -> None:
        self._react[type(event)](event)

    def _count(self, name: str, event: Event) -> None:
        self._of(event, name).inc()

    def _of(self, event: Event, name: str, *labels: str) -> MetricSeries:
        """A metric of the worker or relay of an event."""
        group, place = _place(event)
        return self.instruments[f"{group}_{name}"].labels(place, *labels)

    def _poll_finished(self, event: events.PollFinished) -> None:
        self._of(event, "poll_total").inc()
        if not event.found:
            self._of(event, "poll_empty_total").inc()
        else:
            self._of(event, "found_total").inc(event.found)
        if event.hinted:
            self._of(event, "poll_hinted_total").inc()
        self._of(event, "poll_interval_seconds").set(event.interval + event.hold)
        if event.average is not None:
            self._of(event, "poll_average").set(event.average)
        if event.forecast is not None:
            self._of(event, "poll_forecast_per_second").set(event.forecast)
        self._of(event, "poll_duration_seconds").observe(event.took)
        group, name = _place(event)
        if self._price and group == WORKER:
            self.instruments["pollwise_poll_cost_dollars_total"].labels(name).inc(self._price)

    def _pace_changed(self, event: events.PaceChanged) -> None:
        self._of(event, "pace_change_total", event.what).inc()
        if event.what == "back-off":
            self._of(event, "backoff_total").inc()

    def _job_started(self, event: events.JobStarted) -> None:
        self._of(event, "job_wait_seconds", event.kind).observe(event.waited)
        self._of(event, "job_running", event.kind).inc()
        self._running.add(_run_of(event))

    def _job_ended(self, event: JobEvent) -> None:
        self._of(event, "job_total", event.kind, RESULTS[type(event)]).inc()
        if isinstance(event, events.JobLost):
            self._of(event, "lease_lapsed_total", event.kind).inc()
        if isinstance(event, (events.JobDone, events.JobRetried)):
            self._of(event, "job_duration_seconds", event.kind).observe(event.took)
        if _run_of(event) in self._running:  # else it ended without ever starting
            self._running.discard(_run_of(event))
            self._of(event, "job_running", event.kind).dec()

    def _breaker_changed(self, event: events.BreakerChanged) -> None:
        self._of(event, "breaker_state", event.kind).set(BREAKER_STATES[event.state])

    def _hints_lost(self, event: events.HintsLost) -> None:
        self._of(event, "hints_proven").set(0)
        self._of(event, "hints_lost_total").inc()

    def _record_noted(self, event: events.RecordEvent) -> None:
        result = RECORD_RESULTS[type(event)]
        self._of(event, "record_total", event.kind, result, event.lane).inc()
        if isinstance(event, (events.RecordHandled, events.RecordDead)):
            for handler in event.handlers:
                self._of(event, "handler_total", handler, "done").inc()
        if isinstance(event, events.RecordDead):
            for handler in event.gave_up:
                self._of(event, "handler_total", handler, "gave_up").inc()
        if isinstance(event, (events.RecordRetried, events.RecordSnoozed, events.RecordFellBack)):
            self._of(event, "handler_total", event.handler, result).inc()
        if isinstance(event, events.RecordHandled):
            self._of(event, "record_lag_seconds", event.kind, event.lane).observe(event.lag)
            self._of(event, "record_duration_seconds", event.kind).observe(event.took)

    def _key_noted(self, event: events.KeyBlocked | events.KeyGivenBack | events.KeyLost) -> None:
        self._of(event, "key_total", KEY_RESULTS[type(event)], event.lane).inc()
        if isinstance(event, events.KeyLost):
            self._of(event, "lease_lapsed_total", event.lane).inc()

    def _outbox_measured(self, event: events.OutboxMeasured) -> None:
        for state in ("ready", "leased", "waiting", "dead"):
            self._of(event, "records", state, event.lane).set(getattr(event, state))
        self._of(event, "keys_blocked", event.lane).set(event.keys_blocked)
        self._of(event, "records_behind", event.lane).set(event.behind)
        self._of(event, "oldest_age_seconds", event.lane).set(event.oldest_age)
        self._of(event, "relays").set(event.relays)
        self._of(event, "measured_timestamp_seconds").set(time.time())

    def _relay_started(self, event: events.RelayStarted) -> None:
        self._workers[event.source] += 1
        for metric in METRICS:
            if metric.labels == ("outbox",) and metric.type == "counter":
                self.instruments[metric.name].labels(_place(event)[1])
        for result in KEY_RESULTS.values():
            self._of(event, "key_total", result, "")
        self._of(event, "lease_lapsed_total", "")
        for handler in event.handlers:
            for result in HANDLER_BEGINS:
                self._of(event, "handler_total", handler, result)

    def _worker_started(self, event: events.WorkerStarted) -> None:
        self._workers[event.source] += 1
        for metric in METRICS:
            ours = not metric.name.startswith(CONTROLLER)
            if ours and metric.labels == ("queue",) and self._begins_at_zero(metric):
                self.instruments[metric.name].labels(event.source)
        for kind in event.kinds:
            self._of(event, "job_running", kind)
            self._of(event, "lease_lapsed_total", kind)
            self._of(event, "job_taken_over_total", kind)
            for result in KIND_BEGINS:
                self._of(event, "job_total", kind, result)

    def _begins_at_zero(self, metric: Metric) -> bool:
        priced = metric.name == "pollwise_poll_cost_dollars_total"
        return bool(self._price) if priced else metric.type == "counter"

    def _stopped(self, event: events.WorkerStopped | events.RelayStopped) -> None:
        self._workers[event.source] -= 1
        if self._workers[event.source] > 0:
            return
        del self._workers[event.source]
        self._running = {run for run in self._running if run[0] != event.source}
        self._measured.pop(event.source, None)
        self._limits.pop(event.source, None)
        group, name = _place(event)
        label = "queue" if group == WORKER else "outbox"
        for metric in METRICS:
            counts = metric.type == "counter" and self.instruments.keeps_counters
            if label in metric.labels and not counts:
                self.instruments[metric.name].remove_by_labels({label: name})

    # Queues

    def _queue(self, event: Event, name: str, *labels: str) -> MetricSeries:
        """A metric of the queue of an event."""
        return self.instruments[f"{QUEUE}_{name}"].labels(event.source, *labels)

    def _queue_measured(self, event: events.QueueMeasured) -> None:
        kinds, paused = {each.kind for each in event.kinds}, {"", *event.paused}
        schedules = dict(event.schedules)
        before = self._measured.get(event.source, (set(), set(), set()))
        self._measured[event.source] = kinds, kinds | paused, set(schedules)
        for name in before[2] - set(schedules):
            labels = {"queue": event.source, "schedule": name}
            self.instruments[f"{QUEUE}_schedule_late_seconds"].remove_by_labels(labels)
        for name, late in schedules.items():
            self._queue(event, "schedule_late_seconds", name).set(late)
        for kind in before[0] - kinds:
            for name in ("depth", "oldest_age_seconds", "startable", "startable_age_seconds"):
                self._remove(event.source, name, kind)
        for kind in before[1] - kinds - paused:
            self._remove(event.source, "paused", kind)
        for each in event.kinds:
            for state, count in each.counts:
                self._queue(event, "depth", each.kind, state).set(count)
            self._queue(event, "oldest_age_seconds", each.kind).set(each.oldest_age)
            self._queue(event, "startable", each.kind).set(each.startable)
            self._queue(event, "startable_age_seconds", each.kind).set(each.startable_age)
        self._limits_measured(event)
        if event.pauses_known:
            for kind in kinds | paused:
                self._queue(event, "paused", kind).set(kind in event.paused)
        if event.workers is not None:
            self._queue(event, "workers").set(event.workers)
        self._queue(event, "measured_timestamp_seconds").set(time.time())

    def _limits_measured(self, event: events.QueueMeasured) -> None:
        values = {
            (f"limit_{name}", each.kind): value
            for each in event.limits
            for name in ("running", "waiting", "most")
            if (value := getattr(each, name)) is not None
        }
        for name, kind in self._limits.get(event.source, set()) - values.keys():
            self._remove(event.source, name, kind)
        self._limits[event.source] = set(values)
        for (name, kind), value in values.items():
            self._queue(event, name, kind).set(value)

    def _queue_gone(self, event: events.QueueGone) -> None:
        self._measured.pop(event.source, None)
        self._limits.pop(event.source, None)
        for metric in METRICS:
            if metric.name.startswith(f"{QUEUE}_"):
                self.instruments[metric.name].remove_by_labels({"queue": event.source})

    def _remove(self, queue: str, name: str, kind: str) -> None:
        labels = {"queue": queue, "kind": kind}
        self.instruments[f"{QUEUE}_{name}"].remove_by_labels(labels)

    # The controller

    def _controlled(self, event: Event, name: str, *labels: str) -> MetricSeries:
        """A metric of the controller of an event."""
        return self.instruments[f"{CONTROLLER}_{name}"].labels(event.source, *labels)

    def _counted(self, event: events.ControllerCounted) -> None:
        for state, count in event.jobs:
            self._controlled(event, "jobs", state).set(count)
        self._controlled(event, "workers", "online").set(event.online)
        self._controlled(event, "workers", "offline").set(event.offline)
        self._controlled(event, "held_polls").set(event.held)

    def _poll_answered(self, event: events.PollAnswered) -> None:
        kept = self._polls.get((event.source, event.result))
        if kept is None:  # by far the most frequent event, and looking up labels is slow
            count = self._controlled(event, "poll_total", event.result)
            kept = count, self._controlled(event, "poll_duration_seconds")
            self._polls[event.source, event.result] = kept
        kept[0].inc()
        kept[1].observe(event.took)

    def _request_answered(self, event: events.RequestAnswered) -> None:
        labels = event.method, event.route, str(event.status)
        self._controlled(event, "request_total", *labels).inc()

    def _controller_job(self, event: _ControllerJob) -> None:
        self._controller_result(event, CONTROLLER_RESULTS[type(event)])

    def _controller_result(self, event: _ControllerJob, result: str) -> None:
        self._controlled(event, "job_total", self._controlled_kind(event), result).inc()

    def _controlled_kind(self, event: _ControllerJob) -> str:
        """The kind of a job as a label; OTHER if there are too many, because clients name kinds."""
        known = self._controlled_kinds.setdefault(event.source, set())
        kind = event.kind if event.kind in known or len(known) < KINDS_SHOWN else OTHER
        if kind not in known:
            known.add(kind)
            for result in CONTROLLER_BEGINS:
                self._controlled(event, "job_total", kind, result)
        return kind

    def _job_delivered(self, event: events.JobDelivered) -> None:
        self._controller_result(event, "redelivered" if event.again else "delivered")
        if not event.again:
            kind = self._controlled_kind(event)
            self._controlled(event, "job_wait_seconds", kind).observe(event.waited)

    def _job_reported(self, event: events.JobReported) -> None:
        self._controller_result(event, event.result)
        kind = self._controlled_kind(event)
        self._controlled(event, "job_duration_seconds", kind).observe(event.took)


def _run_of(event: JobEvent) -> tuple[str, str, str]:
    return event.source, event.worker, event.job


def _place(event: Event) -> tuple[str, str]:
    """The group of metrics that an event belongs to, and the name of its queue or outbox."""
    if event.source.startswith("outbox:"):
        return OUTBOX, event.source.removeprefix("outbox:")
    return WORKER, event.source
