"""The history of targets over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pollwise.fleet import Fleet, Target
from pollwise.fleet.control import Control
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.clock import VirtualClock
from tests.fleet.history.test_history import HOUR, START, Server, until
from tests.fleet.test_api import Desk, desk
from tests.fleet.world import fleet_for, running

OUTAGE = (1800, 2400)


def asked(folder: Path, main: Callable[[Desk, Fleet], Awaitable[None]]) -> None:
    """Calls a function after two hours in which a target was down for some minutes."""
    clock = VirtualClock(START)

    async def body() -> None:
        store = SqliteFleetStore(folder / "fleet.db", clock=clock)
        fleet = fleet_for(clock, store=store)
        fleet.add(
            Target("shop/eu", Server(clock, OUTAGE), "60s", group="web", dead_after=99),
            Target("other", Server(clock), "60s"),
            Target("yearly", Server(clock), "365d"),
        )
        fleet.pause("yearly")
        async with running(fleet), desk(Control(fleet), folder) as client:
            await until(clock, 2 * HOUR - 60)
            await main(client, fleet)
        await store.close()

    clock.run(body())


def test_the_history_of_a_target(tmp_path: Path) -> None:
    async def main(client: Desk, fleet: Fleet) -> None:
        found = await client.good("GET", "/api/fleet/targets/shop%2Feu/history?since=2d")
        assert found["name"] == "shop/eu"
        [incident] = found["incidents"]
        assert incident["reason"] == "OSError: no answer"
        assert incident["lasted"] == pytest.approx(found["down"], abs=0.01)
        assert 0.8 < found["uptime"] < 0.95
        assert found["latency"]["p95"] == pytest.approx(0.1, rel=0.2)
        assert found["value"] == {"low": 42.0, "high": 42.0, "mean": 42.0}
        assert [each["state"] for each in found["periods"]] == ["up", "down", "up"]
        assert len(found["points"]) == 2
        assert sum(each["polls"] for each in found["points"]) == found["polls"]
        short = await client.good("GET", "/api/fleet/targets/shop/eu/history?since=30m")
        assert (short["incidents"], len(short["points"])) == ([], 1)
        new = await client.good("GET", "/api/fleet/targets/yearly/history")
        assert (new["uptime"], new["state"], new["points"]) == (None, None, [])

    asked(tmp_path, main)


def test_uptimes_and_incidents_of_the_fleet(tmp_path: Path) -> None:
    async def main(client: Desk, fleet: Fleet) -> None:
        page = await client.good("GET", "/api/fleet/uptime?limit=2")
        assert [each["name"] for each in page["targets"]] == ["other", "shop/eu"]
        assert page["targets"][0]["windows"]["24h"]["uptime"] == 1.0
        assert page["targets"][1]["windows"]["90d"]["uptime"] < 0.95
        rest = await client.good("GET", f"/api/fleet/uptime?after={page['next']}")
        assert [each["name"] for each in rest["targets"]] == ["yearly"]
        assert rest["targets"][0]["windows"]["7d"]["uptime"] is None
        assert rest["next"] is None
        web = await client.good("GET", "/api/fleet/uptime?group=web")
        assert [each["name"] for each in web["targets"]] == ["shop/eu"]

        listed = await client.good("GET", "/api/fleet/incidents?limit=1")
        assert [each["target"] for each in listed["incidents"]] == ["shop/eu"]
        more = await client.good("GET", f"/api/fleet/incidents?before={listed['next']}")
        assert more == {"incidents": [], "next": None}

    asked(tmp_path, main)


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    async def main(client: Desk, fleet: Fleet) -> None:
        path = "/api/fleet/targets/other/history"
        for query, wrong in {
            "since=soon": "since",
            "since=0s": "since",
            "since=101d": "since = '101d' is above 100d: the history reaches no further",
            "sinc=7d": "sinc",
        }.items():
            status, message = await client.bad("GET", f"{path}?{query}")
            assert (status, wrong in message) == (400, True), message
        assert (await client.bad("GET", "/api/fleet/targets/none/history"))[0] == 404
        assert (await client.bad("GET", "/api/fleet/incidents?before=nan"))[0] == 400
        assert (await client.bad("GET", path, token="wrong"))[0] == 401

    asked(tmp_path, main)


def test_a_fleet_without_a_store_keeps_no_history(tmp_path: Path) -> None:
    clock = VirtualClock(START)

    async def body() -> None:
        fleet = fleet_for(clock)
        fleet.add(Target("shop", Server(clock), "60s"))
        async with running(fleet), desk(Control(fleet), tmp_path) as client:
            for path in ("uptime", "incidents", "targets/shop/history"):
                status, message = await client.bad("GET", f"/api/fleet/{path}")
                assert status == 404
                assert "keeps no history, because it has no store. Run it with" in message

    clock.run(body())
