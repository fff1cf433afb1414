"""Signals. Windows has few of them, and its event loops cannot watch for those."""

from __future__ import annotations

import signal
from collections.abc import Callable
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
