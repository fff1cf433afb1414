"""A thousand alerts at once: nothing is lost or doubled, and polls are not delayed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pollwise.alerts.values import AlertFilter
from pollwise.fleet import Target
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import TargetPolling
from tests.fleet.alerting.kit import Noted, Switches, fleet_with, until
from tests.fleet.world import running
from tests.support.kit import Seen

MANY = 1000


def test_a_thousand_alerts_at_once(tmp_path: Path) -> None:
    clock = VirtualClock()

    async def main() -> None:
        seen, channel, probe = Seen(), Noted(), Switches()
        store = SqliteFleetStore(tmp_path / "fleet.db", clock=clock)
        fleet = fleet_with(clock, channel, store=store, seen=seen, concurrency=200)
        names = [f"t{n}" for n in range(MANY)]
        fleet.add(*(Target(name, probe, "30s", alerts=["down"]) for name in names))
        async with running(fleet):
            await until(lambda: len(probe.polls) == MANY)
            probe.fail(*names)
            await until(lambda: len(channel.of("opened")) == MANY)
            assert len((await store.alerts(AlertFilter("open", limit=1000))).alerts) == MANY
            probe.restore(*names)
            await until(lambda: len(channel.of("closed")) == MANY, 1200)
            assert len(fleet._running_alerts._saving.unsaved_alerts) == 0  # type: ignore[union-attr]
        assert len({notice.id for _, notice in channel.sent}) == len(channel.sent) == 2 * MANY
        assert set(Counter(channel.events).values()) == {1}
        assert max(event.late for event in seen.of(TargetPolling)) < 1.0
        assert not (await store.alerts(AlertFilter("open"))).alerts
        await store.close()

    clock.run(main())
