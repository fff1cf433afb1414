"""Recurring chores on one shared timer.

No chore has a timer of its own, and one that has nothing to do is not on the agenda at all. So
with nothing running and nothing due, a process sends only its polls, and an idle database may
sleep. Chores that are due at about the same time run together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass

from pollwise.core.agenda import Agenda
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import ChoreFailed, ChoreRecovered, Events

#: A chore may run early by this share of its interval, to run together with another.
EARLY = 0.1
#: A part counts as broken once a chore that it needs has failed this often in a row.
FAILURES_MAX = 3


def trouble_of(failed: ChoreFailed) -> str | None:
    """A text about a chore that fails and is needed; None if work can go on without it."""
    if not failed.needed or failed.failures < FAILURES_MAX:
        return None
    return f"could not {failed.chore} {failed.failures} times in a row: {failed.error}"


@dataclass(frozen=True, slots=True)
class _Chore:
    every: float
    work: Callable[[], Awaitable[None]]
    needed: bool


class Chores:
    """Chores by name; each rests until `wake` puts it on the agenda."""

    def __init__(self, source: str, clock: Clock, events: Events) -> None:
        self._source = source
        self._clock = clock
        self._events = events
        self._chores: dict[str, _Chore] = {}
        self._agenda: Agenda[str] = Agenda()
        self._failing: dict[str, ChoreFailed] = {}
        self._context = copy_context()
        self._timer: asyncio.TimerHandle | None = None
        self._round: asyncio.Task[None] | None = None

    def add(
        self, name: str, every: float, work: Callable[[], Awaitable[None]], *, needed: bool = False
    ) -> None:
        """Register a chore; it does not run before `wake`.

        needed: the part that added this chore cannot work without it.
        """
        self._chores[name] = _Chore(every, work, needed)

    def wake(self, name: str) -> None:
        """Run a chore from now on, first after its interval; no effect if it is awake already."""
        if name not in self._agenda:
            self._agenda.upsert(name, self._clock.now() + self._chores[name].every)
            self._set_timer()

    def hasten(self, name: str, within: float) -> None:
        """Run a chore that is awake within this many seconds, if it is due later."""
        due, sooner = self._agenda.due(name), self._clock.now() + within
        if due is not None and sooner < due:
            self._agenda.upsert(name, sooner)
            self._set_timer()

    def run_by(self, name: str, when: float) -> None:
        """Run a chore at this time, awake or not, unless it is due sooner."""
        due = self._agenda.due(name)
        if due is None or when < due:
            self._agenda.upsert(name, when)
            self._set_timer()

    async def at_once(self, name: str) -> None:
        """Run a chore now, awake or not; a failure is emitted as usual."""
        await self._run(name, self._chores[name])

    def rest(self, name: str) -> None:
        """Stop running a chore until it is woken again."""
        if self._agenda.remove(name):
            self._set_timer()

    def trouble(self) -> list[str]:
        """Texts about the needed chores that keep failing; empty if there are none."""
        return [each for each in map(trouble_of, self._failing.values()) if each]

    async def close(self) -> None:
        """Stop the timer and the chore that runs now."""
        for name in self._chores:
            self._agenda.remove(name)
        self._set_timer()
        if self._round is not None:
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        first = self._agenda.peek()
        if first is not None and self._round is None:
            loop = asyncio.get_running_loop()
            context = self._context.copy()  # not of the handler that woke a chore
            self._timer = loop.call_at(first.due, self._begin_round, context=context)

    def _begin_round(self) -> None:
        self._timer = None
        self._round = asyncio.get_running_loop().create_task(self._run_due())

    async def _run_due(self) -> None:
        try:
            for name in list(self._chores):
                due = self._agenda.due(name)
                chore = self._chores[name]
                now = self._clock.now()
                if due is None or due > now + EARLY * chore.every:
                    continue
                self._agenda.upsert(name, now + chore.every)
                await self._run(name, chore)
        finally:
            self._round = None
            self._set_timer()

    async def _run(self, name: str, chore: _Chore) -> None:
        try:
            await chore.work()
        except Exception as error:
            before = self._failing.get(name)
            failures = 1 if before is None else before.failures + 1
            text = f"{type(error).__name__}: {error}"
            failed = ChoreFailed(self._source, name, text, failures, chore.needed)
            self._failing[name] = failed
            self._events.emit(failed)
        else:
            before = self._failing.pop(name, None)
            if before is not None:
                self._events.emit(ChoreRecovered(self._source, name, before.failures))
