"""Locked work: this process cannot decode its payload, because a key or a codec is missing here.

That is a mistake in how the process was deployed, not in the job. So the work is given back without
counting an attempt, and with a delay: a process with the key can take it, and one without it does
not claim it again and again.
"""

from __future__ import annotations

from pollwise.runtime.clock import Clock

#: How long such work waits before it is claimed again, in seconds.
LOCKED_FOR = 30.0
#: How often one reason is reported, in seconds.
REPORT_EVERY = 60.0
#: How many reasons are remembered.
REASONS_MAX = 100


class LockedReports:
    """Remembers which reasons were reported recently."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reported: dict[str, float] = {}

    def due(self, reason: str) -> bool:
        """True if this reason is to be reported now."""
        now = self._clock.now()
        last = self._reported.get(reason)
        if last is not None and now < last + REPORT_EVERY:
            return False
        if len(self._reported) >= REASONS_MAX:
            self._reported.clear()
        self._reported[reason] = now
        return True
