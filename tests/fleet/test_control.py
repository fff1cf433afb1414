"""Orders for and settings of a running fleet: applied, kept, taken by the polling node."""

from __future__ import annotations

import itertools
import logging
import os
import sqlite3
from collections.abc import Mapping
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.errors import ConfigError, StoreError
from pollwise.fleet import Fleet, GroupPace, Target
from pollwise.fleet.control import CHECK_EVERY, Control, NoSuchTarget
from pollwise.fleet.stores.base import SavedTarget
from pollwise.fleet.stores.postgres.store import TABLES, PostgresFleetStore
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import FleetOrdered, FleetSettingsChanged, action_of
from pollwise.settings import Settings, load
from pollwise.storage.postgres.schema import script
from tests.fleet.world import Watch, fleet_for, running
from tests.support.kit import Seen
from tests.support.proxy import Proxy
from tests.support.servers import Postgres

fleets = (f"control {number}" for number in itertools.count())


def loader(environ: dict[str, str] | None = None) -> Any:
    def again(stored: Mapping[str, Any], where: str) -> Settings:
        return load(None, environ or {}, stored=stored, stored_in=where)

    return again


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def every(watch: Watch, name: str, since: float) -> list[float]:
    """The gaps between polls of a target since then."""
    at = [each for each in watch.at[name] if each >= since]
    return [round(after - before, 6) for before, after in itertools.pairwise(at)]


def test_switched_off_while_it_runs_each_target_goes_at_its_base_interval() -> None:
    clock, watch = VirtualClock(), Watch()

    async def main() -> None:
        fleet = fleet_for(clock)
        fleet.add(
            Target("plain", watch.probe()),
            Target("own", watch.probe(), base_interval="7s", min_interval="5s"),
            Target("fixed", watch.probe(), "13s"),
        )
        control = Control(fleet, loader())
        await control.start()
        async with running(fleet):
            await clock.advance(2000)
            assert max(every(watch, "plain", 1000)) > 30  # it learned that nothing changes
            began = clock.now()
            await control.change(None, {"enabled": False})
            await clock.advance(500)
            assert next(at for at in watch.at["plain"] if at > began) - began <= 10
            assert set(every(watch, "plain", began)) == {10.0}
            assert set(every(watch, "own", began)) == {7.0}
            assert set(every(watch, "fixed", 0)) == {13.0}
            await control.change(None, {"enabled": None})
            await clock.advance(3000)
            assert max(every(watch, "plain", clock.now() - 1500)) > 30  # nothing was forgotten

    clock.run(main())
    assert not watch.wrong


def test_only_a_group_is_switched() -> None:
    clock, watch = VirtualClock(), Watch()

    async def main() -> None:
        fleet = fleet_for(clock)
        fleet.add(
            Target("a", watch.probe(), group="canary"), Target("b", watch.probe(), group="rest")
        )
        control = Control(fleet, loader())
        await control.start()
        async with running(fleet):
            await clock.advance(2000)
            await control.change("canary", {"enabled": False, "base_interval": "20s"})
            began = clock.now()
            await clock.advance(400)
            assert set(every(watch, "a", began)) == {20.0}
            assert len(every(watch, "b", began)) < 15

    clock.run(main())


def test_a_change_of_pace_never_delays_a_poll_and_spreads_earlier_ones() -> None:
    clock, watch = VirtualClock(), Watch()

    async def main() -> None:
        fleet = fleet_for(clock, strategy=Fixed("1h"))
        fleet.add(*(Target(f"t{n}", watch.probe()) for n in range(100)))
        async with running(fleet):
            await clock.advance(10)
            before = {each.name: each.next_at for each in fleet.state().target_list}
            fleet.pace({None: GroupPace(Fixed("10s"))})
            after = {each.name: each.next_at for each in fleet.state().target_list}
            assert all((after[name] or 0) <= (before[name] or 0) for name in before)
            assert max(each or 0 for each in after.values()) <= clock.epoch() + 10
            fleet.pace({None: GroupPace(Fixed("2h"))})
            assert {each.name: each.next_at for each in fleet.state().target_list} == after
            assert len({round(each or 0, 1) for each in after.values()}) > 50

    clock.run(main())


def test_paces_hold_for_targets_added_before_and_after() -> None:
    clock, watch = VirtualClock(), Watch()

    async def main() -> None:
        fleet = fleet_for(clock)
        fleet.add(Target("before", watch.probe(), group="g"))
        fleet.pause("before")
        fleet.pace({"g": GroupPace(Freshness("20s", "15s", "60s"))})
        async with running(fleet):
            fleet.add(Target("after", watch.probe(), group="g"))
            assert fleet.target("before").paused
            fleet.resume("before")
            await clock.advance(300)
            assert min(every(watch, "before", 0) + every(watch, "after", 0)) >= 14

    clock.run(main())


