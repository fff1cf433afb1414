"""Draw the dashboards for the docs: docs/assets/dashboard-*.png.

    python scripts/dashboard_pictures.py [--seconds 240]

All parts of Pollwise run under load (tests/support/observed.py), Debian's Prometheus scrapes them,
and this script draws the answers to the queries of the dashboards. It is not Grafana, which draws
the same panels in its own style. Chromium must be on PATH. Nothing runs it automatically: run it
after a change of the dashboards.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "assets"
SIZE_MAX = 150_000
WIDTH, TOP, UNIT, GAP = 1280, 56, 22, 8
COLUMN = (WIDTH - GAP) / 24
COLOURS = (
    "#2563eb", "#15803d", "#c2620a", "#7c3aed", "#b91c1c", "#0e7490", "#a16207", "#be185d",
)  # fmt: skip
INK, QUIET, FAINT, GROUND = "#1f2933", "#616e7c", "#e3e8ee", "#f3f6fb"
CALM, WARN, ALARM = "#15803d", "#b7791f", "#b91c1c"
LEGENDS_MAX = 4
#: The longest name in a legend, in characters.
LEGEND_MAX = 34

Points = list[tuple[float, float]]
Lines = list[tuple[str, Points]]


def text(
    x: float, y: float, words: str, size: float = 12, colour: str = INK, more: str = ""
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}"'
    return f"<text {place} {more}>{escape(words)}</text>"


def number(value: float, unit: str) -> str:
    """A value as people read it."""
    if unit == "s":
        for size, name in ((3600, "h"), (60, "min"), (1, "s")):
            if value >= size:
                return f"{value / size:.3g} {name}"
        return f"{value * 1000:.3g} ms"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "currencyUSD":
        return f"${value:.2g}"
    shown = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{shown}/s" if unit == "ops" else shown


def drawn(board: dict[str, Any], data: dict[int, Lines]) -> tuple[str, int]:
    """The dashboard as SVG, and its height."""
    height, parts = 0, [text(GAP * 2, 34, board["title"], 20, INK, 'font-weight="600"')]
    for panel in board["panels"]:
        at = panel["gridPos"]
        x, y = GAP + at["x"] * COLUMN, TOP + at["y"] * UNIT
        w, h = at["w"] * COLUMN - GAP, at["h"] * UNIT - GAP
        height = max(height, int(y + h + GAP * 2))
        if panel["type"] == "row":
            parts.append(text(x + 4, y + 17, panel["title"], 14, INK, 'font-weight="600"'))
            continue
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="4" fill="#fff" '
            f'stroke="{FAINT}"/>'
        )
        parts.append(text(x + 8, y + 17, panel["title"], 12, INK, 'font-weight="500"'))
        draw = stat if panel["type"] == "stat" else chart
        parts += draw(panel, data[panel["id"]], x, y, w, h)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
    ground = f'<rect width="{WIDTH}" height="{height}" fill="{GROUND}"/>'
    return f'{head} font-family="sans-serif">{ground}{"".join(parts)}</svg>', height


def named(panel: dict[str, Any], value: float) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    for mapping in defaults["mappings"]:
        if str(round(value)) in mapping["options"]:
            return str(mapping["options"][str(round(value))]["text"])
    return number(value, defaults["unit"])


def stat(panel: dict[str, Any], lines: Lines, x: float, y: float, w: float, h: float) -> list[str]:
    """The last value of each series, in the colour of its threshold."""
    parts, shown = [], [(name, points[-1][1]) for name, points in lines if points][:2]
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    for index, (name, value) in enumerate(shown):
        passed = sum(value >= step["value"] for step in steps[1:])
        colour = (CALM, WARN, ALARM)[passed]
        left = x + w * (index + 0.5) / len(shown)
        middle = 'text-anchor="middle"'
        parts.append(text(left, y + h / 2 + 17, named(panel, value), 24, colour, middle))
        if len(shown) > 1:
            parts.append(text(left, y + h - 7, name, 10, QUIET, middle))
    return parts or [text(x + 8, y + h / 2 + 8, "no data", 11, QUIET)]


def chart(panel: dict[str, Any], lines: Lines, x: float, y: float, w: float, h: float) -> list[str]:
    """Lines over time, stacked if the panel says so, with a scale and a legend."""
    lines = [(name, points) for name, points in lines if points]
    if not lines:
        return [text(x + 8, y + h / 2, "no data", 11, QUIET)]
    custom = panel["fieldConfig"]["defaults"]["custom"]
    lines.sort(key=lambda line: -max(value for _, value in line[1]))  # legends of the highest
    filled = custom["stacking"]["mode"] == "normal"
    if filled:
        lines = stacked(lines)
    begin = min(points[0][0] for _, points in lines)
    end = max(points[-1][0] for _, points in lines)
    high = nice(max(value for _, points in lines for _, value in points))
    left, right, top, bottom = x + 52, x + w - 10, y + 30, y + h - 24
    parts = []
    for share in (0.0, 0.5, 1.0):
        at = bottom - (bottom - top) * share
        parts.append(f'<path d="M{left:.1f} {at:.1f}H{right:.1f}" stroke="{FAINT}"/>')
        words = named(panel, high * share)
        parts.append(text(left - 5, at + 3, words, 9.5, QUIET, 'text-anchor="end"'))
    # Of a stack, the line at the top first: the area of the one below covers a part of its own.
    for index, (_, points) in list(enumerate(lines))[:: -1 if filled else 1]:
        path = " ".join(
            f"{left + (right - left) * (at - begin) / max(end - begin, 1):.1f},"
            f"{bottom - (bottom - top) * min(value / high, 1):.1f}"
            for at, value in points
        )
        colour = COLOURS[index % len(COLOURS)]
        if filled:
            spans = [left + (right - left) * (at - begin) / max(end - begin, 1) for at, _ in points]
            area = f"{spans[0]:.1f},{bottom:.1f} {path} {spans[-1]:.1f},{bottom:.1f}"
            parts.append(f'<polygon points="{area}" fill="{tint(colour)}"/>')
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"/>'
        )
    spot, most = x + 8, x + w - 30
    for index, (full, _) in enumerate(lines):
        name = full if len(full) <= LEGEND_MAX else f"{full[: LEGEND_MAX - 1]}…"
        long = 16 + 5.6 * len(name)
        if index == LEGENDS_MAX or spot + long > most:
            parts.append(text(spot, y + h - 8, f"+{len(lines) - index}", 9.5, QUIET))
            break
        colour = COLOURS[index % len(COLOURS)]
        parts.append(
            f'<rect x="{spot:.1f}" y="{y + h - 13:.1f}" width="9" height="3" fill="{colour}"/>'
        )
        parts.append(text(spot + 12, y + h - 8, name, 9.5, QUIET))
        spot += long
    return parts


def tint(colour: str) -> str:
    """A light tone of a colour, for areas."""
    shares = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - each) * 0.22):02x}" for each in shares)


def stacked(lines: Lines) -> Lines:
    """Each line on top of those before it."""
    under: dict[float, float] = {}
    made = []
    for name, points in lines:
        for at, value in points:
            under[at] = under.get(at, 0.0) + value
        made.append((name, [(at, under[at]) for at, _ in points]))
    return made


def nice(high: float) -> float:
    """A round number that is not below this one."""
    if high <= 0 or not math.isfinite(high):
        return 1.0
    size = 10.0 ** math.floor(math.log10(high))
    return next(size * each for each in (1, 2, 4, 5, 10) if size * each >= high * 0.999)


def asked(prometheus: Any, panel: dict[str, Any], begin: float, end: float) -> Lines:
    """The series of a panel, each with its legend."""
    lines = []
    for target in panel["targets"]:
        query = target["expr"].replace("$__rate_interval", "15s")
        query = query.replace("$__range", f"{end - begin:.0f}s")
        query = re.sub(r"\$\w+", ".*", query)
        for labels, points in prometheus.series(query, begin, end, 2.0):
            legend = target["legendFormat"]
            name = re.sub(r"{{(\w+)}}", lambda found, of=labels: of.get(found[1], ""), legend)  # type: ignore[misc]
            lines.append((" ".join(name.split()) or "all", points))
    return lines


async def measured(seconds: float) -> dict[str, tuple[dict[str, Any], dict[int, Lines]]]:
    """The dashboards, and the data of each panel by its id, from a run of all parts."""
    from pollwise.observe.dashboards import files
    from tests.support.observed import Observed
    from tests.support.prometheus import Prometheus
    from tests.support.servers import Servers

    boards = {name: json.loads(made) for name, made in files().items()}
    with tempfile.TemporaryDirectory() as folder, Servers() as servers:
        dsn = servers.postgres().create_database("observed")
        async with Observed(Path(folder), dsn).running() as observed:
            prometheus = servers.begin(Prometheus(servers, *observed.scrapes), {})
            begin = time.time() + 15.0
            while (now := time.time()) < begin + seconds:
                observed.check()
                observed.load = 1.0 + 0.7 * math.sin((now - begin) / 25.0)
                await asyncio.sleep(1.0)
            found = {}
            for name, board in boards.items():
                panels = [each for each in board["panels"] if each["type"] != "row"]
                data = {
                    panel["id"]: await asyncio.to_thread(asked, prometheus, panel, begin, now)
                    for panel in panels
                }
                found[name] = (board, data)
            return found


def save(name: str, svg: str, height: int, browser: Any) -> None:
    from PIL import Image

    page = browser.new_page(viewport={"width": WIDTH, "height": height})
    page.set_content(f'<body style="margin:0">{svg}</body>')
    with Image.open(io.BytesIO(page.screenshot())) as taken:
        fewer = taken.convert("RGB").quantize(64, kmeans=1, dither=Image.Dither.NONE)
    page.close()
    place = FOLDER / f"{name.replace('pollwise-', 'dashboard-').removesuffix('.json')}.png"
    fewer.save(place, optimize=True)
    print(f"{place.name}: {place.stat().st_size:,} bytes")
    if place.stat().st_size > SIZE_MAX:
        raise SystemExit(f"{place.name} is above {SIZE_MAX:,} bytes")


def main(arguments: list[str]) -> int:
    if arguments and (len(arguments) != 2 or arguments[0] != "--seconds"):
        print(__doc__, file=sys.stderr)
        return 2
    sys.path.insert(0, str(ROOT))
    from tests.support.browser import chromium

    found = asyncio.run(measured(float(arguments[1]) if arguments else 240.0))
    with chromium() as browser:
        for name, (board, data) in found.items():
            save(name, *drawn(board, data), browser)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
