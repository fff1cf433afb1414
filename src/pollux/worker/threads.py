"""Threads for plain handlers, which do not keep the process alive.

`ThreadPoolExecutor` joins its threads at exit, so one handler that hangs would keep a stopped
worker's process for ever. These threads are daemons: the job was given back, the process may go.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(Executor):
    """Up to `limit` daemon threads, started when they are needed."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._threads = 0
        self._busy = 0
        self._lock = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            self._busy += 1
            start = self._busy > self._threads and self._threads < self._limit
            self._threads += start
        self._calls.put((future, lambda: fn(*args, **kwargs)))
        if start:
            name = f"{self._name}-{self._threads}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Let idle threads end; busy ones end when their call returns. Never waits."""
        with self._lock:
            for _ in range(self._threads):
                self._calls.put(None)

    def _serve(self) -> None:
        for future, call in iter(self._calls.get, None):
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
                    future.set_exception(error)
            with self._lock:
                self._busy -= 1
            del future, call  # do not hold a job's payload while idle


class HandlerThreads:
    """Plain functions, awaited.

    A thread cannot be stopped. When the await is cancelled (a timeout, a stop), its thread is
    abandoned: it runs on and keeps its place, and `on_change` is called when it comes back.
    """

    def __init__(self, limit: int, name: str, on_change: Callable[[], None]) -> None:
        self._executor = DaemonThreads(limit, name)
        self._on_change = on_change
        self.abandoned = 0

    async def run(self, function: Callable[[Any], T], argument: Any) -> T:
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        over = threading.Event()

        def call() -> T:
            try:
                return context.run(function, argument)
            finally:
                over.set()
                if left_alone.is_set():
                    with suppress(RuntimeError):  # the event loop may be closed by now
                        loop.call_soon_threadsafe(self._came_back)

        left_alone = threading.Event()
        try:
            return await loop.run_in_executor(self._executor, call)
        except asyncio.CancelledError:
            if not over.is_set():
                self.abandoned += 1
                left_alone.set()
            raise

    def _came_back(self) -> None:
        self.abandoned -= 1
        self._on_change()

    def close(self) -> None:
        self._executor.shutdown()
