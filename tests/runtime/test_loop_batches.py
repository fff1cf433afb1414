"""The poll loop: what it delivers, what it refuses, and how it ends."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest

import pollwise
from pollwise.core.retry import Retry
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError, StoreError
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import PollFinished
from pollwise.runtime.hints import Hints
from pollwise.runtime.loop import Batch, poll
from tests.support.kit import Seen, SteppingLoop, interrupted_at, virtually

NOW = {"spread": False}


def first_batch(fetch: Any, strategy: Any = None, **given: Any) -> Any:
    async def main(clock: VirtualClock) -> Any:
        events = given.pop("events", Seen().events)
        loop = poll(fetch, strategy or Fixed("1s"), clock=clock, events=events, **given)
        async with asyncio.timeout(3600):
            return await anext(loop)

    return virtually(main)


def answering(*answers: Any) -> Callable[[], Any]:
    left = list(answers)

    async def fetch() -> Any:
        answer = left.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return fetch


# What a fetch may return.


class Column:
    """As arrays and frames do, it has a length and refuses to be true or false."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return (7, 8)[index]

    def __bool__(self) -> bool:
        raise ValueError("the truth of a column is ambiguous")


@pytest.mark.parametrize(
    ("answer", "delivered"),
    [
        ([1, 2], [1, 2]),
        ((1, 2), (1, 2)),
        (Batch([1, 2], capacity=2, waits=(0.5, 1.5)), [1, 2]),
    ],
)
def test_a_fetch_returns_a_list_or_a_batch_and_nothing_or_none_is_empty(
    answer: Any, delivered: Any
) -> None:
    assert first_batch(answering(None, [], (), Batch([]), answer)) == delivered


def test_items_need_only_a_length() -> None:
    column = Column()
    assert first_batch(answering(column)) is column


@pytest.mark.parametrize(
    "answer",
    ["text", b"bytes", {"items": []}, 7, (n for n in [1]), object(), True, Batch(iter([1]))],  # type: ignore[arg-type]
    ids=lambda answer: type(answer).__name__,
)
def test_what_is_no_list_is_refused_and_not_polled_again(answer: Any) -> None:
    with pytest.raises(ConfigError, match="not a list of items"):
        first_batch(answering(answer))


def test_a_fetch_that_is_not_async_is_refused_and_not_polled_again() -> None:
    with pytest.raises(ConfigError, match="async def fetch"):
        first_batch(lambda: [1])


def test_a_fetch_that_is_an_async_generator_is_refused() -> None:
    async def fetch() -> Any:
        yield 1

    with pytest.raises(ConfigError, match="async def fetch"):
        first_batch(fetch)


def test_any_callable_that_can_be_awaited_will_do() -> None:
    async def fetch(start: int) -> list[int]:
        return [start]

    class Fetcher:
        async def __call__(self) -> list[int]:
            return [2]

    assert first_batch(functools.partial(fetch, 1)) == [1]
    assert first_batch(Fetcher()) == [2]
    assert first_batch(lambda: fetch(3)) == [3]


def test_a_batch_of_the_source_knows_its_own_capacity() -> None:
    async def main(clock: VirtualClock) -> list[tuple[int, int | None]]:
        seen = Seen()
        fetch = answering(Batch([1], capacity=1), Batch([2], capacity=9), [3])
        loop = poll(fetch, Fixed("1s"), capacity=5, clock=clock, events=seen.events)
        for _ in range(3):
            await anext(loop)
        return [(e.found, e.capacity) for e in seen.of(PollFinished)]

    assert virtually(main) == [(1, 1), (1, 9), (1, 5)]


# Holding.


def test_a_fetch_that_takes_a_hold_gets_the_strategys() -> None:
    holds: list[float] = []

    async def fetch(*, hold: float) -> list[int]:
        holds.append(hold)
        return [1]

    first_batch(fetch, Adaptive(hold="20s"))
    first_batch(fetch, Adaptive())
    assert holds == [20.0, 0.0]


