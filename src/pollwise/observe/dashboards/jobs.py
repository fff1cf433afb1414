"""The dashboards of workers, queues, outboxes and controllers."""

from __future__ import annotations

from pollwise.observe.dashboards.grafana import Choice, Dashboard, Panel, Query, Row
from pollwise.observe.dashboards.queries import BREAKERS, Queries

_W = Queries("pollwise_worker_", "queue", "kind")
_O = Queries("pollwise_outbox_", "outbox", "lane")
_C = Queries("pollwise_controller_", "queue", "kind")
_Q = Queries("pollwise_queue_", "queue", "kind")
_EXPORTED = "From `pollwise queue export`."
_RANGE = "In the time that the dashboard shows."


def _attention(of: Queries) -> tuple[Panel, ...]:
    """Numbers about the loop of a worker or a relay that should stay at 0."""

    def stat(title: str, name: str, alarm: float) -> Panel:
        query = of.or_zero(of.over_range(name, legend=title))
        return Panel(title, (query,), type="stat", width=4, warn=0.5, alarm=alarm, note=_RANGE)

    threads = of.or_zero(of.sum("abandoned_threads", legend="Abandoned threads"))
    return (
        stat("Polls that failed", "poll_failed_total", 10),
        stat("Chores that failed", "chore_failed_total", 10),
        stat("Hints lost", "hints_lost_total", 5),
        stat("Event loop blocked", "loop_blocked_total", 1),
        stat("Handlers stuck", "handler_stuck_total", 1),
        Panel("Abandoned threads", (threads,), type="stat", width=4, warn=1, alarm=4),
    )


def _loop(of: Queries, by: str) -> tuple[Row, ...]:
    """The rows about polls and threads that a worker and a relay both have."""
    return (
        Row(
            "Polls",
            (
                Panel(
                    "Polls",
                    (
                        of.rate("poll_total", by, legend="all"),
                        of.rate("poll_empty_total", by, legend="empty"),
                        of.rate("poll_failed_total", by, legend="failed"),
                        of.rate("poll_hinted_total", by, legend="hinted"),
                    ),
                    "ops",
                ),
                Panel("Found", (of.rate("found_total", by),), "ops"),
                Panel("Duration of polls", of.quantiles("poll_duration_seconds"), "s"),
            ),
        ),
        Row(
            "Hints, chores and threads",
            (
                Panel("Hints proven", (of.min("hints_proven", by),), width=6),
                Panel(
                    "Chores that failed",
                    (of.rate("chore_failed_total", by, "chore"),),
                    "ops",
                    width=6,
                ),
                Panel(
                    "Threads and blocked loops",
                    (
                        of.sum("abandoned_threads", by, legend="abandoned threads"),
                        of.rate("places_taken_total", by, legend="all places taken, per second"),
                        of.rate("loop_blocked_total", by, legend="loop blocked, per second"),
                        of.rate("handler_stuck_total", by, legend="handler stuck, per second"),
                    ),
                    width=6,
                ),
                Panel(
                    "Processes recycled",
                    (of.over_range("recycled_total", by),),
                    width=6,
                    note=_RANGE,
                ),
            ),
        ),
    )


_REPORTED = _W.max("kind_unhandled", "queue", "kind")
_HANDLED = _W.max("job_running", "queue", "kind")
#: Kinds that a worker has no handler for, and no other worker either.
_UNHANDLED = Query(f"{_REPORTED.expr} unless on (queue, kind) {_HANDLED.expr}", _REPORTED.legend)

WORKER = Dashboard(
    "worker",
    "worker",
    "What workers do: what needs attention, jobs, polls, hints and threads.",
    (
        Choice("queue", "pollwise_worker_poll_total"),
        Choice("kind", "pollwise_worker_job_running"),
    ),
    (
        Row("Needs attention", _attention(_W)),
        Row(
            "Jobs",
            (
                Panel(
                    "Runs by result",
                    (_W.rate("job_total", "result"),),
                    "ops",
                    stacked=True,
                    width=8,
                ),
                Panel("Running now", (_W.sum("job_running", "kind"),), stacked=True),
                Panel("Wait until started", _W.quantiles("job_wait_seconds"), "s"),
            ),
        ),
        *_loop(_W, "queue"),
    ),
)

