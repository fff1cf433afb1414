"""Dashboards for Grafana, described in Python from the metrics and written as JSON.

`grafana` knows the format, `queries` writes PromQL, and `jobs`, `fleets` and `pacing` say which
panels there are. Every row about what needs attention comes first.
"""

from __future__ import annotations

import json

from pollwise.observe.dashboards.fleets import FLEET
from pollwise.observe.dashboards.grafana import Dashboard
from pollwise.observe.dashboards.jobs import CONTROLLER, OUTBOX, QUEUE, WORKER
from pollwise.observe.dashboards.pacing import PACING

DASHBOARDS: tuple[Dashboard, ...] = (WORKER, QUEUE, OUTBOX, CONTROLLER, FLEET, PACING)


def files() -> dict[str, str]:
    """The dashboards as Grafana reads them: the name of each file, and its JSON."""
    return {
        f"{each.uid}.json": json.dumps(each.json(), indent=2, ensure_ascii=False) + "\n"
        for each in DASHBOARDS
    }
