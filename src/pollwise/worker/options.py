"""How a worker runs."""

from __future__ import annotations

import warnings
from dataclasses import InitVar, dataclass, field

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.fixed import Fixed
from pollwise.durations import Duration
from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.runtime.executor.ahead import PREFETCH_BYTES
from pollwise.runtime.executor.starting import (
    MAX_CONCURRENCY,
    MAX_MEMORY,
    RunOptions,
    check_whole,
)

#: The upper limit of `max_jobs`.
MAX_JOBS = 10**9


@dataclass(frozen=True, kw_only=True)
class WorkerRunOptions(RunOptions):
    """How a worker runs.

    polling: the strategy that paces the polls.
    concurrency: how many handlers run at a time.
    prefetch: how many jobs are claimed ahead of a free handler; None claims as many as handlers
        finish in 100 ms, at most 256.
    prefetch_bytes: about how many bytes of payloads may wait for a free handler. Sizes are learned
        from the claims; 0 claims nothing ahead.
    lease: how long a claim lasts without renewal. Leases are renewed while handlers run, so this
        is the time after which the jobs of a killed worker go to others.
    grace: how long a stop waits for handlers before it cancels them and gives their jobs back.
    timeout: how long a handler may run, unless it has a timeout of its own; None for no limit.
    drain: poll again at once after a full batch; None: every strategy does so except `Fixed`.
    hints: let a hint of a put end a pause early.
    long_interval: how long a pause may be while hints are proven to arrive.
    signals: stop on SIGTERM, SIGINT and SIGHUP (in the main thread), unless the program handles
        them itself; a second one ends the grace. A handler that does not end then, because it
        ignores its cancellation, ends with the process 30 s later.
    seed: makes jitter repeatable.
    poll_interval, poll_interval_ms, poll_interval_seconds: deprecated; the same as
        polling=Fixed(…), the second in milliseconds.
    max_jobs, max_memory: stop after this many runs of handlers, or when the process uses more than
        this many bytes, so that a fresh process takes over; `Worker.recycled` says why.
    recycle_when_full: also stop when threads of handlers that timed out occupy all places.
    trace_context: how the OpenTelemetry span of a run refers to the span of its put: "link", or
        "parent" for one trace.
    cpu_processes: how many processes run handlers with `process=True`; None: one for each CPU. A
        process that uses more than `max_memory` after a job is replaced as well.
    export_queue: measure the queue every 15 seconds for the metrics `pollwise_queue_…`, if a sink
        of metrics listens. One worker of a queue is enough.
    """

    polling: Strategy = field(default_factory=Adaptive)
    concurrency: int = 8
    prefetch: int | None = None
    prefetch_bytes: int = PREFETCH_BYTES
    max_jobs: int | None = None
    cpu_processes: int | None = None
    export_queue: bool = False
    lease: Duration = "60s"
    poll_interval: InitVar[Duration | None] = None
    poll_interval_ms: InitVar[float | None] = None
    poll_interval_seconds: InitVar[float | None] = None

    def __post_init__(
        self,
        poll_interval: Duration | None,
        poll_interval_ms: float | None,
        poll_interval_seconds: float | None,
    ) -> None:
        self._take_interval(
            poll_interval=poll_interval,
            poll_interval_ms=poll_interval_ms,
            poll_interval_seconds=poll_interval_seconds,
        )
        super().__post_init__()
        if self.prefetch is not None:
            check_whole(self.prefetch, "prefetch", 0, MAX_CONCURRENCY)
        check_whole(self.prefetch_bytes, "prefetch_bytes", 0, MAX_MEMORY)
        if self.max_jobs is not None:
            check_whole(self.max_jobs, "max_jobs", 1, MAX_JOBS)
        if self.cpu_processes is not None:
            check_whole(self.cpu_processes, "cpu_processes", 1, MAX_CONCURRENCY)

    def _take_interval(self, **spelled: Duration | None) -> None:
        """Poll at the one interval that is given, with a warning."""
        given = {name: value for name, value in spelled.items() if value is not None}
        if not given:
            return
        if len(given) > 1:
            both = " and ".join(f"{name} = {value!r}" for name, value in given.items())
            raise ConfigError(f"{both} contradict each other; write polling=Fixed(…) instead")
        [(name, value)] = given.items()
        if name.endswith("_ms"):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ConfigError(f"{name} = {value!r} must be a number of milliseconds")
            value = value / 1000
        fixed = Fixed(value)
        object.__setattr__(self, "polling", fixed)
        warnings.warn(
            f"WorkerRunOptions({name}={given[name]!r}) is deprecated and polls every "
            f"{fixed.interval:g} seconds; write WorkerRunOptions(polling=Fixed({value!r}))",
            DeprecationWarning,
            stacklevel=4,
        )


def check_hold(strategy: Strategy, queue: Queue) -> None:
    """Refuse a strategy that holds its polls where the store cannot."""
    if strategy.longest_hold and not queue.capabilities.long_poll:
        raise ConfigError(
            f"{strategy!r} holds its polls, but {queue.url} cannot; use a strategy without a hold"
        )
