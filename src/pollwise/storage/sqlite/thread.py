"""The thread that makes the calls to a SQLite file, so that the event loop is not blocked.

One thread with one connection is enough: SQLite has one writer at a time, so more would only wait.
A store has two classes: one with the plain calls on the connection, and one whose methods are those
calls made `in_thread`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from pollwise.errors import StoreError
from pollwise.runtime.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")


class ConnectionOwner(Protocol):
    """Owns the connection, and raises SQLite's errors as ours."""

    def call(self, method: Callable[..., Any], *args: Any) -> Any: ...

    def close(self) -> None: ...


class SqliteThread:
    """Makes the calls of one connection, one after the other.

    name: of the thread. store: what is closed, for errors. opened: called once, after the first
        successful call.
    """

    def __init__(
        self,
        connected: ConnectionOwner,
        *,
        name: str,
        store: str,
        opened: Callable[[], None] | None = None,
    ) -> None:
        self.connected = connected
        self._store = store
        self._opened = opened
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.closed = False

    def call(
        self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        if self.closed:
            raise StoreError(f"{self._store} is closed; open it again")
        loop = asyncio.get_running_loop()
        work = partial(method, *args, **kwargs)
        answer = loop.run_in_executor(self._executor, self.connected.call, work)
        if self._opened is not None:
            answer.add_done_callback(self._note_answer)
        return answer

    def _note_answer(self, answer: asyncio.Future[Any]) -> None:
        opened = self._opened
        if opened is not None and not answer.cancelled() and answer.exception() is None:
            self._opened = None
            opened()

    async def close(self) -> None:
        """Close the connection after the waiting calls, then the thread. May be called twice."""
        if self.closed:
            return
        closing = self.call(self.connected.close)
        self.closed = True
        try:
            await closing
        finally:
            self._executor.shutdown(wait=False)


class _ThreadedStore(Protocol):
    _thread: SqliteThread


class _ThreadedStoreWithClock(_ThreadedStore, Protocol):
    clock: Clock


def in_thread(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The plain call `method` as an async method, which makes it in the thread `self._thread`."""

    @wraps(method)
    async def call(self: _ThreadedStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._thread.call(method, self._thread.connected, *args, **kwargs)

    return call


def in_thread_now(
    method: Callable[Concatenate[Any, float, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """As `in_thread`, for a plain call whose first argument is the time; `self.clock` gives it."""

    @wraps(method)
    async def call(self: _ThreadedStoreWithClock, /, *args: P.args, **kwargs: P.kwargs) -> T:
        thread = self._thread
        return await thread.call(method, thread.connected, self.clock.epoch(), *args, **kwargs)

    return call
