"""The report of a comparison as a page: the table and the charts of the lab, in our colours."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import partial
from typing import Any

from markupsafe import Markup

from pollwise.lab.report import charts as drawn
from pollwise.lab.report.drawing import Drawing
from pollwise.web.charts import Series, lines
from pollwise.web.comparisons import ComparisonRequest
from pollwise.web.texts import age

#: Widths of the lab's charts, for wide screens and for phones.
WIDTHS = {"wide": 940.0, "narrow": 360.0}
#: The colour of each strategy; further policies of one strategy take the colours that are left.
FAMILY_TONES = {
    "worth": "blue",
    "adaptive": "amber",
    "fixed": "grey",
    "batch_fill": "green",
    "ewma": "violet",
}
SPARE_TONES = ("teal", "red", "green", "violet", "amber", "blue", "grey")


def tones_of(facts: Mapping[str, Any]) -> dict[str, str]:
    """A colour for each policy by its name, each once as long as there are enough."""
    tones: dict[str, str] = {}
    for policy in facts["policies"]:
        tone = FAMILY_TONES.get(policy["family"], "teal")
        if tone in tones.values():
            tone = next((each for each in SPARE_TONES if each not in tones.values()), tone)
        tones[policy["name"]] = tone
    return tones


def cost_chart(facts: Mapping[str, Any], metric: str) -> Markup:
    """Cost against waiting: the lab's own chart, once for each width."""
    draw = partial(drawn.pareto, metric=metric)
    return _both(f"Cost against {drawn.METRICS[metric]}", 400.0, draw, facts)


def rates_chart(facts: Mapping[str, Any]) -> Markup:
    """Arrivals, and the polls of each policy below them."""
    return _both("Arrivals and polls over time", 400.0, drawn.over_time, facts)


def waits_chart(facts: Mapping[str, Any], since: float) -> Markup:
    """The mean wait over time of each policy. since: when the trace begins."""
    tones, time = tones_of(facts), facts["time"]
    series = [Series(name, values, tones[name]) for name, values in time["wait_mean_s"].items()]
    times = [since + place * time["bin_s"] for place in range(len(time["arrivals_a_second"]))]
    return lines(series, times, "Mean wait of the jobs that arrived then", shown=age)


def command_of(asked: ComparisonRequest) -> str:
    """The command that makes the same comparison."""
    trace = asked.trace
    words = ["pollwise", "lab", "compare"]
    words += trace.get("words") or [str(trace.get("workload") or trace["name"])]
    if "workload" in trace:
        words += ["--hours", f"{trace['hours']:g}", "--seed", str(trace["seed"])]
    for option in ("column", "bins"):
        if trace.get(option):
            words += [f"--{option}", str(trace[option])]
    for option in ("unit", "values"):
        if trace.get(option, "auto") != "auto":
            words += [f"--{option}", trace[option]]
    if trace.get("sort"):
        words.append("--sort")
    words += ["--strategies", asked.strategies, "--price", asked.price]
    return shlex.join([*words, "--wait-price", asked.wait_price])


def _both(name: str, height: float, draw: Any, facts: Mapping[str, Any]) -> Markup:
    parts = []
    for size, width in WIDTHS.items():
        drawing = Drawing(width, height)
        draw(drawing, (0, 0, width, height), facts)
        about = {"class": f"drawn {size}", "role": "img", "aria-label": name}
        parts.append(drawing.svg(about))
    return Markup("\n".join(parts))  # noqa: S704 - the drawing escapes every text
