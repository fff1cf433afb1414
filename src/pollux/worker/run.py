"""One run of a worker: claim -> handle -> settle, until it is told to stop.

What it holds is in one table, from claim to settlement, so that whatever happens (a stop, a
cancellation, a store that fails) every claim is settled, given back, or known to be lost. Held jobs
are bounded by concurrency and prefetch, never by the backlog.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pollux.chores import Chores
from pollux.clock import Clock
from pollux.core.breaker import Circuit
from pollux.core.retry import Retry
from pollux.core.strategy import Strategy
from pollux.errors import LeaseLost, Reject, Snooze, StoreError
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
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from pollux.hints import Hint
from pollux.jobs import Claim, Settlement
from pollux.loop import Batch, Options, PollLoop
from pollux.queues.base import Queue
from pollux.worker.handlers import Handler, Middleware, Proceed, chain, run_within
from pollux.worker.threads import HandlerThreads

#: How a settlement that the store did not take is tried again.
SETTLE_RETRY = Retry.exponential("100ms", ceiling="5s", attempts=None)
#: Tries to settle while stopping; after that the leases run out by themselves.
SETTLE_TRIES_AT_STOP = 3
#: How often finished jobs that were kept long enough are deleted, in seconds; rides on a poll.
PRUNE_EVERY = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run goes by; every value checked and in seconds."""

    name: str
    polling: Strategy
    concurrency: int
    prefetch: int
    lease: float
    grace: float
    timeout: float | None
    seed: int | None

    @property
    def most(self) -> int:
        """The most jobs that are claimed and not yet handled."""
        return self.concurrency + self.prefetch


