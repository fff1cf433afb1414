"""Context variables: what one handler sets, no other one may see.

A task and a timer start with a copy of the context in which they are made. So an object that lives
long copies the context in which it was made itself, and starts its tasks in copies of that copy,
whichever handler or request is the occasion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def task_in(
    context: Context, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None
) -> asyncio.Task[T]:
    """Start a task in a copy of `context`. Task factories need not know contexts."""
    return context.copy().run((loop or asyncio.get_running_loop()).create_task, work)


@coroutine
def isolated(function: Callable[..., Awaitable[T]], *args: Any) -> Generator[Any, Any, T]:
    """Await `function(*args)` in this task, but in a copy of its context.

    The task goes on without the variables that the function has set.
    """
    context, work = copy_context(), _await_call(function, args)
    step: Callable[[Any], Any] = work.send
    given: Any = None
    while True:
        try:
            awaited = context.run(step, given)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            given = None  # an error would hold this frame, which would hold the error
        try:
            given = yield awaited
            step = work.send
        except BaseException as error:
            step, given = work.throw, error


async def _await_call(function: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
    return await function(*args)
