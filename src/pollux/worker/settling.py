"""Settlements on their way to the store: batched, tried again, never forgotten."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from pollux.clock import Clock
from pollux.core.retry import Retry
from pollux.errors import LeaseLost
from pollux.events import ChoreFailed, Events
from pollux.hints import Hint
from pollux.jobs import Claim, Settlement
from pollux.queues.base import Queue

#: How a settlement that the store did not take is tried again.
SETTLE_RETRY = Retry.exponential("100ms", ceiling="5s", attempts=None)


class Settling:
    """What is to be settled. All that gathers while one batch is on its way goes as the next.

    Where each call to the store is billed, done jobs wait a moment for more of them.

    on_lost: called with each claim whose lease was lost before it could be settled.
    on_room: called when a batch is through, or failed.
    """

    def __init__(
        self,
        queue: Queue,
        clock: Clock,
        events: Events,
        rng: random.Random,
        on_lost: Callable[[Claim], None],
        on_room: Callable[[], None],
        lease: float,
    ) -> None:
        self._queue = queue
        self._clock = clock
        self._events = events
        self._random = rng
        self._on_lost = on_lost
        self._on_room = on_room
        self._pending: dict[str, Settlement] = {}
        self._since: dict[str, float] = {}
        self._flush: asyncio.Task[None] | None = None
        self._failures = 0  # in a row
        self._tries_left: int | None = None
        self._now = Hint()
        self._enough = Hint()
        # A lease that is not renewed meanwhile must not run out.
        self._gather = min(queue.gather, lease / 6)

    def __len__(self) -> int:
        return len(self._pending)

    def claims(self) -> dict[str, Claim]:
        """The claims that wait to be settled, by job: their leases are still ours to renew.

        Those that are only being gathered are not among them: they are settled in a moment.
        """
        by = self._clock.now() - self._gather
        late = (item for item in self._pending.items() if self._since[item[0]] <= by)
        return {job_id: settlement.claim for job_id, settlement in late}

    def add(self, settlement: Settlement) -> None:
        self._pending[settlement.claim.job.id] = settlement
        self._since[settlement.claim.job.id] = self._clock.now()
        if not _may_wait(settlement) or len(self._pending) >= self._queue.gather_up_to:
            self._enough.give()
        self._begin()

    async def finish(self, tries: int, within: float) -> None:
        """Settle all that is left, or ask the store `tries` more times, in quick succession.

        within: how long that may take, in seconds: a store that stands still holds up no stop.
        """
        self._tries_left = tries
        self._failures = 0
        self._now.give()  # it may sleep out a long retry
        self._enough.give()
        if self._pending:
            self._begin()
        if self._flush is not None:
            flush = self._flush
            await asyncio.wait([flush], timeout=within)
            flush.cancel()
            await asyncio.wait([flush])

    def _begin(self) -> None:
        if self._flush is None:
            self._flush = asyncio.get_running_loop().create_task(self._flush_all())

    async def _flush_all(self) -> None:
        try:
            while self._pending and self._tries_left != 0:
                if self._gather and self._tries_left is None:
                    await self._clock.sleep(self._gather, self._enough)
                try:
                    self._enough.forget()
                    await self._settle(self._next_batch())
                    self._failures = 0
                except Exception as error:
                    self._failures += 1
                    if self._tries_left is not None:
                        self._tries_left -= 1
                    text = f"{type(error).__name__}: {error}"
                    self._events.emit(ChoreFailed(self._queue.name, "settle", text))
                    if self._tries_left != 0:
                        delay = SETTLE_RETRY.delay(self._failures, self._random.random())
                        await self._clock.sleep(delay, self._now)
                self._on_room()
        finally:
            self._flush = None

    def _next_batch(self) -> list[Settlement]:
        """All there is; where calls are billed, only full ones, and the rest with the next."""
        batch = list(self._pending.values())
        full = len(batch) - len(batch) % self._queue.gather_up_to
        if self._gather and full and self._tries_left is None:
            return batch[:full] if all(map(_may_wait, batch)) else batch
        return batch

    async def _settle(self, batch: list[Settlement]) -> None:
        lost: set[str] = set()
        try:
            await self._queue.settle(batch)
        except LeaseLost as error:
            lost.update(error.lost)
        for settlement in batch:
            job_id = settlement.claim.job.id
            if self._pending.get(job_id) is settlement:
                del self._pending[job_id]
                del self._since[job_id]
            if job_id in lost:
                self._on_lost(settlement.claim)


def _may_wait(settlement: Settlement) -> bool:
    """Does nobody wait for it: no successor with its key, and no other worker?"""
    return settlement.verdict == "done" and settlement.claim.job.key is None
