"""Targets of the file and of the store while a fleet runs: reloaded, defined, removed."""

from __future__ import annotations

import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pollwise.errors import ConfigError
from pollwise.fleet import Fleet, Target
from pollwise.fleet.control import CHECK_EVERY, Control
from pollwise.fleet.definitions.shown import shown_table
from pollwise.fleet.definitions.sources import (
    CHECK_FILE_EVERY,
    DefinedElsewhere,
    NoDefinition,
    TargetConflict,
    TargetSources,
)
from pollwise.fleet.definitions.stored import ANYTHING, StoredRules, StoredTables
from pollwise.fleet.definitions.table import WrongDefinition
from pollwise.fleet.file import FleetFile, read
from pollwise.fleet.stores.definitions import DefinitionConflict
from pollwise.fleet.stores.postgres.store import TABLES, PostgresFleetStore
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import FleetReloadFailed, FleetTargetsChanged, TargetPolled
from pollwise.storage.postgres.schema import script
from tests.fleet.world import fleet_for, running
from tests.support.kit import Seen
from tests.support.servers import Postgres

#: Function probes answer at once, in virtual time.
PROBE = "tests.fleet.definitions.probes:answer"
EVERY = StoredRules(may_run=True)


def function(name: str, **more: object) -> str:
    lines = {"name": name, "type": "function", "call": PROBE, **more}
    return "[[target]]\n" + "".join(f"{key} = {each!r}\n" for key, each in lines.items())


