"""The three charts of a report: cost against waiting, polls over time, and how long items waited.

Each chart is drawn from the report's facts into a box of a drawing, for a page or a picture.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pollwise.durations import short
from pollwise.lab.report.drawing import (
    DASHES,
    LIGHT,
    Caption,
    Dot,
    Drawing,
    Point,
    Stroke,
    clipped,
)
from pollwise.lab.texts import amount, brief, money

Facts = Mapping[str, Any]
#: Left, top, right and bottom, in pixels.
Box = tuple[float, float, float, float]
Ticks = list[tuple[float, str]]

METRICS = {"wait_mean_s": "mean wait", "wait_p95_s": "95th percentile of waits"}
#: Shorter waits are drawn as this many seconds: a logarithmic axis has no zero.
SHORTEST = 1e-3
#: How far the axes lie from the edges of a chart's box: left, top, right, bottom.
MARGINS = (54.0, 24.0, 14.0, 44.0)
#: What one letter of a label needs, in pixels at the usual size.
LETTER_WIDTH, LETTER_HEIGHT = 7.0, 16.0
_TICK_SIZE, _NARROW = 11.5, 500.0


@dataclass(frozen=True)
class Mark:
    """A labelled point of the chart of cost against waiting."""

    text: str
    x: float
    y: float
    role: str
    kind: str  # "take", "policy" or "limit"

    @property
    def label(self) -> str:
        return f"take {self.text}" if self.kind == "take" else self.text


@dataclass(frozen=True)
class Scale:
    """Pixels for values; `low` and `high` are powers of ten on a logarithmic scale."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = True

    def pixel(self, value: float) -> float:
        at = math.log10(max(value, 1e-12)) if self.log else value
        return self.begin + (at - self.low) / (self.high - self.low) * (self.end - self.begin)


@dataclass(frozen=True)
class Plot:
    """The area between two axes."""

    drawing: Drawing
    x: Scale
    y: Scale

    @property
    def box(self) -> Box:
        return self.x.begin, self.y.end, self.x.end, self.y.begin

    def curve(self, points: Iterable[Point], role: str, **look: Any) -> None:
        """A line through points given as values; only what lies inside the plot is drawn."""
        pixels = [(self.x.pixel(x), self.y.pixel(y)) for x, y in points]
        inside = clipped(pixels, *self.box)
        if inside:
            self.drawing.add(Stroke(inside, role, **look))

    def axes(self, x_ticks: Ticks, y_ticks: Ticks, x_title: str, y_title: str) -> None:
        """Grid, ticks and titles; without ticks of x there is no title below either."""
        left, top, right, bottom = self.box
        for value, text in _fitting(x_ticks, self.x):
            x = self.x.pixel(value)
            self.drawing.add(
                Stroke([(x, top), (x, bottom)], "grid"),
                Caption((x, bottom + 17), text, "quiet", _TICK_SIZE),
            )
        for value, text in y_ticks:
            y = self.y.pixel(value)
            self.drawing.add(
                Stroke([(left, y), (right, y)], "grid"),
                Caption((left - 7, y + 4), text, "quiet", _TICK_SIZE, "end"),
            )
        self.drawing.add(
            Stroke([(left, bottom), (right, bottom)], "axis"),
            Caption((left, top - 9), y_title, "ink", 12, "start"),
            Caption((right, bottom + 36), x_title, "ink", 12, "end"),
        )


def pareto(drawing: Drawing, box: Box, facts: Facts, metric: str) -> dict[str, object]:
    """Cost against waiting, with other settings of every strategy as lines."""
    marks = marks_of(facts, metric)
    x_range, y_range = log_range(mark.x for mark in marks), log_range(mark.y for mark in marks)
    plot = framed(drawing, box, x_range, y_range)
    cost = cost_key(facts)
    plot.axes(
        number_ticks(*x_range, "$" if facts["dollars_a_poll"] else ""),
        duration_ticks(*y_range),
        "polls, dollars a month" if facts["dollars_a_poll"] else "polls an hour",
        METRICS[metric],
    )
    crowded: list[Point] = []
    for series, family, points in frontiers(facts):
        at = [(point[cost], max(point[metric], SHORTEST)) for point in points]
        plot.curve(at, role_of(family), width=1.4, opacity=0.65, series=series)
        left, top, right, bottom = plot.box
        pixels = [(plot.x.pixel(x), plot.y.pixel(y)) for x, y in at]
        for point, (x, y) in zip(points, pixels, strict=True):
            if left <= x <= right and top <= y <= bottom:
                drawing.add(Dot((x, y), 2.2, role_of(family), series, about(point)))
        crowded += _between(pixels)
    if metric == "wait_mean_s":
        plot.curve(equal_cost(facts, x_range), "worth", width=1.3, dash="dot", series="equal")
    _draw_marks(plot, marks, facts, crowded)
    return {}


