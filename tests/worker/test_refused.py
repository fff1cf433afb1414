"""What a worker refuses, before anything starts."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.errors import ConfigError, HandlerError, JobError, PollwiseError
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import Job, NewJob
from pollwise.worker import Worker, WorkerRunOptions
from tests.support.kit import options, virtually, working


def worker() -> Worker:
    return Worker(MemoryQueue())


# Handlers.


def none() -> None: ...
def two(job: Job, other: Any) -> None: ...
def keyword(job: Job, *, must: Any) -> None: ...
def generator(job: Job) -> Any:
    yield


async def async_none() -> None: ...
async def async_generator(job: Job) -> Any:
    yield


class Yields:
    def __call__(self, job: Job) -> Any:
        yield


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (none, "cannot be called with one argument"),
        (async_none, "cannot be called with one argument"),
        (two, "cannot be called with one argument"),
        (keyword, "cannot be called with one argument"),
        (lambda: None, "cannot be called with one argument"),
        (generator, "is a generator"),
        (async_generator, "is a generator"),
        (Yields(), "is a generator"),
        (functools.partial(generator), "is a generator"),
        (7, "not callable"),
        (None, "not callable"),
    ],
)
def test_a_wrong_signature_is_refused_with_what_to_do(function: Any, words: str) -> None:
    it = worker()
    with pytest.raises(HandlerError, match=words):
        it.handle("x")(function)
    assert it.kinds == ()


def right(job: Job) -> None: ...
def more(job: Job, other: int = 3, *rest: Any, key: Any = None, **named: Any) -> None: ...


class Methods:
    def method(self, job: Job) -> None: ...
    async def __call__(self, job: Job) -> None: ...


@pytest.mark.parametrize(
    "function", [right, more, Methods().method, Methods(), functools.partial(two, other=1), print]
)
def test_anything_that_takes_one_job_is_a_handler(function: Any) -> None:
    it = worker()
    assert it.handle("x")(function) is function
    assert it.kinds == ("x",)


def with_session(handler: Any) -> Any:
    @functools.wraps(handler)
    async def inner(job: Job) -> None:
        await handler(job, session="s")

    return inner


def passing_on(handler: Any) -> Any:
    @functools.wraps(handler)
    def inner(*given: Any, **named: Any) -> Any:
        return handler(*given, session="s", **named)

    return inner


@pytest.mark.parametrize("decorator", [with_session, passing_on])
def test_a_decorator_may_add_arguments(decorator: Any) -> None:
    ran: list[tuple[Any, str]] = []

    async def charge(job: Job, session: str) -> None:
        ran.append((job.payload, session))

    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        it = Worker(queue)
        it.handle("x")(decorator(charge))
        await queue.put(NewJob("x", 7))
        async with working(it, options()):
            await clock.advance(1)

    virtually(main)
    assert ran == [(7, "s")]


def test_a_decorator_that_takes_something_else_is_refused() -> None:
    inner: Any = functools.wraps(right)(lambda one, other: None)
    with pytest.raises(HandlerError, match=r"the handler right\(one, other\)"):
        worker().handle("x")(inner)


def test_handle_without_a_kind_is_refused_at_once() -> None:
    it: Any = worker()
    with pytest.raises(HandlerError, match=r"give a kind: @worker.handle\('resize'\)"):
        it.handle(right)
    with pytest.raises(JobError):
        it.handle(7)
    assert it.kinds == ()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"kind": ""}, JobError),
        ({"kind": 7}, JobError),
        ({"kind": "x" * 201}, JobError),
        ({"kind": "x", "retry": 3}, ConfigError),
        ({"kind": "x", "timeout": 0}, ConfigError),
        ({"kind": "x", "timeout": "soon"}, ConfigError),
        ({"kind": "x", "breaker": 5}, ConfigError),
    ],
)
def test_a_wrong_registration_is_refused(given: dict[str, Any], error: type[PollwiseError]) -> None:
    it = worker()
    with pytest.raises(error):
        it.handle(**given)(right)
    assert it.kinds == ()


def test_one_handler_a_kind() -> None:
    it = worker()
    it.handle("x")(right)
    with pytest.raises(HandlerError, match="already has a handler: right"):
        it.handle("x")(more)


@pytest.mark.parametrize("layer", [none, right, generator, 7, lambda job: None])
def test_wrong_middleware_is_refused(layer: Any) -> None:
    with pytest.raises(HandlerError, match="async def"):
        worker().middleware(layer)


# Options.


@pytest.mark.parametrize(
    "given",
    [
        {"concurrency": 0},
        {"concurrency": 1001},
        {"concurrency": 2.0},
        {"concurrency": True},
        {"prefetch": -1},
        {"prefetch": "many"},
        {"lease": 0},
        {"lease": "1ms"},
        {"lease": "8d"},
        {"lease": "soon"},
        {"grace": -1},
        {"timeout": 0},
        {"polling": "fast"},
        {"polling": Adaptive},
    ],
)
def test_wrong_options_are_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(given))):
        WorkerRunOptions(**given)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="concurency"):
        WorkerRunOptions(concurency=3)  # type: ignore[call-arg]


def test_wrong_types_of_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="WorkerRunOptions"):
        Worker(MemoryQueue(), {"concurrency": 3})  # type: ignore[arg-type]
    it = worker()
    it.handle("x")(right)
    with pytest.raises(ConfigError, match="WorkerRunOptions"):
        asyncio.run(it.run(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("queue", [None, 7, "nowhere", "ftp://x", "sqlite://"])
def test_what_is_not_a_queue_is_refused(queue: Any) -> None:
    with pytest.raises(ConfigError):
        Worker(queue)


# Running.


def test_a_worker_without_handlers_does_not_start() -> None:
    with pytest.raises(HandlerError, match="no handler"):
        asyncio.run(worker().run())


def test_a_worker_does_not_run_twice_at_once_but_may_run_again() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        it = Worker(queue)
        it.handle("x")(lambda job: None)
        async with working(it, options()):
            await clock.advance(1)
            with pytest.raises(ConfigError, match="is already running"):
                await it.run(options())
            await queue.put(NewJob("x"))  # the first goes on, unharmed
            await clock.advance(10)
            assert (await queue.stats()).ready == 0
        assert it.state() == {}
        async with working(it, options()):
            await clock.advance(1)
            assert it.state()["running"] == 0

    virtually(main)


def test_a_strategy_that_holds_needs_a_queue_that_can(tmp_path: Any) -> None:
    it = Worker(f"sqlite:///{tmp_path}/jobs.db")
    it.handle("x")(right)
    with pytest.raises(ConfigError, match="holds its polls"):
        asyncio.run(it.run(options(polling=Adaptive(hold="20s"))))
    assert list(tmp_path.iterdir()) == []


def test_a_stop_before_the_run_begins_is_not_lost() -> None:
    async def main(clock: VirtualClock) -> float:
        it = Worker(MemoryQueue(clock=clock))
        it.handle("x")(right)
        run = asyncio.ensure_future(it.run(options()))
        it.stop()  # the task has not begun yet
        await run
        task = asyncio.ensure_future(it.run(options()))
        await clock.advance(5)
        assert not task.done()  # the stop counted for one run only
        it.stop()
        await task
        return clock.now()

    assert virtually(main) == 5.0
