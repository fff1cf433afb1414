"""Handling one record: each of its handlers in turn, each with its own progress."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from pollwise.core.retry import Retry
from pollwise.errors import Reject, Snooze
from pollwise.outbox import tracing
from pollwise.outbox.handlers import Failed, RecordHandler, Registry
from pollwise.outbox.progress import HandlerProgress, Progress
from pollwise.outbox.records import Held, Record
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import (
    Events,
    RecordDead,
    RecordFellBack,
    RecordHandled,
    RecordRetried,
    RecordSnoozed,
    RecordUnhandled,
)
from pollwise.runtime.executor.breakers import Breakers
from pollwise.runtime.executor.handlers import is_permanent, run_within, text_of, traceback_of
from pollwise.runtime.executor.threads import HandlerThreads

#: How a record that no handler matches is looked at again: for about ten minutes, in which a relay
#: that has its handler may be deployed. Then it is dead.
UNHANDLED_RETRY = Retry.exponential("1s", max_delay="60s", attempts=15)
#: A handler is not held back for so little, in seconds: clocks differ.
SOON = 0.05
#: The longest that a receiver may ask to be left alone (`retry_after`), in seconds.
RETRY_AFTER_MAX = 3600.0
#: Where the attempts of a record that no handler matches are counted; no handler has this name.
_NOBODY = ""
#: The most kinds of which it is told that nothing handles them.
_KINDS_TOLD_MAX = 1000
_NO_TRACE = nullcontext()


class Ended(Protocol):
    """Whether handling was cut short from outside: then what a handler raises is no failure."""

    @property
    def ended(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Open:
    """A record that is not completed: to be retried after `delay`, or dead when that is None."""

    delay: float | None
    error: str | None


class Handling:
    """The handlers at work on records.

    now: the time by the store's clock.
    """

    def __init__(
        self,
        relay: str,
        source: str,
        registry: Registry,
        threads: HandlerThreads,
        breakers: Breakers,
        clock: Clock,
        events: Events,
        rng: random.Random,
        timeout: float | None,
        now: Callable[[], float],
    ) -> None:
        self._relay = relay
        self._source = source
        self._registry = registry
        self._calls = registry.calls(threads)
        self._breakers = breakers
        self._clock = clock
        self._events = events
        self._random = rng
        self._timeout = timeout
        self._now = now
        self._told: set[str] = set()

    async def handle(self, item: Held, progress: Progress, end: Ended) -> Open | None:
        """Call the handlers that are due; None when all that match the record are done."""
        record = item.record
        handlers = self._registry.matching(record.kind)
        if not handlers:
            return self._unhandled(record, progress.of(_NOBODY))
        timed = self._events.wants(RecordHandled)
        began = self._clock.now() if timed else 0.0
        with tracing.attached(record.headers) if record.headers else _NO_TRACE:
            for handler in handlers:
                state = progress.of(handler.name)
                if not state.ended and (not state.due or state.due <= self._now() + SOON):
                    if end.ended:  # a handler would not be cancelled; the others do not begin
                        raise asyncio.CancelledError
                    await self._attempt(record, handler, state, end)
        states = [progress.of(handler.name) for handler in handlers]
        took = self._clock.now() - began if timed else 0.0
        return self._verdict(record, states, handlers, took)

    def _verdict(
        self,
        record: Record,
        states: list[HandlerProgress],
        handlers: tuple[RecordHandler, ...],
        took: float,
    ) -> Open | None:
        open_ones = [state for state in states if not state.ended]
        if open_ones:
            soonest = min(open_ones, key=lambda state: state.due)
            return Open(max(soonest.due - self._now(), 0.0), soonest.error or None)
        given_up = [
            f"{handler.name}: {state.error}"
            for handler, state in zip(handlers, states, strict=True)
            if state.ended == "gave up"
        ]
        if given_up:
            error = "; ".join(given_up)
            where = "\n".join(state.where for state in states if state.where)
            self._emit(RecordDead, record, error, where)
            return Open(None, error)
        if self._events.wants(RecordHandled):
            lag = max(self._now() - record.created_at, 0.0)
            self._emit(RecordHandled, record, lag, took)
        return None

    def _unhandled(self, record: Record, state: HandlerProgress) -> Open:
        """Nobody handles it. It waits: a relay that does may be on its way. Then it is dead."""
        state.attempts += 1
        if UNHANDLED_RETRY.exhausted(state.attempts):
            error = (
                f"no handler matches the kind {record.kind!r}; deploy a relay that has one, then "
                "retry it, or skip it"
            )
            self._emit(RecordDead, record, error)
            return Open(None, error)
        delay = UNHANDLED_RETRY.delay(state.attempts, self._random.random())
        if record.kind not in self._told and len(self._told) < _KINDS_TOLD_MAX:
            self._told.add(record.kind)
            self._emit(RecordUnhandled, record, delay)
        return Open(delay, f"no handler matches the kind {record.kind!r}")

    async def _attempt(
        self, record: Record, handler: RecordHandler, state: HandlerProgress, end: Ended
    ) -> None:
        """Call a handler once, unless its breaker is open; then its fallback, if it gave up."""
        if not state.last_resort:
            trial = False
            if handler.breaker is not None:
                freely, trials, _ = self._breakers.claimable([handler.name])
                if not freely and not trials:
                    state.due = self._now() + self._breakers.until_trial(handler.name)
                    state.error = state.error or "its breaker is open"
                    return
                trial = bool(trials)
                if trial:
                    self._breakers.begin_trial(handler.name)
            await self._call(record, handler, state, end, trial)
        if state.last_resort:
            await self._fall_back(record, handler, state, end)

    async def _call(
        self,
        record: Record,
        handler: RecordHandler,
        state: HandlerProgress,
        end: Ended,
        trial: bool,
    ) -> None:
        attempt = state.attempts + 1
        main, breakers, name = handler.main, self._breakers, handler.name
        limit = main.timeout if main.timeout is not None else self._timeout
        try:
            await run_within(self._calls[name][0], _at(record, attempt), limit, main.plain)
        except BaseException as error:  # even SystemExit of a handler is its own
            if end.ended:
                breakers.inconclusive(name, trial)
                raise
            self._failed(record, handler, state, error, trial)
        else:
            breakers.succeeded(name, trial)
            state.ended = "done"

    def _failed(
        self,
        record: Record,
        handler: RecordHandler,
        state: HandlerProgress,
        error: BaseException,
        trial: bool,
    ) -> None:
        retry, breakers, name = handler.retry, self._breakers, handler.name
        if isinstance(error, Snooze):
            breakers.inconclusive(name, trial)
            state.due = self._now() + error.delay
            self._emit(RecordSnoozed, record, name, error.delay)
            return
        bare = isinstance(error, Reject)
        state.error = text_of(error, bare=bare)
        state.where = "" if bare else _where(error)
        state.attempts += 1
        if bare or is_permanent(error, retry):
            breakers.inconclusive(name, trial)
            state.last_resort = True
            return
        breakers.failed(name, trial)
        if retry.exhausted(state.attempts):
            state.last_resort = True
            return
        delay = max(retry.delay(state.attempts, self._random.random()), _asked_for(error))
        state.due = self._now() + delay
        self._emit(RecordRetried, record, name, state.attempts, state.error, delay, state.where)

    async def _fall_back(
        self, record: Record, handler: RecordHandler, state: HandlerProgress, end: Ended
    ) -> None:
        call, fallback = self._calls[handler.name][1], handler.fallback
        if call is None or fallback is None:
            state.ended = "gave up"
            return
        limit = fallback.timeout if fallback.timeout is not None else self._timeout
        failed = Failed(_at(record, state.attempts), state.error)
        try:
            await run_within(call, failed, limit, fallback.plain)
        except BaseException as error:
            if end.ended:
                raise
            if isinstance(error, Snooze):
                state.due = self._now() + error.delay
                self._emit(RecordSnoozed, record, handler.name, error.delay)
                return
            state.ended = "gave up"
            state.error += f"; its fallback: {text_of(error, bare=isinstance(error, Reject))}"
        else:
            state.ended = "fell back"
            self._emit(RecordFellBack, record, handler.name, state.attempts, state.error)

    def _emit(self, kind: Any, record: Record, *values: Any) -> None:
        if self._events.wants(kind):
            self._events.emit(
                kind(self._source, self._relay, record.id, record.kind, record.key, *values)
            )


def _where(error: BaseException) -> str:
    """Where in the handler it was raised; the first frame is that of the call here."""
    ours = error.__traceback__
    return traceback_of(error if ours is None else error.with_traceback(ours.tb_next))


def _asked_for(error: BaseException) -> float:
    """How long the other side asked to be left alone, where it did."""
    asked = getattr(error, "retry_after", None)
    if isinstance(asked, bool) or not isinstance(asked, (int, float)):
        return 0.0
    return min(max(float(asked), 0.0), RETRY_AFTER_MAX)


def _at(record: Record, attempt: int) -> Record:
    return Record(
        record.id,
        record.outbox,
        record.kind,
        record.payload,
        record.key,
        record.headers,
        record.created_at,
        attempt,
    )
