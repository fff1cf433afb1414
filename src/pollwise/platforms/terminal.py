"""The terminal: single keys, and whether there is one. Without termios, only Ctrl-C is a key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pollwise.platforms.files import NO_TERMINAL

try:
    import termios
    import tty
except ImportError:  # Windows
    KEYS = False
else:
    KEYS = True


@contextmanager
def single_keys(keyboard: int) -> Iterator[None]:
    """Within this block, keys arrive at once and are not echoed; Ctrl-C still works.

    Only where `KEYS` is true.
    """
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def has_terminal() -> bool:
    """True if this process has a terminal that still exists; False on Windows."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | NO_TERMINAL))
    except OSError:
        return False
    return True
