"""Puts the jobs that the schedules of a queue make due, before a worker claims.

There is no separate timer: a pause ends when a tick is due, and a chore puts the ticks while all
handlers are busy. A worker learns of changes by a broadcast, and with its record once a minute.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pollwise.durations import shown
from pollwise.errors import (
    ConfigError,
    HandlerError,
    PayloadError,
    PollwiseError,
    StoreError,
    StoreUnavailable,
    Unsupported,
)
from pollwise.queues.base import Queue
from pollwise.queues.notes import SCHEDULES_CHANGED
from pollwise.queues.schedules.calls import TickResult
from pollwise.queues.schedules.record import (
    Schedule,
    checked_schedule,
    note_of,
    schedule_from,
)
from pollwise.queues.schedules.when import When
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import (
    ChoreFailed,
    Events,
    ScheduleChanged,
    TickPut,
    TickSkipped,
    TicksMissed,
)
from pollwise.runtime.executor.executor import Executor
from pollwise.runtime.executor.handlers import text_of

SCHEDULES = "schedules"
#: While all handlers are busy, ticks are put by a chore, at least this often, in seconds.
CHORE_EVERY = 60.0
#: A tick that the store cannot take now is put again after this many seconds.
TICK_AGAIN = 5.0
#: A pause ends this many seconds after a tick, so that the tick is due however times are rounded.
AFTER_TICK = 1e-3


@dataclass(slots=True)
class _KnownSchedule:
    """A schedule as this worker read it.

    due: when to put its next tick, by this machine's clock.
    """

    value: str
    kind: str
    in_code: bool
    due: float | None


class WorkerSchedules:
    """The schedules of a queue, as one run of a worker knows them.

    declared: those in the worker's code, by name. kinds: those that it has handlers for.
    """

    def __init__(
        self,
        queue: Queue,
        name: str,
        kinds: Collection[str],
        declared: Mapping[str, Schedule],
        executor: Executor[Any, Any],
        clock: Clock,
        events: Events,
        *,
        hints: bool,
    ) -> None:
        self._queue = queue
        self._name = name
        self._kinds = kinds
        self._declared = declared
        self._executor = executor
        self._clock = clock
        self._events = events
        self._able = queue.capabilities.schedules
        if declared and not self._able:
            queue.schedules.check()
        self._to_set = bool(declared)
        self._stale = True
        self._stamp: str | None = None
        self._known: dict[str, _KnownSchedule] = {}
        self._next: float | None = None
        self._putting = False
        executor.chores.add(SCHEDULES, CHORE_EVERY, self._chore)
        self._listening = (
            queue.hints().listen(self._heard, (SCHEDULES_CHANGED,))
            if self._able and hints
            else None
        )

    async def before_claim(self, hold: float) -> float:
        """Put the ticks that are due; return how long the claim may block."""
        if not self._able:
            return hold
        await self._put_due()
        if self._next is None:
            return hold
        left = max(self._next - self._clock.epoch(), 0.0) + AFTER_TICK
        self._executor.polls.poll_by(self._clock.now() + left)
        return min(hold, left)

    async def after_poll(self) -> None:
        """Set the schedules of the code, once; the record that names them is written by now."""
        if not self._able:
            return
        if self._to_set:
            await self._set_declared()
        if self._queue.schedules.stamp != self._stamp:
            self._stale = True
            self._executor.polls.hint()
        self._plan_chore()

    def end(self) -> None:
        if self._listening is not None:
            self._listening.close()

    def _heard(self, _: str) -> None:
        self._stale = True
        self._executor.polls.hint()
        self._plan_chore()

    def _plan_chore(self) -> None:
        """Plan a chore that puts ticks on time while there are no polls, as no handler is free."""
        if self._executor.is_idle() or (self._next is None and not self._stale):
            return
        chores = self._executor.chores
        chores.wake(SCHEDULES)
        soon = 0.0 if self._next is None else self._next - self._clock.epoch() + AFTER_TICK
        chores.hasten(SCHEDULES, 0.0 if self._stale else max(soon, 0.0))

    async def _chore(self) -> None:
        if self._executor.is_idle() or not self._able:
            self._executor.chores.rest(SCHEDULES)
            return
        await self._put_due()
        self._plan_chore()

    async def _put_due(self) -> None:
        if self._putting:  # the chore or a poll is doing it
            return
        self._putting = True
        try:
            if self._stale:
                await self._read()
            while self._next is not None and self._next <= self._clock.epoch():
                if self._executor.stopping:
                    return
                name = min(self._known, key=lambda each: _due(self._known[each]))
                await self._put(name)
        except StoreUnavailable:
            raise
        except (StoreError, Unsupported) as error:
            # Old tables, or an older controller: jobs run all the same.
            self._able = False
            if self._declared or self._known:
                self._events.emit(ChoreFailed(self._queue.name, SCHEDULES, text_of(error)))
        finally:
            self._putting = False

    async def _read(self) -> None:
        self._stale = False
        try:
            kept = await self._queue.schedules.read()
        except BaseException:
            self._stale = True
            raise
        self._stamp = kept.stamp
        self._known = {}
        for name, value in kept.notes.items():
            self._learn(name, value)
        self._find_next()

    async def _put(self, name: str) -> None:
        known = self._known[name]
        undeclared = known.in_code and name not in self._declared and known.kind in self._kinds
        try:
            result = await self._queue.schedules.put_tick(name, known.value, undeclared=undeclared)
        except StoreUnavailable as error:
            # A full store refuses puts, and can be worked off only if claims go on.
            self._next = self._clock.epoch() + TICK_AGAIN
            self._events.emit(ChoreFailed(self._queue.name, SCHEDULES, text_of(error)))
            return
        except (StoreError, Unsupported):
            raise
        except (PollwiseError, ValueError, ArithmeticError) as error:
            # Its job cannot be made. The others go on; this one waits until the schedules change.
            known.due = None
            self._find_next()
            text = f"schedule {name!r}: {text_of(error)}"
            self._events.emit(ChoreFailed(self._queue.name, SCHEDULES, text))
            return
        if result.outcome == "early":
            known.due = self._clock.epoch() + max(result.wait, AFTER_TICK) if result.wait else None
        elif result.value is None:
            del self._known[name]
        else:
            self._learn(name, result.value)
        self._find_next()
        self._emit_result(name, known.kind, result)

    def _learn(self, name: str, value: str) -> None:
        schedule = schedule_from(name, value)
        if schedule is None:  # not a schedule, or from a newer version
            self._known.pop(name, None)
            return
        due = None if schedule.paused else schedule.next_at
        in_code = schedule.origin == "code"
        self._known[name] = _KnownSchedule(value, schedule.kind, in_code, due)

    def _find_next(self) -> None:
        self._next = min((k.due for k in self._known.values() if k.due is not None), default=None)

    def _emit_result(self, name: str, kind: str, result: TickResult) -> None:
        events, about = self._events, (self._queue.name, self._name, name, kind)
        if result.outcome == "removed":
            events.emit(ScheduleChanged(*about, "removed"))
        if result.missed is not None:
            first, last = result.missed
            events.emit(TicksMissed(*about, last, first))
        if result.tick is None:
            return
        if result.outcome == "put":
            late = max(self._clock.epoch() - result.tick, 0.0)
            events.emit(TickPut(*about, result.tick, result.job or "", late))
        elif result.outcome == "skipped":
            events.emit(TickSkipped(*about, result.tick))

    async def _set_declared(self) -> None:
        """Set the schedules of the code that are new or were changed. The worker that started last
        decides, so that two versions of a program do not fight."""
        schedules = self._queue.schedules
        try:
            kept = await schedules.read()
            for name, wanted in self._declared.items():
                text = kept.notes.get(name)
                now = None if text is None else schedules.opened(name, text)
                if now is None or now.origin != "code" or not now.same_definition(wanted):
                    await self._set(wanted)
        except StoreUnavailable:
            return  # after the next poll
        except (StoreError, Unsupported) as error:
            self._events.emit(ChoreFailed(self._queue.name, SCHEDULES, text_of(error)))
        self._to_set = False
        self._stale = True
        self._executor.polls.hint()

    async def _set(self, wanted: Schedule) -> None:
        queue, name = self._queue, wanted.name
        try:
            await queue.schedules.keep(replace(wanted, origin="code", by=self._name))
        except (ConfigError, PayloadError) as error:
            # The queue has too many, or its codec makes this one too large: jobs run all the same.
            text = f"schedule {name!r}: {text_of(error)}"
            self._events.emit(ChoreFailed(queue.name, SCHEDULES, text))
        else:
            self._events.emit(ScheduleChanged(queue.name, self._name, name, wanted.kind, "set"))


def _due(known: _KnownSchedule) -> float:
    return float("inf") if known.due is None else known.due


def declared_above(
    task: Any,
    when: When,
    taken: Collection[str],
    name: str | None,
    args: Mapping[str, Any] | None,
    options: Mapping[str, Any] | None,
    **rules: Any,
) -> Schedule:
    """The schedule that a decorator above a task declares."""
    from pollwise.worker.tasks import Task  # it needs pydantic, which handlers do not

    if not isinstance(task, Task):
        raise HandlerError(
            f"@worker.schedule is above {getattr(task, '__name__', task)!r}, which is not a task: "
            "put it above @worker.task(). For a handler, use queue.schedules.set(name, "
            "NewJob(kind, payload), …)"
        )
    for what, given in (("args", args), ("options", options)):
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(
                f"{what} = {shown(given)} must be a mapping of names to values, "
                "as in {'deep': True}"
            )
    job = task.options(**(options or {})).job(**(args or {}))
    chosen = _free_name(job.kind, taken) if name is None else name
    if chosen in taken:
        raise ConfigError(f"schedule {chosen!r} already exists; names must be unique")
    made = checked_schedule(chosen, job, when, **rules)
    note_of(made)  # refuses one that is too large now, not when the worker runs
    return made


def _free_name(kind: str, taken: Collection[str]) -> str:
    """A free name for a schedule: that of its task, with a number if that name is taken."""
    name, number = kind, 1
    while name in taken:
        number += 1
        name = f"{kind}-{number}"
    return name
