"""A drawing of lines, dots and text in pixels, written as SVG.

Every colour is a role such as "grid" or "worth". A palette gives each role its colour, so one
drawing can be shown light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

Point = tuple[float, float]

# The strategies have colours that colour-blind people can tell apart.
LIGHT = {
    "worth": "#0063a6", "adaptive": "#d55e00", "fixed": "#5b5b5b", "batch_fill": "#00805f",
    "ewma": "#a8508f", "other": "#7a6a00", "limit": "#333333",
    "ink": "#1f2933", "strong": "#102a43", "quiet": "#52606d", "axis": "#9aa5b1",
    "grid": "#e4e7eb", "area": "#cbd2d9", "paper": "#ffffff", "ground": "#f5f7fa",
    "accent": "#e6f0fa", "border": "#d9e2ec",
}  # fmt: skip
DARK = {
    "worth": "#58a6ff", "adaptive": "#ff9a4d", "fixed": "#aab4bf", "batch_fill": "#35c79a",
    "ewma": "#e091cf", "other": "#d3bf3d", "limit": "#d5dce3",
    "ink": "#dfe6ec", "strong": "#f3f6f9", "quiet": "#9fadba", "axis": "#5d6b79",
    "grid": "#29323b", "area": "#3d4954", "paper": "#171d24", "ground": "#0e1216",
    "accent": "#1c3046", "border": "#2b353f",
}  # fmt: skip
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
#: Dash lengths in pixels, by name.
DASHES = {"solid": (), "dash": (7, 4), "dot": (1.5, 3), "dashdot": (7, 3, 1.5, 3)}


@dataclass(frozen=True)
class Stroke:
    """A line through points; a nan interrupts it. With a fill, an area.

    series: the CSS class by which a page hides it.
    """

    points: Sequence[Point]
    role: str
    width: float = 1.0
    dash: str = "solid"
    fill: str | None = None
    opacity: float = 1.0
    series: str = ""
    title: str = ""

    def svg(self) -> str:
        parts = []
        move = True
        for x, y in self.points:
            if math.isnan(x) or math.isnan(y):
                move = True
                continue
            parts.append(f"{'M' if move else 'L'}{_px(x)} {_px(y)}")
            move = False
        dash = " ".join(map(_px, DASHES[self.dash]))
        more = f' stroke-dasharray="{dash}"' if dash else ""
        more += f' opacity="{self.opacity:g}"' if self.opacity < 1 else ""
        names = f"s-{self.role} f-{self.fill or 'none'} {self.series}".strip()
        return _element(
            "path", f'class="{names}" stroke-width="{self.width:g}"{more} d="{"".join(parts)}"',
            self.title,
        )  # fmt: skip


@dataclass(frozen=True)
class Dot:
    """A filled circle."""

    at: Point
    radius: float
    role: str
    series: str = ""
    title: str = ""

    def svg(self) -> str:
        x, y = map(_px, self.at)
        names = f"f-{self.role} {self.series}".strip()
        return _element(
            "circle", f'class="{names}" cx="{x}" cy="{y}" r="{self.radius:g}"', self.title
        )


@dataclass(frozen=True)
class Caption:
    """A line of text that begins, ends or is centred at a point of its baseline."""

    at: Point
    text: str
    role: str = "ink"
    size: float = 12.0
    anchor: str = "middle"  # or start, end
    bold: bool = False
    halo: bool = False

    def svg(self) -> str:
        x, y = map(_px, self.at)
        names = f"f-{self.role}{' bold' if self.bold else ''}{' halo' if self.halo else ''}"
        return (
            f'<text class="{names}" x="{x}" y="{y}" font-size="{self.size:g}" '
            f'text-anchor="{self.anchor}">{escape(self.text)}</text>'
        )


@dataclass
class Drawing:
    """What is drawn, from back to front."""

    width: float
    height: float
    items: list[Stroke | Dot | Caption] = field(default_factory=list)

    def add(self, *items: Stroke | Dot | Caption) -> None:
        self.items += items

    def svg(self, attributes: Mapping[str, object], inside: str = "") -> str:
        """An svg element with these attributes."""
        text = "".join(f' {name}="{escape(str(value))}"' for name, value in attributes.items())
        box = f"0 0 {_px(self.width)} {_px(self.height)}"
        body = "\n".join(item.svg() for item in self.items)
        return f'<svg viewBox="{box}"{text}>{inside}\n{body}\n</svg>'

    def svg_file(self) -> bytes:
        """A picture of its own, on light paper."""
        rules = (
            svg_rules(LIGHT.__getitem__) + f"svg{{background:{LIGHT['paper']};font-family:{FONT}}}"
        )
        names = {"xmlns": "http://www.w3.org/2000/svg", "width": _px(self.width),
                 "height": _px(self.height)}  # fmt: skip
        text = self.svg(names, f"<style>{escape(rules, quote=False)}</style>")
        return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def svg_rules(colour: Callable[[str], str]) -> str:
    """The CSS rules of drawings, with the colour of each role."""
    roles = "".join(
        f".s-{role}{{stroke:{colour(role)}}}.f-{role}{{fill:{colour(role)}}}" for role in LIGHT
    )
    return (
        roles + ".f-none{fill:none}.bold{font-weight:700}path{stroke-linejoin:round}"
        f".halo{{paint-order:stroke;stroke:{colour('paper')};stroke-width:3px}}"
    )


def clipped(points: Iterable[Point], left: float, top: float, right: float, bottom: float
) -> list[Point]:  # fmt: skip
    """The part of a line inside a box, interrupted by a nan where the line leaves it."""
    result: list[Point] = []
    before: Point | None = None
    for point in points:
        if before is not None:
            inside = _segment(before, point, (left, right), (top, bottom))
            if inside is None:
                result.append((math.nan, math.nan))
            else:
                if not result or result[-1] != inside[0]:
                    result += [(math.nan, math.nan), inside[0]]
                result.append(inside[1])
        before = point
    return result


def _segment(one: Point, other: Point, *ranges: tuple[float, float]) -> tuple[Point, Point] | None:
    """The part of a straight line inside ranges of x and y (Liang and Barsky); None if outside."""
    begin, end = 0.0, 1.0
    for start, stop, (low, high) in zip(one, other, ranges, strict=True):
        if math.isnan(start) or math.isnan(stop):
            return None
        if start == stop:
            if not low <= start <= high:
                return None
            continue
        ends = sorted(((low - start) / (stop - start), (high - start) / (stop - start)))
        begin, end = max(begin, ends[0]), min(end, ends[1])
    if begin >= end:
        return None
    (x, y), (dx, dy) = one, (other[0] - one[0], other[1] - one[1])
    return (
        (x + begin * dx, y + begin * dy) if begin else one,
        (x + end * dx, y + end * dy) if end < 1 else other,
    )


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _element(tag: str, attributes: str, title: str) -> str:
    if not title:
        return f"<{tag} {attributes}/>"
    return f"<{tag} {attributes}><title>{escape(title)}</title></{tag}>"
