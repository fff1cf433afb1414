"""One run of a fleet: places for polls, one timer, deadlines, and state that is saved in batches.

Polls run in at most `concurrency` tasks, which are used again and again; who finishes takes what is
due next. While all are idle there is one timer, for the head of the agenda, and one more for the
nearest deadline while polls are under way. A target that waits for its time costs no task and no
timer.

A poll may raise anything, hang, or ignore that it is cancelled: that is a failure of its target and
of nothing else.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from pollwise.durations import short
from pollwise.errors import ProbeTimeout
from pollwise.fleet.engine.deadlines import STUCK_AFTER, Deadlines, Runner
from pollwise.fleet.engine.entry import FLIGHT, GONE, Entry
from pollwise.fleet.engine.nodes import Nodes
from pollwise.fleet.engine.plan import ACTION_TIMEOUT, COUNT_EVERY, POLLS_IN_A_ROW, FleetPlan
from pollwise.fleet.engine.restore import restore
from pollwise.fleet.engine.saving import Saving
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.engine.states import is_permanent, text_of, wait_of
from pollwise.fleet.stores.base import FleetStore, Saved
from pollwise.fleet.targets import Action, Changed, ProbeContext, Reading
from pollwise.runtime.chores import Chores
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import (
    ActionFailed,
    BudgetShort,
    ChoreFailed,
    Events,
    FleetStarted,
    FleetStopped,
    TargetChanged,
    TargetCondition,
    TargetDead,
    TargetFailed,
    TargetPolled,
    TargetPolling,
    TargetRecovered,
    TargetStuck,
)
from pollwise.runtime.executor.executor import to_its_end


class Run:
    """A fleet at work."""

    def __init__(
        self,
        plan: FleetPlan,
        scheduler: Scheduler,
        store: FleetStore | None,
        actions: list[Action],
        clock: Clock,
        events: Events,
    ) -> None:
        self._plan = plan
        self.scheduler = scheduler
        self._store = store
        self._actions = actions
        self._clock = clock
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._main: asyncio.Task[None] | None = None
        self._runners: dict[Runner, None] = {}
        self._stuck: dict[Runner, None] = {}
        self._idle: list[Runner] = []
        self._timer: asyncio.TimerHandle | None = None
        self._deadlines = Deadlines(self._loop, self._runners, self._give_place_away)
        self._count_at = 0.0
        self._chores = Chores(plan.name, clock, events)
        self.saving = Saving(store, scheduler, self._chores, clock, self.pump)
        self._nodes: Nodes | None = None
        if store is not None and store.shared:
            self._nodes = Nodes(
                store, plan.node, plan.lease, scheduler, clock, self.pump, self._tend_after
            )
            self._chores.add("hold targets", plan.lease / 3, self._nodes.tend)
        #: Chores that are done before the first poll, too.
        self._first: list[str] = []
        self._held_back = True
        self.taken_up = False
        self._stopping = False
        self._hurry = False
        self._ending = False
        self._stop = asyncio.Event()
        self._landed = asyncio.Event()
        self._budget_told = False
        #: Since the start: polls that ended.
        self.polls = 0

    # From start to stop

    async def main(
        self, planned: dict[str, Entry], before: dict[str, Saved], paused: dict[str, bool]
    ) -> None:
        """Poll until stopped. Cancelling it stops without grace.

        planned: the targets, taken out of it when the run knows what was kept of them.
        before: what a run before this one left of them.
        paused: what was ordered meanwhile.
        """
        self._main = asyncio.current_task()
        plan = self._plan
        try:
            self.scheduler.offset = self._clock.epoch() - self._clock.now()
            if self._store is not None and self._nodes is None:
                await self.saving.enter(self.stop)
                before = {each.name: each for each in await self._store.load()} | before
            count = len(planned)
            self._take_up(planned, before, paused)
            self._events.emit(
                FleetStarted(plan.name, count, plan.concurrency, repr(plan.strategy), plan.budget)
            )
            if self._nodes is not None:
                await self._nodes.tend()
                self._chores.wake("hold targets")
            for name in self._first:
                await self._chores.at_once(name)
            self._held_back = False
            self.pump()
            await self._stop.wait()
            self._stopping = True
            await self._all_landed()
            self.saving.check()
        finally:
            await to_its_end(self._finish())

    def _take_up(
        self, planned: dict[str, Entry], before: dict[str, Saved], paused: dict[str, bool]
    ) -> None:
        scheduler, now = self.scheduler, self._clock.now()
        fresh = list(planned.values())
        planned.clear()
        for entry in fresh:
            kept = before.get(entry.target.name)
            if kept is not None:
                restore(entry, kept, scheduler, now)
            elif self._nodes is None:
                self.saving.touch(entry)  # when it is polled first is to be seen
        self.taken_up = True
        for entry in fresh:
            if entry.target.name in paused:
                entry.paused = paused.pop(entry.target.name)
                self.saving.touch(entry)
            if entry.failures:
                self._tell_condition(entry)
        self.add(fresh)

    def add(self, entries: Iterable[Entry]) -> None:
        """Poll these from now on."""
        fresh = list(entries)
        if self._nodes is not None:
            for entry in fresh:
                entry.until = -math.inf  # until it is claimed
        self.scheduler.add(fresh, self._clock.now())
        self.saving.look_after_quiet()
        self.pump()

    def chore(self, name: str, every: float, work: Callable[[], Awaitable[None]]) -> None:
        """Do this too, before the first poll and then every so many seconds, until the run ends."""
        self._first.append(name)
        self._chores.add(name, every, work)
        self._chores.wake(name)

    def _tend_after(self, delay: float) -> None:
        self._chores.hasten("hold targets", delay)

    def stop(self) -> None:
        """Begin no more polls and finish those under way. A second call ends the grace."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if not here:
            with suppress(RuntimeError):  # the event loop may be closed by now
                self._loop.call_soon_threadsafe(self.stop)
            return
        self._hurry = self._stopping
        self._stopping = True
        self._stop.set()
        self._landed.set()

    async def _all_landed(self) -> None:
        until = self._clock.now() + self._plan.grace
        while self.scheduler.flying > len(self._stuck) and not self._hurry:
            left = until - self._clock.now()
            if left <= 0:
                return
            self._landed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._landed.wait()

    async def _finish(self) -> None:
        """End every task; save what is not yet saved."""
        self._stopping = self._ending = True
        if self._timer is not None:
            self._timer.cancel()
        self._deadlines.close()
        cancelled = self.scheduler.flying
        tasks = [each.task for each in (*self._runners, *self._stuck) if each.task is not None]
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
            self._events.emit(ChoreFailed(self._plan.name, "save state", text_of(error)))
        self._events.emit(FleetStopped(self._plan.name, cancelled))
        for task in tasks:  # a mistake of ours is not kept secret
            if task.done() and not task.cancelled() and task.exception() is not None:
                task.result()

    # Places

    def pump(self) -> None:
        """Give what is due to whoever is free; then wait for the next."""
        if self._stopping or self._held_back:
            return
        now = self._loop.time()
        while self._idle or len(self._runners) < self._plan.concurrency:
            entry = self.scheduler.take(now)
            if entry is None:
                break
            if self._idle:
                runner = self._idle.pop()
                runner.entry = entry
                if runner.wake is not None:
                    runner.wake.set_result(None)
            else:
                self._hire(entry)
        self._set_timer()

    def _hire(self, entry: Entry) -> None:
        runner = Runner()
        runner.entry = entry
        self._runners[runner] = None
        runner.task = self._loop.create_task(self._serve(runner))
        runner.task.add_done_callback(self._one_left)

    def _one_left(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._stop.set()  # a mistake of ours: `_finish` raises it

    def _set_timer(self) -> None:
        """One timer, for the head of the agenda, and only while somebody is free to go."""
        due = self.scheduler.agenda.first_due()
        free = self._idle or len(self._runners) < self._plan.concurrency
        if due == math.inf or not free or self._stopping:
            return
        if self._timer is not None:
            if self._timer.when() <= due:
                return  # it will look again
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self.pump()

    async def _serve(self, runner: Runner) -> None:
        """Poll one target after the other."""
        polls, take, time = 0, self.scheduler.take, self._loop.time
        while not self._ending:
            if runner.entry is None and not self._stopping:
                runner.entry = take(time())
            if runner.entry is None:
                await self._rest(runner)
                continue
            try:
                await self._poll(runner, runner.entry)
            finally:
                runner.entry = None
                if self._stopping:
                    self._landed.set()
            if runner.stuck:
                self._stuck.pop(runner, None)
                self.pump()
                return
            polls += 1
            if polls % POLLS_IN_A_ROW == 0:
                await asyncio.sleep(0)

    async def _rest(self, runner: Runner) -> None:
        runner.wake = self._loop.create_future()
        self._idle.append(runner)
        self.scheduler.queued = 0
        self._set_timer()
        try:
            await runner.wake
        finally:
            runner.wake = None

    # One poll

    async def _poll(self, runner: Runner, entry: Entry) -> None:
        target, loop = entry.target, self._loop
        started = loop.time()
        deadline = started + target.timeout
        runner.started, runner.expired = started, False
        self._deadlines.watch(runner, deadline)
        if self._events.wants(TargetPolling):
            late = max(started - entry.due, 0.0)
            self._events.emit(TargetPolling(self._plan.name, target.name, target.type, late))
        error: BaseException | None = None
        reading: Reading | None = None
        try:
            context = ProbeContext(entry.reading, deadline, started + self.scheduler.offset)
            answer = await entry.probe(target, context)
            reading = answer if type(answer) is Reading else Reading.of(answer)
        except BaseException as raised:
            error = raised
        at = loop.time()
        runner.deadline = math.inf
        if target.quiet is not None:
            self.saving.look_at_clock()
        if error is not None or runner.expired:
            if self._cut_short(runner, entry, error):
                return
            self._failed(entry, self._explained(runner, entry, error), started, at)
        elif reading is not None:
            if entry.place != GONE and self.scheduler.changed(entry, reading):
                if await self._tell(runner, entry, reading, at):
                    return
            self._succeeded(entry, reading, started, at)
        self.polls += 1
        if at >= self._count_at:
            self._count_at = at + COUNT_EVERY
            self.scheduler.queued = self.scheduler.count_due(at)
            self._look_at_budget()

    def _cut_short(self, runner: Runner, entry: Entry, error: BaseException | None) -> bool:
        """Whether it ended without a verdict: the fleet stops, or the target is gone or lost."""
        if isinstance(error, GeneratorExit) and not self._loop.is_running():
            raise error  # the event loop is torn down under us
        lost = entry.until <= self._loop.time()
        stopped = isinstance(error, asyncio.CancelledError) and (
            self._ending or (self._main is not None and self._main.cancelling() > 0)
        )
        if not (stopped or lost or entry.place == GONE):
            return False
        self.scheduler.abandoned(entry)
        if lost:
            self.scheduler.lose(entry)
        self._note_end(entry, "dropped", runner.started, self._loop.time())
        if stopped and error is not None:
            raise error
        self._calm(runner)
        return True

    def _explained(
        self, runner: Runner, entry: Entry, error: BaseException | None
    ) -> BaseException:
        """What is told of a failure; and the task goes on though it was cancelled."""
        self._calm(runner)
        if runner.expired:
            limit = short(entry.target.timeout)
            return ProbeTimeout(f"no answer within the timeout of {limit}")
        assert error is not None  # noqa: S101 - for the type checker
        return error

    def _calm(self, runner: Runner) -> None:
        if runner.task is not None:
            while runner.task.cancelling():
                runner.task.uncancel()

    def _succeeded(self, entry: Entry, reading: Reading, started: float, at: float) -> None:
        scheduler, target, events = self.scheduler, entry.target, self._events
        failures, changed = entry.failures, scheduler.changed(entry, reading)
        now = self._loop.time()
        scheduler.succeeded(entry, reading, at, now)
        if entry.place != GONE:
            self.saving.touch(entry)
            if failures:
                self._tell_condition(entry)
                events.emit(TargetRecovered(self._plan.name, target.name, target.type, failures))
            if changed and events.wants(TargetChanged):
                events.emit(
                    TargetChanged(self._plan.name, target.name, target.type, reading.summary)
                )
        result = "changed" if changed else "unchanged"
        self._note_end(entry, "dropped" if entry.place == GONE else result, started, at)

    def _failed(self, entry: Entry, error: BaseException, started: float, at: float) -> None:
        target, name = entry.target, self._plan.name
        was = self.scheduler.condition(entry, -math.inf), entry.dead
        text = text_of(error)
        verdict = self.scheduler.failed(entry, text, is_permanent(error), at, wait_of(error))
        if verdict is not None:
            self.saving.touch(entry)
            self._events.emit(
                TargetFailed(name, target.name, target.type, text, entry.failures, verdict.delay)
            )
            if self.scheduler.condition(entry, -math.inf) != was[0]:
                self._tell_condition(entry)
            if verdict.dead and not was[1]:
                self._events.emit(
                    TargetDead(name, target.name, target.type, text, entry.permanent, verdict.delay)
                )
        self._note_end(entry, "failed", started, at)

    def _tell_condition(self, entry: Entry) -> None:
        condition = self.scheduler.condition(entry, -math.inf)
        target = entry.target
        self._events.emit(TargetCondition(self._plan.name, target.name, target.type, condition))

    def _note_end(self, entry: Entry, result: str, started: float, at: float) -> None:
        if self._events.wants(TargetPolled):
            target, scheduler = entry.target, self.scheduler
            figures = at - started, max(entry.due - at, 0.0), scheduler.depth, scheduler.queued
            self._events.emit(
                TargetPolled(self._plan.name, target.name, target.type, result, *figures)
            )
        self.saving.look_after_quiet()

    async def _tell(self, runner: Runner, entry: Entry, reading: Reading, at: float) -> bool:
        """Do what is to be done about a change, as a part of the poll; True if it was cut short."""
        before = entry.reading
        actions = (*entry.target.actions, *self._actions)
        if not actions or before is None:
            return False
        offset = self.scheduler.offset
        since = None if entry.changed_at is None else entry.changed_at + offset
        change = Changed(entry.target, before, reading, at + offset, since)
        for action in actions:
            runner.expired = False
            self._deadlines.watch(runner, self._loop.time() + ACTION_TIMEOUT)
            problem: BaseException | None = None
            try:
                answer = action(change)
                if inspect.isawaitable(answer):
                    await answer
            except BaseException as raised:
                problem = raised
            runner.deadline = math.inf
            if problem is not None or runner.expired:
                if self._action_failed(runner, entry, action, problem):
                    return True
        return False

    def _action_failed(
        self, runner: Runner, entry: Entry, action: Action, problem: BaseException | None
    ) -> bool:
        if self._cut_short(runner, entry, problem):
            return True
        self._calm(runner)
        why = "it took too long" if runner.expired or problem is None else text_of(problem)
        runner.expired = False
        what = getattr(action, "__qualname__", None) or type(action).__name__
        target = entry.target
        self._events.emit(ActionFailed(self._plan.name, target.name, target.type, what, why))
        return False

    # Polls that do not end

    def _give_place_away(self, runner: Runner, entry: Entry) -> None:
        """It was cancelled at its deadline and goes on: another may take its place."""
        self._runners.pop(runner, None)
        self._stuck[runner] = None
        took = self._loop.time() - runner.started
        if entry.place == FLIGHT:
            entry.error = f"ProbeTimeout: the probe goes on {short(took)} after it was begun"
            target = entry.target
            self._events.emit(TargetStuck(self._plan.name, target.name, target.type, took))
        self.pump()

    def drop(self, entry: Entry) -> None:
        """A target was removed: end the poll of it that is under way."""
        for runner in self._runners:
            if runner.entry is entry:
                self._deadlines.expire(runner)

    @property
    def stuck(self) -> int:
        """Polls that ignore that they were cancelled."""
        return len(self._stuck)

    def _look_at_budget(self) -> None:
        budget = self.scheduler.budget
        if budget is None:
            return
        short_of = budget.asked > budget.polls
        if short_of and not self._budget_told:
            self._events.emit(BudgetShort(self._plan.name, budget.asked, budget.polls))
        self._budget_told = short_of
