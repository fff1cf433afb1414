"""Before a run begins: check its options, name it, refuse it where it is forbidden."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from pollwise.core.strategies.base import Strategy
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError
from pollwise.runtime.jobs import MAX_LEASE
from pollwise.runtime.loop import LONG_INTERVAL
from pollwise.runtime.tracing.spans import TRACE_CONTEXTS, TraceContext

#: The highest concurrency, and the highest prefetch.
MAX_CONCURRENCY = 1000
#: The shortest lease, in seconds; leases are renewed every third of a lease.
MIN_LEASE = 0.1
#: The bounds of `max_memory`, in bytes.
MIN_MEMORY, MAX_MEMORY = 1024**2, 1024**5
#: The upper limit of `long_interval`, in seconds.
MAX_LONG_INTERVAL = 3600.0

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


def check_whole(value: object, name: str, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name} = {value!r} must be a whole number from {least} to {most}")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options that a worker and a relay share."""

    polling: Strategy
    concurrency: int
    lease: Duration
    grace: Duration = "30s"
    timeout: Duration | None = None
    drain: bool | None = None
    hints: bool = True
    long_interval: Duration = LONG_INTERVAL
    signals: bool = True
    seed: int | None = None
    max_memory: int | None = None
    recycle_when_full: bool = False
    trace_context: TraceContext = "link"

    def __post_init__(self) -> None:
        if not isinstance(self.polling, Strategy):
            raise ConfigError(
                f"polling = {self.polling!r} is not a strategy; give e.g. Adaptive('100ms', '5s')"
            )
        check_whole(self.concurrency, "concurrency", 1, MAX_CONCURRENCY)
        if not MIN_LEASE <= seconds(self.lease, "lease", positive=True) <= MAX_LEASE:
            raise ConfigError(
                f"lease = {self.lease!r} must be from {MIN_LEASE:g} s to {MAX_LEASE:g} s"
            )
        if self.drain is not None and not isinstance(self.drain, bool):
            raise ConfigError(f"drain = {self.drain!r} must be True, False, or None")
        seconds(self.grace, "grace")
        if self.timeout is not None:
            seconds(self.timeout, "timeout", positive=True)
        if seconds(self.long_interval, "long_interval", positive=True) > MAX_LONG_INTERVAL:
            raise ConfigError(
                f"long_interval = {self.long_interval!r} is above the limit of "
                f"{MAX_LONG_INTERVAL:g} s"
            )
        if self.max_memory is not None:
            check_whole(self.max_memory, "max_memory", MIN_MEMORY, MAX_MEMORY)
        if self.trace_context not in TRACE_CONTEXTS:
            raise ConfigError(f"trace_context = {self.trace_context!r} must be 'link' or 'parent'")


Options = TypeVar("Options", bound=RunOptions)


def checked_options(options: Options | None, kind: type[Options]) -> Options | None:
    """The options as given; raises ConfigError if they are of another class."""
    if options is not None and not isinstance(options, kind):
        raise ConfigError(
            f"options = {options!r} must be {kind.__name__}(concurrency=8, ...), or None"
        )
    return options