QUEUE = Dashboard(
    "queue",
    "queue",
    "Jobs by queue and kind: what waits, what fails and how long it takes.",
    (
        Choice("queue", "pollwise_queue_depth"),
        Choice("kind", "pollwise_queue_depth"),
    ),
    (
        Row(
            "Needs attention",
            (
                Panel(
                    "Oldest job that may start",
                    (_Q.max("startable_age_seconds", legend="age"),),
                    "s",
                    type="stat",
                    width=4,
                    warn=60,
                    alarm=600,
                    note=_EXPORTED,
                ),
                Panel(
                    "Dead jobs",
                    (_Q.total("depth", where='state="dead"', legend="dead"),),
                    type="stat",
                    width=4,
                    warn=1,
                    alarm=10,
                    note=_EXPORTED,
                ),
                Panel(
                    "Paused kinds and queues",
                    (_Q.total("paused", legend="paused"),),
                    type="stat",
                    width=4,
                    warn=1,
                    note=_EXPORTED,
                ),
                Panel(
                    "Workers",
                    (_Q.total("workers", legend="workers"),),
                    type="stat",
                    width=4,
                    note=_EXPORTED,
                ),
                Panel(
                    "Kinds without a handler",
                    (_W.or_zero(Query(f"sum ({_UNHANDLED.expr})", "unhandled")),),
                    type="stat",
                    width=4,
                    warn=1,
                    alarm=2,
                ),
                Panel(
                    "Worst breaker",
                    (_W.or_zero(_W.max("breaker_state", legend="breaker")),),
                    type="stat",
                    width=4,
                    warn=1,
                    alarm=2,
                    names=BREAKERS,
                ),
            ),
        ),
        Row(
            "In the store",
            (
                Panel("Jobs by state", (_Q.total("depth", "state"),), stacked=True, note=_EXPORTED),
                Panel(
                    "Ready jobs by kind",
                    (_Q.total("depth", "queue", "kind", where='state="ready"'),),
                    stacked=True,
                    note=_EXPORTED,
                ),
                Panel(
                    "Jobs that may start now by kind",
                    (_Q.total("startable", "queue", "kind"),),
                    stacked=True,
                    note=_EXPORTED,
                ),
                Panel(
                    "Oldest ready job by kind",
                    (_Q.max("oldest_age_seconds", "queue", "kind"),),
                    "s",
                    note=_EXPORTED,
                ),
                Panel(
                    "Dead jobs by kind",
                    (_Q.total("depth", "queue", "kind", where='state="dead"'),),
                    note=_EXPORTED,
                ),
                Panel(
                    "Late schedules",
                    (_Q.max("schedule_late_seconds", "queue", "schedule"),),
                    "s",
                    warn=120,
                    alarm=600,
                    note=_EXPORTED,
                ),
                Panel(
                    "Jobs of kinds with limits",
                    (
                        _Q.max("limit_running", "queue", "kind", legend="running"),
                        _Q.max("limit_most", "queue", "kind", legend="at most"),
                        _Q.max("limit_waiting", "queue", "kind", legend="waiting"),
                    ),
                    note=_EXPORTED,
                ),
                Panel(
                    "Workers by queue",
                    (_Q.max("workers", "queue"),),
                    note=_EXPORTED,
                ),
                Panel(
                    "Time since the queue was measured",
                    (_Q.age("measured_timestamp_seconds", "queue"),),
                    "s",
                    warn=120,
                    alarm=600,
                    note=f"The numbers of this row are as old as this. {_EXPORTED}",
                ),
            ),
        ),
        Row(
            "Results",
            (
                Panel("Runs", (_W.rate("job_total", "kind", "result"),), "ops", stacked=True),
                Panel(
                    "Share of runs that fail",
                    (
                        _W.share(
                            *("job_total", "job_total", "queue", "kind"),
                            where='result=~"retried|dead"',
                        ),
                    ),
                    "percentunit",
                    warn=0.05,
                    alarm=0.5,
                ),
                Panel("Breakers", (_W.max("breaker_state", "queue", "kind"),), names=BREAKERS),
                Panel(
                    "Leases lost, lapsed and taken over",
                    (
                        _W.rate("job_total", "queue", "kind", where='result="lost"', legend="lost"),
                        _W.rate("lease_lapsed_total", "queue", "kind", legend="lapsed"),
                        _W.rate("job_taken_over_total", "queue", "kind", legend="taken over"),
                    ),
                    "ops",
                    width=12,
                ),
                Panel(
                    "Kinds without a handler, by kind",
                    (_UNHANDLED,),
                    width=12,
                ),
            ),
        ),
        Row(
            "Time",
            (
                Panel("Wait until started", _W.quantiles("job_wait_seconds", "kind"), "s"),
                Panel("Duration", _W.quantiles("job_duration_seconds", "kind"), "s"),
                Panel("Running now", (_W.sum("job_running", "queue", "kind"),), stacked=True),
            ),
        ),
    ),
)