def over_time(drawing: Drawing, box: Box, facts: Facts) -> dict[str, object]:
    """Arrivals over time, and the polls of each policy below them."""
    left, top, right, bottom = box
    divide = top + 0.36 * (bottom - top)
    width, unit, unit_seconds = time_unit(facts)
    factor, per = rate_unit(facts)
    arrivals = [rate * factor for rate in facts["time"]["arrivals_a_second"]]
    span = (0.0, width * len(arrivals))
    high = max(arrivals) * 1.08 or 1.0
    upper = framed(drawing, (left, top, right, divide + 20), span, (0, high), linear="xy")
    lower = framed(drawing, (left, divide, right, bottom), span, poll_range(facts), linear="x")
    upper.axes([], even_ticks(0, high, 3), "", f"arrivals {per}")
    steps = _steps(arrivals, width)
    upper.curve([(0, 0), *steps, (span[1], 0)], "axis", fill="area")
    lower.axes(
        even_ticks(*span, 8), number_ticks(lower.y.low, lower.y.high), f"time, {unit}",
        f"polls {per}",
    )  # fmt: skip
    for series, policy, look in policies(facts):
        rates = facts["time"]["polls_a_second"][policy["name"]]
        points = _steps([rate * factor or math.nan for rate in rates], width)
        lower.curve(points, role_of(policy["family"]), series=series, **look)
    return {
        "data-chart": "time", **_edges(lower), "data-factor": factor, "data-per": per,
        "data-unit": unit, "data-bin": facts["time"]["bin_s"] / unit_seconds,
    }  # fmt: skip


def waits(drawing: Drawing, box: Box, facts: Facts) -> dict[str, object]:
    """The share of the items that waited no longer than a time."""
    plot = framed(drawing, box, wait_range(facts), (0, 103), linear="y")
    percent: Ticks = [(share, f"{share} %") for share in range(0, 101, 20)]
    title = "items that waited no longer"
    plot.axes(duration_ticks(plot.x.low, plot.x.high), percent, "wait", title)
    for series, policy, look in policies(facts):
        seconds = facts["waits"]["seconds"][policy["name"]]
        shares = (100 * share for share in facts["waits"]["share"])
        points = [(max(x, SHORTEST), y) for x, y in zip(seconds, shares, strict=True)]
        plot.curve(points, role_of(policy["family"]), series=series, **look)
    return {
        "data-chart": "waits", **_edges(plot), "data-low": plot.x.low, "data-high": plot.x.high,
    }  # fmt: skip


# What the facts mean for a chart


def role_of(family: str) -> str:
    """The colour role of a strategy."""
    return family if family in LIGHT else "other"


def policies(facts: Facts) -> Iterable[tuple[str, Facts, dict[str, Any]]]:
    """Each policy with its series and the look of its line; dashes tell one family's apart."""
    counts: dict[str, int] = {}
    for number, policy in enumerate(facts["policies"]):
        place = counts[policy["family"]] = counts.get(policy["family"], -1) + 1
        look = {
            "dash": list(DASHES)[place % len(DASHES)],
            "width": 2.6 if policy["take"] else 1.5,
        }
        yield f"policy-{number}", policy, look


def frontiers(facts: Facts) -> Iterable[tuple[str, str, list[Facts]]]:
    """Each strategy's frontier: its series, the strategy's name and the points."""
    for number, (family, points) in enumerate(facts["frontier"].items()):
        if len(points) > 1:
            yield f"family-{number}", family, points


def cost_key(facts: Facts) -> str:
    return "poll_dollars_a_month" if facts["dollars_a_poll"] else "polls_an_hour"


def marks_of(facts: Facts, metric: str) -> list[Mark]:
    """Every policy, and the limits if the metric is known for them."""
    cost = cost_key(facts)
    marks = [
        Mark(
            policy["name"],
            policy[cost],
            max(policy[metric], SHORTEST),
            role_of(policy["family"]),
            "take" if policy["take"] else "policy",
        )
        for policy in facts["policies"]
    ]
    if metric == "wait_mean_s":
        for limit in facts["limits"]:
            wait = max(limit[metric], SHORTEST)
            marks.append(Mark(limit["name"], limit[cost], wait, "limit", "limit"))
    return marks


def equal_cost(facts: Facts, x_range: tuple[float, float]) -> list[Point]:
    """The line on which polls and waiting together cost as much as with the best policy."""
    best = next(policy for policy in facts["policies"] if policy["take"])
    total, waiting = best["dollars_a_month"], best["wait_dollars_a_month"]
    if not facts["dollars_a_poll"] or not waiting:
        return []
    per_second = waiting / best["wait_mean_s"]
    low, high = x_range
    xs = (10 ** (low + (high - low) * number / 300) for number in range(301))
    return [(x, (total - x) / per_second) for x in xs if x < total * 0.9999]


