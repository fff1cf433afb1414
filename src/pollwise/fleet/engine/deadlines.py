"""Deadlines: one timer for the nearest of all polls under way."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

from pollwise.fleet.engine.entry import Entry

#: A poll that goes on so long after it was cancelled loses its place.
STUCK_AFTER = 5.0


class Runner:
    """A place for one poll at a time."""

    __slots__ = ("deadline", "entry", "expired", "started", "stuck", "task", "wake")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        #: Ends its rest, while it has nothing to poll.
        self.wake: asyncio.Future[None] | None = None
        self.entry: Entry | None = None
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
        runners: Iterable[Runner],
        goes_on: Callable[[Runner, Entry], None],
    ) -> None:
        """
        goes_on: called with what goes on though it was cancelled a while ago.
        """
        self._loop = loop
        self._runners = runners
        self._goes_on = goes_on
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, runner: Runner, deadline: float) -> None:
        """Cancel this runner's task at `deadline`, unless that is set anew before."""
        runner.deadline = deadline
        entry = runner.entry
        if entry is not None and entry.until < deadline:
            deadline = entry.until
        if self._timer is None or deadline < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(deadline, self._sweep)

    def expire(self, runner: Runner) -> None:
        """Cancel it now."""
        if runner.task is not None and not runner.expired:
            runner.expired = True
            self.watch(runner, self._loop.time() + STUCK_AFTER)
            runner.task.cancel()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        self._timer = None
        now = self._loop.time()
        nearest = math.inf
        for runner in list(self._runners):
            entry = runner.entry
            if entry is None or runner.deadline == math.inf:
                continue
            # A lease may have been renewed since: it counts as it is now.
            limit = runner.deadline if runner.expired else min(runner.deadline, entry.until)
            if limit > now:
                nearest = min(nearest, limit)
            elif runner.expired:
                runner.stuck = True
                runner.deadline = math.inf
                self._goes_on(runner, entry)
            else:
                self.expire(runner)
        if nearest < math.inf and (self._timer is None or nearest < self._timer.when()):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(nearest, self._sweep)
