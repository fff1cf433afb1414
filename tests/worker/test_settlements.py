"""How a run ends, and what that means for its job."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from pollwise.core.retry import Retry
from pollwise.errors import ConfigError, HandlerTimeout, Reject, Snooze
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import (
    Event,
    HandlerStuck,
    JobDead,
    JobDone,
    JobRetried,
    JobSnoozed,
    log,
)
from pollwise.runtime.executor.handlers import ERRORS_SHOWN, text_of, traceback_of
from pollwise.runtime.jobs import Job, JobInfo, NewJob
from pollwise.worker import Worker
from tests.support.kit import SOON, Seen, options, until_empty, virtually, working


class OfItsOwn(BaseException):
    pass


class Unspeakable(Exception):
    """An error as broken as what raised it."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    @property
    def permanent(self) -> bool:
        raise RuntimeError("who knows")


def worked_off(
    handler: Callable[[Job], Any],
    payload: Any = None,
    *,
    retry: Retry = SOON,
    layers: tuple[Any, ...] = (),
    **chosen: Any,
) -> tuple[Seen, list[JobInfo]]:
    """Run one job until it is done or dead; what was told, and the dead letters."""
    seen = Seen()

    async def main(clock: VirtualClock) -> list[JobInfo]:
        queue = MemoryQueue(clock=clock)
        worker = Worker(queue, name="w", events=seen.events)
        worker.handle("x", retry=retry)(handler)
        worker.handle("other")(lambda job: None)
        for layer in layers:
            worker.middleware(layer)
        await queue.put(NewJob("x", payload))
        async with working(worker, options(**chosen)) as running:
            await until_empty(queue)
            assert not running.done()
            await queue.put(NewJob("other"))  # it still works
            await until_empty(queue)
        assert (await queue.stats()).leased == 0
        return await queue.jobs("dead")

    return seen, virtually(main)


def told(seen: Seen) -> list[tuple[str, int]]:
    """The ends of the runs of the first job."""
    ends = (JobDone, JobRetried, JobSnoozed, JobDead)
    return [(type(e).__name__, e.attempt) for e in seen.of(*ends) if e.kind == "x"]


def raising(error: BaseException) -> list[Callable[[Job], Any]]:
    def plain(job: Job) -> None:
        raise error

    async def coroutine(job: Job) -> None:
        await asyncio.sleep(0)
        raise error

    return [plain, coroutine]


FAILURES = [
    OSError("gone"), ValueError(), SystemExit(3), KeyboardInterrupt(), GeneratorExit(),
    asyncio.CancelledError(), OfItsOwn("hello"), StopIteration(7), StopAsyncIteration(),
    TimeoutError("its own"), ExceptionGroup("two", [OSError(), ValueError()]), Unspeakable(),
]  # fmt: skip


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
@pytest.mark.parametrize("timeout", [None, "1h"])
def test_whatever_a_handler_raises_is_a_failed_attempt_and_ends_no_worker(
    error: BaseException, plain: bool, timeout: str | None
) -> None:
    seen, dead = worked_off(raising(error)[not plain], timeout=timeout)
    assert told(seen) == [("JobRetried", 1), ("JobRetried", 2), ("JobDead", 3)]
    assert len(dead) == 1
    assert dead[0].error
    if not isinstance(error, StopIteration):  # which Python itself turns into RuntimeError
        assert dead[0].error.startswith(type(error).__name__)


class Permanent(Exception):
    permanent = True


@pytest.mark.parametrize(
    ("error", "retry", "text"),
    [
        (Permanent("no use"), SOON, "Permanent: no use"),
        (ConfigError("wrong"), SOON, "ConfigError: wrong"),
        (KeyError("k"), Retry.fixed("1s", include=OSError), "KeyError: 'k'"),
        (OSError("o"), Retry.fixed("1s", exclude=OSError), "OSError: o"),
        (OSError("o"), Retry.never(), "OSError: o"),
    ],
)
def test_a_permanent_error_is_dead_at_once(error: Exception, retry: Retry, text: str) -> None:
    for handler in raising(error):
        seen, dead = worked_off(handler, retry=retry)
        assert told(seen) == [("JobDead", 1)]
        assert [info.error for info in dead] == [text]


@pytest.mark.parametrize(
    ("reject", "text"),
    [
        (Reject("not for me"), "not for me"),
        (Reject(), "rejected by its handler"),
        (Reject(42), "42"),  # type: ignore[arg-type]
    ],
)
def test_reject_is_dead_at_once_for_its_reason(reject: Reject, text: str) -> None:
    for handler in raising(reject):
        seen, dead = worked_off(handler)
        assert told(seen) == [("JobDead", 1)]
        assert [info.error for info in dead] == [text]


