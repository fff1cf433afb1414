"""One run of a fleet: slots for polls, one timer, deadlines, and state that is saved in batches.

A fleet has one agenda instead of a poll loop per target. Polls run in at most `concurrency` tasks,
the slots, which are reused: a slot that finishes a poll takes the next due target. While all slots
are idle there is one timer, for the head of the agenda; while polls are in progress there is one
more, for the nearest deadline. A target that waits for its time costs no task and no timer.

A poll may raise anything, hang, or ignore its cancellation: only its own target fails.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pollwise.core.retry import asked_wait
from pollwise.durations import seconds, short
from pollwise.errors import ProbeTimeout
from pollwise.fleet.engine.deadlines import STUCK_AFTER, Deadlines, PollSlot
from pollwise.fleet.engine.failures import is_permanent, text_of
from pollwise.fleet.engine.nodes import RENEW, Nodes
from pollwise.fleet.engine.observing import Observation, PollObserver, event_of
from pollwise.fleet.engine.options import FleetRunOptions
from pollwise.fleet.engine.restore import catch_up, restore
from pollwise.fleet.engine.running_target import FLIGHT, GONE, RunningTarget
from pollwise.fleet.engine.saving import SAVE, Saving
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.history.recorder import recorders
from pollwise.fleet.stores.base import FleetStore, SavedTarget
from pollwise.fleet.stores.paging import was_set_back
from pollwise.fleet.targets import ProbeContext, Reading
from pollwise.runtime import events
from pollwise.runtime.chores import Chores
from pollwise.runtime.clock import Clock
from pollwise.runtime.contexts import isolated
from pollwise.runtime.events import Events
from pollwise.runtime.executor.background import to_its_end

if TYPE_CHECKING:
    from pollwise.fleet.alerting.alerting import Alerting

#: A task yields to others after this many polls, in case its probes never wait.
POLLS_IN_A_ROW = 16
#: How often the targets that wait for a free slot are counted, in seconds.
COUNT_EVERY = 1.0

_Targets = dict[str, RunningTarget]
_Saved = dict[str, SavedTarget]


class FleetRun:
    """One run of a fleet, from start to stop."""

    def __init__(
        self,
        name: str,
        node: str,
        options: FleetRunOptions,
        scheduler: Scheduler,
        store: FleetStore | None,
        clock: Clock,
        bus: Events,
    ) -> None:
        self._name = name
        self._options = options
        self._grace = seconds(options.grace, "grace")
        self.scheduler = scheduler
        self._store = store
        self._clock = clock
        self._bus = bus
        self._loop = asyncio.get_running_loop()
        self._main: asyncio.Task[None] | None = None
        self._slots: dict[PollSlot, None] = {}
        #: Polls that ignore their cancellation.
        self.stuck: dict[PollSlot, None] = {}
        self._idle: list[PollSlot] = []
        self._timer: asyncio.TimerHandle | None = None
        self._deadlines = Deadlines(self._loop, self._slots, self._replace_stuck)
        self._count_at = 0.0
        self._chores = Chores(name, clock, bus)
        self.saving: Saving = Saving(store, scheduler, self._chores, clock, self.pump)
        self._nodes: Nodes | None = None
        if store is not None and store.shared:
            lease = seconds(options.lease, "lease")
            self._nodes = Nodes(
                store,
                node,
                lease,
                scheduler,
                clock,
                self.pump,
                self._chores,
                self._claimed,
                self.saving.save,
                options.location,
            )
        #: Called with each finished poll.
        self.observers: list[PollObserver] = recorders(store, scheduler)
        self.alerting: Alerting | None = None
        #: Chores that also run before the first poll.
        self._first: list[str] = []
        self._not_ready = True
        self.loaded: bool = False
        self._stopping = False
        self._hurry = False
        self._ending = False
        self._stop = asyncio.Event()
        self._landed = asyncio.Event()
        #: Number of polls that ended since the start.
        self.polls: int = 0

    # From start to stop

    async def main(self, planned: _Targets, before: _Saved, paused: dict[str, bool]) -> None:
        """Poll until stopped. Cancelling it stops without grace.

        planned: the targets; emptied once their saved state is loaded.
        before: their state after the previous run.
        paused: targets that were paused or resumed since then.
        """
        self._main = asyncio.current_task()
        options = self._options
        try:
            self.scheduler.offset = self._clock.epoch() - self._clock.now()
            if self._store is not None and self._nodes is None:
                await self.saving.enter(self.stop)
                before = {each.name: each for each in await self._store.load()} | before
            facts = len(planned), options.concurrency, repr(options.strategy), options.budget
            self._load(planned, before, paused)
            self._bus.emit(events.FleetStarted(self._name, *facts))
            if self._nodes is not None:
                await self._nodes.tend()
                self._chores.wake(RENEW)
            for name in self._first:
                await self._chores.at_once(name)
            self._not_ready = False
            self.pump()
            await self._stop.wait()
            self._stopping = True
            await self._all_landed()
            self.saving.check()
        finally:
            await to_its_end(self._finish())

    def _load(self, planned: _Targets, before: _Saved, paused: dict[str, bool]) -> None:
        scheduler, now = self.scheduler, self._clock.now()
        fresh = list(planned.values())
        planned.clear()
        for entry in fresh:
            kept = before.get(entry.target.name)
            if kept is not None:
                restore(entry, kept, scheduler, now)
                if was_set_back(kept.polled_at, now + scheduler.offset):
                    self.saving.touch(entry)  # others must not see the times of the wrong clock
            elif self._nodes is None:
                self.saving.touch(entry)  # saves when it is first due
        self.loaded = True
        for entry in fresh:
            if entry.target.name in paused:
                entry.paused = paused.pop(entry.target.name)
                self.saving.touch(entry)
            if entry.failures:
                self._report_state(entry, "")
        catch_up(fresh, scheduler, now)
        self.add(fresh)

    def add(self, entries: Iterable[RunningTarget]) -> None:
        """Poll these from now on."""
        fresh = list(entries)
        if self._nodes is not None:
            self._nodes.expect(fresh)
        self.scheduler.add(fresh, self._clock.now())
        for entry in fresh:
            self._joined(entry)
        self.saving.watch_clock()
        self.pump()

    def follow(self, alerting: Alerting) -> None:
        """Let alerts follow the polls."""
        self.alerting, alerting.pump = alerting, self.pump
        self.observers.append(alerting)

    def _claimed(self, entry: RunningTarget) -> None:
        # What was decided under an earlier claim is not part of the state that was restored.
        self.saving.unsaved_alerts.take([entry.target.name])
        self._joined(entry)

    def _joined(self, entry: RunningTarget) -> None:
        if self.alerting is not None and (entry.target.alerts or entry.alerts):
            self.alerting.joined(entry)

    def replaced(self, old: RunningTarget, new: RunningTarget | None) -> None:
        """Let alerts follow a target by its new definition; None if it was removed."""
        if self.alerting is not None and new is None:
            self.alerting.removed(old)
        elif self.alerting is not None and new is not None:
            self.alerting.left(old)
            self._joined(new)

    def chore(self, name: str, every: float, work: Callable[[], Awaitable[None]]) -> None:
        """Call `work` before the first poll and then every `every` seconds."""
        self._first.append(name)
        self._chores.add(name, every, work)
        self._chores.wake(name)

    def not_ready(self) -> list[str]:
        """Why it cannot do its work now, for people; empty if it can."""
        return self._chores.trouble() if self.loaded else ["its targets are not loaded yet"]

    def stop(self) -> None:
        """Start no more polls and finish those in progress. A second call ends the grace."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if not here:
            with suppress(RuntimeError):  # the event loop may be closed already
                self._loop.call_soon_threadsafe(self.stop)
            return
        if not self._stopping:
            self._bus.emit(events.FleetStopping(self._name, self.scheduler.flying, self._grace))
        self._hurry = self._stopping
        self._stopping = True
        self._stop.set()
        self._landed.set()

    async def _all_landed(self) -> None:
        until = self._clock.now() + self._grace
        while self.scheduler.flying > len(self.stuck) and not self._hurry:
            left = until - self._clock.now()
            if left <= 0:
                return
            self._landed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._landed.wait()

    async def _finish(self) -> None:
        """End all tasks and save what is unsaved."""
        self._stopping = self._ending = True
        if self._timer is not None:
            self._timer.cancel()
        self._deadlines.close()
        if self.alerting is not None:
            self.alerting.close()
        cancelled = self.scheduler.flying
        tasks = [each.task for each in (*self._slots, *self.stuck) if each.task is not None]
        tasks += [] if self._nodes is None else self._nodes.confirmations.tasks
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STUCK_AFTER)
        await self._chores.close()
        try:
            await self.saving.at_stop()
            if self._nodes is not None:
                await self._nodes.leave()
        except Exception as error:
            self._bus.emit(events.ChoreFailed(self._name, SAVE, text_of(error)))
        self._bus.emit(events.FleetStopped(self._name, cancelled))
        for task in tasks:  # raise our own bugs
            if task.done() and not task.cancelled() and task.exception() is not None:
                task.result()

    # Slots

    def pump(self) -> None:
        """Give due targets to free slots; then set the timer for the next one."""
        if self._stopping or self._not_ready:
            return
        now = self._loop.time()
        while self._idle or len(self._slots) < self._options.concurrency:
            entry = self.scheduler.take(now)
            if entry is None:
                break
            if self._idle:
                slot = self._idle.pop()
                slot.entry = entry
                if slot.wake is not None:
                    slot.wake.set_result(None)
            else:
                self._open_slot(entry)
        self._set_timer()

    def _open_slot(self, entry: RunningTarget) -> None:
        slot = PollSlot()
        slot.entry = entry
        self._slots[slot] = None
        slot.task = self._loop.create_task(self._work(slot))
        slot.task.add_done_callback(self._slot_ended)

    def _slot_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._stop.set()  # a bug of ours: `_finish` raises it

    def _set_timer(self) -> None:
        """Set the one timer, for the next poll that can start, while a slot is free."""
        due = self.scheduler.next_start(self._loop.time())
        free = self._idle or len(self._slots) < self._options.concurrency
        if due == math.inf or not free or self._stopping:
            return
        if self._timer is not None:
            if self._timer.when() <= due:
                return  # the agenda is checked again then
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.pump()

    async def _work(self, slot: PollSlot) -> None:
        """Poll one target after another."""
        polls, take, time = 0, self.scheduler.take, self._loop.time
        while not self._ending:
            if slot.entry is None and not self._stopping:
                slot.entry = take(time())
            if slot.entry is None:
                await self._rest(slot)
                continue
            try:
                await self._poll(slot, slot.entry)
            finally:
                slot.entry = None
                if self._stopping:
                    self._landed.set()
            if slot.stuck:
                self.stuck.pop(slot, None)
                self.pump()
                return
            polls += 1
            if polls % POLLS_IN_A_ROW == 0:
                await asyncio.sleep(0)

    async def _rest(self, slot: PollSlot) -> None:
        slot.wake = self._loop.create_future()
        self._idle.append(slot)
        self.scheduler.queued = 0
        self._set_timer()
        try:
            await slot.wake
        finally:
            slot.wake = None

    # One poll

    async def _poll(self, slot: PollSlot, entry: RunningTarget) -> None:
        target, loop = entry.target, self._loop
        started = loop.time()
        deadline = started + target.timeout
        slot.started, slot.expired = started, False
        self._deadlines.watch(slot, deadline)
        if self._bus.wants(events.TargetPolling):
            self._emit(events.TargetPolling, entry, max(started - entry.due, 0.0))
        if entry.failures and self.scheduler.state(entry) == "half-open":
            self._report_state(entry, "open")
        error: BaseException | None = None
        reading: Reading | None = None
        try:
            context = ProbeContext(entry.reading, deadline, started + self.scheduler.offset)
            answer = await isolated(entry.probe, target, context)
            reading = answer if type(answer) is Reading else Reading.of(answer)
        except BaseException as raised:
            error = raised
        at = loop.time()
        slot.deadline = math.inf
        if target.quiet is not None:
            self.saving.check_clock()
        if error is not None or slot.expired:
            if self._cut_short(slot, entry, error):
                return
            self._failed(entry, self._explained(slot, entry, error), started, at)
        elif reading is not None:
            self._succeeded(entry, reading, started, at)
        self.polls += 1
        if at >= self._count_at:
            self._count_at = at + COUNT_EVERY
            self.scheduler.queued = self.scheduler.count_due(at)
            self._check_budget()

    def _cut_short(self, slot: PollSlot, entry: RunningTarget, error: BaseException | None) -> bool:
        """True if it ended without a result: the fleet stops, or the target was removed or
        lost."""
        if isinstance(error, GeneratorExit) and not self._loop.is_running():
            raise error  # the event loop is being closed
        lost = entry.until <= self._loop.time()
        stopped = isinstance(error, asyncio.CancelledError) and (
            self._ending or (self._main is not None and self._main.cancelling() > 0)
        )
        if not (stopped or lost or entry.place == GONE):
            return False
        self.scheduler.abandoned(entry)
        if lost:
            self.scheduler.lose(entry)
        self._note_end(entry, "dropped", slot.started, self._loop.time())
        if stopped and error is not None:
            raise error
        slot.uncancel()
        return True

    def _explained(
        self, slot: PollSlot, entry: RunningTarget, error: BaseException | None
    ) -> BaseException:
        """The error to report; also makes the task continue after its cancellation."""
        slot.uncancel()
        if slot.expired:
            limit = short(entry.target.timeout)
            return ProbeTimeout(f"no answer within the timeout of {limit}")
        assert error is not None  # noqa: S101 - for the type checker
        return error

    def _succeeded(self, entry: RunningTarget, reading: Reading, started: float, at: float) -> None:
        scheduler = self.scheduler
        failures, changed = entry.failures, scheduler.changed(entry, reading)
        was = scheduler.state(entry) if failures else ""
        before, now = entry.reading, self._loop.time()
        if self._nodes is not None:
            self._nodes.confirmations.succeeded(entry, at, at - started)
        scheduler.succeeded(entry, reading, at, now)
        if entry.place != GONE:
            self._observed(entry, Observation(at, at - started, changed, before))
            self.saving.touch(entry)
            if failures:
                self._report_state(entry, was)
                self._emit(events.TargetRecovered, entry, failures)
            if changed and self._bus.wants(events.TargetChanged):
                self._emit(events.TargetChanged, entry, reading.summary)
        result = "changed" if changed else "unchanged"
        self._note_end(entry, "dropped" if entry.place == GONE else result, started, at)

    def _failed(
        self, entry: RunningTarget, error: BaseException, started: float, at: float
    ) -> None:
        was = self.scheduler.state(entry), entry.dead
        text = text_of(error)
        unconfirmed = None
        if self._nodes is not None:
            unconfirmed = self._nodes.confirmations.failed(entry, text, at, at - started)
        decision = self.scheduler.failed(
            entry, text, is_permanent(error), at, asked_wait(error), unconfirmed
        )
        if decision is not None:
            self._observed(entry, Observation(at, at - started, before=entry.reading, error=text))
            self.saving.touch(entry)
            self._emit(events.TargetFailed, entry, text, entry.failures, decision.delay)
            state = self.scheduler.state(entry)
            if state != was[0]:
                self._report_state(entry, was[0])
                if state == "open" and was[0] != "half-open":
                    facts = text, entry.failures, decision.delay
                    self._emit(events.TargetBreakerOpened, entry, *facts)
            if decision.dead and not was[1]:
                self._emit(events.TargetDead, entry, text, entry.permanent, decision.delay)
        self._note_end(entry, "failed", started, at)

    def _observed(self, entry: RunningTarget, seen: Observation) -> None:
        for each in self.observers:
            each.observed(entry, seen)

    def _report_state(self, entry: RunningTarget, before: str) -> None:
        self._emit(events.TargetStateChanged, entry, self.scheduler.state(entry), before)

    def _emit(
        self, event: Callable[..., events.TargetEvent], entry: RunningTarget, *facts: Any
    ) -> None:
        self._bus.emit(event_of(event, self._name, entry.target, *facts))

    def _note_end(self, entry: RunningTarget, result: str, started: float, at: float) -> None:
        if self._bus.wants(events.TargetPolled):
            delay, counts = max(entry.due - at, 0.0), (self.scheduler.depth, self.scheduler.queued)
            facts = at - started, delay, *counts, entry.strategy.max_interval
            self._emit(events.TargetPolled, entry, result, *facts)
        self.saving.watch_clock()

    # Polls that ignore their cancellation

    def _replace_stuck(self, slot: PollSlot, entry: RunningTarget) -> None:
        """Replace a slot whose poll was cancelled at its deadline and still runs."""
        self._slots.pop(slot, None)
        self.stuck[slot] = None
        took = self._loop.time() - slot.started
        if entry.place == FLIGHT:
            entry.error = f"the probe still runs {short(took)} after its start"
            self._emit(events.TargetStuck, entry, took)
        self.pump()

    def drop(self, entry: RunningTarget) -> None:
        """Cancel the poll in progress of a removed target."""
        for slot in self._slots:
            if slot.entry is entry:
                self._deadlines.expire(slot)

    def _check_budget(self) -> None:
        budget = self.scheduler.budget
        if budget is not None and budget.turned_short():
            self._bus.emit(events.BudgetShort(self._name, budget.asked, budget.polls))
