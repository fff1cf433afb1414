"""Jobs whose payload does not fit the task here, as another version of the program put them.

While a program is deployed, workers of the old and of the new version run side by side. Such a job
is given back, which uses up no attempt, until a worker of the other version takes it. It is dead
only after UNFIT_FOR, unless a running worker declares other arguments for its kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from pollwise.errors import PollwiseError, Reject
from pollwise.queues.base import Queue
from pollwise.queues.presence import WorkerInfo
from pollwise.runtime.clock import Clock
from pollwise.runtime.executor.handlers import Handler
from pollwise.runtime.jobs import Claim, Settlement

#: For how many seconds a worker gives back jobs of a kind that do not fit, from the first of them.
UNFIT_FOR = 900.0
#: After how many seconds such a job may be claimed again.
UNFIT_DELAY = 5.0
#: How many seconds the records of other workers are remembered.
READ_EVERY = 30.0


class PayloadUnfit(Reject):
    """The payload does not fit the task, as far as this worker knows the task."""


class UnfitJobs:
    """Says whether a worker gives a job back that does not fit. A job that fits costs nothing."""

    def __init__(self, queue: Queue, handlers: Mapping[str, Handler], clock: Clock) -> None:
        self._queue = queue
        self._handlers = handlers
        self._clock = clock
        self._met: dict[str, tuple[float, float]] = {}  # by kind: the first and the last time
        self._others: list[WorkerInfo] = []
        self._read_at: float | None = None

    async def settlement(self, claim: Claim) -> Settlement | None:
        """The settlement that gives the job back; None if it is dead."""
        job, retry = claim.job, self._handlers[claim.job.kind].retry
        if not await self._may_fit_elsewhere(job.kind):
            return None
        if self._queue.capabilities.uncounted:
            return Settlement.give_back(claim, UNFIT_DELAY)
        if retry.exhausted(job.attempt):
            return None
        # Each time counts as an attempt: spread them over the time.
        return Settlement.give_back(claim, UNFIT_FOR / (retry.attempts or 10))

    async def _may_fit_elsewhere(self, kind: str) -> bool:
        now = self._clock.now()
        first, last = self._met.get(kind, (now, now))
        if now > last + UNFIT_FOR:  # those were of an earlier change
            first = now
        self._met[kind] = first, now
        return now < first + UNFIT_FOR or await self._is_declared_otherwise(kind)

    async def _is_declared_otherwise(self, kind: str) -> bool:
        """True if a running worker declares other arguments for this kind."""
        declared = self._handlers[kind].signature
        if declared is None or not self._queue.capabilities.presence:
            return False
        now = self._clock.now()
        if self._read_at is None or now >= self._read_at + READ_EVERY:
            self._read_at = now
            with suppress(PollwiseError):  # polls report what is wrong with the store
                self._others = await self._queue.workers()
        mine = declared()
        return any(other.signatures.get(kind, mine) != mine for other in self._others)