def test_a_decorator_may_hide_or_pass_on_the_hold() -> None:
    holds: list[float] = []

    async def fetch(*, hold: float) -> list[int]:
        holds.append(hold)
        return [1]

    @functools.wraps(fetch)
    async def hides() -> list[int]:
        return await fetch(hold=3.0)

    @functools.wraps(fetch)
    async def passes_on(*given: Any, **named: Any) -> list[int]:
        return await fetch(*given, **named)

    first_batch(hides, Adaptive())
    first_batch(passes_on, Adaptive(hold="20s"))
    assert holds == [3.0, 20.0]


def test_a_strategy_that_holds_needs_a_fetch_that_can() -> None:
    async def fetch(held: float = 0) -> list[int]:
        return [1]

    with pytest.raises(ConfigError, match="has no argument named `hold`"):
        poll(fetch, Adaptive(hold="20s"))


# What `poll` refuses.


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fetch": 7}, "not callable"),
        ({"strategy": "fast"}, "is not a strategy"),
        ({"strategy": Adaptive}, "is not a strategy"),
        ({"capacity": 0}, "capacity"),
        ({"capacity": -1}, "capacity"),
        ({"capacity": "10"}, "capacity"),
        ({"capacity": True}, "capacity"),
        ({"retry": 3}, "is not a Retry"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(
    given: dict[str, Any], words: str
) -> None:
    chosen: dict[str, Any] = {"fetch": answering(), "strategy": Fixed("1s"), **given}
    with pytest.raises(ConfigError, match=words):
        poll(chosen.pop("fetch"), chosen.pop("strategy"), **chosen)


# Errors.


def test_a_permanent_error_is_raised_and_ends_the_loop() -> None:
    async def main(clock: VirtualClock) -> tuple[Any, Any, dict[str, Any]]:
        error = StoreError("never again")
        loop = poll(answering([1], error), Fixed("1s"), clock=clock, events=Seen().events)
        await anext(loop)
        with pytest.raises(StoreError) as raised:
            await anext(loop)
        after = await anext(loop, "ended")
        return raised.value is error, after, dict(loop.state())

    same, after, state = virtually(main)
    assert same
    assert after == "ended"
    assert (state["polls"], state["polls_failed"]) == (2, 1)


def test_what_the_retry_excludes_is_permanent() -> None:
    retry = Retry.fixed("1s", attempts=None, exclude=KeyError)
    with pytest.raises(KeyError):
        first_batch(answering(OSError(), KeyError("x"), [1]), retry=retry)


def test_an_exhausted_retry_raises_the_last_error() -> None:
    retry = Retry.fixed("1s", attempts=3)
    fetch = answering(OSError("1"), OSError("2"), OSError("3"), [4])
    with pytest.raises(OSError, match="3"):
        first_batch(fetch, retry=retry)
    assert first_batch(answering(OSError("1"), OSError("2"), [4]), retry=retry) == [4]


class OfItsOwn(BaseException):
    pass


@pytest.mark.parametrize("error", [OfItsOwn, SystemExit, GeneratorExit])
def test_what_is_no_exception_passes_and_the_loop_can_go_on(error: type[BaseException]) -> None:
    async def main(clock: VirtualClock) -> Any:
        loop = poll(answering(error(), [1]), Fixed("1s"), clock=clock)
        with pytest.raises(error):
            await anext(loop)
        return await anext(loop)

    assert virtually(main) == [1]


# Stopping.


@pytest.mark.parametrize("hints", [None, Hints()], ids=["no hints", "hints"])
def test_a_stop_in_a_pause_ends_it_at_once(hints: Hints | None) -> None:
    async def main(clock: VirtualClock) -> tuple[list[Any], float]:
        loop = poll(answering([1]), Fixed("1h"), hints=hints, clock=clock, spread=False)
        asyncio.get_running_loop().call_later(5, loop.stop)
        return [batch async for batch in loop], clock.now()

    assert virtually(main) == ([[1]], 5.0)


def test_a_stop_in_a_back_off_ends_it_at_once() -> None:
    async def main(clock: VirtualClock) -> float:
        retry = Retry.fixed("1h", attempts=None)
        loop = poll(
            answering(OSError()), Fixed("1s"), retry=retry, clock=clock, spread=False,
            events=Seen().events,
        )  # fmt: skip
        asyncio.get_running_loop().call_later(5, loop.stop)
        assert [batch async for batch in loop] == []
        return clock.now()

    assert virtually(main) == 5.0


def test_a_stop_in_a_poll_delivers_what_the_poll_brings() -> None:
    async def main(clock: VirtualClock) -> list[Any]:
        async def fetch() -> list[int]:
            await asyncio.sleep(10)
            return [1]

        loop = poll(fetch, Fixed("1s"), clock=clock, spread=False)
        asyncio.get_running_loop().call_later(5, loop.stop)
        return [batch async for batch in loop]

    assert virtually(main) == [[1]]


def test_a_stop_before_the_start_and_a_second_stop_are_harmless() -> None:
    async def main(clock: VirtualClock) -> list[Any]:
        loop = poll(answering(), Fixed("1s"), hints=Hints(), clock=clock)
        loop.stop()
        await loop.aclose()
        return [batch async for batch in loop]

    assert virtually(main) == []


def test_a_stopped_loop_takes_no_hint_from_the_others() -> None:
    async def main(clock: VirtualClock) -> float:
        hints = Hints()
        stopped, other = (
            poll(answering([], [], [1]), Fixed("1h"), hints=hints, clock=clock, spread=False)
            for _ in range(2)
        )
        tasks = [asyncio.ensure_future(anext(loop)) for loop in (stopped, other)]
        await asyncio.sleep(1)
        stopped.stop()
        for _ in range(2):
            hints.send(1)
            await asyncio.sleep(1)
        await tasks[1]
        await asyncio.gather(*tasks, return_exceptions=True)
        return clock.now()

    assert virtually(main) == 3.0


# Cancelling.


class Hands:
    """A source that takes several steps, and keeps what it handed out."""

    def __init__(self) -> None:
        self.last = 0
        self.handed: list[int] = []

    async def __call__(self) -> list[int]:
        for _ in range(2):
            await asyncio.sleep(0)
        # From here on the batch is out of the store's hands, and nothing is awaited.
        self.last += 2
        batch = [] if self.last % 4 == 0 else [self.last - 1, self.last]
        self.handed += batch
        return batch


@pytest.mark.parametrize("hints", [False, True], ids=["no hints", "hints"])
def test_cancelling_at_any_step_swallows_no_batch(hints: bool) -> None:
    def cancelled_at(step: int) -> bool:
        source, delivered = Hands(), list[int]()

        async def main(clock: VirtualClock, stepping: SteppingLoop) -> None:
            loop = poll(
                source, Fixed("1s"), capacity=2, clock=clock, seed=1,
                hints=Hints() if hints else None,
            )  # fmt: skip

            async def consume() -> None:
                async for batch in loop:
                    delivered.extend(batch)  # what is delivered is the consumer's from here on
                    await asyncio.sleep(0.5)
                    if len(delivered) >= 8:
                        return

            task = asyncio.create_task(consume())
            stepping.interrupt = task.cancel
            await asyncio.gather(task, return_exceptions=True)

        reached = interrupted_at(step, main)
        assert delivered == source.handed, f"cancelled at step {step}"
        return reached

    steps = next(step for step in itertools.count(1) if not cancelled_at(step))
    assert steps > 30


def test_a_cancelled_loop_can_be_taken_up_again() -> None:
    async def main(clock: VirtualClock) -> Any:
        loop = poll(answering([1], [2]), Fixed("10s"), hints=Hints(), clock=clock, spread=False)
        await anext(loop)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(loop), 3)
        return await anext(loop), clock.now()

    assert virtually(main) == ([2], 10.0)


def test_the_three_lines_of_the_readme() -> None:
    async def main() -> Any:
        batches = list[int]()
        async for batch in pollwise.poll(answering([1, 2]), pollwise.Adaptive("1ms", "5s")):
            batches += batch
            break
        return batches

    assert asyncio.run(main()) == [1, 2]
