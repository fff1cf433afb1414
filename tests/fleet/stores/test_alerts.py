"""Alerts and notices in a fleet's store: one transaction with the state of their targets."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pollwise.alerts.memory import MemoryAlerts
from pollwise.alerts.notices import notice_of
from pollwise.alerts.quiet import Quiet
from pollwise.alerts.values import (
    ALERT_STATES,
    ALERTS_KEPT,
    ALERTS_PER_TARGET,
    Alert,
    AlertFilter,
    Notice,
)
from pollwise.alerts.windows import MaintenanceWindow
from pollwise.errors import ConfigError
from pollwise.fleet.stores.base import FleetStore, SavedTarget, SaveExtras
from pollwise.fleet.stores.postgres import alerts as postgres_alerts
from pollwise.fleet.stores.postgres.store import PostgresFleetStore
from pollwise.fleet.stores.sqlite import alerts as sqlite_alerts
from pollwise.runtime.clock import VirtualClock
from tests.fleet.stores.conftest import NOW, Main, fleets
from tests.support.servers import Postgres


def alert(number: int, target: str = "api", **more: Any) -> Alert:
    at = NOW + number
    return Alert(
        f"{number:06}", target, "web", "down", "down", "warning", "open", at - 60.0, at,
        summary='no "answer" \\ \0 🙂', sent=1, last_sent_at=at, **more,
    )  # fmt: skip


def closed(each: Alert, after: float = 30.0) -> Alert:
    return replace(each, state="closed", closed_at=each.opened_at + after, sent=2)


def notice(each: Alert, event: Any = "opened", channel: str = "ops") -> Notice:
    about = {"summary": each.summary, "at": NOW}
    return Notice(f"{each.id}:{event}:{channel}", each.id, each.target, channel, event, about)


async def put(store: FleetStore) -> list[Notice]:
    """The notices in the outbox, in their order."""
    outbox = store.outbox()
    assert outbox is not None
    try:
        found = await outbox.records("ready")
        return [notice_of(each.record.payload) for each in found]
    finally:
        await outbox.close()


def test_alerts_and_notices_are_saved_with_their_targets(run: Callable[[Main], None]) -> None:
    async def main(store: FleetStore) -> None:
        first, second = alert(1), alert(2, "db")
        notices = [notice(first), notice(second), notice(second, channel="mail")]
        extras = SaveExtras(alerts=[first, second], notices=notices)
        for _ in range(2):  # as after an answer that was lost
            assert await store.save([SavedTarget("api"), SavedTarget("db")], extras) == []
        page = await store.alerts(AlertFilter())
        assert [each.id for each in page.alerts] == [second.id, first.id]
        assert replace(page.alerts[1], summary="") == replace(first, summary="")
        assert "🙂" in page.alerts[1].summary
        assert await put(store) == notices
        assert await store.alerts_by_id(["000002", "nothing"]) == page.alerts[:1]

    run(main)


def test_what_people_noted_stays_and_a_closed_alert_stays_closed(
    run: Callable[[Main], None],
) -> None:
    async def main(store: FleetStore) -> None:
        first = alert(1)
        await store.save([], SaveExtras(alerts=[first]))
        [known] = await store.acknowledge([first.id, "nothing"], "ann", "on it")
        assert (known.acknowledged_by, known.note, known.acknowledged_at) == ("ann", "on it", NOW)
        await store.save([], SaveExtras(alerts=[closed(first)]))
        await store.save([], SaveExtras(alerts=[first]))
        [found] = await store.alerts_by_id([first.id])
        assert (found.state, found.acknowledged_by, found.lasted) == ("closed", "ann", 90.0)
        assert await store.acknowledge([first.id], "bob") == []

    run(main)


def test_alerts_are_chosen_by_state_target_and_group(run: Callable[[Main], None]) -> None:
    async def main(store: FleetStore) -> None:
        memory = MemoryAlerts()
        alerts = [alert(n, f"target {n % 3}") for n in range(30)]
        alerts = [closed(each) if int(each.id) % 4 else each for each in alerts]
        alerts = [replace(each, group=None if int(each.id) % 5 else "web") for each in alerts]
        alerts = [replace(each, summary="x") for each in alerts]
        memory.save(alerts)
        await store.save([], SaveExtras(alerts=alerts))
        every = itertools.product((None, *ALERT_STATES), (None, "target 1"), (None, "web"))
        for state, target, group in every:
            after = None
            while True:
                chosen = AlertFilter(state, target, group, limit=4, after=after)
                page = await store.alerts(chosen)
                assert page == memory.alerts(chosen)
                after = page.next
                if after is None:
                    break

    run(main)
    with pytest.raises(ConfigError, match="must be 'open' or 'closed'"):
        AlertFilter("shut")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="from 1 to 1000"):
        AlertFilter(limit=0)


def test_old_closed_alerts_are_deleted(run: Callable[[Main], None]) -> None:
    async def main(store: FleetStore) -> None:
        still_open = alert(0)
        many = [closed(alert(n)) for n in range(1, ALERTS_PER_TARGET + 11)]
        old = closed(alert(500, "db"), after=-ALERTS_KEPT - 1000)
        await store.save([], SaveExtras(alerts=[still_open, *many, old]))
        found = (await store.alerts(AlertFilter(limit=1000))).alerts
        assert [each.id for each in found] == [
            *(each.id for each in reversed(many[10:])),
            still_open.id,
        ]

    run(main)


def test_removing_a_target_closes_its_alerts(run: Callable[[Main], None]) -> None:
    async def main(store: FleetStore) -> None:
        extras = SaveExtras(alerts=[alert(1), alert(2, "db")])
        await store.save([SavedTarget("api"), SavedTarget("db")], extras)
        await store.remove(["api"])
        page = await store.alerts(AlertFilter("open"))
        assert [each.target for each in page.alerts] == ["db"]
        [gone] = await store.alerts_by_id(["000001"])
        assert (gone.state, gone.closed_at) == ("closed", NOW)

    run(main)


def test_nothing_of_a_refused_target_is_saved(postgres: Postgres) -> None:
    clock = VirtualClock(NOW)

    async def main() -> None:
        name = next(fleets)
        old, new = (PostgresFleetStore(postgres.dsn(), name, clock=clock) for _ in range(2))
        try:
            await old.migrate()
            [lease] = await old.claim("old", ["api"], 1, 10.0)
            await clock.advance(60.0)
            await new.claim("new", ["api"], 1, 10.0)
            extras = SaveExtras(
                alerts=[alert(1), alert(2, "db")],
                notices=[notice(alert(1)), notice(alert(2, "db"))],
            )
            batch = [SavedTarget("api", token=lease.token), SavedTarget("db")]
            assert await old.save(batch, extras) == ["api"]
            page = await old.alerts(AlertFilter())
            assert [each.target for each in page.alerts] == ["db"]
            assert [each.target for each in await put(old)] == ["db"]
        finally:
            await old.close()
            await new.close()

    clock.run(main())


# Maintenance windows


def test_maintenance_windows_are_kept_replaced_and_removed(run: Callable[[Main], None]) -> None:
    every = Quiet.parsed("Sat,Sun 02:00-04:00 Europe/Zurich")
    first = MaintenanceWindow("m1", ("a ü", "b"), (), every, note="it's", made_by="me", made_at=1.5)
    second = MaintenanceWindow("m2", (), ("g",), None, NOW, NOW + 60, made_at=2.0)
    old = MaintenanceWindow("m0", (), (), None, 1.0, 2.0)

    async def main(store: FleetStore) -> None:
        assert await store.maintenance() == []
        for each in (second, first, old):
            await store.keep_maintenance(each)
        assert await store.maintenance() == [old, first, second]
        ended = replace(second, ends_at=NOW + 1)
        await store.keep_maintenance(ended)  # and what ended long ago is pruned
        assert await store.maintenance() == [first, ended]
        assert await store.remove_maintenance("m1")
        assert not await store.remove_maintenance("m1")
        assert await store.maintenance() == [ended]

    run(main)


def test_the_number_of_maintenance_windows_is_limited(
    run: Callable[[Main], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sqlite_alerts, postgres_alerts):
        monkeypatch.setattr(module, "WINDOWS_MAX", 2)

    async def main(store: FleetStore) -> None:
        for id in ("m1", "m2", "m1"):
            await store.keep_maintenance(MaintenanceWindow(id))
        with pytest.raises(ConfigError, match="maintenance windows already"):
            await store.keep_maintenance(MaintenanceWindow("m3"))

    run(main)
