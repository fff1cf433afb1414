"""The executor: claims, handles and settles, for a worker and for an outbox's relay.

Held work is in one table from claim to settlement. Whatever happens (a stop, a cancellation, a
failing store), every claim is settled, given back, or known to be lost. The table is bounded by
concurrency and prefetch, never by the backlog.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, Literal, Protocol, TypeVar

from pollwise.runtime.chores import Chores
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import ChoreFailed, Event, Events
from pollwise.runtime.executor.handlers import text_of
from pollwise.runtime.executor.settling import Settler
from pollwise.runtime.executor.starting import RunPlan
from pollwise.runtime.executor.threads import HandlerThreads
from pollwise.runtime.loop import Batch, LoopOptions, PollLoop
from pollwise.runtime.store import WorkStore

#: Weight of the newest run in the average time a handler takes.
TOOK_WEIGHT = 0.1
#: Tries to settle while stopping; after that the leases run out by themselves.
SETTLE_TRIES_AT_STOP = 3
#: How long they may take, in seconds.
SETTLE_WITHIN_AT_STOP = 10.0
#: How often finished work that was kept long enough is deleted, in seconds; happens in a poll.
PRUNE_EVERY = 60.0
#: The same while some are left to delete: a store deletes a bounded number at a time.
PRUNE_AGAIN = 1.0


class HeldWork(Protocol):
    """Claimed work, until it is settled.

    ended: why its task was cancelled, or why its result no longer counts.
    """

    task: asyncio.Task[None] | None
    began: bool
    ended: Literal["", "stop", "lost", "cancel"]


H = TypeVar("H", bound=HeldWork)
C = TypeVar("C")


class Executor(ABC, Generic[H, C]):
    """A running worker or relay; H is what it holds, C what a poll claims."""

    #: Its name in reasons such as "the worker stops".
    what = "worker"
    _settling: Settler[Any]

    def __init__(
        self,
        store: WorkStore[Any],
        plan: RunPlan,
        clock: Clock,
        events: Events,
        source: str,
        wants: frozenset[str] | None,
    ) -> None:
        self._source = source
        self._store = store
        self._plan = plan
        self._clock = clock
        self._events = events
        self._random = random.Random(plan.seed)
        self._threads = HandlerThreads(plan.concurrency, plan.name, self._slot_is_free)
        self._waiting: deque[H] = deque()
        self._running: dict[H, None] = {}
        self._room = asyncio.Event()
        self._chores = Chores(source, clock, events)
        self._chores.add("renew leases", plan.lease / 3, self._renew)
        self._next_prune = 0.0
        self._took: float | None = None  # average duration of a handler
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._stopping = False
        self._stop_emitted = False
        self._hurry = asyncio.Event()
        self._given_back = 0
        self.poll_loop: PollLoop[C] = PollLoop(
            self._claim,
            plan.polling,
            source,
            LoopOptions(
                clock=clock,
                random=self._random,
                events=events,
                hints=store.hints() if plan.hints else None,
                long_interval=plan.long_interval,
                wants=wants,
            ),
        )

    # What differs between worker and relay

    @abstractmethod
    def _lifecycle_event(
        self, what: Literal["started", "stopping", "stopped"], grace: float
    ) -> Event:
        """The event for its start or its end."""

    @abstractmethod
    async def _claim(self, hold: float) -> Batch[C]:
        """The poll: claim as much as there is room for, and start it."""

    @abstractmethod
    async def _renew(self) -> None:
        """The chore: renew every lease that is held, in one call."""

    @abstractmethod
    def _start(self, held: H) -> None:
        """Begin to handle."""

    @abstractmethod
    def _leave(self, held: H, raised: BaseException | None, took: float) -> None:
        """Handling is over: settle the held work, if the lease is still ours."""

    @abstractmethod
    def _give_back(self, held: H, reason: str, delay: float = 0.0) -> None:
        """Settle it as not begun or not finished."""

    # From start to stop

    async def main(self) -> None:
        """Work until stopped. Cancelling it stops without grace; nothing stays claimed."""
        grace = self._plan.grace
        self._events.emit(self._lifecycle_event("started", grace))
        try:
            async for _ in self.poll_loop:
                await self._room_for_a_good_claim()
            self._hold_no_more(grace)
            await self._all_done_within(grace)
        finally:
            # Also after a cancellation or a permanent error of the store: leave nothing claimed.
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
        self._stop_polling()

    def _stop_polling(self) -> None:
        self.poll_loop.stop()

    def _hold_no_more(self, grace: float) -> None:
        """Claim no more, and give back what has not begun."""
        self._stopping = True
        self.poll_loop.stop()
        if not self._stop_emitted:
            self._stop_emitted = True
            self._events.emit(self._lifecycle_event("stopping", grace))
        while self._waiting:
            self._give_back(self._waiting.popleft(), f"the {self.what} stops")

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
        self._events.emit(self._lifecycle_event("stopped", 0.0))

    async def _all_ended(self) -> None:
        """Wait until every task has ended; a handler may take some time to be cancelled."""
        tasks = [held.task for held in self._running if held.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=max(self._plan.lease, 1.0))
        for held in list(self._running):  # it does not end: give its lease back
            self._running.pop(held)
            self._give_back(held, f"the {self.what} stops and its handler does not")
            held.ended = "lost"

    # Room for more claims

    def _room_left(self) -> int:
        limit = self._plan.concurrency + self._plan.ahead(self._took)
        held = len(self._waiting) + len(self._running) + self._threads.abandoned
        # Settlements under way do not delay the next claim, but they are bounded.
        return min(limit - held, 2 * limit - held - len(self._settling))

    async def _room_for_a_good_claim(self) -> None:
        """Wait until a claim is worth it: half of what was claimed ahead is used up."""
        # Computed each time: as handlers take longer, less is claimed ahead.
        await self._room_for(lambda: max(self._plan.ahead(self._took) // 2, 1))

    async def _room_for(self, wanted: Callable[[], int]) -> None:
        while self._room_left() < wanted() and not self._stopping:
            self._room.clear()
            await self._room.wait()

    def _start_waiting(self) -> None:
        while self._waiting and not self._stopping:
            if len(self._running) + self._threads.abandoned >= self._plan.concurrency:
                return
            self._start(self._waiting.popleft())

    def _begin(self, held: H, work: Callable[[H], Awaitable[None]]) -> None:
        self._running[held] = None
        held.task = self._loop.create_task(work(held))  # type: ignore[arg-type]

    def _note_took(self, took: float) -> None:
        self._took = took if self._took is None else self._took + (took - self._took) * TOOK_WEIGHT

    def _end(self, held: H, reason: Literal["stop", "lost", "cancel"]) -> None:
        held.ended = reason
        if held.task is not None:
            held.task.cancel()
        if not held.began:  # a task cancelled before its first step never runs
            self._leave(held, asyncio.CancelledError(), 0.0)

    def _slot_is_free(self) -> None:
        self._start_waiting()
        self._room.set()
        if not self._running:
            self._idle.set()

    async def _prune(self) -> None:
        """Delete finished work that was kept long enough; called in polls."""
        now = self._clock.now()
        if self._store.keep is None or now < self._next_prune:
            return
        self._next_prune = now + PRUNE_EVERY
        try:
            if await self._store.prune():
                self._next_prune = now + PRUNE_AGAIN
        except Exception as error:
            self._events.emit(ChoreFailed(self._source, "prune", text_of(error)))

    def state(self) -> dict[str, Any]:
        """What this run does now, as plain values."""
        return {
            **self.poll_loop.state(),
            "running": len(self._running),
            "waiting": len(self._waiting),
            "settling": len(self._settling),
        }


async def to_its_end(work: Coroutine[Any, Any, None] | asyncio.Future[Any]) -> None:
    """Wait for `work` to end, even if the caller is cancelled meanwhile, any number of times."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    if not task.cancelled():
        task.result()
