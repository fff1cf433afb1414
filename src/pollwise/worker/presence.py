"""A worker's presence: it stores a record of itself with its queue, and follows orders.

The record is written after a poll, at most once a minute, so an idle process does not wake up for
it. A worker whose handlers are all busy does not poll; then a chore writes it. An idle worker on a
store that bills each call writes it less often. What the worker did in each minute is written with
it, in the same call.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pollwise.durations import seconds
from pollwise.errors import StoreError, StoreUnavailable, Unsupported
from pollwise.queues.base import Queue
from pollwise.queues.notes import order_broadcast
from pollwise.queues.presence import (
    KINDS_MAX,
    PRESENCE_EVERY,
    PRESENCE_KEPT,
    RUNNING_MAX,
    TEXT_MAX,
    RunningJob,
    WorkerInfo,
)
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import ChoreFailed, ConcurrencyChanged, Events
from pollwise.runtime.executor.breakers import Breakers
from pollwise.runtime.executor.executor import Executor
from pollwise.runtime.executor.handlers import Handler, text_of
from pollwise.runtime.rollups.kept_pace import KeptPace
from pollwise.runtime.rollups.tally import Tally
from pollwise.version import __version__

if TYPE_CHECKING:
    from pollwise.worker.options import WorkerRunOptions

PRESENCE = "presence"
HISTORY = "history"
#: How long a worker that stops tries to delete its record, in seconds.
LEAVE_WITHIN = 2.0
#: Kinds whose names have more characters than this together are not named in a record.
KINDS_LENGTH_MAX = 8000


T = TypeVar("T")


class Presence:
    """The record of one run of a worker.

    tally: what the worker did, which is stored as history together with its record.
    """

    def __init__(
        self,
        queue: Queue,
        name: str,
        handlers: Mapping[str, Handler],
        options: WorkerRunOptions,
        executor: Executor[Any, Any],
        breakers: Breakers,
        clock: Clock,
        events: Events,
        schedules: tuple[str, ...] = (),
    ) -> None:
        self._queue = queue
        self._name = name
        self._schedules = schedules if _nameable(schedules) else None
        kinds = tuple(handlers)
        self._kinds = kinds if _nameable(kinds) else None
        self._handlers = handlers
        self._declared: dict[str, str] | None = None  # by kind; computed for the first record
        self._executor = executor
        self._breakers = breakers
        self._clock = clock
        self._events = events
        self._instance = secrets.token_hex(4)
        self._started_at = clock.epoch()
        self._longest_pause = _longest_pause(options)
        self._strategy = repr(options.polling)[:TEXT_MAX]
        self._hints = queue.hints()
        self._able = queue.capabilities.presence
        self._last = self._next = 0.0  # when the record was written, and is to be written again
        self._worked = False  # since the record was written
        self._written: WorkerInfo | None = None
        self.tally: Tally = Tally(f"{self._instance} {name}", clock)
        self._keeps_history = self._able and queue.capabilities.history
        if self._keeps_history:
            executor.pruning.fold = queue.fold_history
        self._pace = KeptPace(queue, executor.polls, clock, events, kinds)
        executor.chores.add(PRESENCE, PRESENCE_EVERY, self._chore)
        self._listening = (
            self._hints.listen(self._heard, (order_broadcast(name),))
            if self._able and options.hints
            else None
        )

    async def begin(self) -> None:
        """Before the first poll: go on at the pace that workers of this queue learned."""
        if self._keeps_history:
            await self._pace.read()

    async def after_poll(self, found: bool) -> None:
        """Write the record, if it is time; `found`: the poll found something."""
        self.tally.polled(self._executor.polls.counts, self._executor.polls.interval)
        if found:
            self._worked = True
            self._next = min(self._next, self._last + PRESENCE_EVERY)
        if self._written is not None and self._written.alone and not self._alone():
            self.write_soon()
        if self._able and self._clock.now() >= self._next:
            await self._write()
        if self._able and not self._executor.is_idle():
            self._executor.chores.wake(PRESENCE)

    async def end(self) -> None:
        """The worker stops: delete its record. If that fails, the record expires."""
        if self._listening is not None:
            self._listening.close()
        written, self._written, self._able = self._written, None, False
        if written is not None:
            with suppress(Exception):
                async with asyncio.timeout(LEAVE_WITHIN):
                    await self._with_history(partial(self._queue.forget_worker, written), last=True)

    def write_soon(self) -> None:
        """Write the record after this poll, because operators must see a change."""
        self._next = 0.0

    def _alone(self) -> str:
        """The job that runs alone; "" if there is none."""
        isolated = self._executor.isolation.isolated()
        return "" if isolated is None else isolated.name

    def _heard(self, _: str) -> None:
        """An operator has an order for this worker."""
        if self._written is not None:
            self._next = 0.0
            self._executor.chores.wake(PRESENCE)
            self._executor.chores.hasten(PRESENCE, 0.0)

    async def _chore(self) -> None:
        if self._able and self._clock.now() >= self._next:
            await self._write()
        if self._executor.is_idle():
            self._executor.chores.rest(PRESENCE)

    async def _write(self) -> None:
        idle = self._executor.is_idle() and not self._worked
        every = self._queue.idle_presence if idle else PRESENCE_EVERY
        self._last = self._clock.now()
        self._next, self._worked = self._last + every, False
        ttl = PRESENCE_KEPT / PRESENCE_EVERY * max(every, self._longest_pause)
        self._written = info = self._describe()
        try:
            order = await self._with_history(partial(self._queue.record_worker, info, ttl))
        except Unsupported:  # the store of a controller cannot
            self._able, self._written = False, None
        except Exception as error:
            self._events.emit(ChoreFailed(self._queue.name, PRESENCE, text_of(error)))
        else:
            self._follow(order)

    async def _with_history(self, write: Callable[..., Awaitable[T]], *, last: bool = False) -> T:
        """Write a record with what happened since the last one; what fails is written again.

        last: the worker stops.

        If the store has no table for it, or does not allow it, the record is written alone.
        """
        rows = [*self.tally.rows(), *self._pace.rows(last=last)] if self._keeps_history else []
        try:
            answer = await (write(history=rows) if rows else write())
        except StoreUnavailable:
            raise
        except StoreError as error:
            if not rows:
                raise
            self._keeps_history = False
            self._executor.pruning.fold = None
            self._events.emit(ChoreFailed(self._queue.name, HISTORY, text_of(error)))
            return await write()
        self.tally.written()
        return answer

    def _follow(self, order: int | None) -> None:
        """Change the concurrency, if that is asked for."""
        before = self._executor.ahead.concurrency
        if order is None or order == before:
            return
        self._executor.resize(order)
        self._next = 0.0  # the record shows it after the next poll
        self._events.emit(ConcurrencyChanged(self._queue.name, self._name, before, order))

    def _signatures(self) -> dict[str, str]:
        """The signatures of the tasks, by kind."""
        if self._declared is None:
            self._declared = {
                kind: declared()
                for kind in self._kinds or ()
                if (declared := self._handlers[kind].signature) is not None
            }
        return self._declared

    def _describe(self) -> WorkerInfo:
        executor, now = self._executor, self._clock.now()
        epoch = self._clock.epoch()
        running = executor.running()
        state = executor.state()
        return WorkerInfo(
            name=self._name,
            instance=self._instance,
            host=socket.gethostname()[:TEXT_MAX],
            pid=os.getpid(),
            version=__version__,
            kinds=self._kinds,
            concurrency=executor.ahead.concurrency,
            busy=len(running),
            waiting=state["waiting"],
            running=tuple(
                RunningJob(
                    held.claim.job.id,
                    held.claim.job.kind,
                    epoch - (now - (now if held.began is None else held.began)),
                )
                for held in running[:RUNNING_MAX]
            ),
            started_at=self._started_at,
            seen_at=epoch,
            strategy=self._strategy,
            interval=executor.polls.interval,
            hints=self._hints.proven_at is not None,
            breakers=tuple(self._breakers.not_closed()[:RUNNING_MAX]),
            schedules=self._schedules,
            signatures=self._signatures(),
            alone=self._alone(),
        )


def _longest_pause(options: WorkerRunOptions) -> float:
    """The longest time between two polls of an idle worker, in seconds; at least a minute."""
    polling = options.polling
    long = seconds(options.long_interval, "long_interval") if options.hints else 0.0
    return max(PRESENCE_EVERY, polling.max_interval, polling.longest_hold, long)


def _nameable(kinds: tuple[str, ...]) -> bool:
    return len(kinds) <= KINDS_MAX and sum(map(len, kinds)) <= KINDS_LENGTH_MAX
