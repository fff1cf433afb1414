"""The loop without an event loop: it decides as the async one does, and any thread may end it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pollwise
from pollwise.core.retry import Retry
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.batch_fill import BatchFill
from pollwise.core.strategies.ewma import Ewma
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.worth import Worth
from pollwise.errors import ConfigError, StoreError
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import PollFailed, PollFinished
from pollwise.runtime.hints import Hints
from pollwise.runtime.loop import Batch, poll
from pollwise.runtime.polling.sync import SyncPollLoop, poll_sync
from pollwise.testing import SteppedClock
from tests.support.forked import Forked
from tests.support.kit import Seen, virtually

#: How long a test waits for what another thread or process does, in seconds.
PATIENCE = 60


class Enough(BaseException):
    """The source was polled as often as the test wants."""


def answering(*answers: Any) -> Callable[[], Any]:
    left = list(answers)

    def fetch() -> Any:
        answer = left.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return fetch


def polled(fetch: Callable[..., Any], strategy: Strategy, **given: Any) -> SyncPollLoop[Any]:
    chosen = {"clock": VirtualClock(), "events": Seen().events, "spread": False, **given}
    return poll_sync(fetch, strategy, **chosen)


# The same decisions.

STRATEGIES = [
    Fixed("10s"),
    Adaptive("100ms", "5s"),
    BatchFill("1s", "8s"),
    Ewma(),
    Worth(poll_cost=1, wait_cost=1),
]
#: What a poll answers: so many items, or an error.
ANSWERS = st.lists(st.none() | st.integers(0, 6), min_size=1, max_size=40)


@settings(deadline=None, max_examples=120)
@given(
    answers=ANSWERS,
    strategy=st.sampled_from(STRATEGIES),
    capacity=st.sampled_from([None, 3]),
    drain=st.sampled_from([None, True, False]),
    takes=st.sampled_from([0.0, 0.25]),
    hinted_at=st.lists(st.floats(0.001, 60), max_size=4),
    spread=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_both_loops_make_the_same_decisions(
    answers: list[int | None],
    strategy: Strategy,
    capacity: int | None,
    drain: bool | None,
    takes: float,
    hinted_at: list[float],
    spread: bool,
    seed: int,
) -> None:
    given: dict[str, Any] = {
        "capacity": capacity, "drain": drain, "spread": spread, "seed": seed, "name": "x",
        "retry": Retry.exponential("1s", "20s", attempts=None),
    }  # fmt: skip

    def answer(left: list[int | None]) -> list[int]:
        if not left:
            raise Enough
        found = left.pop(0)
        if found is None:
            raise OSError("down")
        return [0] * found

    async def awaiting(clock: VirtualClock) -> tuple[list[float], Seen]:
        times, seen, left, hints = list[float](), Seen(), [*answers], Hints()

        async def fetch() -> list[int]:
            times.append(clock.now())
            await asyncio.sleep(takes)
            return answer(left)

        for when in hinted_at:
            asyncio.get_running_loop().call_later(when, hints.send)
        with pytest.raises(Enough):
            async for _ in poll(
                fetch, strategy, clock=clock, events=seen.events, hints=hints, **given
            ):
                pass
        return times, seen

    def blocking() -> tuple[list[float], Seen]:
        clock = VirtualClock()
        times, seen, left, hints = list[float](), Seen(), [*answers], Hints()

        def fetch() -> list[int]:
            times.append(clock.now())
            clock.wait(takes)
            return answer(left)

        for when in hinted_at:
            clock.call_later(when, hints.send)
        with pytest.raises(Enough):
            for _ in poll_sync(
                fetch, strategy, clock=clock, events=seen.events, hints=hints, **given
            ):
                pass
        return times, seen

    times, seen = virtually(awaiting)
    same_times, same = blocking()
    assert same_times == pytest.approx(times, rel=1e-9, abs=1e-9)
    assert same.names() == seen.names()
    for one, other in zip(same.of(PollFinished), seen.of(PollFinished), strict=True):
        assert (one.found, one.hold, one.hinted) == (other.found, other.hold, other.hinted)
        assert (one.interval, one.delay) == pytest.approx((other.interval, other.delay))
    for failed, also in zip(same.of(PollFailed), seen.of(PollFailed), strict=True):
        assert (failed.failures, failed.error) == (also.failures, also.error)
        assert failed.delay == pytest.approx(also.delay)


# What it delivers.


def test_the_three_lines() -> None:
    fetch = answering([1, 2], None, (), Batch([3], capacity=9))
    batches = list[int]()
    for batch in pollwise.poll_sync(fetch, pollwise.Adaptive("1ms", "5s")):
        batches += batch
        if len(batches) == 3:
            break
    assert batches == [1, 2, 3]


def test_it_starts_no_event_loop_and_no_thread() -> None:
    seen = list[tuple[Any, int]]()

    def fetch() -> list[int]:
        seen.append((asyncio._get_running_loop(), threading.active_count()))
        return [1] if len(seen) == 5 else []

    before = threading.active_count()
    assert next(poll_sync(fetch, Adaptive("1ms", "2ms"), hints=Hints())) == [1]
    assert seen == [(None, before)] * 5


def test_a_fetch_that_takes_a_hold_gets_the_strategys() -> None:
    holds = []

    def fetch(*, hold: float) -> list[int]:
        holds.append(hold)
        return [1]

    next(polled(fetch, Adaptive(hold="20s")))
    next(polled(fetch, Adaptive()))
    assert holds == [20.0, 0.0]
    with pytest.raises(ConfigError, match="has no argument named `hold`"):
        poll_sync(answering(), Adaptive(hold="20s"))


def test_an_async_fetch_is_refused_and_points_to_poll() -> None:
    async def fetch() -> list[int]:
        return [1]

    with pytest.raises(ConfigError, match=r"use pollwise\.poll$"):
        next(polled(fetch, Fixed("1s")))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fetch": 7}, "not callable"),
        ({"strategy": "fast"}, "is not a strategy"),
        ({"capacity": 0}, "capacity"),
        ({"retry": 3}, "is not a Retry"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(
    given: dict[str, Any], words: str
) -> None:
    chosen: dict[str, Any] = {"fetch": answering(), "strategy": Fixed("1s"), **given}
    with pytest.raises(ConfigError, match=words):
        poll_sync(chosen.pop("fetch"), chosen.pop("strategy"), **chosen)


def test_the_hints_of_a_store_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with SqliteQueue(tmp_path / "jobs.db") as queue:
            with pytest.raises(ConfigError, match="the hints of a store need an event loop"):
                poll_sync(answering(), Fixed("1s"), hints=queue.hints())
        async with MemoryQueue() as memory:
            poll_sync(answering(), Fixed("1s"), hints=memory.hints())

    asyncio.run(main())


# Errors.


def test_a_permanent_error_is_raised_and_ends_the_loop() -> None:
    loop = polled(answering([1], StoreError("never again")), Fixed("1s"))
    assert next(loop) == [1]
    with pytest.raises(StoreError, match="never again"):
        next(loop)
    assert list(loop) == []
    assert (loop.counts.polls, loop.counts.failed) == (2, 1)


def test_what_is_no_exception_passes_and_the_loop_can_go_on() -> None:
    clock = VirtualClock()
    loop = polled(answering([1], KeyboardInterrupt(), [2]), Fixed("10s"), clock=clock)
    assert next(loop) == [1]
    with pytest.raises(KeyboardInterrupt):
        next(loop)
    assert next(loop) == [2]
    assert clock.now() == 10.0


# Ending it.


def test_it_ends_when_it_is_closed_and_at_the_end_of_its_block() -> None:
    loop = polled(answering([1], [2]), Fixed("1s"), hints=Hints())
    with loop as same:
        assert same is loop
        assert next(loop) == [1]
    assert loop.stopped
    assert list(loop) == []
    other = polled(answering([1]), Fixed("1s"))
    other.close()
    other.close()
    assert list(other) == []


@pytest.mark.parametrize("hints", [None, Hints()], ids=["no hints", "hints"])
@pytest.mark.parametrize("answers", [[[1], []], [[1], OSError()]], ids=["pause", "back-off"])
def test_a_stop_ends_a_pause_and_a_back_off_at_once(hints: Hints | None, answers: Any) -> None:
    clock = VirtualClock()
    retry = Retry.fixed("1h", attempts=None)
    loop = polled(answering(*answers), Fixed("1h"), hints=hints, clock=clock, retry=retry)
    clock.call_later(3605, loop.stop)
    assert list(loop) == [[1]]
    assert clock.now() == 3605.0


@pytest.mark.parametrize("hints", [None, Hints()], ids=["no hints", "hints"])
def test_another_thread_stops_it_in_an_hour_long_pause(hints: Hints | None) -> None:
    batches, polled_twice = list[Any](), threading.Event()

    def fetch() -> list[int]:
        if batches:
            polled_twice.set()
            return []
        return [1]

    loop = poll_sync(fetch, Adaptive("1ms", "1h", backoff_multiplier=1e9), hints=hints)
    thread = threading.Thread(target=lambda: batches.extend(loop), daemon=True)
    # The first batch comes without a pause; so does the second poll after it.
    batches += next(loop)
    thread.start()
    assert polled_twice.wait(PATIENCE)
    loop.stop()
    thread.join(PATIENCE)
    assert not thread.is_alive()


# Hints.


def test_a_hint_ends_the_pause_but_not_a_back_off() -> None:
    clock, hints, times = VirtualClock(), Hints(), list[float]()

    def fetch() -> list[int]:
        times.append(clock.now())
        if len(times) == 2:
            raise OSError("down")
        return [1] if len(times) == 4 else []

    retry = Retry.fixed("30s", attempts=None)
    loop = polled(fetch, Fixed("1h"), clock=clock, hints=hints, retry=retry)
    for when in (5, 7, 100):
        clock.call_later(when, hints.send)
    assert next(loop) == [1]
    assert times == [0.0, 5.0, 35.0, 100.0]
    assert loop.counts.hinted == 1  # that of the failed poll is not counted


def test_the_loops_own_hint_works_too() -> None:
    clock = VirtualClock()
    loop = polled(answering([], [1]), Fixed("1h"), clock=clock)
    clock.call_later(5, loop.hint)
    assert next(loop) == [1]
    assert clock.now() == 5.0


def test_no_hint_of_another_thread_is_missed() -> None:
    """Every item is put, then hinted at; with a pause of an hour, a missed hint would hang."""
    items, hints, found = deque[int](), Hints(), list[int]()

    def fetch() -> list[int]:
        try:
            return [items.popleft()]
        except IndexError:
            return []

    loops = [poll_sync(fetch, Adaptive("1h", "2h"), hints=hints, capacity=1) for _ in range(3)]
    every, all_found = 400, threading.Event()

    def consume(loop: SyncPollLoop[int]) -> None:
        for batch in loop:
            found.extend(batch)
            if len(found) == every:
                all_found.set()

    threads = [threading.Thread(target=consume, args=[loop], daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    for number in range(every):
        items.append(number)
        hints.send(1)
    assert all_found.wait(PATIENCE), f"{len(items)} items are left"
    for loop in loops:
        loop.stop()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(found) == list(range(every))


def test_threads_join_and_leave_while_another_sends() -> None:
    hints, over, errors = Hints(), threading.Event(), list[BaseException]()

    def sending() -> None:
        try:
            while not over.is_set():
                hints.send(3, ["a"])
        except BaseException as error:
            errors.append(error)

    def joining() -> None:
        try:
            for _ in range(100):
                with poll_sync(answering([], [1]), Fixed("1ms"), hints=hints) as loop:
                    next(loop)
        except BaseException as error:
            errors.append(error)

    sender = threading.Thread(target=sending, daemon=True)
    joiners = [threading.Thread(target=joining, daemon=True) for _ in range(3)]
    for thread in (sender, *joiners):
        thread.start()
    for thread in joiners:
        thread.join(PATIENCE)
    over.set()
    sender.join(PATIENCE)
    assert errors == []


# Signals.

CHILD = """
import signal, sys
import pollwise

