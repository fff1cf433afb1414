"""The pictures of a report, drawn from its facts: interactive, by Plotly.

There are three: cost against waiting, polls over time under the arrivals, and how long items
waited. What does not depend on who draws, such as colours, units and where labels go, is in `Shape`
and `placed`; `pictures` uses them as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pollwise.durations import short
from pollwise.errors import MissingExtra

Facts = Mapping[str, Any]

#: Colours that are told apart with any eyes, on white, by strategy.
COLOURS = {
    "worth": "#0063a6",
    "adaptive": "#d55e00",
    "fixed": "#5b5b5b",
    "batch_fill": "#00805f",
    "ewma": "#a8508f",
}
OTHER_COLOUR = "#7a6a00"
LIMIT_COLOUR = "#333333"
#: Further policies of a family differ in their lines.
DASHES = ("solid", "dash", "dot", "dashdot")
METRICS = {"wait_mean_s": "mean wait", "wait_p95_s": "95th percentile of waits"}
#: No wait is drawn shorter, in seconds: the axis has no zero.
SHORTEST = 1e-3

# The plot that labels are kept apart in, in pixels; a wider one only spreads them.
PLOT_WIDTH, PLOT_HEIGHT = 560.0, 330.0
LETTER_WIDTH, LETTER_HEIGHT = 7.0, 16.0


@dataclass(frozen=True)
class Mark:
    """A labelled point of the picture of cost against waiting."""

    text: str
    x: float
    y: float
    colour: str
    kind: str  # "take", "policy" or "limit"

    @property
    def label(self) -> str:
        return f"take {self.text}" if self.kind == "take" else self.text


@dataclass(frozen=True)
class Shape:
    """How facts are drawn, whatever draws them."""

    facts: Facts

    @property
    def cost_key(self) -> str:
        return "poll_dollars_a_month" if self.facts["dollars_a_poll"] else "polls_an_hour"

    @property
    def cost_title(self) -> str:
        priced = self.facts["dollars_a_poll"]
        return "polls, dollars a month" if priced else "polls an hour"

    @property
    def cost_prefix(self) -> str:
        return "$" if self.facts["dollars_a_poll"] else ""

    def colour(self, policy: Facts) -> str:
        return COLOURS.get(policy["family"], OTHER_COLOUR)

    def dash(self, policy: Facts) -> str:
        family = [p["name"] for p in self.facts["policies"] if p["family"] == policy["family"]]
        return DASHES[family.index(policy["name"]) % len(DASHES)]

    def marks(self, metric: str) -> list[Mark]:
        """The points with labels: every policy, and limits where the metric is known of them."""
        marks = [
            Mark(
                policy["name"],
                policy[self.cost_key],
                max(policy[metric], SHORTEST),
                self.colour(policy),
                "take" if policy["take"] else "policy",
            )
            for policy in self.facts["policies"]
        ]
        for limit in self.facts["limits"]:
            if metric == "wait_mean_s":
                x, y = limit[self.cost_key], max(limit[metric], SHORTEST)
                marks.append(Mark(limit["name"], x, y, LIMIT_COLOUR, "limit"))
        return marks

    def ranges(self, marks: Sequence[Mark]) -> tuple[tuple[float, float], tuple[float, float]]:
        """Both axes as powers of ten, with some air around the marks."""
        return _range([mark.x for mark in marks]), _range([mark.y for mark in marks])

    def frontiers(self) -> Iterable[tuple[str, str, list[Facts]]]:
        """Each family's frontier: its name, colour and points."""
        for family, points in self.facts["frontier"].items():
            if len(points) > 1:
                yield family, COLOURS.get(family, OTHER_COLOUR), points

    def equal_cost(
        self, ranges: tuple[tuple[float, float], Any]
    ) -> tuple[list[float], list[float]]:
        """The line on which everything costs, polls and waiting together, what the best does."""
        best = next(policy for policy in self.facts["policies"] if policy["take"])
        total, waiting = best["dollars_a_month"], best["wait_dollars_a_month"]
        if not self.facts["dollars_a_poll"] or not waiting:
            return [], []
        per_second = waiting / best["wait_mean_s"]
        xs = [10 ** (ranges[0][0] + (ranges[0][1] - ranges[0][0]) * i / 300) for i in range(301)]
        points = [(x, (total - x) / per_second) for x in xs if x < total * 0.9999]
        return [x for x, _ in points], [y for _, y in points]

    def time_axis(self) -> tuple[list[float], str]:
        """The left edges of the bins, and their unit."""
        width, bins = self.facts["time"]["bin_s"], len(self.facts["time"]["arrivals_a_second"])
        span = width * bins
        unit, seconds = next(
            (name, length)
            for name, length in (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
            if span >= 3 * length or length == 1
        )
        return [number * width / seconds for number in range(bins)], unit

    def rate_unit(self) -> tuple[float, str]:
        """What to multiply rates a second by, and what they are then."""
        rates = sorted(self.facts["time"]["arrivals_a_second"])
        top = rates[-1]
        for factor, name in ((1.0, "a second"), (60.0, "a minute"), (3600.0, "an hour")):
            if top * factor >= 1:
                return factor, name
        return 86400.0, "a day"

    def poll_range(self) -> tuple[float, float]:
        """The axis of poll rates, as powers of ten."""
        factor, _ = self.rate_unit()
        every = self.facts["time"]["polls_a_second"].values()
        return _range([rate * factor for rates in every for rate in rates])


def _range(values: Sequence[float]) -> tuple[float, float]:
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.log10(min(positive)), math.log10(max(positive))
    air = max(0.14 * (high - low), 0.18)
    return low - air, high + air


def placed(
    marks: Sequence[Mark], ranges: tuple[tuple[float, float], tuple[float, float]]
) -> list[tuple[float, float]]:
    """Where each label's centre goes, in pixels from its mark, so that none lies on another."""
    (left, right), (bottom, top) = ranges
    at = [
        (
            (math.log10(max(mark.x, 1e-12)) - left) / (right - left) * PLOT_WIDTH,
            (math.log10(max(mark.y, 1e-12)) - bottom) / (top - bottom) * PLOT_HEIGHT,
        )
        for mark in marks
    ]
    taken = [(x - 9, y - 9, x + 9, y + 9) for x, y in at]
    offsets: dict[int, tuple[float, float]] = {}
    first_take = sorted(range(len(marks)), key=lambda i: (marks[i].kind != "take", at[i]))
    for number in first_take:
        x, y = at[number]
        half_w = len(marks[number].label) * LETTER_WIDTH / 2 + 4
        half_h = LETTER_HEIGHT / 2 + 1
        best, least = (0.0, half_h + 12), math.inf
        for dx, dy in _candidates(half_w, half_h):
            box = (x + dx - half_w, y + dy - half_h, x + dx + half_w, y + dy + half_h)
            outside = (
                max(-box[0], 0) + max(box[2] - PLOT_WIDTH, 0)
                + max(-box[1], 0) + max(box[3] - PLOT_HEIGHT, 0)
            )  # fmt: skip
            badness = sum(_overlap(box, other) for other in taken) + 60 * outside
            badness += 0.2 * math.hypot(dx, dy)
            if badness < least:
                best, least = (dx, dy), badness
        offsets[number] = best
        dx, dy = best
        taken.append((x + dx - half_w, y + dy - half_h, x + dx + half_w, y + dy + half_h))
    return [offsets[number] for number in range(len(marks))]


def _candidates(half_w: float, half_h: float) -> Iterable[tuple[float, float]]:
    for far in (12, 26, 44, 66, 90, 120, 150, 180, 220, 260):
        for up in (1, -1):
            yield 0.0, up * (half_h + far)
            for side in (1, -1):
                yield side * (half_w + far / 2), up * (half_h + far)
        yield half_w + far, 0.0
        yield -half_w - far, 0.0


def _overlap(one: Sequence[float], other: Sequence[float]) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0


# Plotly

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def _graph() -> Any:
    try:
        import plotly.graph_objects as go  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise MissingExtra("the lab", "lab") from None
    return go


def plotly_js() -> str:
    """Plotly's own JavaScript, from its package."""
    _graph()
    from plotly.offline import get_plotlyjs  # type: ignore[import-not-found,unused-ignore]

    return str(get_plotlyjs())


def _layout(height: int, **more: Any) -> dict[str, Any]:
    axis = {"gridcolor": "#e4e7eb", "linecolor": "#9aa5b1", "zeroline": False, "ticks": "outside"}
    layout: dict[str, Any] = {
        "template": "none",
        "height": height,
        "margin": {"l": 70, "r": 20, "t": 64, "b": 56},
        "font": {"family": FONT, "size": 13, "color": "#1f2933"},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "hoverlabel": {"bgcolor": "#ffffff", "font": {"color": "#1f2933"}},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": dict(axis),
        "yaxis": dict(axis),
    }
    for key, value in more.items():
        layout[key] = {**layout.get(key, {}), **value} if isinstance(value, dict) else value
    return layout


def duration_ticks(low: float, high: float) -> dict[str, Any]:
    """Ticks that read 100ms, 1s, 10s, 1m between two powers of ten."""
    steps = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 120, 600, 1800, 7200)
    longer = (21600, 86400, 259200, 864000)
    ticks = [step for step in (*steps, *longer) if low <= math.log10(step) <= high]
    return _ticks(ticks, [short(tick) for tick in ticks])


