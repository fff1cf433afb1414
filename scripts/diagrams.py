"""The drawn diagrams: the architecture, a job's states, and the way of an outbox record.

They are about 480 wide, so that they can be read on a phone.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import svg

ROOT = Path(__file__).resolve().parent.parent
ABOUT = "The layers of Pollwise; each imports only from the layers below it"


def layers() -> list[dict[str, Any]]:
    """The layers of architecture.toml, from the lowest to the highest."""
    table = tomllib.loads((ROOT / "architecture.toml").read_text("utf-8"))
    found: list[dict[str, Any]] = table["layers"]
    return found


def draw_architecture() -> str:
    """The layers, the highest on top, with a box for each part."""
    parts: list[str] = []
    y = 12.0
    for layer in reversed(layers()):
        if parts:
            parts.append(svg.arrow(f"M240 {y - 16}V{y - 5}", (240, y - 1), "down"))
        if len(layer["parts"]) == 1:
            boxes, height = _boxes(layer["parts"], 12, y, 456)
            parts += [*boxes, svg.text(458, y + 20, layer["title"], "end", svg.QUIET)]
        else:
            boxes, height = _boxes(layer["parts"], 20, y + 28, 440)
            height += 36
            parts.append(svg.box(12, y, 456, height, "band"))
            parts += [svg.text(30, y + 19, layer["title"], colour=svg.QUIET), *boxes]
        y += height + 18
    return svg.picture(480, round(y - 6), ABOUT, parts, 13)


def _boxes(names: dict[str, str], x: float, y: float, width: float) -> tuple[list[str], float]:
    """The boxes of a layer, two in a row where there are several, and the height they take."""
    gap, line, top = 8, 16, y
    parts: list[str] = []
    rows = [list(names.items())[i : i + 2] for i in range(0, len(names), 2)]
    for row in rows:
        each = (width - gap * (len(row) - 1)) / len(row)
        said = [svg.wrapped(about, round((each - 20) / 7.0)) for _, about in row]
        height = 30 + line * max(map(len, said))
        for column, (name, _) in enumerate(row):
            at = x + column * (each + gap)
            parts.append(svg.box(at, y, each, height, "box", svg.BLUE))
            style = f'font-weight="600" font-size="14" font-family="{svg.MONO}"'
            parts.append(svg.text(at + 10, y + 20, name, more=style))
            for number, words in enumerate(said[column]):
                parts.append(svg.text(at + 10, y + 38 + line * number, words))
        y += height + gap
    return parts, y - gap - top
