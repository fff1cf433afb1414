"""Every panel has data, and alerts see what is wrong: all parts run under load, and a real
Prometheus scrapes them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pollwise.observe.rules import RULES
from tests.observe.test_dashboards import BOARDS, panels_of, substituted
from tests.support.observed import Observed
from tests.support.prometheus import Prometheus
from tests.support.servers import Postgres, Servers

#: Alerts about what goes wrong among these parts, apart from how long it has to last. Unit tests of
#: rules feed them series that somebody thought of; these are what the parts really export.
WRONG = (
    "PollwiseDeadJobs",
    "PollwiseKindUnhandled",
    "PollwiseBreakerOpen",
    "PollwiseOutboxBreakerOpen",
    "PollwiseAgentsOffline",
    "PollwiseTargetDown",
)
#: Only ends a hang: Prometheus must have scraped everything a few times.
PATIENCE = 90.0


def test_every_panel_has_data_from_parts_under_load(
    servers: Servers, postgres: Postgres, tmp_path: Path
) -> None:
    dsn = postgres.create_database("observed")
    panels = {
        (board["title"], panel["id"]): panel
        for board in BOARDS.values()
        for panel in panels_of(board)
    }
    left = set(panels)
    unseen = {rule.expr: rule.name for rule in RULES if rule.name in WRONG}

    async def main() -> None:
        async with Observed(tmp_path, dsn).running() as observed:
            prometheus = servers.begin(Prometheus(servers, *observed.scrapes), {})
            async with asyncio.timeout(PATIENCE):
                while left or unseen:
                    observed.check()
                    for expr in list(unseen):
                        if await asyncio.to_thread(prometheus.values, expr):
                            del unseen[expr]
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
        raise AssertionError(
            f"panels without data: {empty}; alerts that see nothing: {[*unseen.values()]}"
        ) from None
