"""One run of a worker: claim, handle and settle until it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from pollwise.errors import LeaseLost, Reject, Snooze
from pollwise.queues.base import Queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import (
    BreakerChanged,
    Event,
    Events,
    JobCancelled,
    JobDead,
    JobDone,
    JobGivenBack,
    JobLost,
    JobRetried,
    JobSnoozed,
    JobStarted,
    JobUnhandled,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from pollwise.runtime.executor.breakers import Breakers
from pollwise.runtime.executor.executor import Executor, to_its_end
from pollwise.runtime.executor.handlers import (
    Handler,
    Middleware,
    Proceed,
    chain,
    is_permanent,
    run_within,
    text_of,
    traceback_of,
)
from pollwise.runtime.executor.settling import Settler
from pollwise.runtime.executor.starting import RunPlan
from pollwise.runtime.jobs import Claim, Job, Settlement
from pollwise.runtime.loop import Batch

#: Delay of a job that has no handler here, in seconds, doubled each time: others may claim it.
DELAY_FIRST, DELAY_MAX = 1.0, 60.0


@dataclass(slots=True, eq=False)
class HeldJob:
    """A claimed job, until it is settled.

    due: when it was due, in the event loop's time.
    trial: it is the one job that a half-open breaker allows.
    ended: why its handler was cancelled, or why its result no longer counts.
    """

    claim: Claim
    handler: Handler
    due: float
    trial: bool = False
    task: asyncio.Task[None] | None = None
    began: bool = False
    ended: Literal["", "stop", "lost", "cancel"] = ""


class WorkerRun(Executor[HeldJob, Claim]):
    """A running worker."""

    def __init__(
        self,
        queue: Queue,
        plan: RunPlan,
        handlers: Mapping[str, Handler],
        middleware: Sequence[Middleware],
        clock: Clock,
        events: Events,
    ) -> None:
        super().__init__(queue, plan, clock, events, queue.name, frozenset(handlers))
        self._queue = queue
        self._handlers = handlers
        self._calls: dict[str, Proceed] = {
            kind: chain(handler, middleware, self._threads) for kind, handler in handlers.items()
        }
        self._breakers = Breakers(handlers, clock, self._note_breaker)
        self._settling: Settler[Settlement] = Settler(
            self._settle,
            lambda settlement: settlement.claim.job.id,
            queue.name,
            clock,
            events,
            self._random,
            self._room.set,
        )
        # A lease must not expire while its settlement is gathered.
        self._settling.gather(min(queue.gather, plan.lease / 6), queue.gather_up_to, _may_wait)
        self._held_poll: asyncio.Future[list[Claim]] | None = None

    # From start to stop

    def _lifecycle_event(
        self, what: Literal["started", "stopping", "stopped"], grace: float
    ) -> Event:
        plan, name = self._plan, self._queue.name
        if what == "started":
            kinds = tuple(self._handlers)
            return WorkerStarted(name, plan.name, kinds, plan.concurrency, repr(plan.polling))
        if what == "stopping":
            return WorkerStopping(name, plan.name, len(self._running), grace)
        return WorkerStopped(name, plan.name, self._given_back)

    def _stop_polling(self) -> None:
        super()._stop_polling()
        if self._held_poll is not None:
            self._held_poll.cancel()  # the store may hold it for a long time

    async def _settle(self, batch: list[Settlement]) -> None:
        """Settle, and report lost leases."""
        try:
            await self._queue.settle(batch)
        except LeaseLost as error:
            lost = set(error.lost)
            for settlement in batch:
                if settlement.claim.job.id in lost:
                    self._note_lost(settlement.claim)

    # Claiming

    async def _claim(self, hold: float) -> Batch[Claim]:
        """The poll: claim as many jobs as there is room for, and start them."""
        await self._room_for(lambda: 1)  # the room may have shrunk since the last poll
        limit = self._room_left()
        kinds, trials, next_trial = self._breakers.claimable(self._handlers)
        if next_trial is not None:
            self.poll_loop.poll_by(next_trial)
        claims: list[Claim] = []
        if not self._queue.capabilities.kinds:
            if kinds or trials:
                claims = await self._ask(limit, hold, None, trials)
            trials, kinds = [], []
        for kind in trials[: max(limit, 0)]:
            claims += await self._ask(1, 0, [kind], [kind])
        if kinds and len(claims) < limit:
            claims += await self._ask(limit - len(claims), hold, kinds)
        await self._prune()
        return Batch(claims, self._plan.full_at(limit), tuple(map(self._waited, claims)))

    def _waited(self, claim: Claim) -> float:
        """How long a job had been due when it was claimed, by the clock of the store.

        Our own clock may be minutes off, and the pacer uses this value.
        """
        return max(claim.until - self._plan.lease - claim.job.run_at, 0.0)

    async def _ask(
        self, limit: int, hold: float, kinds: list[str] | None, trials: Sequence[str] = ()
    ) -> list[Claim]:
        """Claim and hold jobs; one job for each kind in `trials`."""
        if self._stopping:
            return []
        call = self._queue.claim(self._plan.name, limit, self._plan.lease, hold, kinds)
        claims = await (self._unless_stopped(call) if hold else call)
        self._take(claims, trials)
        return claims

    async def _unless_stopped(self, call: Coroutine[Any, Any, list[Claim]]) -> list[Claim]:
        """Await a claim that the store may hold for a long time; a stop ends it."""
        self._held_poll = poll = asyncio.ensure_future(call)
        try:
            await asyncio.wait([poll])
            return [] if poll.cancelled() else poll.result()
        except asyncio.CancelledError:
            poll.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await to_its_end(poll)
            if not poll.cancelled() and poll.exception() is None:
                self._take(poll.result(), ())  # it returned just before
            raise
        finally:
            self._held_poll = None

    def _take(self, claims: list[Claim], trials: Sequence[str]) -> None:
        """Hold claims, and start as many as there are free handlers."""
        if not claims:
            return
        older, now = self._held(), self._clock.now()
        untried = set(trials)
        for claim in claims:
            kind = claim.job.kind
            if claim.job.id in older:  # our own lease on it had expired
                self._lose(older[claim.job.id])
            if kind not in self._handlers:
                self._turn_away(claim)
                continue
            due = now - self._waited(claim)
            held = HeldJob(claim, self._handlers[kind], due, kind in untried)
            if held.trial:
                untried.discard(kind)
                self._breakers.begin_trial(kind)
            elif not self._breakers.closed(kind):
                # It opened during the claim, or the store cannot select kinds.
                self._give_back_until_trial(held)
                continue
            self._waiting.append(held)
        self._chores.wake("renew leases")
        self._start_waiting()

    # Handling

    def _start(self, held: HeldJob) -> None:
        job, retry = held.claim.job, held.handler.retry
        if retry.attempts is not None and job.attempt > retry.attempts:
            self._breakers.inconclusive(job.kind, held.trial)
            why = "died or lost its lease"
            if not self._queue.capabilities.uncounted:
                why += ", or gave it back,"
            self._dead(held, f"its worker {why} {job.attempt - 1} times")
            return
        self._begin(held, self._work)

    async def _work(self, held: HeldJob) -> None:
        """Run one handler and settle its job. Catches everything that a handler raises."""
        held.began = True
        began = self._clock.now()
        handler, job = held.handler, held.claim.job
        if self._events.wants(JobStarted):
            self._emit(JobStarted, job, max(began - held.due, 0.0))
        limit = handler.timeout if handler.timeout is not None else self._plan.timeout
        raised: BaseException | None = None
        try:
            await run_within(self._calls[job.kind], job, limit, handler.plain)
        except BaseException as error:  # SystemExit of a handler, too, concerns only its job
            raised = error
        took = self._clock.now() - began
        self._note_took(took)
        self._leave(held, raised, took)

    def _leave(self, held: HeldJob, raised: BaseException | None, took: float) -> None:
        """A handler ended: free its slot, and settle its job if the lease is still ours."""
        self._running.pop(held, None)
        if held.ended == "lost":
            self._breakers.inconclusive(held.claim.job.kind, held.trial)
        elif raised is None:
            self._done(held, took)
        elif held.ended == "stop":
            self._breakers.inconclusive(held.claim.job.kind, held.trial)
            self._give_back(held, "the worker stops")
        elif held.ended == "cancel":
            self._cancelled(held)
        else:
            self._failed(held, raised, took)
        self._slot_is_free()

    def _done(self, held: HeldJob, took: float) -> None:
        self._breakers.succeeded(held.claim.job.kind, held.trial)
        self._settling.add(Settlement.done(held.claim))
        self._emit(JobDone, held.claim.job, took)

    def _failed(self, held: HeldJob, error: BaseException, took: float) -> None:
        job, retry = held.claim.job, held.handler.retry
        if isinstance(error, Snooze):
            self._breakers.inconclusive(job.kind, held.trial)
            self._settling.add(Settlement.give_back(held.claim, error.delay))
            self._emit(JobSnoozed, job, error.delay)
        elif isinstance(error, Reject):
            self._breakers.inconclusive(job.kind, held.trial)
            self._dead(held, text_of(error, bare=True))
        elif is_permanent(error, retry):
            self._breakers.inconclusive(job.kind, held.trial)
            self._dead(held, text_of(error), traceback_of(error))
        else:
            self._count_failure(held)
            if retry.exhausted(job.attempt):
                self._dead(held, text_of(error), traceback_of(error))
            else:
                delay = retry.delay(job.attempt, self._random.random())
                self._settling.add(Settlement.retry(held.claim, delay, text_of(error)))
                self._emit(JobRetried, job, text_of(error), delay, took, traceback_of(error))

    def _dead(self, held: HeldJob, error: str, traceback: str = "") -> None:
        self._settling.add(Settlement.dead(held.claim, error))
        self._emit(JobDead, held.claim.job, error, traceback)

    def _give_back(self, held: HeldJob, reason: str, delay: float = 0.0) -> None:
        self._given_back += 1
        self._settling.add(Settlement.give_back(held.claim, delay))
        self._emit(JobGivenBack, held.claim.job, reason)

    def _turn_away(self, claim: Claim) -> None:
        settlement = turned_away(claim, self._queue.foreign_kind)
        self._settling.add(settlement)
        if settlement.action == "dead":
            self._emit(JobDead, claim.job, settlement.error, "")
        else:
            self._emit(JobUnhandled, claim.job, settlement.delay)

    # Breakers

    def _count_failure(self, held: HeldJob) -> None:
        kind = held.claim.job.kind
        self._breakers.failed(kind, held.trial)
        if not self._breakers.closed(kind):
            for waiting in [w for w in self._waiting if w.claim.job.kind == kind]:
                self._waiting.remove(waiting)
                self._give_back_until_trial(waiting)

    def _give_back_until_trial(self, held: HeldJob) -> None:
        # A store that selects kinds need not delay the job: other workers may claim it.
        kinds = self._queue.capabilities.kinds
        delay = 0.0 if kinds else self._breakers.until_trial(held.claim.job.kind)
        self._give_back(held, "the breaker of its kind is open", delay)

    def _note_breaker(self, kind: str, state: str) -> None:
        self._events.emit(BreakerChanged(self._queue.name, kind, state))
        if state != "half-open":  # poll now, to claim again or to plan the trial
            self.poll_loop.hint()

    # Leases

    async def _renew(self) -> None:
        """The chore: renew all held leases in one call."""
        held = self._held()
        claims = {s.claim.job.id: s.claim for s in self._settling.late()} | {
            job_id: h.claim for job_id, h in held.items()
        }
        if not claims:
            self._chores.rest("renew leases")
            return
        renewal = await self._queue.renew(claims.values(), self._plan.lease)
        for job_id in renewal.lost:
            if job_id in held:
                self._lose(held[job_id])
        for job_id in renewal.cancel:
            if job_id in held:
                self._cancel(held[job_id])

    def _held(self) -> dict[str, HeldJob]:
        """Claimed jobs that are not settled yet, by id."""
        running = (held for held in self._running if held.ended != "lost")
        return {held.claim.job.id: held for held in (*running, *self._waiting)}

    def _lose(self, held: HeldJob) -> None:
        if held in self._running:
            self._note_lost(held.claim)
            self._end(held, "lost")
        elif held in self._waiting:
            self._note_lost(held.claim)
            self._waiting.remove(held)
            self._room.set()

    def _cancel(self, held: HeldJob) -> None:
        """Somebody asked to cancel a job: stop its handler once, or do not begin it."""
        if held in self._running and not held.ended:
            self._end(held, "cancel")
        elif held in self._waiting:
            self._waiting.remove(held)
            self._cancelled(held)
            self._room.set()

    def _cancelled(self, held: HeldJob) -> None:
        self._breakers.inconclusive(held.claim.job.kind, held.trial)
        self._settling.add(Settlement.cancelled(held.claim))
        self._emit(JobCancelled, held.claim.job)

    def _note_lost(self, claim: Claim) -> None:
        self._emit(JobLost, claim.job)

    def _emit(self, kind: Any, job: Job, *values: Any) -> None:
        if self._events.wants(kind):
            self._events.emit(
                kind(self._queue.name, self._plan.name, job.id, job.kind, job.attempt, *values)
            )


def _may_wait(settlement: Settlement) -> bool:
    """True if nothing waits for this settlement: no job with the same key, no other worker."""
    return settlement.action == "done" and settlement.claim.job.key is None


def turned_away(claim: Claim, foreign_kind: str | None) -> Settlement:
    """Settle a job without a handler: give it back, or bury what is not a Pollwise job.

    Only stores that cannot select kinds deliver such jobs.
    """
    job = claim.job
    if job.kind == foreign_kind:
        return Settlement.dead(
            claim,
            "not a Pollwise job: it has no kind, or its body is not JSON. To take such messages, "
            f"register a handler for the kind {job.kind!r}",
        )
    # It is given back until another worker takes it or the store drops it.
    delay = min(DELAY_FIRST * 2.0 ** min(job.attempt - 1, 10), DELAY_MAX)
    return Settlement.give_back(claim, delay)
