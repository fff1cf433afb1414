"""The dashboard of fleets."""

from __future__ import annotations

from pollwise.observe.dashboards.grafana import Choice, Dashboard, Panel, Row
from pollwise.observe.dashboards.queries import BREAKERS, Queries

_F = Queries("pollwise_fleet_", "type", "group")


def _count(title: str, name: str, alarm: float | None = None) -> Panel:
    """How many targets are in a state that needs attention, over all nodes."""
    query = _F.sum(name, legend=title)
    warn = None if alarm is None else 1
    return Panel(title, (query,), type="stat", width=3, warn=warn, alarm=alarm)


FLEET = Dashboard(
    "fleet",
    "fleet",
    "Targets by type and group: what is down or stale, polls, breakers and notices.",
    (
        Choice("type", "pollwise_fleet_targets"),
        Choice("group", "pollwise_fleet_targets"),
    ),
    (
        Row(
            "Needs attention",
            (
                _count("Down", "down_targets", 10),
                _count("Dead", "dead_targets", 10),
                _count("Stale", "stale_targets", 10),
                _count("Never succeeded", "never_targets", 10),
                _count("Polls overdue", "overdue", 100),
                _count("Targets", "targets"),
                _count("Paused", "paused_targets"),
                _count("In quiet hours", "quiet_targets"),
            ),
        ),
        Row(
            "Freshness",
            (
                Panel("Oldest reading", (_F.max("poll_staleness_seconds", "type", "group"),), "s"),
                Panel(
                    "Staleness as a share of max_interval",
                    (_F.max("staleness_score", "type", "group"),),
                    "percentunit",
                    warn=0.8,
                    alarm=1,
                ),
                Panel(
                    "Targets that need attention",
                    (
                        _F.sum("down_targets", "group", legend="down"),
                        _F.sum("dead_targets", "group", legend="dead"),
                        _F.sum("stale_targets", "group", legend="stale"),
                        _F.sum("never_targets", "group", legend="never succeeded"),
                    ),
                ),
            ),
        ),
        Row(
            "Polls",
            (
                Panel("Polls by result", (_F.rate("poll_total", "result"),), "ops", stacked=True),
                Panel(
                    "Share of polls that fail",
                    (
                        _F.share(
                            *("poll_total", "poll_total", "type", "group"), where='result="failed"'
                        ),
                    ),
                    "percentunit",
                    warn=0.05,
                    alarm=0.5,
                ),
                Panel("Duration of polls", _F.quantiles("poll_duration_seconds", "type"), "s"),
                Panel(
                    "Polls that wait",
                    (
                        _F.sum("due", "group", legend="due"),
                        _F.sum("overdue", "group", legend="overdue"),
                    ),
                ),
                Panel(
                    "Polls running and planned",
                    (
                        _F.sum("inflight", "type", legend="running"),
                        _F.sum("queue_depth", legend="planned"),
                    ),
                ),
                Panel("Polls that got stuck", (_F.rate("stuck_total", "type", "group"),), "ops"),
            ),
        ),
        Row(
            "Breakers, alerts and notices",
            (
                Panel("Breakers", (_F.sum("breakers", "state"),), stacked=True, width=6),
                Panel(
                    "Breakers by target",
                    (_F.max("breaker_state", "type", "group", "target"),),
                    width=6,
                    names=BREAKERS,
                    note='Only with `fleet.metrics_by = "target"`; empty otherwise.',
                ),
                Panel(
                    "Changes of breakers",
                    (_F.rate("breaker_change_total", "group", "state"),),
                    "ops",
                    width=6,
                ),
                Panel("Alerts", (_F.rate("alert_total", "result", "severity"),), "ops", width=6),
                Panel("Notices", (_F.rate("notice_total", "channel", "result"),), "ops", width=12),
                Panel(
                    "Delay of notices",
                    _F.quantiles("notice_delay_seconds", "channel"),
                    "s",
                    width=12,
                ),
            ),
        ),
    ),
)
