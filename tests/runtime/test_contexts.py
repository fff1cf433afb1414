"""`isolated` awaits a function as a task would, but keeps its variables out of the caller's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context

import pytest

from pollwise.runtime.contexts import isolated, task_in

value: ContextVar[str] = ContextVar("value", default="unset")


def test_results_errors_and_cancellations_come_through() -> None:
    async def main() -> None:
        value.set("outside")

        async def works(argument: int) -> tuple[str, int]:
            before = value.get()
            value.set("inside")
            await asyncio.sleep(0)
            assert value.get() == "inside"
            assert asyncio.current_task() is this
            return before, argument

        async def fails() -> None:
            value.set("inside")
            await asyncio.sleep(0)
            raise KeyError("mine")

        async def survives() -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                value.set("inside")
                await asyncio.sleep(0)
                return "survived"
            return "slept"

        async def limited() -> None:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()

        this = asyncio.current_task()
        assert await isolated(works, 7) == ("outside", 7)
        with pytest.raises(KeyError, match="mine"):
            await isolated(fails)
        with pytest.raises(TimeoutError):
            await isolated(limited)

        async def awaits(function: Callable[..., Awaitable[str]]) -> tuple[str, str]:
            return await isolated(function), value.get()

        task = asyncio.ensure_future(awaits(survives))
        await asyncio.sleep(0)
        task.cancel()
        assert await task == ("survived", "outside")
        task = asyncio.ensure_future(awaits(survives))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert value.get() == "outside"

    asyncio.run(main())


def test_a_task_starts_in_the_context_that_it_is_given_even_with_a_plain_factory() -> None:
    context = copy_context()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(lambda loop, work: asyncio.Task(work, loop=loop))
        value.set("a handler's")

        async def found() -> str:
            before = value.get()
            value.set("a task's")
            return before

        assert [await task_in(context, found()) for _ in range(2)] == ["unset", "unset"]

    asyncio.run(main())
