"""One run of a worker: claim jobs, hand them to the executor, and decide how each one ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pollwise.durations import seconds
from pollwise.errors import Cancelled, LeaseLost, Reject, Snooze
from pollwise.queues.base import Queue
from pollwise.queues.limits.record import KindLimits
from pollwise.queues.schedules.record import Schedule
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import (
    BreakerChanged,
    Events,
    HandlerStuck,
    JobCancelled,
    JobDead,
    JobDone,
    JobGivenBack,
    JobIsolated,
    JobLocked,
    JobLost,
    JobRetried,
    JobSnoozed,
    JobStarted,
    JobTakenOver,
    JobUnhandled,
    QueueMeasured,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from pollwise.runtime.executor.background import to_its_end
from pollwise.runtime.executor.breakers import Breakers
from pollwise.runtime.executor.control.isolation import ALONE_FOR
from pollwise.runtime.executor.control.run_control import begin_run
from pollwise.runtime.executor.executor import Executor
from pollwise.runtime.executor.handlers import (
    Handler,
    Middleware,
    Proceed,
    call_of,
    is_permanent,
    text_and_traceback,
    text_of,
)
from pollwise.runtime.executor.locked import LOCKED_FOR, LockedReports
from pollwise.runtime.executor.work import Held
from pollwise.runtime.jobs import Claim, Job, Renewal, Settlement
from pollwise.runtime.loop import POLL_RETRY, Batch
from pollwise.runtime.tracing import spans
from pollwise.worker.declared.breakers import OPEN_BREAKER, WorkerBreakers
from pollwise.worker.declared.limits import WorkerLimits
from pollwise.worker.declared.schedules import WorkerSchedules
from pollwise.worker.declared.unfit import PayloadUnfit, UnfitJobs
from pollwise.worker.flows.taking import READ_AGAIN, BeforeReader, ResultsUnread
from pollwise.worker.measuring import MEASURE, MEASURE_EVERY, QueueMeasurer
from pollwise.worker.once import ONCE_RETRY, OnceOnly, RunSummary, hold_of
from pollwise.worker.options import WorkerRunOptions
from pollwise.worker.places import ClaimCall, LimitPlaces
from pollwise.worker.presence import Presence
from pollwise.worker.progress import ProgressReports
from pollwise.worker.results import ResultRetention, safe_traceback
from pollwise.worker.unhandled import UnhandledKinds

if TYPE_CHECKING:
    from pollwise.worker.processes.pool import ProcessPool

#: Delay of a job that has no handler here, in seconds, doubled each time: others may claim it.
DELAY_FIRST, DELAY_MAX = 1.0, 60.0
#: How many jobs that blocked the event loop are remembered.
BLOCKED_MAX = 1000


@dataclass(slots=True, eq=False)
class HeldJob(Held):
    """A claimed job, until it is settled.

    trial: it is the one job that a half-open breaker allows.
    """

    claim: Claim
    trial: bool = False

    def headers(self) -> list[Mapping[str, str]]:
        return [self.claim.job.headers]


class WorkerRun:
    """A running worker."""

    what = "worker"

    def __init__(
        self,
        queue: Queue,
        name: str,
        options: WorkerRunOptions,
        handlers: Mapping[str, Handler],
        middleware: Sequence[Middleware],
        clock: Clock,
        events: Events,
        processes: ProcessPool | None = None,
        *,
        once: RunSummary | None = None,
        schedules: Mapping[str, Schedule] | None = None,
        limits: Mapping[str, KindLimits] | None = None,
    ) -> None:
        polling = options.polling.for_source(queue.capabilities.long_poll)
        options = replace(options, polling=polling)
        self.source: str = queue.name
        self._queue = queue
        self._name = name
        self._options = options
        self._handlers = handlers
        self._clock = clock
        self._events = events
        self._executor: Executor[HeldJob, Claim] = Executor(
            self,
            queue,
            name,
            options,
            clock,
            events,
            prefetch=options.prefetch,
            prefetch_bytes=options.prefetch_bytes,
            max_runs=options.max_jobs,
            wants=frozenset(handlers),
            retry=POLL_RETRY if once is None else ONCE_RETRY,
        )
        if options.hints and queue.capabilities.cancel:
            self._executor.leases.listen(queue.hints())
        self._reports = ProgressReports(
            queue, self._executor.lease, self._executor.leases.report_soon
        )
        self._calls: dict[str, Proceed] = {
            kind: self._call_of(handler, middleware, processes)
            for kind, handler in handlers.items()
        }
        self._processes = processes
        if processes is not None:
            processes.on_free = self._executor.polls.hint
        self._before = BeforeReader(queue, handlers)
        self._results = ResultRetention(queue, handlers, self._executor.pruning)
        self._breakers = Breakers(handlers, clock, self._note_breaker)
        self._shared = WorkerBreakers(queue, name, self._breakers, self._executor, clock, events)
        self._trials: set[str] = set()  # kinds whose next job is the trial of their breaker
        self._locked = LockedReports(clock)
        self._unfit = UnfitJobs(queue, handlers, clock)
        self._unhandled = UnhandledKinds(queue, name, handlers, clock, events)
        declared = schedules or {}
        self._presence = Presence(
            queue, name, handlers, options, self._executor, self._breakers, clock, events,
            tuple(declared),
        )  # fmt: skip
        self._schedules = WorkerSchedules(
            queue, name, handlers, declared, self._executor, clock, events, hints=options.hints
        )
        self._limits = WorkerLimits(queue, name, handlers, limits or {}, events)
        self._once = (
            None if once is None else OnceOnly(self._executor, self._limits, self._unhandled, once)
        )
        self._places = LimitPlaces(queue, self._executor, clock, ahead=options.prefetch is None)
        self._tally = self._presence.tally
        self._measurer = QueueMeasurer(queue.name)
        self._executor.chores.add(MEASURE, MEASURE_EVERY, self._measure)
        self._executor.on_run = self._ran
        self._hinted = 0  # polls that a hint started
        self._given_back = 0
        self._blocked: dict[str, str] = {}  # by job, how it blocked the event loop when it was lost
        self.stop: Callable[[], None] = self._executor.stop
        self.state: Callable[[], dict[str, Any]] = self._executor.state
        self.close_queue: Callable[[], Awaitable[None]] = self._executor.close_store

    def _call_of(
        self, handler: Handler, middleware: Sequence[Middleware], processes: ProcessPool | None
    ) -> Proceed:
        timeout, place = self._options.timeout, None
        if processes is not None and handler.process:
            place = partial(processes.place, handler.kind, handler.result_ttl is not None)
        limit = None if timeout is None else seconds(timeout, "timeout")
        threads, stuck = self._executor.threads, self._report_stuck
        return call_of(handler, threads, limit, middleware, place, stuck)

    def _report_stuck(self, job: Any, after: float) -> None:
        work = f"job {job.id} of kind {job.kind}"
        self._events.emit(HandlerStuck(self.source, work, after))

    @property
    def recycled(self) -> str:
        return self._executor.recycling.reason

    async def main(self) -> None:
        """Work until stopped. Cancelling it stops without grace; nothing stays claimed."""
        kinds, options = tuple(self._handlers), self._options
        polling = repr(options.polling)
        self._events.emit(
            WorkerStarted(self.source, self._name, kinds, options.concurrency, polling)
        )
        try:
            async with self._executor as executor:
                if self._once is None:
                    await self._presence.begin()
                if options.export_queue and self._events.wants(QueueMeasured):
                    executor.chores.wake(MEASURE)
                    executor.chores.hasten(MEASURE, 0.0)
                async for claims in executor.polls:
                    executor.take([self._held(claim) for claim in claims])
                    executor.pruning.after_poll(bool(claims))
                    await self._look_for_unhandled(bool(claims))
                    await self._presence.after_poll(bool(claims))
                    await self._schedules.after_poll()
                    if self._once is not None:
                        await self._once.after_poll(bool(claims))
                    await executor.room_for_a_claim()
        finally:
            self._schedules.end()
            try:
                if self._processes is not None:
                    await self._processes.close()
                await to_its_end(self._shared.end())
                await to_its_end(self._presence.end())
            finally:
                self._events.emit(WorkerStopped(self.source, self._name, self._given_back))

    async def _measure(self) -> None:
        self._events.emit(await self._measurer.measured(self._queue))

    async def _look_for_unhandled(self, found: bool) -> None:
        before, self._hinted = self._hinted, self._executor.polls.counts.hinted
        if not found:
            await self._unhandled.look(self._hinted > before)

    def stopping(self, running: int, grace: float) -> None:
        self._events.emit(WorkerStopping(self.source, self._name, running, grace))

    # Claiming

    async def claim(self, hold: float) -> Batch[Claim]:
        """The poll: claim as many jobs as there is room for."""
        limit = await self._executor.room()
        if self._once is not None:
            hold = hold_of(self._queue.capabilities)
        hold = await self._schedules.before_claim(hold)
        await self._limits.before_claim()
        await self._shared.before_claim()
        self._places.begin()
        kinds, trials, next_trial = self._breakers.claimable(self._handlers)
        if next_trial is not None:
            self._executor.polls.poll_by(next_trial)
        self._trials = set(trials)
        calls: list[ClaimCall] = [([kind], 1, 0.0) for kind in trials]
        calls += self._places.divided(kinds, limit, hold, self._processes)
        if calls and not self._queue.capabilities.kinds:
            calls = [(None, limit, hold)]
        claims: list[Claim] = []
        empty: set[str] = set()  # the kinds of which no more are ready
        full = False  # a claim of limited kinds found all that it asked for
        try:
            for wanted, most, held in calls:
                limited = self._places.among(wanted or ())
                most = min(most, self._places.room(wanted or (), limit) - len(claims))
                ahead = len(claims) + most > self._executor.free()
                alone = any(claim.suspect for claim in claims)
                if wanted is not None and empty.issuperset(wanted):
                    continue
                if ahead and not limited and self._places.among(c.job.kind for c in claims):
                    continue  # the next free handler is for those that are first in the store
                if most > 0 and not alone and not self._executor.stopping:
                    held = 0.0 if claims else held
                    call = self._queue.claim(
                        self._name, most, self._executor.lease, held, wanted, ahead=ahead
                    )
                    found = await (self._executor.unless_stopped(call) if held else call)
                    claims += found
                    if len(found) < most:
                        empty.update(wanted or ())
                    full = full or (bool(limited) and len(found) == most)
        except BaseException:  # what was claimed before the failure must not get lost
            self._executor.take([self._held(claim) for claim in claims])
            raise
        if trials:
            self._trials = await self._shared.take_trials(self._trials, claims)
        # How long jobs had been due, by the clock of the store: ours may be minutes off.
        waits = tuple([max(c.until - self._executor.lease - c.job.run_at, 0.0) for c in claims])
        if claims:
            self._tally.found(self._clock.now(), [c.job.kind for c in claims], waits)
        self._places.end(self._handlers)
        # After one that runs alone there may be more, however many fitted.
        full = full or any(claim.suspect for claim in claims)
        return Batch(claims, len(claims) if full else self._executor.ahead.full_at(limit), waits)

    def _held(self, claim: Claim) -> HeldJob:
        """A claim to hold; with its settlement, if it is not to be run."""
        job = claim.job
        if claim.lapsed_from:
            self._emit(JobTakenOver, job, claim.lapsed_from)
        held = HeldJob(job.id, claim)
        held.size = claim.size
        if job.unreadable is not None:
            held.settlement = self._dead(claim, job.unreadable)
            return held
        if job.locked is not None:
            held.settlement = self._give_back_locked(claim, job.locked)
            return held
        handler = self._handlers.get(job.kind)
        if handler is None:
            held.settlement = self._turn_away(claim)
            return held
        if job.kind in self._trials:
            self._trials.remove(job.kind)
            held.trial = True
            self._breakers.begin_trial(job.kind)
        elif handler.breaker is not None and not self._breakers.closed(job.kind):
            # It opened during the claim, or the store cannot select kinds.
            held.settlement = self.give_back(held, OPEN_BREAKER)
            return held
        if handler.retry.attempts is not None and job.attempt > handler.retry.attempts:
            self._breakers.inconclusive(job.kind, held.trial)
            why = "died or lost its lease"
            if not self._queue.capabilities.uncounted:
                why += ", or gave it back,"
            error = f"its worker {why} {job.attempt - 1} times"
            blocked = self._blocked.pop(job.id, "") or self._executor.blocked(job.id)
            if blocked:
                error += f"; in this worker, its handler {blocked}"
            held.settlement = self._dead(held.claim, error)
        if claim.suspect and held.settlement is None:
            held.alone = True
            self._emit(JobIsolated, job, ALONE_FOR)
            self._presence.write_soon()
        return held

    # Handling

    async def handle(self, held: HeldJob) -> Settlement | None:
        job = held.claim.job
        if self._events.wants(JobStarted):
            self._emit(JobStarted, job, self._waited(held))
        held.control = control = self._reports.control()
        begin_run(job, control)
        try:
            if self._before.wanted(job):
                await self._before.read(job, control)
            if (tracer := spans.tracer()) is None:
                value = await self._calls[job.kind](job)
            else:
                about = (self.source, job, job.attempt, self._waited(held))
                with spans.process_span(tracer, *about, self._options.trace_context):
                    value = await self._calls[job.kind](job)
        except ResultsUnread as error:
            return self._give_back_unread(held, error)
        except PayloadUnfit as error:
            if (end := await self._unfit.settlement(held.claim)) is None:
                raise
            self._breakers.inconclusive(job.kind, held.trial)
            self._emit(JobRetried, job, error.reason, end.delay, 0.0)
            return end
        finally:
            control.over = True
            if control.has_written:
                self._reports.ended(held)
        if held.ended == "lost":  # it went on although it was cancelled
            return None
        if control.seen and self._handlers[job.kind].plain:
            return self.cancelled(held)  # it saw that somebody asked for it, and returned
        end = self._results.settlement(held.claim, value)
        self._breakers.succeeded(job.kind, held.trial)
        if self._events.wants(JobDone):
            self._emit(JobDone, job, self._clock.now() - (held.began or 0.0))
        if end is not None:
            return end
        held.may_wait = job.key is None
        return Settlement.done(held.claim)

    def _waited(self, held: HeldJob) -> float:
        """How long a job had been due when its run began, in seconds."""
        claim = held.claim
        due = held.taken - max(claim.until - self._executor.lease - claim.job.run_at, 0.0)
        return max(self._clock.now() - due, 0.0)

    def failed(self, held: HeldJob, error: BaseException) -> Settlement:
        job = held.claim.job
        retry = self._handlers[job.kind].retry
        text, where = text_and_traceback(error, secret=job.sealed is not None)
        if isinstance(error, Snooze):
            self._breakers.inconclusive(job.kind, held.trial)
            self._emit(JobSnoozed, job, error.delay)
            return Settlement.give_back(held.claim, error.delay)
        if isinstance(error, Cancelled):
            return self.cancelled(held, error)
        now = self._clock.now()
        took = now - (held.began or 0.0)
        self._tally.failed(now, job.kind, took)
        self._places.ran(job.kind, took)
        if isinstance(error, Reject):
            self._breakers.inconclusive(job.kind, held.trial)
            return self._dead(held.claim, text_of(error, bare=True))
        if is_permanent(error, retry):
            self._breakers.inconclusive(job.kind, held.trial)
            return self._dead(held.claim, text, where)
        self._breakers.failed(job.kind, held.trial)
        if held.trial and self._queue.capabilities.uncounted:
            # What the handler depends on has failed, so this does not count as an attempt.
            end = Settlement.give_back(held.claim, self._breakers.until_trial(job.kind))
        elif retry.exhausted(job.attempt):
            return self._dead(held.claim, text, where)
        else:
            delay = retry.delay(job.attempt, self._executor.random.random())
            end = Settlement.retry(held.claim, delay, text)
        self._emit(JobRetried, job, text, end.delay, took, where)
        return end

    def give_back(self, held: HeldJob, reason: str) -> Settlement:
        job = held.claim.job
        self._given_back += 1
        self._breakers.inconclusive(job.kind, held.trial)
        self._emit(JobGivenBack, job, reason)
        # A store that selects kinds need not delay the job: other workers may claim it.
        wait = reason == OPEN_BREAKER and not self._queue.capabilities.kinds
        return Settlement.give_back(held.claim, self._breakers.until_trial(job.kind) if wait else 0)

    def _dead(self, claim: Claim, error: str, traceback: str = "") -> Settlement:
        self._tally.died(claim.job.kind)
        self._emit(JobDead, claim.job, error, traceback)
        return Settlement.dead(claim, error, safe_traceback(traceback))

    def _give_back_locked(self, claim: Claim, reason: str) -> Settlement:
        """Settle a job whose payload this worker cannot decode."""
        if self._locked.due(reason):
            about = (self._name, claim.job.id, claim.job.kind)
            self._events.emit(JobLocked(self.source, *about, reason, LOCKED_FOR))
        self._given_back += 1
        self._emit(JobGivenBack, claim.job, reason)
        return Settlement.give_back(claim, LOCKED_FOR)

    def _give_back_unread(self, held: HeldJob, error: ResultsUnread) -> Settlement:
        """Settle a job that was not run, because the results before it could not be read."""
        if error.locked:
            self._breakers.inconclusive(held.claim.job.kind, held.trial)
            return self._give_back_locked(held.claim, error.reason)
        return replace(self.give_back(held, error.reason), delay=READ_AGAIN)

    def _turn_away(self, claim: Claim) -> Settlement:
        """Settle a job without a handler: give it back, or bury what is not a Pollwise job.

        Only stores that cannot select kinds deliver such jobs.
        """
        job = claim.job
        if job.kind == self._queue.foreign_kind:
            return self._dead(
                claim,
                "not a Pollwise job: it has no kind, or its body is not JSON. To take such "
                f"messages, register a handler for the kind {job.kind!r}",
            )
        # It is given back until another worker takes it or the store drops it.
        delay = min(DELAY_FIRST * 2.0 ** min(job.attempt - 1, 10), DELAY_MAX)
        self._emit(JobUnhandled, job, delay)
        return Settlement.give_back(claim, delay)

    def _ran(self, held: HeldJob, now: float, took: float) -> None:
        """Count a run that returned; unless it was cancelled, it was done."""
        self._places.ran(held.claim.job.kind, took)
        if held.settlement is not None and held.settlement.action == "done":
            self._tally.done(now, held.claim.job.kind, took)

    def _note_breaker(self, kind: str, state: str) -> None:
        self._events.emit(BreakerChanged(self.source, kind, state))
        self._shared.changed(kind, state)

    # Leases

    async def settle(self, settlements: list[Settlement]) -> Collection[str]:
        await self._reports.before(settlements)
        try:
            await self._queue.settle(settlements)
        except LeaseLost as error:
            return error.lost
        return ()

    async def renew(self, held: Sequence[HeldJob]) -> Renewal:
        return await self._reports.renew(held)

    def label(self, held: HeldJob) -> str:
        return f"job {held.claim.job.id} of kind {held.claim.job.kind}"

    def cancelled(self, held: HeldJob, error: BaseException | None = None) -> Settlement:
        self._breakers.inconclusive(held.claim.job.kind, held.trial)
        self._emit(JobCancelled, held.claim.job)
        keep = self._results.ttl(held.claim.job.kind)
        if error is None or isinstance(error, asyncio.CancelledError):
            return Settlement.cancelled(held.claim, keep=keep)
        secret = held.claim.job.sealed is not None
        said = error.reason if isinstance(error, Cancelled) else text_of(error, secret=secret)
        return Settlement.cancelled(held.claim, said, keep=keep)

    def lost(self, held: HeldJob) -> None:
        self._reports.forget(held)
        if held.settlement is None:
            self._breakers.inconclusive(held.claim.job.kind, held.trial)
        if held.blocked and len(self._blocked) < BLOCKED_MAX:
            self._blocked[held.claim.job.id] = held.blocked
        reason = held.blocked and f"its handler {held.blocked}"
        self._emit(JobLost, held.claim.job, reason)

    def _emit(self, kind: Any, job: Job, *values: Any) -> None:
        if self._events.wants(kind):
            self._events.emit(kind(self.source, self._name, job.id, job.kind, job.attempt, *values))