def test_changes_survive_a_restart_and_the_environment_overrides_them(folder: Path) -> None:
    clock, watch = VirtualClock(), Watch()

    async def once(environ: dict[str, str], changes: dict[str, Any] | None) -> list[dict[str, Any]]:
        store = SqliteFleetStore(folder / "fleet.db")
        fleet = fleet_for(clock, store=store)
        fleet.add(Target("a", watch.probe()))
        control = Control(fleet, loader(environ))
        await control.start()
        async with running(fleet):
            if changes is not None:
                await control.change(None, changes)
            await clock.advance(5)
        await store.close()
        return control.polling()

    async def main() -> None:
        await once({}, {"enabled": False, "base_interval": "8s"})
        told = {each["key"]: each for each in await once({}, None)}
        assert told["fleet.polling.enabled"]["value"] == "false"
        assert "fleet.db" in told["fleet.polling.base_interval"]["from"]
        variable = "POLLWISE_FLEET_POLLING_BASE_INTERVAL"
        told = {each["key"]: each for each in await once({variable: "9s"}, None)}
        assert told["fleet.polling.base_interval"]["value"] == "9s"
        assert variable in told["fleet.polling.base_interval"]["from"]

    clock.run(main())


def test_a_change_that_contradicts_itself_changes_nothing(folder: Path) -> None:
    clock = VirtualClock()

    async def main() -> None:
        store = SqliteFleetStore(folder / "fleet.db")
        fleet = fleet_for(clock, store=store)
        control = Control(fleet, loader())
        await control.start()
        with pytest.raises(ConfigError, match="is above"):
            await control.change(None, {"min_interval": "1h"})
        with pytest.raises(ConfigError, match="'floor' cannot be changed"):
            await control.change(None, {"floor": "1s"})
        with pytest.raises(ConfigError, match="paced by its code"):
            await Control(fleet).change(None, {"enabled": False})
        assert await store.settings() == {}
        await store.close()

    clock.run(main())


def test_orders_left_in_the_store_are_taken_within_seconds(folder: Path) -> None:
    clock, watch = VirtualClock(), Watch()

    async def main() -> None:
        store, person = (SqliteFleetStore(folder / "fleet.db") for _ in range(2))
        fleet = fleet_for(clock, store=store)
        fleet.add(*(Target(name, watch.probe(), "10s") for name in "ab"))
        Control(fleet, loader())
        async with running(fleet):
            await clock.advance(15)
            await person.order("pause", ["a", "gone"])
            await person.order("nonsense", ["b"])
            await person.keep_settings({"fleet.polling.enabled": False})
            await clock.advance(CHECK_EVERY + 0.1)
            assert fleet.target("a").paused
            assert not fleet.target("b").paused
            polls = len(watch.at["a"])
            await clock.advance(60)
            assert len(watch.at["a"]) == polls
            await person.order("poll-now", ["a"])
            await clock.advance(CHECK_EVERY + 0.1)
            assert len(watch.at["a"]) == polls + 1
        await store.close()
        await person.close()

    clock.run(main())


def test_orders_are_reported_with_who_gave_them(folder: Path) -> None:
    clock, watch, seen = VirtualClock(), Watch(), Seen()

    async def main() -> None:
        store, person = (SqliteFleetStore(folder / "fleet.db") for _ in range(2))
        fleet = fleet_for(clock, seen, store=store)
        names = [f"t{number:02}" for number in range(30)]
        fleet.add(*(Target(name, watch.probe(), "10s", group="g") for name in names))
        control = Control(fleet, loader())
        await control.start()
        async with running(fleet):
            await clock.advance(5)
            await control.order("pause", ["t01", "t02"], "view: anna")
            await control.change("g", {"enabled": False, "base_interval": "20s"}, "api: bob")
            await person.order("resume", ["t02", "gone"], "cli: carl@box")
            await person.order("poll-now", names, "cli: carl@box")
            await person.keep_settings({"fleet.groups.g.polling.enabled": None})
            await clock.advance(CHECK_EVERY + 0.1)
            await clock.advance(60)  # nothing is told twice
        await store.close()
        await person.close()

    clock.run(main())
    assert [(each.order, each.targets, each.count, each.by) for each in seen.of(FleetOrdered)] == [
        ("pause", ("t01", "t02"), 2, "view: anna"),
        ("resume", ("t02",), 1, "cli: carl@box"),
        ("poll-now", tuple(f"t{number:02}" for number in range(20)), 30, "cli: carl@box"),
    ]
    key = "fleet.groups.g.polling"
    assert [(each.changes, each.by) for each in seen.of(FleetSettingsChanged)] == [
        ((f"{key}.enabled=False", f"{key}.base_interval='20s'"), "api: bob"),
        ((f"{key}.enabled=",), "another process"),
    ]
    assert action_of(FleetOrdered) == "fleet_ordered"
    assert FleetOrdered.level == FleetSettingsChanged.level == logging.INFO  # so they are logged


