"""Waiting for one thing: when it polls, what it returns, and how it gives up."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any, assert_type

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pollwise
from pollwise import Fixed, Hints, Retry, SharedBudget, WaitProgress, until, until_sync
from pollwise.errors import ConfigError, NotYet, StoreError
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import PollFailed
from tests.support.forked import Forked
from tests.support.kit import Seen, virtually

PATIENCE = 60
WAYS = ("async", "sync")
#: How late an end is noticed at most, as a share of the time it took.
LATE = 0.15 * 1.1 / 0.9


class Job:
    """Something that is finished after `takes` seconds; it remembers when it was polled.

    slow: how long each poll takes.
    """

    def __init__(self, clock: VirtualClock, takes: float, slow: float = 0.0) -> None:
        self.clock = clock
        self.ends_at = clock.now() + takes
        self.slow = slow
        self.times: list[float] = []

    def state(self) -> str | None:
        return "done" if self.clock.now() >= self.ends_at else None

    async def check(self) -> str | None:
        self.times.append(self.clock.now())
        if self.slow:
            await asyncio.sleep(self.slow)
        return self.state()

    def check_sync(self) -> str | None:
        self.times.append(self.clock.now())
        if self.slow:
            self.clock.wait(self.slow)
        return self.state()


def waited(way: str, takes: float, slow: float = 0.0, **given: Any) -> tuple[Any, Job]:
    """What a wait for a job returned or raised, and the job."""
    chosen = {"seed": 1, "events": Seen().events, **given}

    async def awaiting(clock: VirtualClock) -> tuple[Any, Job]:
        job = Job(clock, takes, slow)
        try:
            return await until(job.check, clock=clock, **chosen), job
        except NotYet as error:
            return error, job

    def blocking(clock: VirtualClock) -> tuple[Any, Job]:
        job = Job(clock, takes, slow)
        try:
            return until_sync(job.check_sync, clock=clock, **chosen), job
        except NotYet as error:
            return error, job

    return virtually(awaiting) if way == "async" else blocking(VirtualClock())


def answering(way: str, *answers: Any) -> Callable[..., Any]:
    """A check that answers each poll with the next of these; then with the last."""
    left = list(answers)

    def answer() -> Any:
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, BaseException):
            raise found
        return found

    async def check() -> Any:
        return answer()

    return check if way == "async" else answer


def result_of(way: str, check: Callable[..., Any], **given: Any) -> Any:
    chosen = {"seed": 1, "events": Seen().events, **given}
    if way == "sync":
        return until_sync(check, clock=VirtualClock(), **chosen)

    async def main(clock: VirtualClock) -> Any:
        return await until(check, clock=clock, **chosen)

    return virtually(main)


# What it returns.


@pytest.mark.parametrize("way", WAYS)
def test_it_returns_the_first_true_value(way: str) -> None:
    assert result_of(way, answering(way, None, 0, [], {"state": "done"})) == {"state": "done"}


@pytest.mark.parametrize("way", WAYS)
def test_done_decides_instead_also_about_none(way: str) -> None:
    def done(value: int | None) -> bool:
        return value is None

    assert result_of(way, answering(way, 3, 2, 1, None), done=done) is None


def test_the_type_is_that_of_the_check() -> None:
    def find() -> str | None:
        return "x"

    async def count() -> int:
        return 7

    assert_type(until_sync(find), str)
    assert_type(until_sync(find, timeout="1s", done=lambda value: value == "x"), str | None)

    async def main() -> None:
        assert_type(await until(count, timeout=5), int)
        assert_type(await until(count, done=lambda value: value > 5), int)

    asyncio.run(main())


# Its pace.


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None, max_examples=25)
@given(takes=st.floats(0.0, 3000.0), seed=st.integers(0, 10**6))
def test_an_end_is_noticed_soon_in_proportion(way: str, takes: float, seed: int) -> None:
    value, job = waited(way, takes, seed=seed)
    assert value == "done"
    assert job.times[0] == 0.0
    for before, after in pairwise(job.times):
        pause = after - before
        # 15 % of what has passed, 10 % of jitter now and before, and the first pause.
        assert 0.1 <= round(pause, 9) <= min(LATE * before + 0.13, 30.0) + 1e-9
    assert job.times[-1] - takes <= min(LATE * takes + 0.13, 30.0) + 1e-9


def test_ten_minutes_take_few_polls() -> None:
    value, job = waited("async", 600)
    assert value == "done"
    assert 40 <= len(job.times) <= 65


@pytest.mark.parametrize("way", WAYS)
def test_a_strategy_of_ones_own_and_a_hint(way: str) -> None:
    assert waited(way, 95, strategy=Fixed("10s"))[1].times == [10.0 * n for n in range(11)]
    hints = Hints()
    clock = VirtualClock()
    clock.call_later(7, hints.send)
    job = Job(clock, 6)
    assert until_sync(job.check_sync, strategy=Fixed("1h"), hints=hints, clock=clock) == "done"
    assert job.times == [0.0, 7.0]


@settings(deadline=None, max_examples=40)
@given(takes=st.floats(0, 400), timeout=st.floats(0, 300), seed=st.integers(0, 10**6))
def test_both_ways_poll_at_the_same_times(takes: float, timeout: float, seed: int) -> None:
    given: dict[str, Any] = {"timeout": timeout, "seed": seed, "name": "job"}
    value, job = waited("async", takes, **given)
    same, also = waited("sync", takes, **given)
    assert also.times == pytest.approx(job.times)
    assert str(same) == str(value)


def test_a_check_that_takes_a_hold_gets_one_that_ends_at_the_deadline() -> None:
    clock, holds = VirtualClock(), list[float]()

    def check(hold: float) -> None:
        holds.append(hold)
        clock.wait(hold)

    with pytest.raises(NotYet):
        until_sync(check, timeout=50, strategy=Fixed(0, hold="20s"), clock=clock)
    assert holds == [20.0, 20.0, 10.0]


# The timeout.


@pytest.mark.parametrize("way", WAYS)
def test_the_last_poll_is_at_the_deadline_itself(way: str) -> None:
    value, job = waited(way, 598, timeout="10m", strategy=Fixed("1h"))
    assert value == "done"
    assert job.times == [0.0, 600.0]


@pytest.mark.parametrize("way", WAYS)
def test_not_yet_has_the_last_value_and_the_polls(way: str) -> None:
    check = answering(way, 1, 2, 3)
    with pytest.raises(NotYet) as raised:
        result_of(
            way, check, timeout=25, strategy=Fixed("10s"), done=lambda n: n > 5, name="the export"
        )
    error = raised.value
    assert (error.value, error.polls) == (3, 4)
    assert isinstance(error, pollwise.PollwiseError)
    assert isinstance(error, TimeoutError)
    assert str(error) == (
        "the export was not finished within 25s (4 polls; the last one returned 3). Give a longer "
        "timeout, or look at what it waits for"
    )


@pytest.mark.parametrize("way", WAYS)
def test_without_any_time_it_polls_once(way: str) -> None:
    value, job = waited(way, 1, timeout=0)
    assert isinstance(value, NotYet)
    assert "(1 poll; " in str(value)
    assert job.times == [0.0]
    assert waited(way, 0, timeout=0)[0] == "done"


class Color(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "returned None)"),
        ("", "returned '')"),
        ("running", "returned 'running')"),
        ("postgres://app:hunter2@db/x", "returned 'postgres://app:***@db/x')"),
        ("x" * 50, f"returned '{'x' * 40} …')"),
        (Color.RED, "returned Color.RED)"),
        ({"token": "hunter2"}, "returned a dict; the error's `value` has it)"),
    ],
)
def test_the_error_shows_plain_values_only(value: Any, text: str) -> None:
    with pytest.raises(NotYet) as raised:
        result_of("sync", answering("sync", value), timeout=1, done=lambda _: False)
    assert text in str(raised.value)
    assert raised.value.value == value
    assert "hunter2" not in str(raised.value)


def test_an_async_check_is_cancelled_at_the_deadline() -> None:
    async def main(clock: VirtualClock) -> tuple[float, bool, str]:
        cancelled = False

        async def check() -> bool:
            nonlocal cancelled
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled = True
                raise
            return True

        with pytest.raises(NotYet) as raised:
            await until(check, timeout=10, clock=clock, events=Seen().events)
        assert isinstance(raised.value.__cause__, TimeoutError)
        return clock.now(), cancelled, str(raised.value)

    ended, cancelled, text = virtually(main)
    assert (ended, cancelled) == (10.0, True)
    assert "(1 poll; the last check was still running and was cancelled)" in text


@pytest.mark.parametrize(
    "retry", [Retry.never(), Retry.fixed("1s", exclude=TimeoutError)], ids=["never", "excluded"]
)
def test_a_cancelled_check_is_not_yet_whatever_the_retry(retry: Retry) -> None:
    async def check() -> None:
        await asyncio.sleep(3600)

    with pytest.raises(NotYet, match="was cancelled"):
        result_of("async", check, timeout=10, retry=retry)


def test_a_check_that_begins_at_the_deadline_has_a_second() -> None:
    assert waited("async", 10, slow=0.9, timeout=10, strategy=Fixed("1h"))[0] == "done"
    value, job = waited("async", 20, slow=0.9, timeout=10, strategy=Fixed("1h"))
    assert isinstance(value, NotYet)
    assert job.times == [0.0, 10.0]


@pytest.mark.parametrize("way", WAYS)
def test_a_slow_check_gets_a_poll_that_ends_in_time(way: str) -> None:
    value, job = waited(way, 9, slow=3.0, timeout=10, strategy=Fixed("1h"))
    assert value == "done"
    assert job.times == [0.0, 6.25]


@pytest.mark.parametrize("way", WAYS)
def test_an_outlier_does_not_replace_the_last_poll(way: str) -> None:
    """After one slow check, the poll at the deadline is still made."""
    clock = VirtualClock()
    times = list[float]()

    def check() -> bool:
        times.append(clock.now())
        clock.wait(5 if len(times) == 1 else 0)
        return clock.now() >= 19

    assert until_sync(check, timeout=20, strategy=Fixed("1h"), clock=clock)
    assert times == [0.0, 13.75, 20.0]


def test_a_budget_is_shared_and_its_line_ends_with_the_timeout() -> None:
    async def main(clock: VirtualClock) -> list[Any]:
        budget = SharedBudget(limit=6, per="1m")
        jobs = [Job(clock, 100) for _ in range(3)]
        waits = [
            until(job.check, timeout=35, strategy=Fixed("1s"), budget=budget, clock=clock, name="x")
            for job in jobs
        ]
        errors = await asyncio.gather(*waits, return_exceptions=True)
        polls = sorted(time for job in jobs for time in job.times)
        assert polls == pytest.approx([0.0, 10.0, 20.0, 30.0])
        assert clock.now() == 35.0
        assert budget.state()["waiting"] == 0
        return errors

    errors = virtually(main)
    assert all(isinstance(error, NotYet) for error in errors)
    clock = VirtualClock()
    budget = SharedBudget(limit=1, per="1h")
    budget.ask("another", clock.now())
    with pytest.raises(NotYet, match=r"\(0 polls; the budget allowed none\)") as raised:
        until_sync(Job(clock, 0).check_sync, timeout=10, budget=budget, clock=clock)
    assert (raised.value.polls, clock.now()) == (0, 10.0)


# Errors.


@pytest.mark.parametrize("way", WAYS)
def test_a_check_that_fails_is_retried_until_the_timeout(way: str) -> None:
    check = answering(way, OSError("down"), OSError("down"), "up")
    assert result_of(way, check, timeout=60) == "up"
    seen = Seen()
    with pytest.raises(NotYet) as raised:
        result_of(way, answering(way, OSError("still down")), timeout=60, events=seen.events)
    assert "the last one failed with OSError: still down)" in str(raised.value)
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.value is None
    delays = [event.delay for event in seen.of(PollFailed)]
    assert 0.75 <= delays[0] <= 1.25
    assert max(delays) <= 30


@pytest.mark.parametrize("way", WAYS)
def test_the_last_poll_is_at_the_deadline_even_after_a_failure(way: str) -> None:
    retry = Retry.fixed("1h", attempts=None)
    clock_times = []
    clock = VirtualClock()

    def check() -> bool:
        clock_times.append(clock.now())
        if len(clock_times) == 1:
            raise OSError("down")
        return True

    assert until_sync(check, timeout=10, retry=retry, clock=clock, events=Seen().events)
    assert clock_times == [0.0, 10.0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [TypeError("x"), NameError("x"), StoreError("never")])
def test_mistakes_and_permanent_errors_are_raised_at_once(way: str, error: Exception) -> None:
    with pytest.raises(type(error)):
        result_of(way, answering(way, error, "up"), timeout=60)


@pytest.mark.parametrize("way", WAYS)
def test_an_exhausted_retry_raises_the_last_error(way: str) -> None:
    with pytest.raises(OSError, match="two"):
        result_of(
            way, answering(way, OSError("one"), OSError("two"), 1), retry=Retry.fixed(attempts=2)
        )


@pytest.mark.parametrize("way", WAYS)
def test_a_timeout_of_the_check_itself_is_an_error_like_others(way: str) -> None:
    with pytest.raises(TimeoutError, match="of its own"):
        result_of(way, answering(way, TimeoutError("of its own")), timeout=60, retry=Retry.never())


def test_the_wrong_kind_of_function_is_refused() -> None:
    async def check() -> bool:
        return True

    with pytest.raises(ConfigError, match=r"use pollwise\.until$"):
        result_of("sync", check)
    with pytest.raises(ConfigError, match=r"use pollwise\.until_sync$"):
        result_of("async", answering("sync", True))


@pytest.mark.parametrize("way", WAYS)
def test_done_that_must_be_awaited_is_refused(way: str) -> None:
    async def done(state: object) -> bool:
        return False

    with pytest.raises(ConfigError, match="is an async function; give a plain one"):
        result_of(way, answering(way, "waiting"), done=done)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"check": 7}, "check = 7 is not callable"),
        ({"timeout": "soon"}, "timeout = 'soon' is not a duration"),
        ({"timeout": -1}, "timeout = -1 must be 0 or more"),
        ({"done": 3}, "done = 3 is not callable"),
        ({"strategy": "fast"}, "is not a strategy"),
        ({"strategy": pollwise.Adaptive(hold="5s")}, "check has no argument named `hold`"),
        ({"retry": 5}, "is not a Retry"),
        ({"budget": 5}, "is not a SharedBudget"),
        ({"hints": True}, "hints = True is not a Hints"),
        ({"progress": "yes"}, "progress = 'yes' is not callable"),
    ],
)
def test_wrong_arguments_are_refused(given: dict[str, Any], words: str) -> None:
    chosen = {"check": answering("sync", True), **given}
    with pytest.raises(ConfigError, match=words):
        until_sync(**chosen)


# Progress.


@pytest.mark.parametrize("way", WAYS)
def test_progress_is_reported_after_each_poll_that_did_not_end_it(way: str) -> None:
    seen = list[WaitProgress]()
    error = OSError("down")
    check = answering(way, "waiting", error, "finished")
    value = result_of(
        way, check, timeout=60, strategy=Fixed("10s"), retry=Retry.fixed("2s", attempts=None),
        done=lambda state: state == "finished", progress=seen.append, name="export",
    )  # fmt: skip
    assert value == "finished"
    assert seen == [
        WaitProgress("export", 1, 0.0, "waiting", None, 10.0, 60.0),
        WaitProgress("export", 2, 10.0, None, error, 2.0, 60.0),
    ]


def test_the_last_delay_reported_is_the_one_to_the_deadline() -> None:
    seen = list[WaitProgress]()
    waited("sync", 99, timeout=12, strategy=Fixed("10s"), progress=seen.append)
    assert [each.next_delay for each in seen] == [10.0, 2.0]


@pytest.mark.parametrize("way", WAYS)
def test_an_error_in_the_report_is_raised(way: str) -> None:
    def broken(_: WaitProgress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        result_of(way, answering(way, None), progress=broken)


# Cancelling.


def test_cancelling_ends_it_in_a_pause_and_in_a_check() -> None:
    async def main(clock: VirtualClock) -> list[float]:
        ended = []

        async def hangs() -> None:
            await asyncio.sleep(3600)

        async def waits() -> None:
            return None

        for check in (hangs, waits):
            task: asyncio.Task[Any] = asyncio.create_task(
                until(check, timeout="1h", strategy=Fixed("1h"), hints=hints, clock=clock)
            )
            await asyncio.sleep(5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            ended.append(clock.now())
        return ended

    hints = Hints()
    assert virtually(main) == [5.0, 10.0]
    assert hints._joined() == []


CHILD = """
import asyncio, sys
import pollwise


def check_sync():
    print("waiting", flush=True)


async def check():
    check_sync()


try:
    if sys.argv[1] == "sync":
        pollwise.until_sync(check_sync, timeout="1h", strategy=pollwise.Fixed("1h"))
    else:
        asyncio.run(pollwise.until(check, timeout="1h", strategy=pollwise.Fixed("1h")))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_ends_it_in_a_pause_of_an_hour(way: str, tmp_path: Path) -> None:
    script = tmp_path / "waiting.py"
    script.write_text(CHILD)
    child = Forked([script, way])
    try:
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted\n"
        assert child.wait(PATIENCE) == 0
    finally:
        child.close()
