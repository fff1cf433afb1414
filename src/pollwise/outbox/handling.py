"""Handles one record: calls its handlers in turn, each with its own progress."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from pollwise.core.retry import RETRY_AFTER_MAX, Retry, asked_wait
from pollwise.errors import Reject, Snooze
from pollwise.outbox.handlers import FailedRecord, RecordHandler, RecordHandlers
from pollwise.outbox.progress import NO_HANDLER, HandlerProgress, RecordProgress
from pollwise.outbox.records import Record
from pollwise.outbox.typed import RecordUnfit
from pollwise.runtime.clock import Clock
from pollwise.runtime.contexts import isolated
from pollwise.runtime.events import (
    BreakerChanged,
    Events,
    RecordDead,
    RecordFellBack,
    RecordHandled,
    RecordLocked,
    RecordRetried,
    RecordSnoozed,
    RecordUnhandled,
)
from pollwise.runtime.executor.breakers import Breakers
from pollwise.runtime.executor.control.run_control import now_runs
from pollwise.runtime.executor.handlers import is_permanent, text_of, traceback_of
from pollwise.runtime.executor.locked import LOCKED_FOR, LockedReports
from pollwise.runtime.executor.threads import HandlerThreads
from pollwise.runtime.executor.work import Held
from pollwise.runtime.rollups.tally import Tally
from pollwise.runtime.tracing import spans

#: Retries of a record that no handler matches: for about ten minutes, in which a relay with its
#: handler may be deployed. Then the record is dead.
UNHANDLED_RETRY = Retry.exponential("1s", max_delay="60s", attempts=15)
#: A handler that is due within this many seconds is called now: clocks differ.
SOON = 0.05
#: After a failed trial of a breaker, its record waits this long, in seconds, so that other records
#: are tried first: one record that always fails must not keep the breaker open.
AFTER_TRIAL = 1.0
#: Why a record waits whose handler is not called because of its breaker.
BREAKER_OPEN = "its breaker is open"
#: The maximum number of kinds that are reported as unhandled.
_UNHANDLED_KINDS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A record that is not completed: it is retried after `delay`, or dead if that is None."""

    delay: float | None
    error: str | None


@dataclass(slots=True)
class _Attempt:
    """A record that one handler has to handle."""

    record: Record
    handler: RecordHandler
    state: HandlerProgress
    held: Held
    lane: str
    #: Whether this attempt decides if the handler's breaker closes.
    trial: bool = False
    #: Of OpenTelemetry, if the program uses it.
    span: Any = None


