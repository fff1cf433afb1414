"""The Prometheus sink: events in, metrics out (`pip install 'pollwise[metrics]'`)."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pollwise.errors import ConfigError, MissingExtra
from pollwise.observe.fleet_metrics import FleetMetrics
from pollwise.observe.metrics import DURATION_BUCKETS, METRICS, Metric
from pollwise.runtime.events import (
    BreakerChanged,
    ChoreFailed,
    ControllerCounted,
    Event,
    Events,
    HintPushed,
    HintsLost,
    HintsProven,
    JobDead,
    JobDelivered,
    JobDone,
    JobEvent,
    JobGivenBack,
    JobGivenUp,
    JobLapsed,
    JobLost,
    JobPut,
    JobReported,
    JobRetried,
    JobSnoozed,
    JobStarted,
    JobUnhandled,
    KeyBlocked,
    KeyGivenBack,
    KeyLost,
    OutboxMeasured,
    PaceChanged,
    PollAnswered,
    PollFailed,
    PollFinished,
    PushChanged,
    RecordDead,
    RecordEvent,
    RecordFellBack,
    RecordHandled,
    RecordRetried,
    RecordSnoozed,
    RecordUnhandled,
    RelayResumed,
    RelayStandsBy,
    RelayStarted,
    RelayStopped,
    RequestAnswered,
    WorkerStarted,
    WorkerStopped,
)

try:
    import prometheus_client
except ImportError:  # pragma: no cover - tried in an environment without the extra
    raise MissingExtra("exporting metrics", "metrics") from None

RESULTS: dict[type[JobEvent], str] = {
    JobDone: "done",
    JobRetried: "retried",
    JobDead: "dead",
    JobSnoozed: "snoozed",
    JobGivenBack: "given_back",
    JobUnhandled: "unhandled",
    JobLost: "lost",
}
RECORD_RESULTS: dict[type[Event], str] = {
    RecordHandled: "handled",
    RecordRetried: "retried",
    RecordDead: "dead",
    RecordSnoozed: "snoozed",
    RecordFellBack: "fell_back",
    RecordUnhandled: "unhandled",
}
KEY_RESULTS: dict[type[Event], str] = {
    KeyBlocked: "blocked",
    KeyGivenBack: "given_back",
    KeyLost: "lost",
}
WORKER, OUTBOX = "pollwise_worker", "pollwise_outbox"
BREAKER_STATES = {"closed": 0, "half-open": 1, "open": 2}


@dataclass(frozen=True, slots=True)
class Served:
    """Metrics being served: at `url`, until `close()`."""

    url: str
    close: Callable[[], None]


class PrometheusSink:
    """Keep the metrics of `pollwise.observe.metrics` in a registry.

    price: dollars a poll costs; 0 leaves the cost counter out.
    When the last worker of a queue stops, the label sets of that queue are deleted; and those of an
    outbox with its last relay.
    """

    def __init__(
        self, registry: prometheus_client.CollectorRegistry | None = None, price: float = 0.0
    ) -> None:
        self.registry = registry or prometheus_client.CollectorRegistry()
        self._price = price
        self._metrics: dict[str, Any] = {}
        for metric in METRICS:
            # What has no labels would be shown as 0 by a process that has no fleet.
            arguments: dict[str, Any] = {"registry": self.registry if metric.labels else None}
            if metric.type == "histogram":
                arguments["buckets"] = DURATION_BUCKETS
            make = getattr(prometheus_client, metric.type.capitalize())
            self._metrics[metric.name] = make(metric.name, metric.help, metric.labels, **arguments)
        self._workers: Tally[str] = Tally()
        self._running: set[tuple[str, str, str]] = set()
        self._polls: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._react: dict[type[Event], Callable[[Any], None]] = {
            PollFinished: self._poll_finished,
            PollFailed: self._poll_failed,
            PaceChanged: self._pace_changed,
            JobStarted: self._job_started,
            BreakerChanged: self._breaker_changed,
            HintsProven: self._hints_proven,
            HintsLost: self._hints_lost,
            ChoreFailed: self._chore_failed,
            WorkerStarted: self._worker_started,
            WorkerStopped: self._stopped,
            RelayStarted: self._relay_started,
            RelayStopped: self._stopped,
            RelayStandsBy: self._stands_by,
            RelayResumed: self._resumed,
            OutboxMeasured: self._outbox_measured,
            **dict.fromkeys(RECORD_RESULTS, self._record_noted),
            **dict.fromkeys(KEY_RESULTS, self._key_noted),
            **dict.fromkeys(RESULTS, self._job_ended),
            PollAnswered: self._poll_answered,
            RequestAnswered: self._request_answered,
            JobPut: self._job_put,
            JobDelivered: self._job_delivered,
            JobReported: self._job_reported,
            JobLapsed: self._job_lapsed,
            JobGivenUp: self._job_given_up,
            PushChanged: self._push_changed,
            HintPushed: self._hint_pushed,
            ControllerCounted: self._counted,
            **FleetMetrics(self._metrics, self.registry).react,
        }

    def subscribe(self, events: Events) -> Callable[[], None]:
        """Listen to a bus; returns a function that ends it."""
        return events.subscribe(self, *self._react)

    def serve(self, port: int, host: str = "127.0.0.1") -> Served:
        """Serve `/metrics` from a thread; port 0 takes any that is free."""
        try:
            server, thread = prometheus_client.start_http_server(port, host, self.registry)
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics on {host}:{port}: {error.strerror or error}; choose another "
                "metrics_port (--metrics-port) or metrics_host"
            ) from error

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        name = f"[{host}]" if ":" in host else host
        return Served(f"http://{name}:{server.server_port}/metrics", close)

    def exposed(self) -> tuple[bytes, str]:
        """All metrics as a scrape gets them, and the content type of that."""
        text: bytes = prometheus_client.generate_latest(self.registry)
        return text, prometheus_client.CONTENT_TYPE_LATEST

    def __call__(self, event: Event) -> None:
        self._react[type(event)](event)

    def _poll_finished(self, event: PollFinished) -> None:
        group, name = _place(event)
        self._count(f"{group}_poll_total", name)
        if not event.found:
            self._count(f"{group}_poll_empty_total", name)
        else:
            self._metrics[f"{group}_found_total"].labels(name).inc(event.found)
        if event.hinted:
            self._count(f"{group}_poll_hinted_total", name)
        self._metrics[f"{group}_poll_interval_seconds"].labels(name).set(event.interval)
        self._metrics[f"{group}_poll_duration_seconds"].labels(name).observe(event.took)
        if self._price and group == WORKER:
            self._metrics["pollwise_poll_cost_dollars_total"].labels(name).inc(self._price)

    def _poll_failed(self, event: PollFailed) -> None:
        group, name = _place(event)
        self._count(f"{group}_poll_failed_total", name)

    def _pace_changed(self, event: PaceChanged) -> None:
        group, name = _place(event)
        self._count(f"{group}_pace_change_total", name, event.what)
        if event.what == "back-off":
            self._count(f"{group}_backoff_total", name)

    def _job_started(self, event: JobStarted) -> None:
        labels = (event.source, event.kind)
        self._metrics["pollwise_worker_job_wait_seconds"].labels(*labels).observe(event.waited)
        self._metrics["pollwise_worker_job_running"].labels(*labels).inc()
        self._running.add(_run_of(event))

    def _job_ended(self, event: JobEvent) -> None:
        self._count("pollwise_worker_job_total", event.source, event.kind, RESULTS[type(event)])
        if isinstance(event, (JobDone, JobRetried)):
            duration = self._metrics["pollwise_worker_job_duration_seconds"]
            duration.labels(event.source, event.kind).observe(event.took)
        if _run_of(event) in self._running:  # else it ended without ever starting
            self._running.discard(_run_of(event))
            self._metrics["pollwise_worker_job_running"].labels(event.source, event.kind).dec()

    def _breaker_changed(self, event: BreakerChanged) -> None:
        group, name = _place(event)
        gauge = self._metrics[f"{group}_breaker_state"]
        gauge.labels(name, event.kind).set(BREAKER_STATES[event.state])

    def _hints_proven(self, event: HintsProven) -> None:
        group, name = _place(event)
        self._metrics[f"{group}_hints_proven"].labels(name).set(1)

    def _hints_lost(self, event: HintsLost) -> None:
        group, name = _place(event)
        self._metrics[f"{group}_hints_proven"].labels(name).set(0)
        self._count(f"{group}_hints_lost_total", name)

    def _chore_failed(self, event: ChoreFailed) -> None:
        group, name = _place(event)
        self._count(f"{group}_chore_failed_total", name, event.chore)

    def _record_noted(self, event: RecordEvent) -> None:
        _, name = _place(event)
        result = RECORD_RESULTS[type(event)]
        self._count("pollwise_outbox_record_total", name, event.kind, result)
        if isinstance(event, RecordHandled):
            lag = self._metrics["pollwise_outbox_record_lag_seconds"]
            lag.labels(name, event.kind).observe(event.lag)
            took = self._metrics["pollwise_outbox_record_duration_seconds"]
            took.labels(name, event.kind).observe(event.took)

    def _key_noted(self, event: Event) -> None:
        self._count("pollwise_outbox_key_total", _place(event)[1], KEY_RESULTS[type(event)])

    def _outbox_measured(self, event: OutboxMeasured) -> None:
        _, name = _place(event)
        for state in ("ready", "leased", "waiting", "dead"):
            gauge = self._metrics["pollwise_outbox_records"]
            gauge.labels(name, state).set(getattr(event, state))
        self._metrics["pollwise_outbox_keys_blocked"].labels(name).set(event.keys_blocked)
        self._metrics["pollwise_outbox_records_behind"].labels(name).set(event.behind)
        self._metrics["pollwise_outbox_oldest_age_seconds"].labels(name).set(event.oldest_age)

    def _stands_by(self, event: RelayStandsBy) -> None:
        self._metrics["pollwise_outbox_standing_by"].labels(_place(event)[1]).inc()

    def _resumed(self, event: RelayResumed) -> None:
        self._metrics["pollwise_outbox_standing_by"].labels(_place(event)[1]).dec()

    def _relay_started(self, event: RelayStarted) -> None:
        self._workers[event.source] += 1
        for metric in METRICS:
            if metric.labels == ("outbox",) and metric.type == "counter":
                self._metrics[metric.name].labels(_place(event)[1])
        for result in KEY_RESULTS.values():
            self._metrics["pollwise_outbox_key_total"].labels(_place(event)[1], result)

    def _worker_started(self, event: WorkerStarted) -> None:
        self._workers[event.source] += 1
        # From 0, not from the first time on: a rate needs to see the step.
        for metric in METRICS:
            ours = not metric.name.startswith("pollwise_controller_")
            if ours and metric.labels == ("queue",) and self._begins_at_zero(metric):
                self._metrics[metric.name].labels(event.source)
        for kind in event.kinds:
            self._metrics["pollwise_worker_job_running"].labels(event.source, kind)

    def _begins_at_zero(self, metric: Metric) -> bool:
        priced = metric.name == "pollwise_poll_cost_dollars_total"
        return bool(self._price) if priced else metric.type == "counter"

    def _stopped(self, event: WorkerStopped | RelayStopped) -> None:
        self._workers[event.source] -= 1
        if self._workers[event.source] > 0:
            return
        del self._workers[event.source]
        self._running = {run for run in self._running if run[0] != event.source}
        group, name = _place(event)
        label = "queue" if group == WORKER else "outbox"
        for metric in METRICS:
            if label in metric.labels:
                self._metrics[metric.name].remove_by_labels({label: name})

    # The controller's

    def _counted(self, event: ControllerCounted) -> None:
        jobs = self._metrics["pollwise_controller_jobs"]
        for state, count in event.jobs:
            jobs.labels(event.source, state).set(count)
        workers = self._metrics["pollwise_controller_workers"]
        workers.labels(event.source, "online").set(event.online)
        workers.labels(event.source, "offline").set(event.offline)
        self._metrics["pollwise_controller_held_polls"].labels(event.source).set(event.held)

    def _poll_answered(self, event: PollAnswered) -> None:
        kept = self._polls.get((event.source, event.result))
        if kept is None:  # by far the most frequent event, and to look up labels takes its time
            count = self._metrics["pollwise_controller_poll_total"]
            duration = self._metrics["pollwise_controller_poll_duration_seconds"]
            kept = count.labels(event.source, event.result), duration.labels(event.source)
            self._polls[event.source, event.result] = kept
        kept[0].inc()
        kept[1].observe(event.took)

    def _request_answered(self, event: RequestAnswered) -> None:
        labels = (event.source, event.method, event.route, str(event.status))
        self._count("pollwise_controller_request_total", *labels)

    def _job_put(self, event: JobPut) -> None:
        self._count("pollwise_controller_job_total", event.source, event.kind, "put")

    def _job_delivered(self, event: JobDelivered) -> None:
        result = "redelivered" if event.again else "delivered"
        self._count("pollwise_controller_job_total", event.source, event.kind, result)
        if not event.again:
            wait = self._metrics["pollwise_controller_job_wait_seconds"]
            wait.labels(event.source, event.kind).observe(event.waited)

    def _job_reported(self, event: JobReported) -> None:
        self._count("pollwise_controller_job_total", event.source, event.kind, event.result)
        duration = self._metrics["pollwise_controller_job_duration_seconds"]
        duration.labels(event.source, event.kind).observe(event.took)

    def _job_lapsed(self, event: JobLapsed) -> None:
        self._count("pollwise_controller_job_total", event.source, event.kind, "lapsed")

    def _job_given_up(self, event: JobGivenUp) -> None:
        self._count("pollwise_controller_job_total", event.source, event.kind, "dead")

    def _push_changed(self, event: PushChanged) -> None:
        gauge = self._metrics["pollwise_controller_push_connections"]
        gauge.labels(event.source).set(event.connections)

    def _hint_pushed(self, event: HintPushed) -> None:
        self._count("pollwise_controller_hint_total", event.source)

    def _count(self, name: str, *labels: str) -> None:
        self._metrics[name].labels(*labels).inc()


def _run_of(event: JobEvent) -> tuple[str, str, str]:
    return event.source, event.worker, event.job


def _place(event: Event) -> tuple[str, str]:
    """Whose metrics an event belongs to, and the name of its queue or outbox."""
    if event.source.startswith("outbox:"):
        return OUTBOX, event.source.removeprefix("outbox:")
    return WORKER, event.source
