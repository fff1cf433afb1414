"""Maintenance windows of a fleet: by its file, its API and its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pollwise.fleet import Target
from pollwise.fleet.control import Control
from pollwise.fleet.file import FleetFileError, read_text
from pollwise.fleet.fleet import MAINTENANCE_EVERY
from pollwise.fleet.maintenance import MaintenanceBook
from pollwise.fleet.stores.postgres.store import PostgresFleetStore
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.clock import VirtualClock
from tests.fleet.test_api import desk, in_virtual_time
from tests.fleet.world import Watch, fleet_for, running
from tests.support.servers import Postgres

TARGET = '[[target]]\nname = "front"\ntype = "command"\nrun = ["true"]\ngroup = "shop"\n'
HOURS = 'every = "Sat,Sun 02:00-04:00 Europe/Zurich"\n'


def test_a_file_has_windows() -> None:
    text = f'{TARGET}\n[[maintenance]]\ngroups = ["shop"]\n{HOURS}\n[[maintenance]]\nall = true\n'
    text += "start = 2026-12-24T22:00:00+01:00\nend = 2026-12-25T02:00:00+01:00\nnote = 'n'\n"
    first, second = read_text(text, environment={}).maintenance
    assert (first.id, first.groups, first.from_file) == ("file-1", ("shop",), True)
    assert (second.id, second.note) == ("file-2", "n")
    assert second.ends_at == pytest.approx(1_798_160_400)
    assert read_text(text, environment={}).maintenance == (first, second)


def test_all_errors_of_windows_are_told_with_their_lines() -> None:
    text = f'{TARGET}\n[[maintenance]]\ntargets = ["frnt"]\nevery = "Sut 02:00-04:00"\n\n'
    text += f'[[maintenance]]\ngroups = ["shp"]\n{HOURS}\n[[maintenence]]\n'
    with pytest.raises(FleetFileError) as refused:
        read_text(text, environment={})
    assert [line for line, _ in refused.value.problems] == [None, 7, 7, 11]
    said = str(refused.value)
    assert "maintenence is not known; write [[maintenance]]" in said
    assert "maintenance: targets: there is no target 'frnt'; did you mean 'front'" in said
    assert "'Sut' is not a day" in said
    assert "there is no group 'shp'; did you mean 'shop'" in said
    with pytest.raises(FleetFileError, match=r"write \[\[maintenance\]\]"):
        read_text(f"maintenance = 3\n{TARGET}", environment={})


@pytest.mark.parametrize("stored", [True, False])
def test_windows_by_the_api(tmp_path: Path, stored: bool) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        store = SqliteFleetStore(tmp_path / "fleet.db", clock=clock) if stored else None
        fleet = fleet_for(clock, store=store)
        fleet.add(Target("front", watch.probe(), "10s", group="shop"))
        async with running(fleet), desk(Control(fleet), tmp_path) as client:
            where = "/api/fleet/maintenance"
            made = await client.good("POST", where, {"groups": ["shop"], "for": "2h", "note": "n"})
            until = clock.epoch() + 7200
            assert made["active_until"] == pytest.approx(until)
            assert fleet.maintenance.covers("front", "shop", clock.epoch()) == pytest.approx(until)
            await clock.advance(1)
            later = await client.good("POST", where, {"all": True, "every": "Sun 02:00-04:00"})
            listed = (await client.good("GET", where))["windows"]
            assert [each["id"] for each in listed] == [made["id"], later["id"]]
            ended = await client.good("POST", f"{where}/{made['id']}/end")
            assert ended["active_until"] is None
            assert fleet.maintenance.covers("front", "shop", clock.epoch()) is None
            await client.good("DELETE", f"{where}/{made['id']}")
            assert len((await client.good("GET", where))["windows"]) == 1
            if stored:
                entries = (await client.good("GET", "/api/fleet/audit"))["entries"]
                actions = [each["action"] for each in entries]
                assert actions == [
                    f"maintenance.{each}" for each in ("remove", "end", "add", "add")
                ]
        if store is not None:
            await store.close()

    in_virtual_time(main)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("POST", "", {"targets": ["frnt"], "for": "1h"}, 400, "did you mean 'front'"),
        ("POST", "", {"all": True, "for": "1h", "x": 1}, 400, "'x' is not known"),
        ("POST", "", {}, 400, "give every, or end, or for"),
        ("POST", "/nothing/end", None, 404, "no maintenance window 'nothing'"),
        ("DELETE", "/nothing", None, 404, "GET /api/fleet/maintenance lists"),
        ("DELETE", "/file-1", None, 400, "is in the fleet's file"),
        ("PUT", "", {}, 405, ""),
    ],
)
def test_a_wrong_window_gets_a_reason(
    tmp_path: Path, method: str, path: str, body: Any, status: int, error: str
) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        fleet = fleet_for(clock)
        fleet.add(Target("front", watch.probe(), "10s", group="shop"))
        written = f'{TARGET}[[maintenance]]\ngroups = ["shop"]\n{HOURS}'
        fleet.maintenance.set_file(read_text(written, environment={}).maintenance)
        async with desk(Control(fleet), tmp_path) as client:
            address = f"/api/fleet/maintenance{path}"
            found = await client.bad(method, address, body)
            assert found[0] == status
            assert error in found[1]
            assert (await client.bad("GET", address.partition("/n")[0], token="wrong"))[0] == 401

    in_virtual_time(main)


def test_all_nodes_see_a_window_within_seconds(postgres: Postgres) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        stores = [PostgresFleetStore(postgres.dsn(), "windows", clock=clock) for _ in range(2)]
        await stores[0].migrate()
        fleets = [fleet_for(clock, store=each, node=str(each)) for each in stores]
        for fleet in fleets:
            fleet.add(Target("front", watch.probe(), "10s"))
        async with running(fleets[0]), running(fleets[1]):
            book = MaintenanceBook(fleets[0].store, fleets[0].maintenance)
            table = {"all": True, "for": "1h"}
            await book.add(table, "me", clock.epoch(), targets=(), groups=())
            assert fleets[0].maintenance.covers("front", None, clock.epoch()) is not None
            await clock.advance(2 * MAINTENANCE_EVERY)
            assert fleets[1].maintenance.covers("front", None, clock.epoch()) is not None
        for each in stores:
            await each.close()

    in_virtual_time(main)