def number_ticks(low: float, high: float, prefix: str = "") -> dict[str, Any]:
    """Ticks that read 1, 3, 10, 30 between two powers of ten; closer where there is room."""
    steps = (1, 2, 5) if high - low < 2.2 else (1, 3)
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps]
    ticks = [tick for tick in ticks if low <= math.log10(tick) <= high]
    return _ticks(ticks, [prefix + f"{tick:,.12f}".rstrip("0").rstrip(".") for tick in ticks])


def _ticks(values: list[float], texts: list[str]) -> dict[str, Any]:
    return {"type": "log", "tickmode": "array", "tickvals": values, "ticktext": texts}


def pareto(facts: Facts) -> Any:
    """Cost against waiting, with the frontier of every strategy and a button for the measure."""
    go, shape = _graph(), Shape(facts)
    figure = go.Figure()
    ys: dict[str, list[list[float]]] = {metric: [] for metric in METRICS}
    for family, colour, points in shape.frontiers():
        figure.add_scatter(
            x=[point[shape.cost_key] for point in points],
            y=[point["wait_mean_s"] for point in points],
            text=[_hover(point) for point in points],
            mode="lines+markers",
            name=f"{family}, other settings",
            line={"color": colour, "width": 1.5},
            marker={"color": colour, "size": 4},
            opacity=0.6,
            hovertemplate="%{text}<extra></extra>",
        )
        for metric in METRICS:
            ys[metric].append([max(point[metric], SHORTEST) for point in points])
    marks = shape.marks("wait_mean_s")
    xs, equal = shape.equal_cost(shape.ranges(marks))
    figure.add_scatter(
        x=xs, y=equal, mode="lines", name="costs the same in sum", hoverinfo="skip",
        line={"color": COLOURS["worth"], "width": 1, "dash": "dot"}, showlegend=bool(xs),
    )  # fmt: skip
    for metric in METRICS:
        ys[metric].append(equal if metric == "wait_mean_s" else [math.nan for _ in equal])
    by_name = {each["name"]: each for each in (*facts["policies"], *facts["limits"])}
    for mark in marks:
        about = by_name[mark.text]
        figure.add_scatter(
            x=[mark.x], y=[mark.y], mode="markers", showlegend=False, name=mark.text,
            text=[_hover(about)], hovertemplate="%{text}<extra></extra>",
            marker={
                "symbol": {"take": "star", "policy": "circle", "limit": "diamond-open"}[mark.kind],
                "size": {"take": 20, "policy": 11, "limit": 9}[mark.kind],
                "color": mark.colour,
                "line": {"color": "#ffffff" if mark.kind != "limit" else mark.colour, "width": 1},
            },
        )  # fmt: skip
        for metric in METRICS:
            value = about.get(metric)
            ys[metric].append([max(value, SHORTEST)] if value is not None else [math.nan])
    figure.update_layout(_pareto_layout(shape, "wait_mean_s"))
    buttons = []
    for metric, title in METRICS.items():
        layout = _pareto_layout(shape, metric)
        changes = {
            "annotations": layout["annotations"],
            "yaxis": layout["yaxis"],
            "xaxis": layout["xaxis"],
        }
        buttons.append({"label": title, "method": "update", "args": [{"y": ys[metric]}, changes]})
    figure.update_layout(
        updatemenus=[
            {
                "type": "buttons", "direction": "right", "buttons": buttons, "showactive": True,
                "x": 0, "xanchor": "left", "y": 1.03, "yanchor": "bottom",
                "bgcolor": "#ffffff", "bordercolor": "#9aa5b1", "pad": {"t": 0, "b": 0},
            }
        ]
    )  # fmt: skip
    return figure


