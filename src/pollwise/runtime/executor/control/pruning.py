"""When a worker or a relay deletes finished work that was kept long enough: after a poll."""

from __future__ import annotations

import math
from typing import Any

from pollwise.runtime.clock import Clock
from pollwise.runtime.events import ChoreFailed, Events
from pollwise.runtime.executor.handlers import text_of
from pollwise.runtime.store import WorkStore

#: How often finished work that was kept long enough is deleted, in seconds.
PRUNE_EVERY = 60.0
#: The same while some are left to delete: a store deletes a bounded number at a time.
PRUNE_AGAIN = 1.0
#: The same if only results are kept, and none of this process is about to end. Others may have
#: left some.
PRUNE_RESULTS_EVERY = 3600.0
#: Results that end within this share of their time are deleted together.
TOGETHER = 1 / 60


class Pruning:
    """Prunes a store when it is time.

    results: results are kept here, even if the store keeps no finished work.
    """

    def __init__(self, store: WorkStore[Any], clock: Clock, events: Events, source: str) -> None:
        self.results = False
        self._store = store
        self._clock = clock
        self._events = events
        self._source = source
        self._next = 0.0
        self._ends: set[float] = set()  # when results that were stored here are to be deleted

    def stored(self, keep: float) -> None:
        """A result was stored that is kept for this many seconds."""
        step = max(PRUNE_EVERY, keep * TOGETHER)
        end = math.ceil((self._clock.now() + keep) / step) * step
        self._ends.add(end)
        self._next = min(self._next, end)

    async def run(self) -> None:
        """Prune, if it is time; called after each poll."""
        now = self._clock.now()
        if now < self._next or (self._store.keep is None and not self.results):
            return
        every = PRUNE_RESULTS_EVERY if self._store.keep is None else PRUNE_EVERY
        self._ends = {end for end in self._ends if end > now}
        self._next = min(now + every, *self._ends) if self._ends else now + every
        try:
            if await self._store.prune():
                self._next = now + PRUNE_AGAIN
        except Exception as error:
            self._next = min(self._next, now + PRUNE_EVERY)
            self._events.emit(ChoreFailed(self._source, "prune", text_of(error)))