class Place:
    """A fleet with a file and a store, and virtual time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "fleet.toml"
        self.clock, self.seen, self.written = VirtualClock(), Seen(), 0

    def write(self, text: str) -> None:
        """Change the file; its time of change differs each time."""
        self.path.write_text(text)
        self.written += 1
        os.utime(self.path, ns=(self.written * 10**9, self.written * 10**9))

    async def control(self, rules: StoredRules = EVERY, **given: Any) -> Control:
        fleet = fleet_for(self.clock, self.seen, **given)
        file = read(self.path) if self.path.exists() else None
        control = Control(fleet, targets=TargetSources(fleet, file, self._again, rules))
        await control.start()
        return control

    def _again(self) -> FleetFile:
        return read(self.path)

    def store(self) -> SqliteFleetStore:
        return SqliteFleetStore(self.folder / "fleet.db", clock=self.clock)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        self.clock.run(main)

    def changes(self) -> list[tuple[int, int, int, str]]:
        return [
            (each.added, each.changed, each.removed, each.by)
            for each in self.seen.of(FleetTargetsChanged)
        ]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_changed_file_is_applied_within_seconds_and_without_a_herd(place: Place) -> None:
    place.write("".join(function(f"t{n}") for n in range(50)))

    async def main() -> None:
        control = await place.control()
        fleet = control.fleet
        async with running(fleet):
            await place.clock.advance(1000)
            before = {name: fleet.target(name).next_at for name in fleet.names()}
            place.write("".join(function(f"t{n}") for n in range(1, 50)) + function("new"))
            polls = len(place.seen.of(TargetPolled))
            while "new" not in fleet:
                await place.clock.advance(0.1)
            after = {name: fleet.target(name).next_at for name in fleet.names()}
            assert sum(after[name] == before[name] for name in after if name in before) >= 45
            assert len(place.seen.of(TargetPolled)) - polls < 10
            assert "t0" not in fleet
            assert place.changes() == [(1, 0, 1, "file")]
            await place.clock.advance(1000)
            assert len(place.seen.of(FleetTargetsChanged)) == 1  # once, not at every check

    place.run(main())


def test_a_file_that_is_still_being_written_is_not_read(place: Place) -> None:
    place.write(function("a"))

    async def main() -> None:
        control = await place.control()
        async with running(control.fleet):
            await place.clock.advance(10)
            for n in range(20):  # half a file at each check
                place.write(function("a") + f"[[target]]\nname = 'half {n}")
                await place.clock.advance(CHECK_FILE_EVERY)
            assert not place.seen.of(FleetReloadFailed)
            place.write(function("a") + function("b"))
            await place.clock.advance(3 * CHECK_FILE_EVERY)
            assert control.fleet.names() == ["a", "b"]

    place.run(main())


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("[[target]]\nname = 'a'\ntype = 'htp'\n", "type = 'htp' is not a probe type"),
        ("[[target]\n", "is not valid TOML"),
        ("", "there is no target"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_wrong_file_keeps_the_targets_and_is_reported_once(
    place: Place, wrong: str | None, told: str
) -> None:
    place.write(function("a"))

    async def main() -> None:
        control = await place.control()
        fleet = control.fleet
        async with running(fleet):
            await place.clock.advance(10)
            if wrong is None:
                place.path.unlink()
            else:
                place.write(wrong)
            await place.clock.advance(60)
            assert fleet.names() == ["a"]
            [failed] = place.seen.of(FleetReloadFailed)
            assert told in failed.error
            [problem] = fleet.state().problems
            assert told in problem
            assert "targets from before are still polled" in problem
            assert "\n" not in problem
            place.write(function("a") + function("b"))
            await place.clock.advance(10)
            assert (fleet.names(), fleet.state().problems) == (["a", "b"], [])

    place.run(main())


def test_an_order_to_reload_does_not_wait_for_the_next_check(place: Place) -> None:
    place.write(function("a"))

    async def main() -> None:
        control = await place.control()
        async with running(control.fleet):
            await place.clock.advance(10)
            began = place.clock.now()
            place.write(function("b"))
            await control.reload("SIGHUP")
            assert (control.fleet.names(), place.clock.now()) == (["b"], began)
            await place.clock.advance(60)
            assert place.changes() == [(1, 0, 1, "SIGHUP")]  # the check finds nothing new

    place.run(main())


def test_targets_are_defined_changed_and_removed_in_the_store(place: Place) -> None:
    async def main() -> None:
        store, other = place.store(), place.store()
        control = await place.control(store=store)
        fleet, targets = control.fleet, control.targets
        table = {"name": "a", "type": "function", "call": PROBE, "labels": {"x": "y"}}
        async with running(fleet):
            assert await targets.define(table, "api: me", new=True) == "a"
            assert fleet.definition("a").origin == "api"
            await place.clock.advance(100)
            assert fleet.target("a").succeeded_at is not None
            with pytest.raises(TargetConflict, match="'a' already exists"):
                await targets.define(table, "api: me", new=True)
            # By another process: applied within seconds.
            await other.define({"b": {"type": "function", "call": PROBE}}, "cli: you")
            await place.clock.advance(CHECK_EVERY * 1.1)
            assert fleet.names() == ["a", "b"]
            defined = targets.defined("b")
            assert (defined.version, defined.by) == (2, "cli: you")
            changed = {**table, "interval": "5s"}
            with pytest.raises(DefinitionConflict):
                await targets.define(changed, "api: me", version=7)
            await targets.define(changed, "api: me", version=1)
            assert fleet.target("a").succeeded_at is not None
            assert fleet.definition("a").interval is not None
            await targets.undefine("b", "api: me")
            with pytest.raises(NoDefinition, match="has no target 'b'"):
                await targets.undefine("b", "api: me")
            assert fleet.names() == ["a"]
        assert place.changes() == [
            (1, 0, 0, "api: me"), (1, 0, 0, "cli: you"), (0, 1, 0, "api: me"),
            (0, 0, 1, "api: me"),
        ]  # fmt: skip
        await store.close()
        # After a restart they are there before the first poll.
        store = place.store()
        again = await place.control(store=store)
        assert again.fleet.names() == ["a"]
        await store.close()
        await other.close()

    place.run(main())


def test_the_file_is_the_truth(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.write("[group.shop]\ntimeout = '9s'\n" + function("both", group="shop"))
    ours = {"type": "function", "call": PROBE}

    async def main() -> None:
        store = place.store()
        await store.define({"both": {**ours, "timeout": "5s"}, "mine": {**ours, "group": "shop"}})
        control = await place.control(store=store)
        fleet, targets = control.fleet, control.targets
        assert "defined in the file and in the store, so the file is used: 'both'" in caplog.text
        async with running(fleet):
            await place.clock.advance(5)
            assert (fleet.definition("both").timeout, fleet.definition("mine").timeout) == (9, 9)
            for call in (
                targets.define({**ours, "name": "both"}, "api"),
                targets.undefine("both", "api"),
            ):
                with pytest.raises(DefinedElsewhere, match=r"is defined in .*fleet\.toml"):
                    await call
            await store.define({"both": {**ours, "timeout": "6s"}})
            await place.clock.advance(5)
            assert fleet.definition("both").timeout == 9
            # A changed group changes the targets of the store that are in it, too.
            place.write("[group.shop]\ntimeout = '8s'\n" + function("other"))
            await control.reload("test")
            timeouts = {name: fleet.definition(name).timeout for name in fleet.names()}
            assert timeouts == {"both": 6, "mine": 8, "other": 30}
            with pytest.raises(WrongDefinition, match="group = 'shp' does not exist; did you mean"):
                await targets.define({**ours, "name": "x", "group": "shp"}, "api")
        await store.close()

    place.run(main())


def test_alerts_that_no_channel_hears_of_are_told_at_the_start(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    channel = "[channel.ops]\ntype = 'webhook'\nurl = 'https://hooks.example/x'\n"
    place.write(channel + function("shop", alerts=["down"]) + function("other"))

    async def main() -> None:
        control = await place.control()
        said = "nothing is sent for alerts of 'shop': their rules name no channel"
        assert said in caplog.text
        caplog.clear()
        place.write("[alerts]\nto = ['ops']\n" + channel + function("shop", alerts=["down"]))
        await control.reload("test")
        assert control.fleet.alerts.to == ("ops",)
        assert said not in caplog.text

    place.run(main())


def test_code_and_a_fleet_without_a_store_are_not_changed(place: Place) -> None:
    async def main() -> None:
        fleet: Fleet = fleet_for(place.clock)
        fleet.add(Target("mine", "tcp", options={"address": "127.0.0.1:1"}))
        control = Control(fleet)
        await control.start()
        with pytest.raises(DefinedElsewhere, match="'mine' is defined in code; change it there"):
            await control.targets.define(
                {"name": "mine", "type": "tcp", "address": "127.0.0.1:2"}, "api"
            )
        with pytest.raises(DefinedElsewhere, match=r"only .* if the fleet has a store"):
            await control.targets.define(
                {"name": "new", "type": "tcp", "address": "127.0.0.1:2"}, "api"
            )
        assert control.targets.defined("mine").table is None

    place.run(main())


def test_a_definition_that_this_node_cannot_use_harms_no_other(place: Place) -> None:
    async def main() -> None:
        store = place.store()
        control = await place.control(store=store)
        fleet = control.fleet
        async with running(fleet):
            await store.define({"a": {"type": "function", "call": PROBE}})
            await place.clock.advance(3)
            await store.define(
                {
                    "a": {"type": "function", "call": "none:none"},
                    "b": {"type": "htp"},
                    "c": {"type": "function", "call": PROBE},
                }
            )
            await place.clock.advance(3)
            assert fleet.names() == ["a", "c"]  # a as it was before
            [problem] = fleet.state().problems
            assert "2 definition(s) of the store cannot be used on this node: 'a'" in problem
            await store.define({"a": None, "b": None})
            await place.clock.advance(3)
            assert (fleet.names(), fleet.state().problems) == (["c"], [])
        await store.close()

    place.run(main())


CLOSED = StoredRules(variables=frozenset(("OPEN_KEY",)))
WEB = {"name": "x", "type": "http", "url": "http://127.0.0.1/"}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"name": "x", "type": "command", "command": "id"}, "type = 'command' can run code"),
        ({"name": "x", "type": "htp"}, r"'htp' is not a probe type; did you mean http\?$"),
        ({"name": "x", "type": "function", "call": PROBE}, "can run code on the polling"),
        ({"name": "x", "type": "sql", "url": "sqlite:///x", "query": "select 1"}, "can run code"),
        ({**WEB, "url": "http://evil.example/${SHOP_TOKEN}"}, "may not use .* SHOP_TOKEN"),
        ({**WEB, "group": "shop"}, "may not use the environment variable SHOP_TOKEN"),
        ({**WEB, "url": "http://a/${OPEN_KEY}"}, "environment variable OPEN_KEY is not set"),
        ({**WEB, "headers": {"a": "***"}}, r"'headers' has \*\*\* where a secret was hidden"),
        ({**WEB, "headers": [[[[[[[[[1]]]]]]]]]}, "'headers' is nested deeper than 6 levels"),
        ({**WEB, "interval": "x", "tiemout": 1}, "interval.*; .*tiemout is not an option"),
        ({"type": "http", "url": "http://a/"}, "name is missing"),
        ({"name": 7}, "name = 7 must be printable text"),
    ],
)
def test_what_a_definition_may_not_do(
    place: Place, monkeypatch: pytest.MonkeyPatch, table: dict[str, Any], told: str
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "s3cret-value")
    monkeypatch.delenv("OPEN_KEY", raising=False)
    place.write("[group.shop]\nheaders = {A = '${SHOP_TOKEN}'}\n" + function("a"))

    async def main() -> None:
        store = place.store()
        control = await place.control(CLOSED, store=store)
        with pytest.raises(ConfigError, match=f"(?s){told}") as caught:
            await control.targets.define(table, "api")
        assert "s3cret" not in str(caught.value)
        assert await store.definitions() == []
        await store.close()

    place.run(main())


def test_what_is_refused_is_not_imported(place: Place, tmp_path: Path) -> None:
    (tmp_path / "refused_here.py").write_text("def probe(): ...\n")

    async def main() -> None:
        store = place.store()
        control = await place.control(CLOSED, store=store)
        table = {"name": "x", "type": "function", "call": "refused_here:probe"}
        with pytest.raises(ConfigError, match="can run code"):
            await control.targets.define(table, "api")
        await store.close()

    with mock.patch.object(sys, "path", [*sys.path, str(tmp_path)]):
        place.run(main())
    assert "refused_here" not in sys.modules


def test_variables_are_kept_as_written_and_used_where_they_are_allowed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPEN_KEY", "s3cret-value")

    async def main() -> None:
        store = place.store()
        control = await place.control(CLOSED, store=store)
        table = {**WEB, "headers": {"Authorization": "Bearer ${OPEN_KEY}"}, "labels": None}
        await control.targets.define(table, "api")
        [kept] = await store.definitions()
        assert kept.table == {key: each for key, each in table.items() if key != "labels"}
        headers = control.fleet.definition("x").options["headers"]
        assert headers == {"Authorization": "Bearer s3cret-value"}
        assert "s3cret" not in repr(control.targets.defined("x"))
        await store.close()

    place.run(main())


def test_definitions_are_shown_without_secrets() -> None:
    shown = shown_table(
        {
            "name": "x",
            "type": "http",
            "url": "https://me:hunter2@a.example/p?key=hunter2",
            "headers": {"Authorization": "Bearer hunter2", "X-Key": "Bearer ${KEY}"},
            "password": "hunter2",
            "body": "pin=hunter2",
            "webhook": "https://hooks.example/hunter2",
            "put": {"queue": "redis://:hunter2@cache/0", "kind": "x"},
            "labels": {"team": "shop"},
            "interval": 5,
            "expect": ["a", "b"],
        }
    )
    assert "hunter2" not in repr(shown)
    assert shown["headers"] == {"Authorization": "***", "X-Key": "Bearer ${KEY}"}
    assert shown["url"] == "https://me:***@a.example/p?key=***"
    assert (shown["labels"], shown["interval"]) == ({"team": "shop"}, 5)
    assert shown["expect"] == ["a", "b"]


def test_the_rules_come_from_the_settings() -> None:
    assert StoredRules.of(True, " A, B\tC,") == StoredRules(True, frozenset("ABC"))
    assert StoredRules.of(False, "") == StoredRules()


def test_nodes_on_one_store_share_what_one_of_them_defines(
    place: Place, postgres: Postgres
) -> None:
    postgres.execute(script("pollwise", TABLES))

    async def main() -> None:
        stores = [PostgresFleetStore(postgres.dsn(), "shared", clock=place.clock) for _ in "ab"]
        controls = [await place.control(store=store) for store in stores]
        one, other = controls
        async with running(one.fleet), running(other.fleet):
            await place.clock.advance(20)
            for n in range(6):
                table = {"name": f"t{n}", "type": "function", "call": PROBE}
                await one.targets.define(table, "api: me", new=True)
            await place.clock.advance(CHECK_EVERY + 2)
            assert other.fleet.names() == one.fleet.names()
            held = [sum(each.fleet.is_held(f"t{n}") for n in range(6)) for each in controls]
            assert sum(held) == 6  # claimed, long before the next renewal
            await place.clock.advance(60)
            held = [sum(each.fleet.is_held(f"t{n}") for n in range(6)) for each in controls]
            assert held == [3, 3]
            assert all(each.succeeded_at for each in await stores[0].load())
            await other.targets.undefine("t0", "api: you")
            await place.clock.advance(20)
            assert "t0" not in one.fleet
            assert [each.name for each in await stores[0].load()] == [f"t{n}" for n in range(1, 6)]
        for store in stores:
            await store.close()

    place.run(main())


@pytest.mark.parametrize(
    "keys", [{"interval": "100ms"}, {"min_interval": 0.5}, {"max_interval": 0.2}]
)
def test_a_target_of_the_api_is_not_polled_more_than_once_a_second(keys: dict[str, Any]) -> None:
    table = {"name": "fast", "type": "http", "url": "https://shop.example/", **keys}
    with pytest.raises(WrongDefinition, match=r"at most every 1s.*fleet\.api_min_interval"):
        StoredTables(StoredRules(), {}).read(table)
    rules = StoredRules.of(False, None, 0.1)
    assert StoredTables(rules, {}).read(table).name == "fast"
    assert StoredTables(ANYTHING, {}).read(table).name == "fast"
    group = {key: each for key, each in table.items() if key in keys}
    inherits = {"name": "fast", "type": "http", "url": "https://shop.example/", "group": "g"}
    with pytest.raises(WrongDefinition, match="api_min_interval"):
        StoredTables(StoredRules(), {"g": group}).read(inherits)
