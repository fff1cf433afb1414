"""Every panel has data: all parts run under load, and a real Prometheus scrapes them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.observe.test_dashboards import BOARDS, panels_of, substituted
from tests.support.observed import Observed
from tests.support.prometheus import Prometheus
from tests.support.servers import Servers

#: Panels that stay empty here, and why.
EMPTY = {
    ("Pollwise: fleet", "Polls that got stuck"): "a probe must ignore its end for long",
    ("Pollwise: outbox", "Hints proven"): "SQLite has no channel that could be lost",
}
#: Only ends a hang: Prometheus must have scraped everything a few times.
PATIENCE = 90.0


def test_every_panel_has_data_from_parts_under_load(servers: Servers, tmp_path: Path) -> None:
    panels = {
        (board["title"], panel["id"]): panel
        for board in BOARDS.values()
        for panel in panels_of(board)
    }
    left = {place for place, panel in panels.items() if (place[0], panel["title"]) not in EMPTY}

    async def main() -> None:
        async with Observed(tmp_path).running() as observed:
            prometheus = servers.begin(Prometheus(servers, *observed.scrapes), {})
            async with asyncio.timeout(PATIENCE):
                while left:
                    observed.check()
                    for place in sorted(left):
                        exprs = [substituted(each["expr"]) for each in panels[place]["targets"]]
                        found = [await asyncio.to_thread(prometheus.values, each) for each in exprs]
                        if any(found):
                            left.discard(place)
                    await asyncio.sleep(0.2)  # real time: Prometheus scrapes
            for board in BOARDS.values():
                for variable in board["templating"]["list"][1:]:
                    label, asked = variable["name"], variable["definition"]
                    selector = substituted(asked[len("label_values(") : asked.rindex(",")])
                    # Without lanes, there is none to choose, and "All" stands for it.
                    if label != "lane":
                        values = prometheus.label_values(label, selector)
                        assert values, f"{board['title']}: nothing to choose for {label}"
            prometheus.close()

    try:
        asyncio.run(main())
    except TimeoutError:
        empty = [f"{place[0]}: {panels[place]['title']}" for place in sorted(left)]
        raise AssertionError(f"panels without data: {empty}") from None


def test_panels_that_stay_empty_exist() -> None:
    titles = {(b["title"], panel["title"]) for b in BOARDS.values() for panel in panels_of(b)}
    assert EMPTY.keys() <= titles
