"""Shares the state of breakers that are declared in a worker's code with other workers.

A circuit that is closed writes and reads nothing. Everything happens before a claim: the first one
reads what others know; after a failure, and while a circuit is not closed, others read it again,
at most once a second; and what changed here is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import Any

from pollwise.errors import PollwiseError, Unsupported
from pollwise.queues.base import Queue
from pollwise.queues.breakers import OpenBreaker, breaker_from
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import ChoreFailed, Events
from pollwise.runtime.executor.breakers import Breakers
from pollwise.runtime.executor.executor import Executor
from pollwise.runtime.executor.handlers import text_of
from pollwise.runtime.jobs import Claim

BREAKERS = "share breakers"
#: Why jobs of a kind whose breaker opened are given back.
OPEN_BREAKER = "the breaker of its kind is open"
#: How often the notes of breakers are read at most, in seconds.
READ_EVERY = 1.0
#: How long a worker that stops tries to write what changed, in seconds.
LEAVE_WITHIN = 2.0


class WorkerBreakers:
    """The breakers of one run of a worker, shared with the other workers of its queue.

    local: its circuits.
    """

    def __init__(
        self,
        queue: Queue,
        name: str,
        local: Breakers,
        executor: Executor[Any, Any],
        clock: Clock,
        events: Events,
    ) -> None:
        self._executor = executor
        self._queue = queue
        self._name = name
        self._local = local
        self._clock = clock
        self._events = events
        self._able = queue.capabilities.breakers and bool(local.circuits())
        self._known: dict[str, str] = {}  # the notes as last read or written, by kind
        self._changed: set[str] = set()  # kinds whose circuit opened or closed here
        self._trials: set[str] = set()  # kinds whose trial this worker took
        self._adopting = False
        self._read_at = float("-inf")
        local.doubted = self._able  # so that the first claim reads

    def changed(self, kind: str, state: str) -> None:
        """A circuit of this worker has a new state."""
        if state == "open":
            self._executor.give_back_waiting(
                OPEN_BREAKER, lambda waiting: waiting.claim.job.kind == kind
            )
        if state != "half-open":  # poll now, to claim again or to plan the trial
            self._executor.polls.hint()
        if self._able and not self._adopting and state != "half-open":
            self._changed.add(kind)

    async def before_claim(self) -> None:
        """Write what changed here, and read what others know, if there is a reason to."""
        if not self._able:
            return
        if self._changed:
            await self._guarded(self._write_changes())
        if not (self._local.doubted or self._known or self._local.not_closed()):
            return
        now = self._clock.now()
        if now >= self._read_at + READ_EVERY:
            self._read_at, self._local.doubted = now, False
            await self._guarded(self._read())

    async def take_trials(self, trials: set[str], claims: Iterable[Claim]) -> set[str]:
        """Of the kinds whose claimed job is to be a trial, those whose trial is this worker's.

        The job of a kind that is left out is given back, because another worker tries one now; or
        it runs as usual, because the breaker was closed.
        """
        if not self._able:
            return trials
        taken = set(trials)
        for kind in trials & {claim.job.kind for claim in claims}:
            if not await self._guarded(self._take_trial(kind), default=True):
                taken.discard(kind)
        return taken

    async def end(self) -> None:
        """The worker stops: write what changed."""
        if self._able and (self._changed or self._trials):
            try:
                async with asyncio.timeout(LEAVE_WITHIN):
                    await self._guarded(self._write_changes())
            except TimeoutError:
                pass  # the trial ends by itself

    async def _guarded(self, work: Awaitable[bool | None], default: bool = False) -> bool:
        """Await a call of the store. If it fails, breakers go on without the others."""
        try:
            return bool(await work)
        except (PollwiseError, OSError) as error:
            self._events.emit(ChoreFailed(self._queue.name, BREAKERS, text_of(error)))
            if isinstance(error, Unsupported):  # an older controller, or older tables
                self._able = False
            return default

    async def _read(self) -> None:
        notes = await self._queue.breakers.read()
        for kind in self._local.circuits():
            if kind not in self._changed:
                self._adopt(kind, notes.get(kind))
        await self._write_changes()  # of a trial that ended without a result

    def _adopt(self, kind: str, value: str | None) -> None:
        """Take over what a note says, or that there is none."""
        note = breaker_from(kind, value)
        before = self._known.pop(kind, None)
        self._adopting = True
        try:
            if note is None or value is None:
                self._trials.discard(kind)
                if not self._local.closed(kind):
                    self._local.reset(kind)
                return
            self._known[kind] = value
            if value == before and not self._local.closed(kind):
                return
            if kind in self._trials and note.trial_by == self._name:
                return
            self._trials.discard(kind)
            self._local.adopt(kind, note.openings, self._retry_at(kind, note))
        finally:
            self._adopting = False

    def _retry_at(self, kind: str, note: OpenBreaker) -> float:
        """When this worker may try a job, by its own clock; the clock of another may be wrong."""
        longest = self._local.circuits()[kind].breaker.open_for(note.openings)
        left = max(note.retry_at, note.trial_until) - self._clock.epoch()
        return self._clock.now() + min(max(left, 0.0), longest)

    async def _write_changes(self) -> None:
        for kind in [*self._changed]:
            await self._write(kind)
            self._changed.discard(kind)
        for kind in [*self._trials]:
            if not self._local.circuits()[kind].on_trial:  # it was given back, or cancelled
                self._trials.discard(kind)
                note = breaker_from(kind, self._known.get(kind))
                if note is not None:
                    await self._swap(kind, note.without_trial().to_note())

    async def _write(self, kind: str) -> None:
        """Write the state of a circuit that opened or closed here."""
        self._trials.discard(kind)
        for _ in range(2):  # again if another worker, or an operator, changed the note meanwhile
            value = None if self._local.closed(kind) else self._make_note(kind).to_note()
            if await self._swap(kind, value):
                return
        self._adopt(kind, self._known.get(kind))

    def _make_note(self, kind: str) -> OpenBreaker:
        circuit, epoch = self._local.circuits()[kind], self._clock.epoch()
        before = breaker_from(kind, self._known.get(kind))
        retry_at = epoch + (circuit.retry_at or 0.0) - self._clock.now()
        since = epoch if before is None else before.since
        return OpenBreaker(kind, circuit.openings, since, max(retry_at, 0.0), self._name)

    async def _take_trial(self, kind: str) -> bool:
        circuit = self._local.circuits()[kind]
        note = breaker_from(kind, self._known.get(kind)) or self._make_note(kind)
        until = self._clock.epoch() + circuit.breaker.open_for(circuit.openings)
        mine = replace(note, trial_by=self._name, trial_until=until)
        if await self._swap(kind, mine.to_note()):
            self._trials.add(kind)
            return True
        self._adopt(kind, self._known.get(kind))
        return False

    async def _swap(self, kind: str, value: str | None) -> bool:
        done, now = await self._queue.breakers.swap(kind, self._known.get(kind), value)
        if now is None:
            self._known.pop(kind, None)
        else:
            self._known[kind] = now
        return done
