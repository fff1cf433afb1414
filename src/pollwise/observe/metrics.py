"""All metrics as data; the Prometheus sink and the reference page are built from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Bucket bounds of durations, from a millisecond to ten minutes, in seconds.
DURATION_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name in a scrape, its type, labels and meaning."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


_QUEUE = ("queue",)
_KIND = ("queue", "kind")
_OUTBOX = ("outbox",)
_TARGET = ("type", "target")


def _loop_metrics(part: str, label: str, found: str) -> tuple[Metric, ...]:
    """The metrics of a poll loop, which a worker and a relay both have."""
    rows: tuple[tuple[str, Literal["counter", "gauge", "histogram"], tuple[str, ...], str], ...] = (
        ("poll_interval_seconds", "gauge", (), "The pacer's current interval."),
        ("poll_total", "counter", (), "Polls that succeeded."),
        ("poll_empty_total", "counter", (), "Polls that found nothing."),
        ("poll_failed_total", "counter", (), "Polls that raised."),
        ("poll_hinted_total", "counter", (), "Polls that a hint started early."),
        ("poll_duration_seconds", "histogram", (), "How long a poll took."),
        ("found_total", "counter", (), found),
        ("backoff_total", "counter", (), "How often the interval grew."),
        (
            "pace_change_total",
            "counter",
            ("what",),
            "Changes of the pacer: back-off, speed-up, reset, class, decay.",
        ),
        ("hints_proven", "gauge", (), "1 if the last check of the hint channel came back, else 0."),
        ("hints_lost_total", "counter", (), "How often the hint channel was lost."),
        ("chore_failed_total", "counter", ("chore",), "Recurring chores that raised."),
    )
    return tuple(
        Metric(f"pollwise_{part}_{name}", kind, (label, *more), text)
        for name, kind, more, text in rows
    )


METRICS: tuple[Metric, ...] = (
    *_loop_metrics("worker", "queue", "Items that polls found."),
    Metric(
        "pollwise_worker_job_total",
        "counter",
        ("queue", "kind", "result"),
        "Runs of jobs by result: done, retried, dead, snoozed, given_back, unhandled, lost.",
    ),
    Metric("pollwise_worker_job_wait_seconds", "histogram", _KIND, "Time from due to started."),
    Metric(
        "pollwise_worker_job_duration_seconds", "histogram", _KIND, "Time from started to done."
    ),
    Metric("pollwise_worker_job_running", "gauge", _KIND, "Handlers running now."),
    Metric(
        "pollwise_worker_breaker_state",
        "gauge",
        _KIND,
        "The breaker of a kind: 0 closed, 1 half-open, 2 open.",
    ),
    Metric(
        "pollwise_poll_cost_dollars_total",
        "counter",
        _QUEUE,
        "The cost of the polls, if a price is set.",
    ),
    *_loop_metrics("outbox", "outbox", "Keys that polls claimed."),
    Metric(
        "pollwise_outbox_record_total",
        "counter",
        ("outbox", "kind", "result"),
        "Records by result: handled, dead; and before that, for each handler: retried, snoozed, "
        "fell_back, unhandled.",
    ),
    Metric(
        "pollwise_outbox_record_lag_seconds",
        "histogram",
        ("outbox", "kind"),
        "Time from put to handled, by the store's clock.",
    ),
    Metric(
        "pollwise_outbox_record_duration_seconds",
        "histogram",
        ("outbox", "kind"),
        "How long the handlers of a record took.",
    ),
    Metric(
        "pollwise_outbox_key_total",
        "counter",
        ("outbox", "result"),
        "Keys that were blocked, given_back or lost.",
    ),
    Metric(
        "pollwise_outbox_records",
        "gauge",
        ("outbox", "state"),
        "Records in the outbox by state, once a minute: ready, leased, waiting, dead.",
    ),
    Metric(
        "pollwise_outbox_keys_blocked",
        "gauge",
        _OUTBOX,
        "Keys that a dead record blocks, once a minute.",
    ),
    Metric("pollwise_outbox_records_behind", "gauge", _OUTBOX, "Records behind blocked keys."),
    Metric(
        "pollwise_outbox_oldest_age_seconds",
        "gauge",
        _OUTBOX,
        "Age of the oldest record that is neither done nor dead; 0 if there is none.",
    ),
    Metric(
        "pollwise_outbox_standing_by",
        "gauge",
        _OUTBOX,
        "Relays here that claim nothing, because a newer one has more handlers.",
    ),
    Metric(
        "pollwise_outbox_breaker_state",
        "gauge",
        ("outbox", "handler"),
        "The breaker of a handler: 0 closed, 1 half-open, 2 open.",
    ),
    Metric(
        "pollwise_controller_poll_total",
        "counter",
        ("queue", "result"),
        "Polls that the controller answered: job, empty, too_soon.",
    ),
    Metric(
        "pollwise_controller_poll_duration_seconds",
        "histogram",
        _QUEUE,
        "Time from a poll to its answer, including the time that it was held.",
    ),
    Metric(
        "pollwise_controller_request_total",
        "counter",
        ("queue", "method", "route", "status"),
        "Other requests, by method, route and status code.",
    ),
    Metric(
        "pollwise_controller_job_total",
        "counter",
        ("queue", "kind", "result"),
        "Jobs: put, delivered, redelivered, lapsed, and by result: done, failed, dead, cancelled.",
    ),
    Metric(
        "pollwise_controller_job_wait_seconds", "histogram", _KIND, "Time from due to delivered."
    ),
    Metric(
        "pollwise_controller_job_duration_seconds",
        "histogram",
        _KIND,
        "Time from delivered to reported.",
    ),
    Metric(
        "pollwise_controller_jobs",
        "gauge",
        ("queue", "state"),
        "Jobs by state at the time of the scrape.",
    ),
    Metric(
        "pollwise_controller_workers",
        "gauge",
        ("queue", "state"),
        "Registered workers, online and offline, at the time of the scrape.",
    ),
    Metric("pollwise_controller_held_polls", "gauge", _QUEUE, "Polls that are held now."),
    Metric(
        "pollwise_controller_push_connections", "gauge", _QUEUE, "WebSockets that are open now."
    ),
    Metric("pollwise_controller_hint_total", "counter", _QUEUE, "Hints sent to workers."),
    Metric(
        "pollwise_fleet_poll_total",
        "counter",
        ("type", "target", "result"),
        "Polls of a target by result: changed, unchanged, failed.",
    ),
    Metric("pollwise_fleet_poll_duration_seconds", "histogram", _TARGET, "How long a poll took."),
    Metric(
        "pollwise_fleet_poll_staleness_seconds",
        "gauge",
        _TARGET,
        "Age of the last success, or time without one.",
    ),
    Metric("pollwise_fleet_queue_depth", "gauge", (), "Polls that are planned, due or not."),
    Metric("pollwise_fleet_due", "gauge", (), "Polls that are due and wait for a free slot."),
    Metric("pollwise_fleet_inflight", "gauge", ("type",), "Polls running now."),
    Metric(
        "pollwise_fleet_breaker_state",
        "gauge",
        _TARGET,
        "The breaker of a target that fails: 0 closed, 1 half-open, 2 open.",
    ),
    Metric("pollwise_fleet_dead_targets", "gauge", (), "Dead targets; they are rechecked."),
    Metric(
        "pollwise_fleet_stuck_total",
        "counter",
        _TARGET,
        "Polls that kept running after they were cancelled at their deadline.",
    ),
    Metric(
        "pollwise_fleet_action_failed_total",
        "counter",
        _TARGET,
        "How often the action for a change raised or took too long.",
    ),
)