def test_snooze_is_no_attempt() -> None:
    began: list[tuple[int, float]] = []

    async def handler(job: Job) -> None:
        began.append((job.attempt, asyncio.get_running_loop().time()))
        if len(began) <= 10:
            raise Snooze("30s")
        if len(began) == 11:
            raise OSError

    seen, dead = worked_off(handler, retry=Retry.fixed("1s", attempts=2))
    assert not dead
    assert [attempt for attempt, _ in began] == [1] * 11 + [2]
    assert told(seen) == [("JobSnoozed", 1)] * 10 + [("JobRetried", 1), ("JobDone", 2)]
    assert began[1][1] - began[0][1] == pytest.approx(30, abs=0.01)


def test_a_snooze_of_no_duration_is_dead_with_the_reason() -> None:
    async def handler(job: Job) -> None:
        raise Snooze("soon")

    seen, [info] = worked_off(handler)
    assert told(seen) == [("JobDead", 1)]
    assert "Snooze delay" in str(info.error)


# Timeouts.


def test_an_async_handler_that_runs_too_long_is_cancelled_and_retried() -> None:
    ends: list[str] = []

    async def handler(job: Job) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    seen, [info] = worked_off(handler, timeout="10s")
    assert ends == ["cancelled"] * 3
    assert told(seen) == [("JobRetried", 1), ("JobRetried", 2), ("JobDead", 3)]
    assert [e.took for e in seen.of(JobRetried)] == [pytest.approx(10)] * 2
    assert str(info.error).startswith("HandlerTimeout: the handler of kind 'x' ran longer")
    assert issubclass(HandlerTimeout, TimeoutError)


def test_a_handler_that_finishes_though_it_was_cancelled_is_done() -> None:
    async def handler(job: Job) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(1)

    seen, dead = worked_off(handler, timeout="10s")
    assert told(seen) == [("JobDone", 1)]
    assert not dead


def test_a_handler_that_goes_on_after_its_timeout_is_reported_while_it_runs() -> None:
    async def handler(job: Job) -> None:
        until = asyncio.get_running_loop().time() + 60
        while (left := until - asyncio.get_running_loop().time()) > 0:
            with suppress(asyncio.CancelledError):  # as a bare `except` does
                await asyncio.sleep(left)

    seen, dead = worked_off(handler, timeout="10s")
    [stuck] = seen.of(HandlerStuck)
    assert stuck.work.endswith("of kind x")
    assert seen.names().index("HandlerStuck") < seen.names().index("JobDone")
    assert not dead


def test_a_handlers_timeout_goes_before_the_workers() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = MemoryQueue(clock=clock), Seen()
        worker = Worker(queue, events=seen.events)

        @worker.handle("x", timeout="5s", retry=Retry.never())
        async def handler(job: Job) -> None:
            await asyncio.sleep(60)

        await queue.put(NewJob("x"))
        async with working(worker, options(timeout="50s")):
            await until_empty(queue)
        assert "timeout of 5 s" in seen.of(JobDead)[0].error

    virtually(main)


def test_a_thread_that_runs_too_long_keeps_its_place_until_it_comes_back() -> None:
    """On the real clock: virtual time would stand still for the thread."""
    gate, entered = threading.Event(), threading.Event()
    ran: list[str] = []

    def stuck(job: Job) -> None:
        if job.attempt == 1:
            entered.set()
            assert gate.wait(30)

    async def main() -> None:
        queue, seen = MemoryQueue(), Seen()
        worker = Worker(queue, events=seen.events)
        worker.handle("stuck", timeout="50ms", retry=Retry.fixed("1ms", attempts=2))(stuck)
        worker.handle("next")(lambda job: ran.append(job.kind))
        happened = asyncio.Event()
        retried = asyncio.Event()
        done: list[str] = []

        def note(event: Any) -> None:
            retried.set()
            if isinstance(event, JobDone):
                done.append(event.kind)
                if len(done) == 2:
                    happened.set()

        seen.events.subscribe(note, JobRetried, JobDone)
        async with asyncio.timeout(30), working(worker, options(concurrency=1, prefetch=0)):
            await queue.put(NewJob("stuck"))
            await retried.wait()
            await queue.put(NewJob("next"))
            for _ in range(100):  # its job was retried, but its thread has the only place
                await asyncio.sleep(0)
            assert not ran
            assert worker.state()["running"] == 0
            gate.set()
            await happened.wait()
        assert sorted(done) == ["next", "stuck"]
        assert "its thread runs on and keeps its place" in seen.of(JobRetried)[0].error

    asyncio.run(main())
    assert entered.is_set()


# Middleware.


def test_middleware_goes_around_handlers_the_first_outermost() -> None:
    order: list[str] = []

    def layer(name: str) -> Callable[[Job, Callable[[Job], Awaitable[Any]]], Awaitable[Any]]:
        async def around(job: Job, proceed: Callable[[Job], Awaitable[Any]]) -> Any:
            order.append(f"{name} before")
            result = await proceed(job)
            order.append(f"{name} after {result}")
            return result

        return around

    async def handler(job: Job) -> str:
        order.append("handler")
        return "result"

    def only_x(inner: Any) -> Any:
        async def around(job: Job, proceed: Any) -> Any:
            return await (inner(job, proceed) if job.kind == "x" else proceed(job))

        return around

    seen, _ = worked_off(handler, layers=(only_x(layer("a")), only_x(layer("b"))))
    assert order == ["a before", "b before", "handler", "b after result", "a after result"]
    assert told(seen) == [("JobDone", 1)]


