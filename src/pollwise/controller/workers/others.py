"""News from other controllers on the same store: new kinds of jobs, and jobs that were cancelled.

They come as hints of kinds that no job has. A lost one only costs latency, because polls and chores
read the same.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from pollwise.errors import StoreError
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hint, Hints

if TYPE_CHECKING:
    from pollwise.controller.workers.registry import WorkerRegistry
    from pollwise.controller.workers.runs import Runs

#: The kinds of the hints by which controllers tell each other; no job has them.
CANCELS = "#cancel"
REQUIREMENTS = "#requires"
#: A number of listeners above that of controllers: all of them get the hint.
EVERYBODY = 1000
#: News is read at most once in this many seconds.
READ_EVERY = 1.0
#: How long one wait for a hint is, in seconds.
HINT_WAIT = 3600.0


class OtherControllers:
    """Reads the news of other controllers while a held poll or a WebSocket waits here."""

    def __init__(self, registry: WorkerRegistry, runs: Runs, hints: Hints, clock: Clock) -> None:
        self._registry = registry
        self._runs = runs
        self._hints = hints
        self._clock = clock
        self._hint = Hint(frozenset({CANCELS, REQUIREMENTS}))
        self._listeners = 0
        self._reading: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Read news until `stop_listening` was called as often as this."""
        self._listeners += 1
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())

    def stop_listening(self) -> None:
        self._listeners -= 1
        if self._reading is not None and not self._listeners:
            self._reading.cancel()
            self._reading = None

    async def _read(self) -> None:
        # It stays a member afterwards: a hint that comes while nobody waits is kept for the next.
        self._hints.join(self._hint)
        unread = False
        try:
            while True:
                self._hints.asleep(self._hint)
                unread = await self._clock.sleep(HINT_WAIT, self._hint)
                if unread:
                    with suppress(StoreError):
                        await self._registry.read_requirements(force=True)
                        await self._runs.read_all()
                    unread = False
                    self._tell_cancels()
                    await self._clock.sleep(READ_EVERY)
        finally:
            self._hints.awake(self._hint)
            if unread:
                self._hint.give()

    def _tell_cancels(self) -> None:
        for known in self._registry:
            for run in known.runs.values():
                if run.cancel and known.waiting is not None:
                    known.waiting.give()
                if run.cancel and known.socket is not None:
                    known.socket.cancel(run.job_id)
