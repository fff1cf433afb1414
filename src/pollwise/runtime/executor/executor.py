"""The executor: holds claimed work, runs its handlers and settles it.

A worker and an outbox's relay each compose one. They consume its poll loop and hand over what they
claimed:

    async with executor:
        async for claims in executor.polls:
            executor.take([held(claim) for claim in claims])
            await executor.room_for_a_claim()

Held work is in one table from claim to settlement. Whatever happens (a stop, a cancellation, a
failing store), every claim is settled, given back, or known to be lost. The table is bounded by
concurrency and prefetch, never by the backlog.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Generic, Literal, TypeVar

from pollwise.core.retry import Retry
from pollwise.durations import seconds
from pollwise.runtime.chores import Chores
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, HandlerStuck
from pollwise.runtime.executor.ahead import PREFETCH_BYTES, Ahead
from pollwise.runtime.executor.background import to_its_end
from pollwise.runtime.executor.control.isolation import Isolation
from pollwise.runtime.executor.control.leases import Leases
from pollwise.runtime.executor.control.pruning import Pruning
from pollwise.runtime.executor.recycling import Recycling
from pollwise.runtime.executor.settling import Settler
from pollwise.runtime.executor.starting import RunOptions
from pollwise.runtime.executor.threads import HandlerThreads
from pollwise.runtime.executor.watchdog import Watchdog
from pollwise.runtime.executor.work import Held, Work
from pollwise.runtime.loop import POLL_RETRY, LoopOptions, PollLoop
from pollwise.runtime.store import WorkStore

#: Tries to settle while stopping; after that the leases run out.
SETTLE_TRIES_AT_STOP = 3
#: How long they may take, in seconds.
SETTLE_WITHIN_AT_STOP = 10.0
#: How long a handler may take to end after a stop cancelled it, in seconds; then it is stuck.
STUCK_AFTER = 10.0

#: The name of the task that gives back the work of stuck handlers when the event loop ends.
GIVES_BACK = "give back at the end"

H = TypeVar("H", bound=Held)
C = TypeVar("C")


class Executor(Generic[H, C]):
    """Runs the claims of a worker or a relay.

    name: of the worker or the relay.
    prefetch: how much is claimed ahead of a free handler; None: by how long handlers take.
    max_runs: stop after this many runs, to be recycled; None for no limit.
    prefetch_bytes: how many bytes of payloads may wait for a free handler.
    wants: the kinds of work that are polled for; None for all.
    rounds: how many turns of the event loop a settlement waits for others.
    retry: how a failed poll is retried.
    """

    def __init__(
        self,
        work: Work[H, C],
        store: WorkStore[C],
        name: str,
        options: RunOptions,
        clock: Clock,
        events: Events,
        *,
        prefetch: int | None = None,
        prefetch_bytes: int = PREFETCH_BYTES,
        max_runs: int | None = None,
        wants: frozenset[str] | None = None,
        rounds: int = 0,
        retry: Retry = POLL_RETRY,
    ) -> None:
        self._work = work
        self._store = store
        self.ahead: Ahead = Ahead(
            prefetch, options.concurrency, prefetch_bytes, store.max_payload_bytes
        )
        self.lease: float = seconds(options.lease, "lease")
        self._grace = seconds(options.grace, "grace")
        self._clock = clock
        self._events = events
        self.random: random.Random = random.Random(options.seed)
        self.threads: HandlerThreads = HandlerThreads(
            options.concurrency, name, self._threads_changed
        )
        self.recycling: Recycling = Recycling(
            work.source, options, max_runs, clock, events, self._recycle
        )
        self._watchdog = Watchdog(work.source, self.lease, events, self._blocker)
        self._held: dict[str, H] = {}  # by name, from claim to settlement
        self._waiting: deque[H] = deque()
        self._running: dict[H, None] = {}  # also those whose lease was lost, until they end
        self._asked = 0.0  # when the last claim was asked for
        self._room = asyncio.Event()
        self.isolation: Isolation[H] = Isolation(self._held, clock, self._room.set)
        #: If set: how many claims may wait for a handler; the next claim is made once half of this
        #: is free.
        self.spare: int | None = None
        self._settler: Settler[H] = Settler(
            self._held,
            work,
            store,
            self.lease,
            clock,
            events,
            self.random,
            self._note_settled,
            rounds,
        )
        self.chores: Chores = Chores(work.source, clock, events)
        self.leases: Leases[H] = Leases(
            self._held, work, self._settler, self.chores, self.lease, clock, self._lose,
            self._cancel, self._start_waiting,
        )  # fmt: skip
        self.pruning: Pruning = Pruning(store, clock, self.chores)
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # each handler gets a copy
        self._idle = asyncio.Event()
        self._hurry = asyncio.Event()
        self._held_poll: asyncio.Timeout | None = None
        self._stuck: asyncio.Task[None] | None = None
        self.stopping: bool = False
        #: Called for each run that returned a settlement: with its work, the time, and how long it
        #: took.
        self.on_run: Callable[[H, float, float], None] | None = None
        self.polls: PollLoop[C] = PollLoop(
            work.claim,
            options.polling,
            work.source,
            LoopOptions(
                clock=clock,
                random=self.random,
                events=events,
                hints=store.hints() if options.hints else None,
                long_interval=seconds(options.long_interval, "long_interval"),
                wants=wants,
                drain=options.drain,
                retry=retry,
                empty=True,
            ),
        )

    # Claiming

    async def room(self) -> int:
        """How much to claim now; waits until it is at least 1. Less only during a stop."""
        await self.until(lambda: self._can_claim(1))
        self._asked = self._clock.now()
        return self._room_left()

    async def room_for_a_claim(self) -> None:
        """Wait until a claim is worth it: half of what was claimed ahead is used up."""
        # Computed each time: as handlers take longer, less is claimed ahead.
        await self.until(lambda: self._can_claim(max(self._worth_claiming(), 1)))

    def _can_claim(self, least: int) -> bool:
        if self.spare is not None and self.free(self.spare) < max(self.spare // 2, 1):
            return False
        return self._room_left() >= least

    def _worth_claiming(self) -> int:
        return self.recycling.at_most(self.ahead.jobs() // 2, len(self._waiting))

    def is_idle(self) -> bool:
        """True if nothing is held: all that was claimed is settled."""
        return not self._held

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait for something that happens to held work, or for a stop."""
        while not happened() and not self.stopping:
            self._room.clear()
            await self._room.wait()

    def _room_left(self) -> int:
        if self.isolation.isolated() is not None:
            return 0
        limit = self.ahead.concurrency + self.ahead.jobs()
        held = len(self._waiting) + len(self._running) + self.threads.abandoned
        # Settlements under way do not delay the next claim, but they are bounded.
        room = min(limit - held, 2 * limit - held - len(self._settler))
        return self.recycling.at_most(room, len(self._waiting))

    def free(self, waiting: int = 0) -> int:
        """How many claims would be started at once, or be among this many that wait."""
        held = len(self._waiting) + len(self._running) + self.threads.abandoned
        return max(self.ahead.concurrency + waiting - held, 0)

    def resize(self, concurrency: int) -> None:
        """Change how many handlers run at a time. If it is less, what runs goes on to its end."""
        self.ahead.concurrency = concurrency
        self.threads.resize(concurrency)
        self.recycling.resize(concurrency, self.threads.abandoned)
        self._start_waiting()
        self._room.set()
        self.polls.hint()  # there may be room for more, and a pause would delay it

    def running(self) -> list[H]:
        """The work whose handlers run, the longest first."""
        return list(self._running)

    async def unless_stopped(self, claiming: Coroutine[Any, Any, list[C]]) -> list[C]:
        """Await a claim that the store may hold for a long time; a stop ends it."""
        poll = asyncio.timeout(None)
        try:
            async with poll:
                self._held_poll = poll
                return await claiming
        except TimeoutError:
            if not poll.expired():
                raise  # the store's own
            return []
        finally:
            self._held_poll = None

    def take(self, claimed: list[H]) -> None:
        """Hold claims, and start as many as there are free handlers.

        One that has a settlement already is not run.
        """
        if not claimed:
            return
        now = self._clock.now()
        # From when they were asked for: the process may have stood still before the answer.
        until, until_epoch = self.leases.times(self._asked)
        self.ahead.claimed([held.size for held in claimed])
        free, waiting_bytes = self.free(), 0
        for held in claimed:
            older = self._held.get(held.name)
            if older is not None:  # our own lease on it had run out
                self._lose(older)
            held.taken, held.until, held.until_epoch = now, until, until_epoch
            self._held[held.name] = held
            if held.alone and held.settlement is None:
                self.isolation.begin(held)
                self.give_back_waiting("a job that may have killed its workers runs alone")
            if held.settlement is None and free <= 0:  # payloads may be larger than ever before
                waiting_bytes += held.size
                if waiting_bytes > self.ahead.most_bytes:
                    held.settlement = self._work.give_back(held, "payloads claimed ahead are large")
            free -= 1
            if held.settlement is None:
                self._waiting.append(held)
            else:
                self._settler.add(held)
        self.leases.begin(self._asked)
        self._start_waiting()

    def holds(self, names: Collection[str]) -> bool:
        """True if any of these is held: it waits, runs, or is not settled yet."""
        return any(name in self._held for name in names)

    def blocked(self, name: str) -> str:
        """How the handler of held work blocked the event loop; "" if it did not."""
        held = self._held.get(name)
        return "" if held is None else held.blocked

    def count_by(self, group: Callable[[H], str]) -> Counter[str]:
        """How much of each group is held and not done yet."""
        return Counter(group(held) for held in self._held.values() if held.settlement is None)

    def _note_settled(self) -> None:
        self._room.set()
        if (keep := self._store.keep) is not None:
            self.pruning.stored(keep)

    # Running

    def _start_waiting(self) -> None:
        if not self._waiting or self.stopping:
            return
        while self._waiting:
            if len(self._running) + self.threads.abandoned >= self.ahead.concurrency:
                return
            if self.leases.is_over(self._waiting[0]):  # the process stood still: renew first
                self.leases.renew_now()
                return
            held = self._waiting.popleft()
            self._running[held] = None
            self.recycling.started()
            self._watchdog.watch(True)
            # Not in the context of whichever handler ended, whose variables it would see.
            held.task = self._context.copy().run(self._loop.create_task, self._run(held))

    async def _run(self, held: H) -> None:
        """Run one handler and settle its work. Catches everything that a handler raises."""
        held.began = began = self._clock.now()
        raised: BaseException | None = None
        settlement = None
        try:
            settlement = await self._work.handle(held)
        except BaseException as error:  # SystemExit of a handler, too, concerns only its work
            raised = error
        now = self._clock.now()
        self.ahead.ran(now - began)
        self._leave(held, settlement, raised)
        if settlement is not None and self.on_run is not None:
            self.on_run(held, now, now - began)

    def _leave(self, held: H, settlement: Any, raised: BaseException | None) -> None:
        """A handler ended: free its slot, and settle its work if the lease is still ours."""
        self._running.pop(held, None)
        if held.ended != "lost":
            if raised is None:
                held.settlement = settlement
            elif held.ended == "stop":
                held.settlement = self._work.give_back(held, f"the {self._work.what} stops")
            elif held.ended == "cancel":
                held.settlement = self._work.cancelled(held, raised)
            else:
                held.settlement = self._work.failed(held, raised)
            self._settler.add(held)
        self._slot_is_free()
        self.recycling.ended()

    def _slot_is_free(self) -> None:
        self._start_waiting()
        self._room.set()
        if not self._running:
            self._idle.set()
            self._watchdog.watch(False)

    def _blocker(self, task: object, where: str) -> str:
        """The work whose task blocks the event loop, which is noted with it. Not in the loop."""
        running = list(self._running)
        found = [held for held in running if held.task is task] or running
        if len(found) == 1:  # else a task that a handler started
            found[0].blocked = f"blocked the event loop at {where}"
        return " or ".join(self._work.label(held) for held in found[:3])

    def _threads_changed(self) -> None:
        self.recycling.threads(self.threads.abandoned)
        self._slot_is_free()

    def _recycle(self) -> bool:
        """Stop as on a signal; False if it stops already."""
        if self.stopping:
            return False
        self.stop()
        return True

    def give_back_waiting(self, reason: str, which: Callable[[H], bool] = lambda _: True) -> None:
        """Give back the work that has not begun."""
        for held in [each for each in self._waiting if which(each)]:
            self._waiting.remove(held)
            self._give_back(held, reason)

    def _give_back(self, held: H, reason: str) -> None:
        held.settlement = self._work.give_back(held, reason)
        self._settler.add(held)

    def _end(self, held: H, reason: Literal["stop", "lost", "cancel"]) -> None:
        """Cancel a handler."""
        held.ended = reason if reason == "lost" else held.ended or reason
        if held.control is not None and reason == "cancel":
            held.control.requested = True
        if held.task is not None:
            held.task.cancel()
        if held.began is None:  # a task cancelled before its first step never runs
            self._leave(held, None, asyncio.CancelledError())

    def _cancel(self, held: H) -> None:
        """Somebody asked to cancel this: stop its handler once, or do not begin it."""
        if held in self._running:
            if not held.ended:
                self._end(held, "cancel")
        elif held.settlement is None:
            self._waiting.remove(held)
            held.settlement = self._work.cancelled(held)
            self._settler.add(held)
            self._room.set()

    def _lose(self, held: H) -> None:
        if held.settlement is not None:
            return  # the store will refuse it
        del self._held[held.name]
        self._work.lost(held)
        if held in self._running:
            self._end(held, "lost")
        else:
            self._waiting.remove(held)
            self._room.set()

    # Stopping

    def stop(self) -> None:
        """Claim no more and finish. A second call ends the grace. From any thread."""
        if asyncio._get_running_loop() is not self._loop:
            self._loop.call_soon_threadsafe(self.stop)
            return
        if self.stopping:
            self._hurry.set()
        self.stopping = True
        self._room.set()
        self.polls.stop()
        if self._held_poll is not None:
            self._held_poll.reschedule(0.0)

    async def __aenter__(self) -> Executor[H, C]:
        return self

    async def __aexit__(self, raised: type[BaseException] | None, *_: object) -> None:
        """Finish within the grace. After an error or a cancellation, give everything back now."""
        grace = self._grace if raised is None else 0.0
        self.stopping = True
        self.polls.stop()
        self._work.stopping(len(self._running), grace)
        try:
            self.give_back_waiting(f"the {self._work.what} stops")
            await self._all_done_within(grace)
        finally:
            await to_its_end(self._finish())

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
        """Cancel what still runs, settle everything, and close.

        What does not end keeps its lease, which is renewed, until it ends or the process does.
        """
        self.threads.patient = True
        for held in list(self._running):
            self._end(held, "stop")
        tasks = self._tasks()
        if tasks:  # a handler may take some time to be cancelled
            await asyncio.wait(tasks, timeout=STUCK_AFTER)
        self.threads.patient = False
        for held in self._running:
            text = self._work.label(held)
            self._events.emit(HandlerStuck(self._work.source, text, STUCK_AFTER))
        await self._settler.finish(SETTLE_TRIES_AT_STOP, SETTLE_WITHIN_AT_STOP)
        if self._running:
            self._stuck = self._loop.create_task(self._wait_for_stuck(), name=GIVES_BACK)
            await asyncio.sleep(0)  # a task that is cancelled before it begins does nothing
        else:
            await self._close()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [held.task for held in self._running if held.task is not None]

    async def _wait_for_stuck(self) -> None:
        """Settle what ends late. Cancelled when the event loop ends: then give all of it back."""
        try:
            await asyncio.wait(self._tasks())
        except asyncio.CancelledError:
            for held in [each for each in self._running if each.ended != "lost"]:
                held.ended = "lost"
                self._give_back(held, f"the {self._work.what} stops and its handler does not")
        await self._settler.finish(SETTLE_TRIES_AT_STOP, SETTLE_WITHIN_AT_STOP)
        await self._close()

    async def _close(self) -> None:
        self._watchdog.close()
        self.isolation.close()
        self.leases.close()
        await self.chores.close()
        self.threads.close()

    async def close_store(self) -> None:
        """Close the store of this run; if a handler is stuck, when that has ended."""
        if self._stuck is None or self._stuck.done():
            await self._store.close()
            return
        self._stuck = self._loop.create_task(self._close_after(self._stuck), name=GIVES_BACK)
        await asyncio.sleep(0)

    async def _close_after(self, stuck: asyncio.Task[None]) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.wait([stuck])
        stuck.cancel()
        await to_its_end(stuck)
        await self._store.close()

    def state(self) -> dict[str, Any]:
        """The present state of this run, as plain values."""
        return {
            **self.polls.state(),
            "running": len(self._running),
            "waiting": len(self._waiting),
            "settling": len(self._settler),
        }