def test_middleware_may_raise_what_a_handler_may_and_change_the_job() -> None:
    ran: list[Any] = []
    calls = 0

    async def layer(job: Job, proceed: Any) -> Any:
        nonlocal calls
        calls += job.kind == "x"
        if calls == 1:
            raise OSError("from the middleware")
        if calls == 2:
            raise Snooze(1)
        return await proceed(replace(job, payload="changed"))

    seen, _ = worked_off(lambda job: ran.append(job.payload), layers=(layer,))
    assert told(seen) == [("JobRetried", 1), ("JobSnoozed", 2), ("JobDone", 2)]
    assert ran == ["changed"]


def test_middleware_may_leave_the_handler_out() -> None:
    ran: list[Any] = []

    async def layer(job: Job, proceed: Any) -> Any:
        return None

    seen, _ = worked_off(ran.append, layers=(layer,))
    assert told(seen) == [("JobDone", 1)]
    assert not ran


def test_middleware_stands_inside_the_timeout() -> None:
    async def slow(job: Job, proceed: Any) -> Any:
        if job.kind == "x":
            await asyncio.sleep(100)
        return await proceed(job)

    seen, _ = worked_off(lambda job: None, layers=(slow,), timeout="5s")
    assert told(seen)[-1] == ("JobDead", 3)


def test_every_run_has_one_start_and_one_end() -> None:
    seen = Seen()

    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        worker = Worker(queue, name="w", events=seen.events)

        @worker.handle("x", retry=SOON, timeout="3s")
        async def handler(job: Job) -> None:
            await asyncio.sleep(0.5)
            if job.payload == 1:
                raise OSError
            if job.payload == 2 and job.attempt == 1 and not seen.of(JobSnoozed):
                raise Snooze(1)
            if job.payload == 3:
                raise Reject
            if job.payload == 4:
                await asyncio.sleep(9)

        await queue.put([NewJob("x", n % 5) for n in range(20)])
        async with working(worker, options(concurrency=3)):
            await until_empty(queue)

    virtually(main)
    open_runs: set[str] = set()
    for event in seen:
        name = type(event).__name__
        job = getattr(event, "job", None)
        if name == "JobStarted":
            assert job not in open_runs
            open_runs.add(str(job))
        elif job is not None:
            assert isinstance(event, Event)
            assert job in open_runs, name
            open_runs.remove(job)
    assert not open_runs


def test_the_traceback_of_a_handler_has_no_frames_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def pay(job: Job) -> None:
        amount(job)

    def amount(job: Job) -> None:
        raise KeyError("amount")

    seen, _ = worked_off(pay)
    for event in seen.of(JobRetried, JobDead):
        assert isinstance(event, JobRetried | JobDead)
        assert "in pay" in event.traceback
        assert "in amount" in event.traceback
        assert "pollwise/worker" not in event.traceback
    caplog.set_level("INFO", "pollwise")
    log(seen.of(JobDead)[0])
    [record] = caplog.records
    first, _, rest = record.getMessage().partition("\n")
    assert first.startswith("job_dead ")
    assert "traceback" not in first
    assert "in amount" in rest


def test_causes_and_members_of_a_group_are_logged_and_named() -> None:
    def charge() -> None:
        raise ConnectionError("the bank is down")

    def pay() -> None:
        try:
            charge()
        except ConnectionError as error:
            raise ValueError("not paid") from error

    async def fails(words: str) -> None:
        try:
            raise LookupError("no row")
        except LookupError:
            raise RuntimeError(words)  # noqa: B904 - its context is what is tested

    async def both(job: Job) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails("first"))
                group.create_task(fails("second"))
        except* RuntimeError as errors:
            if job.payload == "group":
                raise errors from None
        pay()

    for payload in ("group", "chain"):
        seen, _ = worked_off(both, payload)
        for event in seen.of(JobRetried, JobDead):
            assert isinstance(event, JobRetried | JobDead)
            where = event.traceback
            if payload == "group":
                assert "2 sub-exceptions): RuntimeError: first; RuntimeError: sec" in event.error
                assert "member 1 of 2: RuntimeError: first" in where
                assert where.count("raised while handling LookupError: no row") == 2
                assert where.count("in fails") == 4
            else:
                assert event.error == "ValueError: not paid"
                caused = where.index("caused by ConnectionError: the bank is down")
                assert where.index("in pay") < caused < where.index("in charge")


def test_a_long_or_circular_chain_of_errors_is_cut() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert traceback_of(one) == "  caused by ValueError: other"
    many = ExceptionGroup("many", [ValueError(n) for n in range(1000)])
    lines = traceback_of(many).splitlines()
    assert len(lines) == ERRORS_SHOWN
    assert lines[-1] == "more errors are not shown"
    assert len(text_of(many)) < 200
