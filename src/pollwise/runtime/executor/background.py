"""Runs in the background of another program, and waits that nothing cuts short."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from pollwise.runtime.events import ChoreFailed, Events


@asynccontextmanager
async def in_background(
    main: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
    stop: Callable[[], None],
    what: str,
    source: str,
    events: Events,
) -> AsyncIterator[None]:
    """Run `main(started)` during the block, once it has set `started`; the end of the block stops
    it.

    An error at the start is raised by the block, a later one is emitted as the chore `what`.
    """

    def note_end(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            text = f"{type(error).__name__}: {error}"
            events.emit(ChoreFailed(source, what, text))

    started = asyncio.Event()
    task = asyncio.ensure_future(main(started))
    task.add_done_callback(note_end)
    waiting = asyncio.ensure_future(started.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if task.done():
            task.result()
        yield
    finally:
        waiting.cancel()
        if not task.done():  # else the stop would end the next run
            stop()
        with suppress(asyncio.CancelledError):
            await task


async def to_its_end(work: Coroutine[Any, Any, None] | asyncio.Future[Any]) -> None:
    """Wait for `work` to end, even if the caller is cancelled meanwhile, any number of times."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    if not task.cancelled():
        task.result()
