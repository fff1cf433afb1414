"""When a process has done enough: after a number of runs, above a size of memory, or when threads
of handlers that timed out occupy all places. A fresh process is the only cure for leaks and for
threads that never return.
"""

from __future__ import annotations

from collections.abc import Callable

from pollwise.errors import ConfigError
from pollwise.platforms.limits import resident_bytes
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import (
    Events,
    PlacesFree,
    PlacesTaken,
    RunRecycled,
    ThreadsAbandoned,
)
from pollwise.runtime.executor.starting import RunOptions

#: How often the memory is measured at most, in seconds; done when a run ends.
MEASURE_EVERY = 1.0


def check_memory_limit(limit: int | None) -> None:
    """Refuse a limit that cannot have an effect, or would end every process at once."""
    if limit is None:
        return
    used = resident_bytes()
    if not used:
        raise ConfigError(f"max_memory = {limit!r} has no effect on this system; leave it out")
    if limit <= used:
        raise ConfigError(
            f"max_memory = {limit!r} bytes is not above what the process uses at its start, {used}"
        )


class Recycling:
    """Decides when a process should be replaced, and reports what leads to it.

    max_runs: how many runs of handlers there may be; None for no limit.
    stop: stops the run; returns False if it stops already.
    """

    def __init__(
        self,
        source: str,
        options: RunOptions,
        max_runs: int | None,
        clock: Clock,
        events: Events,
        stop: Callable[[], bool],
    ) -> None:
        self._source = source
        self._options = options
        self._places = options.concurrency
        self._max_runs = max_runs
        self._clock = clock
        self._events = events
        self._stop = stop
        self._started = 0
        self._ended = 0
        self._measure_at = 0.0
        self._full = False
        #: Why the run ended by itself, to be started again in a fresh process; else "".
        self.reason: str = ""

    def at_most(self, claims: int, waiting: int) -> int:
        """How many of these claims may still start, beside those that wait already."""
        if self._max_runs is None:
            return claims
        return min(claims, self._max_runs - self._started - waiting)

    def started(self) -> None:
        self._started += 1

    def ended(self) -> None:
        """A run ended."""
        self._ended += 1
        if self._max_runs is not None and self._ended >= self._max_runs:
            self._recycle(f"{self._ended} runs have ended, as many as max_jobs")
        limit, now = self._options.max_memory, self._clock.now()
        if limit is not None and now >= self._measure_at:
            self._measure_at = now + MEASURE_EVERY
            used = resident_bytes()
            if used > limit:
                self._recycle(f"the process uses {used} bytes, more than max_memory = {limit}")

    def resize(self, places: int, abandoned: int) -> None:
        """The number of handlers that may run at a time has changed."""
        self._places = places
        if abandoned or self._full:
            self.threads(abandoned)

    def threads(self, abandoned: int) -> None:
        """The number of threads of handlers that timed out has changed."""
        places = self._places
        if self._events.wants(ThreadsAbandoned):
            self._events.emit(ThreadsAbandoned(self._source, abandoned, places))
        full = abandoned >= places
        if full != self._full:
            self._full = full
            self._events.emit((PlacesTaken if full else PlacesFree)(self._source, abandoned))
            if full and self._options.recycle_when_full:
                self._recycle(f"handlers that timed out occupy all {places} places")

    def _recycle(self, reason: str) -> None:
        if self._stop():
            self.reason = reason
            self._events.emit(RunRecycled(self._source, reason))
