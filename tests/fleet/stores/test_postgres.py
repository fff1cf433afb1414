"""The state of a fleet in Postgres: kept, claimed by lease, fenced; migrations and refusals."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pollwise.errors import ConfigError, SchemaError, StoreError, StoreUnavailable
from pollwise.fleet.stores.base import SavedTarget
from pollwise.fleet.stores.postgres.store import TABLES, PostgresFleetStore
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.clock import VirtualClock
from pollwise.storage.postgres.schema import script
from pollwise.storage.sql import migrations
from tests.support.proxy import Proxy
from tests.support.servers import OwnPostgres, PgBouncer, Postgres

fleets = (f"fleet {number}" for number in itertools.count())
NAMES = ["a", "b", "c", "d"]


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    postgres.execute(script("pollwise", TABLES))
    return postgres.dsn()


def run(main: Callable[[VirtualClock], Awaitable[None]]) -> None:
    clock = VirtualClock()

    async def body() -> None:
        await main(clock)

    clock.run(body())


@asynccontextmanager
async def stores(
    dsn: str, clock: VirtualClock, count: int = 1, **options: Any
) -> AsyncIterator[list[PostgresFleetStore]]:
    """So many nodes' stores of one new fleet."""
    name = next(fleets)
    opened = [PostgresFleetStore(dsn, name, clock=clock, **options) for _ in range(count)]
    try:
        yield opened
    finally:
        for store in opened:
            await store.close()


