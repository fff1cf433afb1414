"""Notices a handler that blocks the event loop, while it does.

Leases are renewed by the event loop. An async handler that computes, or waits without `await`, for
longer than its lease loses it: its job runs again elsewhere. While handlers run, a thread asks the
loop for a sign of life. If none comes for a third of the lease, it reports which handler blocks the
loop, and where.
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from pollwise.runtime.clock import VirtualLoop
from pollwise.runtime.events import Events, LoopBlocked, LoopResumed
from pollwise.runtime.executor.handlers import FRAMES_SHOWN, is_ours

#: The event loop is blocked after this share of a lease without a sign of life, or this many
#: seconds, whichever is longer.
SHARE, SHORTEST = 1 / 3, 0.5
#: Where libraries are: the line that is named should be the user's own.
_LIBRARIES = ("<", *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


class Watchdog:
    """Watches the event loop from a thread.

    blocker: returns what the given task works on; called in the thread.
    """

    def __init__(
        self, source: str, lease: float, events: Events, blocker: Callable[[object, str], str]
    ) -> None:
        self._source = source
        self._limit = max(lease * SHARE, SHORTEST)
        self._events = events
        self._blocker = blocker
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._busy = threading.Event()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, busy: bool) -> None:
        """Watch from now on, or no longer. Costs nothing while nothing runs."""
        if not busy:
            self._busy.clear()
        elif not self._busy.is_set() and not isinstance(self._loop, VirtualLoop):
            self._busy.set()
            if self._thread is None:
                name = "pollwise-watchdog"
                self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._busy.set()

    def _watch(self) -> None:
        while self._busy.wait() and not self._over.wait(self._limit / 2):
            alive = threading.Event()
            began = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(alive.set)
            except RuntimeError:  # the loop is closed
                return
            if alive.wait(self._limit):
                continue
            work = self._report(time.monotonic() - began)
            alive.wait()
            took = time.monotonic() - began
            with suppress(RuntimeError):
                resumed = LoopResumed(self._source, work, took)
                self._loop.call_soon_threadsafe(self._events.emit, resumed)

    def _report(self, seconds: float) -> str:
        frame = sys._current_frames().get(self._thread_id)
        stack = [each for each in traceback.extract_stack(frame) if not is_ours(each)]
        own = [each for each in stack if not each.filename.startswith(_LIBRARIES)] or stack
        where = f"{own[-1].filename}:{own[-1].lineno}" if own else "an unknown line"
        task = None
        with suppress(Exception):
            task = asyncio.current_task(self._loop)
        work = self._blocker(task, where)
        shown = "".join(traceback.format_list(stack[-FRAMES_SHOWN:])).rstrip()
        self._events.emit(LoopBlocked(self._source, work, seconds, shown))
        return work
