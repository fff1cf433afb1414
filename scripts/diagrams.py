"""The drawn diagrams: who polls what, the architecture, a job's states, a record's way.

They are about 480 wide, so that they can be read on a phone.
"""

from __future__ import annotations

import re
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
            parts.append(svg.arrow(f"M300 {y - 16}V{y - 5}", (300, y - 1), "down"))
        if len(layer["parts"]) == 1:
            boxes, height = _boxes(layer["parts"], 12, y, 576)
            parts += [*boxes, svg.text(578, y + 20, layer["title"], "end", svg.QUIET)]
        else:
            boxes, height = _boxes(layer["parts"], 20, y + 28, 560)
            height += 36
            parts.append(svg.box(12, y, 576, height, "band"))
            parts += [svg.text(30, y + 19, layer["title"], colour=svg.QUIET), *boxes]
        y += height + 18
    return svg.picture(600, round(y - 6), ABOUT, parts, 13)


def _boxes(names: dict[str, str], x: float, y: float, width: float) -> tuple[list[str], float]:
    """The boxes of a layer, up to three in a row, and the height they take.

    Of several parts, each has what it is, without the details after a colon or a semicolon.
    """
    gap, line, top = 8, 16, y
    parts: list[str] = []
    end = "[:;]" if len(names) > 1 else "$"
    short = [(name, re.split(end, about)[0].replace("`", "")) for name, about in names.items()]
    across = 2 if len(names) in (2, 4) else 3
    rows = [short[i : i + across] for i in range(0, len(short), across)]
    for row in rows:
        each = (width - gap * (len(row) - 1)) / len(row)
        said = [svg.wrapped(about, round((each - 20) / 7.1)) for _, about in row]
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


ABOUT_JOB = (
    "The states of a job: ready, delayed, blocked, leased, done, dead and cancelled, and what "
    "moves it"
)


def draw_job() -> str:
    """A job's states, and what moves it from one to the next."""
    parts = [
        *_state(10, 70, "delayed", "until its time"),
        *_state(174, 70, "ready", "for any worker"),
        *_state(338, 70, "blocked", "behind its key"),
        *_state(174, 212, "leased", "a worker runs it", svg.ORANGE, "warm"),
        *_state(10, 330, "done", "finished", svg.GREEN, "good"),
        *_state(174, 330, "cancelled", "by you"),
        *_state(338, 330, "dead", "no attempts left", svg.RED, "bad"),
        _words(240, 24, "put", "middle"),
        svg.arrow("M240 30V63", (240, 69), "down"),
        svg.arrow("M240 50H76V63", (76, 69), "down"),
        svg.arrow("M240 50H404V63", (404, 69), "down"),
        svg.text(158, 43, "with a delay", "middle", svg.QUIET),
        svg.text(324, 43, "its key is in use", "middle", svg.QUIET),
        svg.arrow("M142 96H166", (173, 96), "right"),
        svg.arrow("M338 96H314", (307, 96), "left"),
        svg.arrow("M214 122V204", (214, 211), "down"),
        _words(206, 172, "claim", "end"),
        svg.arrow("M254 212V130", (254, 123), "up"),
        _words(262, 172, "give_back"),
        svg.text(262, 188, "or the lease ended", colour=svg.QUIET),
        svg.arrow("M174 238H76V130", (76, 123), "up"),
        _words(84, 172, "retry"),
        svg.arrow("M190 264V296H76V322", (76, 329), "down", svg.GREEN),
        _words(84, 290, "done"),
        svg.arrow("M240 264V322", (240, 329), "down"),
        _words(248, 314, "cancel"),
        svg.arrow("M290 264V296H372V322", (372, 329), "down", svg.RED),
        _words(330, 290, "dead"),
        svg.arrow("M424 330V144H284V130", (284, 123), "up"),
        _words(416, 232, "retry", "end"),
        svg.text(416, 248, "by you", "end", svg.QUIET),
        svg.arrow("M404 382V402", (404, 409), "down"),
        _words(412, 400, "drop"),
        svg.arrow("M76 382V402", (76, 409), "down"),
        svg.arrow("M240 382V402", (240, 409), "down"),
        svg.text(158, 426, "deleted, or kept for a time", "middle", svg.QUIET),
        svg.text(404, 426, "deleted", "middle", svg.QUIET),
    ]
    return svg.picture(480, 440, ABOUT_JOB, parts, 13)


ABOUT_RECORD = "The way of an outbox record, from your transaction to done or dead"


