from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pollwise.runtime.chores import Chores
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import ChoreFailed, ChoreRecovered
from tests.support.kit import Seen, virtually


class House:
    """Chores that keep when they ran."""

    def __init__(self, clock: VirtualClock, **every: float) -> None:
        self.seen = Seen()
        self.clock = clock
        self.ran: dict[str, list[float]] = {name: [] for name in every}
        self.chores = Chores("q", clock, self.seen.events)
        for name, interval in every.items():
            self.chores.add(name, interval, self._work(name))

    def _work(self, name: str) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            self.ran[name].append(self.clock.now())

        return work


def timers() -> int:
    loop: Any = asyncio.get_running_loop()
    return sum(not timer.cancelled() for timer in loop._scheduled)


def test_a_chore_that_was_not_woken_has_no_timer() -> None:
    async def main(clock: VirtualClock) -> None:
        house = House(clock, a=10, b=20)
        assert timers() == 0
        house.chores.wake("a")
        house.chores.wake("b")
        assert timers() == 1
        house.chores.rest("a")
        house.chores.rest("b")
        house.chores.rest("b")
        assert timers() == 0

    virtually(main)


def test_a_chore_runs_first_after_its_interval_and_then_by_it() -> None:
    async def main(clock: VirtualClock) -> list[float]:
        house = House(clock, a=10)
        house.chores.wake("a")
        await clock.advance(5)
        house.chores.wake("a")  # it runs already: nothing changes
        await clock.advance(30)
        house.chores.rest("a")
        await clock.advance(100)
        house.chores.wake("a")
        await clock.advance(15)
        await house.chores.close()
        return house.ran["a"]

    assert virtually(main) == [10.0, 20.0, 30.0, 145.0]


def test_chores_that_are_nearly_due_run_together() -> None:
    async def main(clock: VirtualClock) -> dict[str, list[float]]:
        house = House(clock, a=10, b=10, c=40)
        house.chores.wake("a")
        await clock.advance(0.5)
        house.chores.wake("b")  # due at 10.5, and may run a second early
        house.chores.wake("c")
        await clock.advance(30)
        await house.chores.close()
        return house.ran

    assert virtually(main) == {"a": [10.0, 20.0, 30.0], "b": [10.0, 20.0, 30.0], "c": []}


def test_a_chore_that_raises_is_reported_and_runs_again() -> None:
    async def main(clock: VirtualClock) -> tuple[list[ChoreFailed], list[float]]:
        house = House(clock, other=10)
        failures = 0

        async def work() -> None:
            nonlocal failures
            failures += 1
            raise OSError(f"no. {failures}")

        house.chores.add("bad", 10, work)
        house.chores.wake("bad")
        house.chores.wake("other")
        await clock.advance(25)
        await house.chores.close()
        return house.seen.of(ChoreFailed), house.ran["other"]

    failed, other = virtually(main)
    assert failed == [ChoreFailed("q", "bad", f"OSError: no. {n}", n) for n in (1, 2)]
    assert other == [10.0, 20.0]


def test_a_needed_chore_is_trouble_from_the_third_failure_until_it_succeeds() -> None:
    async def main(clock: VirtualClock) -> None:
        house = House(clock)
        failing = True

        async def work() -> None:
            if failing:
                raise OSError("no")

        house.chores.add("renew", 10, work, needed=True)
        house.chores.add("count", 10, work)
        for name in ("renew", "count"):
            house.chores.wake(name)
        troubles = []
        for _ in range(3):
            await clock.advance(10)
            troubles.append(house.chores.trouble())
        assert troubles == [[], [], ["could not renew 3 times in a row: OSError: no"]]
        failing = False
        await clock.advance(10)
        assert house.chores.trouble() == []
        recovered = house.seen.of(ChoreRecovered)
        assert recovered == [ChoreRecovered("q", name, 3) for name in ("renew", "count")]
        await clock.advance(10)
        assert house.seen.of(ChoreRecovered) == recovered
        await house.chores.close()

    virtually(main)


def test_a_chore_may_rest_and_wake_from_within() -> None:
    async def main(clock: VirtualClock) -> list[float]:
        house = House(clock, once=5)

        async def work() -> None:
            house.ran["once"].append(clock.now())
            house.chores.rest("once")
            if len(house.ran["once"]) == 1:
                house.chores.wake("once")

        house.chores.add("once", 5, work)
        house.chores.wake("once")
        await clock.advance(100)
        assert timers() == 0
        return house.ran["once"]

    assert virtually(main) == [5.0, 10.0]


def test_a_slow_chore_is_not_run_twice_at_once() -> None:
    async def main(clock: VirtualClock) -> tuple[int, int]:
        house = House(clock)
        running = most = runs = 0

        async def work() -> None:
            nonlocal running, most, runs
            running, runs = running + 1, runs + 1
            most = max(most, running)
            await asyncio.sleep(25)
            running -= 1

        house.chores.add("slow", 10, work)
        house.chores.wake("slow")
        await clock.advance(100)
        await house.chores.close()
        return most, runs

    assert virtually(main) == (1, 4)


def test_closing_ends_the_round_under_way() -> None:
    async def main(clock: VirtualClock) -> tuple[float, list[str]]:
        house = House(clock)
        ends: list[str] = []

        async def work() -> None:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        house.chores.add("long", 10, work)
        house.chores.wake("long")
        await clock.advance(11)
        await house.chores.close()
        await house.chores.close()
        assert timers() == 0
        return clock.now(), ends

    assert virtually(main) == (11.0, ["cancelled"])


def test_a_chore_is_hastened_once_and_never_delayed() -> None:
    async def main(clock: VirtualClock) -> None:
        house = House(clock, a=10)
        house.chores.hasten("a", 1)  # it rests
        assert timers() == 0
        house.chores.wake("a")
        house.chores.hasten("a", 50)
        house.chores.hasten("a", 3)
        await clock.advance(30)
        assert house.ran["a"] == [3.0, 13.0, 23.0]
        await house.chores.close()

    virtually(main)
