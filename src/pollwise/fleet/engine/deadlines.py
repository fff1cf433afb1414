"""Deadlines of polls: one timer for the nearest one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

from pollwise.fleet.engine.running_target import RunningTarget

#: A poll that still runs this many seconds after its cancellation loses its slot.
STUCK_AFTER = 5.0


class PollSlot:
    """A task that makes one poll at a time."""

    __slots__ = ("deadline", "entry", "expired", "started", "stuck", "task", "wake")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        #: Wakes it while it has nothing to poll.
        self.wake: asyncio.Future[None] | None = None
        self.entry: RunningTarget | None = None
        self.started: float = 0.0
        self.deadline: float = math.inf
        #: True if its poll was cancelled at the deadline and still runs.
        self.expired: bool = False
        self.stuck: bool = False

    def uncancel(self) -> None:
        """Let its task continue after a cancellation."""
        if self.task is not None:
            while self.task.cancelling():
                self.task.uncancel()


class Deadlines:
    """Cancels polls at their deadline, or at the end of the target's lease."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slots: Iterable[PollSlot],
        stuck: Callable[[PollSlot, RunningTarget], None],
    ) -> None:
        """
        stuck: called with a slot whose poll still runs long after its cancellation.
        """
        self._loop = loop
        self._slots = slots
        self._stuck = stuck
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, slot: PollSlot, deadline: float) -> None:
        """Cancel this slot's task at `deadline`, unless another deadline is set before."""
        slot.deadline = deadline
        entry = slot.entry
        if entry is not None and entry.until < deadline:
            deadline = entry.until
        self._sweep_at(deadline)

    def _sweep_at(self, when: float) -> None:
        if self._timer is None or when < self._timer.when():
            self.close()
            self._timer = self._loop.call_at(when, self._sweep)

    def expire(self, slot: PollSlot) -> None:
        """Cancel its poll now."""
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
            # The lease may have been renewed since.
            limit = slot.deadline if slot.expired else min(slot.deadline, entry.until)
            if limit > now:
                nearest = min(nearest, limit)
            elif slot.expired:
                slot.stuck = True
                slot.deadline = math.inf
                self._stuck(slot, entry)
            else:
                self.expire(slot)
        if nearest < math.inf:
            self._sweep_at(nearest)
