"""`pollwise fleet top`: a live view that restores the terminal however it ends.

The key q, Ctrl-C, SIGTERM, SIGHUP and the end of its time all take the same way out, which restores
the screen and the terminal's settings.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from rich.live import Live
from rich.text import Text

from pollwise.cli.fleet.views import FRAME, FleetSnapshot, frame
from pollwise.cli.output import out, visible
from pollwise.errors import StoreError

try:
    import termios
    import tty
except ImportError:  # without termios, only Ctrl-C ends it
    KEYS = False
else:
    KEYS = True

#: Exit code of a process that a signal ended, minus the signal's number, as shells have it.
BY_SIGNAL = 128


class ViewEnding:
    """The end of a live view: none yet, by a key (code 0), or by a signal."""

    def __init__(self) -> None:
        self._over = asyncio.Event()
        self.code = 0

    def now(self, code: int = 0) -> None:
        self.code = self.code or code
        self._over.set()

    async def within(self, seconds: float) -> bool:
        """True if it ended, or ends within this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()
        return self._over.is_set()


async def watch(
    take: Callable[[], Awaitable[FleetSnapshot]], pause: float, left: float | None
) -> int:
    """Show the fleet until it ends; returns the exit code.

    pause: seconds between two updates. left: seconds until it ends by itself; None for no limit.
    """
    until = None if left is None else time.monotonic() + left
    first = await take()
    with (
        ended_by_hand() as ending,
        Live(_fitting(first), console=out, screen=True, auto_refresh=False) as live,
    ):
        while until is None or time.monotonic() < until:
            if await ending.within(pause):
                break
            try:
                shown = _fitting(await take())
            except StoreError as error:
                shown = Text(visible(str(error)), "red")
            live.update(shown, refresh=True)
    return ending.code


def _fitting(snapshot: FleetSnapshot) -> Any:
    return frame(snapshot, max(out.size.height - FRAME, 1), out.size.width, live=True)


@contextmanager
def ended_by_hand() -> Iterator[ViewEnding]:
    """End the view on the key q or a signal; restores handlers and terminal afterwards."""
    ending, loop = ViewEnding(), asyncio.get_running_loop()
    with ExitStack() as stack:
        for number in (signal.SIGTERM, getattr(signal, "SIGHUP", None)):
            if number is not None:
                with suppress(NotImplementedError):
                    loop.add_signal_handler(number, ending.now, BY_SIGNAL + number)
                    stack.callback(loop.remove_signal_handler, number)
        if KEYS and sys.stdin.isatty():
            keyboard = sys.stdin.fileno()

            def read() -> None:
                try:
                    typed = os.read(keyboard, 64)
                except OSError:  # the terminal was closed
                    typed = b""
                if not typed or b"q" in typed.lower():
                    loop.remove_reader(keyboard)
                    ending.now()

            stack.callback(termios.tcsetattr, keyboard, termios.TCSADRAIN, _settings(keyboard))
            tty.setcbreak(keyboard)  # keys arrive at once and are not echoed; Ctrl-C still works
            loop.add_reader(keyboard, read)
            stack.callback(loop.remove_reader, keyboard)
        yield ending


def _settings(keyboard: int) -> list[Any]:
    return termios.tcgetattr(keyboard)
