"""A report as one picture, SVG: the headline, the charts and the table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from pollwise.lab.report import charts
from pollwise.lab.report.charts import Facts
from pollwise.lab.report.compare import table
from pollwise.lab.report.drawing import Caption, Drawing, Stroke

WIDTH, MARGIN, MIDDLE = 1400.0, 30.0, 690.0
#: Where the charts begin and end, and the height of a row of the table.
CHARTS, CHARTS_END, ROW = 130.0, 800.0, 26.0
HEADS = (
    "policy", "polls\nan hour", "polls,\n$ a month", "mean\nwait", "p50", "p95", "p99", "longest",
    "with waiting,\n$ a month",
)  # fmt: skip


def picture(facts: Facts) -> bytes:
    """The report as a file's content."""
    rows = len(facts["policies"]) + len(facts["limits"]) + 1
    drawing = Drawing(WIDTH, CHARTS_END + ROW * (rows + 1.5))
    headline = textwrap.wrap(facts["headline"], 115)
    for number, line in enumerate(headline):
        at = (MARGIN, 46 + 26 * number)
        drawing.add(Caption(at, line, "strong", 21, "start", bold=True))
    note = Caption((MARGIN, 50 + 26 * len(headline)), facts["notes"][0], "quiet", 14, "start")
    drawing.add(note)
    half = (CHARTS + CHARTS_END) / 2
    _title(drawing, MARGIN, CHARTS, "Cost against waiting: nearer to the lower left is better")
    _legend(drawing, MARGIN, CHARTS + 22, MIDDLE, (
        *((f"{family}, other settings", charts.role_of(family), "solid")
          for _, family, _ in charts.frontiers(facts)),
        ("same cost, polls and waiting", "worth", "dot"),
    ))  # fmt: skip
    charts.pareto(drawing, (MARGIN, CHARTS + 52, MIDDLE, CHARTS_END), facts, "wait_mean_s")
    right = WIDTH - MARGIN
    _title(drawing, MIDDLE + 30, CHARTS, "Polls over time, under the arrivals")
    _legend(drawing, MIDDLE + 30, CHARTS + 22, right, (
        (policy["name"], charts.role_of(policy["family"]), look["dash"])
        for _, policy, look in charts.policies(facts)
    ))  # fmt: skip
    charts.over_time(drawing, (MIDDLE + 30, CHARTS + 52, right, half + 30), facts)
    _title(drawing, MIDDLE + 30, half + 50, "How long items waited")
    charts.waits(drawing, (MIDDLE + 30, half + 62, right, CHARTS_END), facts)
    _table(drawing, facts, CHARTS_END + 1.5 * ROW)
    return drawing.svg_file()


def _title(drawing: Drawing, x: float, y: float, text: str) -> None:
    drawing.add(Caption((x, y), text, "strong", 15, "start", bold=True))


def _legend(
    drawing: Drawing, left: float, y: float, right: float, entries: Iterable[tuple[str, str, str]]
) -> None:
    x = left
    for name, role, dash in entries:
        width = 30 + charts.LETTER_WIDTH * len(name) + 14
        if x + width > right:
            x, y = left, y + 18
        drawing.add(
            Stroke([(x, y - 4), (x + 22, y - 4)], role, 2, dash),
            Caption((x + 28, y), name, "ink", 12, "start"),
        )
        x += width


def _table(drawing: Drawing, facts: Facts, top: float) -> None:
    heads = (*HEADS, *(f"×\n{limit['name']}" for limit in facts["limits"]))
    columns = (WIDTH - 2 * MARGIN - 230) / (len(heads) - 1)

    def row(y: float, cells: Sequence[str], role: str, bold: bool) -> None:
        for number, text in enumerate(cells):
            x, anchor = (MARGIN + 230 + columns * number, "end") if number else (MARGIN, "start")
            for line, part in enumerate(reversed(text.split("\n"))):
                drawing.add(Caption((x, y - 16 * line), part, role, 13, anchor, bold=bold))
        drawing.add(Stroke([(MARGIN, y + 8), (WIDTH - MARGIN, y + 8)], "grid"))

    row(top, heads, "ink", True)
    for number, (about, cells) in enumerate(table(facts), 1):
        role = "ink" if "family" in about else "quiet"
        row(top + ROW * number, cells, role, bool(about.get("take")))
