"""Two nodes in virtual time: how long targets wait that change hands, and that none is polled twice
in a row."""

from __future__ import annotations

import asyncio
import itertools
from itertools import pairwise
from typing import Any

import pytest

from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.errors import StoreUnavailable
from pollwise.fleet import Fleet, Target
from pollwise.fleet.engine.restore import CATCH_UP_APART
from pollwise.fleet.stores.postgres.store import PostgresFleetStore
from pollwise.runtime.clock import VirtualClock
from tests.fleet.world import Watch, fleet_for, now
from tests.support.servers import Postgres

LEASE = 6.0
pairs = itertools.count()
TAKES = 0.05


class Pair:
    """Two nodes of one fleet with the same targets."""

    def __init__(
        self, postgres: Postgres, clock: VirtualClock, count: int, strategy: Strategy
    ) -> None:
        self.watch = Watch()
        self.stores: dict[str, PostgresFleetStore] = {}
        self.fleets: dict[str, Fleet] = {}
        self.runs: dict[str, asyncio.Task[None]] = {}
        name = f"pair {next(pairs)}"
        for node in ("one", "two"):
            store = PostgresFleetStore(postgres.dsn(), name, clock=clock)
            fleet = fleet_for(clock, store=store, node=node, strategy=strategy, lease=LEASE)
            probe = self.watch.probe(takes=TAKES)
            fleet.add(*(Target(f"target {number}", probe) for number in range(count)))
            self.stores[node], self.fleets[node] = store, fleet

    async def start(self, node: str) -> None:
        await self.stores[node].migrate()
        self.runs[node] = asyncio.create_task(self.fleets[node].run())

    async def kill(self, node: str) -> float:
        """End a node without a last word to the store; returns when."""

        async def unreachable(*_: Any, **__: Any) -> Any:
            raise StoreUnavailable("this node is dead")

        self.stores[node].database.rows = unreachable  # type: ignore[method-assign]
        killed = now()
        self.runs[node].cancel()
        await asyncio.wait([self.runs[node]])
        return killed

    async def end(self) -> None:
        for node, run in self.runs.items():
            self.fleets[node].stop()
            await asyncio.wait([run])
        for store in self.stores.values():
            await store.close()

    def gaps(self, since: float, until: float) -> list[float]:
        """The seconds between two polls of a target, sorted; those that touch this time."""
        found = [
            after - before
            for polls in self.watch.at.values()
            for before, after in pairwise(polls)
            if after >= since and before < until
        ]
        return sorted(found)


@pytest.mark.parametrize("count", [20, 300])
@pytest.mark.parametrize("every", [5.0, 10.0, 30.0])
def test_a_killed_nodes_targets_wait_a_lease_and_half_their_interval_and_are_polled_once(
    postgres: Postgres, count: int, every: float
) -> None:
    async def main(clock: VirtualClock) -> None:
        pair = Pair(postgres, clock, count, Fixed(every))
        await pair.start("one")
        await asyncio.sleep(65)
        await pair.start("two")
        await asyncio.sleep(65.3)
        killed = await pair.kill("two")
        await asyncio.sleep(120)
        gaps = pair.gaps(killed, killed + 110)
        assert gaps[0] > min(every / 2, CATCH_UP_APART) - 0.2
        assert gaps[-1] < every + LEASE + every / 2 + 1
        assert pair.watch.wrong == []
        await pair.end()

    clock = VirtualClock(1_700_000_000.0)
    clock.run(main(clock))


@pytest.mark.parametrize("strategy", [Fixed(10.0), Freshness(10.0, 10.0, 20.0)])
@pytest.mark.parametrize("begins", [64.1, 64.6, 65.2])
def test_targets_that_are_given_back_are_not_polled_again_at_once(
    postgres: Postgres, begins: float, strategy: Strategy
) -> None:
    """A node gives back what it polled last, so that must be saved before."""

    async def main(clock: VirtualClock) -> None:
        pair = Pair(postgres, clock, 300, strategy)
        await pair.start("one")
        await asyncio.sleep(begins)
        await pair.start("two")
        joined = now()
        await asyncio.sleep(30)
        nodes = await pair.stores["one"].nodes()
        assert [each.held for each in nodes or []] == [150, 150]
        gaps = pair.gaps(joined, joined + 30)
        assert gaps[0] > 10 - CATCH_UP_APART - 0.2
        assert gaps[-1] < strategy.max_interval + CATCH_UP_APART + LEASE / 3
        await pair.end()

    clock = VirtualClock(1_700_000_000.0)
    clock.run(main(clock))