def draw_record() -> str:
    """An outbox record's way, from the user's transaction to its end."""
    parts = [
        svg.box(12, 12, 456, 90, "band"),
        svg.text(24, 32, "one transaction of yours", colour=svg.QUIET),
        svg.box(22, 44, 206, 46, "box", svg.BLUE),
        svg.text(32, 63, "your data"),
        _words(32, 81, "INSERT INTO orders …"),
        svg.box(238, 44, 220, 46, "box", svg.BLUE),
        svg.text(248, 63, "the record"),
        _words(248, 81, 'outbox.put(…, key="17")'),
        svg.text(24, 120, "after a rollback: nothing", colour=svg.QUIET),
        svg.arrow("M240 102V212", (240, 219), "down"),
        svg.text(248, 124, "commit"),
        *_state(10, 130, "delayed", "not due yet"),
        svg.arrow("M240 156H150", (143, 156), "left"),
        _words(236, 148, "delay", "end"),
        svg.arrow("M76 182V196H200V212", (200, 219), "down"),
        svg.text(84, 210, "due", colour=svg.QUIET),
        *_state(10, 220, "waiting", "for its retry"),
        *_state(174, 220, "ready", "in order by key"),
        *_state(338, 220, "blocked", "behind a dead one"),
        *_state(174, 366, "leased", "a relay handles it", svg.ORANGE, "warm"),
        *_state(10, 486, "done", "published", svg.GREEN, "good"),
        *_state(338, 486, "dead", "no attempts left", svg.RED, "bad"),
        svg.arrow("M142 246H166", (173, 246), "right"),
        svg.arrow("M338 246H314", (307, 246), "left"),
        svg.arrow("M204 272V358", (204, 365), "down"),
        _words(196, 320, "claim", "end"),
        svg.text(196, 336, "its key", "end", svg.QUIET),
        svg.arrow("M244 366V280", (244, 273), "up"),
        svg.text(252, 326, "the lease", colour=svg.QUIET),
        svg.text(252, 342, "ended", colour=svg.QUIET),
        svg.arrow("M174 392H76V280", (76, 273), "up"),
        _words(84, 326, "retry"),
        svg.arrow("M206 418V512H150", (143, 512), "left", svg.GREEN),
        _words(198, 466, "done", "end"),
        svg.arrow("M274 418V512H330", (337, 512), "right", svg.RED),
        _words(282, 466, "dead"),
        svg.arrow("M366 486V292H284V280", (284, 273), "up"),
        _words(374, 412, "retry"),
        svg.text(374, 428, "by you", colour=svg.QUIET),
        svg.line("M448 486V280", svg.RED, 1.5, "4 4"),
        svg.arrow("", (448, 273), "up", svg.RED),
        svg.text(440, 356, "blocks", "end", svg.QUIET),
        svg.text(440, 372, "its key", "end", svg.QUIET),
        svg.arrow("M404 538V558", (404, 565), "down"),
        _words(412, 556, "drop"),
        svg.arrow("M76 538V558", (76, 565), "down"),
        svg.text(100, 582, "deleted, or kept for a time", "middle", svg.QUIET),
        svg.text(404, 582, "deleted", "middle", svg.QUIET),
    ]
    return svg.picture(480, 596, ABOUT_RECORD, parts, 13)


ABOUT_POLLERS = "Who polls what: workers, relays, agents, fleets and your own loop"
#: By row: who makes something, what that is, where it waits, and who polls that.
POLLERS = (
    ("your program", "puts jobs", "a queue", "SQLite, Postgres, …", "Worker", "runs handlers"),
    (
        "your transaction",
        "puts records",
        "an outbox",
        "in your database",
        "Outbox",
        "publishes in order",
    ),
    ("your program", "puts jobs", "a controller", "HTTP, over a queue", "Agent", "runs commands"),
    ("the world", "changes", "targets", "sites, ports, …", "Fleet", "tells you"),
    (
        "another system",
        "adds items",
        "any source",
        "an API, a table, …",
        "poll()",
        "yields batches",
    ),
)


def draw_pollers() -> str:
    """What each running part of Pollwise polls, and what comes into it from the other side."""
    columns = ((12, "new work"), (156, "waits in"), (334, "polled by"))
    parts = [svg.text(x, 24, words, colour=svg.QUIET) for x, words in columns]
    for row, (who, does, place, places, poller, gives) in enumerate(POLLERS):
        y = 36.0 + 66 * row
        parts += [
            svg.text(12, y + 22, who),
            svg.text(12, y + 41, does, colour=svg.QUIET),
            svg.arrow(f"M122 {y + 26}H148", (155, y + 26), "right"),
            svg.box(156, y, 146, 52, "box", svg.BLUE),
            svg.text(166, y + 22, place, more='font-weight="600"'),
            svg.text(166, y + 41, places, colour=svg.QUIET),
            svg.arrow(f"M334 {y + 26}H310", (303, y + 26), "left", svg.ORANGE),
            svg.box(334, y, 134, 52, "warm", svg.ORANGE),
            _words(344, y + 22, poller),
            svg.text(344, y + 41, gives),
        ]
    y = 36.0 + 66 * len(POLLERS)
    ends = "Each poller has its own pace. A hint ends a pause early."
    parts.append(svg.text(12, y + 12, ends, colour=svg.QUIET))
    return svg.picture(480, round(y + 24), ABOUT_POLLERS, parts, 13)


def _state(
    x: float, y: float, name: str, about: str, border: str = svg.BLUE, ground: str = "box"
) -> list[str]:
    style = f'font-weight="600" font-size="15" font-family="{svg.MONO}"'
    return [
        svg.box(x, y, 132, 52, ground, border),
        svg.text(x + 66, y + 22, name, "middle", more=style),
        svg.text(x + 66, y + 41, about, "middle"),
    ]


def _words(x: float, y: float, words: str, anchor: str = "start") -> str:
    """What somebody calls or types."""
    return svg.text(x, y, words, anchor, more=f'font-family="{svg.MONO}"')
