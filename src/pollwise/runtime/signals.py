"""SIGTERM, SIGINT and SIGHUP stop what runs in a process, unless the program handles them itself.

A process that goes on for too long after such a signal is ended: a handler may swallow its
cancellation or block the event loop, and the signal would have ended the process at once.
"""

from __future__ import annotations

import _thread
import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pollwise.platforms import signals
from pollwise.platforms.system import is_windows

#: How long after a signal and the grace a process may still run, in seconds.
END_WITHIN = 30.0
#: The exit code of a process that is ended because something in it does not end.
STUCK = 70
#: How long the last log lines may take, in seconds.
_FLUSH_WITHIN = 2.0

logger = logging.getLogger("pollwise")


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Something that a signal stops.

    grace: how long it takes to stop, in seconds; None if nothing ends the process for it.
    """

    stop: Callable[[], None]
    loop: asyncio.AbstractEventLoop
    grace: float | None


#: Several workers may run in one process; a signal stops all of them.
_blocks: list[_Block] = []
#: The handlers from before the first block, of the signals that were taken over.
_before: dict[signals.Signal, Any] = {}


class _Deadline:
    """When the process is ended; None while no signal came."""

    at: float | None = None
    #: The process runs nothing else: it ends even when the last block has ended in time.
    whole_process = False


@contextmanager
def process_ends_on_signals() -> Iterator[None]:
    """For commands: after a signal in this block the process ends, whatever is left running."""
    _Deadline.whole_process = True
    try:
        yield
    finally:
        _Deadline.whole_process = _Deadline.at is not None


@contextmanager
def stopping_on_signals(
    stop: Callable[[], None] | None, grace: float | None = None
) -> Iterator[None]:
    """Call `stop` on the signals that nobody else handles; the last block to end restores them.

    grace: end the process `END_WITHIN` seconds after a signal and this grace, if it still runs the
        block, or something that was cancelled; None to leave it alone.
    """
    if stop is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    block = _Block(stop, asyncio.get_running_loop(), grace)
    if not _blocks:
        _take_over(block.loop)
    _blocks.append(block)
    try:
        yield
    finally:
        _blocks.remove(block)
        if not _blocks:
            _put_back(block.loop)
            if not _Deadline.whole_process and not _goes_on():
                _Deadline.at = None


def end_process(code: int, text: str, **fields: object) -> None:
    """Log why, flush, and end the process without waiting for anything in it."""

    def last_words() -> None:
        logger.critical(text, extra={"action": "process_ended", "fields": fields})
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()

    # In a thread of its own: what hangs may hold a lock of logging or of a stream.
    thread = threading.Thread(target=last_words, daemon=True)
    thread.start()
    thread.join(_FLUSH_WITHIN)
    os._exit(code)


def _goes_on() -> bool:
    """True if a task still runs although it was cancelled: the event loop could not be closed."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    return any(task.cancelling() for task in others)


def _free(number: signals.Signal) -> bool:
    """True if nobody handles a signal: neither the program nor a server such as uvicorn.

    The handler that `asyncio.run` sets for SIGINT only cancels the main task. A SIGHUP that is
    ignored is meant to be (`nohup`).
    """
    handler = signals.handler_of(number)
    if handler is signals.IGNORED:
        return number is not signals.HANGUP
    runner = getattr(getattr(handler, "func", None), "__self__", None)
    usual = (signals.DEFAULT, signals.INTERRUPTS, signals.end_start)
    return handler in usual or isinstance(runner, asyncio.Runner)


def _take_over(loop: asyncio.AbstractEventLoop) -> None:
    if not _free(signals.TERMINATE):  # SIGHUP is treated like SIGTERM
        free = [signals.INTERRUPT] if _free(signals.INTERRUPT) else []
    else:
        free = [number for number in signals.STOPPING if _free(number)]
    for number in free:
        before = signals.handler_of(number)
        _before[number] = signals.usual_handler(number) if before is signals.end_start else before
        signals.wake(loop, number, _stop_all)  # where it cannot, `_noted` does
        signals.set_handler(number, _noted)


def _put_back(loop: asyncio.AbstractEventLoop) -> None:
    for number, handler in _before.items():
        if signals.handler_of(number) is _noted:  # else somebody took it over meanwhile
            signals.do_not_wake(loop, number)
            signals.set_handler(number, handler)
    _before.clear()


def _stop_all() -> None:
    for block in tuple(_blocks):
        block.stop()


def _noted(*_: object) -> None:
    """A signal came. This runs even while a handler blocks the event loop."""
    if is_windows():
        for block in tuple(_blocks):
            block.loop.call_soon_threadsafe(block.stop)
    graces = [block.grace for block in _blocks if block.grace is not None]
    if not graces:
        return
    now = time.monotonic()
    if _Deadline.at is None:
        _Deadline.at = now + max(graces) + END_WITHIN
        _thread.start_new_thread(_end_at_deadline, ())  # takes no lock that may be held here
    else:  # the second signal ends the grace
        _Deadline.at = min(_Deadline.at, now + END_WITHIN)


def _end_at_deadline() -> None:
    while (at := _Deadline.at) is not None:
        left = at - time.monotonic()
        if left <= 0:
            text = (
                "the process did not end in time after a signal, because something in it does not "
                "stop; it is ended now"
            )
            end_process(STUCK, text)
        time.sleep(min(left, 1.0))
