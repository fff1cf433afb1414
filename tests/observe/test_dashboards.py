"""The dashboards: their structure, their queries, and data from a real Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import promql_parser
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard as GrafanaDashboard
from promql_parser import AggregateExpr, BinaryExpr, MatrixSelector, VectorSelector

from pollwise.observe.dashboards import files
from pollwise.observe.dashboards.grafana import COLUMNS, DATASOURCE
from pollwise.observe.metrics import METRICS, Metric
from tests.cli.console import good, pollwise

BY_NAME = {metric.name: metric for metric in METRICS}
BOARDS = {name: json.loads(text) for name, text in files().items()}
#: Metrics that are on no panel, and why.
OFF_PANELS: dict[str, str] = {}
EXPRESSIONS = sorted(
    {
        target["expr"]
        for board in BOARDS.values()
        for panel in board["panels"]
        for target in panel.get("targets", ())
    }
)
#: Label of Prometheus in the buckets of a histogram.
BUCKET = "le"
board_of = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)


def panels_of(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def substituted(expr: str) -> str:
    """An expression as Grafana sends it, with all values chosen."""
    times = expr.replace("$__rate_interval", "15s").replace("$__range", "1m")
    return re.sub(r"\$(\w+)", ".*", times)


def metric_of(name: str) -> Metric | None:
    found = BY_NAME.get(name)
    if found is not None:
        return found if found.type != "histogram" else None  # it has no series of this name
    found = BY_NAME.get(re.sub("_(bucket|sum|count)$", "", name))
    return found if found is not None and found.type == "histogram" else None


def selectors(expr: promql_parser.Expr) -> list[VectorSelector]:
    found: list[VectorSelector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, VectorSelector):
            found.append(node)
        elif isinstance(node, MatrixSelector):
            found.append(node.vector_selector)

    promql_parser.walk(expr, visit)
    return list({str(each): each for each in found}.values())


def grouped(expr: promql_parser.Expr) -> Iterator[tuple[set[str], promql_parser.Expr]]:
    """The labels that aggregations keep, and what they aggregate."""
    found: list[AggregateExpr] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, AggregateExpr):
            found.append(node)

    promql_parser.walk(expr, visit)
    for each in found:
        yield set(each.modifier.labels if each.modifier else ()), each.expr


# Structure


def test_there_is_a_dashboard_for_each_part() -> None:
    parts = ("worker", "queue", "outbox", "controller", "fleet", "pacing")
    assert set(BOARDS) == {f"pollwise-{part}.json" for part in parts}
    assert len({board["uid"] for board in BOARDS.values()}) == len(parts)


def test_the_same_files_are_written_again() -> None:
    assert files() == files()


@board_of
def test_panels_have_unique_ids_and_do_not_overlap(board: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= COLUMNS, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} covers {taken[x, y]}"
                taken[x, y] = panel["title"]


@board_of
def test_what_needs_attention_or_costs_comes_first(board: dict[str, Any]) -> None:
    assert board["panels"][0]["type"] == "row"
    assert board["panels"][0]["title"] in {"Needs attention", "Cost"}


@board_of
def test_every_panel_says_what_it_shows(board: dict[str, Any]) -> None:
    for panel in panels_of(board):
        assert panel["title"]
        assert panel["targets"], panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            assert target["expr"]
            assert target["legendFormat"]
            for name in re.findall(r"pollwise_\w+", target["expr"]):
                metric = metric_of(name)
                assert metric is not None, f"{panel['title']}: there is no metric {name}"
                assert metric.help in panel["description"]


@board_of
def test_titles_of_a_row_are_unique(board: dict[str, Any]) -> None:
    row: set[str] = set()
    for panel in board["panels"]:
        if panel["type"] == "row":
            row = set()
            continue
        assert panel["title"] not in row
        row.add(panel["title"])


@board_of
def test_the_data_source_is_a_choice(board: dict[str, Any]) -> None:
    first, *others = board["templating"]["list"]
    assert (first["type"], first["name"]) == ("datasource", "datasource")
    for each in (*panels_of(board), *others):
        assert each["datasource"] == DATASOURCE
    known = {"datasource", *(each["name"] for each in others)}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(board)))
    assert used == known


@board_of
def test_variables_ask_for_labels_that_exist(board: dict[str, Any]) -> None:
    for variable in board["templating"]["list"][1:]:
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert asked
        assert asked[2] == variable["name"]
        (selector,) = selectors(promql_parser.parse(substituted(asked[1])))
        metric = metric_of(selector.name or "")
        assert metric is not None
        labels = {asked[2], *(each.name for each in selector.matchers.matchers)}
        assert labels <= set(metric.labels)


# Grafana's own models


def conforms(value: Any, hint: Any) -> bool:
    """True if a value of a model has the type that the model declares."""
    if hint is Any or hint is object:
        return True
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Union:
        return any(conforms(value, each) for each in inner)
    if origin is Literal:
        return value in inner
    if origin is list:
        return isinstance(value, list) and all(conforms(each, inner[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(conforms(each, inner[1]) for each in value.values())
    if isinstance(hint, type) and issubclass(hint, Enum):
        return value in [each.value for each in hint]
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def wrong_types(model: Any, path: str = "") -> Iterator[str]:
    """The values of a model, and of the models in it, whose type is not the declared one."""
    for name, hint in get_type_hints(type(model)).items():
        value = getattr(model, name)
        if not conforms(value, hint):
            yield f"{path}.{name}: {value!r} is not {hint}"
        for each in value if isinstance(value, list) else [value]:
            if type(each).__module__.startswith("grafana_foundation_sdk.models"):
                if not isinstance(each, Enum):
                    yield from wrong_types(each, f"{path}.{name}")


def lost(given: Any, kept: Any, path: str = "") -> Iterator[str]:
    """What Grafana's models do not know, so that it is gone after a round trip."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key in kept:
                yield from lost(value, kept[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for index, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{path}.{index}")
    elif given != kept:
        yield path


@board_of
def test_grafanas_models_know_every_field_and_its_type(board: dict[str, Any]) -> None:
    register_default_plugins()
    model = GrafanaDashboard.from_json(board)
    assert list(wrong_types(model)) == []
    kept = json.loads(json.dumps(model, cls=JSONEncoder))
    # Grafana writes the definition of a variable itself, but the models lack it.
    unknown = [each for each in lost(board, kept) if not each.endswith(".definition")]
    assert unknown == []


@pytest.mark.parametrize(
    ("wrong", "what"),
    [({"titel": "x"}, "unknown"), ({"tags": [1]}, "type"), ({"refresh": 5}, "type")],
)
def test_a_wrong_field_is_found(wrong: dict[str, Any], what: str) -> None:
    board = {**BOARDS["pollwise-worker.json"], **wrong}
    model = GrafanaDashboard.from_json(board)
    kept = json.loads(json.dumps(model, cls=JSONEncoder))
    found = wrong_types(model) if what == "type" else lost(board, kept)
    assert any(key in each for each in found for key in wrong)


# Queries


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_every_query_is_promql_about_metrics_and_labels_that_exist(expr: str) -> None:
    parsed = promql_parser.parse(substituted(expr))
    found = selectors(parsed)
    assert found
    for selector in found:
        metric = metric_of(selector.name or "")
        assert metric is not None, f"there is no metric {selector.name}"
        assert {each.name for each in selector.matchers.matchers} <= set(metric.labels)
    for by, inner in grouped(parsed):
        for selector in selectors(inner):
            metric = metric_of(selector.name or "")
            assert metric is not None
            buckets = {BUCKET} if metric.type == "histogram" else set()
            assert by <= {*metric.labels, *buckets}, selector.name


def test_legends_name_labels_that_the_query_keeps() -> None:
    for board in BOARDS.values():
        for target in (each for panel in panels_of(board) for each in panel["targets"]):
            parsed = promql_parser.parse(substituted(target["expr"]))
            while isinstance(parsed, BinaryExpr):
                left = selectors(parsed.lhs)
                parsed = parsed.lhs if left else parsed.rhs
            kept = next((by for by, _ in grouped(parsed)), set())
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert named == kept - {BUCKET}, target


def test_counters_are_only_used_as_rates() -> None:
    for expr in EXPRESSIONS:
        bare = re.sub(r"(rate|increase)\(\w+(\{[^}]*\})?\[[^]]+\]\)", "", expr)
        for name in re.findall(r"pollwise_\w+", bare):
            assert BY_NAME[name].type == "gauge", expr


def test_every_metric_is_on_a_panel() -> None:
    used = {name for expr in EXPRESSIONS for name in re.findall(r"pollwise_\w+", expr)}
    shown = {metric.name for name in used if (metric := metric_of(name))}
    missing = BY_NAME.keys() - shown - OFF_PANELS.keys()
    assert not missing, f"add panels in observe/dashboards, or say why not in OFF_PANELS: {missing}"


# The command


def test_the_command_writes_the_files_and_replaces_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "dashboards"
    assert good("observe", "dashboards", folder).out.splitlines() == [
        str(folder / name) for name in BOARDS
    ]
    assert {each.name: each.read_text() for each in folder.iterdir()} == files()
    written = good("observe", "dashboards", folder, "--json").json()["written"]
    assert written == [str(folder / name) for name in BOARDS]
    mine = folder / "pollwise-fleet.json"
    mine.write_text("{}")
    refused = pollwise("observe", "dashboards", folder)
    assert refused.code == 2
    assert "pollwise-fleet.json exists with other content" in refused.err
    assert mine.read_text() == "{}"
    good("observe", "dashboards", folder, "--force")
    assert mine.read_text() == files()[mine.name]
