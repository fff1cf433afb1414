"""Saving: changed state goes to the store in batches; the wall clock is watched for adjustments.

One chore, which rests while nothing changes. While the store cannot be reached, the fleet keeps
polling, remembers which targets are unsaved, and saves them when it can.
"""

from __future__ import annotations

from collections.abc import Callable

from pollwise.errors import StoreError, StoreUnavailable
from pollwise.fleet.alerting.unsaved import UnsavedAlerts, with_alerts
from pollwise.fleet.engine.failures import text_of
from pollwise.fleet.engine.restore import saved
from pollwise.fleet.engine.running_target import GONE, RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.history.recorder import extras_of, give_back_rows, taken_rows
from pollwise.fleet.stores.base import FleetStore
from pollwise.runtime.chores import Chores
from pollwise.runtime.clock import Clock

#: Minimum seconds between two saves, and between two checks of the wall clock.
SAVE_EVERY = 1.0
CHECK_CLOCK_EVERY = 60.0
#: Seconds until a save with alerts or notices, so that several are saved together.
SAVE_SOON = 0.1
#: A jump of the wall clock of this many seconds, against the loop's clock, counts as an adjustment.
STEP = 1.0
#: Maximum number of targets saved in one transaction, and of attempts to save at a stop.
SAVE_BATCH = 5000
TRIES_AT_STOP = 3

SAVE = "save state"
_CLOCK, _ENTER = "check the clock", "sign of life"


def _nothing() -> None:
    return


class Saving:
    """Saves the state of a run."""

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
        #: What is saved with its target, and called when that contained notices.
        self.unsaved_alerts: UnsavedAlerts = UnsavedAlerts()
        self.notices_saved: Callable[[], None] = _nothing
        #: Error of the last attempt; None after a success.
        self.error: str | None = None
        # Alerts are saved with the state: without it, nobody hears of them.
        chores.add(SAVE, SAVE_EVERY, self.save, needed=True)
        chores.add(_CLOCK, CHECK_CLOCK_EVERY, self._check_clock_chore)
        #: Why this run must end: another one took over.
        self._replaced: StoreError | None = None

    def check(self) -> None:
        """Raise the error that ended the run, if any."""
        if self._replaced is not None:
            raise self._replaced

    async def enter(self, stop: Callable[[], None]) -> None:
        """Declare in the store that this run polls, now and regularly; calls `stop` if refused."""
        store = self._store
        if store is None:
            return
        await store.enter()

        async def again() -> None:
            try:
                await store.enter()
            except StoreUnavailable:
                raise  # the store may come back
            except StoreError as error:
                self._replaced = error
                stop()

        if store.enter_every is not None:
            self._chores.add(_ENTER, store.enter_every, again)
            self._chores.wake(_ENTER)

    @property
    def unsaved(self) -> int:
        return len(self._dirty) + len(self._removed)

    def touch(self, entry: RunningTarget) -> None:
        """Save its state soon."""
        if self._store is not None:
            self._wake()
            self._dirty[entry] = None

    def touch_now(self, entry: RunningTarget) -> None:
        """Save its state at once: somebody gave it an order, and looks whether it was carried
        out."""
        self.touch(entry)
        self._chores.hasten(SAVE, 0.0)

    def touch_soon(self, entry: RunningTarget) -> None:
        """Save its state within a moment: alerts or notices wait for it."""
        self.touch(entry)
        if self._store is not None:
            self._chores.hasten(SAVE, SAVE_SOON)

    def remove(self, entry: RunningTarget) -> None:
        """Delete its saved state soon."""
        if self._store is not None:
            self._wake()
            self._dirty.pop(entry, None)
            self._removed[entry.target.name] = None

    def _wake(self) -> None:
        if not self._dirty and not self._removed:
            self._chores.wake(SAVE)

    async def at_stop(self) -> None:
        """Save everything unsaved, with some attempts; raises if they fail."""
        for attempt in range(TRIES_AT_STOP):
            try:
                await self.save()
                break
            except Exception:
                if attempt == TRIES_AT_STOP - 1:
                    raise
        if self._store is not None:
            await self._store.leave()

    async def save(self) -> None:
        """Save everything unsaved; raises if that fails."""
        if self._store is None:
            return
        self.check_clock()
        try:
            await self._remove_some(self._store)
            while self._dirty:
                await self._save_some(self._store)
        except Exception as error:
            self.error = text_of(error)
            raise
        self.error = None
        if not self.unsaved:
            self._chores.rest(SAVE)

    async def _remove_some(self, store: FleetStore) -> None:
        names = list(self._removed)
        # Except those that were added again in the meantime.
        gone = [name for name in names if name not in self._scheduler.entries]
        if gone:
            # First, and again if this fails: the removal closes alerts without a notice.
            await self._save_batch(store, [], gone)
            await store.remove(gone)
        for name in names:
            self._removed.pop(name, None)

    async def _save_some(self, store: FleetStore) -> None:
        batch = list(self._dirty)[:SAVE_BATCH]
        for entry in batch:
            del self._dirty[entry]
        entries = [entry for entry in batch if entry.place != GONE]
        try:
            refused = await self._save_batch(store, entries, [entry.target.name for entry in batch])
        except BaseException:
            self._dirty = {**dict.fromkeys(batch), **self._dirty}
            raise
        for name in refused:
            if name in self._scheduler.entries:
                self._scheduler.lose(self._scheduler.entries[name])

    async def _save_batch(
        self, store: FleetStore, entries: list[RunningTarget], names: list[str]
    ) -> list[str]:
        """Save targets, with their history and the alerts of all targets with these names."""
        live = [saved(entry, self._scheduler) for entry in entries]
        rows, alerts = taken_rows(entries), self.unsaved_alerts.take(names)
        extras = extras_of(rows)
        if alerts:
            extras = with_alerts(extras, alerts)
        try:
            refused = await store.save(live, extras) if live or extras else []
        except BaseException:
            give_back_rows(rows)
            self.unsaved_alerts.give_back(alerts)
            raise
        if extras is not None and extras.notices:
            self.notices_saved()
        return refused

    def watch_clock(self) -> None:
        """Check the wall clock regularly while quiet hours defer a poll."""
        if self._scheduler.deferred:
            self._chores.wake(_CLOCK)

    async def _check_clock_chore(self) -> None:
        self.check_clock()
        if not self._scheduler.deferred:
            self._chores.rest(_CLOCK)

    def check_clock(self) -> None:
        """If the wall clock was adjusted, apply it to quiet hours and saved times."""
        offset = self._clock.epoch() - self._clock.now()
        if abs(offset - self._scheduler.offset) > STEP:
            self._scheduler.stepped(offset)
            for entry in self._scheduler.entries.values():
                self.touch(entry)
            self._pump()
