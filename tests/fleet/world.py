"""Shared by the fleet tests: fleets in virtual time, probes with a given behaviour."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from pollwise.fleet import Fleet, FleetRunOptions, ProbeContext, Reading, Target
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import Events
from tests.support.kit import Seen

SAME = Reading("same")
#: About every ten seconds, at a pace that follows failures, unlike an exact interval.
PACED: Any = {"base_interval": "10s", "min_interval": "10s", "max_interval": "10s"}


class SetClock(VirtualClock):
    """A virtual clock that can be adjusted, as people and time servers do."""

    def set(self, by: float) -> None:
        self._epoch += by


class Watch:
    """Records when each target is polled, and checks that none is polled twice at once."""

    def __init__(self) -> None:
        self.at: dict[str, list[float]] = defaultdict(list)
        self.under_way: set[str] = set()
        self.most = 0
        self.wrong: list[str] = []  # an assertion in a probe would only fail its target

    def probe(
        self, answer: Callable[[Target], object] = lambda target: SAME, takes: float = 0.0
    ) -> Any:
        async def probe(target: Target, context: ProbeContext) -> object:
            if target.name in self.under_way:
                self.wrong.append(f"{target.name} is polled twice at once")
            self.under_way.add(target.name)
            self.most = max(self.most, len(self.under_way))
            self.at[target.name].append(asyncio.get_running_loop().time())
            try:
                if takes:
                    await asyncio.sleep(takes)
                said = answer(target)
                if isinstance(said, BaseException):
                    raise said
                return said
            finally:
                self.under_way.discard(target.name)

        return probe


def fleet_for(clock: VirtualClock, seen: Seen | None = None, **given: Any) -> Fleet:
    events = Events(quiet=True) if seen is None else seen.events
    own = {key: given.pop(key) for key in ("store", "name", "node") if key in given}
    options = FleetRunOptions(**{"seed": 1, "signals": False, **given})
    return Fleet(options, clock=clock, events=events, **own)


@asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[asyncio.Future[None]]:
    """A fleet that runs inside the block and is stopped at its end."""
    run = asyncio.ensure_future(fleet.run())
    await asyncio.sleep(0)
    try:
        yield run
    finally:
        fleet.stop()
        await asyncio.wait([run])
    run.result()


def now() -> float:
    return asyncio.get_running_loop().time()


def flaky(random: Random, reliability: float) -> Callable[[Target], object]:
    """Answers that fail from time to time."""
    return lambda target: SAME if random.random() < reliability else ConnectionError("no answer")