OUTBOX = Dashboard(
    "outbox",
    "outbox",
    "Records on their way out: lag, blocked keys, handlers, and the relays.",
    (
        Choice("outbox", "pollwise_outbox_poll_total"),
        Choice("lane", "pollwise_outbox_records"),
    ),
    (
        Row(
            "Needs attention",
            (
                Panel(
                    "Oldest record",
                    (_O.max("oldest_age_seconds", legend="oldest"),),
                    "s",
                    type="stat",
                    width=4,
                    warn=60,
                    alarm=600,
                ),
                Panel(
                    "Blocked keys",
                    (_O.total("keys_blocked", legend="blocked"),),
                    type="stat",
                    width=5,
                    warn=1,
                    alarm=10,
                ),
                Panel(
                    "Records behind blocked keys",
                    (_O.total("records_behind", legend="behind"),),
                    type="stat",
                    width=5,
                    warn=1,
                    alarm=100,
                ),
                Panel(
                    "Relays that live",
                    (
                        _O.total("relays", legend="live"),
                        _O.sum("standing_by", legend="standing by"),
                    ),
                    type="stat",
                    width=5,
                ),
                Panel(
                    "Worst breaker",
                    (_O.or_zero(_O.max("breaker_state", legend="breaker")),),
                    type="stat",
                    width=5,
                    warn=1,
                    alarm=2,
                    names=BREAKERS,
                ),
                *_attention(_O),
            ),
        ),
        Row(
            "Records",
            (
                Panel(
                    "Records by state",
                    (_O.max("records", "outbox", "state", "lane"),),
                    stacked=True,
                ),
                Panel("Results", (_O.rate("record_total", "result", "lane"),), "ops", stacked=True),
                Panel("Lag from put to handled", _O.quantiles("record_lag_seconds"), "s"),
                Panel(
                    "Age of the oldest record",
                    (_O.max("oldest_age_seconds", "outbox", "lane"),),
                    "s",
                ),
                Panel(
                    "Keys",
                    (
                        _O.rate("key_total", "result", "lane"),
                        _O.rate("lease_lapsed_total", "lane", legend="lease lapsed"),
                    ),
                    "ops",
                ),
                Panel(
                    "Time since the outbox was measured",
                    (_O.age("measured_timestamp_seconds", "outbox"),),
                    "s",
                    warn=120,
                    alarm=600,
                    note="The numbers by state are as old as this.",
                ),
            ),
        ),
        Row(
            "Handlers",
            (
                Panel("Results", (_O.rate("handler_total", "handler", "result"),), "ops"),
                Panel("Duration", _O.quantiles("record_duration_seconds", "kind"), "s"),
                Panel("Breakers", (_O.max("breaker_state", "outbox", "handler"),), names=BREAKERS),
            ),
        ),
        *_loop(_O, "outbox"),
    ),
)

CONTROLLER = Dashboard(
    "controller",
    "controller",
    "Jobs over HTTP: agents, deliveries, requests and held polls.",
    (
        Choice("queue", "pollwise_controller_workers"),
        Choice("kind", "pollwise_controller_job_total"),
    ),
    (
        Row(
            "Needs attention",
            (
                Panel(
                    "Workers offline",
                    (_C.sum("workers", where='state="offline"', legend="offline"),),
                    type="stat",
                    width=6,
                    warn=1,
                    alarm=5,
                ),
                Panel(
                    "Jobs that died",
                    (_C.or_zero(_C.over_range("job_total", where='result="dead"', legend="dead")),),
                    type="stat",
                    width=6,
                    warn=0.5,
                    alarm=10,
                ),
                Panel(
                    "Leases that lapsed",
                    (
                        _C.or_zero(
                            _C.over_range("job_total", where='result="lapsed"', legend="lapsed")
                        ),
                    ),
                    type="stat",
                    width=6,
                    warn=0.5,
                    alarm=10,
                ),
                Panel(
                    "Requests refused or failed",
                    (
                        _C.or_zero(
                            _C.over_range(
                                "request_total", where='status=~"[45].."', legend="refused"
                            )
                        ),
                    ),
                    type="stat",
                    width=6,
                    warn=0.5,
                    alarm=100,
                ),
            ),
        ),
        Row(
            "Jobs",
            (
                Panel("Jobs by state", (_C.max("jobs", "queue", "state"),), stacked=True),
                Panel("Jobs by result", (_C.rate("job_total", "kind", "result"),), "ops"),
                Panel("Wait until delivered", _C.quantiles("job_wait_seconds", "kind"), "s"),
                Panel("Delivered to reported", _C.quantiles("job_duration_seconds", "kind"), "s"),
                Panel("Workers", (_C.max("workers", "queue", "state"),), stacked=True),
                Panel(
                    "Connections",
                    (
                        _C.sum("held_polls", "queue", legend="held polls"),
                        _C.sum("push_connections", "queue", legend="WebSockets"),
                    ),
                ),
            ),
        ),
        Row(
            "Requests",
            (
                Panel("Polls by answer", (_C.rate("poll_total", "result"),), "ops", width=6),
                Panel("Time to answer a poll", _C.quantiles("poll_duration_seconds"), "s", width=6),
                Panel(
                    "Other requests",
                    (_C.rate("request_total", "method", "route", "status"),),
                    "ops",
                    width=6,
                ),
                Panel("Hints sent", (_C.rate("hint_total", "queue"),), "ops", width=6),
            ),
        ),
    ),
)
