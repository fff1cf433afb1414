"""A report as one page that needs nothing else: no network, no other file.

The browser is told so as well: the page's policy forbids every request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from pollwise.durations import short
from pollwise.lab.report import plots
from pollwise.lab.report.compare import brief, money
from pollwise.lab.report.plots import Facts

STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #f5f7fa; color: #1f2933; line-height: 1.45;
  font: 15px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 20px 20px 40px; }
h1 { font-size: 25px; line-height: 1.25; margin: 0 0 10px; color: #102a43; }
h2 { font-size: 17px; margin: 0 0 2px; color: #102a43; }
p { margin: 0 0 8px; max-width: 90ch; }
section { background: #fff; border: 1px solid #d9e2ec; border-radius: 6px; padding: 16px 18px;
  margin-top: 16px; }
.quiet { color: #52606d; font-size: 13.5px; }
.foot { margin-top: 14px; }
.cards { display: flex; flex-wrap: wrap; gap: 10px; margin: 14px 0 12px; }
.card { background: #e6f0fa; border-radius: 6px; padding: 8px 14px; }
.card b { display: block; font-size: 20px; color: #102a43; }
.card span { font-size: 12.5px; color: #52606d; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
td { font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 7px; border-bottom: 1px solid #e4e7eb; }
th { vertical-align: bottom; font-weight: 600; color: #334e68; }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
td { white-space: nowrap; }
tr.take td { background: #e6f0fa; font-weight: 700; }
tr.limit td { color: #52606d; }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 5px; margin-right: 7px; }
code { background: #eef1f5; padding: 1px 4px; border-radius: 3px; }
@media (max-width: 900px) { .extra { display: none; } .cards { gap: 8px; }
  .card { padding: 8px 10px; } .card b { font-size: 18px; } th, td { padding: 5px; } }
@media print { body { background: #fff; } section { break-inside: avoid; } }
"""
# Nothing may be fetched. Plotly writes styles, and makes pictures for its download button.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["lasso2d", "select2d"],
}
# Columns that a narrow screen has no room for: the median and the 99th percentile.
EXTRA = (4, 6)
DRAW = """
for (const part of ["pareto", "time", "waits"]) {
  const figure = JSON.parse(document.getElementById("figure-" + part).textContent);
  Plotly.newPlot(part, figure.data, figure.layout, CONFIG);
}
"""


def page(facts: Facts, version: str, command: str) -> str:
    """The report as HTML. Whatever was named by others is text here, never markup."""
    title = escape(f"Polling {facts['trace']}: take {facts['take']}")
    figures = {
        "pareto": plots.pareto(facts),
        "time": plots.over_time(facts),
        "waits": plots.distribution(facts),
    }
    data = [_json(f"figure-{name}", json.loads(each.to_json())) for name, each in figures.items()]
    draw = DRAW.replace("CONFIG", json.dumps(CONFIG))
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>",
            _head(facts),
            _section("Cost against waiting", _about_pareto(facts), '<div id="pareto"></div>'),
            _section("Every policy and the limits", _about_table(facts), _table(facts)),
            _section(
                "Polls over time, under the arrivals",
                "A good policy's polls follow the arrivals. Drag to look closer; click a name to "
                "hide it.",
                '<div id="time"></div>',
            ),
            _section(
                "How long items waited",
                "For every wait, the share of items that waited no longer.",
                '<div id="waits"></div>',
            ),
            f'<p class="quiet foot">{escape(_foot(facts, version))}<br>',
            f"Again: <code>{escape(command)}</code></p>",
            "</main>",
            _json("pollwise-report", facts),
            *data,
            f"<script>{plots.plotly_js()}</script>",
            f"<script>{draw}</script>\n</body>\n</html>\n",
        ]
    )


def _json(name: str, value: Any) -> str:
    """Data for scripts; no text in it can end its element."""
    text = json.dumps(value, allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _section(title: str, about: str, body: str) -> str:
    return f'<section><h2>{title}</h2>\n<p class="quiet">{about}</p>\n{body}</section>'


def _head(facts: Facts) -> str:
    best = next(policy for policy in facts["policies"] if policy["take"])
    cards = (
        (money(best["dollars_a_month"]), "a month, polls and waiting"),
        (money(best["poll_dollars_a_month"]), "a month for polls"),
        (f"{best['polls_an_hour']:,.0f}", "polls an hour"),
        (brief(best["wait_mean_s"]), "mean wait"),
        (brief(best["wait_p95_s"]), "95 % wait at most"),
    )
    shown = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for value, name in cards
    )
    notes = "\n".join(f"<p>{escape(note)}</p>" for note in facts["notes"])
    return f'<h1>{escape(facts["headline"])}</h1>\n<div class="cards">{shown}</div>\n{notes}'


def _about_pareto(facts: Facts) -> str:
    text = "Nearer to the lower left is better. Lines: other settings of each strategy. "
    if facts["dollars_a_poll"]:
        text += "On the dotted line, polls and waiting together cost what the star costs."
    return text


def _about_table(facts: Facts) -> str:
    if not facts["limits"]:
        return "Polls cost nothing here, so there is no limit to compare with."
    parts = [
        f"<b>{escape(limit['name'])}</b>: {escape(limit['what'])}" for limit in facts["limits"]
    ]
    return (
        "The × columns divide the cost, polls and waiting, by that of a limit. "
        + "; ".join(parts)
        + "."
    )


def _table(facts: Facts) -> str:
    limits = [limit["name"] for limit in facts["limits"]]
    heads = (
        "policy", "polls an hour", "polls, $ a month", "mean wait", "p50", "p95", "p99", "longest",
        "with waiting, $ a month", *(f"× {name}" for name in limits),
    )  # fmt: skip
    shape = plots.Shape(facts)
    lines = [f"<tr>{_cells('th', heads)}</tr>"]
    for policy in facts["policies"]:
        key = f'<span class="key" style="background:{shape.colour(policy)}"></span>'
        waits = (brief(policy[f"wait_{each}_s"]) for each in ("mean", "p50", "p95", "p99", "max"))
        lines.append(_row("take" if policy["take"] else "", key, policy, list(waits), limits))
    for limit in facts["limits"]:
        key = '<span class="key"></span>'
        waits_of = [brief(limit["wait_mean_s"]), "", "", "", ""]
        lines.append(_row("limit", key, limit, waits_of, limits))
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _row(kind: str, key: str, about: Facts, waits: list[str], limits: list[str]) -> str:
    ratios = (about["ratios"][name] for name in limits)
    cells = [
        f"{about['polls_an_hour']:,.0f}",
        money(about["poll_dollars_a_month"]),
        *waits,
        money(about["dollars_a_month"]),
        *("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
    ]
    first = f"<td>{key}{escape(about['name'])}</td>"
    return f'<tr class="{kind}">{first}{_cells("td", cells, 1)}</tr>'


def _cells(tag: str, texts: Sequence[str], begin: int = 0) -> str:
    """Cells of a row, from a column on; some give way on a narrow screen."""
    parts = []
    for number, text in enumerate(texts, begin):
        extra = ' class="extra"' if number in EXTRA else ""
        parts.append(f"<{tag}{extra}>{escape(text)}</{tag}>")
    return "".join(parts)


def _foot(facts: Facts, version: str) -> str:
    return (
        f"{facts['arrivals']:,} arrivals in {short(facts['span_s'])} ({facts['trace']}), replayed "
        f"with the real strategies by pollwise {version}. A month is 30 days at the trace's own "
        f"pace."
    )