@pytest.mark.parametrize(
    ("group", "changes", "said"),
    [
        (
            None,
            {"min_intervall": "1s"},
            ["'min_intervall' cannot be changed; did you mean min_interval?"],
        ),
        (None, {"enabld": 1}, ["did you mean enabled? these can: enabled, base_interval"]),
        (None, {"budget": 1}, ["'budget' cannot be changed; these can: enabled,"]),
        (None, {"enabled": "perhaps"}, ["enabled = 'perhaps' must be true or false"]),
        (None, {"base_interval": "soon"}, ["base_interval = 'soon' is not a duration; give"]),
        (None, {"base_interval": -1}, ["base_interval = -1 must be"]),
        (None, {"base_interval": [1]}, ["base_interval = […] is a list"]),
        (
            None,
            {"enabled": 3, "max_interval": {}, "ceiling": 1},  # all at once
            ["enabled = 3 must", "max_interval = {…} is a dict", "'ceiling' cannot"],
        ),
        (
            None,
            {"min_interval": "1h"},
            ["min_interval = '1h' is above fleet.polling.max_interval = 5m (default); lower"],
        ),
        (
            "g",
            {"base_interval": "1h"},
            ["base_interval = '1h' must be from min_interval = 5s (as for all targets) to"],
        ),
        ("h", {"enabled": True}, ["group = 'h': no target is in a group 'h'; there are 'g', 'new"]),
        ("nwe", {"enabled": 3}, ["did you mean 'new'?", "enabled = 3 must be true or false"]),
    ],
)
def test_a_change_that_is_refused_names_the_field_the_value_and_what_is_allowed(
    group: str | None, changes: dict[str, Any], said: list[str]
) -> None:
    clock, watch, seen = VirtualClock(), Watch(), Seen()

    async def main() -> None:
        fleet = fleet_for(clock, seen)
        fleet.add(Target("a", watch.probe(), "10s", group="g"))
        control = Control(fleet, loader(), groups=["new"])
        await control.start()
        with pytest.raises(ConfigError) as told:
            await control.change(group, changes)
        for each in said:
            assert each in str(told.value)
        assert "kept in" not in str(told.value)  # it is not
        assert {each["from"] for each in control.polling()} == {"default"}  # nothing changed
        # A group may be given settings before its first target; and what is gone, taken back.
        await control.change("new", {"enabled": False})
        await control.change("gone", {"enabled": None})

    clock.run(main())
    assert len(seen.of(FleetSettingsChanged)) == 2


def test_orders_given_while_nothing_runs_are_read_before_the_first_poll(folder: Path) -> None:
    clock, watch = VirtualClock(), Watch()

    async def main() -> None:
        store, person = (SqliteFleetStore(folder / "fleet.db") for _ in range(2))
        await store.save([SavedTarget(name, due=1.0, interval=10.0) for name in "ab"])
        await person.order("pause", ["a"])
        await person.order("close-breaker", ["b"])
        fleet = fleet_for(clock, store=store)
        fleet.add(*(Target(name, watch.probe(), "10s") for name in "ab"))
        Control(fleet, loader())
        async with running(fleet):
            await clock.advance(30)
            assert fleet.target("a").paused
            assert not watch.at.get("a")
            assert watch.at["b"]
        await store.close()
        await person.close()

    clock.run(main())


def test_a_run_that_was_declared_dead_gives_way(folder: Path) -> None:
    clock, watch = VirtualClock(), Watch()

    async def main() -> None:
        store, other = (SqliteFleetStore(folder / "fleet.db") for _ in range(2))
        fleet = fleet_for(clock, store=store)
        fleet.add(Target("a", watch.probe(), "10s"))
        with pytest.raises(StoreError, match="use Postgres for several nodes"):
            async with running(fleet):
                await clock.advance(15)
                with pytest.raises(StoreError, match=rf"another process \(pid {os.getpid()}, host"):
                    await other.enter()
                with closing(sqlite3.connect(folder / "fleet.db")) as connection, connection:
                    connection.execute("UPDATE pollwise_fleet_runs SET at = at - 31")
                await other.enter()
                await clock.advance(15)
                polls = len(watch.at["a"])
                await clock.advance(60)
                assert len(watch.at["a"]) == polls
        await store.close()
        await other.enter()
        await other.close()

    clock.run(main())


