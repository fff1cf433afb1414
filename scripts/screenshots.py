"""Take the screenshots of README and docs: the demo, `pollwise fleet top`, and a report of the lab.

    python scripts/screenshots.py [demo] [fleet-top] [lab-report]

The commands run for real in a pseudo-terminal, and the screen is drawn as SVG. The report is opened
in Chromium, which must be on PATH. This takes two minutes, so nothing runs it automatically: run it
after a change of how these look.
"""

from __future__ import annotations

import fcntl
import http.server
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

from PIL import Image

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "assets"
BIN = Path(sys.executable).parent
SIZE_MAX = 200_000

#: The colours of the terminal: normal, then by SGR code.
GROUND, BAR, NORMAL, DIM = "#1b2230", "#283145", "#e4e9f0", "#8c99ab"
COLOURS = {31: "#f07c7c", 32: "#4fc47f", 33: "#f2c14e", 34: "#6ea8fe", 35: "#d49bf0", 36: "#5fd0d6"}
#: The size of a character cell, and of the space around.
CELL_X, CELL_Y, EDGE, BAR_HEIGHT = 8.0, 19, 16, 30
ESCAPE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b\][^\x07]*\x07")


@dataclass(frozen=True)
class Style:
    """How a character looks."""

    colour: int = 0
    bold: bool = False
    dim: bool = False

    def after(self, codes: str) -> Style:
        """The style after the codes of one `ESC [ … m`."""
        made = self
        for code in (int(each or 0) for each in codes.split(";")):
            if code == 0:
                made = Style()
            elif code == 1:
                made = Style(made.colour, True, made.dim)
            elif code == 2:
                made = Style(made.colour, made.bold, True)
            elif code in COLOURS:
                made = Style(code, made.bold, made.dim)
        return made


@dataclass
class Screen:
    """A terminal that knows what rich sends: text, styles, moves up and home, and erasing."""

    columns: int
    lines: list[list[tuple[str, Style]]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: Style = field(default_factory=Style)

    def feed(self, text: str) -> None:
        place = 0
        for found in ESCAPE.finditer(text):
            self._write(text[place : found.start()])
            self._obey(found[1] or "", found[2] or "")
            place = found.end()
        self._write(text[place:])

    def _write(self, text: str) -> None:
        for character in text:
            if character == "\r":
                self.column = 0
            elif character == "\n":
                self._go_to(self.row + 1)
            elif character.isprintable():
                line = self.lines[self.row]
                line += [(" ", Style())] * (self.column + 1 - len(line))
                line[self.column] = (character, self.style)
                self.column += 1

    def _go_to(self, row: int) -> None:
        self.row = max(row, 0)
        while len(self.lines) <= self.row:
            self.lines.append([])

    def _obey(self, arguments: str, command: str) -> None:
        if command == "m":
            self.style = self.style.after(arguments)
        elif command == "A":
            self._go_to(self.row - int(arguments or 1))
        elif command == "H":
            self.row = self.column = 0
        elif command == "K":
            self.lines[self.row] = [] if arguments == "2" else self.lines[self.row][: self.column]
        elif command == "J":
            self.lines, self.row, self.column = [[]], 0, 0


def draw(screen: Screen, command: str) -> str:
    """The screen as a picture of a terminal window; it is dark in light mode, too."""
    lines = list(screen.lines)
    while lines and not any(character.strip() for character, _ in lines[-1]):
        lines.pop()
    width = screen.columns * CELL_X + 2 * EDGE
    height = BAR_HEIGHT + len(lines) * CELL_Y + 2 * EDGE
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}" role="img" '
        f'aria-label="A terminal that runs {escape(command)}" font-size="13" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace">'
        "<style>text{white-space:pre}</style>"
    )
    bar = f"M0 {BAR_HEIGHT}V8a8 8 0 0 1 8-8H{width - 8:.0f}a8 8 0 0 1 8 8V{BAR_HEIGHT}Z"
    buttons = enumerate(COLOURS[code] for code in (31, 33, 32))
    title = (
        f'<text x="{width / 2:.0f}" y="20" fill="{DIM}" text-anchor="middle">$ {escape(command)}'
    )
    parts = [
        head,
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="{GROUND}"/>',
        f'<path d="{bar}" fill="{BAR}"/>',
        *(f'<circle cx="{18 + 18 * n}" cy="15" r="5" fill="{colour}"/>' for n, colour in buttons),
        f"{title}</text>",
    ]
    for number, line in enumerate(lines):
        y = BAR_HEIGHT + EDGE + 13 + number * CELL_Y
        parts += [_run(y, column, text, style) for column, text, style in _runs(line)]
    return "\n".join([*parts, "</svg>", ""])


def _runs(line: list[tuple[str, Style]]) -> list[tuple[int, str, Style]]:
    """The pieces of a line that are styled alike, without the spaces between them."""
    runs: list[tuple[int, str, Style]] = []
    for column, (character, style) in enumerate(line):
        if character == " ":
            continue
        if runs and runs[-1][2] == style and runs[-1][0] + len(runs[-1][1]) >= column - 1:
            start, text, _ = runs.pop()
            runs.append((start, text.ljust(column - start) + character, style))
        else:
            runs.append((column, character, style))
    return runs


