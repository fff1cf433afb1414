from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from functools import partial

import pytest

from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.hints import BlockingHint, Hint, Hints
from tests.support.kit import virtually


class Sleeper:
    """Somebody who pauses for an hour unless a hint comes."""

    def __init__(
        self,
        hints: Hints,
        name: object,
        woken: list[object],
        wants: frozenset[str] | None = None,
    ) -> None:
        self.hint = Hint(wants)
        self._hints = hints
        hints.join(self.hint)
        self.task = asyncio.create_task(self._sleep(name, woken))

    async def _sleep(self, name: object, woken: list[object]) -> None:
        self._hints.asleep(self.hint)
        try:
            if await self.hint.wait(3600):
                woken.append(name)
        finally:
            self._hints.awake(self.hint)


async def settle_down() -> None:
    """Let everything that is ready to run, run."""
    for _ in range(5):
        await asyncio.sleep(0)


# One sleeper.


def test_a_hint_that_came_while_awake_ends_the_next_pause_once() -> None:
    async def main(clock: VirtualClock) -> list[tuple[bool, float]]:
        hint = Hint()
        hint.give()
        hint.give()
        return [(await hint.wait(10), clock.now()), (await hint.wait(10), clock.now())]

    assert virtually(main) == [(True, 0.0), (False, 10.0)]


def test_a_hint_is_forgotten_by_a_poll_that_begins_after_it() -> None:
    async def main(clock: VirtualClock) -> bool:
        hint = Hint()
        hint.give()
        hint.forget()
        return await hint.wait(10)

    assert virtually(main) is False


def test_a_cancelled_pause_leaves_nothing_behind() -> None:
    async def main(clock: VirtualClock) -> tuple[bool, float]:
        hint = Hint()
        task = asyncio.create_task(hint.wait(10))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return await hint.wait(5), clock.now()

    assert virtually(main) == (False, 5.0)


# Many of them.


@pytest.mark.parametrize(("news", "woken"), [(1, 1), (3, 3), (50, 50), (99, 50)])
def test_a_hint_of_n_items_wakes_n(news: int, woken: int) -> None:
    async def main(_: VirtualClock) -> list[object]:
        hints, names = Hints(), list[object]()
        sleepers = [Sleeper(hints, n, names) for n in range(50)]
        await settle_down()
        hints.send(news)
        await settle_down()
        for sleeper in sleepers:
            sleeper.task.cancel()
        return names

    assert virtually(main) == list(range(woken))  # longest asleep first


def test_a_hint_of_a_kind_wakes_only_those_who_want_it() -> None:
    async def main(clock: VirtualClock) -> list[object]:
        hints, woken = Hints(), list[object]()
        wants = {"mail": frozenset({"mail"}), "any": None, "print": frozenset({"print"})}
        sleepers = [Sleeper(hints, name, woken, kinds) for name, kinds in wants.items()]
        await settle_down()
        hints.send(1, ["print"])
        await settle_down()
        first = list(woken)
        hints.send(1)  # of a kind that nobody knows: each group is told
        await settle_down()
        for sleeper in sleepers:
            sleeper.task.cancel()
        return [first, woken]

    assert virtually(main) == [["any", "print"], ["any", "print", "mail"]]


@pytest.mark.parametrize("passed_on", [False, True])
def test_a_hint_of_one_kind_wakes_one_of_all_who_name_it(passed_on: bool) -> None:
    async def main(_: VirtualClock) -> list[object]:
        hints, woken = Hints(), list[object]()
        sleepers = [Sleeper(hints, n, woken, frozenset({"mail", f"only {n}"})) for n in range(5)]
        await settle_down()
        tell = hints.pass_on if passed_on else partial(hints.send, 1)
        tell(["mail"])
        await settle_down()
        first = list(woken)
        tell(["mail", "only 3"])  # one of these, and nobody knows which
        await settle_down()
        for sleeper in sleepers:
            sleeper.task.cancel()
        return [first, woken]

    assert virtually(main) == [[0], [0, 1, 3]]