def about(point: Facts) -> str:
    """What to read when the pointer is on a point, in lines."""
    polls = f"{amount(point['polls_an_hour'])} polls an hour"
    paid = f"{money(point['poll_dollars_a_month'])} a month for polls"
    late = f", 95 % within {brief(point['wait_p95_s'])}" if "wait_p95_s" in point else ""
    wait = f"{brief(point['wait_mean_s'])} mean wait{late}"
    total = f"{money(point['dollars_a_month'])} a month with the waiting"
    return f"{point['name']}\n{polls}, {paid}\n{wait}\n{total}"


def time_unit(facts: Facts) -> tuple[float, str, float]:
    """A bin's width in the unit of the time axis, the unit, and its seconds."""
    width, bins = facts["time"]["bin_s"], len(facts["time"]["arrivals_a_second"])
    units = (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
    unit, seconds = next(each for each in units if width * bins >= 3 * each[1] or each[1] == 1)
    return width / seconds, unit, seconds


def rate_unit(facts: Facts) -> tuple[float, str]:
    """The factor that turns rates per second into a readable unit, and the unit."""
    top = max(facts["time"]["arrivals_a_second"])
    for factor, name in ((1.0, "a second"), (60.0, "a minute"), (3600.0, "an hour")):
        if top * factor >= 1:
            return factor, name
    return 86400.0, "a day"


def poll_range(facts: Facts) -> tuple[float, float]:
    """The axis of poll rates, as powers of ten."""
    factor, _ = rate_unit(facts)
    every = facts["time"]["polls_a_second"].values()
    return log_range(rate * factor for rates in every for rate in rates)


def wait_range(facts: Facts) -> tuple[float, float]:
    """The axis of waits as powers of ten, without the shortest 5 % of each policy."""
    ends: list[float] = []
    for seconds in facts["waits"]["seconds"].values():
        ends += (max(seconds[len(seconds) // 20], SHORTEST), max(seconds[-1], SHORTEST))
    return log_range(ends)


def log_range(values: Iterable[float]) -> tuple[float, float]:
    """An axis for these values as powers of ten, with some space at both ends."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.log10(min(positive)), math.log10(max(positive))
    space = max(0.14 * (high - low), 0.18)
    return low - space, high + space


# Ticks


def duration_ticks(low: float, high: float) -> Ticks:
    """Ticks such as 100ms, 1s, 10s, 2m between two powers of ten."""
    steps = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 120, 600, 1800, 7200)
    longer = (21600, 86400, 259200, 864000)
    return [(tick, short(tick)) for tick in (*steps, *longer) if low <= math.log10(tick) <= high]


def number_ticks(low: float, high: float, prefix: str = "") -> Ticks:
    """Ticks such as 1, 3, 10, 30 between two powers of ten; more of them on a short range."""
    steps = (1, 2, 5) if high - low < 2.2 else (1, 3)
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = (step * 10.0**power for power in powers for step in steps)
    return [
        (tick, prefix + f"{tick:,.12f}".rstrip("0").rstrip("."))
        for tick in ticks
        if low <= math.log10(tick) <= high
    ]


def even_ticks(low: float, high: float, count: int) -> Ticks:
    """About this many round numbers at equal distances."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * 0.999)
    first = math.ceil(low / step)
    numbers = (step * number for number in range(first, math.floor(high / step) + 1))
    return [(number, f"{number:,.10g}") for number in numbers]


def _fitting(ticks: Ticks, scale: Scale) -> Ticks:
    """All ticks, or every second or third of them, so that their labels do not touch."""
    for stride in range(1, len(ticks)):
        kept = ticks[::stride]
        if all(
            scale.pixel(other[0]) - scale.pixel(one[0])
            > (len(one[1]) + len(other[1])) / 2 * LETTER_WIDTH + 6
            for one, other in itertools.pairwise(kept)
        ):
            return kept
    return ticks[:1]


# Marks and their labels


def _draw_marks(plot: Plot, marks: Sequence[Mark], facts: Facts, crowded: Sequence[Point]) -> None:
    left, top, right, bottom = plot.box
    at = [
        (min(max(plot.x.pixel(mark.x), left), right), min(max(plot.y.pixel(mark.y), top), bottom))
        for mark in marks
    ]
    by_name = {each["name"]: each for each in (*facts["policies"], *facts["limits"])}
    narrow = right - left < _NARROW
    centres = placed(marks, at, plot.box, crowded)
    for mark, (x, y), (cx, cy) in zip(marks, at, centres, strict=True):
        half = len(mark.label) * LETTER_WIDTH / 2
        end = (min(max(x, cx - half), cx + half), min(max(y, cy - 7), cy + 7))
        if math.dist((x, y), end) > 16:
            plot.drawing.add(Stroke([(x, y), end], mark.role, 1, opacity=0.7))
        size = 12.0 if narrow else 14.0 if mark.kind == "take" else 12.5
        plot.drawing.add(
            Caption((cx, cy + 4), mark.label, mark.role, size, bold=mark.kind == "take", halo=True)
        )
    for mark, (x, y) in zip(marks, at, strict=True):
        title = about(by_name[mark.text])
        if mark.kind == "policy":
            plot.drawing.add(Dot((x, y), 6, mark.role, title=title))
            continue
        points = _star(x, y, 12) if mark.kind == "take" else _diamond(x, y, 6)
        fill = mark.role if mark.kind == "take" else "paper"
        plot.drawing.add(Stroke(points, mark.role, 1.4, fill=fill, title=title))


def _star(x: float, y: float, radius: float) -> list[Point]:
    lengths = [radius, radius * 0.42] * 5 + [radius]
    return [
        (x + length * math.sin(math.pi * number / 5), y - length * math.cos(math.pi * number / 5))
        for number, length in enumerate(lengths)
    ]


def _diamond(x: float, y: float, radius: float) -> list[Point]:
    ways = ((0, -1), (1, 0), (0, 1), (-1, 0), (0, -1))
    return [(x + radius * dx, y + radius * dy) for dx, dy in ways]


def placed(
    marks: Sequence[Mark], at: Sequence[Point], box: Box, crowded: Sequence[Point] = ()
) -> list[Point]:
    """The centre of each mark's label, in pixels, so that no label covers another or a mark.

    crowded: points, such as those of lines, that labels cover only if nothing else is free.
    """
    left, top, right, bottom = box
    taken = [(x - 9, y - 9, x + 9, y + 9) for x, y in at]
    centres: dict[int, Point] = {}
    for number in sorted(range(len(marks)), key=lambda i: (marks[i].kind != "take", at[i])):
        x, y = at[number]
        half_w = len(marks[number].label) * LETTER_WIDTH / 2 + 4
        half_h = LETTER_HEIGHT / 2 + 1
        best, least = (x, y - half_h - 12), math.inf
        for dx, dy in _offsets(half_w, half_h):
            near = (x + dx - half_w, y + dy - half_h, x + dx + half_w, y + dy + half_h)
            outside = sum(
                max(over, 0)
                for over in (left - near[0], top - near[1], near[2] - right, near[3] - bottom)
            )
            badness = sum(_overlap(near, other) for other in taken) + 60 * outside
            badness += 0.3 * math.hypot(dx, dy) + 2 * sum(
                near[0] < a < near[2] and near[1] < b < near[3] for a, b in crowded
            )
            if badness < least:
                best, least = (x + dx, y + dy), badness
        centres[number] = best
        taken.append((best[0] - half_w, best[1] - half_h, best[0] + half_w, best[1] + half_h))
    return [centres[number] for number in range(len(marks))]


def _between(pixels: Sequence[Point]) -> Iterable[Point]:
    """Points on a line, about 8 pixels apart."""
    for one, other in itertools.pairwise(pixels):
        count = min(int(math.dist(one, other) / 8), 100) + 1
        for part in range(count):
            share = part / count
            yield one[0] + share * (other[0] - one[0]), one[1] + share * (other[1] - one[1])


def _offsets(half_w: float, half_h: float) -> Iterable[Point]:
    for far in (12, 26, 44, 66, 90, 120, 150, 180, 220, 260):
        for up in (-1, 1):
            yield 0.0, up * (half_h + far)
            for side in (1, -1):
                yield side * (half_w + far / 2), up * (half_h + far)
        yield half_w + far, 0.0
        yield -half_w - far, 0.0


def _overlap(one: Box, other: Box) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0


# Plots


def framed(
    drawing: Drawing,
    box: Box,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    linear: str = "",
) -> Plot:
    """A plot in a box, with space for its axes; `linear` names the axes that have no logarithm."""
    left, top, right, bottom = MARGINS
    x = Scale(*x_range, box[0] + left, box[2] - right, log="x" not in linear)
    y = Scale(*y_range, box[3] - bottom, box[1] + top, log="y" not in linear)
    return Plot(drawing, x, y)


def _steps(values: Sequence[float], width: float) -> list[Point]:
    return [
        (edge * width, value)
        for number, value in enumerate(values)
        for edge in (number, number + 1)
    ]


def _edges(plot: Plot) -> dict[str, object]:
    left, top, right, bottom = plot.box
    return {"data-left": left, "data-top": top, "data-right": right, "data-bottom": bottom}
