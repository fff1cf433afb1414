"""How many jobs a worker claims of kinds that limit how many run, or whose groups take turns.

Each claimed job occupies a place of its limit, for all workers. A job that waits here for a handler
wastes its place, so such jobs are claimed only for free handlers. If runs are shorter than a call
to the store, some jobs are claimed ahead: as many as handlers finish in a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pollwise.queues.base import Queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.executor.ahead import AHEAD_MAX, AHEAD_SECONDS, TOOK_WEIGHT
from pollwise.runtime.executor.executor import Executor
from pollwise.worker.processes.pool import ProcessPool

#: How long a job that occupies a place may wait here for a handler, in seconds: about as long as a
#: claim takes.
WAIT_MAX = 0.001
#: A run that takes this many times the average becomes the average at once.
LONGER = 10


#: A call of `Queue.claim`: which kinds (None: all), how many jobs, and how long to hold.
ClaimCall = tuple[list[str] | None, int, float]


class LimitPlaces:
    """Learns how long runs of limited kinds take.

    ahead: False if `prefetch` is given: then no jobs of these kinds are claimed ahead.
    """

    def __init__(
        self, queue: Queue, executor: Executor[Any, Any], clock: Clock, *, ahead: bool
    ) -> None:
        self._queue = queue
        self._executor = executor
        self._clock = clock
        self._ahead = ahead
        self._took: dict[str, float] = {}  # by kind, on average
        self._for_all = clock.now()  # when handlers were free at the last claim

    def among(self, kinds: Iterable[str]) -> frozenset[str]:
        """Return which of these kinds are claimed only for free handlers, as of the last claim."""
        limited = self._queue._limited
        return limited.intersection(kinds) if limited else limited

    def room(self, kinds: Sequence[str], limit: int) -> int:
        """How many jobs a claim of these kinds may take, of `limit`."""
        limited = self.among(kinds)
        if not limited:
            return limit
        waiting = self._waiting(limited) if limited <= self._short(limited) else 0
        return min(self._executor.free(waiting), limit)

    def divided(
        self, kinds: list[str], limit: int, hold: float, pool: ProcessPool | None
    ) -> list[ClaimCall]:
        """The calls that claim these kinds.

        If only some handlers run in processes, no more jobs are claimed for the processes than
        there are free processes: they would wait here and take the room of other jobs.
        """
        calls: list[ClaimCall] = []
        others = kinds if pool is None else [kind for kind in kinds if kind not in pool.kinds]
        if pool is None or not others or len(others) == len(kinds):
            calls += [(kinds, limit, hold)] if kinds else []
        else:
            held = self._executor.count_by(lambda held: held.claim.job.kind)
            free = pool.limit - sum(held[kind] for kind in pool.kinds)
            # A free process ends a pause, but not a hold.
            own, hold = ([(kinds, min(free, limit), hold)], 0.0) if free > 0 else ([], 0.0)
            calls += [*own, (others, limit, hold)]
        calls += [(each, limit, 0.0) for each in self._ahead_of(others or kinds)]
        return calls

    def begin(self) -> None:
        """A claim begins."""
        if self._executor.free():
            self._for_all = self._clock.now()

    def end(self, kinds: Iterable[str]) -> None:
        """A claim has ended: decide how many jobs may wait when the next one is made.

        If only short jobs may wait, a backlog of them could keep all handlers busy forever. So now
        and then, the next claim waits for a free handler, for which all kinds compete.
        """
        limited = self.among(kinds)
        if not limited:
            self._executor.spare = None
            return
        short = self._short(limited)
        recent = self._clock.now() - self._for_all < AHEAD_SECONDS
        self._executor.spare = self._waiting(short) if short and (recent or short == limited) else 0

    def ran(self, kind: str, took: float) -> None:
        """A handler took this many seconds."""
        if kind in self._queue._limited:
            before = self._took.get(kind, took)
            weight = 1.0 if took > LONGER * before else TOOK_WEIGHT
            self._took[kind] = before + (took - before) * weight

    def _ahead_of(self, kinds: Sequence[str]) -> list[list[str]]:
        """The kinds of further claims, after one of all these: their jobs may wait here."""
        limited = self.among(kinds)
        short = self._short(limited)
        plain = [kind for kind in kinds if kind not in limited]
        some = [kind for kind in kinds if kind not in limited or kind in short]
        return [each for each in (some, plain) if each and len(each) < len(kinds)]

    def _short(self, limited: frozenset[str]) -> frozenset[str]:
        return frozenset(kind for kind in limited if self._waiting([kind]))

    def _waiting(self, kinds: Iterable[str]) -> int:
        """How many jobs of these kinds may wait for a handler."""
        took = max((self._took.get(kind, WAIT_MAX * 1e6) for kind in kinds), default=0.0)
        if not self._ahead:
            return 0
        return int(min(self._executor.ahead.concurrency * WAIT_MAX / max(took, 1e-6), AHEAD_MAX))
