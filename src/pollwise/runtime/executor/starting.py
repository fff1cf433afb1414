"""What stands before a run: its options checked, its name, and whether it may begin here."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
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

#: How many seconds of work are claimed ahead, unless the prefetch is given, and how many jobs.
AHEAD_SECONDS = 0.1
AHEAD_MAX = 256

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


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run goes by; every value checked and in seconds."""

    name: str
    polling: Strategy
    concurrency: int
    prefetch: int | None
    lease: float
    grace: float
    timeout: float | None
    hints: bool
    long_interval: float
    seed: int | None

    def ahead(self, took: float | None) -> int:
        """How many jobs to claim ahead of a free handler, when handlers take `took` seconds.

        Short jobs by the hundred, so that a claim is worth its round trip; long ones not at all:
        a job that waits here for minutes could run elsewhere.
        """
        if self.prefetch is not None:
            return self.prefetch
        if took is None:
            return 0
        return int(min(self.concurrency * AHEAD_SECONDS / max(took, 1e-6), AHEAD_MAX))

    def full_at(self, limit: int) -> int:
        """How many jobs make a claim of up to `limit` count as full.

        What is claimed ahead varies from poll to poll, so where nobody fixed it, a strategy that
        goes by how full a batch was is told of twice the concurrency at the most.
        """
        return limit if self.prefetch is not None else min(limit, 2 * self.concurrency)
