"""SIGTERM and SIGINT stop the workers of a process."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

#: What to call on a signal. Several workers may run in one event loop; all of them stop.
_stops: list[Callable[[], None]] = []
#: The signal handlers from before the first of them started.
_before: dict[signal.Signals, Any] = {}


@contextmanager
def stopping_on_signals(stop: Callable[[], None] | None) -> Iterator[None]:
    """Call `stop` on SIGTERM and SIGINT; the last block to end restores the former handlers."""
    if stop is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _stops:
        _take_over(asyncio.get_running_loop())
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops:
            _put_back(asyncio.get_running_loop())


def _stop_all() -> None:
    for stop in tuple(_stops):
        stop()


def _take_over(loop: asyncio.AbstractEventLoop) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        _before[number] = signal.getsignal(number)
        try:
            loop.add_signal_handler(number, _stop_all)
        except NotImplementedError:  # Windows: event loops there take no signal handlers
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(_stop_all))


def _put_back(loop: asyncio.AbstractEventLoop) -> None:
    for number, handler in _before.items():
        with suppress(NotImplementedError):
            loop.remove_signal_handler(number)
        # None: it was not set from Python, so Python cannot restore it.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
    _before.clear()
