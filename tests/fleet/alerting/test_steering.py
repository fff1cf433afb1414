"""Alerts as operators meet them: by the file, when it changes, and by the API."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pollwise.alerts.rules import AlertRule
from pollwise.alerts.values import Notice
from pollwise.errors import ConfigError, ProbeError
from pollwise.fleet import Fleet, Target
from pollwise.fleet.control import Control
from pollwise.fleet.definitions.sources import TargetConflict, TargetSources
from pollwise.fleet.definitions.stored import StoredRules
from pollwise.fleet.file import read
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.clock import VirtualClock
from tests.fleet.alerting.kit import Noted, Switches, fleet_with, until
from tests.fleet.test_api import desk, in_virtual_time
from tests.fleet.world import Watch, fleet_for, running

HERE = "tests.fleet.alerting.test_steering"
broken: set[str] = set()
got: list[tuple[str, str, str]] = []


async def probe(target: Target) -> str:
    if target.name in broken:
        raise ProbeError("no answer")
    return "fine"


async def first(notice: Notice) -> None:
    got.append(("first", notice.target, notice.event))


async def second(notice: Notice) -> None:
    got.append(("second", notice.target, notice.event))


def written(to: str, *, alerts: str = '["down"]', channel: str = "first") -> str:
    targets = "".join(
        f'[[target]]\nname = "{name}"\ntype = "function"\ncall = "{HERE}:probe"\n'
        f'interval = "10s"\ngroup = "g"\n'
        for name in ("a", "b")
    )
    return (
        f'[channel.{to}]\ntype = "function"\ncall = "{HERE}:{channel}"\n'
        f'[alerts]\nto = "{to}"\n[group.g]\nalerts = {alerts}\n{targets}'
    )


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    broken.clear()
    got.clear()
    return tmp_path


def test_a_changed_file_changes_channels_and_rules_while_the_fleet_runs(folder: Path) -> None:
    path = folder / "fleet.toml"
    times = iter(range(1, 100))

    def write(text: str) -> None:
        path.write_text(text)
        at = next(times) * 10**9
        os.utime(path, ns=(at, at))

    async def main(clock: VirtualClock, watch: Watch) -> None:
        write(written("one"))
        store = SqliteFleetStore(folder / "fleet.db", clock=clock)
        fleet = fleet_for(clock, store=store)
        sources = TargetSources(fleet, read(path), lambda: read(path))
        await sources.start()
        async with running(fleet):
            await clock.advance(30)
            broken.add("a")
            await until(lambda: ("first", "a", "opened") in got)
            write(written("two", channel="second"))
            await until(lambda: "two" in fleet.alerts.channels)
            broken.add("b")
            await until(lambda: ("second", "b", "opened") in got)
            # A file that is wrong changes nothing.
            write(written("three", alerts='[{ when = "down", to = "nobody" }]'))
            await until(lambda: fleet.problems)
            assert "no channel 'nobody'" in str(fleet.problems)
            assert set(fleet.alerts.channels) == {"two"}
            broken.clear()
            await until(lambda: ("second", "b", "closed") in got)
            channels = fleet.alerts.channels["two"]
            write(f"{written('two', channel='second')}# only a remark\n")
            await until(lambda: not fleet.problems)
            assert fleet.alerts.channels["two"] is channels
        await store.close()

    in_virtual_time(main)
    assert got.count(("first", "a", "opened")) == 1
    assert got.count(("second", "b", "opened")) == 1


async def opened(fleet: Fleet, switches: Switches, channel: Noted) -> None:
    fleet.add(Target("front", switches, "10s", group="shop", alerts=["down"]))
    switches.fail("front")
    await until(lambda: channel.of("opened"))


@pytest.mark.parametrize("stored", [True, False])
def test_alerts_are_listed_and_acknowledged_by_the_api(folder: Path, stored: bool) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        store = SqliteFleetStore(folder / "fleet.db", clock=clock) if stored else None
        channel, switches = Noted(), Switches()
        fleet = fleet_with(clock, channel, store=store)
        async with running(fleet), desk(Control(fleet), folder) as client:
            await opened(fleet, switches, channel)
            listed = (await client.good("GET", "/api/fleet/alerts"))["alerts"]
            (alert,) = listed
            assert (alert["target"], alert["state"], alert["when"]) == ("front", "open", "down")
            where = f"/api/fleet/alerts/{alert['id']}"
            assert (await client.good("GET", where))["id"] == alert["id"]
            known = await client.good("POST", f"{where}/acknowledge", {"note": "disk"})
            assert (known["acknowledged_by"], known["note"]) == ("token", "disk")
            for query in ("?group=none", "?target=none", "?state=closed"):
                assert (await client.good("GET", f"/api/fleet/alerts{query}"))["alerts"] == []
            switches.restore("front")
            await until(lambda: channel.of("closed"))
            (alert,) = (await client.good("GET", "/api/fleet/alerts?state=all&limit=1"))["alerts"]
            assert (alert["state"], alert["note"]) == ("closed", "disk")
            assert alert["lasted"] > 0
            code, said = await client.bad("POST", f"{where}/acknowledge")
            assert (code, "is closed already" in said) == (409, True)
            if stored:
                entries = (await client.good("GET", "/api/fleet/audit"))["entries"]
                assert [(each["action"], each["what"]) for each in entries] == [
                    ("alert.acknowledge", "front: down")
                ]
        if store is not None:
            await store.close()

    in_virtual_time(main)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("GET", "?state=opne", None, 400, "must be open, closed or all"),
        ("GET", "?limit=0", None, 400, "limit"),
        ("GET", "?limit=5000", None, 400, "limit"),
        ("GET", "?stat=open", None, 400, "stat"),
        ("GET", "/nothing", None, 404, "there is no alert 'nothing'"),
        ("POST", "/nothing/acknowledge", {}, 404, "there is no alert 'nothing'"),
        ("POST", "/nothing/acknowledge", {"nte": ""}, 400, "'nte' is not known"),
        ("POST", "/nothing/acknowledge", {"note": 3}, 400, "note = 3 must be text"),
    ],
)
def test_a_wrong_request_gets_a_reason(
    folder: Path, method: str, path: str, body: Any, status: int, error: str
) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        async with desk(Control(fleet_for(clock)), folder) as client:
            found = await client.bad(method, f"/api/fleet/alerts{path}", body)
            assert found[0] == status
            assert error in found[1]
            refused = await client.bad("GET", "/api/fleet/alerts", token="wrong")
            assert refused[0] == 401

    in_virtual_time(main)


def test_a_notice_waits_for_the_quiet_hours_of_its_rule_and_of_its_channel() -> None:
    midnight = 1_767_225_600.0
    clock = VirtualClock(midnight)

    async def main() -> None:
        awake, asleep, switches = Noted("awake"), Noted("asleep", quiet="01:00-02:00"), Switches()
        fleet = fleet_with(clock, awake, asleep)
        late = AlertRule("down", quiet="00:00-01:30")
        fleet.add(Target("front", switches, "10s", alerts=[late]))
        fleet.add(Target("back", switches, "10s", alerts=["down"]))
        switches.fail("front", "back")
        async with running(fleet):
            await clock.advance(3 * 3600)
        sent = {
            (channel.name, notice.target): round(at / 3600, 1)
            for channel in (awake, asleep)
            for at, notice in channel.sent
        }
        assert sent == {
            ("awake", "front"): 1.5, ("asleep", "front"): 2.0,
            ("awake", "back"): 0.0, ("asleep", "back"): 0.0,
        }  # fmt: skip

    clock.run(main())


def test_quiet_hours_that_leave_no_time_free_do_not_hold_a_notice_for_ever() -> None:
    clock = VirtualClock(1_767_225_600.0)

    async def main() -> None:
        channel, switches = Noted(quiet="00:00-12:00"), Switches()
        fleet = fleet_with(clock, channel)
        fleet.add(Target("front", switches, "10s", alerts=[AlertRule("down", quiet="12:00-00:00")]))
        switches.fail("front")
        async with running(fleet):
            await clock.advance(600)
        assert channel.events == [("front", "opened")]

    clock.run(main())


# Targets of the store


def defined(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "function", "call": f"{HERE}:probe", "interval": "10s", **more}


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"alerts": [{"when": "down", "to": "nobody"}]}, "no channel 'nobody'"),
        ({"behind": "nobody"}, "behind = 'nobody' is not a target"),
        ({"behind": "b", "alerts": ["dwon"]}, "dwon"),
    ],
)
def test_a_wrong_definition_is_refused_before_it_is_kept(
    folder: Path, more: Any, error: str
) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        store = SqliteFleetStore(folder / "fleet.db", clock=clock)
        sources = TargetSources(fleet_for(clock, store=store), rules=StoredRules(may_run=True))
        await sources.start()
        with pytest.raises(ConfigError, match=error):
            await sources.define(defined("a", **more), "me")
        assert await store.definitions() == []
        await store.close()

    in_virtual_time(main)


def test_a_definition_that_cannot_be_used_does_not_stop_the_others(folder: Path) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        store = SqliteFleetStore(folder / "fleet.db", clock=clock)
        fleet = fleet_for(clock, store=store)
        kept = [
            defined("good"),
            defined("mute", alerts=[{"when": "down", "to": "nobody"}]),
            defined("child", behind="router"),
            defined("grandchild", behind="child"),
            defined("x", behind="y"),
            defined("y", behind="x"),
        ]
        await store.define({each["name"]: each for each in kept}, "another process")
        sources = TargetSources(fleet, rules=StoredRules(may_run=True))
        await sources.start()
        assert fleet.names() == ["good"]
        assert "5 definition(s)" in str(fleet.problems)
        async with running(fleet):
            await sources.define(defined("router"), "me")  # now they are behind a target
            assert fleet.names() == ["child", "good", "grandchild", "router"]
            with pytest.raises(TargetConflict, match="'child' is behind 'router'"):
                await sources.undefine("router", "me")
            await store.define({"router": None}, "another process")
            await sources.check_store()
            assert "router" in fleet
            assert "'child' is behind it" in str(fleet.problems)
        await store.close()

    in_virtual_time(main)
