"""The line in the terminal that shows a wait."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pollwise import Fixed, WaitProgress, until_sync
from pollwise.runtime.clock import VirtualClock
from pollwise.waiting.progress import WaitLine


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def progress(polls: int, next_delay: float) -> WaitProgress:
    return WaitProgress("export", polls, 5.0, None, None, next_delay, 600.0)


def test_the_line_shows_the_time_the_polls_and_the_next_one() -> None:
    line = WaitLine("export [1/2]", 600.0, terminal())
    assert line.text().plain == "export [1/2]  0s of 10m  0 polls, polling"
    line(progress(1, 7200.2))
    assert line.text().plain == "export [1/2]  0s of 10m  1 poll, next in 2h"
    line(progress(12, 0.2))
    assert line.text().plain.endswith("12 polls, next in 1s")
    line(progress(13, 0.0))
    assert line.text().plain.endswith("13 polls, polling")
    assert "of" not in WaitLine("export", None, terminal()).text().plain


def test_it_is_drawn_in_a_terminal_and_goes_away() -> None:
    console = terminal()
    file = console.file
    assert isinstance(file, io.StringIO)
    with WaitLine("export", 600.0, console) as line:
        line(progress(3, 60.0))
    drawn = file.getvalue()
    assert "export  0s of 10m  3 polls, next in 1m" in drawn
    assert "\x1b[?25h" in drawn  # the cursor is back
    assert drawn.endswith("\x1b[2K")  # and the line is erased


def test_it_is_not_drawn_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter([False, True])
    clock = VirtualClock()
    assert until_sync(lambda: next(answers), strategy=Fixed("1s"), progress=True, clock=clock)
    assert capsys.readouterr() == ("", "")
