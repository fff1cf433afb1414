"""The progress of a wait, and a line in the terminal that shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pollwise.durations import short

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


@dataclass(frozen=True, slots=True)
class WaitProgress:
    """The progress of a wait after a poll that did not end it.

    name: what is waited for.
    polls: how many polls there were.
    elapsed: seconds since the wait began.
    value: what the last poll returned; None if it failed.
    error: the error of the last poll, if it failed.
    next_delay: seconds until the next poll.
    timeout: how long the wait may take in all, in seconds; None without a limit.
    """

    name: str
    polls: int
    elapsed: float
    value: Any
    error: Exception | None
    next_delay: float
    timeout: float | None


#: Takes each `WaitProgress`.
Report = Callable[[WaitProgress], object]

#: How often the line is drawn again, per second.
DRAWN_PER_SECOND = 4.0


class WaitLine(AbstractContextManager["WaitLine"]):
    """A line on a terminal that shows how a wait goes; elsewhere it shows nothing.

    It goes away at the end of the block.
    """

    def __init__(self, name: str, timeout: float | None, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        self._name = name
        self._timeout = timeout
        self._began = time.monotonic()
        self._polls = 0
        self._next_at = self._began
        self._spinner = Spinner("dots")
        console = console or Console(stderr=True)
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                get_renderable=self._drawn,
                console=console,
                refresh_per_second=DRAWN_PER_SECOND,
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, traceback)

    def __call__(self, progress: WaitProgress) -> None:
        self._polls = progress.polls
        self._next_at = time.monotonic() + progress.next_delay

    def _drawn(self) -> Any:
        self._spinner.text = self.text()
        return self._spinner

    def text(self) -> Text:
        """The line without its spinner."""
        from rich.text import Text

        now = time.monotonic()
        elapsed = short(max(round(now - self._began), 0))
        limit = "" if self._timeout is None else f" of {short(self._timeout)}"
        polls = f"{self._polls} poll{'' if self._polls == 1 else 's'}"
        left = max(self._next_at - now, 0.0)
        following = f"next in {short(round(left) or 1)}" if left else "polling"
        return Text(f"{self._name}  {elapsed}{limit}  {polls}, {following}")
