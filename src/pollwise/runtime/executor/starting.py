"""Before a run begins: check its options, name it, refuse it where it is forbidden."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from pollwise.core.strategies.base import Strategy
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError
from pollwise.runtime.jobs import MAX_LEASE

#: The highest concurrency, and the highest prefetch.
MAX_CONCURRENCY = 1000
#: The shortest lease, in seconds; leases are renewed every third of a lease.
MIN_LEASE = 0.1
#: The upper limit of `long_interval`, in seconds.
MAX_LONG_INTERVAL = 3600.0

#: Unless prefetch is given, claim this many seconds of work ahead, and at most this many jobs.
AHEAD_SECONDS = 0.1
AHEAD_MAX = 256

_no_runs: ContextVar[str] = ContextVar("no_runs", default="")


@contextmanager
def no_runs(why: str) -> Iterator[None]:
    """Refuse every run inside this block: importing a module must not start a worker."""
    token = _no_runs.set(why)
    try:
        yield
    finally:
        _no_runs.reset(token)


def refuse_if_forbidden() -> None:
    """Raise ConfigError inside a `no_runs` block."""
    if _no_runs.get():
        raise ConfigError(_no_runs.get())


def own_name() -> str:
    """A unique name for a worker or a relay: host, process and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"


def check_strategy(polling: object) -> None:
    if not isinstance(polling, Strategy):
        raise ConfigError(
            f"polling = {polling!r} is not a strategy; give e.g. Adaptive('100ms', '5s')"
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
    """The options of a run, checked; durations are in seconds."""

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

        Short jobs are claimed by the hundred, to make a round trip worthwhile. Long ones are not
        claimed ahead at all: a job that waits here for minutes could run elsewhere.
        """
        if self.prefetch is not None:
            return self.prefetch
        if took is None:
            return 0
        return int(min(self.concurrency * AHEAD_SECONDS / max(took, 1e-6), AHEAD_MAX))

    def full_at(self, limit: int) -> int:
        """How many jobs make a claim of up to `limit` count as full.

        The number claimed ahead varies from poll to poll. Unless prefetch is given, the capacity
        that strategies see is therefore limited to twice the concurrency.
        """
        return limit if self.prefetch is not None else min(limit, 2 * self.concurrency)
