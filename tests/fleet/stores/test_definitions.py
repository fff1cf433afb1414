"""Definitions of targets in a store, the same in SQLite and Postgres."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pollwise.errors import ConfigError, Unsupported
from pollwise.fleet.stores import definitions as limits
from pollwise.fleet.stores.base import FleetStore
from pollwise.fleet.stores.definitions import DefinitionConflict, TooManyDefinitions
from pollwise.fleet.stores.postgres import definitions as in_postgres
from pollwise.fleet.stores.postgres.store import TABLES, PostgresFleetStore
from pollwise.fleet.stores.sqlite import definitions as in_sqlite
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.clock import VirtualClock
from pollwise.storage.postgres.schema import script
from tests.support.servers import Postgres

fleets = (f"defined {number}" for number in itertools.count())
Work = Callable[[VirtualClock, list[FleetStore]], Awaitable[None]]


@pytest.fixture(params=["sqlite", "postgres"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Work], None]:
    """Runs a test with two stores of one fleet and one of another."""
    clock, names = VirtualClock(), [next(fleets)] * 2 + [next(fleets)]

    def opened() -> list[FleetStore]:
        if request.param == "sqlite":
            return [SqliteFleetStore(tmp_path / "f.db", name, clock=clock) for name in names]
        postgres: Postgres = request.getfixturevalue("postgres")
        postgres.execute(script("pollwise", TABLES))
        return [PostgresFleetStore(postgres.dsn(), name, clock=clock) for name in names]

    def run(work: Work) -> None:
        async def body() -> None:
            stores = opened()
            try:
                await work(clock, stores)
            finally:
                for store in stores:
                    await store.close()

        clock.run(body())

    return run


def test_definitions_are_kept_changed_and_removed(run: Callable[[Work], None]) -> None:
    async def work(clock: VirtualClock, stores: list[FleetStore]) -> None:
        one, other, stranger = stores
        assert (await one.definitions(), await one.definitions_version()) == ([], 0)
        table = {"type": "http", "url": "http://a/${KEY}", "labels": {"é": "\U0001f600 '"}}
        assert await one.define({"a": table, "b": {"type": "tcp"}}, "cli: me\0\ud800") == 1
        await clock.advance(5)
        assert await other.define({"b": {"type": "dns"}}, "api: you") == 2
        found = await other.definitions()
        assert [(each.name, each.version) for each in found] == [("a", 1), ("b", 2)]
        assert found[0].table == table
        assert found[1].at - found[0].at == pytest.approx(5, abs=0.01)
        assert found[1].by == "api: you"
        assert [each.name for each in await one.definitions(since=1)] == ["b"]
        assert await one.define({"a": None, "c": {}}) == 3
        news = {each.name: each.table for each in await other.definitions(since=2)}
        assert news == {"a": None, "c": {}}
        assert [each.name for each in await other.definitions()] == ["b", "c"]
        assert await other.definitions_version() == 3
        assert await stranger.definitions() == []
        assert await stranger.definitions_version() == 0

    run(work)


def test_a_change_that_somebody_else_made_first_is_not_overwritten(
    run: Callable[[Work], None],
) -> None:
    async def work(clock: VirtualClock, stores: list[FleetStore]) -> None:
        one, other, _ = stores
        await one.define({"a": {"n": 1}}, expected={"a": 0})
        with pytest.raises(DefinitionConflict, match="'a' was defined or changed") as caught:
            await other.define({"b": {}, "a": {"n": 2}}, expected={"a": 0, "b": 0})
        assert caught.value.names == ("a",)
        await other.define({"a": {"n": 3}}, expected={"a": 1})
        for wrong in (1, 0, 7):
            with pytest.raises(DefinitionConflict):
                await one.define({"a": {"n": 4}}, expected={"a": wrong})
        assert [(each.name, each.table) for each in await one.definitions()] == [("a", {"n": 3})]
        await one.define({"a": None}, expected={"a": 2})
        await one.define({"a": {"n": 5}}, expected={"a": 0})  # removed: it may come again
        assert await one.definitions_version() == 4

    run(work)


def test_removed_definitions_are_forgotten_in_time_but_versions_go_on(
    run: Callable[[Work], None],
) -> None:
    async def work(clock: VirtualClock, stores: list[FleetStore]) -> None:
        store = stores[0]
        await store.define({"a": {}, "b": {}})
        await store.define({"a": None, "b": None})
        await clock.advance(limits.REMOVED_KEPT + 1)
        assert await store.define({"c": {}}) == 3
        assert [each.name for each in await store.definitions(since=1)] == ["c"]

    run(work)


def test_what_is_kept_has_limits(
    run: Callable[[Work], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (in_sqlite, in_postgres):
        monkeypatch.setattr(module, "DEFINITIONS_MAX", 3)

    async def work(clock: VirtualClock, stores: list[FleetStore]) -> None:
        store = stores[0]
        with pytest.raises(ConfigError, match="'a': its definition is longer than 65536 bytes"):
            await store.define({"b": {}, "a": {"url": "x" * limits.DEFINITION_MAX}})
        await store.define({"a": {}, "b": {}, "c": {}})
        with pytest.raises(TooManyDefinitions, match="at most"):
            await store.define({"a": {"n": 1}, "d": {}})
        await store.define({"a": {"n": 1}})  # a change needs no room
        await store.define({"a": None})
        await store.define({"d": {}})
        assert [each.name for each in await store.definitions()] == ["b", "c", "d"]

    run(work)


def test_a_store_without_definitions_says_so() -> None:
    class Bare(FleetStore):
        load = save = remove = close = None  # type: ignore[assignment]

    async def work() -> None:
        assert await Bare().definitions() == []
        with pytest.raises(Unsupported, match="Bare cannot keep definitions of targets"):
            await Bare().define({"a": {}})

    VirtualClock().run(work())