@dataclass(slots=True, eq=False)
class Held:
    """A claimed job, until it is settled."""

    claim: Claim
    handler: Handler
    task: asyncio.Task[None] | None = None
    ended: Literal["", "stop", "lost"] = ""


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
        self._circuits: dict[str, Circuit] = {
            kind: handler.breaker.circuit() for kind, handler in handlers.items() if handler.breaker
        }
        self._circuit_states = dict.fromkeys(self._circuits, "closed")
        self._waiting: deque[Held] = deque()
        self._running: dict[str, Held] = {}
        self._settling: dict[str, Settlement] = {}
        self._flush: asyncio.Task[None] | None = None
        self._flush_tries: int | None = None
        self._flush_now = Hint()
        self._chores = Chores(queue.name, clock, events)
        self._chores.add("renew leases", plan.lease / 3, self._renew)
        self._next_prune = 0.0
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._stopping = False
        self._hurry = asyncio.Event()
        self._given_back = 0
        self.poll_loop: PollLoop[Claim] = PollLoop(
            self._claim,
            plan.polling,
            queue.name,
            Options(clock=clock, random=self._random, events=events, hints=queue.hints()),
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
                await self._room_to_claim()
            await self._finish(plan.grace)
        except BaseException:
            # A cancellation, or a store that will never answer: leave at once, but leave nothing.
            await _uncancelled(self._finish(0.0))
            raise

    def stop(self) -> None:
        """Claim no more and finish. A second call ends the grace."""
        if self._stopping:
            self._hurry.set()
        self._stopping = True
        self._room.set()
        self.poll_loop.stop()

    async def _finish(self, grace: float) -> None:
        self._stopping = True
        self.poll_loop.stop()
        self._events.emit(
            WorkerStopping(self._queue.name, self._plan.name, len(self._running), grace)
        )
        while self._waiting:
            self._give_back(self._waiting.popleft(), "the worker stops")
        if self._running and grace > 0:
            await self._all_done_within(grace)
        for held in list(self._running.values()):
            self._end(held, "stop")
        await self._all_ended()
        await self._settled(tries=SETTLE_TRIES_AT_STOP)
        await self._chores.close()
        self._threads.close()
        self._events.emit(WorkerStopped(self._queue.name, self._plan.name, self._given_back))

    async def _all_done_within(self, grace: float) -> None:
        self._idle.clear()
        over = [asyncio.ensure_future(event.wait()) for event in (self._idle, self._hurry)]
        await asyncio.wait(over, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        for waiting in over:
            waiting.cancel()
        await asyncio.gather(*over, return_exceptions=True)

    async def _all_ended(self) -> None:
        """Every task has its end, though a handler may take its time to be cancelled."""
        tasks = [held.task for held in self._running.values() if held.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=max(self._plan.lease, 1.0))
        for held in list(self._running.values()):
            self._running.pop(held.claim.job.id)  # it would not end: its lease is given back
            self._give_back(held, "the worker stops and its handler does not")

    # Claiming

    async def _claim(self, hold: float) -> Batch[Claim]:
        """The poll: claim as many jobs as there is room for, and begin with them."""
        limit = self._room_left()
        kinds, trials = self._claimable()
        claims: list[Claim] = []
        for kind in trials:
            found = await self._queue.claim(self._plan.name, 1, self._plan.lease, 0, [kind])
            if found:
                self._circuits[kind].begin(self._clock.now())
            claims += self._take(found)
        if kinds and len(claims) < limit:
            most = limit - len(claims)
            claims += self._take(
                await self._queue.claim(self._plan.name, most, self._plan.lease, hold, kinds)
            )
        if not claims:
            await self._prune()
        now = self._clock.epoch()
        waits = tuple(max(now - claim.job.run_at, 0.0) for claim in claims)
        return Batch(claims, limit, waits)

    def _claimable(self) -> tuple[list[str], list[str]]:
        """The kinds to claim freely, and those whose breaker lets one trial job through."""
        if not self._circuits:
            return list(self._handlers), []
        now = self._clock.now()
        freely, trials = [], []
        for kind in self._handlers:
            circuit = self._circuits.get(kind)
            if circuit is None or circuit.state(now) == "closed":
                freely.append(kind)
            elif circuit.allows(now):
                self._note_circuit(kind)
                trials.append(kind)
            elif circuit.retry_at is not None and circuit.retry_at > now:
                self._queue.hints().notify_at(circuit.retry_at)
        return freely, trials

    def _take(self, claims: list[Claim]) -> list[Claim]:
        """Hold claims from this moment on, and start what there is a place for."""
        if claims:
            self._waiting.extend(Held(claim, self._handlers[claim.job.kind]) for claim in claims)
            self._chores.wake("renew leases")
            self._start_waiting()
        return claims

    def _room_left(self) -> int:
        held = len(self._waiting) + len(self._running) + self._threads.abandoned
        # Jobs whose settlement is under way do not hold up the next claim, but they are bounded.
        return min(self._plan.most - held, 2 * self._plan.most - held - len(self._settling))

    async def _room_to_claim(self) -> None:
        """Wait until a claim is worth it: half of the prefetch is used up."""
        wanted = max(self._plan.prefetch // 2, 1)
        while self._room_left() < wanted and not self._stopping:
            self._room.clear()
            await self._room.wait()

    async def _prune(self) -> None:
        now = self._clock.now()
        if self._queue.keep is not None and now >= self._next_prune:
            self._next_prune = now + PRUNE_EVERY
            await self._queue.prune()

    # Handling

    def _start_waiting(self) -> None:
        while self._waiting and not self._stopping:
            if len(self._running) + self._threads.abandoned >= self._plan.concurrency:
                return
            self._start(self._waiting.popleft())

    def _start(self, held: Held) -> None:
        job, retry = held.claim.job, held.handler.retry
        if retry.attempts is not None and job.attempt > retry.attempts:
            died = f"its worker died or lost its lease {job.attempt - 1} times"
            self._dead(held, died)
            return
        self._running[job.id] = held
        held.task = asyncio.get_running_loop().create_task(self._work(held))

    async def _work(self, held: Held) -> None:
        """Run one handler to its verdict. Nothing a handler raises leaves this method."""
        began = self._clock.now()
        if self._events.wants(JobStarted):
            waited = max(self._clock.epoch() - held.claim.job.run_at, 0.0)
            self._emit(JobStarted, held, waited)
        handler, job = held.handler, held.claim.job
        limit = handler.timeout if handler.timeout is not None else self._plan.timeout
        try:
            await run_within(self._calls[job.kind], job, limit, handler.plain)
        except BaseException as error:  # noqa: BLE001 - even SystemExit of a handler is its own
            if held.ended:
                self._note_ended(held)
            else:
                self._failed(held, error, self._clock.now() - began)
        else:
            self._done(held, self._clock.now() - began)
        finally:
            self._running.pop(job.id, None)
            self._place_is_free()

    def _done(self, held: Held, took: float) -> None:
        circuit = self._circuits.get(held.claim.job.kind)
        if circuit is not None:
            circuit.succeeded(self._clock.now())
            self._note_circuit(held.claim.job.kind)
        self._settle(Settlement.done(held.claim))
        if self._events.wants(JobDone):
            self._emit(JobDone, held, took)

    def _failed(self, held: Held, error: BaseException, took: float) -> None:
        job, retry = held.claim.job, held.handler.retry
        if isinstance(error, Snooze):
            self._no_verdict(job.kind)
            self._settle(Settlement.give_back(held.claim, error.delay))
            self._emit(JobSnoozed, held, error.delay)
            return
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, Reject):
            self._no_verdict(job.kind)
            self._dead(held, error.reason)
        # SystemExit and its like are no Exception, but no reason to give the job up either.
        elif isinstance(error, Exception) and retry.classify(error) == "permanent":
            self._no_verdict(job.kind)
            self._dead(held, text)
        else:
            self._count_failure(job.kind)
            if retry.exhausted(job.attempt):
                self._dead(held, text)
            else:
                delay = retry.delay(job.attempt, self._random.random())
                self._settle(Settlement.retry(held.claim, delay, text))
                self._emit(JobRetried, held, text, delay, took)

    def _dead(self, held: Held, error: str) -> None:
        self._settle(Settlement.dead(held.claim, error))
        self._emit(JobDead, held, error)

    def _end(self, held: Held, reason: Literal["stop", "lost"]) -> None:
        held.ended = reason
        if held.task is not None:
            held.task.cancel()

    def _note_ended(self, held: Held) -> None:
        """Our own cancellation came through: give the job back, unless it is lost anyway."""
        self._no_verdict(held.claim.job.kind)
        if held.ended == "stop":
            self._give_back(held, "the worker stops")

    def _give_back(self, held: Held, reason: str) -> None:
        self._given_back += 1
        self._settle(Settlement.give_back(held.claim))
        self._emit(JobGivenBack, held, reason)

    def _place_is_free(self) -> None:
        self._start_waiting()
        self._room.set()
        if not self._running:
            self._idle.set()

    # Breakers

    def _count_failure(self, kind: str) -> None:
        circuit = self._circuits.get(kind)
        if circuit is None:
            return
        circuit.failed(self._clock.now())
        self._note_circuit(kind)
        if circuit.state(self._clock.now()) == "open":
            kept: deque[Held] = deque()
            for held in self._waiting:
                if held.claim.job.kind == kind:
                    self._give_back(held, "the breaker of its kind is open")
                else:
                    kept.append(held)
            self._waiting = kept

    def _no_verdict(self, kind: str) -> None:
        circuit = self._circuits.get(kind)
        if circuit is not None:
            circuit.abandoned(self._clock.now())

    def _note_circuit(self, kind: str) -> None:
        state = self._circuits[kind].state(self._clock.now())
        if state != self._circuit_states[kind]:
            self._circuit_states[kind] = state
            self._events.emit(BreakerChanged(self._queue.name, kind, state))

    # Leases and settlements

    async def _renew(self) -> None:
        """The chore: renew every lease that is held, in one call."""
        held = {h.claim.job.id: h for h in (*self._running.values(), *self._waiting)}
        claims = [h.claim for h in held.values()]
        claims += [s.claim for s in self._settling.values()]
        if not claims:
            self._chores.rest("renew leases")
            return
        try:
            await self._queue.extend(claims, self._plan.lease)
        except LeaseLost as error:
            for job_id in error.lost:
                if job_id in held:
                    self._lose(held[job_id])

    def _lose(self, held: Held) -> None:
        self._emit(JobLost, held)
        if held in self._waiting:
            self._waiting.remove(held)
        else:
            self._end(held, "lost")

    def _settle(self, settlement: Settlement) -> None:
        """Queue a settlement; all that gather while one batch is on its way go as the next."""
        self._settling[settlement.claim.job.id] = settlement
        if self._flush is None:
            self._flush = asyncio.get_running_loop().create_task(self._flush_all())

    async def _flush_all(self) -> None:
        failures = 0
        try:
            while self._settling and (self._flush_tries is None or failures < self._flush_tries):
                batch = list(self._settling.values())
                try:
                    await self._settle_batch(batch)
                    failures = 0
                except StoreError as error:
                    failures += 1
                    self._events.emit(ChoreFailed(self._queue.name, "settle", str(error)))
                    delay = SETTLE_RETRY.delay(failures, self._random.random())
                    await self._clock.sleep(delay, self._flush_now)
                self._room.set()
        finally:
            self._flush = None

    async def _settle_batch(self, batch: list[Settlement]) -> None:
        try:
            await self._queue.settle(batch)
        except LeaseLost as error:
            lost = set(error.lost)
            for settlement in batch:
                if settlement.claim.job.id in lost:
                    handler = self._handlers[settlement.claim.job.kind]
                    self._emit(JobLost, Held(settlement.claim, handler))
        for settlement in batch:
            job_id = settlement.claim.job.id
            if self._settling.get(job_id) is settlement:
                del self._settling[job_id]

    async def _settled(self, tries: int) -> None:
        """Everything that is to be settled is; or the store was asked `tries` more times."""
        self._flush_tries = tries
        self._flush_now.give()  # it may sleep out a long retry
        if self._flush is not None:
            await self._flush

    def _emit(self, kind: Any, held: Held, *values: Any) -> None:
        if self._events.wants(kind):
            job = held.claim.job
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


async def _uncancelled(work: Any) -> None:
    """Run `work` to its end, though the task that awaits it is cancelled again meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue
    task.result()