class Handling:
    """Calls the handlers of records.

    timeout: the limit of a handler that has none of its own.
    now: returns the time by the store's clock.
    tally: counts records for the history: those that are completed, each failure of a handler, and
        those that die.
    trace_context: how the span of a record refers to the span of its put.
    """

    def __init__(
        self,
        relay: str,
        source: str,
        registry: RecordHandlers,
        threads: HandlerThreads,
        clock: Clock,
        events: Events,
        rng: random.Random,
        timeout: float | None,
        now: Callable[[], float],
        tally: Tally,
        trace_context: spans.TraceContext = "link",
    ) -> None:
        self._relay = relay
        self._source = source
        self._calls = registry.calls(threads, timeout)
        self._breakers = Breakers(registry.handlers, clock, self._note_breaker)
        self._clock = clock
        self._events = events
        self._random = rng
        self._now = now
        self._tally = tally
        self._trace_context = trace_context
        self._reported: set[str] = set()
        self._locked = LockedReports(clock)

    async def handle(
        self,
        record: Record,
        handlers: tuple[RecordHandler, ...],
        progress: RecordProgress,
        held: Held,
        lane: str = "",
    ) -> Unfinished | None:
        """Call the handlers that are due; return None when all that match the record are done.

        held: of the record's key. Once it has ended, because the relay stops or lost the lease, an
            error of a handler is not counted as a failure.
        """
        if record.unreadable is not None:
            self._emit_dead(record, lane, record.unreadable)
            return Unfinished(None, record.unreadable)
        if record.locked is not None:
            if self._locked.due(record.locked):
                self._emit(RecordLocked, record, lane, record.locked, LOCKED_FOR)
            return Unfinished(LOCKED_FOR, record.locked)
        if not handlers:
            return self._unhandled(record, lane, progress.of(NO_HANDLER))
        began = self._clock.now()
        states = [progress.of(handler.name) for handler in handlers]
        with self._span(record, states) as span:
            for handler, state in zip(handlers, states, strict=True):
                if self._is_due(state):
                    if held.ended:  # a handler ignored its cancellation; do not call the others
                        raise asyncio.CancelledError
                    await self._attempt(_Attempt(record, handler, state, held, lane, span=span))
        if not all(state.ended in ("done", "fell back") for state in states):
            return self._unfinished(record, lane, states, handlers)
        now = self._clock.now()
        self._tally.done(now, record.kind, now - began)
        if self._events.wants(RecordHandled):
            lag = max(self._now() - record.created_at, 0.0)
            done = _ended(handlers, states, "done")
            self._emit(RecordHandled, record, lane, lag, now - began, done)
        return None

    def _is_due(self, state: HandlerProgress) -> bool:
        return not state.ended and (not state.due or state.due <= self._now() + SOON)

    def _span(self, record: Record, states: list[HandlerProgress]) -> Any:
        """The span of a record's run; none if no handler is due."""
        tracer = spans.tracer()
        due = [] if tracer is None else [each for each in states if self._is_due(each)]
        if not due:
            return nullcontext()
        attempt = 1 + max(each.attempts for each in due)
        wait = max(self._now() - record.created_at, 0.0)
        about = (self._source, record, attempt, wait, self._trace_context)
        return spans.process_span(tracer, *about)

    def _unfinished(
        self,
        record: Record,
        lane: str,
        states: list[HandlerProgress],
        handlers: tuple[RecordHandler, ...],
    ) -> Unfinished:
        open_ones = [state for state in states if not state.ended]
        if open_ones:
            soonest = min(open_ones, key=lambda state: state.due)
            return Unfinished(max(soonest.due - self._now(), 0.0), soonest.error or None)
        error = "; ".join(
            f"{handler.name}: {state.error}"
            for handler, state in zip(handlers, states, strict=True)
            if state.ended == "gave up"
        )
        where = "\n".join(state.where for state in states if state.where)
        ends = _ended(handlers, states, "done"), _ended(handlers, states, "gave up")
        self._emit_dead(record, lane, error, where, *ends)
        return Unfinished(None, error)

    def _unhandled(self, record: Record, lane: str, state: HandlerProgress) -> Unfinished:
        """No handler matches: wait for a relay that has one; after the last attempt it is dead."""
        state.attempts += 1
        what = f"no handler matches the kind {record.kind!r}"
        if lane:
            what = f"no handler that was in the lane {lane!r} for the kind {record.kind!r} is left"
        if UNHANDLED_RETRY.exhausted(state.attempts):
            error = f"{what}; deploy a relay that has one, then retry the record, or drop it"
            self._emit_dead(record, lane, error)
            return Unfinished(None, error)
        delay = UNHANDLED_RETRY.delay(state.attempts, self._random.random())
        if record.kind not in self._reported and len(self._reported) < _UNHANDLED_KINDS_MAX:
            self._reported.add(record.kind)
            self._emit(RecordUnhandled, record, lane, delay)
        return Unfinished(delay, what)

    async def _attempt(self, work: _Attempt) -> None:
        """Call a handler once, unless its breaker is open; call its fallback if it gave up."""
        state, handler = work.state, work.handler
        if not state.last_resort:
            if handler.main.breaker is not None and not self._may_try(work):
                return
            record = replace(work.record, attempt=state.attempts + 1)
            began = self._clock.now()
            now_runs(record)
            try:
                await isolated(self._calls[handler.name][0], record)
            except BaseException as error:  # SystemExit of a handler must not end the relay
                if work.held.ended:
                    self._breakers.inconclusive(handler.name, work.trial)
                    raise
                if not isinstance(error, Snooze):
                    if work.span is not None:
                        spans.mark_failed(work.span, error)
                    now = self._clock.now()
                    self._tally.failed(now, record.kind, now - began)
                self._failed(work, error)
            else:
                self._breakers.succeeded(handler.name, work.trial)
                state.ended = "done"
        if state.last_resort:
            await self._fall_back(work)

    def _may_try(self, work: _Attempt) -> bool:
        """Ask the breaker of the handler; if it is open, the handler is called later."""
        state, name = work.state, work.handler.name
        freely, trials, _ = self._breakers.claimable([name])
        if trials:
            work.trial = True
            self._breakers.begin_trial(name)
        elif not freely:
            state.due = self._now() + self._breakers.until_trial(name)
            if not state.error.startswith(BREAKER_OPEN):
                state.error = f"{BREAKER_OPEN}; {state.error}" if state.error else BREAKER_OPEN
        return bool(freely or trials)

    def _failed(self, work: _Attempt, error: BaseException) -> None:
        record, state, trial = work.record, work.state, work.trial
        retry, breakers, name = work.handler.retry, self._breakers, work.handler.name
        if isinstance(error, Snooze):
            breakers.inconclusive(name, trial)
            state.due = self._now() + error.delay
            self._emit(RecordSnoozed, record, work.lane, name, error.delay)
            return
        bare = isinstance(error, Reject)
        secret = record.sealed is not None
        state.error = text_of(error, bare=bare, secret=secret)
        state.where = "" if bare else traceback_of(error, secret=secret)
        unfit = isinstance(error, RecordUnfit)
        if (bare and not unfit) or is_permanent(error, retry):
            state.attempts += 1
            breakers.inconclusive(name, trial)
            state.last_resort = True
            return
        if unfit:  # that says nothing about the receiver
            breakers.inconclusive(name, trial)
        else:
            breakers.failed(name, trial)
        if trial and not unfit:  # it tests the receiver, so it is not an attempt of the record
            delay = breakers.until_trial(name) + AFTER_TRIAL
        else:
            state.attempts += 1
            if retry.exhausted(state.attempts):
                state.last_resort = True
                return
            delay = retry.delay(state.attempts, self._random.random())
        delay = max(delay, asked_wait(error, RETRY_AFTER_MAX))
        state.due = self._now() + delay
        said = (name, state.attempts, state.error, delay, state.where)
        self._emit(RecordRetried, record, work.lane, *said)

    async def _fall_back(self, work: _Attempt) -> None:
        record, state, name = work.record, work.state, work.handler.name
        fallback = self._calls[name][1]
        if fallback is None:
            state.ended = "gave up"
            return
        failed = FailedRecord(replace(record, attempt=state.attempts), state.error)
        now_runs(failed.record)
        try:
            await isolated(fallback, failed)
        except BaseException as error:
            if work.held.ended:
                raise
            if isinstance(error, Snooze):
                state.due = self._now() + error.delay
                self._emit(RecordSnoozed, record, work.lane, name, error.delay)
                return
            state.ended = "gave up"
            secret = record.sealed is not None
            told = text_of(error, bare=isinstance(error, Reject), secret=secret)
            state.error += f"; its fallback: {told}"
        else:
            state.ended = "fell back"
            self._emit(RecordFellBack, record, work.lane, name, state.attempts, state.error)

    def _note_breaker(self, handler: str, state: str) -> None:
        self._events.emit(BreakerChanged(self._source, handler, state))

    def _emit_dead(self, record: Record, lane: str, *values: Any) -> None:
        self._tally.died(record.kind)
        self._emit(RecordDead, record, lane, *values)

    def _emit(self, kind: Any, record: Record, lane: str, *values: Any) -> None:
        if self._events.wants(kind):
            about = (record.id, record.kind, record.key)
            self._events.emit(kind(self._source, self._relay, *about, *values, lane=lane))


def _ended(
    handlers: tuple[RecordHandler, ...], states: list[HandlerProgress], how: str
) -> tuple[str, ...]:
    """The names of the handlers that ended in this way."""
    pairs = zip(handlers, states, strict=True)
    return tuple([handler.name for handler, state in pairs if state.ended == how])
