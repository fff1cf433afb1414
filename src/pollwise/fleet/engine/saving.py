"""Saving: what changed goes to the store in batches, and the clock on the wall is watched.

One chore, which rests while nothing changed. A store that cannot be reached costs nothing but
memory of which targets to save: the fleet polls on, and saves them when it can.
"""

from __future__ import annotations

from collections.abc import Callable

from pollwise.errors import StoreError, StoreUnavailable
from pollwise.fleet.engine.failures import text_of
from pollwise.fleet.engine.restore import saved
from pollwise.fleet.engine.running_target import GONE, RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.stores.base import FleetStore
from pollwise.runtime.chores import Chores
from pollwise.runtime.clock import Clock

#: How often state is saved at the most, and how often a clock that is set is looked for.
SAVE_EVERY = 1.0
LOOK_AT_CLOCK_EVERY = 60.0
#: The clock on the wall was set when it moved by so much against the loop's.
STEP = 1.0
#: The most targets saved in one transaction, and the tries to save while stopping.
SAVE_BATCH = 5000
TRIES_AT_STOP = 3

_SAVE, _LOOK, _ENTER = "save state", "look at the clock", "say that it polls"


class Saving:
    """The side of a run that keeps its state."""

    def __init__(
        self,
        store: FleetStore | None,
        scheduler: Scheduler,
        chores: Chores,
        clock: Clock,
        pump: Callable[[], None],
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._chores = chores
        self._clock = clock
        self._pump = pump
        self._dirty: dict[RunningTarget, None] = {}
        self._removed: dict[str, None] = {}
        #: Why the last try did not work; None when it did.
        self.error: str | None = None
        chores.add(_SAVE, SAVE_EVERY, self._save)
        chores.add(_LOOK, LOOK_AT_CLOCK_EVERY, self._look)
        #: Why this run may go on no longer: another one took over.
        self._driven_out: StoreError | None = None

    def check(self) -> None:
        """Raise what ended the run, if something did."""
        if self._driven_out is not None:
            raise self._driven_out

    async def enter(self, stop: Callable[[], None]) -> None:
        """Tell the store that this run polls, now and as long as it does; else `stop` is called."""
        store = self._store
        if store is None:
            return
        await store.enter()

        async def again() -> None:
            try:
                await store.enter()
            except StoreUnavailable:
                raise  # it may come back
            except StoreError as error:
                self._driven_out = error
                stop()

        if store.enter_every is not None:
            self._chores.add(_ENTER, store.enter_every, again)
            self._chores.wake(_ENTER)

    @property
    def unsaved(self) -> int:
        return len(self._dirty) + len(self._removed)

    def touch(self, entry: RunningTarget) -> None:
        """Its state is to be saved."""
        if self._store is not None:
            self._wake()
            self._dirty[entry] = None

    def remove(self, entry: RunningTarget) -> None:
        """Its state is to be kept no longer."""
        if self._store is not None:
            self._wake()
            self._dirty.pop(entry, None)
            self._removed[entry.target.name] = None

    def _wake(self) -> None:
        if not self._dirty and not self._removed:
            self._chores.wake(_SAVE)

    async def at_stop(self) -> None:
        """Save the rest; raises when that cannot be done."""
        for attempt in range(TRIES_AT_STOP):
            try:
                await self._save()
                break
            except Exception:
                if attempt == TRIES_AT_STOP - 1:
                    raise
        if self._store is not None:
            await self._store.leave()

    async def _save(self) -> None:
        if self._store is None:
            return
        self.look_at_clock()
        try:
            await self._remove_some(self._store)
            while self._dirty:
                await self._save_some(self._store)
        except Exception as error:
            self.error = text_of(error)
            raise
        self.error = None
        if not self.unsaved:
            self._chores.rest(_SAVE)

    async def _remove_some(self, store: FleetStore) -> None:
        names = list(self._removed)
        # Not one that was added again meanwhile.
        gone = [name for name in names if name not in self._scheduler.entries]
        if gone:
            await store.remove(gone)
        for name in names:
            self._removed.pop(name, None)

    async def _save_some(self, store: FleetStore) -> None:
        batch = list(self._dirty)[:SAVE_BATCH]
        for entry in batch:
            del self._dirty[entry]
        live = [saved(entry, self._scheduler) for entry in batch if entry.place != GONE]
        try:
            refused = await store.save(live) if live else []
        except BaseException:
            self._dirty = {**dict.fromkeys(batch), **self._dirty}
            raise
        for name in refused:
            if name in self._scheduler.entries:
                self._scheduler.lose(self._scheduler.entries[name])

    def look_after_quiet(self) -> None:
        """While quiet hours hold something back, a clock that is set has to be noticed."""
        if self._scheduler.deferred:
            self._chores.wake(_LOOK)

    async def _look(self) -> None:
        self.look_at_clock()
        if not self._scheduler.deferred:
            self._chores.rest(_LOOK)

    def look_at_clock(self) -> None:
        """Was the clock on the wall set? Then quiet hours, and what is saved, go by it anew."""
        offset = self._clock.epoch() - self._clock.now()
        if abs(offset - self._scheduler.offset) > STEP:
            self._scheduler.stepped(offset)
            for entry in self._scheduler.entries.values():
                self.touch(entry)
            self._pump()
