"""The pages of alerts, and of a target's history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pollwise.alerts.values import Alert
from pollwise.fleet.history.values import Period, PollFigures, TargetRollup, TimeInStates
from pollwise.fleet.stores.base import SaveExtras
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.rollups.histogram import Histogram
from tests.fleet.world import fleet_for, running
from tests.web.test_fleet import NOW, run, target  # noqa: F401 - run is a fixture
from tests.web.viewers import Somebody
from tests.web.visiting import HOSTILE, Visitor

PAGE = "/fleets/pages/alerts"


def alert(id: str, name: str, **more: Any) -> Alert:
    given = {"severity": "critical", "state": "open", "summary": f"refused {HOSTILE}", **more}
    return Alert(
        id=id, target=name, group="api", rule="0", when="down", since=NOW - 600,
        opened_at=NOW - 500, sent=1, last_sent_at=NOW - 500, **given,
    )  # fmt: skip


async def filled(store: SqliteFleetStore) -> None:
    alerts = [
        alert("a1", "shop"),
        alert("a2", f"mail {HOSTILE}", severity="info"),
        alert("a0", "old", state="closed", closed_at=NOW - 60),
    ]
    names = [each.target for each in alerts]
    await store.save([target(name, "open") for name in names], SaveExtras(alerts=alerts))


def test_open_alerts_are_listed_and_acknowledged(run: Callable[..., None]) -> None:  # noqa: F811
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        assert "No alert is open" in await visitor.main(PAGE)
        await filled(store)
        visitor.sources.fleets["pages"].forget()
        page = await visitor.main(PAGE)
        assert "shop critical down refused" in page
        assert "10 min ago" in page
        assert "old" not in page
        overview = await visitor.main("/")
        assert "2 open alerts:" in overview
        answer = await visitor.post(PAGE, "acknowledge", ["a1", "a0"], note=f"me {HOSTILE}")
        assert answer.status_code == 303
        [known] = [each for each in await store.alerts_by_id(["a1", "a0"]) if each.acknowledged_at]
        assert known.id == "a1"
        assert known.acknowledged_by == "web: local"
        assert "by web: local: me" in await visitor.main(PAGE)
        assert "1 open alert:" in await visitor.main("/")
        [entry] = await store.list_audit(10)
        assert (entry.action, entry.what) == ("alert.acknowledge", "shop")
        assert "10 min 0 s" not in await visitor.main(PAGE)
        assert "9 min" in await visitor.main(f"{PAGE}?state=closed")
        assert "shop" not in await visitor.main(f"{PAGE}?target=old&state=closed")
        assert "must be 'open' or 'closed'" in await visitor.main(f"{PAGE}?state=ajar")

    run(main)


def test_only_operators_acknowledge(run: Callable[..., None]) -> None:  # noqa: F811
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        await filled(store)
        assert "Acknowledge</button>" not in await visitor.get(PAGE)
        answer = await visitor.post(PAGE, "acknowledge", ["a1"])
        assert answer.status_code == 403
        [kept] = await store.alerts_by_id(["a1"])
        assert kept.acknowledged_at is None

    run(main, Somebody("read"))


def test_a_target_shows_its_history_and_alerts(run: Callable[..., None]) -> None:  # noqa: F811
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        clock = visitor.sources.clock

        async def probe(*_: object) -> str:
            return "ok"

        fleet = fleet_for(clock, store=store, name="pages")  # type: ignore[arg-type]
        fleet.probe("shop", interval="10s", group="api")(probe)
        async with running(fleet):
            await clock.sleep(60)
        hour = NOW - NOW % 3600
        figures = PollFigures(60, 1, 0, Histogram.of([0.1] * 59))
        rollups = [
            TargetRollup("shop", "hour", hour - 3600 * n, TimeInStates(3000, 600), figures)
            for n in range(1, 6)
        ]
        periods = [Period("shop", "down", hour - 3600, hour - 3000, f"refused {HOSTILE}")]
        extras = SaveExtras(periods, rollups, [alert("a1", "shop")])
        await store.save(await store.load(["shop"]), extras)
        page = await visitor.main("/fleets/pages/targets/shop?range=24h")
        assert "Uptime 24h 83." in page
        assert "Latency p95 1" in page
        assert "for 10 min refused" in page
        assert "11 min ago , open" in page
        assert "None in this time" not in page

    run(main)


@pytest.mark.parametrize("range", ["7d", "90d", "nonsense"])
def test_ranges(run: Callable[..., None], range: str) -> None:  # noqa: F811
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        await filled(store)
        assert "Alerts down" in await visitor.main(f"/fleets/pages/targets/shop?range={range}")

    run(main)


def test_locations_and_what_changed(run: Callable[..., None]) -> None:  # noqa: F811
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        results = [
            {"location": "paris", "at": NOW - 5, "ok": True, "took": 0.05, "error": None},
            {"location": "tokyo", "at": NOW - 6, "ok": False, "took": 1.5, "error": HOSTILE},
        ]
        reading = {"diff": f"-price 10\n+price 12 {HOSTILE}"}
        locations = {"results": results, "living": 2}
        await store.save([target("shop", reading=reading, locations=locations)])
        page = await visitor.main("/fleets/pages/targets/shop")
        assert "paris succeeded 50 ms" in page
        assert "tokyo failed 1.5 s" in page
        assert "than have a running node (2)" in page
        assert "-price 10 +price 12" in page

    run(main)
