"""Panels and dashboards as data, and the JSON that Grafana reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pollwise.observe.metrics import METRICS, Metric

#: The version of Grafana's dashboard format. Grafana upgrades older ones when it loads them.
SCHEMA_VERSION = 41
#: A dashboard is 24 columns wide.
COLUMNS = 24
HEIGHTS = {"row": 1, "stat": 4, "timeseries": 8}
#: Every panel and variable asks the data source that the reader chooses, not a certain one.
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
CALM, WARN, ALARM = "green", "#EAB839", "#E0664C"
_NAMES = re.compile(r"\bpollwise_\w+")
_BY_NAME = {metric.name: metric for metric in METRICS}


def metric_of(name: str) -> Metric:
    """The metric that a series belongs to; a histogram has `_bucket`, `_sum` and `_count`."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    metric = _BY_NAME[re.sub("_(bucket|sum|count)$", "", name)]
    if metric.type != "histogram":
        raise KeyError(name)
    return metric


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and the text that names each of its series."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. Its description is the help of its metrics.

    warn, alarm: values from which a number is yellow and red.
    names: words for values, such as the states of a breaker.
    """

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    type: Literal["timeseries", "stat"] = "timeseries"
    width: int = 8
    warn: float | None = None
    alarm: float | None = None
    stacked: bool = False
    names: tuple[tuple[int, str], ...] = ()
    note: str = ""

    @property
    def description(self) -> str:
        """The help of every metric of the panel, and the note."""
        found = [name for query in self.queries for name in _NAMES.findall(query.expr)]
        metrics = list(dict.fromkeys(metric_of(name) for name in found))
        if len(metrics) == 1:
            lines = [metrics[0].help]
        else:
            lines = [f"- `{metric.name}`: {metric.help}" for metric in metrics]
        return "\n".join([*lines, *([f"\n{self.note}"] if self.note else [])])


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice at the top of a dashboard: the values of a label of a metric."""

    label: str
    metric: str


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard. `name` makes its uid and its file name, so it never changes."""

    name: str
    title: str
    description: str
    variables: tuple[Choice, ...]
    rows: tuple[Row, ...]

    @property
    def uid(self) -> str:
        return f"pollwise-{self.name}"

    def json(self) -> dict[str, Any]:
        """The dashboard as Grafana reads it from a file."""
        return {
            "uid": self.uid,
            "title": f"Pollwise: {self.title}",
            "description": self.description,
            "tags": ["pollwise"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "graphTooltip": 1,
            "annotations": {"list": []},
            "links": [_LINKS],
            "templating": {"list": [_DATASOURCES, *map(self._variable, self.variables)]},
            "panels": list(self._panels()),
        }

    def _variable(self, variable: Choice) -> dict[str, Any]:
        above = self.variables[: self.variables.index(variable)]
        labels = metric_of(variable.metric).labels
        chosen = [f'{each.label}=~"${each.label}"' for each in above if each.label in labels]
        selected = f"{variable.metric}{{{','.join(chosen)}}}" if chosen else variable.metric
        query = f"label_values({selected}, {variable.label})"
        return {
            "type": "query",
            "name": variable.label,
            "label": variable.label.capitalize(),
            "datasource": DATASOURCE,
            "definition": query,
            "query": {"query": query, "refId": "Values"},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            # It also matches the empty group, lane and kind.
            "allValue": ".*",
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
            "options": [],
        }

    def _panels(self) -> Iterator[dict[str, Any]]:
        """All rows and panels, from left to right and from top to bottom."""
        y = 0
        for number, row in enumerate(self.rows, 1):
            place = {"x": 0, "y": y, "w": COLUMNS, "h": HEIGHTS["row"]}
            yield {
                "id": number * 100, "type": "row", "title": row.title, "collapsed": False,
                "gridPos": place, "panels": [],
            }  # fmt: skip
            x, y, height = 0, y + HEIGHTS["row"], 0
            for index, panel in enumerate(row.panels, 1):
                if x + panel.width > COLUMNS:
                    x, y, height = 0, y + height, 0
                place = {"x": x, "y": y, "w": panel.width, "h": HEIGHTS[panel.type]}
                yield _panel(panel, number * 100 + index, place)
                x, height = x + panel.width, max(height, HEIGHTS[panel.type])
            y += height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.type,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _STAT if panel.type == "stat" else _SERIES,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "range": panel.type != "stat",
                "instant": panel.type == "stat",
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _field(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": CALM, "value": None}]
    steps += [
        {"color": colour, "value": value}
        for colour, value in ((WARN, panel.warn), (ALARM, panel.alarm))
        if value is not None
    ]
    field: dict[str, Any] = {
        "unit": panel.unit,
        "color": {"mode": "thresholds" if panel.type == "stat" else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": [],
    }
    if panel.names:
        names = {str(value): {"text": name, "index": value} for value, name in panel.names}
        field["mappings"] = [{"type": "value", "options": names}]
    if panel.type == "timeseries":
        field["min"] = 0
        field["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 20 if panel.stacked else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if len(steps) > 1 else "off"},
        }
    return field


_STAT = {
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    "colorMode": "value",
    "graphMode": "none",
    "textMode": "auto",
    "orientation": "auto",
    "justifyMode": "auto",
}
_SERIES = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
_DATASOURCES = {
    "type": "datasource",
    "name": "datasource",
    "label": "Data source",
    "query": "prometheus",
    "refresh": 1,
    "multi": False,
    "includeAll": False,
    "current": {},
    "options": [],
}
_LINKS = {
    "type": "dashboards",
    "title": "Pollwise",
    "tags": ["pollwise"],
    "asDropdown": True,
    "includeVars": False,
    "keepTime": True,
    "targetBlank": False,
}