def test_what_is_saved_is_loaded_again(dsn: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with stores(dsn, clock) as [store]:
            assert await store.load() == []
            whole = SavedTarget(
                'all "of\\it" 🙂', 12.5, True, "open", 3, "no: \\ \" 'x' {,}", 1.0, 2.0, 3.0, 4.0,
                60.0, {"reading": {"value": "x\0y"}, "changes": [0.5, 2.0]},
            )  # fmt: skip
            await store.save([SavedTarget("odd", more={"facts": {"thing": object()}})])
            await store.remove(["odd"])
            assert await store.save([whole, SavedTarget("none")]) == []
            assert await store.load() == [whole, SavedTarget("none")]
            assert await store.save([SavedTarget("none", failures=1)]) == []
            await store.remove([whole.name, "never there"])
            assert await store.load() == [SavedTarget("none", failures=1)]

    run(main)


def test_an_error_that_postgres_cannot_hold_is_kept_as_far_as_it_can(dsn: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with stores(dsn, clock) as [store]:
            await store.save([SavedTarget("a", error="nul \0 and half \ud800 é")])
            [kept] = await store.load()
            assert kept.error == "nul \\x00 and half \\ud800 é"

    run(main)


def test_a_held_target_cannot_be_claimed(dsn: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with stores(dsn, clock, 2) as [one, two]:
            await one.save([SavedTarget("b", due=5.0), SavedTarget("c", due=1.0)])
            first = await one.claim("one", NAMES, 3, 30)
            # Those never polled first, then the longest due.
            assert [each.name for each in sorted(first, key=lambda each: each.name)] == [
                "a", "c", "d"
            ]  # fmt: skip
            assert {each.saved and each.saved.due for each in first} == {None, 1.0}
            assert {each.lasts for each in first} == {30}
            [rest] = await two.claim("two", NAMES, 10, 30)
            assert (rest.name, rest.saved) == ("b", SavedTarget("b", due=5.0))
            assert await two.claim("two", NAMES, 10, 30) != []  # its own, given again
            renewal = await one.renew("one", 30)
            assert renewal.held == {"a", "c", "d"}
            assert (renewal.nodes, renewal.free) == (2, 0)
            assert renewal.ends == pytest.approx(30, abs=1)
            assert [(each.name, each.held) for each in await one.nodes()] == [
                ("one", 3), ("two", 1)
            ]  # fmt: skip

    run(main)


def test_the_targets_of_a_silent_node_go_to_others_when_its_lease_is_over(dsn: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with stores(dsn, clock, 2) as [one, two]:
            leases = {each.name: each for each in await one.claim("one", NAMES, 10, 30)}
            await two.renew("two", 30)
            await clock.advance(29)
            assert await two.claim("two", NAMES, 10, 30) == []
            await clock.advance(1.5)
            assert (await two.renew("two", 30)).free == 4
            taken = {each.name: each for each in await two.claim("two", NAMES, 10, 30)}
            assert set(taken) == set(NAMES)
            assert all(taken[name].token > leases[name].token for name in NAMES)
            # Who was silent learns it, and what it still saves is refused.
            late = [SavedTarget(name, due=1.0, token=leases[name].token) for name in NAMES]
            assert sorted(await one.save(late)) == NAMES
            assert (await one.renew("one", 30)).held == frozenset()
            fresh = [SavedTarget(name, due=2.0, token=taken[name].token) for name in NAMES]
            assert await two.save(fresh) == []
            assert {each.due for each in await one.load()} == {2.0}

    run(main)


def test_an_expired_lease_is_not_renewed_even_without_other_claims(dsn: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with stores(dsn, clock) as [store]:
            await store.claim("one", NAMES, 10, 30)
            await clock.advance(31)
            renewal = await store.renew("one", 30)
            assert (renewal.held, renewal.free, renewal.nodes) == (frozenset(), 4, 1)
            assert len(await store.claim("one", NAMES, 10, 30)) == 4

    run(main)


def test_two_processes_of_one_name_are_two_nodes(dsn: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with stores(dsn, clock, 2) as [one, two]:
            assert len(await one.claim("same", NAMES, 2, 30)) == 2
            assert len(await two.claim("same", NAMES, 9, 30)) == 2
            assert (await one.renew("same", 30)).nodes == 2
            assert len((await two.renew("same", 30)).held) == 2

    run(main)


def test_targets_given_back_are_free_at_once(dsn: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with stores(dsn, clock, 2) as [one, two]:
            await one.claim("one", NAMES, 10, 30)
            await one.give_back("one", ["a"])
            assert (await one.renew("one", 30)).held == {"b", "c", "d"}
            assert [each.name for each in await two.claim("two", NAMES, 10, 30)] == ["a"]
            await one.give_back("one")
            assert (await two.renew("two", 30)).nodes == 1
            assert len(await two.claim("two", NAMES, 10, 30)) == 4

    run(main)


def test_state_without_a_lease_does_not_overwrite_what_a_node_saved(dsn: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with stores(dsn, clock, 2) as [one, two]:
            [lease] = await one.claim("one", ["a"], 1, 30)
            await one.save([SavedTarget("a", due=9.0, token=lease.token)])
            assert await two.save([SavedTarget("a", due=1.0)]) == ["a"]
            [kept] = await two.load()
            assert kept.due == 9.0

    run(main)


def test_fleets_in_one_schema_know_nothing_of_each_other(dsn: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with stores(dsn, clock) as [one], stores(dsn, clock) as [two]:
            await one.claim("n", NAMES, 10, 30)
            await one.keep_settings({"x": 1})
            assert await two.load() == []
            assert await two.settings() == {}
            assert (await two.renew("n", 30)).nodes == 1
            assert len(await two.claim("n", NAMES, 10, 30)) == 4

    run(main)


def test_orders_reach_the_node_that_holds_the_target_once(dsn: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with stores(dsn, clock, 3) as [one, two, person]:
            await one.claim("one", ["a"], 1, 30)
            await two.claim("two", ["b"], 1, 30)
            await person.order("pause", ["a", "b"], "cli: me")
            await person.order("resume", ["a"])
            await person.order("pause", ["nowhere"])
            assert await one.orders() == [("a", "pause", "cli: me"), ("a", "resume", "")]
            assert await one.orders() == []
            await clock.advance(20)
            assert await two.orders() == [("b", "pause", "cli: me")]
            assert await person.orders() == []  # it polls nothing

    run(main)


def test_an_order_without_a_taker_is_dropped_after_a_day(dsn: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with stores(dsn, clock) as [store]:
            await store.order("pause", ["a"])
            await clock.advance(2 * 86400)
            await store.claim("one", ["a"], 1, 30)
            assert await store.orders() == []

    run(main)


def test_settings_are_kept_changed_and_forgotten(dsn: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with stores(dsn, clock, 2) as [one, two]:
            await one.keep_settings({"fleet.polling.enabled": False, "b": "5s"})
            await one.keep_settings({"b": "6s", "c": None})
            assert await two.settings() == {"b": "6s", "fleet.polling.enabled": False}
            await two.keep_settings({"fleet.polling.enabled": None})
            assert await one.settings() == {"b": "6s"}

    run(main)


def test_nodes_share_one_audit_log_for_90_days(dsn: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with stores(dsn, clock, 2) as [one, two]:
            await one.audit(AuditEntry("me\0", "target.pause", "'a'", "", "127.0.0.1"))
            await clock.advance(60 * 86400)
            await two.audit(AuditEntry("you", "target.resume", "'a'"))
            newest, oldest = await one.list_audit(10)
            assert (newest.who, oldest.who) == ("you", "me\\x00")
            assert newest.at - oldest.at == pytest.approx(60 * 86400)
            assert await two.list_audit(1, newest.id) == [oldest]
            await clock.advance(31 * 86400)
            await two.audit(AuditEntry("she", "target.pause", "'b'"))
            assert [each.who for each in await one.list_audit(10)] == ["she", "you"]

    run(main)


def test_an_answer_that_is_lost_loses_no_target(dsn: str, postgres: Postgres) -> None:
    async def main(clock: VirtualClock) -> None:
        with Proxy(postgres.port) as proxy:
            async with stores(proxy.through(dsn), clock) as [store]:
                await store.renew("one", 30)
                proxy.lose_answer(to=b"fleet_claim")
                with pytest.raises(StoreUnavailable):
                    await store.claim("one", NAMES, 10, 30)
                assert (await store.renew("one", 30)).held == frozenset()
                leases = await store.claim("one", NAMES, 10, 30)
                assert sorted(each.name for each in leases) == NAMES
                saved = [SavedTarget(each.name, due=1.0, token=each.token) for each in leases]
                proxy.lose_answer(to=b"fleet_save")
                assert await store.save(saved) == []  # asked again
                proxy.lose_answer(to=b"fleet_renew")
                assert len((await store.renew("one", 30)).held) == 4

    run(main)


def test_it_works_through_a_pooler(postgres: Postgres, pgbouncer: PgBouncer, dsn: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with stores(pgbouncer.dsn(), clock, 2) as [one, two]:
            assert len(await one.claim("one", NAMES, 2, 30)) == 2
            assert len(await two.claim("two", NAMES, 9, 30)) == 2

    run(main)


def test_nothing_is_migrated_by_itself(own_postgres: OwnPostgres) -> None:
    server = own_postgres()

    async def main(clock: VirtualClock) -> None:
        async with stores(server.dsn(), clock) as [store]:
            with pytest.raises(SchemaError, match="pollwise fleet migrate"):
                await store.load()
            assert "CREATE TABLE" in store.migration()
            assert await store.migrate() == [each for each, _ in migrations(TABLES.package)]
            assert await store.migrate() == []
            assert await store.load() == []

    run(main)


def test_it_works_on_the_oldest_postgres(postgres_oldest: Postgres) -> None:
    postgres_oldest.execute(script("pollwise", TABLES))

    async def main(clock: VirtualClock) -> None:
        async with stores(postgres_oldest.dsn(), clock) as [store]:
            leases = await store.claim("one", NAMES, 10, 30)
            assert await store.save([SavedTarget(e.name, token=e.token) for e in leases]) == []

    run(main)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256, None, 7])
def test_a_name_that_cannot_be_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="fleet = "):
        PostgresFleetStore("postgresql://db/x", name)


def test_its_url_shows_no_password() -> None:
    store = PostgresFleetStore("postgresql://app:hunter2@db/x", "pages", schema="work")
    assert store.url == "postgresql://app@db/x?fleet=pages&schema=work"


def test_an_unreachable_server_is_reported_without_the_password(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    server.create_role("app", password="hunter2")
    dsn = server.dsn(user="app", password="hunter3")

    async def main(clock: VirtualClock) -> None:
        async with stores(dsn, clock) as [store]:
            with pytest.raises(StoreError, match="Check the user and the password") as told:
                await store.load()
            assert "hunter" not in str(told.value)

    run(main)
