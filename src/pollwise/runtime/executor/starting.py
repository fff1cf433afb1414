"""What stands before a run: its options checked, its name, and whether it may begin here."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pollwise.core.strategies.base import Strategy
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError
from pollwise.runtime.jobs import MAX_LEASE

#: The most handlers at a time, and the most claimed ahead.
MAX_CONCURRENCY = 1000
#: The shortest lease: a third of it is how often leases are renewed.
MIN_LEASE = 0.1
#: The longest pause between two polls, in seconds, however well hints work.
MAX_LONG_INTERVAL = 3600.0

_no_runs: ContextVar[str] = ContextVar("no_runs", default="")


@contextmanager
def no_runs(why: str) -> Iterator[None]:
    """Refuse every run inside this block: a module that is imported must not start working."""
    token = _no_runs.set(why)
    try:
        yield
    finally:
        _no_runs.reset(token)


def refuse_if_forbidden() -> None:
    """Raise what `no_runs` says, within it."""
    if _no_runs.get():
        raise ConfigError(_no_runs.get())


class Over:
    """What a blocking run returns: awaiting it again is harmless."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


def own_name() -> str:
    """A name for a worker or a relay: where it runs, and which of them it is."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"


def check_strategy(polling: object) -> None:
    if not isinstance(polling, Strategy):
        raise ConfigError(
            f"polling = {polling!r} is no strategy; give e.g. Adaptive('100ms', '5s')"
        )


def check_times(
    lease: Duration, grace: Duration, timeout: Duration | None, long_interval: Duration
) -> None:
    lease_s = seconds(lease, "lease", positive=True)
    if not MIN_LEASE <= lease_s <= MAX_LEASE:
        raise ConfigError(f"lease = {lease!r} must be from {MIN_LEASE:g} s to {MAX_LEASE:g} s")
    seconds(grace, "grace")
    if timeout is not None:
        seconds(timeout, "timeout", positive=True)
    if seconds(long_interval, "long_interval", positive=True) > MAX_LONG_INTERVAL:
        raise ConfigError(
            f"long_interval = {long_interval!r} is above the limit of {MAX_LONG_INTERVAL:g} s"
        )


def check_whole(value: object, name: str, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name} = {value!r} must be a whole number from {least} to {most}")