hints = pollwise.Hints()
polls = 0


def fetch():
    global polls
    polls += 1
    if polls == 2:
        print("polled", flush=True)
    return [polls] if polls == 1 else []


loop = pollwise.poll_sync(
    fetch, pollwise.Fixed("1h"), hints=hints, spread=False, drain=True, capacity=1
)
if sys.argv[1] == "handled":
    signal.signal(signal.SIGINT, lambda *_: loop.stop())
seen = []
try:
    for batch in loop:
        seen += batch
except KeyboardInterrupt:
    print("interrupted", seen, loop.stopped, flush=True)
else:
    print("stopped", seen, loop.stopped, flush=True)
"""


@pytest.mark.parametrize(
    ("way", "told"),
    [("plain", "interrupted [1] False\n"), ("handled", "stopped [1] True\n")],
)
def test_ctrl_c_ends_a_pause_of_an_hour(way: str, told: str, tmp_path: Path) -> None:
    script = tmp_path / "polling.py"
    script.write_text(CHILD)
    child = Forked([script, way])
    try:
        assert child.stdout.readline() == "polled\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == told
        assert child.wait(PATIENCE) == 0
    finally:
        child.close()


# Virtual time.


def test_virtual_time_passes_in_a_blocking_loop() -> None:
    clock, times = VirtualClock(), list[float]()
    began = clock.epoch()

    def fetch() -> list[int]:
        times.append(clock.now())
        return [1] if len(times) == 1000 else []

    assert next(polled(fetch, Fixed("1m"), clock=clock)) == [1]
    assert {round(after - before, 6) for before, after in pairwise(times)} == {60.0}
    assert clock.epoch() - began == pytest.approx(999 * 60)


def test_a_stepped_clock_serves_too() -> None:
    clock = SteppedClock()

    def fetch() -> list[int]:
        clock.skip("5s")
        return [1]

    loop = polled(fetch, Fixed("1m"), clock=clock)
    next(loop)
    next(loop)
    assert clock.now() == 70.0
    assert clock.epoch() == SteppedClock().epoch() + 70.0


def test_blocking_an_event_loop_for_virtual_time_is_an_error() -> None:
    async def main(clock: VirtualClock) -> None:
        next(polled(answering([]), Fixed("1m"), clock=clock))

    with pytest.raises(RuntimeError, match="virtual time in an event loop"):
        virtually(main)
