"""The poll loop: when it polls. What it delivers, and how it ends, is in test_loop_batches.py."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pollwise.core.retry import Retry
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import StoreUnavailable
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import PaceChanged, PollFailed, PollFinished, PollRecovered
from pollwise.runtime.hints import Hints
from pollwise.runtime.loop import Batch, LoopOptions, PollLoop, poll
from pollwise.runtime.polling.sync import poll_sync
from tests.support.kit import Seen, virtually

ONE_MORE = Retry.fixed("1ms", attempts=2)
DOUBLING = Adaptive("100ms", "5s")


class Enough(BaseException):
    """The source was asked as often as the test wants."""


class Source:
    """Answers each poll with the next of `answers`, then with nothing; keeps when it was asked."""

    def __init__(self, *answers: Any, takes: float = 0.0) -> None:
        self.answers = list(answers)
        self.takes = takes
        self.asked: list[float] = []
        self.most = 10_000

    async def __call__(self) -> Any:
        self.asked.append(asyncio.get_running_loop().time())
        if len(self.asked) >= self.most:
            raise Enough
        if self.takes:
            await asyncio.sleep(self.takes)
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, BaseException):
            raise answer
        return answer


def polled(
    source: Source, strategy: Strategy, *, polls: int, seen: Seen | None = None, **given: Any
) -> list[float]:
    """When a loop polls, for so many polls, from the first on."""
    source.most = polls
    events = (Seen() if seen is None else seen).events

    async def main(clock: VirtualClock) -> None:
        async for _ in poll(source, strategy, clock=clock, events=events, **{"seed": 1, **given}):
            pass

    with pytest.raises(Enough):
        virtually(main)
    return source.asked


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


# The first poll.


def test_the_first_poll_is_spread_over_the_first_interval() -> None:
    firsts = [polled(Source(), Fixed("10s"), polls=1, seed=seed)[0] for seed in range(200)]
    assert 0 <= min(firsts) < 0.5
    assert 9.5 < max(firsts) < 10
    deciles = statistics.quantiles(firsts, n=10)
    assert deciles == pytest.approx(range(1, 10), abs=1.2)


def test_without_spread_the_first_poll_is_at_once() -> None:
    assert polled(Source(), Fixed("10s"), polls=2, spread=False) == [0.0, 10.0]


def test_a_hint_ends_the_wait_for_the_first_poll_too() -> None:
    async def main(clock: VirtualClock) -> float:
        hints, source = Hints(), Source([1])
        loop = poll(source, Fixed("1h"), hints=hints, clock=clock, seed=1)
        asyncio.get_running_loop().call_later(1, hints.send)
        await anext(loop)
        return source.asked[0]

    assert virtually(main) == 1.0


# The pace.


def test_an_idle_source_is_polled_less_and_less_up_to_the_max_interval() -> None:
    waits = gaps(polled(Source(), DOUBLING, polls=60, spread=False))
    planned = [0.2, 0.4, 0.8, 1.6, 3.2]
    for wait, plan in zip(waits, planned, strict=False):
        assert 0.9 * plan <= wait <= 1.1 * plan + 1e-9
    max_interval = waits[len(planned) :]
    assert all(4.5 <= wait <= 5.0 + 1e-9 for wait in max_interval)
    assert max(max_interval) - min(max_interval) > 0.4  # jitter is alive where idle pollers live


def test_many_loops_at_the_max_interval_do_not_poll_in_step() -> None:
    times = [polled(Source(), DOUBLING, polls=40, seed=seed)[-1] for seed in range(20)]
    assert len({round(t, 1) for t in times}) > 10


def test_a_fixed_interval_counts_from_the_end_of_the_poll_before() -> None:
    assert polled(Source(takes=3.0), Fixed("10s"), polls=3, spread=False) == [0.0, 13.0, 26.0]


@pytest.mark.parametrize(
    ("given", "waits"),
    [
        ({"capacity": 2, "drain": True}, [0.0, 0.0, 10.0]),
        ({"capacity": 2}, [10.0, 10.0, 10.0]),
        ({"capacity": 3, "drain": True}, [10.0, 10.0, 10.0]),
        ({}, [10.0, 10.0, 10.0]),
    ],
)
def test_a_full_batch_is_followed_by_the_next_poll_at_once(
    given: dict[str, Any], waits: list[float]
) -> None:
    source = Source([1, 2], [3, 4], [5])
    assert gaps(polled(source, Fixed("10s"), polls=4, spread=False, **given)) == waits


def test_a_busy_consumer_is_not_polled_past_and_not_made_to_wait_again() -> None:
    async def main(clock: VirtualClock) -> list[float]:
        source = Source([1], [2], [3])
        async for batch in poll(source, Fixed("10s"), clock=clock, spread=False):
            await asyncio.sleep(25 if batch == [1] else 4)
            if batch == [3]:
                break
        return source.asked

    assert virtually(main) == [0.0, 25.0, 35.0]


def test_the_loop_tells_what_it_did() -> None:
    seen = Seen()
    polled(Source([1, 2], [], OSError("x"), [3]), DOUBLING, polls=5, seen=seen, name="mail")
    finished = seen.of(PollFinished)[:3]
    assert [(e.source, e.found, e.interval, e.hinted) for e in finished] == [
        ("mail", 2, 0.1, False),
        ("mail", 0, 0.2, False),
        ("mail", 1, 0.1, False),
    ]
    assert [e.what for e in seen.of(PaceChanged)][:2] == ["back-off", "reset"]
    assert [e.error for e in seen.of(PollFailed)] == ["OSError: x"]
    assert seen.of(PollRecovered) == [PollRecovered("mail", 1)]


def test_the_state_is_the_pacers_and_the_loops() -> None:
    async def main(clock: VirtualClock) -> dict[str, Any]:
        source = Source([], OSError(), [1, 2])
        loop = poll(source, DOUBLING, clock=clock, events=Seen().events)
        await anext(loop)
        return dict(loop.state())

    state = virtually(main)
    assert state["interval"] == 0.1
    counted = {k: state[k] for k in ("polls", "polls_empty", "polls_failed", "found", "hinted")}
    assert counted == {
        "polls": 3, "polls_empty": 1, "polls_failed": 1, "found": 2, "hinted": 0,
    }  # fmt: skip
    assert state["last_found"] == 2


def test_the_state_says_what_the_last_poll_found_and_when() -> None:
    async def main(clock: VirtualClock) -> None:
        loop = poll(Source([], [1, 2]), Fixed("10s"), clock=clock, spread=False)
        assert (loop.state()["last_found"], loop.state()["last_poll_at"]) == (None, None)
        await anext(loop)
        ended = clock.epoch()
        await clock.sleep(5)
        state = loop.state()
        assert state["last_found"] == 2
        assert state["last_poll_at"] == pytest.approx(ended)

    virtually(main)


# Failures.


def test_a_failed_poll_backs_off_by_the_retry_and_leaves_the_pacer_alone() -> None:
    trouble = [StoreUnavailable("down")] * 5
    retry = Retry.exponential("1s", "4s", attempts=None, jitter=0)
    source = Source([], [], *trouble, [])
    seen = Seen()
    times = polled(source, DOUBLING, polls=9, retry=retry, seen=seen, spread=False)
    waits = gaps(times)
    assert waits[2:7] == pytest.approx([1, 2, 4, 4, 4])
    assert 0.72 <= waits[7] <= 0.88  # 0.8: where the pacer was, one empty poll later
    assert [e.failures for e in seen.of(PollFailed)] == [1, 2, 3, 4, 5]
    assert [e.delay for e in seen.of(PollFailed)] == [1, 2, 4, 4, 4]
    assert seen.of(PollRecovered) == [PollRecovered("Source", 5)]


@pytest.mark.parametrize("error", [TypeError("x"), NameError("x"), AttributeError("x")])
def test_a_mistake_in_the_fetch_is_raised_at_once(error: Exception) -> None:
    calls = []

    async def fetch() -> list[int]:
        calls.append(1)
        raise error

    def fetch_sync() -> list[int]:
        calls.append(1)
        raise error

    async def main(clock: VirtualClock) -> None:
        with pytest.raises(type(error)):
            await anext(poll(fetch, Fixed("1ms"), clock=clock, retry=ONE_MORE))
        assert len(calls) == 2, "a retry of the user's own decides"
        with pytest.raises(type(error)):
            await anext(poll(fetch, Fixed("1ms"), clock=clock))

    virtually(main)
    assert len(calls) == 3
    with pytest.raises(type(error)):
        next(poll_sync(fetch_sync, Fixed("1ms"), spread=False))
    assert len(calls) == 4


def test_recovery_resets_the_retry() -> None:
    down = StoreUnavailable("down")
    retry = Retry.exponential("1s", "60s", attempts=None, jitter=0)
    source = Source(down, down, down, [], down, [])
    waits = gaps(polled(source, Fixed("10s"), polls=7, retry=retry, spread=False))
    assert waits == pytest.approx([1, 2, 4, 10, 1, 10])


def test_a_hint_does_not_shorten_the_back_off_of_a_failing_source() -> None:
    async def main(clock: VirtualClock) -> list[float]:
        hints, source = Hints(), Source(OSError(), [1])
        retry = Retry.fixed("30s", attempts=None)
        loop = poll(
            source, Fixed("1h"), hints=hints, retry=retry, clock=clock, spread=False,
            events=Seen().events,
        )  # fmt: skip
        for when in (1, 2, 29):
            asyncio.get_running_loop().call_later(when, hints.send)
        await anext(loop)
        return source.asked

    assert virtually(main) == [0.0, 30.0]


# Hints.


def test_one_put_wakes_one_of_fifty() -> None:
    async def main(clock: VirtualClock) -> tuple[list[int], list[int]]:
        hints, items = Hints(), list[int]()

        async def fetch() -> list[int]:
            found, items[:] = items[:1], items[1:]
            return found

        loops = [
            poll(fetch, Fixed("1h"), hints=hints, clock=clock, seed=n, capacity=5)
            for n in range(50)
        ]
        tasks = [asyncio.ensure_future(anext(loop)) for loop in loops]
        await asyncio.sleep(3600 * 3)
        before = [loop.counts.polls for loop in loops]
        items.append(1)
        hints.send(1)
        await asyncio.sleep(0.001)
        after = [loop.counts.polls for loop in loops]
        found = [loop.counts.found for loop in loops]
        for task in tasks:
            task.cancel()
        return [b - a for a, b in zip(before, after, strict=True)], found

    more, found = virtually(main)
    assert sum(more) == 1
    assert sum(found) == 1


@settings(deadline=None, max_examples=150)
@given(
    puts=st.lists(st.floats(0, 30), min_size=1, max_size=8),
    takes=st.sampled_from([0.0, 0.5, 2.0]),
    busy=st.sampled_from([0.0, 1.0, 7.0]),
    capacity=st.sampled_from([1, 3, None]),
    seed=st.integers(0, 10**6),
)
@example(puts=[0.25], takes=0.5, busy=0.0, capacity=None, seed=0)
def test_no_hint_is_missed(
    puts: list[float], takes: float, busy: float, capacity: int | None, seed: int
) -> None:
    """What is put is found by a poll that begins as soon as the loop is free to poll."""

    async def main(clock: VirtualClock) -> list[tuple[float, float]]:
        hints, items, delivered = Hints(), list[float](), list[tuple[float, float]]()
        free_at = 0.0

        async def fetch() -> list[tuple[float, float]]:
            # It looks when it begins and answers when it ends, as a query does.
            found = items[:capacity]
            del items[: len(found)]
            began = max(clock.now(), free_at)
            await asyncio.sleep(takes)
            return [(item, began) for item in found]

        async def put(when: float) -> None:
            await asyncio.sleep(when)
            items.append(when)
            hints.send(1)

        putting = [asyncio.create_task(put(when)) for when in puts]
        loop = poll(
            fetch, Fixed("1d"), hints=hints, clock=clock, seed=seed, capacity=capacity,
            spread=False, drain=True,
        )  # fmt: skip
        async with asyncio.timeout(86_000):  # a missed one comes a day later
            async for batch in loop:
                delivered += batch
                await asyncio.sleep(busy)
                if len(delivered) == len(puts):
                    break
        await asyncio.gather(*putting)
        return delivered

    delivered = virtually(main)
    assert sorted(item for item, _ in delivered) == sorted(puts)
    rounds = len(puts) + 1
    for item, began in delivered:
        assert began - item <= rounds * (takes + busy) + 1e-6


def test_a_hint_during_a_poll_is_not_lost_to_a_busy_loop() -> None:
    async def main(clock: VirtualClock) -> float:
        hints, items = Hints(), ["for the first"]

        async def fetch() -> list[str]:
            found = items[:]
            items.clear()
            await asyncio.sleep(1)
            return found

        def loop() -> Any:
            return poll(fetch, Fixed("1h"), hints=hints, clock=clock, spread=False)

        busy, other = loop(), loop()
        await anext(busy)  # it has its batch, and takes an hour over it
        waiting = asyncio.ensure_future(anext(other))
        await asyncio.sleep(0.5)  # the other is in the middle of its poll
        items.append("for the second")
        hints.send(1)
        await waiting
        return clock.now()

    assert virtually(main) < 10


def test_a_source_may_ask_to_be_looked_at_sooner() -> None:
    async def main(clock: VirtualClock) -> list[float]:
        asked: list[float] = []

        async def source(hold: float) -> Batch[int]:
            asked.append(clock.now())
            if len(asked) == 1:
                loop.poll_by(clock.now() + 60)
                loop.poll_by(clock.now() + 7)
            if len(asked) == 2:
                loop.poll_by(clock.now() + 90_000)
            return Batch([1] if len(asked) == 4 else [])

        loop: PollLoop[int] = PollLoop(
            source, Fixed("1h"), "x", LoopOptions(clock=clock, spread=False, events=Seen().events)
        )
        await anext(loop)
        return asked

    assert virtually(main) == [0.0, 7.0, 3607.0, 7207.0]


@pytest.mark.parametrize("at", [lambda loop: loop.hint(), lambda loop: loop._options.hints.send()])
def test_a_hint_is_counted_and_emitted(at: Callable[[Any], None]) -> None:
    async def main(clock: VirtualClock) -> tuple[int, list[bool]]:
        seen, source = Seen(), Source([], [1])
        loop = poll(
            source, Fixed("1h"), hints=Hints(), clock=clock, spread=False, events=seen.events
        )
        asyncio.get_running_loop().call_later(5, at, loop)
        await anext(loop)
        return loop.counts.hinted, [e.hinted for e in seen.of(PollFinished)]

    assert virtually(main) == (1, [False, True])
