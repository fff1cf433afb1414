"""Alerts of a fleet that two nodes share: one state, one alarm, and nothing lost at a takeover."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pollwise.alerts.rules import AlertRule
from pollwise.alerts.values import AlertFilter
from pollwise.fleet import Fleet, Target
from pollwise.fleet.alerting.removed import LOOK_EVERY
from pollwise.fleet.stores.postgres.store import PostgresFleetStore
from pollwise.runtime.clock import VirtualClock
from tests.fleet.alerting.kit import Noted, Switches, fleet_with, until
from tests.fleet.world import running
from tests.support.servers import Postgres

BEHIND = [f"host {n}" for n in range(9)]


@asynccontextmanager
async def node(
    name: str, fleet: str, dsn: str, clock: VirtualClock, channel: Noted, targets: list[Target]
) -> AsyncIterator[Fleet]:
    store = PostgresFleetStore(dsn, fleet, clock=clock)
    await store.migrate()
    made = fleet_with(clock, channel, store=store, node=name, lease="10s", name=fleet)
    made.add(*targets)
    try:
        async with running(made):
            yield made
    finally:
        await store.close()


def held(*fleets: Fleet) -> list[int]:
    """How many targets each node holds."""
    return [sum(map(each.is_held, each.names())) for each in fleets]


def test_a_router_on_another_node_holds_alerts_back(postgres: Postgres) -> None:
    clock = VirtualClock()

    async def main() -> None:
        first, second, probe = Noted(), Noted(), Switches()
        hosts = [Target(name, probe, "10s", alerts=["down"], behind="router") for name in BEHIND]
        targets = [*hosts, Target("router", probe, "1m", alerts=["down"])]
        about = ("shared-router", postgres.dsn(), clock)
        async with (
            node("a", *about, first, targets) as a,
            node("b", *about, second, targets) as b,
        ):
            await until(lambda: held(a, b) == [5, 5])
            await until(lambda: len(probe.polls) == 10)
            without = a if b.is_held("router") else b
            assert any(map(without.is_held, BEHIND))
            probe.fail("router", *BEHIND)
            await until(lambda: first.sent or second.sent)
            await asyncio.sleep(300)
            assert first.events + second.events == [("router", "opened")]
            probe.restore("router", *BEHIND[1:])
            await until(lambda: len(first.sent + second.sent) == 3, 1200)
            await asyncio.sleep(120)
        told = sorted(first.events + second.events)
        assert told == [("host 0", "opened"), ("router", "closed"), ("router", "opened")]

    clock.run(main())


def test_the_other_node_goes_on_where_alerts_stood(postgres: Postgres) -> None:
    clock = VirtualClock()

    async def main() -> None:
        first, second, probe = Noted(), Noted(), Switches()
        rules = [AlertRule("down"), AlertRule("down", lasting="10m")]
        targets = [Target(f"t{n}", probe, "10s", alerts=rules) for n in range(6)]
        about = ("taken-over", postgres.dsn(), clock)
        async with node("b", *about, second, targets) as b:
            async with node("a", *about, first, targets) as a:
                await until(lambda: held(a, b) == [3, 3])
                probe.fail(*(each.name for each in targets))
                await until(lambda: len(first.sent + second.sent) == 6)
            await until(lambda: held(b) == [6])
            await until(lambda: len(first.sent + second.sent) == 12, 1200)
            page = await b.list_alerts(AlertFilter("open"))
            # By the outage, not by when the other node took over.
            assert all(alert.opened_at - alert.since < 615 for alert in page.alerts)
            probe.restore(*(each.name for each in targets))
            await until(lambda: len(first.sent + second.sent) == 24, 1200)
            await asyncio.sleep(60)
        sent = [notice for _, notice in first.sent + second.sent]
        assert len({each.id for each in sent}) == len(sent) == 24
        assert sum(each.event == "closed" for each in sent) == 12

    clock.run(main())


def test_alerts_of_removed_targets_are_closed_once_no_node_polls_them(postgres: Postgres) -> None:
    clock = VirtualClock()

    async def main() -> None:
        first, second, probe = Noted(), Noted(), Switches()
        targets = [Target(f"t{n}", probe, "10s", alerts=["down"]) for n in range(2)]
        about = ("with other files", postgres.dsn(), clock)
        probe.fail("t0", "t1")
        async with node("a", *about, first, targets) as a:
            await until(lambda: len(first.sent) == 2)
            async with node("b", *about, second, targets[:1]) as b:
                await asyncio.sleep(2 * LOOK_EVERY)
                assert sorted(first.events + second.events) == [("t0", "opened"), ("t1", "opened")]
                a.stop()  # and with it the only file that has t1
                await until(lambda: first.sent[2:] or second.sent, 2 * LOOK_EVERY)
                assert first.events[2:] + second.events == [("t1", "closed")]
                await until(lambda: held(b) == [1])
                [alert] = (await b.list_alerts(AlertFilter("open"))).alerts
                assert alert.target == "t0"

    clock.run(main())
