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
CONTROLLER_RESULTS: dict[type[Event], str] = {
    JobPut: "put",
    JobLapsed: "lapsed",
    JobGivenUp: "dead",
}
WORKER, OUTBOX = "pollwise_worker", "pollwise_outbox"
BREAKER_STATES = {"closed": 0, "half-open": 1, "open": 2}


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """A server of metrics at `url`, until `close()`."""

    url: str
    close: Callable[[], None]


class PrometheusSink:
    """Keeps the metrics of `pollwise.observe.metrics` in a registry.

    price: the price of a poll in dollars; 0 leaves the cost counter out.
    When the last worker of a queue stops, the series of that queue are deleted; those of an outbox
    when its last relay stops.
    """

    def __init__(
        self, registry: prometheus_client.CollectorRegistry | None = None, price: float = 0.0
    ) -> None:
        self.registry = registry or prometheus_client.CollectorRegistry()
        self._price = price
        self._metrics: dict[str, Any] = {}
        for metric in METRICS:
            # A process without a fleet would show metrics without labels as 0.
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
            **dict.fromkeys(CONTROLLER_RESULTS, self._controller_job),
            JobDelivered: self._job_delivered,
            JobReported: self._job_reported,
            PushChanged: self._push_changed,
            HintPushed: self._hint_pushed,
            ControllerCounted: self._counted,
            **FleetMetrics(self._metrics, self.registry).react,
        }

    def subscribe(self, events: Events) -> Callable[[], None]:
        """Subscribe to events; returns a function that unsubscribes."""
        return events.subscribe(self, *self._react)

    def serve(self, port: int, host: str = "127.0.0.1") -> MetricsServer:
        """Serve `/metrics` from a thread; port 0 takes any free port."""
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
        return MetricsServer(f"http://{name}:{server.server_port}/metrics", close)

    def exposed(self) -> tuple[bytes, str]:
        """The text of a scrape, and its content type."""
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
            self._count(f"{group}_found_total", name, by=event.found)
        if event.hinted:
            self._count(f"{group}_poll_hinted_total", name)
        self._set(f"{group}_poll_interval_seconds", event.interval, name)
        self._observe(f"{group}_poll_duration_seconds", event.took, name)
        if self._price and group == WORKER:
            self._count("pollwise_poll_cost_dollars_total", name, by=self._price)

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
        self._observe("pollwise_worker_job_wait_seconds", event.waited, *labels)
        self._count("pollwise_worker_job_running", *labels)
        self._running.add(_run_of(event))

    def _job_ended(self, event: JobEvent) -> None:
        labels = (event.source, event.kind)
        self._count("pollwise_worker_job_total", *labels, RESULTS[type(event)])
        if isinstance(event, (JobDone, JobRetried)):
            self._observe("pollwise_worker_job_duration_seconds", event.took, *labels)
        if _run_of(event) in self._running:  # else it ended without ever starting
            self._running.discard(_run_of(event))
            self._count("pollwise_worker_job_running", *labels, by=-1)

    def _breaker_changed(self, event: BreakerChanged) -> None:
        group, name = _place(event)
        self._set(f"{group}_breaker_state", BREAKER_STATES[event.state], name, event.kind)

    def _hints_proven(self, event: HintsProven) -> None:
        group, name = _place(event)
        self._set(f"{group}_hints_proven", 1, name)

    def _hints_lost(self, event: HintsLost) -> None:
        group, name = _place(event)
        self._set(f"{group}_hints_proven", 0, name)
        self._count(f"{group}_hints_lost_total", name)

    def _chore_failed(self, event: ChoreFailed) -> None:
        group, name = _place(event)
        self._count(f"{group}_chore_failed_total", name, event.chore)

    def _record_noted(self, event: RecordEvent) -> None:
        labels = (_place(event)[1], event.kind)
        self._count("pollwise_outbox_record_total", *labels, RECORD_RESULTS[type(event)])
        if isinstance(event, RecordHandled):
            self._observe("pollwise_outbox_record_lag_seconds", event.lag, *labels)
            self._observe("pollwise_outbox_record_duration_seconds", event.took, *labels)

    def _key_noted(self, event: Event) -> None:
        self._count("pollwise_outbox_key_total", _place(event)[1], KEY_RESULTS[type(event)])

    def _outbox_measured(self, event: OutboxMeasured) -> None:
        _, name = _place(event)
        for state in ("ready", "leased", "waiting", "dead"):
            self._set("pollwise_outbox_records", getattr(event, state), name, state)
        self._set("pollwise_outbox_keys_blocked", event.keys_blocked, name)
        self._set("pollwise_outbox_records_behind", event.behind, name)
        self._set("pollwise_outbox_oldest_age_seconds", event.oldest_age, name)

    def _stands_by(self, event: RelayStandsBy) -> None:
        self._count("pollwise_outbox_standing_by", _place(event)[1])

    def _resumed(self, event: RelayResumed) -> None:
        self._count("pollwise_outbox_standing_by", _place(event)[1], by=-1)

    def _relay_started(self, event: RelayStarted) -> None:
        self._workers[event.source] += 1
        for metric in METRICS:
            if metric.labels == ("outbox",) and metric.type == "counter":
                self._metrics[metric.name].labels(_place(event)[1])
        for result in KEY_RESULTS.values():
            self._metrics["pollwise_outbox_key_total"].labels(_place(event)[1], result)

    def _worker_started(self, event: WorkerStarted) -> None:
        self._workers[event.source] += 1
        # Counters start at 0 here, because a rate needs to see the first increase.
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

    # The controller

    def _counted(self, event: ControllerCounted) -> None:
        for state, count in event.jobs:
            self._set("pollwise_controller_jobs", count, event.source, state)
        self._set("pollwise_controller_workers", event.online, event.source, "online")
        self._set("pollwise_controller_workers", event.offline, event.source, "offline")
        self._set("pollwise_controller_held_polls", event.held, event.source)

    def _poll_answered(self, event: PollAnswered) -> None:
        kept = self._polls.get((event.source, event.result))
        if kept is None:  # by far the most frequent event, and looking up labels is slow
            count = self._metrics["pollwise_controller_poll_total"]
            duration = self._metrics["pollwise_controller_poll_duration_seconds"]
            kept = count.labels(event.source, event.result), duration.labels(event.source)
            self._polls[event.source, event.result] = kept
        kept[0].inc()
        kept[1].observe(event.took)

    def _request_answered(self, event: RequestAnswered) -> None:
        labels = (event.source, event.method, event.route, str(event.status))
        self._count("pollwise_controller_request_total", *labels)

    def _controller_job(self, event: JobPut | JobLapsed | JobGivenUp) -> None:
        result = CONTROLLER_RESULTS[type(event)]
        self._count("pollwise_controller_job_total", event.source, event.kind, result)

    def _job_delivered(self, event: JobDelivered) -> None:
        result = "redelivered" if event.again else "delivered"
        labels = (event.source, event.kind)
        self._count("pollwise_controller_job_total", *labels, result)
        if not event.again:
            self._observe("pollwise_controller_job_wait_seconds", event.waited, *labels)

    def _job_reported(self, event: JobReported) -> None:
        labels = (event.source, event.kind)
        self._count("pollwise_controller_job_total", *labels, event.result)
        self._observe("pollwise_controller_job_duration_seconds", event.took, *labels)

    def _push_changed(self, event: PushChanged) -> None:
        self._set("pollwise_controller_push_connections", event.connections, event.source)

    def _hint_pushed(self, event: HintPushed) -> None:
        self._count("pollwise_controller_hint_total", event.source)

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        self._metrics[name].labels(*labels).inc(by)

    def _set(self, name: str, value: float, *labels: str) -> None:
        self._metrics[name].labels(*labels).set(value)

    def _observe(self, name: str, value: float, *labels: str) -> None:
        self._metrics[name].labels(*labels).observe(value)


def _run_of(event: JobEvent) -> tuple[str, str, str]:
    return event.source, event.worker, event.job


def _place(event: Event) -> tuple[str, str]:
    """The group of metrics that an event belongs to, and the name of its queue or outbox."""
    if event.source.startswith("outbox:"):
        return OUTBOX, event.source.removeprefix("outbox:")
    return WORKER, event.source
