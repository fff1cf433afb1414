"""One run of a worker: claim -> handle -> settle, until it is told to stop.

What it holds is in one table, from claim to settlement, so that whatever happens (a stop, a
cancellation, a store that fails) every claim is settled, given back, or known to be lost. Held jobs
are bounded by concurrency and prefetch, never by the backlog.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from pollux.chores import Chores
from pollux.clock import Clock
from pollux.errors import LeaseLost, Reject, Snooze
from pollux.events import (
    BreakerChanged,
    ChoreFailed,
    Events,
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
from pollux.jobs import Claim, Job, Settlement
from pollux.loop import Batch, Options, PollLoop
from pollux.queues.base import Queue
from pollux.worker.breakers import Breakers
from pollux.worker.ending import to_its_end
from pollux.worker.handlers import (
    Handler,
    Middleware,
    Proceed,
    chain,
    is_permanent,
    run_within,
    text_of,
    traceback_of,
)
from pollux.worker.held import Held
from pollux.worker.plan import Plan
from pollux.worker.settling import Settling
from pollux.worker.strangers import turned_away
from pollux.worker.threads import HandlerThreads

#: Weight of the newest run in the average time a handler takes.
TOOK_WEIGHT = 0.1
#: Tries to settle while stopping; after that the leases run out by themselves.
SETTLE_TRIES_AT_STOP = 3
#: How long they may take, in seconds.
SETTLE_WITHIN_AT_STOP = 10.0
#: How often finished jobs that were kept long enough are deleted, in seconds; rides on a poll.
PRUNE_EVERY = 60.0
#: The same, while there are some to delete: a store deletes a bounded number at a time.
PRUNE_AGAIN = 1.0


class Run:
    """A worker at work."""

    def __init__(
        self,
        queue: Queue,
        plan: Plan,
        handlers: Mapping[str, Handler],
        middleware: Sequence[Middleware],
        clock: Clock,
        events: Events,
    ) -> None:
        self._queue = queue
        self._plan = plan
        self._handlers = handlers
        self._clock = clock
        self._events = events
        self._random = random.Random(plan.seed)
        self._threads = HandlerThreads(plan.concurrency, plan.name, self._place_is_free)
        self._calls: dict[str, Proceed] = {
            kind: chain(handler, middleware, self._threads) for kind, handler in handlers.items()
        }
        self._breakers = Breakers(handlers, clock, self._note_breaker)
        self._waiting: deque[Held] = deque()
        self._running: dict[Held, None] = {}
        self._room = asyncio.Event()
        self._settling = Settling(
            queue, clock, events, self._random, self._note_lost, self._room.set, plan.lease
        )
        self._chores = Chores(queue.name, clock, events)
        self._chores.add("renew leases", plan.lease / 3, self._renew)
        self._next_prune = 0.0
        self._took: float | None = None  # what a handler takes on average
        self._loop = asyncio.get_running_loop()
        self._held_poll: asyncio.Future[list[Claim]] | None = None
        self._idle = asyncio.Event()
        self._stopping = False
        self._stop_told = False
        self._hurry = asyncio.Event()
        self._given_back = 0
        self.poll_loop: PollLoop[Claim] = PollLoop(
            self._claim,
            plan.polling,
            queue.name,
            Options(
                clock=clock,
                random=self._random,
                events=events,
                hints=queue.hints() if plan.hints else None,
                long_ceiling=plan.long_ceiling,
                wants=frozenset(handlers),
            ),
        )

    # From start to stop

    async def main(self) -> None:
        """Work until stopped. Cancelling it stops without grace; nothing stays claimed."""
        plan = self._plan
        self._events.emit(
            WorkerStarted(
                self._queue.name,
                plan.name,
                tuple(self._handlers),
                plan.concurrency,
                repr(plan.polling),
            )
        )
        try:
            async for _ in self.poll_loop:
                await self._room_for_a_good_claim()
            self._hold_no_more(plan.grace)
            await self._all_done_within(plan.grace)
        finally:
            # After a cancellation, or a store that will never answer, too: leave nothing.
            self._hold_no_more(0.0)
            await to_its_end(self._finish())

    def stop(self) -> None:
        """Claim no more and finish. A second call ends the grace. From any thread."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if not here:
            self._loop.call_soon_threadsafe(self.stop)
            return
        if self._stopping:
            self._hurry.set()
        self._stopping = True
        self._room.set()
        self.poll_loop.stop()
        if self._held_poll is not None:
            self._held_poll.cancel()  # the store may hold it for long

    def _hold_no_more(self, grace: float) -> None:
        """Claim no more, and give back what has not begun."""
        self._stopping = True
        self.poll_loop.stop()
        if not self._stop_told:
            self._stop_told = True
            self._events.emit(
                WorkerStopping(self._queue.name, self._plan.name, len(self._running), grace)
            )
        while self._waiting:
            self._give_back(self._waiting.popleft(), "the worker stops")

    async def _all_done_within(self, grace: float) -> None:
        if not self._running or not grace:
            return
        self._idle.clear()
        over = [asyncio.ensure_future(event.wait()) for event in (self._idle, self._hurry)]
        try:
            await asyncio.wait(over, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in over:
                waiting.cancel()

    async def _finish(self) -> None:
        """Cancel what still runs, settle everything, and close."""
        for held in list(self._running):
            self._end(held, "stop")
        await self._all_ended()
        await self._settling.finish(SETTLE_TRIES_AT_STOP, SETTLE_WITHIN_AT_STOP)
        await self._chores.close()
        self._threads.close()
        self._events.emit(WorkerStopped(self._queue.name, self._plan.name, self._given_back))

    async def _all_ended(self) -> None:
        """Every task has its end, though a handler may take its time to be cancelled."""
        tasks = [held.task for held in self._running if held.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=max(self._plan.lease, 1.0))
        for held in list(self._running):  # it would not end: its lease is given back
            self._running.pop(held)
            self._give_back(held, "the worker stops and its handler does not")
            held.ended = "lost"

    # Claiming

    async def _claim(self, hold: float) -> Batch[Claim]:
        """The poll: claim as many jobs as there is room for, and begin with them."""
        await self._room_for(lambda: 1)  # what is claimed ahead may have shrunk since the last poll
        limit = self._room_left()
        kinds, trials, next_trial = self._breakers.claimable(self._handlers)
        if next_trial is not None:
            self.poll_loop.look_by(next_trial)
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

        Ours may be minutes off, and the pacer goes by this.
        """
        return max(claim.until - self._plan.lease - claim.job.run_at, 0.0)

    async def _ask(
        self, limit: int, hold: float, kinds: list[str] | None, trials: Sequence[str] = ()
    ) -> list[Claim]:
        """Claim, and hold what comes from that moment on; of the kinds in `trials`, one each."""
        if self._stopping:
            return []
        call = self._queue.claim(self._plan.name, limit, self._plan.lease, hold, kinds)
        claims = await (self._unless_stopped(call) if hold else call)
        self._take(claims, trials)
        return claims

    async def _unless_stopped(self, call: Coroutine[Any, Any, list[Claim]]) -> list[Claim]:
        """A claim that the store may hold for long: a stop ends it."""
        self._held_poll = poll = asyncio.ensure_future(call)
        try:
            await asyncio.wait([poll])
            return [] if poll.cancelled() else poll.result()
        except asyncio.CancelledError:
            poll.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await to_its_end(poll)
            if not poll.cancelled() and poll.exception() is None:
                self._take(poll.result(), ())  # it came in just before
            raise
        finally:
            self._held_poll = None

    def _take(self, claims: list[Claim], trials: Sequence[str]) -> None:
        """Hold claims, and start what there is a place for."""
        if not claims:
            return
        older, now = self._held(), self._clock.now()
        untried = set(trials)
        for claim in claims:
            kind = claim.job.kind
            if claim.job.id in older:  # our own lease on it had run out
                self._lose(older[claim.job.id])
            if kind not in self._handlers:
                self._turn_away(claim)
                continue
            due = now - self._waited(claim)
            held = Held(claim, self._handlers[kind], due, kind in untried)
            if held.trial:
                untried.discard(kind)
                self._breakers.begin_trial(kind)
            elif not self._breakers.closed(kind):
                # It opened while the claim was under way, or the store cannot pick kinds.
                self._give_back_until_trial(held)
                continue
            self._waiting.append(held)
        self._chores.wake("renew leases")
        self._start_waiting()

    def _room_left(self) -> int:
        most = self._plan.concurrency + self._plan.ahead(self._took)
        held = len(self._waiting) + len(self._running) + self._threads.abandoned
        # Jobs whose settlement is under way do not hold up the next claim, but they are bounded.
        return min(most - held, 2 * most - held - len(self._settling))

    async def _room_for_a_good_claim(self) -> None:
        """Wait until a claim is worth it: half of what is claimed ahead is used up."""
        # Asked anew each time: as handlers take longer there is less ahead, and less to wait for.
        await self._room_for(lambda: max(self._plan.ahead(self._took) // 2, 1))

    async def _room_for(self, wanted: Callable[[], int]) -> None:
        while self._room_left() < wanted() and not self._stopping:
            self._room.clear()
            await self._room.wait()

    async def _prune(self) -> None:
        """The chore that rides on polls: delete what was kept long enough."""
        now = self._clock.now()
        if self._queue.keep is None or now < self._next_prune:
            return
        self._next_prune = now + PRUNE_EVERY
        try:
            if await self._queue.prune():
                self._next_prune = now + PRUNE_AGAIN
        except Exception as error:
            self._events.emit(ChoreFailed(self._queue.name, "prune", text_of(error)))

    # Handling

    def _start_waiting(self) -> None:
        while self._waiting and not self._stopping:
            if len(self._running) + self._threads.abandoned >= self._plan.concurrency:
                return
            self._start(self._waiting.popleft())

    def _start(self, held: Held) -> None:
        job, retry = held.claim.job, held.handler.retry
        if retry.attempts is not None and job.attempt > retry.attempts:
            self._breakers.no_verdict(job.kind, held.trial)
            why = "died or lost its lease"
            if not self._queue.capabilities.uncounted:
                why += ", or gave it back,"
            self._dead(held, f"its worker {why} {job.attempt - 1} times")
            return
        self._running[held] = None
        held.task = self._loop.create_task(self._work(held))

    async def _work(self, held: Held) -> None:
        """Run one handler to its verdict. Nothing a handler raises leaves this method."""
        held.began = True
        began = self._clock.now()
        handler, job = held.handler, held.claim.job
        if self._events.wants(JobStarted):
            self._emit(JobStarted, job, max(began - held.due, 0.0))
        limit = handler.timeout if handler.timeout is not None else self._plan.timeout
        raised: BaseException | None = None
        try:
            await run_within(self._calls[job.kind], job, limit, handler.plain)
        except BaseException as error:  # even SystemExit of a handler is its own
            raised = error
        took = self._clock.now() - began
        self._took = took if self._took is None else self._took + (took - self._took) * TOOK_WEIGHT
        self._leave(held, raised, took)

    def _leave(self, held: Held, raised: BaseException | None, took: float) -> None:
        """A handler is over: give its place free, and settle its job if it is still ours."""
        self._running.pop(held, None)
        if held.ended == "lost":
            self._breakers.no_verdict(held.claim.job.kind, held.trial)
        elif raised is None:
            self._done(held, took)
        elif held.ended == "stop":
            self._breakers.no_verdict(held.claim.job.kind, held.trial)
            self._give_back(held, "the worker stops")
        else:
            self._failed(held, raised, took)
        self._place_is_free()

    def _done(self, held: Held, took: float) -> None:
        self._breakers.succeeded(held.claim.job.kind, held.trial)
        self._settling.add(Settlement.done(held.claim))
        self._emit(JobDone, held.claim.job, took)

    def _failed(self, held: Held, error: BaseException, took: float) -> None:
        job, retry = held.claim.job, held.handler.retry
        if isinstance(error, Snooze):
            self._breakers.no_verdict(job.kind, held.trial)
            self._settling.add(Settlement.give_back(held.claim, error.delay))
            self._emit(JobSnoozed, job, error.delay)
        elif isinstance(error, Reject):
            self._breakers.no_verdict(job.kind, held.trial)
            self._dead(held, text_of(error, bare=True))
        elif is_permanent(error, retry):
            self._breakers.no_verdict(job.kind, held.trial)
            self._dead(held, text_of(error), traceback_of(error))
        else:
            self._count_failure(held)
            if retry.exhausted(job.attempt):
                self._dead(held, text_of(error), traceback_of(error))
            else:
                delay = retry.delay(job.attempt, self._random.random())
                self._settling.add(Settlement.retry(held.claim, delay, text_of(error)))
                self._emit(JobRetried, job, text_of(error), delay, took, traceback_of(error))

    def _dead(self, held: Held, error: str, traceback: str = "") -> None:
        self._settling.add(Settlement.dead(held.claim, error))
        self._emit(JobDead, held.claim.job, error, traceback)

    def _end(self, held: Held, reason: Literal["stop", "lost"]) -> None:
        held.ended = reason
        if held.task is not None:
            held.task.cancel()
        if not held.began:  # a task that is cancelled before its first step never takes it
            self._leave(held, asyncio.CancelledError(), 0.0)

    def _give_back(self, held: Held, reason: str, delay: float = 0.0) -> None:
        self._given_back += 1
        self._settling.add(Settlement.give_back(held.claim, delay))
        self._emit(JobGivenBack, held.claim.job, reason)

    def _turn_away(self, claim: Claim) -> None:
        settlement = turned_away(claim, self._queue.foreign_kind)
        self._settling.add(settlement)
        if settlement.verdict == "dead":
            self._emit(JobDead, claim.job, settlement.error, "")
        else:
            self._emit(JobUnhandled, claim.job, settlement.delay)

    def _place_is_free(self) -> None:
        self._start_waiting()
        self._room.set()
        if not self._running:
            self._idle.set()

    # Breakers

    def _count_failure(self, held: Held) -> None:
        kind = held.claim.job.kind
        self._breakers.failed(kind, held.trial)
        if not self._breakers.closed(kind):
            for waiting in [w for w in self._waiting if w.claim.job.kind == kind]:
                self._waiting.remove(waiting)
                self._give_back_until_trial(waiting)

    def _give_back_until_trial(self, held: Held) -> None:
        # Where a claim can leave out a kind there is no need to hide its jobs from others.
        kinds = self._queue.capabilities.kinds
        delay = 0.0 if kinds else self._breakers.until_trial(held.claim.job.kind)
        self._give_back(held, "the breaker of its kind is open", delay)

    def _note_breaker(self, kind: str, state: str) -> None:
        self._events.emit(BreakerChanged(self._queue.name, kind, state))
        if state != "half-open":  # the next poll learns when to try again, or claims what it can
            self.poll_loop.hint()

    # Leases

    async def _renew(self) -> None:
        """The chore: renew every lease that is held, in one call."""
        held = self._held()
        claims = self._settling.claims() | {job_id: h.claim for job_id, h in held.items()}
        if not claims:
            self._chores.rest("renew leases")
            return
        try:
            await self._queue.extend(claims.values(), self._plan.lease)
        except LeaseLost as error:
            for job_id in error.lost:
                if job_id in held:
                    self._lose(held[job_id])

    def _held(self) -> dict[str, Held]:
        """What is claimed and not yet settled, as far as we know, by job."""
        running = (held for held in self._running if held.ended != "lost")
        return {held.claim.job.id: held for held in (*running, *self._waiting)}

    def _lose(self, held: Held) -> None:
        if held in self._running:
            self._note_lost(held.claim)
            self._end(held, "lost")
        elif held in self._waiting:
            self._note_lost(held.claim)
            self._waiting.remove(held)
            self._room.set()

    def _note_lost(self, claim: Claim) -> None:
        self._emit(JobLost, claim.job)

    def _emit(self, kind: Any, job: Job, *values: Any) -> None:
        if self._events.wants(kind):
            self._events.emit(
                kind(self._queue.name, self._plan.name, job.id, job.kind, job.attempt, *values)
            )

    def state(self) -> dict[str, Any]:
        """What this run does now, as plain values."""
        return {
            **self.poll_loop.state(),
            "running": len(self._running),
            "waiting": len(self._waiting),
            "settling": len(self._settling),
        }
