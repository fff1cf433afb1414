"""The queue in a bucket keeps the contract."""

from __future__ import annotations

import pytest

from pollwise.queues.views import Stats
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.testing import VirtualClock
from pollwise.testing.conformance import CHECKS, Check, name_of, run
from tests.queues.objects.stores import ObjectBench


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_contract(check: Check) -> None:
    clock = VirtualClock()
    clock.run(run(check, ObjectBench(clock)))


def test_counts_read_a_bounded_number_of_objects() -> None:
    """A state that may have more jobs than were listed is marked."""

    async def main(clock: VirtualClock) -> None:
        queue = await ObjectBench(clock).queue()
        for _ in range(3):
            await queue.put([NewJob("job", n) for n in range(10)])
        assert await queue.stats() == Stats(30, 0, 0, 0, 0, 0, 0, 0.0)
        claims = [each for _ in range(3) for each in await queue.claim("w", 10, 60)]
        await queue.settle([Settlement.dead(claim, "broken") for claim in claims])
        stats = await queue.stats(20)
        assert stats.dead >= 20
        assert stats.capped == {"dead"}
        kinds = await queue.stats_by_kind(20)
        assert kinds["job"].capped == {"dead"}
        await queue.close()

    clock = VirtualClock()
    clock.run(main(clock))
