"""`pollwise fleet top` at work: a live view that leaves the terminal as it found it, however it
ends.

The key q, Ctrl-C, SIGTERM, SIGHUP and the end of its time all lead out by the same door, where the
screen and the terminal's settings are given back.
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
except ImportError:  # no keys there, but Ctrl-C
    KEYS = False
else:
    KEYS = True

#: A shell's way to tell by which signal a process ended.
BY_SIGNAL = 128


class ViewEnding:
    """What ended a view: nothing yet, a key (0), or a signal."""

    def __init__(self) -> None:
        self._over = asyncio.Event()
        self.code = 0

    def now(self, code: int = 0) -> None:
        self.code = self.code or code
        self._over.set()

    async def within(self, seconds: float) -> bool:
        """Whether it ended, or does in so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()
        return self._over.is_set()


async def watch(
    look: Callable[[], Awaitable[FleetSnapshot]], pause: float, left: float | None
) -> int:
    """Show look after look; the exit code.

    pause: between two looks, in seconds. left: how long it lasts; None until somebody ends it.
    """
    until = None if left is None else time.monotonic() + left
    first = await look()
    with (
        ended_by_hand() as ending,
        Live(_fitting(first), console=out, screen=True, auto_refresh=False) as live,
    ):
        while until is None or time.monotonic() < until:
            if await ending.within(pause):
                break
            try:
                shown = _fitting(await look())
            except StoreError as error:
                shown = Text(visible(str(error)), "red")
            live.update(shown, refresh=True)
    return ending.code


def _fitting(look: FleetSnapshot) -> Any:
    return frame(look, max(out.size.height - FRAME, 1), out.size.width, live=True)


@contextmanager
def ended_by_hand() -> Iterator[ViewEnding]:
    """Note the key q and the signals that end processes; afterwards all is as it was."""
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
                except OSError:  # the terminal is gone
                    typed = b""
                if not typed or b"q" in typed.lower():
                    loop.remove_reader(keyboard)
                    ending.now()

            stack.callback(termios.tcsetattr, keyboard, termios.TCSADRAIN, _settings(keyboard))
            tty.setcbreak(keyboard)  # each key at once, and not shown; Ctrl-C stays what it is
            loop.add_reader(keyboard, read)
            stack.callback(loop.remove_reader, keyboard)
        yield ending


def _settings(keyboard: int) -> list[Any]:
    return termios.tcgetattr(keyboard)
