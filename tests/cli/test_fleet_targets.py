"""`pollwise fleet add|set|remove|diff`: targets in the store, beside those of the file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pollwise.cli.fleet.targets import tables_of
from pollwise.errors import ConfigError
from pollwise.fleet import Fleet, FleetRunOptions
from pollwise.fleet.control import Control
from pollwise.fleet.definitions.sources import TargetSources
from pollwise.fleet.file import read
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.events import Events
from tests.cli.console import Command, good, pollwise
from tests.cli.fleets import STORE
from tests.support.daemons import wait_until

FILE = """
[group.shop]
timeout = "9s"
headers = { Authorization = "Bearer ${SHOP_TOKEN}" }

[[target]]
name = "ours"
type = "tcp"
address = "127.0.0.1:1"
"""
WEB = ("type=http", "url=http://127.0.0.1:1/")


def fleet(*words: object) -> Any:
    return good("fleet", *words, "--store", STORE)


def refused(*words: object) -> str:
    result = pollwise("fleet", *words, "--store", STORE)
    assert result.code == 2, result.err
    return result.err


def definitions() -> dict[str, Any]:
    async def read_all() -> dict[str, Any]:
        store = SqliteFleetStore("fleet.db")
        found = {each.name: each.table for each in await store.definitions()}
        await store.close()
        return found

    return asyncio.run(read_all())


@pytest.fixture
def file(folder: Path) -> Path:
    path = folder / "fleet.toml"
    path.write_text(FILE)
    return path


def test_targets_are_added_changed_and_removed_in_the_store(file: Path) -> None:
    out = fleet("add", "front", *WEB, "interval=30s", "labels.team=shop", "expect=[200, 404]").out
    assert out.startswith("added: front. All polling nodes apply it within seconds")
    table = {
        "name": "front", "type": "http", "url": "http://127.0.0.1:1/", "interval": "30s",
        "labels": {"team": "shop"}, "expect": [200, 404],
    }  # fmt: skip
    assert definitions() == {"front": table}
    fleet("set", "front", "interval=", "labels.team=", "labels.env=prod", "weight=2")
    del table["interval"]
    assert definitions()["front"] == {**table, "labels": {"env": "prod"}, "weight": 2}
    listed = fleet("status", "--json").json()["target_list"]
    assert {each["name"]: each["from"] for each in listed} == {"ours": "file", "front": "api"}
    assert fleet("remove", "front").out == "removed: front\n"
    assert definitions() == {}


def test_wrong_definitions_are_refused_with_everything_that_is_wrong(file: Path) -> None:
    err = refused("add", "x", "type=http", "intervall=5s", "timeout=2h")
    assert "timeout = '2h' is above the limit" in err
    assert "intervall is not an option; did you mean interval?" in err
    assert "url is missing" in err
    assert "Nothing was changed." in err
    assert "'ours' is in fleet.toml; change it there" in refused("add", "ours", *WEB)
    assert "'ours' is in fleet.toml; change it there" in refused("set", "ours", "weight=2")
    assert "can run code on the polling machine" in refused("add", "x", "type=command", "run=id")
    assert "may not use the environment variable SHOP_TOKEN" in refused(
        "add", "x", *WEB, "group=shop"
    )
    assert "'url' is not KEY=VALUE" in refused("add", "x", "url")
    fleet("add", "x", *WEB)
    assert "'x' already exists in the store" in refused("add", "x", *WEB)
    assert "name the keys to change" in refused("set", "x")
    assert "interval = 'soon'" in refused("set", "x", "interval=soon")
    result = pollwise("fleet", "set", "y", "weight=2", "--store", STORE)
    assert (result.code, "no definition of 'y'" in result.err) == (1, True)
    assert list(definitions()) == ["x"]


def test_variables_are_kept_as_written_if_the_settings_allow_them(file: Path) -> None:
    Path("pollwise.toml").write_text('[fleet]\napi_variables = "SHOP_TOKEN, OTHER"\n')
    fleet("add", "x", "group=shop", *WEB, "regex=${OTHER}")
    assert definitions()["x"]["regex"] == "${OTHER}"


def test_words_become_tables() -> None:
    words = ["a=1", "b=1.5", "c=true", 'd="x"', "e=2026-01-01", "f=inf", "g={x=1}", "h=${X}"]
    assert tables_of(words) == {
        "a": 1, "b": 1.5, "c": True, "d": "x", "e": "2026-01-01", "f": "inf", "g": {"x": 1},
        "h": "${X}",
    }  # fmt: skip
    assert tables_of(["a=b=c", "u=http://x/?a=1#b"]) == {"a": "b=c", "u": "http://x/?a=1#b"}
    for wrong in (["=1"], ["a..b=1"], ["a=1", "a.b=1"], ["a="]):
        with pytest.raises(ConfigError):
            tables_of(wrong)


def polled() -> None:
    """A node that has polled, with the file and the store as they are now."""

    async def main() -> None:
        store = SqliteFleetStore("fleet.db")
        polls = Fleet(FleetRunOptions(signals=False), store=store, events=Events(quiet=True))
        control = Control(
            polls, targets=TargetSources(polls, read("fleet.toml", {"SHOP_TOKEN": "x"}))
        )
        await control.start()
        polls.chore("stop", 0.0, _stopping(polls))
        await polls.run()
        await store.close()

    asyncio.run(main())


def _stopping(polls: Fleet) -> Any:
    async def stop() -> None:
        polls.stop()

    return stop


def test_diff_tells_the_definitions_from_what_is_polled(file: Path) -> None:
    fleet("add", "stored", *WEB, "weight=2")
    polled()
    result = good("fleet", "diff", "--store", STORE)
    assert "nothing differs" in result.out
    assert "no node polls this fleet" in result.err
    file.write_text(
        FILE.replace("9s", "8s").replace("127.0.0.1:1", "127.0.0.1:2")
        + '[[target]]\nname = "new"\ntype = "tcp"\naddress = "127.0.0.1:3"\n'
    )
    fleet("set", "stored", "weight=3", "interval=5s")
    fleet("add", "more", *WEB)
    result = pollwise("fleet", "diff", "--store", STORE)
    assert result.code == 1
    assert result.out.splitlines() == [
        "+ more", "+ new", "~ ours: address", "~ stored: interval, weight",
    ]  # fmt: skip
    fleet("remove", "stored")
    file.write_text(FILE.replace('"ours"', '"more"'))
    result = pollwise("fleet", "diff", "--store", STORE, "--json")
    assert (result.code, json.loads(result.out)) == (
        1,
        {"same": False, "added": ["more"], "removed": ["ours"], "changed": {}, "twice": ["more"]},
    )
    file.write_text("[[target]]\n")
    assert "name is missing" in refused("diff")


def test_a_running_fleet_without_a_file_takes_what_is_added(folder: Path) -> None:
    with Command("fleet", "run", "--store", STORE) as command:
        command.err.until("fleet_started .*targets=0")
        fleet("add", "front", *WEB, "interval=1s")
        command.err.until("fleet_targets_changed .*added=1.*targets=front by='cli: ")

        def failures() -> int:
            return int(fleet("status", "front", "--json").json()[0]["failures"])

        wait_until(lambda: failures() > 0, "a poll", within=30)
        fleet("remove", "front")
        command.err.until("fleet_targets_changed .*removed=1")
        assert command.stopped() == 0
