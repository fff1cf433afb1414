"""The views of history as JSON values, for the API and for scripts."""

from __future__ import annotations

from typing import Any

from pollwise.fleet.history.values import PollFigures, TimeInStates
from pollwise.fleet.history.views import Incident, TargetHistory, Uptimes

#: The percentiles of latencies.
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def latency_json(figures: PollFigures) -> dict[str, float | None]:
    """The percentiles and the mean of latencies, in seconds; None without a success."""
    latency = figures.latency
    percentiles = {name: latency.quantile(share) for name, share in PERCENTILES.items()}
    return {**percentiles, "mean": latency.mean}


def times_json(times: TimeInStates) -> dict[str, float | None]:
    """The time in each state, in seconds, and the share of up, 0 to 1."""
    return {
        "uptime": times.uptime,
        "up": times.up,
        "down": times.down,
        "maintenance": times.maintenance,
    }


def uptimes_json(each: Uptimes) -> dict[str, Any]:
    """The uptimes of a target."""
    windows = {name: times_json(times) for name, times in each.windows.items()}
    return {"name": each.target, "state": each.state, "since": each.since, "windows": windows}


def incident_json(each: Incident) -> dict[str, Any]:
    """An incident; `ended_at` is None while it is open."""
    return {
        "target": each.target,
        "started_at": each.started_at,
        "ended_at": each.ended_at,
        "lasted": each.lasted,
        "reason": each.reason,
    }


def history_json(history: TargetHistory) -> dict[str, Any]:
    """The history of a target."""
    figures = history.figures
    return {
        "name": history.target,
        "since": history.since,
        "until": history.until,
        "state": history.state,
        **times_json(history.times),
        "polls": figures.polls,
        "failed": figures.failed,
        "changed": figures.changed,
        "latency": latency_json(figures),
        "value": _value_json(figures),
        "incidents": [incident_json(each) for each in history.incidents],
        "periods": [
            {
                "state": each.state,
                "started_at": each.started_at,
                "ended_at": each.ended_at,
                "reason": each.reason,
            }
            for each in history.periods
        ],
        "points": [
            {
                "at": each.at,
                "seconds": each.seconds,
                **times_json(each.times),
                "polls": each.figures.polls,
                "failed": each.figures.failed,
                "changed": each.figures.changed,
                "latency": latency_json(each.figures),
                "value": _value_json(each.figures),
            }
            for each in history.points
        ],
    }


def _value_json(figures: PollFigures) -> dict[str, float | None] | None:
    if not figures.values:
        return None
    return {"low": figures.low, "high": figures.high, "mean": figures.value_mean}
