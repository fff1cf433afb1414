"""Signals. Windows has few of them, and its event loops cannot watch for those."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pollwise.platforms.system import is_windows

if TYPE_CHECKING:
    import asyncio

Signal = signal.Signals

INTERRUPT = signal.SIGINT
TERMINATE = signal.SIGTERM
#: The end of a terminal, and "read your settings again"; None on Windows.
HANGUP: Signal | None = getattr(signal, "SIGHUP", None)
#: Ctrl-Break; None except on Windows.
BREAK: Signal | None = getattr(signal, "SIGBREAK", None)
#: Ends a process at once; on Windows every signal that is sent does.
KILL: Signal = getattr(signal, "SIGKILL", signal.SIGTERM)
#: The signals that stop what runs, as far as this system has them.
STOPPING: tuple[Signal, ...] = tuple(
    number for number in (TERMINATE, INTERRUPT, HANGUP, BREAK) if number is not None
)
#: A process used more of the CPU than it may; None where there is no such limit.
CPU_LIMIT: Signal | None = getattr(signal, "SIGXCPU", None)
IGNORED = signal.SIG_IGN
DEFAULT = signal.SIG_DFL
#: The handler that raises KeyboardInterrupt.
INTERRUPTS = signal.default_int_handler

handler_of = signal.getsignal
set_handler = signal.signal
send_to_self = signal.raise_signal


@contextmanager
def ending_the_start() -> Iterator[None]:
    """A signal to stop ends the process at once, until what it runs takes the signals over.

    Nothing has begun by then, so nothing has to be finished: the exit code is 0. A handler that
    somebody else has set stays.
    """
    free = [number for number in STOPPING if handler_of(number) in (DEFAULT, INTERRUPTS)]
    if threading.current_thread() is not threading.main_thread():
        free = []  # only the main thread may set handlers
    for number in free:
        set_handler(number, end_start)
    try:
        yield
    finally:
        for number in free:
            if handler_of(number) is end_start:
                set_handler(number, usual_handler(number))


def end_start(number: int, _: object) -> None:
    """The handler that `ending_the_start` sets."""
    with suppress(OSError):  # standard error is closed
        os.write(2, f"stopped by {name_of(number)} before it began\n".encode())
    os._exit(0)


def usual_handler(number: Signal) -> Any:
    """What Python does on a signal if no program says otherwise."""
    return INTERRUPTS if number is INTERRUPT else DEFAULT


def lock_wait_max() -> float:
    """How long a thread may wait for a lock at once, in seconds.

    On Windows, Ctrl-C does not end such a wait, so it is noticed when this time is over. Elsewhere
    this only keeps the time below the maximum of Python.
    """
    return 0.5 if is_windows() else 86_400.0


def wake(
    loop: asyncio.AbstractEventLoop, number: Signal, call: Callable[..., Any], *args: Any
) -> bool:
    """Have a signal call a function in the event loop; False if the loop cannot (Windows)."""
    try:
        loop.add_signal_handler(number, call, *args)
    except NotImplementedError:
        return False
    return True


def do_not_wake(loop: asyncio.AbstractEventLoop, number: Signal) -> None:
    """Undo `wake`."""
    try:
        loop.remove_signal_handler(number)
    except NotImplementedError:
        return


def name_of(number: int) -> str:
    """The name of a signal, such as SIGKILL; "signal 99" if it has none here."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
