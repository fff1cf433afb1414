"""When a worker or a relay deletes what was kept long enough, and folds history.

Both are chores, which need no poll: they work in slices until nothing is left to do, and leave the
store as much time after a slice as the slice took. A chore is on the agenda only if something that
ended here is going to be due, or more is left. What others left is looked for after a poll, now and
then.

Several processes share this work without knowing of each other: one that finds less than a slice
waits longer before its next turn, and one that finds nothing waits longest.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from typing import Any

from pollwise.runtime.chores import Chores
from pollwise.runtime.clock import Clock
from pollwise.runtime.loop import POLL_RETRY
from pollwise.runtime.store import PRUNE_SLICE, WorkStore

PRUNE = "prune"
FOLD = "fold history"
#: The shortest time between two turns of pruning, in seconds; the time between two slices of one
#: turn is shorter.
PRUNE_APART = 1.0
#: The longest time between two turns while finished work is due, in seconds; the shortest on a
#: store that bills each call; and the time after a failure.
PRUNE_EVERY = 60.0
#: The longest time between two turns while others delete all that is due, in seconds.
PRUNE_VAIN = 600.0
#: The longest time between two looks for finished work that others left, in seconds. It is less for
#: work that is kept for less, down to PRUNE_EVERY. The first look is within PRUNE_FIRST after the
#: start, at a random moment.
PRUNE_LOOK = 600.0
PRUNE_FIRST = 15.0
#: The same if only results are kept.
PRUNE_RESULTS_EVERY = 3600.0
#: Work that ends within this share of its time is deleted together.
TOGETHER = 1 / 60
#: How often a worker that found work folds history, in seconds. The first time is at a random
#: moment, so that workers that were started together take turns.
FOLD_EVERY = 3600.0
#: How often an idle worker folds history, in seconds.
FOLD_IDLE = 6 * 3600.0


class Pruning:
    """The chores that prune a store and fold its history.

    results: results are kept here, even if the store keeps no finished work.
    fold: folds the history that this process writes to the store, if it does; True for more.
    """

    def __init__(self, store: WorkStore[Any], clock: Clock, chores: Chores) -> None:
        self.results = False
        self.fold: Callable[[], Awaitable[bool]] | None = None
        self._store = store
        self._clock = clock
        self._chores = chores
        self._apart_min = PRUNE_EVERY if store.gather else PRUNE_APART
        self._apart = self._apart_min  # how long to wait after a turn
        self._not_before = -math.inf  # when the next turn may begin
        self._pause: float | None = None  # before the next slice; None: nothing is left
        self._look_at = clock.now() + PRUNE_FIRST * random.random()
        self._phase = random.random()  # so that not all processes take their turns together
        self._ends: set[float] = set()  # when work that ended here is to be deleted
        self._folds_at = clock.now() + FOLD_EVERY * random.random()
        self._worked = False  # since the history was folded
        chores.add(PRUNE, PRUNE_APART, self._prune)
        chores.add(FOLD, PRUNE_APART, self._fold)

    def stored(self, keep: float) -> None:
        """Work ended that is kept for this many seconds."""
        step = max(self._apart_min, keep * TOGETHER)
        steps = (self._clock.now() + keep) / step
        end = (math.ceil(steps - self._phase) + self._phase) * step
        if end not in self._ends:
            self._ends.add(end)
            self._chores.run_by(PRUNE, max(end, self._not_before))

    def after_poll(self, found: bool) -> None:
        """Begin the chores, if it is time for a look at what others left."""
        now = self._clock.now()
        self._worked |= found
        if now >= self._look_at and self._keeps:
            self._look_at = now + self._look_every
            self._chores.run_by(PRUNE, max(now, self._not_before))
        if self.fold is not None and now >= self._folds_at:
            if self._worked or now >= self._folds_at + FOLD_IDLE - FOLD_EVERY:
                self._chores.run_by(FOLD, now)

    async def until_done(self, stopping: Callable[[], bool]) -> None:
        """Prune all that is due, before a process ends that is not to run on."""
        while self._keeps and not stopping():
            await self._chores.at_once(PRUNE)
            self._chores.rest(PRUNE)
            if self._pause is None:
                return
            await self._clock.sleep(self._pause)

    @property
    def _keeps(self) -> bool:
        return self._store.keep is not None or self.results

    @property
    def _look_every(self) -> float:
        keep = self._store.keep
        return PRUNE_RESULTS_EVERY if keep is None else min(max(keep, PRUNE_EVERY), PRUNE_LOOK)

    async def _prune(self) -> None:
        """Delete one slice of what is due. If there is more, go on after other chores."""
        began, self._pause = self._clock.now(), None
        self._not_before = began + PRUNE_EVERY  # if it fails
        self._plan(self._not_before)
        ends = {end for end in self._ends if end <= began}
        count = await self._store.prune()
        now = self._clock.now()
        self._ends -= ends
        self._look_at = now + self._look_every
        if count >= PRUNE_SLICE:
            self._apart, self._pause = self._apart_min, now - began
            self._not_before = now + self._pause
            self._plan(self._not_before)
            return
        if count >= PRUNE_SLICE // 4:
            self._apart = max(self._apart / 2, self._apart_min)
        else:
            self._apart = min(self._apart * 2, PRUNE_EVERY if count else PRUNE_VAIN)
        self._not_before = now + self._apart
        many = [now] if count >= PRUNE_SLICE // 4 else []  # others end work, too
        ends = self._ends.union(many)
        self._plan(max(min(ends), self._not_before) if ends else None)

    def _plan(self, when: float | None) -> None:
        self._chores.rest(PRUNE)
        if when is not None:
            self._chores.run_by(PRUNE, when)

    async def _fold(self) -> None:
        """Fold a slice of the history. If there is more, go on soon."""
        began = self._clock.now()
        self._chores.rest(FOLD)
        self._folds_at, self._worked = began + FOLD_EVERY, False
        try:
            more = self.fold is not None and await self.fold()
        except Exception as error:
            if POLL_RETRY.classify(error) == "permanent":
                self.fold = None
            raise
        if more:
            now = self._clock.now()
            self._chores.run_by(FOLD, now + max(now - began, PRUNE_APART))
