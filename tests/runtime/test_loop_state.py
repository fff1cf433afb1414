"""A loop goes on at the pace that an earlier one saved."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.ewma import Ewma
from pollwise.core.strategies.saved_pace import PACE_KEPT
from pollwise.core.strategies.worth import Worth
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import PaceRestored
from pollwise.runtime.loop import PACE_POLLS, Batch, PollLoop, poll
from tests.core.strategies.test_dumps import jsons
from tests.support.kit import Seen, virtually

DOUBLING = Adaptive("100ms", "5s")
WORTH = Worth(poll_cost=20, wait_cost=1)
DAY = 86400.0


class Batches:
    """A source with a batch of five items every minute, and when it was asked."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.asked: list[float] = []
        self._seen = 0.0

    async def __call__(self) -> Batch[int]:
        now = self.clock.epoch()
        self.asked.append(now)
        fresh = now // 60 > self._seen // 60
        self._seen = now
        return Batch([1] * 5, None, (now % 60,) * 5) if fresh else Batch([])


def loop_of(
    source: Any, strategy: Strategy, clock: VirtualClock, state: Any = None, **given: Any
) -> PollLoop[Any]:
    return poll(source, strategy, clock=clock, seed=1, state=state, **given)


async def run(loop: PollLoop[Any], clock: VirtualClock, span: float) -> Any:
    """Run a loop for a time; what it saves at the end."""

    async def consume() -> None:
        async for _ in loop:
            pass

    running = asyncio.ensure_future(consume())
    await clock.advance(span)
    state = loop.dump()
    loop.stop()
    await running
    return json.loads(json.dumps(state))


async def nothing() -> list[int]:
    return []


@pytest.mark.parametrize("strategy", [DOUBLING, WORTH, Ewma()], ids=lambda each: each.name)
def test_a_loop_goes_on_at_its_pace(strategy: Strategy) -> None:
    async def main(clock: VirtualClock) -> None:
        source, seen = Batches(clock), Seen()
        before = loop_of(source, strategy, clock)
        state = await run(before, clock, 3600.0)
        await clock.advance(600.0)  # nobody polls
        after = loop_of(source, strategy, clock, state, events=seen.events)
        began = clock.epoch()
        await run(after, clock, 21.0)
        assert seen.of(PaceRestored) == [PaceRestored("Batches", 600.0, "")]
        first = next(at for at in source.asked if at >= began)
        assert first <= began + strategy.pacer().first().delay, "as soon as without it"
        rate = before.state().get("long_run_rate")
        if rate is not None:
            assert after.state()["long_run_rate"] == pytest.approx(rate, rel=0.1)

    virtually(main)


def test_an_idle_loop_is_idle_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        state = await run(loop_of(nothing, DOUBLING, clock), clock, 600.0)
        cold, warm = loop_of(nothing, DOUBLING, clock), loop_of(nothing, DOUBLING, clock, state)
        await run(cold, clock, 60.0)
        await run(warm, clock, 60.0)
        assert warm.interval == 5.0
        assert warm.counts.polls <= 14 < 16 <= cold.counts.polls

    virtually(main)


def test_a_cycle_keeps_its_phase_through_a_downtime() -> None:
    """The next batch of a timer is expected where it comes, also on another machine."""

    async def before(clock: VirtualClock) -> Any:
        return await run(loop_of(Batches(clock), WORTH, clock), clock, 4 * 3600.0)

    state = virtually(before)

    async def main(clock: VirtualClock) -> None:
        await clock.advance(6015.0)
        state["saved_at"] = clock.epoch() - 1815.0
        source = Batches(clock)
        source._seen = clock.epoch()
        warm = loop_of(source, WORTH, clock, state)
        await run(warm, clock, 900.0)  # batches at another phase would have ended the trust in it
        assert warm.state()["period"] == pytest.approx(60.0, abs=0.5)

    virtually(main)


def test_there_is_nothing_to_save_at_first() -> None:
    async def main(clock: VirtualClock) -> None:
        loop = loop_of(nothing, Adaptive("1s", "1s"), clock, spread=False)
        assert loop.dump() is None
        assert await run(loop, clock, PACE_POLLS - 1.5) is None
        state = await run(loop_of(nothing, DOUBLING, clock), clock, 600.0)
        warm = loop_of(nothing, DOUBLING, clock, state)
        assert warm.dump() is None
        assert await run(warm, clock, 1.0) is not None

    virtually(main)


def test_saving_again_loses_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        source = Batches(clock)
        state: Any = None
        rates = []
        for _ in range(5):
            loop = loop_of(source, WORTH, clock, state)
            state = await run(loop, clock, 3600.0)
            rates.append(loop.state()["long_run_rate"])
            await clock.advance(1000.0)
        assert rates[1:] == pytest.approx([5 / 60] * 4, rel=0.1)
        assert state["at"] >= 5 * 3600 + 4 * 1000 - 1

    virtually(main)


def problem_of(state: Any, strategy: Strategy = DOUBLING) -> str:
    seen = Seen()

    async def main(clock: VirtualClock) -> int:
        loop = loop_of(nothing, strategy, clock, state, events=seen.events)
        await run(loop, clock, 20.0)
        assert strategy.min_interval <= loop.interval <= strategy.max_interval
        return loop.counts.polls

    assert virtually(main) > 0
    [event] = seen.of(PaceRestored)
    return str(event.problem)


def saved(clock_ahead: float = 0.0) -> Any:
    async def main(clock: VirtualClock) -> Any:
        state = await run(loop_of(nothing, DOUBLING, clock), clock, 600.0)
        return state | {"saved_at": clock.epoch() - 600.0 + clock_ahead}

    return virtually(main)


def test_what_cannot_be_used_is_told() -> None:
    state = saved()
    assert problem_of(state) == ""
    assert problem_of(saved(3600.0)) == "", "the clock was set back"
    assert problem_of(saved(-PACE_KEPT - DAY)) == "it is 8 days old"
    assert problem_of({}) == "it is not a saved pace"
    assert problem_of([state]) == "it is not a saved pace"
    assert problem_of(state | {"at": float("nan")}) == "it is not a saved pace"
    assert problem_of(state | {"at": True}) == "it is not a saved pace"
    assert problem_of(state | {"pacer": None}) == "it is not an object"
    assert "its strategy is 'adaptive'" in problem_of(state, WORTH)
    assert "its arguments is" in problem_of(state, Adaptive("100ms", "6s"))


@given(jsons, jsons, jsons)
@settings(deadline=None, max_examples=40)
def test_arbitrary_states_do_no_harm(state: object, at: object, pacer: object) -> None:
    if state is not None:
        problem_of(state)
    problem_of({**saved(), "at": at})
    problem_of({"saved_at": at, "at": at, "pacer": pacer}, WORTH)
