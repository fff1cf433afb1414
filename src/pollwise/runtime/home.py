"""The event loop and the process that a handle on a store belongs to.

Connections belong to one event loop. A handle may be used by one loop after the other, but not by
the loops of two threads at once. A forked child inherits handles: it must never use, close or
collect the connections in them, because they are still its parent's.

Callers without an event loop share one, in a background thread of the process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from pollwise.errors import StoreError
from pollwise.platforms import loops
from pollwise.platforms.processes import at_fork

T = TypeVar("T")

#: How often a caller that waits checks that the event loop still exists, in seconds.
CHECK_LOOP_EVERY = 1.0


class ForkAware(Protocol):
    """A handle that has something to do in a forked child."""

    def after_fork(self) -> None: ...


_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_kept: list[Any] = []


def watch_forks(handle: ForkAware) -> None:
    """Call `handle.after_fork()` in forked children."""
    _aware.add(handle)


def keep_for_parent(*inherited: Any) -> None:
    """Never collect these in this child: their finalizers would disturb the parent."""
    _kept.extend(inherited)


def _in_child() -> None:
    for handle in list(_aware):
        handle.after_fork()


at_fork(after_in_child=_in_child)


class Home:
    """Knows which event loop a handle belongs to."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._of_parent: asyncio.AbstractEventLoop | None = None
        watch_forks(self)

    def enter(self, where: str) -> bool:
        """True if the handle comes from another event loop, so that its connections must be
        dropped; False if it was here before.

        Raises `StoreError` if that loop is running in another thread, or if this loop was made
        before the process forked.
        """
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return False
        if loop is self._of_parent:
            raise StoreError(
                f"{where} was used by this event loop before the process forked, and a child "
                "cannot go on with the event loop of its parent; use a new one: asyncio.run(…)"
            )
        if self._loop is not None and self._loop.is_running():
            raise StoreError(
                f"{where} is in use by the event loop of another thread; open a queue or an outbox "
                "of its own for each thread"
            )
        self._loop = loop
        return True

    def leave(self) -> None:
        """Another event loop may use the handle next, even while this one runs."""
        self._loop = None

    @property
    def known(self) -> bool:
        """True if an event loop has used the handle."""
        return self._loop is not None

    def here(self) -> bool:
        """True if the handle belongs to the running event loop."""
        return self._loop is asyncio.get_running_loop()

    def after_fork(self) -> None:
        self._of_parent, self._loop = self._loop or self._of_parent, None


class LoopThread:
    """An event loop in a background thread, for callers that have none.

    It is started when it is first needed, and a forked child starts its own. The thread is a
    daemon: it never keeps a program from ending.
    """

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        watch_forks(self)

    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            with self._starting:
                if self._loop is None:
                    self._loop = self._start()
        return self._loop

    @staticmethod
    def _start() -> asyncio.AbstractEventLoop:
        loop = loops.new()
        running = threading.Event()
        loop.call_soon(running.set)
        threading.Thread(target=loop.run_forever, name="pollwise-loop", daemon=True).start()
        running.wait()
        return loop

    def after_fork(self) -> None:
        keep_for_parent(self._loop)
        self._starting, self._loop = threading.Lock(), None


_thread = LoopThread()


def background_loop() -> asyncio.AbstractEventLoop:
    """The running event loop of this process's background thread."""
    return _thread.loop()


def run_in(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop of another thread, and wait for its result.

    The coroutine is cancelled if the wait is interrupted, for example by Ctrl+C.
    """
    if loop is asyncio._get_running_loop():
        coroutine.close()
        raise StoreError(
            "a call that blocks was made in the event loop that would have to answer it; here, "
            "await the async call instead"
        )
    try:
        answer = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise _loop_ended() from None
    try:
        while True:
            try:
                return answer.result(CHECK_LOOP_EVERY)
            except TimeoutError:
                if answer.done():
                    return answer.result()  # or raise the coroutine's own error
                if loop.is_closed():
                    raise _loop_ended() from None
    except concurrent.futures.CancelledError:
        raise _loop_ended() from None
    except BaseException:
        answer.cancel()
        raise


def _loop_ended() -> StoreError:
    return StoreError(
        "the event loop ended before the answer came, so the call may or may not be carried out"
    )