def _pareto_layout(shape: Shape, metric: str) -> dict[str, Any]:
    marks = shape.marks(metric)
    ranges = shape.ranges(marks)
    annotations = [
        {
            "x": math.log10(mark.x) if mark.x > 0 else ranges[0][0],
            "y": math.log10(mark.y),
            "ax": dx,
            "ay": -dy,
            "text": f"<b>{mark.label}</b>" if mark.kind == "take" else mark.label,
            "font": {"color": mark.colour, "size": 14 if mark.kind == "take" else 12},
            "showarrow": True,
            "arrowhead": 0,
            "arrowwidth": 1,
            "arrowcolor": mark.colour,
            "standoff": 6,
            "bgcolor": "rgba(255,255,255,0.75)",
        }
        for mark, (dx, dy) in zip(marks, placed(marks, ranges), strict=True)
    ]
    layout = _layout(
        500,
        xaxis={
            "title": {"text": shape.cost_title},
            "range": ranges[0],
            **number_ticks(*ranges[0], shape.cost_prefix),
        },
        yaxis={
            "title": {"text": METRICS[metric]},
            "range": ranges[1],
            **duration_ticks(*ranges[1]),
        },
        legend={"y": -0.2, "yanchor": "top"},
        margin={"b": 120},
    )
    layout["annotations"] = annotations
    return layout


