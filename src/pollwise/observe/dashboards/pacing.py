"""The dashboard of pacing and cost: how often loops poll, what it finds and what it costs."""

from __future__ import annotations

from pollwise.observe.dashboards.grafana import Choice, Dashboard, Panel, Query, Row
from pollwise.observe.dashboards.queries import Queries

_W = Queries("pollwise_worker_", "queue")
_O = Queries("pollwise_outbox_", "outbox")
_COST = Queries("pollwise_", "queue").rate("poll_cost_dollars_total", "queue")
_MONTH = 30 * 24 * 3600


def _pace(of: Queries, by: str) -> tuple[Panel, ...]:
    """The panels about the pacer of a worker or a relay."""
    return (
        Panel("Interval: pause and held poll", (of.max("poll_interval_seconds", by),), "s"),
        Panel(
            "Share of polls that find nothing",
            (of.share("poll_empty_total", "poll_total", by),),
            "percentunit",
        ),
        Panel(
            "Share of polls that a hint started",
            (of.share("poll_hinted_total", "poll_total", by),),
            "percentunit",
        ),
        Panel("Found per poll", (of.share("found_total", "poll_total", by),), width=12),
        Panel(
            "Changes of the pace",
            (
                of.rate("pace_change_total", by, "what"),
                of.rate("backoff_total", by, legend="the interval grew"),
            ),
            "ops",
            width=12,
        ),
        Panel(
            "Average batch",
            (of.max("poll_average", by),),
            width=12,
            note="Only with the strategy `ewma`.",
        ),
        Panel(
            "Items a second that the pacer expects",
            (of.max("poll_forecast_per_second", by),),
            width=12,
            note="Only with the strategy `worth`.",
        ),
    )


PACING = Dashboard(
    "pacing",
    "pacing and cost",
    "How often workers and relays poll, how much of it finds nothing, and what it costs.",
    (
        Choice("queue", "pollwise_worker_poll_total"),
        Choice("outbox", "pollwise_outbox_poll_total"),
    ),
    (
        Row(
            "Cost",
            (
                Panel(
                    "A month at this rate",
                    (Query(f"sum({_COST.expr}) * {_MONTH}", "a month"),),
                    "currencyUSD",
                    type="stat",
                    width=8,
                    note="30 days. Only with `--price`.",
                ),
                Panel(
                    "Polls of workers",
                    (_W.rate("poll_total", legend="polls"),),
                    "ops",
                    type="stat",
                    width=8,
                ),
                Panel(
                    "Polls of relays",
                    (_O.rate("poll_total", legend="polls"),),
                    "ops",
                    type="stat",
                    width=8,
                ),
                Panel(
                    "Cost per hour",
                    (Query(f"{_COST.expr} * 3600", _COST.legend),),
                    "currencyUSD",
                    width=12,
                    note="Only with `--price`.",
                ),
                Panel(
                    "Cost per thousand items found",
                    (
                        Query(
                            f"{_COST.expr} * 1000 / ({_W.rate('found_total', 'queue').expr} > 0)",
                            _COST.legend,
                        ),
                    ),
                    "currencyUSD",
                    width=12,
                    note="Only with `--price`.",
                ),
            ),
        ),
        Row("Pace of workers", _pace(_W, "queue")),
        Row("Pace of relays", _pace(_O, "outbox")),
    ),
)
