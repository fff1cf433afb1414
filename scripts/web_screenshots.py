"""Take the screenshots of the web interface for README and docs: docs/assets/web-*.png.

python scripts/web_screenshots.py           take them, with Chromium, which must be on PATH
python scripts/web_screenshots.py alerts    take this one again, while the pages are the same
python scripts/web_screenshots.py --check   fail if pages changed since they were taken

They show a shop that was open for a day of virtual time (tests/support/shop.py). That takes two
minutes, so nothing takes them automatically. The check compares hashes only.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Collection
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pollwise.runtime.clock import Clock

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "assets"
MANIFEST = FOLDER / "web-screenshots.json"
WEB = ROOT / "src" / "pollwise" / "web"
#: What decides how pages look.
SOURCES = (
    "static/*.css", "static/*.svg", "templates/**/*.html", "charts/*.py", "pages/**/*.py",
    "texts.py",
)  # fmt: skip
SIZE_MAX = 200_000
#: By name of the picture: the page, its height, and its theme. `{dead}` is a dead job.
SHOTS = {
    "overview": ("/", 1040, "light"),
    "overview-dark": ("/", 1040, "dark"),
    "queue": ("/queues/orders", 1080, "light"),
    "job": ("{dead}", 760, "light"),
    "worker": ("/queues/orders/workers/orders-1", 760, "light"),
    "outbox": ("/outboxes/default", 820, "light"),
    "fleet": ("/fleets/pages", 860, "light"),
    "lab": ("/lab", 720, "light"),
    "target-dark": ("/fleets/pages/targets/partners-03?range=90d", 1000, "dark"),
    "alerts": ("/fleets/pages/alerts", 600, "light"),
    "status": ("/status", 900, "light"),
}
#: Where the shop's code and its workers are said to be, instead of this machine.
PLACE, HOST, PID = "/srv/shop", "shop-1", 4711


def fingerprint() -> str:
    """A hash over everything that decides how pages look."""
    found = sha256()
    for path in sorted({path for each in SOURCES for path in WEB.glob(each)}):
        found.update(f"{path.relative_to(WEB).as_posix()}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def check() -> int:
    """0 if the pictures are those of this version."""
    if not MANIFEST.exists():
        print("docs/assets has no pictures: run scripts/web_screenshots.py", file=sys.stderr)
        return 1
    taken = json.loads(MANIFEST.read_text("utf-8"))
    wrong = [name for name in SHOTS if not (FOLDER / f"web-{name}.png").exists()]
    if wrong or taken["pages"] != fingerprint():
        what = f"missing: {', '.join(wrong)}" if wrong else "older than the pages"
        print(f"docs/assets/web-*.png are {what}: run scripts/web_screenshots.py", file=sys.stderr)
        return 1
    return 0


def take(folder: Path, names: Collection[str]) -> None:
    """Make the shop, serve it, and take these pictures."""
    import uvicorn
    from PIL import Image

    import pollwise.web
    from tests.support.browser import chromium
    from tests.support.daemons import free_port
    from tests.support.shop import Shop

    shop = Shop.open_for(folder, hours=24)
    asyncio.run(_add_past(shop.fleet, shop.clock))
    _neutral(folder)
    os.chdir(folder)  # pages show the URL of a store, and a relative one says nothing of this place
    urls = [url.replace(f"{folder}/", "") for url in (*shop.queues, shop.outbox, shop.fleet)]
    *queues, outbox, fleet = urls
    viewer = pollwise.web.Viewer("ada", "admin")
    pages = pollwise.web.app(
        *queues,
        outboxes=[outbox],
        fleets=[fleet],
        authorise=lambda _: viewer,
        clock=shop.clock,
        status=pollwise.web.StatusOptions(["shop", "partners"], title="Status of the shop"),
    )
    server = uvicorn.Server(uvicorn.Config(pages, port=(port := free_port()), log_config=None))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    here = f"http://127.0.0.1:{port}"
    with chromium() as browser:
        for name in names:
            path, height, theme = SHOTS[name]
            size = {"width": 1280, "height": height}
            tab = browser.new_context(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
            page = tab.new_page()
            if "{dead}" in path:
                page.goto(f"{here}/queues/orders?state=dead")
                path = page.locator("tr[id^=job-] a").first.get_attribute("href") or ""
            page.goto(here + path)
            if path != "/status":  # it has no stream
                page.locator(".live[data-state=live]").wait_for()
            with Image.open(io.BytesIO(page.screenshot())) as taken:
                fewer_colours = taken.convert("RGB").quantize(
                    256, kmeans=1, dither=Image.Dither.NONE
                )
            place = FOLDER / f"web-{name}.png"
            fewer_colours.save(place, optimize=True)
            tab.close()
            print(f"{place.name}: {place.stat().st_size:,} bytes")
            if place.stat().st_size > SIZE_MAX:
                raise SystemExit(f"{place.name} is above {SIZE_MAX:,} bytes")
    server.should_exit = True
    thread.join(30)


async def _add_past(url: str, clock: Clock) -> None:
    """Give the fleet, which was polled for an hour, the history of the months before, and alerts
    for what is down now. To poll for months of virtual time would take hours."""
    from pollwise.alerts.values import Alert
    from pollwise.fleet.history.values import Period, PollFigures, TargetRollup, TimeInStates
    from pollwise.fleet.stores.base import SaveExtras
    from pollwise.fleet.stores.urls import open_store
    from pollwise.runtime.rollups.histogram import Histogram

    rng, now = Random(18), clock.epoch()
    store = open_store(url, clock=clock)
    targets = await store.load()
    periods, rollups, alerts = [], [], []
    for each in targets:
        first = int(now // 86400)
        for at in [(first - n) * 86400.0 for n in range(1, 91)]:
            down = rng.choice([0] * 60 + [240, 3900])
            took = Histogram.of([rng.lognormvariate(-2.0, 0.5) for _ in range(40)])
            figures = PollFigures(1440, down // 60, 12, took)
            times = TimeInStates(86400.0 - down, float(down))
            rollups.append(TargetRollup(each.name, "day", at, times, figures))
            if down:
                start = at + rng.uniform(0, 80000)
                why = "connection refused"
                periods.append(Period(each.name, "down", start, start + down, why))
        for n in range(2, 24 * 7):
            at = (now // 3600 - n) * 3600.0
            took = Histogram.of([rng.lognormvariate(-2.0, 0.5) for _ in range(12)])
            times, figures = TimeInStates(3600.0), PollFigures(60, 0, 1, took)
            rollups.append(TargetRollup(each.name, "hour", at, times, figures))
        if each.more.get("down"):
            since = each.more["failing_since"]
            alerts.append(
                Alert(
                    f"{since:.0f}-{each.name}",
                    each.name,
                    each.group,
                    "down",
                    "down",
                    "critical",
                    "open",
                    since,
                    since + 60,
                    summary=each.error or "",
                    sent=1,
                    last_sent_at=since + 60,
                )
            )
    await store.save(targets, SaveExtras(periods=periods, rollups=rollups, alerts=alerts))
    if alerts:
        await store.acknowledge([alerts[0].id], "ada", "The partner is on it")
    await store.close()


def _neutral(folder: Path) -> None:
    """Replace what would identify this machine: paths in tracebacks, its name, the process."""
    with closing(sqlite3.connect(folder / "shop.db")) as shop, shop:
        support = str(ROOT / "tests" / "support")
        shop.execute("UPDATE pollwise_jobs SET errors = replace(errors, ?, ?)", (support, PLACE))
        shop.execute(
            "UPDATE pollwise_notes SET value = json_set(value, '$.host', ?, '$.pid', ?) "
            "WHERE topic = 'workers'",
            (HOST, PID),
        )
    with closing(sqlite3.connect(folder / "fleet.db")) as fleet, fleet:
        fleet.execute("UPDATE pollwise_fleet_runs SET host = ?, pid = ?", (HOST, PID))


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        return check()
    if not SHOTS.keys() >= {*arguments} or (arguments and check()):
        print(__doc__, file=sys.stderr)
        return 2
    sys.path.insert(0, str(ROOT))
    pages = fingerprint()
    with tempfile.TemporaryDirectory() as folder:
        take(Path(folder), arguments or SHOTS.keys())
    MANIFEST.write_text(json.dumps({"pages": pages}, indent=2) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
