"""A live view in the terminal, which is restored however the view ends.

The key q, Ctrl-C, SIGTERM, SIGHUP and the end of its time all take the same way out, which restores
the screen and the terminal's settings.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

from rich.console import RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pollwise.cli.output import out, visible
from pollwise.errors import StoreError
from pollwise.platforms import signals
from pollwise.platforms.terminal import KEYS, single_keys

T = TypeVar("T")

#: Exit code of a process that a signal ended, minus the signal's number, as shells have it.
BY_SIGNAL = 128
#: Maximum width of a column of a table.
COLUMN_WIDTH = 32
#: The share of the time that a view may spend on taking its snapshots.
LOOKING = 0.1
#: The longest pause between two updates, in seconds, unless it is asked for.
PAUSE_MAX = 60.0


class ViewEnding:
    """How a live view ended: not yet, by a key (code 0), or by a signal."""

    def __init__(self) -> None:
        self._over = asyncio.Event()
        self.code: int = 0

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
    take: Callable[[], Awaitable[T]],
    shown: Callable[[T], RenderableType],
    pause: float,
    left: float | None,
) -> int:
    """Show snapshots until the view ends; returns the exit code.

    take: takes a snapshot. shown: draws it to fit the screen.
    pause: seconds between two updates; longer if a snapshot takes long, so that a large store is
        not asked all the time.
    left: seconds until it ends by itself; None for no limit.
    """
    until = None if left is None else time.monotonic() + left
    began = time.monotonic()
    first = await take()
    took = time.monotonic() - began
    with (
        ended_by_hand() as ending,
        Live(shown(first), console=out, screen=True, auto_refresh=False) as live,
    ):
        while until is None or time.monotonic() < until:
            if await ending.within(max(pause, min(took / LOOKING, PAUSE_MAX))):
                break
            began = time.monotonic()
            try:
                now = shown(await take())
            except StoreError as error:
                now = Text(visible(str(error)), "red")
            took = time.monotonic() - began
            live.update(now, refresh=True)
    return ending.code


def fitted_table(
    columns: Sequence[str], rows: Sequence[Sequence[Text]], numeric: Collection[str] = ()
) -> Table:
    """A table with one line for each row; the last column is cut if there is no room.

    numeric: columns that are aligned to the right.
    """
    made = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for place, column in enumerate(columns):
        widest = max([len(column), *(row[place].cell_len for row in rows)])
        last = place == len(columns) - 1
        made.add_column(
            column,
            no_wrap=True,
            overflow="ellipsis",
            justify="right" if column in numeric else "left",
            width=None if last else min(widest, COLUMN_WIDTH),
            ratio=1 if last else None,
        )
    for row in rows:
        made.add_row(*row)
    return made


@contextmanager
def ended_by_hand() -> Iterator[ViewEnding]:
    """End the view on the key q or a signal; restores handlers and terminal afterwards."""
    ending, loop = ViewEnding(), asyncio.get_running_loop()
    with ExitStack() as stack:
        for number in signals.STOPPING:
            if number is not signals.INTERRUPT:
                signals.wake(loop, number, ending.now, BY_SIGNAL + number)
                stack.callback(signals.do_not_wake, loop, number)
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

            stack.enter_context(single_keys(keyboard))
            loop.add_reader(keyboard, read)
            stack.callback(loop.remove_reader, keyboard)
        yield ending
