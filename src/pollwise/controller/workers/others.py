"""Changes by other controllers on the same store: new kinds of jobs, and cancelled jobs.

They come as broadcasts. A lost one only costs latency, because polls and chores read the same.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pollwise.errors import StoreError
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import CANCELS, Hints, Listening

if TYPE_CHECKING:
    from pollwise.controller.workers.registry import WorkerRegistry
    from pollwise.controller.workers.runs import Runs

#: The broadcast after a job with requirements that were unknown before was put.
REQUIREMENTS = "#requires"
#: Changes are read at most once in this many seconds.
READ_EVERY = 1.0


class OtherControllers:
    """Reads the changes by other controllers while a held poll or a WebSocket waits here."""

    def __init__(self, registry: WorkerRegistry, runs: Runs, hints: Hints, clock: Clock) -> None:
        self._registry = registry
        self._runs = runs
        self._hints = hints
        self._clock = clock
        self._listening: Listening | None = None
        self._listeners = 0
        self._unread = False
        self._reading: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Read changes until `stop_listening` has been called as often as this."""
        self._listeners += 1
        if self._listening is None:
            # Never ended here: what comes while nobody waits is read when somebody waits again.
            self._listening = self._hints.listen(self._heard, (CANCELS, REQUIREMENTS))
        self._begin()

    def stop_listening(self) -> None:
        self._listeners -= 1
        if self._reading is not None and not self._listeners:
            self._reading.cancel()
            self._reading = None

    def close(self) -> None:
        """The controller stops."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def _heard(self, _: str) -> None:
        self._unread = True
        self._begin()

    def _begin(self) -> None:
        if self._unread and self._listeners and self._reading is None:
            self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while self._unread:
            self._unread = False
            try:
                await self._registry.read_requirements(force=True)
                await self._runs.read_all()
            except StoreError:
                pass
            except asyncio.CancelledError:
                self._unread = True
                raise
            self._send_cancels()
            await self._clock.sleep(READ_EVERY)
        self._reading = None

    def _send_cancels(self) -> None:
        for known in self._registry:
            for run in known.runs.values():
                if run.cancel and known.waiting is not None:
                    known.waiting.give()
                if run.cancel and known.socket is not None:
                    known.socket.cancel(run.job_id)