def test_an_order_for_an_unknown_target_changes_nothing() -> None:
    clock, watch = VirtualClock(), Watch()

    async def main() -> None:
        fleet = fleet_for(clock)
        fleet.add(Target("a", watch.probe()))
        control = Control(fleet)
        async with running(fleet):
            with pytest.raises(NoSuchTarget, match="'b'"):
                await control.order("pause", ["a", "b"])
            assert not fleet.target("a").paused
            with pytest.raises(ConfigError, match="not one of retry, close-breaker"):
                await control.order("explode", ["a"])

    clock.run(main())


# Several nodes, in virtual time, on a real server


def nodes(dsn: str, clock: VirtualClock, watch: Watch, count: int, **given: Any) -> list[Fleet]:
    name = next(fleets)
    made = []
    for number in range(2):
        store = PostgresFleetStore(dsn, name, clock=clock)
        fleet = fleet_for(clock, store=store, node=f"n{number}", **given)
        fleet.add(*(Target(f"t{n:02}", watch.probe(takes=0.01)) for n in range(count)))
        made.append(fleet)
    return made


async def closed(made: list[Fleet]) -> None:
    for fleet in made:
        assert fleet.store is not None
        await fleet.store.close()


def test_nodes_share_the_budget_and_an_order_reaches_the_node_that_polls(
    postgres: Postgres,
) -> None:
    postgres.execute(script("pollwise", TABLES))
    clock, watch = VirtualClock(), Watch()

    async def main() -> None:
        both = nodes(postgres.dsn(), clock, watch, 20, budget=2.0)
        controls = [Control(fleet) for fleet in both]
        async with AsyncExitStack() as stack:
            for fleet in both:
                await stack.enter_async_context(running(fleet))
            await clock.advance(100)
            assert [sum(each.held for each in one.state().target_list) for one in both] == [
                10,
                10,
            ]
            began = clock.now()
            await clock.advance(200)
            polls = sum(at >= began for times in watch.at.values() for at in times)
            assert polls == pytest.approx(2.0 * 200, rel=0.15)
            theirs = next(each.name for each in both[1].state().target_list if each.held)
            await controls[0].order("pause", [theirs])
            await clock.advance(CHECK_EVERY + 0.5)
            assert both[1].target(theirs).paused
        await closed(both)

    clock.run(main())
    assert not watch.wrong


def test_a_pause_goes_with_the_target_to_the_next_node(postgres: Postgres) -> None:
    postgres.execute(script("pollwise", TABLES))
    clock, watch = VirtualClock(), Watch()

    async def main() -> None:
        first, second = nodes(postgres.dsn(), clock, watch, 4)
        async with running(first):
            await clock.advance(5)
            first.pause("t00")
            await clock.advance(2)
        polls = len(watch.at["t00"])
        async with running(second):
            await clock.advance(100)
            assert second.target("t00").paused
            assert len(watch.at["t00"]) == polls
            assert len(watch.at["t01"]) > 3
        await closed([first, second])

    clock.run(main())


def test_a_claim_whose_answer_is_lost_is_made_again(postgres: Postgres) -> None:
    postgres.execute(script("pollwise", TABLES))
    clock, watch = VirtualClock(), Watch()

    async def main() -> None:
        with Proxy(postgres.port) as proxy:
            store = PostgresFleetStore(proxy.through(postgres.dsn()), next(fleets), clock=clock)
            fleet = fleet_for(clock, store=store)
            fleet.add(Target("a", watch.probe(), "10s"))
            async with running(fleet):
                await clock.advance(30)
                fleet.add(Target("b", watch.probe(), "10s"))
                proxy.lose_answer(to=b"fleet_claim")
                await clock.advance(60)
                assert len(watch.at["b"]) >= 3
            await store.close()

    clock.run(main())


def test_a_node_that_cannot_reach_the_store_stops_polling_in_time_and_goes_on_later(
    postgres: Postgres,
) -> None:
    postgres.execute(script("pollwise", TABLES))
    clock, watch = VirtualClock(), Watch()

    async def main() -> None:
        with Proxy(postgres.port) as proxy:
            store = PostgresFleetStore(proxy.through(postgres.dsn()), next(fleets), clock=clock)
            fleet = fleet_for(clock, store=store, lease="30s")
            fleet.add(*(Target(name, watch.probe(), "2s") for name in "abc"))
            async with running(fleet):
                await clock.advance(60)
                proxy.refuse()
                proxy.cut()
                away = clock.now()
                await clock.advance(100)
                last = max(max(at) for at in watch.at.values())
                assert 10 < last - away < 30
                proxy.accept()
                await clock.advance(40)
                assert min(at[-1] for at in watch.at.values()) > clock.now() - 3
            await store.close()

    clock.run(main())
    assert not watch.wrong
