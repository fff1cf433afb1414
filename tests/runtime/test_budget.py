"""What the server says, and a budget that several loops share, in the real loop."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.core.budget import Allowance
from pollwise.core.retry import Retry
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError, ProbeError
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import PollFinished
from pollwise.runtime.hints import Hints
from pollwise.runtime.limits.budget import SharedBudget
from pollwise.runtime.loop import Batch, LoopOptions, PollLoop, poll
from tests.runtime.test_loop import Enough, Source, gaps, polled
from tests.support.kit import Seen, virtually


def refusal(retry_after: float | None) -> ProbeError:
    error = ProbeError("429 Too Many Requests")
    error.retry_after = retry_after
    return error


# What the server says.


@pytest.mark.parametrize(
    "batch",
    [
        Batch([], not_before="30s"),
        Batch([1, 2], capacity=2, not_before=30),
        Batch([], allowance=Allowance(0, 30.0)),
        Batch([], not_before=3, allowance=Allowance(0, 30.0)),
    ],
)
def test_the_next_poll_is_not_before_what_the_server_says(batch: Batch[Any]) -> None:
    seen = Seen()
    times = polled(Source(batch), Fixed("1s"), polls=3, spread=False, drain=True, seen=seen)
    assert times == [0.0, 30.0, 31.0]
    assert [event.delay for event in seen.of(PollFinished)] == [30.0, 1.0]


@pytest.mark.parametrize(
    "batch", [Batch([], not_before="1s"), Batch([], allowance=Allowance(1, 9))]
)
def test_a_strategy_that_waits_longer_is_not_hurried(batch: Batch[Any]) -> None:
    assert polled(Source(batch), Fixed("5s"), polls=2, spread=False) == [0.0, 5.0]


@given(st.floats(0, 1e9), st.floats(0, 1e6), st.sampled_from(["batch", "allowance", "error"]))
@settings(max_examples=50, deadline=None)
def test_no_server_silences_a_poller_for_longer_than_the_maximum(
    asked: float, longest: float, how: str
) -> None:
    answer = {
        "batch": Batch([], not_before=asked),
        "allowance": Batch([], allowance=Allowance(0, asked)),
        "error": refusal(asked),
    }[how]
    [gap] = gaps(
        polled(
            Source(answer), Fixed("1s"), polls=2, spread=False, max_retry_after=longest,
            retry=Retry.fixed("1s", attempts=None),
        )
    )  # fmt: skip
    assert gap == pytest.approx(max(1.0, min(asked, longest)))


def test_an_hour_is_the_maximum_by_default() -> None:
    assert gaps(polled(Source(Batch([], not_before=999_999_999)), Fixed("1s"), polls=2)) == [3600.0]


def test_a_worker_is_back_within_a_minute_whatever_a_proxy_says() -> None:
    async def main(clock: VirtualClock) -> list[float]:
        source = Source(refusal(999_999_999), Batch([1]))

        async def claim(_: float) -> Batch[Any]:
            found: Batch[Any] = await source()
            return found

        options = LoopOptions(clock=clock, spread=False, events=Seen().events)
        await anext(PollLoop(claim, Fixed("1s"), "jobs", options))
        return source.asked

    assert virtually(main) == [0.0, 60.0]


def test_the_wait_counts_from_the_end_of_the_poll() -> None:
    source = Source(Batch([], not_before=10), takes=3.0)
    assert polled(source, Fixed("1s"), polls=2, spread=False) == [0.0, 13.0]


@pytest.mark.parametrize("not_before", [-1, math.nan, math.inf, "soon"])
def test_a_wait_that_is_none_is_a_failed_poll(not_before: Any) -> None:
    with pytest.raises(ConfigError, match="not_before"):
        polled(Source(Batch([], not_before=not_before)), Fixed("1s"), polls=2, retry=Retry.never())


@pytest.mark.parametrize("allowance", [4000, Allowance("4000", 1800), Allowance(1, None)])  # type: ignore[arg-type]
def test_an_allowance_without_numbers_is_refused(allowance: Any) -> None:
    with pytest.raises(ConfigError, match="must be an Allowance of two numbers"):
        polled(
            Source(Batch([], allowance=allowance)), Fixed("1s"), polls=2, budget=SharedBudget(60)
        )


def test_a_hint_does_not_end_the_wait_but_what_comes_after_it() -> None:
    async def main(clock: VirtualClock) -> list[float]:
        hints, source = Hints(), Source(Batch([], not_before="10s"), [1])
        loop = poll(source, Fixed("1h"), hints=hints, clock=clock, spread=False)
        for at in (1, 2, 9):
            asyncio.get_running_loop().call_later(at, hints.send)
            asyncio.get_running_loop().call_later(at, loop.hint)
        await anext(loop)
        return source.asked

    assert virtually(main) == [0.0, 10.0]


def test_after_the_wait_hints_work_as_ever() -> None:
    async def main(clock: VirtualClock) -> list[float]:
        hints, source = Hints(), Source(Batch([], not_before="10s"), [1])
        loop = poll(source, Fixed("1h"), hints=hints, clock=clock, spread=False)
        asyncio.get_running_loop().call_later(15, hints.send)
        await anext(loop)
        return source.asked

    assert virtually(main) == [0.0, 15.0]


def test_a_stop_ends_the_wait() -> None:
    async def main(clock: VirtualClock) -> float:
        loop = poll(Source(Batch([], not_before="1h")), Fixed("1s"), clock=clock, spread=False)
        asyncio.get_running_loop().call_later(5, loop.stop)
        with pytest.raises(StopAsyncIteration):
            await anext(loop)
        return clock.now()

    assert virtually(main) == 5.0


@pytest.mark.parametrize("asked", [None, True, "later", -3, math.nan])
def test_an_error_that_asks_for_nothing_is_retried_as_usual(asked: Any) -> None:
    retry = Retry.fixed("2s", attempts=None)
    assert gaps(polled(Source(refusal(asked)), Fixed("9s"), polls=2, retry=retry)) == [2.0]


# The budget.


def shared(
    budget: SharedBudget, sources: list[Callable[[], Any]], *, until: float, **given: Any
) -> None:
    """Run a loop for each source until then, in virtual time."""

    async def main(clock: VirtualClock) -> None:
        async def run(source: Callable[[], Any]) -> None:
            options = {"clock": clock, "budget": budget, "spread": False, "events": Seen().events}
            async for _ in poll(source, **{"strategy": Fixed("1s"), **options, **given}):
                pass

        loops = [asyncio.ensure_future(run(source)) for source in sources]
        await clock.sleep(until)
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        for loop in loops:
            assert loop.cancelled(), "a loop ended by itself"

    virtually(main)


def test_loops_that_share_a_budget_keep_its_limit_and_take_turns() -> None:
    budget = SharedBudget(limit=30, per="1m", burst=2)
    polls: list[tuple[float, int]] = []

    def source(number: int) -> Callable[[], Any]:
        async def fetch() -> list[int]:
            polls.append((asyncio.get_running_loop().time(), number))
            return [1] if number % 2 else []

        return fetch

    shared(budget, [source(n) for n in range(5)], until=600.0)
    for first, (began, _) in enumerate(polls):
        within = sum(1 for at, _ in polls[first:] if at <= began + 60.0)
        assert within <= 30 + 2
    counted = Counter(number for _, number in polls)
    assert len(polls) == pytest.approx(300, abs=3)
    assert max(counted.values()) - min(counted.values()) <= 3
    assert budget.state()["polls"] == len(polls)
    assert budget.state()["waiting"] == 0, "cancelled loops left their places"


def test_full_batches_do_not_go_past_the_budget() -> None:
    source = Source(*[[1]] * 100)
    budget = SharedBudget(limit=1, per="10s")
    times = polled(
        source, Fixed("1s"), polls=4, spread=False, drain=True, capacity=1, budget=budget
    )
    assert gaps(times) == pytest.approx([10.0] * 3)


def test_a_refusal_to_one_slows_down_all() -> None:
    budget = SharedBudget(limit=60, per="1m")
    calm = Source()
    shared(
        budget, [Source(refusal(20.0)), calm], until=200.0, retry=Retry.fixed("1s", attempts=None)
    )
    assert not [at for at in calm.asked if 0 < at < 20]
    assert calm.asked[-1] > 190
    assert budget.state()["refusals"] == 1
    assert budget.state()["rate"] == 1.0


def test_a_refusal_without_a_time_slows_down_too_but_another_error_does_not() -> None:
    for error, rate in ((refusal(0.0), 0.5), (refusal(None), 1.0), (OSError("x"), 1.0)):
        budget = SharedBudget(limit=60, per="1m")
        polled(Source(error), Fixed("1s"), polls=2, budget=budget)
        assert budget.state()["rate"] == pytest.approx(rate, abs=0.05)


def test_what_the_server_has_left_is_spread() -> None:
    budget = SharedBudget(limit=100, per="1s", burst=1)
    answers: list[Batch[int]] = [
        Batch([], allowance=Allowance(10 - n, 100.0 - 10 * n)) for n in range(9)
    ]
    times = polled(Source(*answers), Fixed("1ms"), polls=9, spread=False, budget=budget)
    assert all(8.9 <= gap <= 12 for gap in gaps(times)[1:])


def test_a_stop_ends_the_wait_for_a_turn() -> None:
    async def main(clock: VirtualClock) -> float:
        budget = SharedBudget(limit=1, per="1h")
        loop = poll(Source([1]), Fixed("1s"), clock=clock, spread=False, budget=budget)
        await anext(loop)
        asyncio.get_running_loop().call_later(5, loop.stop)
        with pytest.raises(StopAsyncIteration):
            await anext(loop)
        assert budget.state()["waiting"] == 0
        return clock.now()

    assert virtually(main) == 5.0


def test_hints_do_not_go_past_the_budget() -> None:
    async def main(clock: VirtualClock) -> list[float]:
        hints, source = Hints(), Source([], [], [1])
        budget = SharedBudget(limit=1, per="10s")
        loop = poll(source, Fixed("1h"), hints=hints, clock=clock, spread=False, budget=budget)
        for at in (1, 2, 3, 12):
            asyncio.get_running_loop().call_later(at, hints.send)
        await anext(loop)
        return source.asked

    assert virtually(main) == pytest.approx([0.0, 10.0, 20.0])


def test_threads_share_a_budget_too() -> None:
    budget = SharedBudget(limit=1000, per="1s", burst=5)
    granted: list[int] = []

    def ask(poller: int) -> None:
        for step in range(500):
            if budget.ask(poller, step / 1000) <= step / 1000:
                granted.append(poller)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) <= 500 + 5
    assert budget.state()["polls"] == len(granted)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1.5}, "limit"),
        ({"limit": 1, "burst": 0}, "burst"),
        ({"limit": 1, "per": 0}, "per"),
        ({"limit": 1, "max_retry_after": "x"}, "max_retry_after"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SharedBudget(**given)


def test_a_budget_must_be_one() -> None:
    with pytest.raises(ConfigError, match="SharedBudget"):
        poll(Source(), Adaptive(), budget=60)  # type: ignore[arg-type]


def test_it_shows_its_limit() -> None:
    assert repr(SharedBudget(60)) == "SharedBudget(limit=60, per='1m', burst=1)"
    assert LoopOptions().budget is None
    assert issubclass(Enough, BaseException)
