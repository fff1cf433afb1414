"""Workers that can take the same kinds of jobs: what they know together, and their pace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from pollwise.controller.options import ControllerOptions

#: A worker was away if it came later than this after its turn, as a fraction of the interval.
LATE_SHARE = 0.25


@dataclass(slots=True, eq=False, weakref_slot=True)
class WorkerGroup:
    """The workers that claim exactly these kinds, as far as this controller knows them.

    idle: how many of them look for a job.
    puts: counts puts; a claim that began before the last one says nothing about now.
    last_turn: when the last of the polls that were suggested so far is due.
    """

    kinds: frozenset[str]
    idle: int = 0
    puts: int = 0
    last_turn: float = -math.inf
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
    """When each idle worker polls next: in turn with the others of its group.

    The interval is `poll_interval`. Where that is the default, it grows in a large group, whose
    polls together need not come more often than `target_pickup`.

    Workers that were started together would poll together for ever, and a job would wait for the
    whole interval. So the first pause of a worker ends at a random time within the interval, as
    does the first after an absence; after that, each takes the next turn, at an equal distance
    from the turn before it.
    """

    def __init__(self, options: ControllerOptions, random: Random) -> None:
        self._random = random
        self._min = options.span("min_interval")
        self._max = options.longest_interval
        self._base = options.base_interval
        self._target = options.group_pickup
        self._last = (-1, 0.0)  # a number of idle workers, and the interval of each

    def interval(self, idle: int) -> float:
        """Seconds between two polls of one of `idle` workers."""
        if idle != self._last[0]:
            wanted = rounded(max(self._target * idle, self._base))
            self._last = (idle, min(max(wanted, self._min), self._max))
        return self._last[1]

    def next_poll(self, group: WorkerGroup, due: float | None, came: float, now: float) -> float:
        """Seconds until the next poll of an idle worker of the group.

        due: when its last turn was, if it had one. came: when its poll came in.
        Rounded to two digits, so that the answer to an empty poll seldom changes.
        """
        interval = self.interval(group.idle)
        if due is None or came - due > LATE_SHARE * interval:
            delay = self._min + (interval - self._min) * self._random.random()
        else:
            turn = max(group.last_turn, now) + interval / max(group.idle, 1)
            delay = turn - now
        delay = min(max(rounded(delay), self._min), interval)
        group.last_turn = max(group.last_turn, now + delay)
        return delay


def rounded(seconds: float) -> float:
    """Seconds to two digits."""
    return float(f"{seconds:.2g}")
