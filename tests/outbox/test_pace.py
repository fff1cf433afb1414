"""A relay goes on at the pace that relays of its outbox learned."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.worth import Worth
from pollwise.outbox import NewRecord, Outbox, OutboxRunOptions
from pollwise.outbox.stores.base import OutboxStore
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import PaceRestored
from pollwise.runtime.rollups.rows import PACE, HistoryRange
from tests.outbox.stores.benches import STORES, StoreBench, bench_of
from tests.support.kit import Seen

WORTH = Worth(poll_cost=20, wait_cost=1)


@pytest.fixture(params=STORES)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> StoreBench:
    return bench_of(request.param, request, tmp_path)


async def relayed(
    store: OutboxStore, name: str, clock: VirtualClock, span: float, every: float, **given: Any
) -> tuple[dict[str, Any], list[PaceRestored]]:
    """Run a relay for a while; what it knew at the end, and what it restored."""
    seen = Seen()
    chosen = OutboxRunOptions(**{"polling": WORTH, "hints": False, "signals": False, **given})
    outbox = Outbox(store, options=chosen, events=seen.events, relay=name)

    @outbox.handle("*")
    async def publish(record: Any) -> None:
        """Do nothing."""

    running = asyncio.ensure_future(outbox.run())
    for _ in range(int(span / every)):
        await store.put(NewRecord("order.placed", 1))
        await clock.advance(every)
    state = dict(outbox.state())
    outbox.stop()
    await running
    return state, seen.of(PaceRestored)


def test_a_new_relay_knows_what_the_last_one_learned(stores: StoreBench) -> None:
    async def main() -> None:
        clock = stores.clock
        before, restored = await relayed(await stores.store(), "r-1", clock, 1800.0, 5.0)
        assert restored == []
        await clock.advance(120.0)
        after, [event] = await relayed(await stores.store(), "r-2", clock, 5.0, 5.0)
        assert (event.source, event.problem) == (f"outbox:{stores.name}", "")
        assert event.age == pytest.approx(120.0, abs=1.0)
        assert after["long_run_rate"] == pytest.approx(before["long_run_rate"], rel=0.1)
        store = await stores.store()
        [rows] = await store._read_history([HistoryRange(PACE, 0, 2**40)])
        assert len(rows) == 1
        assert await store.relays() == [], "a pace is no relay"

    stores.run(main())


def test_a_fixed_interval_learns_nothing(stores: StoreBench) -> None:
    async def main() -> None:
        store = await stores.store()
        await relayed(store, "r", stores.clock, 600.0, 60.0, polling=Fixed("1s"))
        assert await store.paces() == []

    stores.run(main())
