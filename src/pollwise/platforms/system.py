"""Tells which system this is, and refuses what it cannot do."""

from __future__ import annotations

import sys

from pollwise.errors import ConfigError


def is_windows() -> bool:
    return sys.platform == "win32"


def is_linux() -> bool:
    return sys.platform.startswith("linux")


def is_macos() -> bool:
    return sys.platform == "darwin"


def not_on_windows(what: str, advice: str) -> None:
    """Raise `ConfigError` on Windows, before anything starts.

    what: what the caller asked for. advice: what to do instead.
    """
    if is_windows():
        raise ConfigError(f"{what} needs Linux or macOS, and this is Windows; {advice}")


def agents_run_here() -> None:
    """Raise `ConfigError` on Windows: an agent ends every process that a command started."""
    not_on_windows("an agent", "run it there, or run a worker here")
