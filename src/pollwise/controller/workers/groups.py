"""Workers that can take the same kinds of jobs: what they know together, and their pace."""

from __future__ import annotations

from dataclasses import dataclass

from pollwise.controller.options import ControllerOptions

#: The longest suggested interval, as a fraction of the heartbeat timeout: with jitter and delayed
#: writes, an agent that keeps to it must not look silent.
SHARE_OF_TIMEOUT = 0.75


@dataclass(slots=True, eq=False, weakref_slot=True)
class WorkerGroup:
    """The workers that claim exactly these kinds, as far as this controller knows them.

    idle: how many of them look for a job.
    puts: counts puts; a claim that began before the last one says nothing about now.
    """

    kinds: frozenset[str]
    idle: int = 0
    puts: int = 0
    _empty_until: float = -1.0

    def is_empty(self, now: float) -> bool:
        """True if a claim is known to find nothing."""
        return now < self._empty_until or not self.kinds

    def found_nothing(self, puts: int, until: float) -> None:
        """A claim that began when `puts` was the count found less than it asked for."""
        if puts == self.puts:
            self._empty_until = until

    def notice_put(self) -> None:
        """There may be jobs for this group."""
        self.puts += 1
        self._empty_until = -1.0


class SuggestedPace:
    """The interval suggested to an idle worker: `poll_interval`, longer in a large group.

    The polls of a group together need not come more often than `target_pickup`.
    """

    def __init__(self, options: ControllerOptions) -> None:
        self._min = options.span("min_interval")
        longest = SHARE_OF_TIMEOUT * options.span("heartbeat_timeout")
        self._max = max(min(options.span("max_interval"), longest), self._min)
        self._base = options.span("poll_interval")
        self._target = options.span("target_pickup")
        self._last = (-1, 0.0)  # a number of idle workers, and what was suggested to each

    def suggested(self, idle: int) -> float:
        """Seconds until the next poll of one of `idle` workers.

        Rounded to two digits, so that the answer to an empty poll seldom changes.
        """
        if idle != self._last[0]:
            wanted = float(f"{max(self._target * idle, self._base):.2g}")
            self._last = (idle, min(max(wanted, self._min), self._max))
        return self._last[1]
