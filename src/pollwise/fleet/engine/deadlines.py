"""Deadlines: one timer for the nearest of all polls under way."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

from pollwise.fleet.engine.running_target import RunningTarget

#: A poll that goes on so long after it was cancelled loses its place.
STUCK_AFTER = 5.0


class PollSlot:
    """A place for one poll at a time."""

    __slots__ = ("deadline", "entry", "expired", "started", "stuck", "task", "wake")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        #: Ends its rest, while it has nothing to poll.
        self.wake: asyncio.Future[None] | None = None
        self.entry: RunningTarget | None = None
        self.started = 0.0
        self.deadline = math.inf
        #: Its poll was cancelled; and goes on all the same.
        self.expired = False
        self.stuck = False


class Deadlines:
    """Cancels what is over its deadline, or over the lease under which it is polled."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slots: Iterable[PollSlot],
        goes_on: Callable[[PollSlot, RunningTarget], None],
    ) -> None:
        """
        goes_on: called with what goes on though it was cancelled a while ago.
        """
        self._loop = loop
        self._slots = slots
        self._goes_on = goes_on
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, slot: PollSlot, deadline: float) -> None:
        """Cancel this slot's task at `deadline`, unless that is set anew before."""
        slot.deadline = deadline
        entry = slot.entry
        if entry is not None and entry.until < deadline:
            deadline = entry.until
        if self._timer is None or deadline < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(deadline, self._sweep)

    def expire(self, slot: PollSlot) -> None:
        """Cancel it now."""
        if slot.task is not None and not slot.expired:
            slot.expired = True
            self.watch(slot, self._loop.time() + STUCK_AFTER)
            slot.task.cancel()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        self._timer = None
        now = self._loop.time()
        nearest = math.inf
        for slot in list(self._slots):
            entry = slot.entry
            if entry is None or slot.deadline == math.inf:
                continue
            # A lease may have been renewed since: it counts as it is now.
            limit = slot.deadline if slot.expired else min(slot.deadline, entry.until)
            if limit > now:
                nearest = min(nearest, limit)
            elif slot.expired:
                slot.stuck = True
                slot.deadline = math.inf
                self._goes_on(slot, entry)
            else:
                self.expire(slot)
        if nearest < math.inf and (self._timer is None or nearest < self._timer.when()):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(nearest, self._sweep)
