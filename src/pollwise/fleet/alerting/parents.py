"""Dependencies: while a router is down, the alerts of what is behind it are held back.

A target that fails may do so because of what it is behind. So before its alert opens, its parents
must have been polled since the trouble began. A parent that was not is polled now, and the alert
waits for the result, for a limited time. A parent that is polled by another node is read from the
store, which is at most a few seconds behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pollwise.errors import PollwiseError
from pollwise.fleet.engine.running_target import RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.stores.base import FleetStore, SavedTarget
from pollwise.runtime.clock import Clock

#: How long an alert waits at most for the polls of its target's parents, in seconds.
WAIT_MAX = 60.0
#: How often parents on other nodes are read while alerts wait for them, in seconds.
READ_EVERY = 2.0


@dataclass(slots=True)
class _Parent:
    """What is known of a parent. Times are of the event loop's clock."""

    down: bool
    failing: bool
    polled_at: float | None


class Parents:
    """Which alerts wait for which parents.

    poll: polls a target of this node now. free: called with a target whose alerts waited, once its
    parents are known to be up.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        store: FleetStore | None,
        clock: Clock,
        poll: Callable[[RunningTarget], None],
        free: Callable[[RunningTarget], None],
    ) -> None:
        self._scheduler = scheduler
        self._store = store if store is not None and store.shared else None
        self._clock = clock
        self._poll = poll
        self._free = free
        #: Targets whose alerts wait, by the name of the parent.
        self._waiting: dict[str, dict[RunningTarget, None]] = {}
        #: When each of these began to wait for polls of its parents.
        self._since: dict[RunningTarget, float] = {}
        #: Parents that other nodes poll, as the store had them.
        self._elsewhere: dict[str, _Parent] = {}
        self._asked: set[str] = set()
        self._reading: asyncio.Task[None] | None = None

    def allow(self, entry: RunningTarget, since: float, now: float) -> bool | None:
        """True if alerts of a target may open; False while a parent is down; None while that is
        unknown. since: when the trouble began."""
        answer: bool | None = True
        for name in entry.target.behind:
            parent = self._seen(name, now)
            if parent is None:
                continue
            if parent.down:
                self._waiting.setdefault(name, {})[entry] = None
                return False
            polled = parent.polled_at is not None and parent.polled_at >= since
            if parent.failing or not polled:
                began = self._since.setdefault(entry, now)
                if now - began < WAIT_MAX:
                    self._waiting.setdefault(name, {})[entry] = None
                    if not polled:
                        self._ask(name)
                    answer = None
        if answer:
            self.forget(entry)
        return answer

    def forget(self, entry: RunningTarget) -> None:
        """A target's alerts do not wait any more."""
        self._since.pop(entry, None)
        for name in entry.target.behind:
            waiting = self._waiting.get(name)
            if waiting is not None:
                waiting.pop(entry, None)
                if not waiting:
                    del self._waiting[name]

    def polled(self, entry: RunningTarget) -> None:
        """A target was polled; those that wait for it are freed if it is well."""
        name = entry.target.name
        if name in self._waiting and not entry.failures:
            self._release(name)

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    def _release(self, name: str) -> None:
        for child in self._waiting.pop(name, {}):
            self._free(child)

    def _seen(self, name: str, now: float) -> _Parent | None:
        """What is known of a parent; None if it says nothing: it is paused, or does not exist."""
        entry = self._scheduler.entries.get(name)
        if entry is None:
            return None
        if self._store is None or entry.until > now:
            if entry.paused:
                return None
            return _Parent(entry.down_since is not None, entry.failures > 0, entry.polled_at)
        self._read()
        return self._elsewhere.get(name, _Parent(False, False, None))

    def _ask(self, name: str) -> None:
        entry = self._scheduler.entries[name]
        if self._store is None or entry.until > self._clock.now():
            self._poll(entry)
        else:
            self._asked.add(name)

    # Parents that other nodes poll

    def _read(self) -> None:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read_while_waiting())

    async def _read_while_waiting(self) -> None:
        await asyncio.sleep(0)  # the caller first notes who waits
        ordered: set[str] = set()
        while names := self._remote():
            with suppress(PollwiseError):  # the next round tries again
                await self._read_once(names, ordered)
            await self._clock.sleep(READ_EVERY)
        self._elsewhere.clear()

    async def _read_once(self, names: list[str], ordered: set[str]) -> None:
        store = self._store
        if store is None:
            return
        unpolled = [name for name in names if name in self._asked and name not in ordered]
        if unpolled:
            await store.order("poll-now", unpolled, "alerts")
            ordered.update(unpolled)
        for kept in await store.load(names):
            parent = self._elsewhere[kept.name] = self._kept(kept)
            waiting = self._waiting.get(kept.name, {})
            oldest = min((self._since.get(child, 0.0) for child in waiting), default=0.0)
            well = not parent.down and not parent.failing
            if well and (parent.polled_at or 0.0) >= oldest - READ_EVERY:
                self._asked.discard(kept.name)
                ordered.discard(kept.name)
                self._release(kept.name)

    def _remote(self) -> list[str]:
        now, entries = self._clock.now(), self._scheduler.entries
        return [name for name in self._waiting if name in entries and entries[name].until <= now]

    def _kept(self, kept: SavedTarget) -> _Parent:
        at = kept.polled_at
        down = bool(kept.more.get("down")) or kept.state == "dead"
        polled = None if at is None else at - self._scheduler.offset
        return _Parent(down and not kept.paused, kept.failures > 0 and not kept.paused, polled)