def test_a_full_poll_passes_the_hint_on() -> None:
    async def main(_: VirtualClock) -> list[object]:
        hints, names = Hints(), list[object]()
        sleepers = [Sleeper(hints, n, names) for n in range(3)]
        await settle_down()
        hints.send(1)
        hints.pass_on()
        await settle_down()
        for sleeper in sleepers:
            sleeper.task.cancel()
        return names

    assert virtually(main) == [0, 1]


def test_a_cancelled_sleeper_does_not_swallow_the_hint() -> None:
    async def main(_: VirtualClock) -> list[object]:
        hints, names = Hints(), list[object]()
        sleepers = [Sleeper(hints, n, names) for n in range(2)]
        await settle_down()
        sleepers[0].task.cancel()  # it has not run since, and still counts as asleep
        hints.send(1)
        await settle_down()
        sleepers[1].task.cancel()
        return names

    assert virtually(main) == [1]


def test_a_hint_goes_to_pollers_in_a_poll_before_busy_ones() -> None:
    async def main(_: VirtualClock) -> tuple[bool, bool]:
        hints, busy, polling = Hints(), Hint(), Hint()
        hints.join(busy)
        hints.join(polling)
        polling.polling = True
        hints.send(1)
        return await busy.wait(1), await polling.wait(1)

    assert virtually(main) == (False, True)


def test_who_left_or_is_gone_gets_nothing() -> None:
    async def main(_: VirtualClock) -> bool:
        hints, left, gone, stays = Hints(), Hint(), Hint(), Hint()
        for hint in (left, gone, stays):
            hints.join(hint)
        hints.leave(left)
        del gone, hint
        gc.collect()
        hints.send(1)
        return await stays.wait(1)

    assert virtually(main) is True


# At a time.


def ringing(set_alarms: Callable[[Hints], None]) -> list[object]:
    async def main(clock: VirtualClock) -> list[object]:
        hints, rings = Hints(), list[object]()
        hint = Hint()
        hints.join(hint)
        set_alarms(hints)
        for _ in range(3):
            hints.asleep(hint)
            if await hint.wait(100):
                rings.append(clock.now())
            hints.awake(hint)
        return rings

    return virtually(main)


def test_the_earliest_alarm_holds() -> None:
    def set_three(hints: Hints) -> None:
        for when in (30, 10, 20):
            hints.send_at(when)

    assert ringing(set_three) == [10.0]


def test_an_alarm_for_the_past_rings_at_once() -> None:
    assert ringing(lambda hints: hints.send_at(-5)) == [0.0]


def test_a_closed_source_rings_no_more() -> None:
    def set_and_close(hints: Hints) -> None:
        hints.send_at(10)
        hints.close()
        hints.close()

    assert ringing(set_and_close) == []


def test_an_alarm_of_an_event_loop_that_ended_does_not_stand_in_the_way() -> None:
    hints = Hints()

    async def first(_: VirtualClock) -> None:
        hints.send_at(5)  # never rings: its loop ends before

    async def second(clock: VirtualClock) -> float:
        hint = Hint()
        hints.join(hint)
        hints.asleep(hint)
        hints.send_at(10)
        await hint.wait(100)
        return clock.now()

    virtually(first)
    assert virtually(second) == 10.0


# Threads.


def test_a_poller_whose_pause_begins_in_the_middle_of_a_send_gets_the_hint() -> None:
    class Interrupted(Hints):
        """Another thread begins its pause after those asleep were counted, before the others."""

        counted = 0

        def _joined(self) -> list[Hint]:
            self.counted += 1
            if self.counted == 2:
                self.asleep(hint)
            return super()._joined()

    hints, hint = Interrupted(), BlockingHint()
    hints.join(hint)
    hints.send()
    assert hints.counted == 2
    assert hint.taken()


def test_a_blocking_hint_is_taken_once_and_forgotten() -> None:
    hint = BlockingHint()
    assert not hint.block(0.0)
    hint.give()
    hint.give()
    assert [hint.block(60.0), hint.block(0.0)] == [True, False]
    hint.give()
    hint.forget()
    assert not hint.taken()
