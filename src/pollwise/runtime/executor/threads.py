"""Threads for plain handlers, which do not keep the process alive.

`ThreadPoolExecutor` joins its threads at exit, so one handler that hangs would keep a stopped
worker's process alive forever. These threads are daemons: the job was given back, and the process
may end.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast

from pollwise.runtime.executor.control.run_control import was_cancelled
from pollwise.runtime.executor.django import close_connections

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(Executor):
    """Up to `limit` daemon threads, started when they are needed.

    Each call runs in a copy of its caller's context: its variables do not stay in the thread.
    """

    def __init__(self, limit: int, name: str) -> None:
        self.limit = limit
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
            start = self._busy > self._threads and self._threads < self.limit
            self._threads += start
        self._calls.put((future, partial(copy_context().run, fn, *args, **kwargs)))
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
                except BaseException as error:
                    future.set_exception(error)
            with self._lock:
                self._busy -= 1
            del future, call  # do not hold a job's payload while idle
        close_connections()


class _Call(Generic[T]):
    """One call of a plain function, whose stage both threads can see."""

    def __init__(self, function: Callable[[Any], T], argument: Any) -> None:
        self._function = function
        self._argument = argument
        self._lock = threading.Lock()
        self._stage: Literal["queued", "running", "over", "dropped"] = "queued"
        self._come_back: Callable[[], None] | None = None
        self._result: T | None = None
        self._raised: BaseException | None = None

    def __call__(self) -> T | None:
        with self._lock:
            if self._stage == "dropped":
                return None
            self._stage = "running"
        try:
            self._result = self._function(self._argument)
            return self._result
        except StopIteration as error:  # asyncio cannot pass it on: the caller would hang
            self._raised = RuntimeError(f"the handler raised StopIteration({error})")
            raise self._raised from error
        except BaseException as error:
            self._raised = error
            raise
        finally:
            with self._lock:
                self._stage = "over"
                come_back = self._come_back
            if come_back is not None:
                come_back()
            else:  # nobody will ask for the outcome; an error would hold its frames
                self._result = self._raised = None

    def abandon(self, come_back: Callable[[], None]) -> bool:
        """Abandon the call. True if it is running: then its thread calls `come_back` at its end."""
        with self._lock:
            if self._stage == "running":
                self._come_back = come_back
                return True
            if self._stage == "queued":
                self._stage = "dropped"
            return False

    def outcome(self) -> T:
        """Return the result of a call that is over, or raise its error."""
        if self._raised is not None:
            raise self._raised
        return cast("T", self._result)


def _note_returned(loop: asyncio.AbstractEventLoop, back: asyncio.Future[None]) -> None:
    with suppress(RuntimeError):  # the event loop may be closed by now
        loop.call_soon_threadsafe(back.set_result, None)


class HandlerThreads:
    """Runs plain functions in threads and awaits them.

    A thread cannot be stopped. When the await is cancelled (a timeout), its thread is abandoned: it
    runs on and keeps its place. `on_change` is called when a thread is abandoned, and when it
    returns. If somebody asked to cancel the job, the function can see that, so it is awaited.
    """

    def __init__(self, limit: int, name: str, on_change: Callable[[], None]) -> None:
        self._executor = DaemonThreads(limit, name)
        self._on_change = on_change
        self.abandoned: int = 0
        #: During a stop, a cancelled await goes on until its thread returns.
        self.patient = False

    async def run(self, function: Callable[[Any], T], argument: Any) -> T:
        loop = asyncio.get_running_loop()
        call = _Call(function, argument)
        try:
            return cast("T", await loop.run_in_executor(self._executor, call))
        except asyncio.CancelledError:
            back: asyncio.Future[None] = loop.create_future()
            if not call.abandon(lambda: _note_returned(loop, back)):
                raise
            asked = was_cancelled(argument)
            if asked and (task := asyncio.current_task()) is not None:
                task.uncancel()  # a timeout around this counts cancellations
            while (self.patient or asked) and not back.done():
                try:
                    await asyncio.shield(back)
                except asyncio.CancelledError:
                    asked = False  # this one is a timeout, a stop, or a lost lease
            if back.done():
                return call.outcome()
            back.add_done_callback(self._came_back)
            self.abandoned += 1
            self._on_change()
            raise

    def _came_back(self, _: object) -> None:
        self.abandoned -= 1
        self._on_change()

    def resize(self, limit: int) -> None:
        """Change how many threads there may be. Those above a lower limit stay, idle."""
        self._executor.limit = limit

    def close(self) -> None:
        self._executor.shutdown()