def _hover(about: Facts) -> str:
    cost = f"${about['poll_dollars_a_month']:,.4g} a month for polls"
    wait = f"{short(about['wait_mean_s'])} mean wait"
    late = f", 95 % within {short(about['wait_p95_s'])}" if "wait_p95_s" in about else ""
    rate = f"{about['polls_an_hour']:,.4g} polls an hour"
    total = f"${about['dollars_a_month']:,.4g} a month with the waiting"
    return f"<b>{about['name']}</b><br>{rate}, {cost}<br>{wait}{late}<br>{total}"


def over_time(facts: Facts) -> Any:
    """Arrivals over time, and the polls of each policy below them."""
    go, shape = _graph(), Shape(facts)
    figure = go.Figure()
    times, unit = shape.time_axis()
    factor, per = shape.rate_unit()
    figure.add_scatter(
        x=times, y=[rate * factor for rate in facts["time"]["arrivals_a_second"]],
        mode="lines", name="arrivals", line={"color": "#7b8794", "width": 1, "shape": "hv"},
        fill="tozeroy", fillcolor="#cbd2d9", showlegend=False, yaxis="y2",
    )  # fmt: skip
    low, high = shape.poll_range()
    for policy in facts["policies"]:
        rates = facts["time"]["polls_a_second"][policy["name"]]
        figure.add_scatter(
            x=times, y=[rate * factor or None for rate in rates], mode="lines",
            name=policy["name"], yaxis="y",
            line={
                "color": shape.colour(policy), "dash": shape.dash(policy), "shape": "hv",
                "width": 2.5 if policy["take"] else 1.5,
            },
        )  # fmt: skip
    figure.update_layout(
        _layout(
            480,
            xaxis={"title": {"text": f"time, {unit}"}, "anchor": "y", "showspikes": True},
            yaxis={
                "title": {"text": f"polls {per}"}, "domain": [0, 0.58], "range": [low, high],
                **number_ticks(low, high),
            },
            yaxis2={
                "title": {"text": f"arrivals {per}"}, "domain": [0.66, 1], "anchor": "x",
                "rangemode": "tozero", "gridcolor": "#e4e7eb", "zeroline": False,
            },
            hovermode="x unified",
        )
    )  # fmt: skip
    return figure


def distribution(facts: Facts) -> Any:
    """Which share of the items waited no longer than so long."""
    go, shape = _graph(), Shape(facts)
    figure = go.Figure()
    for policy in facts["policies"]:
        waits = facts["waits"]["seconds"][policy["name"]]
        figure.add_scatter(
            x=[max(wait, SHORTEST) for wait in waits],
            y=[100 * share for share in facts["waits"]["share"]],
            mode="lines",
            name=policy["name"],
            line={
                "color": shape.colour(policy),
                "dash": shape.dash(policy),
                "width": 2.5 if policy["take"] else 1.5,
            },
            hovertemplate="%{y:.1f} % waited at most %{x:.3g} s",
        )
    low, high = wait_range(facts)
    figure.update_layout(
        _layout(
            400,
            xaxis={
                "title": {"text": "wait"}, "range": [low, high],
                **duration_ticks(low, high),
            },
            yaxis={"title": {"text": "items that waited no longer, %"}, "range": [0, 101]},
        )
    )  # fmt: skip
    return figure


def wait_range(facts: Facts) -> tuple[float, float]:
    """The axis of waits as powers of ten; of the shortest there is little to see."""
    ends: list[float] = []
    for waits in facts["waits"]["seconds"].values():
        ends += (max(waits[len(waits) // 20], SHORTEST), max(waits[-1], SHORTEST))
    return _range(ends)
