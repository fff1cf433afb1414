"""The fleet: thousands of targets, each polled at its own pace."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Generator, Mapping
from random import Random
from typing import Any, TypeVar

from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.freshness import Freshness
from pollwise.durations import Duration, seconds, shown
from pollwise.errors import ConfigError
from pollwise.fleet.engine.budget import Budget
from pollwise.fleet.engine.entry import Entry
from pollwise.fleet.engine.pace import Pace
from pollwise.fleet.engine.plan import FleetPlan
from pollwise.fleet.engine.restore import saved
from pollwise.fleet.engine.run import Run
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.engine.states import Rules
from pollwise.fleet.probes import made
from pollwise.fleet.probes.http.connections import connections
from pollwise.fleet.stores.base import FleetStore, Saved
from pollwise.fleet.targets import Action, Target
from pollwise.fleet.views import FleetHealth, TargetState, health_of, state_of
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, TargetAdded, TargetCondition, TargetRemoved
from pollwise.runtime.signals import stopping_on_signals

#: The most polls at a time.
MAX_CONCURRENCY = 10_000

F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A", bound=Action)


class Fleet:
    """Targets, each polled at its own pace.

        fleet = Fleet(budget=20)

        @fleet.probe("front page", timeout="10s")
        async def front_page(target, context):
            return await fetch("https://example.org/")

        @fleet.on_change
        async def tell(change):
            print(change.target.name, change.after.summary)

        fleet.run()

    strategy: paces the targets that have no interval of their own.
    concurrency: how many polls are under way at a time, at the most.
    budget: polls a second over all targets, shared out by how often their readings change; None
        lets each target go at its own pace.
    per_host: how many polls of targets with the same host are under way; None for no limit.
    store: keeps the state over restarts; None keeps nothing.
    rules: how failures are answered.
    grace: how long a stop waits for polls under way.
    lease: where nodes share the store: after how long the targets of a killed one go to others.
    name: of the fleet, in events and metrics. node: of this process, where several share.
    seed: makes jitter repeatable.
    """

    def __init__(
        self,
        strategy: Strategy | None = None,
        concurrency: int = 64,
        budget: float | None = None,
        *,
        per_host: int | None = 4,
        store: FleetStore | None = None,
        rules: Rules | None = None,
        grace: Duration = "10s",
        lease: Duration = "30s",
        name: str = "fleet",
        node: str | None = None,
        events: Events | None = None,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        chosen = Freshness() if strategy is None else strategy
        if not isinstance(chosen, Strategy):
            raise ConfigError(f"strategy = {shown(strategy)} is none; give e.g. Freshness('10s')")
        if chosen.longest_hold:
            raise ConfigError(f"{chosen!r} holds its polls, but probes cannot; use another one")
        _check_count(concurrency, "concurrency", MAX_CONCURRENCY)
        if per_host is not None:
            _check_count(per_host, "per_host", MAX_CONCURRENCY)
        if budget is not None and not (
            isinstance(budget, (int, float)) and not isinstance(budget, bool)
            and 0 < budget < math.inf
        ):  # fmt: skip
            raise ConfigError(
                f"budget = {shown(budget)} must be polls a second, above 0 and finite; "
                "None is without"
            )
        self.name = name
        self.events = events or Events()
        self.clock = clock or Clock()
        self.store = store
        self._plan = FleetPlan(
            name=name,
            strategy=chosen,
            concurrency=concurrency,
            per_host=per_host,
            budget=None if budget is None else float(budget),
            grace=seconds(grace, "grace"),
            node=node or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}",
            lease=seconds(lease, "lease", positive=True),
        )
        self._paces: dict[str | None, Pace] = {None: Pace(chosen)}
        self._rules = rules or Rules()
        self._random = Random(seed)
        self._actions: list[Action] = []
        self._chores: list[tuple[str, float, Callable[[], Awaitable[None]]]] = []
        self._planned: dict[str, Entry] = {}  # added, and not yet taken up by a run
        self._scheduler = self._new_scheduler()
        self._before: dict[str, Saved] = {}  # what the run before left
        self._paused: dict[str, bool] = {}  # orders for the next run
        self._now = 0.0
        self._run: Run | None = None
        self._stop_asked = False

    # Targets

    def add(self, *targets: Target) -> None:
        """Poll these from now on; all of them, or none if one is wrong."""
        fresh: dict[str, Entry] = {}
        for target in targets:
            if not isinstance(target, Target):
                raise ConfigError(f"{shown(target)} is no target; give Target(name, probe)")
            if target.name in self or target.name in fresh:
                raise ConfigError(
                    f"there is a target {target.name!r} already; give this one another name, "
                    "or remove the other"
                )
            probe = made(target)
            strategy = self._strategy_of(target)
            host = target.host if target.host is not None else probe.host
            fresh[target.name] = Entry(target, probe.probe, host, strategy)
        if self._run is None or not self._run.taken_up:
            self._planned |= fresh
        else:
            self._run.add(fresh.values())
        if self.events.wants(TargetAdded):
            for target in targets:
                self.events.emit(TargetAdded(self.name, target.name, target.type))

    def remove(self, name: str) -> None:
        """Poll it no more and forget it; what a poll under way brings back is dropped."""
        entry = self._planned.pop(name, None)
        if entry is None:
            entry = self._known(name)
            self._before.pop(name, None)
            self._scheduler.remove(name)
            if self._run is not None:
                self._run.drop(entry)
                self._run.saving.forget(entry)
                self._run.pump()
        target = entry.target
        self.events.emit(TargetRemoved(self.name, target.name, target.type))

    def probe(self, name: str, **plan: Any) -> Callable[[F], F]:
        """Add a target whose probe is the decorated function; `plan` is as for `Target`."""

        def register(function: F) -> F:
            self.add(Target(name, function, **plan))
            return function

        return register

    def on_change(self, handler: A) -> A:
        """Call `handler`, async or plain, with each change of any target."""
        if not callable(handler):
            raise ConfigError(f"{shown(handler)} cannot be called; give a function of one change")
        self._actions.append(handler)
        return handler

    def chore(self, name: str, every: float, work: Callable[[], Awaitable[None]]) -> None:
        """While the fleet runs, do this too every so many seconds, on the timer it has anyway."""
        self._chores.append((name, every, work))

    def pace(self, paces: Mapping[str | None, Pace]) -> None:
        """Go by these paces from now on: None for all, and by group where it differs.

        Nothing learned is lost, and no target is polled later than it was planned.
        """
        self._paces = {None: self._paces[None], **paces}
        for entry in (*self._planned.values(), *self._scheduler.entries.values()):
            strategy = self._strategy_of(entry.target)
            if strategy == entry.strategy:
                continue
            if entry.target.name in self._planned:
                self._planned[entry.target.name] = Entry(
                    entry.target, entry.probe, entry.host, strategy
                )
                self._planned[entry.target.name].paused = entry.paused
            else:
                self._scheduler.repace(entry, strategy, self._time())
        if self._run is not None:
            self._run.pump()

    def _strategy_of(self, target: Target) -> Strategy:
        pace = self._paces.get(target.group) if target.group is not None else None
        return (pace or self._paces[None]).of(target)

    def __contains__(self, name: object) -> bool:
        return name in self._planned or name in self._scheduler.entries

    def __len__(self) -> int:
        return len(self._planned) + len(self._scheduler.entries)

    # What people ask for

    def pause(self, name: str) -> None:
        """Do not poll it until it is resumed; the pause survives restarts."""
        if not self._later(name, paused=True):
            self._order(name, lambda entry, _: self._scheduler.pause(entry))

    def resume(self, name: str) -> None:
        """Poll it again, at its old time if that is still to come."""
        if not self._later(name, paused=False):
            self._order(name, self._scheduler.resume)

    def poll_now(self, name: str) -> None:
        """Poll it next, before its time; one that is paused stays paused afterwards."""
        self._order(name, self._scheduler.poll_now)

    def retry(self, name: str) -> None:
        """Poll a dead letter, or another failing target, next; a success brings it back."""
        self._order(name, self._scheduler.poll_now)

    def reset(self, name: str) -> None:
        """Forget its failures: its breaker closes, it is no dead letter, and it is polled next."""

        def reset(entry: Entry, now: float) -> None:
            self._scheduler.reset(entry, now)
            target = entry.target
            self.events.emit(TargetCondition(self.name, target.name, target.type, "closed"))

        self._order(name, reset)

    def _later(self, name: str, *, paused: bool) -> bool:
        """Note an order for a run that has not begun; False when one is under way."""
        entry = self._known(name)
        if self._run is not None and self._run.taken_up:
            return False
        entry.paused = self._paused[name] = paused
        return True

    def _order(self, name: str, order: Callable[[Entry, float], None]) -> None:
        entry = self._known(name)
        if self._run is None or not self._run.taken_up:
            raise ConfigError(f"the fleet {self.name} does not run, so it cannot poll {name!r} now")
        order(entry, self._time())
        self._run.saving.touch(entry)
        self._run.pump()

    def _known(self, name: str) -> Entry:
        entry = self._scheduler.entries.get(name)
        if entry is None:
            entry = self._planned.get(name)
        if entry is None:
            raise ConfigError(f"there is no target {shown(name)} in this fleet")
        return entry

    # Running

    def run(self, *, signals: bool = True) -> Awaitable[None]:
        """Poll until stopped: blocking, or awaited where an event loop runs already.

        signals: stop on SIGTERM and SIGINT, in the main thread.
        """
        self._stop_asked = False
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(self.run_async(signals=signals))
            return _Over()
        return self.run_async(signals=signals)

    async def run_async(self, *, signals: bool = True) -> None:
        """Poll until stopped."""
        if self._run is not None:
            raise ConfigError(f"the fleet {self.name} runs already; make another one")
        entries = [*map(self._anew, self._scheduler.entries.values()), *self._planned.values()]
        self._planned = {entry.target.name: entry for entry in entries}
        self._scheduler = self._new_scheduler()
        self._run = Run(
            self._plan, self._scheduler, self.store, self._actions, self.clock, self.events
        )
        for chore in self._chores:
            self._run.chore(*chore)
        try:
            if self._stop_asked:
                self._run.stop()
            with stopping_on_signals(self.stop if signals else None):
                async with connections():
                    await self._run.main(self._planned, self._before, self._paused)
        finally:
            self._now = self.clock.now()
            if self.store is None:
                self._before = {
                    name: saved(entry, self._scheduler)
                    for name, entry in self._scheduler.entries.items()
                }
            self._run = None

    def stop(self) -> None:
        """Begin no more polls, finish those under way within the grace. Again: without grace."""
        self._stop_asked = True
        if self._run is not None:
            self._run.stop()

    def _new_scheduler(self) -> Scheduler:
        plan = self._plan
        budget = None if plan.budget is None else Budget(plan.budget)
        return Scheduler(self._rules, plan.per_host, budget, self._random)

    @staticmethod
    def _anew(entry: Entry) -> Entry:
        return Entry(entry.target, entry.probe, entry.host, entry.strategy)

    # Views

    @property
    def node(self) -> str:
        """What this process is called where several share a fleet."""
        return self._plan.node

    def targets(self) -> list[TargetState]:
        """How each target fares."""
        now = self._time()
        every = (*self._scheduler.entries.values(), *self._planned.values())
        return [state_of(entry, self._scheduler, now) for entry in every]

    def state(self, name: str) -> TargetState:
        """How one target fares."""
        return state_of(self._known(name), self._scheduler, self._time())

    def names(self) -> list[str]:
        """The names of all targets, in order."""
        return sorted((*self._scheduler.entries, *self._planned))

    def groups(self) -> set[str]:
        """The groups that targets are in."""
        every = (*self._scheduler.entries.values(), *self._planned.values())
        return {entry.target.group for entry in every if entry.target.group is not None}

    def is_held(self, name: str) -> bool:
        """Whether this node polls it; where nodes do not share, it polls all."""
        return self._known(name).until > self._time()

    def target(self, name: str) -> Target:
        """The plan of one target."""
        return self._known(name).target

    def health(self) -> FleetHealth:
        """How the fleet fares; a broken target makes it no less healthy."""
        run = self._run
        return health_of(
            self._scheduler,
            self._time(),
            name=self.name,
            running=run is not None,
            stuck=0 if run is None else run.stuck,
            polls=0 if run is None else run.polls,
            unsaved=0 if run is None else run.saving.unsaved,
            save_error=None if run is None else run.saving.error,
        )

    def _time(self) -> float:
        return self._now if self._run is None else self.clock.now()


class _Over:
    """What a blocking run returns: awaiting it again is harmless."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


def _check_count(value: object, name: str, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{name} = {value!r} must be a whole number from 1 to {most}")
