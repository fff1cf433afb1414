"""When a worker or a relay deletes what was kept long enough, and folds history: after a poll."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from typing import Any

from pollwise.runtime.clock import Clock
from pollwise.runtime.events import ChoreFailed, Events
from pollwise.runtime.executor.handlers import text_of
from pollwise.runtime.loop import POLL_RETRY
from pollwise.runtime.store import WorkStore

#: How often finished work that was kept long enough is deleted, in seconds.
PRUNE_EVERY = 60.0
#: The same while some are left to delete: a store deletes a bounded number at a time.
PRUNE_AGAIN = 1.0
#: The same if only results are kept, and none that this process stored is due. Others may have left
#: some.
PRUNE_RESULTS_EVERY = 3600.0
#: Results that end within this share of their time are deleted together.
TOGETHER = 1 / 60
#: How often a worker that found work folds history, in seconds. The first time is at a random
#: moment, so that workers that were started together take turns.
FOLD_EVERY = 3600.0
#: How often an idle worker folds history, in seconds.
FOLD_IDLE = 6 * 3600.0


class Pruning:
    """Prunes a store when it is time.

    results: results are kept here, even if the store keeps no finished work.
    fold: folds the history that this process writes to the store, if it does; True for more.
    """

    def __init__(self, store: WorkStore[Any], clock: Clock, events: Events, source: str) -> None:
        self.results = False
        self.fold: Callable[[], Awaitable[bool]] | None = None
        self._store = store
        self._clock = clock
        self._events = events
        self._source = source
        self._next = 0.0
        self._folds_at = clock.now() + FOLD_EVERY * random.random()
        self._worked = False  # since the history was folded
        self._ends: set[float] = set()  # when results that were stored here are to be deleted

    def stored(self, keep: float) -> None:
        """A result was stored that is kept for this many seconds."""
        step = max(PRUNE_EVERY, keep * TOGETHER)
        end = math.ceil((self._clock.now() + keep) / step) * step
        self._ends.add(end)
        self._next = min(self._next, end)

    async def run(self, found: bool) -> None:
        """Prune, if it is time; called after each poll. found: it found something."""
        now = self._clock.now()
        self._worked |= found
        if self.fold is not None and now >= self._folds_at:
            await self._fold(now)
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

    async def _fold(self, now: float) -> None:
        if self.fold is None or not (
            self._worked or now >= self._folds_at + FOLD_IDLE - FOLD_EVERY
        ):
            return
        self._folds_at, self._worked = now + FOLD_EVERY, False
        try:
            if await self.fold():
                self._folds_at, self._worked = now + PRUNE_AGAIN, True
        except Exception as error:
            if POLL_RETRY.classify(error) == "permanent":
                self.fold = None
            self._events.emit(ChoreFailed(self._source, "fold history", text_of(error)))
