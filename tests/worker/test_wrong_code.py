"""Code that would do something else than it says gets an error that says what to write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from pollwise import Job, NewJob, Worker, from_context, group, task_ref
from pollwise.errors import ContextFailed, HandlerError, PayloadError, StoreError
from pollwise.queues.memory import MemoryQueue


@pytest.fixture
def worker() -> Worker:
    return Worker(MemoryQueue())


def one_byte(data: bytes) -> None: ...


def some_bytes(data: list[bytes] | None = None) -> None: ...


def gives_bytes() -> bytes:
    return b""


@pytest.mark.parametrize("function", [one_byte, some_bytes, gives_bytes])
def test_bytes_are_refused_at_the_registration(worker: Worker, function: Any) -> None:
    with pytest.raises(HandlerError, match="binary data is not JSON"):
        worker.task(function)
    assert not worker.kinds


def test_bytes_for_an_argument_without_a_type_are_refused_at_the_put(worker: Worker) -> None:
    @worker.task
    def anything(data: Any, more: object = None, plain=1) -> None: ...  # type: ignore[no-untyped-def]

    for arguments in (
        {"data": b"abc"},
        {"data": 1, "more": bytearray()},
        {"data": 1, "plain": b""},
    ):
        with pytest.raises(PayloadError, match="binary data is not JSON"):
            anything.job(**arguments)
    assert anything.job("abc").payload == {"data": "abc"}


def plain_generator(n: int) -> Iterator[int]:
    yield n


async def async_generator(n: int) -> AsyncIterator[int]:
    yield n


@pytest.mark.parametrize("function", [plain_generator, async_generator])
def test_generators_are_no_tasks(worker: Worker, function: Any) -> None:
    with pytest.raises(HandlerError, match="is a generator; write a function that returns"):
        worker.task(function)
    assert not worker.kinds


def test_a_handler_that_asks_for_a_context_needs_one() -> None:
    async def handled(job: Job, pool: Any = from_context) -> None: ...
    def task(n: int, pool: Any = from_context) -> None: ...

    def with_handler(worker: Worker) -> None:
        worker.handle("a")(handled)

    def with_task(worker: Worker) -> None:
        worker.task("a")(task)

    async def main(register: Callable[[Worker], None]) -> None:
        worker = Worker(MemoryQueue())
        register(worker)
        with pytest.raises(HandlerError, match="'a' asks for pool=from_context, but"):
            await worker.run_once()

        @worker.context
        async def app() -> AsyncIterator[str]:
            yield "pool"

        await worker.run_once()

    asyncio.run(main(with_handler))
    asyncio.run(main(with_task))


def test_put_sync_is_refused_in_an_event_loop(worker: Worker) -> None:
    @worker.task
    def store(n: int) -> None: ...

    async def main() -> None:
        with pytest.raises(StoreError, match=r"put_sync blocks, .*: `await store.put\(…\)`"):
            store.put_sync(1)
        with pytest.raises(StoreError, match=r"instead: `await store.put\(…\)`"):
            task_ref("store", MemoryQueue()).put_sync(n=1)
        with pytest.raises(StoreError, match=r"instead: `await flow.put\(\)`"):
            group([store.s(1), store.s(2)]).put_sync()
        assert (await worker.queue_for_puts().stats()).ready == 0

    asyncio.run(main())


def test_names_of_other_libraries_name_ours(worker: Worker) -> None:
    @worker.task
    def mail(n: int) -> None: ...

    other: Any = mail
    for name in ("delay", "apply_async", "send", "enqueue"):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'; write `await mail.put"):
            getattr(other, name)(1)
    with pytest.raises(AttributeError, match=r"the task 'mail' has no attribute 'nothing'$"):
        other.nothing()
    assert not hasattr(other, "delay")
    with pytest.raises(TypeError, match=r"no argument 'countdown'; give delay='10s'"):
        other.options(countdown=3)
    anything: Any = worker
    with pytest.raises(TypeError, match=r"'max_retries'; give retry=Retry.exponential"):
        anything.task(max_retries=3)
    with pytest.raises(TypeError, match=r"'rate_limit'; give limit=Rate"):
        anything.handle("x", rate_limit="10/m")
    made: Any = Worker
    with pytest.raises(TypeError, match=r"as in WorkerRunOptions\(concurrency=…\)"):
        made("memory://", concurrency=4)


def test_one_run_names_the_kinds_that_nobody_handles(worker: Worker) -> None:
    @worker.task
    def mail(n: int) -> None: ...

    async def main() -> None:
        queue = worker.queue_for_puts()
        await mail.put(1)
        summary = await worker.run_once()
        assert summary.unhandled == ()
        await queue.put([NewJob("mial"), NewJob("later", delay="1h")])
        summary = await worker.run_once()
        assert summary.unhandled == ("mial",)
        assert str(summary).endswith("; no handler here for ready jobs of mial")

    asyncio.run(main())


def test_an_error_in_a_context_is_short_and_says_where(worker: Worker) -> None:
    worker.handle("a")(lambda job: None)

    @worker.context
    async def app() -> AsyncIterator[None]:
        raise OSError("no database at db")
        yield

    with pytest.raises(ContextFailed) as raised:
        asyncio.run(worker.run_once())
    first, *more = str(raised.value).splitlines()
    assert first == "the worker's context raised OSError: no database at db"
    assert len(more) == 2  # of this file
    assert isinstance(raised.value.__cause__, OSError)
