"""Draws what Completion has learned of how long runs take, with the polls of the next run on it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from pollwise.durations import short
from pollwise.lab.report.charts import duration_ticks, framed, log_range
from pollwise.lab.report.drawing import Caption, Dot, Drawing, Stroke

WIDTH, HEIGHT, MARGIN = 900.0, 460.0, 20.0
_TOP = 70.0


def picture(facts: Mapping[str, Any]) -> bytes:
    """The picture as a file's content."""
    return draw(facts).svg_file()


def draw(facts: Mapping[str, Any]) -> Drawing:
    """The share of the last runs that had finished, the forecast, and the next polls."""
    drawn = facts["drawn"]
    ends, learned, polls = drawn["last_runs_s"], drawn["learned"], drawn["polls_s"]
    drawing = Drawing(WIDTH, HEIGHT)
    name = f" of {drawn['group'][:40]}" if drawn["group"] else ""
    title = f"How long runs{name} take, and when to poll the next one"
    about = f"A poll is worth {short(facts['price'])} of waiting. Learned by polling only."
    drawing.add(
        Caption((MARGIN, 30), title, "strong", 17, "start", bold=True),
        Caption((MARGIN, 50), about, "quiet", 12, "start"),
    )
    x_range = log_range([*ends, polls[0]])
    plot = framed(drawing, (0, _TOP, WIDTH, HEIGHT), x_range, (0, 103), linear="y")
    plot.axes(
        duration_ticks(*x_range), [(each, f"{each} %") for each in range(0, 101, 20)],
        "time since the run began", "finished",
    )  # fmt: skip
    steps = [(10 ** x_range[0], 0.0)]
    for number, end in enumerate(ends):
        steps += [(end, 100 * number / len(ends)), (end, 100 * (number + 1) / len(ends))]
    steps += [(10 ** x_range[1], 100.0)]
    plot.curve(steps, "axis", width=1.2)
    plot.curve([(max(x, 1e-6), 100 * y) for x, y in learned], "worth", width=2.2)
    for poll in polls:
        x = plot.x.pixel(poll)
        if x > plot.x.end:
            break
        y = plot.y.pixel(100 * _at(learned, poll))
        drawing.add(
            Stroke([(x, plot.y.begin), (x, y)], "adaptive", 1.0, "dot"),
            Dot((x, y), 4.0, "adaptive", title=f"poll after {short(poll)}"),
        )
    left = plot.x.begin
    for n, (text, role) in enumerate(
        (("the last runs", "axis"), ("the forecast", "worth"), ("polls", "adaptive"))
    ):
        drawing.add(
            Stroke([(left + 12, _TOP + 44 + 18 * n), (left + 34, _TOP + 44 + 18 * n)], role, 2.0),
            Caption((left + 40, _TOP + 48 + 18 * n), text, "ink", 12, "start"),
        )
    return drawing


def _at(curve: list[list[float]], time: float) -> float:
    """The height of a curve at a time."""
    n = min(max(bisect_left(curve, [time]), 1), len(curve) - 1)
    (x, y), (u, v) = curve[n - 1], curve[n]
    return min(y + (v - y) * (time - x) / (u - x), max(y, v))
