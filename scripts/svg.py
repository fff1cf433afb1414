"""Parts of SVG pictures that follow the reader's light or dark mode.

Colours are classes, not values: `INK` for text, `QUIET` for what matters less, `BLUE`, `ORANGE`,
`GREEN` and `RED` for marks. Browsers apply the dark colours by themselves, also in an <img>.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

INK, QUIET, FAINT = "ink", "quiet", "faint"
BLUE, ORANGE, GREEN, RED = "blue", "orange", "green", "red"

#: By class: its colour on light and on dark ground.
COLOURS = {
    INK: ("#1f2933", "#e4e9f0"),
    QUIET: ("#616e7c", "#9aa7b8"),
    FAINT: ("#d5dbe2", "#3a4557"),
    BLUE: ("#2563eb", "#6ea8fe"),
    ORANGE: ("#c2620a", "#f0a04b"),
    GREEN: ("#15803d", "#4fc47f"),
    RED: ("#b91c1c", "#f07c7c"),
}
#: By class: the ground of the picture, of a group and of a box.
GROUNDS = {
    "page": ("#ffffff", "#1b2230"),
    "band": ("#f3f6fb", "#232c3d"),
    "box": ("#ffffff", "#2d384c"),
    "warm": ("#fff7ed", "#3b3024"),
    "good": ("#effaf2", "#22382d"),
    "bad": ("#fdf1f1", "#402a2e"),
}
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"


def picture(width: int, height: int, about: str, parts: list[str], size: int = 14) -> str:
    """A whole picture. `about` is what a screen reader says instead."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(about)}" '
        f'font-family="system-ui, sans-serif" font-size="{size}">'
    )
    return "\n".join(
        [
            head,
            f"<style>{_style(0)}@media (prefers-color-scheme: dark) {{{_style(1)}}}</style>",
            f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _style(mode: int) -> str:
    rules = [f".{name}{{fill:{shades[mode]}}}" for name, shades in (COLOURS | GROUNDS).items()]
    rules += [f".s-{name}{{stroke:{shades[mode]}}}" for name, shades in COLOURS.items()]
    return "".join(rules)


def text(
    x: float, y: float, words: str, anchor: str = "start", colour: str = INK, more: str = ""
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}"' + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f'<text class="{colour}" {place}{more and " " + more}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, ground: str, border: str = "") -> str:
    edge = f" s-{border}" if border else ""
    return (
        f'<rect class="{ground}{edge}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="6"/>'
    )


def line(path: str, colour: str, width: float = 1.0, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path class="s-{colour}" d="{path}" stroke-width="{width}"{dashes} fill="none"/>'


def arrow(path: str, tip: tuple[float, float], facing: str, colour: str = QUIET) -> str:
    """An arrow whose head, at `tip`, faces "up", "down", "left" or "right"."""
    x, y = tip
    dx, dy = {"up": (0, 1), "down": (0, -1), "left": (1, 0), "right": (-1, 0)}[facing]
    head = (
        f"M{x:.1f} {y:.1f}L{x + 7 * dx - 4 * dy:.1f} {y + 7 * dy - 4 * dx:.1f}"
        f"L{x + 7 * dx + 4 * dy:.1f} {y + 7 * dy + 4 * dx:.1f}Z"
    )
    shaft = line(path, colour, 1.5) if path else ""
    return f'{shaft}<path class="{colour}" d="{head}"/>'


def wrapped(words: str, limit: int) -> list[str]:
    """The words in lines of at most `limit` characters."""
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > limit:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
