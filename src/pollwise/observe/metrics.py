"""Every metric Pollwise exports, as data: the Prometheus sink and the reference are made
from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Bucket bounds of durations, from a millisecond to ten minutes, in seconds.
DURATION_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name as a scrape shows it, its type, labels and meaning."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


_QUEUE = ("queue",)
_KIND = ("queue", "kind")
_OUTBOX = ("outbox",)
_TARGET = ("type", "target")

METRICS: tuple[Metric, ...] = (
    Metric("pollwise_worker_poll_interval_seconds", "gauge", _QUEUE, "The pacer's interval now."),
    Metric("pollwise_worker_poll_total", "counter", _QUEUE, "Polls that came back."),
    Metric("pollwise_worker_poll_empty_total", "counter", _QUEUE, "Polls that found nothing."),
    Metric("pollwise_worker_poll_failed_total", "counter", _QUEUE, "Polls that raised."),
    Metric("pollwise_worker_poll_hinted_total", "counter", _QUEUE, "Polls a hint brought forward."),
    Metric("pollwise_worker_poll_duration_seconds", "histogram", _QUEUE, "How long a poll took."),
    Metric("pollwise_worker_found_total", "counter", _QUEUE, "Items that polls found."),
    Metric("pollwise_worker_backoff_total", "counter", _QUEUE, "Times the interval grew."),
    Metric(
        "pollwise_worker_pace_change_total",
        "counter",
        ("queue", "what"),
        "Turns of the pacer: back-off, speed-up, reset, class, decay.",
    ),
    Metric(
        "pollwise_worker_job_total",
        "counter",
        ("queue", "kind", "result"),
        "Jobs by how they ended: done, retried, dead, snoozed, given_back, unhandled, lost.",
    ),
    Metric("pollwise_worker_job_wait_seconds", "histogram", _KIND, "From due to started."),
    Metric("pollwise_worker_job_duration_seconds", "histogram", _KIND, "From started to done."),
    Metric("pollwise_worker_job_running", "gauge", _KIND, "Handlers at work now."),
    Metric(
        "pollwise_worker_breaker_state",
        "gauge",
        _KIND,
        "The breaker of a kind: 0 closed, 1 half-open, 2 open.",
    ),
    Metric(
        "pollwise_worker_hints_proven",
        "gauge",
        _QUEUE,
        "Whether a check of the hint channel came back: 1 proven, 0 not.",
    ),
    Metric(
        "pollwise_worker_hints_lost_total", "counter", _QUEUE, "Times the hint channel was lost."
    ),
    Metric(
        "pollwise_worker_chore_failed_total",
        "counter",
        ("queue", "chore"),
        "Recurring chores that raised.",
    ),
    Metric(
        "pollwise_poll_cost_dollars_total",
        "counter",
        _QUEUE,
        "What the polls cost, where a price a poll is given.",
    ),
    Metric("pollwise_outbox_poll_interval_seconds", "gauge", _OUTBOX, "The pacer's interval now."),
    Metric("pollwise_outbox_poll_total", "counter", _OUTBOX, "Polls that came back."),
    Metric("pollwise_outbox_poll_empty_total", "counter", _OUTBOX, "Polls that found nothing."),
    Metric("pollwise_outbox_poll_failed_total", "counter", _OUTBOX, "Polls that raised."),
    Metric(
        "pollwise_outbox_poll_hinted_total", "counter", _OUTBOX, "Polls a hint brought forward."
    ),
    Metric("pollwise_outbox_poll_duration_seconds", "histogram", _OUTBOX, "How long a poll took."),
    Metric("pollwise_outbox_found_total", "counter", _OUTBOX, "Keys that polls claimed."),
    Metric("pollwise_outbox_backoff_total", "counter", _OUTBOX, "Times the interval grew."),
    Metric(
        "pollwise_outbox_pace_change_total",
        "counter",
        ("outbox", "what"),
        "Turns of the pacer: back-off, speed-up, reset, class, decay.",
    ),
    Metric(
        "pollwise_outbox_record_total",
        "counter",
        ("outbox", "kind", "result"),
        "Records by what came of them: handled, dead; and on the way there: retried, snoozed, "
        "fell_back, unhandled, by each handler.",
    ),
    Metric(
        "pollwise_outbox_record_lag_seconds",
        "histogram",
        ("outbox", "kind"),
        "From put to handled, by the store's clock.",
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
        "Records in the outbox, looked up once a minute: ready, leased, waiting, dead.",
    ),
    Metric(
        "pollwise_outbox_keys_blocked",
        "gauge",
        _OUTBOX,
        "Keys that stand still behind a dead record, looked up once a minute.",
    ),
    Metric("pollwise_outbox_records_behind", "gauge", _OUTBOX, "Records behind blocked keys."),
    Metric(
        "pollwise_outbox_oldest_age_seconds",
        "gauge",
        _OUTBOX,
        "How old the oldest record is that is neither done nor dead; 0 when there is none.",
    ),
    Metric(
        "pollwise_outbox_standing_by",
        "gauge",
        _OUTBOX,
        "Relays here that claim nothing, since a newer one has more handlers.",
    ),
    Metric(
        "pollwise_outbox_breaker_state",
        "gauge",
        ("outbox", "handler"),
        "The breaker of a handler: 0 closed, 1 half-open, 2 open.",
    ),
    Metric(
        "pollwise_outbox_hints_proven",
        "gauge",
        _OUTBOX,
        "Whether a check of the hint channel came back: 1 proven, 0 not.",
    ),
    Metric(
        "pollwise_outbox_hints_lost_total", "counter", _OUTBOX, "Times the hint channel was lost."
    ),
    Metric(
        "pollwise_outbox_chore_failed_total",
        "counter",
        ("outbox", "chore"),
        "Recurring chores that raised.",
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
        "From a poll to its answer, the time that it was held included.",
    ),
    Metric(
        "pollwise_controller_request_total",
        "counter",
        ("queue", "method", "route", "status"),
        "Other requests, by how they were answered.",
    ),
    Metric(
        "pollwise_controller_job_total",
        "counter",
        ("queue", "kind", "result"),
        "Jobs: put, delivered, redelivered, lapsed, and as they ended: done, failed, "
        "dead, cancelled.",
    ),
    Metric("pollwise_controller_job_wait_seconds", "histogram", _KIND, "From due to delivered."),
    Metric(
        "pollwise_controller_job_duration_seconds",
        "histogram",
        _KIND,
        "From delivered to reported.",
    ),
    Metric(
        "pollwise_controller_jobs",
        "gauge",
        ("queue", "state"),
        "Jobs by state, as of the scrape.",
    ),
    Metric(
        "pollwise_controller_workers",
        "gauge",
        ("queue", "state"),
        "Registered workers, online and offline, as of the scrape.",
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
        "Polls of a target that ended: changed, unchanged, failed.",
    ),
    Metric("pollwise_fleet_poll_duration_seconds", "histogram", _TARGET, "How long a poll took."),
    Metric(
        "pollwise_fleet_poll_staleness_seconds",
        "gauge",
        _TARGET,
        "The age of the last success, or since when there was none.",
    ),
    Metric("pollwise_fleet_queue_depth", "gauge", (), "Polls that are planned, due or not."),
    Metric("pollwise_fleet_due", "gauge", (), "Polls that are due and wait for a place."),
    Metric("pollwise_fleet_inflight", "gauge", ("type",), "Polls under way."),
    Metric(
        "pollwise_fleet_breaker_state",
        "gauge",
        _TARGET,
        "The breaker of a target that fails: 0 closed, 1 half-open, 2 open.",
    ),
    Metric("pollwise_fleet_dead_targets", "gauge", (), "Targets given up on; they are rechecked."),
    Metric(
        "pollwise_fleet_stuck_total",
        "counter",
        _TARGET,
        "Polls that went on though they were cancelled at their deadline.",
    ),
    Metric(
        "pollwise_fleet_action_failed_total",
        "counter",
        _TARGET,
        "Times that what was to be done about a change raised or took too long.",
    ),
)