def _run(y: float, column: int, text: str, style: Style) -> str:
    colour = COLOURS.get(style.colour, DIM if style.dim else NORMAL)
    weight = ' font-weight="600"' if style.bold else ""
    x, length = EDGE + column * CELL_X, len(text) * CELL_X
    return (
        f'<text x="{x:.0f}" y="{y}" fill="{colour}"{weight} textLength="{length:.0f}" '
        f'lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
    )


def capture(command: list[str], columns: int, rows: int, seconds: float, folder: Path) -> Screen:
    """What a command shows on a terminal after some seconds; it is stopped then."""
    screen = Screen(columns)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.update(TERM="xterm-256color", COLUMNS=str(columns), LINES=str(rows))
        os.execv(BIN / command[0], command)  # noqa: S606
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    received, until = b"", time.monotonic() + seconds
    while time.monotonic() < until:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                received += os.read(terminal, 65536)
            except OSError:  # the command ended
                break
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(terminal)
    shown = received.decode("utf-8", "ignore")
    screen.feed(re.sub(rf"\b{re.escape(socket.gethostname())}-", "shop-", shown))
    return screen


def demo(folder: Path) -> None:
    """The demo in its second burst, after 27 seconds."""
    screen = capture(["pollwise", "demo", "--seconds", "40"], 92, 30, 28, folder)
    (FOLDER / "demo.svg").write_text(draw(screen, "pollwise demo"), "utf-8")


class Site(http.server.BaseHTTPRequestHandler):
    """Pages that change every few seconds or never, and one that fails."""

    def do_GET(self) -> None:
        name, _, every = self.path.strip("/").partition("/")
        if name == "broken":
            self.send_error(503)
            return
        body = f"{name} {int(time.time() / float(every or 3600))}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


#: The pages of the fleet in the screenshot, and the seconds after which each changes.
PAGES = {
    "front page": 4, "stock feed": 2, "exchange rates": 3, "news": 8, "search": 20,
    "price list": 60, "catalogue": 300, "imprint": 3600, "terms": 3600,
}  # fmt: skip


def fleet_top(folder: Path) -> None:
    """A small fleet after a minute."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    lines = ["[group.shop]", 'type = "http"', 'min_interval = "1s"', 'max_interval = "1m"']
    for name, every in PAGES.items():
        url = f"http://127.0.0.1:{port}/{name.replace(' ', '-')}/{every}"
        lines += ["[[target]]", f'name = "{name}"', 'group = "shop"', f'url = "{url}"']
    url = f"http://127.0.0.1:{port}/broken"
    lines += ["[[target]]", 'name = "legacy API"', 'group = "shop"', f'url = "{url}"']
    lines += ["[[target]]", 'name = "database"', 'type = "tcp"', 'interval = "15s"']
    lines += [f'address = "127.0.0.1:{port}"']
    (folder / "fleet.toml").write_text("\n".join(lines), "utf-8")
    store = "sqlite:///fleet.db"
    node = ["fleet", "run", "--store", store]
    polling = subprocess.Popen([BIN / "pollwise", *node], cwd=folder, stderr=subprocess.DEVNULL)
    try:
        time.sleep(70)
        screen = capture(["pollwise", "fleet", "top", "--store", store], 92, 22, 5, folder)
    finally:
        polling.terminate()
        polling.wait(30)
        server.shutdown()
    (FOLDER / "fleet-top.svg").write_text(draw(screen, "pollwise fleet top"), "utf-8")


def lab_report(folder: Path) -> None:
    """The beginning of a report, as Chromium shows it."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("lab-report needs chromium on PATH")
    report = ["lab", "compare", "bursty", "--hours", "6", "--out", "report.html"]
    subprocess.run([BIN / "pollwise", *report], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    options += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    options += ["--window-size=1000,850", f"--screenshot={FOLDER / 'lab-report.png'}"]
    page = (folder / "report.html").as_uri()
    subprocess.run([browser, *options, page], check=True, stderr=subprocess.DEVNULL)
    with Image.open(FOLDER / "lab-report.png") as taken:
        fewer_colours = taken.convert("RGB").quantize(256, kmeans=2)
    fewer_colours.save(FOLDER / "lab-report.png", optimize=True)


SHOTS: dict[str, Callable[[Path], None]] = {
    "demo": demo,
    "fleet-top": fleet_top,
    "lab-report": lab_report,
}


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(SHOTS))
    if unknown:
        print(f"unknown: {', '.join(unknown)}; one of {', '.join(SHOTS)}", file=sys.stderr)
        return 2
    for name in names or SHOTS:
        with tempfile.TemporaryDirectory() as folder:
            SHOTS[name](Path(folder))
        taken = next(FOLDER.glob(f"{name}.*"))
        print(f"{taken.name}: {taken.stat().st_size:,} bytes")
        if taken.stat().st_size > SIZE_MAX:
            print(f"{taken.name} is above {SIZE_MAX:,} bytes", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
