import pytest
from pollwise_example import queue

import pollwise
from pollwise.testing import VirtualClock
from pollwise.testing.conformance import CHECKS, Bench, name_of, run


class RoomBench(Bench):
    def __init__(self, clock):
        self.clock = clock

    async def queue(self, **options):
        pairs = "&".join(f"{name}={value}" for name, value in options.items())
        return self.keep(pollwise.open(f"room://kitchen?{pairs}", clock=self.clock))

    async def elapse(self, units):
        await self.clock.advance(units * self.unit)


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_contract(check, monkeypatch):
    monkeypatch.setattr(queue, "_rooms", {})  # every check needs an empty store
    clock = VirtualClock()
    clock.run(run(check, RoomBench(clock)))
