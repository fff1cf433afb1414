"""When a process has done enough: after a number of runs, above a size of memory, or when threads
of handlers that timed out occupy all places. A fresh process is the only cure for leaks and for
threads that never return.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pollwise.errors import ConfigError
from pollwise.runtime.clock import Clock

#: How often the memory is measured at most, in seconds; done when a run ends.
MEASURE_EVERY = 1.0
_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """The memory of this process: now on Linux, its peak elsewhere; 0 if it is not known."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


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
    """Counts the runs of a process and measures its memory."""

    def __init__(self, max_runs: int | None, max_memory: int | None, clock: Clock) -> None:
        self._max_runs = max_runs
        self._max_memory = max_memory
        self._clock = clock
        self._started = 0
        self._ended = 0
        self._measure_at = 0.0

    def may_start(self) -> int | None:
        """How many more runs may start; None for no limit."""
        return None if self._max_runs is None else self._max_runs - self._started

    def started(self) -> None:
        self._started += 1

    def ended(self) -> str:
        """Why the process should be replaced after the end of a run; "" if it should not."""
        self._ended += 1
        if self._max_runs is not None and self._ended >= self._max_runs:
            return f"{self._ended} runs have ended, as many as max_jobs"
        if self._max_memory is None or self._clock.now() < self._measure_at:
            return ""
        self._measure_at = self._clock.now() + MEASURE_EVERY
        used = resident_bytes()
        if used <= self._max_memory:
            return ""
        return f"the process uses {used} bytes, more than max_memory = {self._max_memory}"
