"""A report as one HTML page that needs no network and no other file.

The charts are SVG, drawn here. Hiding lines and switching the metric work without JavaScript; the
small script shows the figures under the pointer. The page's policy forbids every request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from importlib.resources import files
from typing import Any

from pollwise.durations import short
from pollwise.lab.report import charts
from pollwise.lab.report.charts import Box, Facts
from pollwise.lab.report.compare import table
from pollwise.lab.report.drawing import DARK, DASHES, FONT, LIGHT, Drawing, svg_rules
from pollwise.lab.texts import amount, brief, money

#: Why the figures differ a little from those of a loop that runs.
WITHOUT_JITTER = (
    "Replays have no jitter. In a running loop, jitter makes a poller that idles at its longest "
    "interval poll about 5 % more often."
)
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
HEADS = (
    "policy", "polls an hour", "polls, $ a month", "mean wait", "p50", "p95", "p99", "longest",
    "with waiting, $ a month",
)  # fmt: skip
#: Columns that a narrow screen has no room for: the median and the 99th percentile.
EXTRA = (4, 6)
#: Chart widths for wide and narrow screens; a phone must not shrink the letters.
WIDTHS = {"wide": 980.0, "narrow": 360.0}

Draw = Callable[[Drawing, Box, Facts], dict[str, object]]


def page(facts: Facts, version: str, command: str) -> str:
    """The report as HTML. Names that come from outside are escaped."""
    title = escape(f"Polling {facts['trace']}: take {facts['take']}")
    folder = files(__package__)
    script = folder.joinpath("page.js").read_text("utf-8")
    again = f"Command: <code>{escape(command)}</code>"
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>{_style(facts)}</style>\n</head>\n<body>\n<main>",
            _head(facts),
            _section("Cost against waiting", _about_pareto(facts), _pareto(facts)),
            _section("Every policy and the limits", _about_table(facts), _table(facts)),
            _section(
                "Polls over time, under the arrivals",
                "The polls of a good policy follow the arrivals.",
                _legend(facts) + _chart("Polls over time", 430, charts.over_time, facts),
            ),
            _section(
                "How long items waited",
                "For every wait, the share of items that waited no longer.",
                _legend(facts) + _chart("Waits of the items", 380, charts.waits, facts),
            ),
            f'<p class="quiet foot">{escape(_foot(facts, version))}<br>{again}</p>\n</main>',
            _json("pollwise-report", facts),
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def _style(facts: Facts) -> str:
    """The page's own rules, the colours, and a rule for every line that can be hidden."""

    def variables(palette: dict[str, str]) -> str:
        return "".join(f"--{role}:{colour};" for role, colour in palette.items())

    series = [name for name, *_ in (*charts.policies(facts), *charts.frontiers(facts))]
    hidden = (
        f'section:has([data-series="{name}"]:not(:checked)) .{name}{{display:none}}'
        for name in (*series, "equal")
    )
    backgrounds = (f".b-{role}{{background:var(--{role})}}" for role in LIGHT)
    return "\n".join(
        (
            f":root{{color-scheme:light dark;--font:{FONT};{variables(LIGHT)}}}",
            f"@media (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}",
            svg_rules(lambda role: f"var(--{role})"),
            *backgrounds,
            files(__package__).joinpath("page.css").read_text("utf-8"),
            *hidden,
        )
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
        (amount(best["polls_an_hour"]), "polls an hour"),
        (brief(best["wait_mean_s"]), "mean wait"),
        (brief(best["wait_p95_s"]), "95 % wait at most"),
    )
    shown = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for value, name in cards
    )
    notes = "\n".join(f"<p>{escape(note)}</p>" for note in facts["notes"])
    return f'<h1>{escape(facts["headline"])}</h1>\n<div class="cards">{shown}</div>\n{notes}'


# Charts


def _chart(name: str, height: float, draw: Draw, facts: Facts, kind: str = "") -> str:
    """A chart in both widths; the style sheet shows one of them."""
    parts = []
    for size, width in WIDTHS.items():
        drawing = Drawing(width, height)
        data = draw(drawing, (0, 0, width, height), facts)
        names = f"chart {size} {kind}".strip()
        parts.append(drawing.svg({"class": names, "role": "img", "aria-label": name, **data}))
    return "\n".join(parts)


def _pareto(facts: Facts) -> str:
    parts = ['<div class="legend switch">']
    for metric, title in charts.METRICS.items():
        checked = " checked" if metric == "wait_mean_s" else ""
        parts.append(
            f'<label><input type="radio" name="metric" value="{metric}"{checked}>{title}</label>'
        )
    parts.append('</div><div class="legend"><span>Other settings of</span>')
    for series, family, _ in charts.frontiers(facts):
        look: dict[str, Any] = {"width": 1.5}
        parts.append(_entry(series, family, charts.role_of(family), look))
    if facts["dollars_a_poll"]:
        look = {"width": 1.5, "dash": "dot"}
        entry = _entry("equal", "same cost, polls and waiting", "worth", look)
        parts.append(entry.replace("<label>", '<label class="wait_mean_s">'))
    parts.append("</div>")
    for metric, title in charts.METRICS.items():
        draw = partial(charts.pareto, metric=metric)
        parts.append(_chart(f"Cost against {title}", 440, draw, facts, metric))
    return "\n".join(parts)


def _legend(facts: Facts) -> str:
    entries = (
        _entry(series, policy["name"], charts.role_of(policy["family"]), look)
        for series, policy, look in charts.policies(facts)
    )
    return f'<div class="legend">{"".join(entries)}</div>'


def _entry(series: str, name: str, role: str, look: dict[str, Any]) -> str:
    """A box to tick in a legend; without the tick, the style sheet hides the series."""
    dash = " ".join(map(str, DASHES[look.get("dash", "solid")]))
    return (
        f'<label><input type="checkbox" checked data-series="{series}">'
        f'<svg viewBox="0 0 22 8" aria-hidden="true"><path class="s-{role}" d="M0 4H22" '
        f'stroke-width="{look["width"]}" stroke-dasharray="{dash}"/></svg>{escape(name)}</label>'
    )


def _about_pareto(facts: Facts) -> str:
    text = "Nearer to the lower left is better. Each line is a strategy with different settings. "
    if facts["dollars_a_poll"]:
        text += "On the dotted line, polls and waiting together cost what the star costs."
    return text


# The table


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
    heads = (*HEADS, *(f"× {limit['name']}" for limit in facts["limits"]))
    lines = [f"<tr>{_cells('th', heads)}</tr>"]
    for about, cells in table(facts):
        kind = "take" if about.get("take") else "" if "family" in about else "limit"
        colour = f" b-{charts.role_of(about['family'])}" if "family" in about else ""
        key = f'<span class="key{colour}"></span>'
        lines.append(f'<tr class="{kind}">{_cells("td", cells, key)}</tr>')
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _cells(tag: str, texts: Sequence[str], key: str = "") -> str:
    parts = []
    for number, text in enumerate(texts):
        extra = ' class="extra"' if number in EXTRA else ""
        parts.append(f"<{tag}{extra}>{'' if number else key}{escape(text)}</{tag}>")
    return "".join(parts)


def _foot(facts: Facts, version: str) -> str:
    return (
        f"{facts['arrivals']:,} arrivals in {short(facts['span_s'])} ({facts['trace']}), replayed "
        f"with the real strategies by pollwise {version}. A month is 30 days at the trace's own "
        f"pace. {WITHOUT_JITTER}"
    )
