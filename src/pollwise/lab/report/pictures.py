"""A report as one picture, PNG or SVG, by matplotlib."""

from __future__ import annotations

import io
import math
import textwrap
from typing import Any

from pollwise.errors import MissingExtra
from pollwise.lab.report.compare import brief, money
from pollwise.lab.report.plots import (
    METRICS,
    PLOT_HEIGHT,
    PLOT_WIDTH,
    SHORTEST,
    Facts,
    Shape,
    duration_ticks,
    number_ticks,
    placed,
    wait_range,
)

DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
#: Inches, and dots in one.
SIZE = (14.0, 11.5)
DOTS = 110
STYLE: Any = {
    "font.size": 10,
    "axes.edgecolor": "#9aa5b1",
    "axes.labelcolor": "#1f2933",
    "axes.titleweight": "bold",
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "#e4e7eb",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.hashsalt": "pollwise",
}
COLUMNS = (
    "policy",
    "polls\nan hour",
    "polls,\n$ a month",
    "mean\nwait",
    "p50",
    "p95",
    "p99",
    "longest",
    "with waiting,\n$ a month",
)


def picture(facts: Facts, form: str) -> bytes:
    """The report as a file's content; `form` is png or svg."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("the lab", "lab") from None
    with mpl.rc_context({**mpl.rcParamsDefault, "backend": "agg", **STYLE}):
        figure = Figure(figsize=SIZE, dpi=DOTS, facecolor="white")
        _heading(figure, facts)
        rows = len(facts["policies"]) + len(facts["limits"]) + 2
        whole = figure.add_gridspec(
            2, 1, left=0.065, right=0.985, top=0.87, bottom=0.02, hspace=0.14,
            height_ratios=(10.0, 0.4 * rows),
        )  # fmt: skip
        upper = whole[0].subgridspec(1, 2, wspace=0.15)
        right = upper[1].subgridspec(2, 1, hspace=0.28)
        times = right[0].subgridspec(2, 1, hspace=0.08, height_ratios=(1, 2))
        top = figure.add_subplot(times[0])
        _arrivals(top, facts)
        _polls(figure.add_subplot(times[1], sharex=top), facts)
        _waits(figure.add_subplot(right[1]), facts)
        _pareto(figure.add_subplot(upper[0]), facts)
        _table(figure.add_subplot(whole[1]), facts)
        content = io.BytesIO()
        metadata = {"Date": None} if form == "svg" else None
        figure.savefig(content, format=form, metadata=metadata)
    return content.getvalue()


def _heading(figure: Any, facts: Facts) -> None:
    figure.text(
        0.02, 0.975, "\n".join(textwrap.wrap(_plain(facts["headline"]), 105)),
        fontsize=16, fontweight="bold", va="top", color="#102a43",
    )  # fmt: skip
    note = "\n".join(textwrap.wrap(_plain(facts["notes"][0]), 165))
    figure.text(0.02, 0.935, note, fontsize=10.5, va="top", color="#334e68")


def _plain(text: str) -> str:
    """Two dollar signs would begin and end a formula."""
    return text.replace("$", r"\$")


def _pareto(axes: Any, facts: Facts) -> None:
    shape = Shape(facts)
    marks = shape.marks("wait_mean_s")
    ranges = shape.ranges(marks)
    for family, colour, points in shape.frontiers():
        axes.plot(
            [point[shape.cost_key] for point in points],
            [max(point["wait_mean_s"], SHORTEST) for point in points],
            "-o", color=colour, linewidth=1.2, markersize=2.5, alpha=0.55,
            label=f"{family}, other settings",
        )  # fmt: skip
    xs, ys = shape.equal_cost(ranges)
    if xs:
        axes.plot(xs, ys, ":", color="#0063a6", linewidth=1.2, label="costs the same in sum")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*(10**end for end in ranges[0]))
    axes.set_ylim(*(10**end for end in ranges[1]))
    # Labels were placed in a plot of this size; here it is another.
    box = axes.get_position()
    figure = axes.figure
    scale_x = box.width * figure.get_figwidth() * 72 / PLOT_WIDTH
    scale_y = box.height * figure.get_figheight() * 72 / PLOT_HEIGHT
    for mark, (dx, dy) in zip(marks, placed(marks, ranges), strict=True):
        symbol = {"take": "*", "policy": "o", "limit": "D"}[mark.kind]
        size = {"take": 19, "policy": 9, "limit": 7}[mark.kind]
        filled = mark.colour if mark.kind != "limit" else "none"
        axes.plot(
            [max(mark.x, 10 ** ranges[0][0])], [mark.y], symbol, markersize=size,
            markerfacecolor=filled, markeredgecolor=mark.colour, clip_on=False, zorder=4,
        )  # fmt: skip
        axes.annotate(
            mark.label,
            (max(mark.x, 10 ** ranges[0][0]), mark.y),
            (dx * min(scale_x, 1.0), dy * min(scale_y, 1.0)),
            textcoords="offset points",
            ha="center",
            va="center",
            color=mark.colour,
            fontsize=11 if mark.kind == "take" else 9.5,
            fontweight="bold" if mark.kind == "take" else "normal",
            arrowprops={"arrowstyle": "-", "color": mark.colour, "linewidth": 0.7, "shrinkB": 5},
            bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1},
            zorder=5,
        )
    _tick(axes.yaxis, duration_ticks(*ranges[1]))
    _tick(axes.xaxis, number_ticks(*ranges[0], shape.cost_prefix))
    axes.set_xlabel(shape.cost_title)
    axes.set_ylabel(METRICS["wait_mean_s"])
    axes.set_title("Cost against waiting: nearer to the lower left is better")
    axes.legend(loc="upper right", fontsize=8.5)


def _tick(axis: Any, ticks: Facts) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axis.set_major_locator(FixedLocator(ticks["tickvals"]))
    axis.set_major_formatter(FixedFormatter([_plain(text) for text in ticks["ticktext"]]))
    axis.set_minor_locator(NullLocator())


def _arrivals(axes: Any, facts: Facts) -> None:
    shape = Shape(facts)
    times, _ = shape.time_axis()
    factor, per = shape.rate_unit()
    rates = [rate * factor for rate in facts["time"]["arrivals_a_second"]]
    axes.fill_between(times, rates, step="post", color="#9aa5b1")
    axes.set_ylim(0)
    axes.set_ylabel(f"arrivals {per}")
    axes.tick_params(labelbottom=False)
    axes.set_title("Polls over time, under the arrivals")


def _polls(axes: Any, facts: Facts) -> None:
    shape = Shape(facts)
    times, unit = shape.time_axis()
    factor, per = shape.rate_unit()
    for policy in facts["policies"]:
        rates = facts["time"]["polls_a_second"][policy["name"]]
        axes.step(
            times, [rate * factor or math.nan for rate in rates], where="post",
            color=shape.colour(policy), linestyle=DASHES[shape.dash(policy)],
            linewidth=2.0 if policy["take"] else 1.1, label=policy["name"],
        )  # fmt: skip
    low, high = shape.poll_range()
    axes.set_yscale("log")
    axes.set_ylim(10**low, 10**high)
    _tick(axes.yaxis, number_ticks(low, high))
    axes.set_xlim(0, times[-1] + times[1])
    axes.set_ylabel(f"polls {per}")
    axes.set_xlabel(f"time, {unit}")


def _waits(axes: Any, facts: Facts) -> None:
    shape = Shape(facts)
    for policy in facts["policies"]:
        waits = facts["waits"]["seconds"][policy["name"]]
        axes.plot(
            [max(wait, SHORTEST) for wait in waits],
            [100 * share for share in facts["waits"]["share"]],
            color=shape.colour(policy), linestyle=DASHES[shape.dash(policy)],
            linewidth=2.2 if policy["take"] else 1.2, label=policy["name"],
        )  # fmt: skip
    low, high = wait_range(facts)
    axes.set_xscale("log")
    axes.set_xlim(10**low, 10**high)
    axes.set_ylim(0, 101)
    _tick(axes.xaxis, duration_ticks(low, high))
    axes.set_xlabel("wait")
    axes.set_ylabel("items that waited no longer, %")
    axes.set_title("How long items waited")
    axes.legend(loc="upper left", fontsize=8.5)


def _table(axes: Any, facts: Facts) -> None:
    axes.axis("off")
    limits = [limit["name"] for limit in facts["limits"]]
    columns = [*COLUMNS, *("×\n" + name for name in limits)]
    rows, bold = [], []
    for policy in facts["policies"]:
        bold.append(policy["take"])
        waits = (policy[f"wait_{key}_s"] for key in ("mean", "p50", "p95", "p99", "max"))
        rows.append(
            [
                policy["name"],
                f"{policy['polls_an_hour']:,.0f}",
                _plain(money(policy["poll_dollars_a_month"])),
                *(brief(wait) for wait in waits),
                _plain(money(policy["dollars_a_month"])),
                *_ratios(policy, limits),
            ]
        )
    for limit in facts["limits"]:
        bold.append(False)
        rows.append(
            [
                limit["name"],
                f"{limit['polls_an_hour']:,.0f}",
                _plain(money(limit["poll_dollars_a_month"])),
                brief(limit["wait_mean_s"]),
                *("",) * 4,
                _plain(money(limit["dollars_a_month"])),
                *_ratios(limit, limits),
            ]
        )
    columns = [_plain(column) for column in columns]
    widths = [2.6, *(1.0,) * (len(columns) - 1)]
    total = sum(widths)
    table = axes.table(
        rows, colLabels=columns, loc="center", cellLoc="right", edges="horizontal",
        colWidths=[width / total for width in widths],
    )  # fmt: skip
    table.auto_set_font_size(False)
    for (row, column), cell in table.get_celld().items():
        cell.set_edgecolor("#cbd2d9")
        cell.set_text_props(fontsize=9.5)
        cell.set_height((2.0 if row == 0 else 1.0) / (len(rows) + 2.0))
        if column == 0:
            cell.set_text_props(ha="left")
        if row == 0 or bold[row - 1]:
            cell.set_text_props(fontweight="bold")
        if row > len(facts["policies"]):
            cell.set_text_props(color="#616e7c")


def _ratios(about: Facts, limits: list[str]) -> list[str]:
    ratios = (about["ratios"][name] for name in limits)
    return ["–" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
