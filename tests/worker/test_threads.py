"""Threads of plain handlers: nobody waits for ever, and every place comes back."""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from pollwise.runtime.executor.threads import DaemonThreads, HandlerThreads


async def soon(happened: Callable[[], bool]) -> None:
    """Yield until something happened in a thread, for ten seconds at the most."""
    async with asyncio.timeout(10):
        while not happened():
            await asyncio.sleep(0)


def test_results_errors_and_context_come_through() -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    def fails(argument: str) -> None:
        raise SystemExit(argument)

    async def main() -> None:
        threads = HandlerThreads(2, "t", lambda: None)
        variable.set("set")
        assert await threads.run(lambda n: (n, variable.get()), 7) == (7, "set")
        with pytest.raises(SystemExit, match="bye"):
            await threads.run(fails, "bye")
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(threads.run(lambda _: next(iter([])), None), 10)
        assert threads.abandoned == 0
        threads.close()

    asyncio.run(main())


def test_a_call_that_is_left_alone_keeps_its_place_until_it_returns() -> None:
    async def main() -> None:
        gate, entered, came_back = threading.Event(), threading.Event(), list[int]()
        threads = HandlerThreads(1, "t", lambda: came_back.append(threads.abandoned))

        def stuck(_: object) -> None:
            entered.set()
            gate.wait(20)

        task = asyncio.create_task(threads.run(stuck, None))
        await soon(entered.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert threads.abandoned == 1
        gate.set()
        await soon(lambda: len(came_back) == 2)
        assert came_back == [1, 0]
        threads.close()

    asyncio.run(main())


def test_a_call_that_had_not_begun_is_dropped_and_takes_no_place() -> None:
    async def main() -> None:
        gate, ran = threading.Event(), list[str]()
        threads = HandlerThreads(1, "t", lambda: None)
        first = asyncio.create_task(threads.run(lambda _: gate.wait(20), None))
        second = asyncio.create_task(threads.run(ran.append, "second"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert threads.abandoned == 0
        gate.set()
        await first
        assert await threads.run(lambda n: n, 3) == 3
        assert not ran
        threads.close()

    asyncio.run(main())


def test_every_place_comes_back_however_the_cancellation_falls() -> None:
    rng = random.Random(1)

    async def main() -> None:
        changes: list[int] = []
        threads = HandlerThreads(4, "t", lambda: changes.append(threads.abandoned))
        for _ in range(1500):
            task = asyncio.create_task(threads.run(lambda n: sum(range(n)), rng.randrange(3000)))
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await soon(lambda: threads.abandoned == 0)
        assert await threads.run(lambda n: n, 3) == 3
        threads.close()

    asyncio.run(main())


def test_threads_start_when_needed_up_to_the_limit_and_end_when_closed() -> None:
    pool = DaemonThreads(3, "pool-under-test")

    def names() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith("pool-under-test")]

    gate = threading.Event()
    assert pool.submit(lambda: 1).result(10) == 1
    assert len(names()) == 1
    calls: list[Future[bool]] = [pool.submit(gate.wait, 20) for _ in range(9)]
    assert len(names()) == 3
    assert all(t.daemon for t in threading.enumerate() if t.name in names())
    gate.set()
    assert all(call.result(10) for call in calls)
    pool.shutdown()
    for thread in threading.enumerate():
        if thread.name.startswith("pool-under-test"):
            thread.join(10)
    assert names() == []
