"""The thread that makes the calls to a SQLite file, so that the event loop is not blocked.

One thread with one connection is enough: SQLite has one writer at a time, so more would only wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from pollwise.errors import StoreError

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
        self._connected = connected
        self._store = store
        self._opened = opened
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.closed = False

    def call(self, method: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        if self.closed:
            raise StoreError(f"{self._store} is closed; open it again")
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(self._executor, self._connected.call, method, *args)
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
        closing = self.call(self._connected.close)
        self.closed = True
        try:
            await closing
        finally:
            self._executor.shutdown(wait=False)
