"""All metrics as data: the sinks and the reference page are built from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

#: Bucket bounds of durations, from a millisecond to ten minutes, in seconds.
DURATION_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name in a scrape, its type, labels and meaning.

    by_target: only if the metrics of fleets are by target. The label `target` is left out if they
        are by group.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    by_target: bool = False

    @property
    def otel_name(self) -> str:
        """Its name in OpenTelemetry: an export from there to Prometheus gives `name` again.

        The exporter writes dots as underscores, and adds the unit and the `_total` of a counter.
        """
        _, part, rest = self.name.removesuffix("_total").split("_", 2)
        return f"pollwise.{part}.{rest.removesuffix('_seconds')}"

    @property
    def otel_unit(self) -> str:
        """Its unit in OpenTelemetry; empty for a number of things."""
        return "s" if self.name.endswith("_seconds") else ""


_GROUP = ("type", "group")
_TARGET = (*_GROUP, "target")


def _part(part: str, labels: tuple[str, ...], *metrics: Metric) -> tuple[Metric, ...]:
    """The metrics of one part: adds its name to theirs, and the labels that all of them have."""
    return tuple(
        replace(each, name=f"pollwise_{part}_{each.name}", labels=(*labels, *each.labels))
        for each in metrics
    )


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, "counter", labels, help)


def _gauge(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, "gauge", labels, help)


def _histogram(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, "histogram", labels, help)


def _loop(found: str) -> tuple[Metric, ...]:
    """The metrics of a poll loop, which a worker and a relay both have."""
    what = "Changes of the pacer: back-off, speed-up, reset, class, decay."
    return (
        _gauge(
            "poll_interval_seconds",
            "The pacer's current interval: its pause, and how long the next poll may block.",
        ),
        _gauge(
            "poll_average", "The moving average of the batch size; only with the strategy ewma."
        ),
        _gauge(
            "poll_forecast_per_second",
            "Items a second that the pacer expects now; only with the strategy worth.",
        ),
        _counter("poll_total", "Polls that succeeded."),
        _counter("poll_empty_total", "Polls that found nothing."),
        _counter("poll_failed_total", "Polls that raised."),
        _counter("poll_hinted_total", "Polls that a hint started early."),
        _histogram("poll_duration_seconds", "How long a poll took."),
        _counter("found_total", found),
        _counter("backoff_total", "How often the interval grew."),
        _counter("pace_change_total", what, "what"),
        _gauge("hints_proven", "1 if the last check of the hint channel came back, else 0."),
        _counter("hints_lost_total", "How often the hint channel was lost."),
        _counter("chore_failed_total", "Recurring chores that raised.", "chore"),
        _gauge("abandoned_threads", "Threads of handlers that timed out; each occupies a place."),
        _counter("places_taken_total", "How often such threads occupied all places."),
        _counter("handler_stuck_total", "Handlers that did not end when a stop cancelled them."),
        _counter("loop_blocked_total", "How often a handler blocked the event loop."),
        _counter("recycled_total", "Runs that ended so that a fresh process takes over."),
    )


METRICS: tuple[Metric, ...] = (
    *_part(
        "worker",
        ("queue",),
        *_loop("Items that polls found."),
        _counter(
            "job_total",
            "Runs of jobs by result: done, retried, dead, cancelled, snoozed, given_back, "
            "unhandled, lost.",
            *("kind", "result"),
        ),
        _histogram("job_wait_seconds", "Time from due to started.", "kind"),
        _histogram("job_duration_seconds", "Time from started to done.", "kind"),
        _gauge("job_running", "Handlers running now.", "kind"),
        _gauge("breaker_state", "The breaker of a kind: 0 closed, 1 half-open, 2 open.", "kind"),
        _counter(
            "lease_lapsed_total",
            "Leases that ended while a worker here held the job, which may now run elsewhere. The "
            "leases of a process that died are not counted here.",
            "kind",
        ),
        _counter(
            "job_taken_over_total",
            "Jobs claimed here because the lease of a worker that died, or stood still, ran out.",
            "kind",
        ),
        _gauge(
            "kind_unhandled",
            "1 if jobs of a kind without a handler here were ready for over a minute; until the "
            "worker stops.",
            "kind",
        ),
    ),
    Metric(
        "pollwise_poll_cost_dollars_total",
        "counter",
        ("queue",),
        "The cost of the polls, if a price is set.",
    ),
    *_part(
        "queue",
        ("queue",),
        _gauge(
            "depth",
            "Jobs in the store by state: ready, delayed, blocked, leased, dead, done, cancelled. "
            "At most 100 kinds are shown; jobs of others, and of those that are not ready all that "
            "are not among 10,000 counted by kind, are in the kind (other). A state is counted up "
            "to about 50,000 jobs.",
            *("kind", "state"),
        ),
        _gauge(
            "oldest_age_seconds",
            "How long the oldest ready job has been due; 0 if no job is ready.",
            "kind",
        ),
        _gauge(
            "startable",
            "Ready jobs that may start now, and only wait for a worker: not those that a pause, a "
            "limit of their kind, or open breakers of all its workers hold back. Limits of groups "
            "are not considered.",
            "kind",
        ),
        _gauge(
            "startable_age_seconds",
            "How long the oldest ready job of a kind with jobs that may start now has been due; 0 "
            "if none may start.",
            "kind",
        ),
        _gauge(
            "paused",
            "1 while claims of a kind are paused, else 0; the empty kind is the whole queue.",
            "kind",
        ),
        _gauge(
            "schedule_late_seconds",
            "How long the next tick of a schedule is overdue; 0 if it is not. At most 100 "
            "schedules are shown, the latest first.",
            "schedule",
        ),
        _gauge(
            "limit_running", "Jobs of a kind with limits that run, of at most 100 kinds.", "kind"
        ),
        _gauge(
            "limit_waiting",
            "Jobs of a kind with limits that wait for a limit or a worker, counted up to 1,000.",
            "kind",
        ),
        _gauge(
            "limit_most", "How many jobs of a kind may run at a time, if that is limited.", "kind"
        ),
        _gauge("workers", "Workers of the queue whose record in the store has not expired."),
        _gauge(
            "measured_timestamp_seconds",
            "When the queue was measured last, in seconds since 1970.",
        ),
    ),
    *_part(
        "outbox",
        ("outbox",),
        *_loop("Keys that polls claimed."),
        _counter(
            "record_total",
            "Records by result: handled, dead; and before that, for each handler: retried, "
            "snoozed, fell_back, unhandled. With lanes, a record counts once per lane.",
            *("kind", "result", "lane"),
        ),
        _counter(
            "handler_total",
            "Records by handler and what it did: done and gave_up, counted when the record ends; "
            "retried, snoozed, fell_back.",
            *("handler", "result"),
        ),
        _histogram(
            "record_lag_seconds",
            "Time from put to handled, by the store's clock.",
            *("kind", "lane"),
        ),
        _histogram("record_duration_seconds", "How long the handlers of a record took.", "kind"),
        _counter("key_total", "Keys that were blocked, given_back or lost.", "result", "lane"),
        _counter(
            "lease_lapsed_total",
            "Leases of keys that ended while a relay here held the key, which another relay may "
            "now claim.",
            "lane",
        ),
        _gauge(
            "records",
            "Records in the outbox by state, once a minute: ready, leased, waiting, dead. With "
            "lanes, by lane; those of the empty lane are in no lane yet.",
            *("state", "lane"),
        ),
        _gauge("keys_blocked", "Keys that a dead record blocks, once a minute.", "lane"),
        _gauge("records_behind", "Records behind blocked keys.", "lane"),
        _gauge(
            "oldest_age_seconds",
            "Age of the oldest record that is neither done nor dead; 0 if there is none.",
            "lane",
        ),
        _gauge("relays", "Relays of the outbox that live, here and elsewhere, once a minute."),
        _gauge(
            "measured_timestamp_seconds",
            "When the outbox was measured last, in seconds since 1970.",
        ),
        _gauge(
            "standing_by", "Relays here that claim nothing, because a newer one has more handlers."
        ),
        _gauge(
            "breaker_state", "The breaker of a handler: 0 closed, 1 half-open, 2 open.", "handler"
        ),
    ),
    *_part(
        "controller",
        ("queue",),
        _counter(
            "poll_total", "Polls that the controller answered: job, empty, too_soon.", "result"
        ),
        _histogram(
            "poll_duration_seconds",
            "Time from a poll to its answer, including the time that it was held.",
        ),
        _counter(
            "request_total",
            "Other requests, by method, route and status code.",
            *("method", "route", "status"),
        ),
        _counter(
            "job_total",
            "Jobs: put, delivered, redelivered, lapsed, and by result: done, failed, dead, "
            "cancelled.",
            *("kind", "result"),
        ),
        _histogram("job_wait_seconds", "Time from due to delivered.", "kind"),
        _histogram("job_duration_seconds", "Time from delivered to reported.", "kind"),
        _gauge("jobs", "Jobs by state when the gauge is read.", "state"),
        _gauge(
            "workers", "Registered workers, online and offline, when the gauge is read.", "state"
        ),
        _gauge("held_polls", "Polls that are held now."),
        _gauge("push_connections", "WebSockets that are open now."),
        _counter("hint_total", "Hints sent to workers."),
    ),
    *_part(
        "fleet",
        (),
        _counter(
            "poll_total",
            "Polls by result: changed, unchanged, failed.",
            *(*_TARGET, "result"),
        ),
        _histogram("poll_duration_seconds", "How long a poll took.", *_TARGET),
        _gauge(
            "poll_staleness_seconds",
            "Age of the last success, or time without one. By group: of the oldest target that is "
            "neither paused nor in its quiet hours.",
            *_TARGET,
        ),
        _gauge(
            "staleness_score",
            "The staleness as a share of the target's max_interval, 0 to 1; 1 without a success. "
            "By group: the highest, as above.",
            *_TARGET,
        ),
        _gauge("targets", "Targets that this process polls; counted every 10 seconds.", *_GROUP),
        _gauge("never_targets", "Targets that never succeeded.", *_GROUP),
        _gauge("down_targets", "Targets whose failures are confirmed.", *_GROUP),
        _gauge("dead_targets", "Dead targets; they are rechecked.", *_GROUP),
        _gauge("stale_targets", "Targets that are older than they should be.", *_GROUP),
        _gauge("paused_targets", "Paused targets.", *_GROUP),
        _gauge("quiet_targets", "Targets that their quiet hours defer.", *_GROUP),
        _gauge("due", "Polls that are due and wait for a slot, their host or the budget.", *_GROUP),
        _gauge("overdue", "Polls that have waited for more than 5 seconds.", *_GROUP),
        _gauge(
            "breakers",
            "Breakers by state: closed, half-open, open; as in the API.",
            *(*_GROUP, "state"),
        ),
        _counter(
            "breaker_change_total",
            "Changes of the breakers of targets, by the new state: closed, half-open, open.",
            *(*_GROUP, "state"),
        ),
        Metric(
            "breaker_state",
            "gauge",
            _TARGET,
            "The breaker of a target that fails: 0 closed, 1 half-open, 2 open.",
            by_target=True,
        ),
        _gauge("queue_depth", "Polls that are planned, due or not."),
        _gauge("inflight", "Polls running now.", "type"),
        _counter(
            "stuck_total",
            "Polls that kept running after they were cancelled at their deadline.",
            *_TARGET,
        ),
        _counter("alert_total", "Alerts that opened and closed.", *("result", "severity")),
        _counter(
            "notice_total",
            "Notices that a channel sent, and attempts that failed.",
            *("channel", "result"),
        ),
        _histogram(
            "notice_delay_seconds",
            "Time from what a notice is about, or the end of quiet hours, until it was sent.",
            "channel",
        ),
    ),
)
