"""Workers that can take the same kinds of jobs, seen as one: a crowd.

What one of them found out holds for all of them. A claim that came back empty answers the next
polls of its crowd from memory, until a job is put here or a second is over; and the pace that a
worker is told follows from how many others look for the same jobs.
"""

from __future__ import annotations

from pollwise.controller.options import ControllerOptions

#: An agent that polls exactly so often must not look silent: the share of the time-out that an
#: interval may have, given jitter and that who was seen is written down with a delay.
SHARE_OF_TIMEOUT = 0.75


class Crowd:
    """The workers that claim exactly these kinds, as far as this controller knows them.

    idle: how many of them look for a job.
    news: counts what came in; a claim that began before the newest says nothing about now.
    """

    __slots__ = ("_empty_until", "idle", "kinds", "members", "news")

    def __init__(self, kinds: frozenset[str]) -> None:
        self.kinds = kinds
        self.members = 0
        self.idle = 0
        self.news = 0
        self._empty_until = -1.0

    def is_empty(self, now: float) -> bool:
        """Is it known that a claim would find nothing?"""
        return now < self._empty_until or not self.kinds

    def found_nothing(self, news: int, until: float) -> None:
        """A claim that began when `news` was the newest came back with less than it asked for."""
        if news == self.news:
            self._empty_until = until

    def heard_news(self) -> None:
        """There may be jobs for this crowd."""
        self.news += 1
        self._empty_until = -1.0


class Pace:
    """What interval a worker is told: so that its crowd as a whole looks often enough."""

    def __init__(self, options: ControllerOptions) -> None:
        self._least = options.span("min_interval")
        most = min(
            options.span("max_interval"), SHARE_OF_TIMEOUT * options.span("heartbeat_timeout")
        )
        self._most = max(most, self._least)
        self._target = options.span("target_pickup")
        self._last = (-1, 0.0)  # the idle, and what one of so many was told

    def suggested(self, idle: int) -> float:
        """Seconds until the next poll of one of so many idle workers.

        Two digits, so that the answer to an empty poll seldom changes and need not be sent again.
        """
        if idle != self._last[0]:
            wanted = float(f"{self._target * max(idle, 1):.2g}")
            self._last = (idle, min(max(wanted, self._least), self._most))
        return self._last[1]
