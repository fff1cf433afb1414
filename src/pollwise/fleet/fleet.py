"""The fleet: thousands of targets, each polled at its own pace."""

from __future__ import annotations

import math
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from random import Random
from typing import Any, TypeVar

from pollwise.alerts.settings import NO_ALERTS, Alerts
from pollwise.core.strategies.base import Strategy
from pollwise.durations import seconds, shown
from pollwise.errors import ConfigError
from pollwise.fleet.alerting.checks import check_parents, check_rules
from pollwise.fleet.alerting.running import RunningAlerts
from pollwise.fleet.counting import COUNT_EVERY, Counting
from pollwise.fleet.engine.budget import FleetBudget
from pollwise.fleet.engine.observing import event_of
from pollwise.fleet.engine.options import FleetRunOptions, GroupPace
from pollwise.fleet.engine.replacing import ReplacedTargets, replace, same
from pollwise.fleet.engine.restore import saved
from pollwise.fleet.engine.run import FleetRun
from pollwise.fleet.engine.running_target import RunningTarget, unmade
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.history.recorder import ask_maintenance
from pollwise.fleet.probes import host_of, make_probe
from pollwise.fleet.probes.kept import connections
from pollwise.fleet.stores.base import FleetStore, SavedTarget
from pollwise.fleet.targets import Target
from pollwise.fleet.viewing import FleetWithViews
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import (
    Events,
    FleetCounted,
    TargetAdded,
    TargetRemoved,
    TargetStateChanged,
)
from pollwise.runtime.signals import stopping_on_signals

#: How often a running fleet reads the maintenance windows in its store, in seconds.
MAINTENANCE_EVERY = 2.0

F = TypeVar("F", bound=Callable[..., Any])


class Fleet(FleetWithViews):
    """Targets, each polled at its own pace.

        fleet = Fleet(FleetRunOptions(budget=20))

        @fleet.probe("front page", timeout="10s")
        async def front_page(target, context):
            return await fetch("https://example.org/")

        @fleet.on_change
        async def report(notice):
            print(notice.payload["text"])

        asyncio.run(fleet.run())

    options: how it runs.
    store: keeps the state over restarts; None keeps nothing.
    name: name of the fleet in events and metrics.
    node: name of this process where several share the store; by default, its host and process id.
    alerts: channels for the alerts of its targets, and which of them hear of what.
    """

    def __init__(
        self,
        options: FleetRunOptions | None = None,
        *,
        store: FleetStore | None = None,
        name: str = "fleet",
        node: str | None = None,
        events: Events | None = None,
        clock: Clock | None = None,
        alerts: Alerts = NO_ALERTS,
    ) -> None:
        self.options: FleetRunOptions = options or FleetRunOptions()
        self.name = name
        self.node: str = node or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self.events: Events = events or Events()
        self.clock: Clock = clock or Clock()
        #: Problems of the fleet itself, as text for people, by topic.
        self.problems: dict[str, str] = {}
        self._paces: dict[str | None, GroupPace] = {None: GroupPace(self.options.strategy)}
        detect = self.options.detect_within
        self._detect_within = None if detect is None else seconds(detect, "detect_within")
        self._random = Random(self.options.seed)
        super().__init__(store, self.clock, alerts)
        self._chores: list[tuple[str, float, Callable[[], Awaitable[None]]]] = []
        #: Targets that no run has taken yet.
        self._planned: dict[str, RunningTarget] = {}
        self._forget_views()
        self._scheduler = self._new_scheduler()
        #: Without a store: what the previous run knew.
        self._before: dict[str, SavedTarget] = {}
        #: Pauses and resumptions for the next run.
        self._paused: dict[str, bool] = {}
        if store is not None:
            self.chore("read maintenance windows", MAINTENANCE_EVERY, self.read_maintenance)
        self._now = 0.0
        self._run: FleetRun | None = None
        self._stop_asked = False

    # Targets

    def add(self, *targets: Target) -> None:
        """Poll these from now on; adds all of them, or none if one is wrong."""
        fresh: dict[str, RunningTarget] = {}
        for target in targets:
            if isinstance(target, Target) and (target.name in self or target.name in fresh):
                raise ConfigError(
                    f"target {target.name!r} already exists; names must be unique: choose another "
                    "name, or remove the existing target"
                )
            entry = self._make_entry(target)
            fresh[target.name] = entry
        self._check_parents(fresh)
        self._take(fresh)

    def check(self, target: Target, *, alone: bool = False, read: bool = False) -> None:
        """Refuse a target that this fleet could not take: ConfigError. It need not be new.

        alone: do not check whether the targets exist that it is behind.
        read: as for `replace`.
        """
        self._make_entry(target, read=read)
        if alone:
            return
        every = {name: self._known(name).target for name in self.names()}
        check_parents({**every, target.name: target})

    def _check_parents(
        self, fresh: Mapping[str, RunningTarget], gone: Collection[str] = ()
    ) -> None:
        """Refuse what would be behind an unknown target, or in a circle."""
        entries = {**self._scheduler.entries, **self._planned, **fresh}
        left = {name: entry.target for name, entry in entries.items() if name not in gone}
        check_parents(left)

    def _make_entry(self, target: Target, *, read: bool = False) -> RunningTarget:
        if not isinstance(target, Target):
            raise ConfigError(f"expected a Target, got {shown(target)}")
        if target.confirm_from > 1 and (self.store is None or not self.store.shared):
            what = "no store" if self.store is None else f"the store {self.store.url}"
            raise ConfigError(
                f"target {target.name!r}: confirm_from = {target.confirm_from} needs nodes at "
                f"several locations that share a store, and this fleet has {what}, which cannot be "
                "shared; use a store on Postgres"
            )
        named = isinstance(target.probe, str)
        probe = unmade if read and named else make_probe(target)
        strategy = self._strategy_of(target)
        if target.alerts:
            check_rules(target, self.alerts, probe)
        return RunningTarget(
            target, probe, host_of(target, probe), strategy, target.within(self._detect_within)
        )

    def _take(self, fresh: dict[str, RunningTarget]) -> None:
        self._forget_views()
        if self._run is None or not self.running:
            self._planned |= fresh
        else:
            self._run.add(fresh.values())
            for entry in fresh.values():
                if entry.until != -math.inf:  # else it is known once a node has claimed it
                    self._run.saving.touch(entry)
        if self.events.wants(TargetAdded):
            for entry in fresh.values():
                target = entry.target
                self.events.emit(event_of(TargetAdded, self.name, target))

    def replace(self, targets: Iterable[Target], *, read: bool = False) -> ReplacedTargets:
        """Poll exactly these targets from now on; changes nothing if one of them is wrong.

        Targets whose definition is the same keep their state and the time of their next poll.
        Changed ones keep their state and what was learned; if something else is polled now, it is
        polled within a minute, spread out, and its first reading is not a change. Targets that are
        not among these are removed, as by `remove`.

        read: they were read from definitions, which made their probes once to check them, so each
            probe is only made again for the first poll.
        """
        every = list(targets)
        named = {each.name for each in every if isinstance(each, Target)}
        return self.update(every, [name for name in self.names() if name not in named], read=read)

    def update(
        self, targets: Iterable[Target], remove: Iterable[str] = (), *, read: bool = False
    ) -> ReplacedTargets:
        """Add or change these targets and remove those; the others go on, see `replace`."""
        fresh: dict[str, RunningTarget] = {}
        changed: dict[str, RunningTarget] = {}
        kept: dict[str, Target] = {}
        for target in targets:
            if not isinstance(target, Target):
                raise ConfigError(f"expected a Target, got {shown(target)}")
            known = self._find(target.name)
            if target.name in fresh or target.name in changed or target.name in kept:
                raise ConfigError(f"target {target.name!r} is given twice; names must be unique")
            if known is None:
                fresh[target.name] = self._make_entry(target, read=read)
            elif same(known.target, target):
                kept[target.name] = target
            else:
                changed[target.name] = self._make_entry(target, read=read)
        gone = [self._known(name).target.name for name in remove]
        self._check_parents({**fresh, **changed}, gone)
        for name, target in kept.items():
            entry = self._known(name)
            if self._run is not None and entry.target.written != target.written:
                self._run.saving.touch(entry)
            entry.target = target
        for name, entry in changed.items():
            self._change(name, entry)
        for name in gone:
            self.remove(name)
        if fresh:
            self._take(fresh)
        if self._run is not None:
            self._run.pump()
        return ReplacedTargets(tuple(fresh), tuple(changed), tuple(gone))

    def _change(self, name: str, entry: RunningTarget) -> None:
        """Poll a target by the definition of this entry."""
        self._forget_views()
        old = self._known(name)
        before, after = old.target, entry.target
        if (before.type, before.group) != (after.type, after.group):  # for metrics
            self.events.emit(event_of(TargetRemoved, self.name, before))
            self.events.emit(event_of(TargetAdded, self.name, after))
        if self._run is None or not self.running:
            self._scheduler.entries.pop(name, None)  # of the previous run; its state is kept
            entry.paused = old.paused
            self._planned[name] = entry
            return
        new = replace(self._scheduler, old, entry, self._time())
        self._run.drop(old)
        self._run.replaced(old, new)
        self._run.saving.touch(new)

    def remove(self, name: str) -> None:
        """Stop polling a target and delete its state; the result of a poll in progress is
        dropped."""
        entry = self._planned.pop(name, None)
        self._forget_views()
        if entry is None:
            entry = self._known(name)
            self._before.pop(name, None)
            self._scheduler.remove(name)
            if self._run is not None:
                self._run.drop(entry)
                self._run.replaced(entry, None)
                self._run.saving.remove(entry)
                self._run.pump()
        target = entry.target
        self.events.emit(event_of(TargetRemoved, self.name, target))

    def probe(self, name: str, **plan: Any) -> Callable[[F], F]:
        """Add a target whose probe is the decorated function; `plan` is as for `Target`."""
        if callable(name):  # `@fleet.probe` without parentheses would add nothing
            raise ConfigError("give the target's name: @fleet.probe('orders')")

        def register(function: F) -> F:
            self.add(Target(name, function, **plan))
            return function

        return register

    def chore(self, name: str, every: float, work: Callable[[], Awaitable[None]]) -> None:
        """Call `work` every `every` seconds while the fleet runs, on the fleet's own timer."""
        self._chores.append((name, every, work))

    @property
    def paces(self) -> Mapping[str | None, GroupPace]:
        """The paces in use: None for all targets, and by group where it differs."""
        return dict(self._paces)

    def pace(self, paces: Mapping[str | None, GroupPace]) -> None:
        """Use these paces from now on: None for all targets, and by group where it differs.

        What was learned is kept, and no target is polled later than planned.
        """
        before, self._paces = self._paces, {None: self._paces[None], **paces}
        if self._paces == before:
            return
        for entry in (*self._planned.values(), *self._scheduler.entries.values()):
            strategy = self._strategy_of(entry.target)
            if strategy == entry.strategy:
                continue
            if entry.target.name in self._planned:
                fresh = RunningTarget(entry.target, entry.probe, entry.host, strategy, entry.within)
                fresh.paused = entry.paused
                self._planned[entry.target.name] = fresh
            else:
                self._scheduler.repace(entry, strategy, self._time())
        if self._run is not None:
            self._run.pump()

    def _strategy_of(self, target: Target) -> Strategy:
        pace = self._paces.get(target.group) if target.group is not None else None
        return (pace or self._paces[None]).of(target, self._detect_within)

    # Orders

    def pause(self, name: str) -> None:
        """Do not poll it until it is resumed; the pause survives restarts."""
        if not self._later(name, paused=True):
            self._order(name, lambda entry, _: self._scheduler.pause(entry))

    def resume(self, name: str) -> None:
        """Poll it again, at its planned time if that is still in the future."""
        if not self._later(name, paused=False):
            self._order(name, self._scheduler.resume)

    def poll_now(self, name: str) -> None:
        """Poll it next, whenever it is due; a paused target stays paused afterwards."""
        self._order(name, self._scheduler.poll_now)

    def retry(self, name: str) -> None:
        """Poll a dead or failing target next; a success brings it back."""
        self._order(name, self._scheduler.poll_now)

    def close_breaker(self, name: str) -> None:
        """Clear its failures: its breaker closes, it is not dead any more, and it is polled
        next."""

        def close_breaker(entry: RunningTarget, now: float) -> None:
            before = self._scheduler.state(entry)
            self._scheduler.close_breaker(entry, now)
            if before != "closed":
                states = "closed", before
                self.events.emit(event_of(TargetStateChanged, self.name, entry.target, *states))

        self._order(name, close_breaker)

    def _later(self, name: str, *, paused: bool) -> bool:
        """Keep a pause or its end for the next run; False while one is running."""
        entry = self._known(name)
        if self.running:
            return False
        entry.paused = self._paused[name] = paused
        self._counted = None
        return True

    def _order(self, name: str, order: Callable[[RunningTarget, float], None]) -> None:
        entry = self._known(name)
        if self._run is None or not self.running:
            raise ConfigError(f"fleet {self.name} is not running, so it cannot poll {name!r} now")
        order(entry, self._time())
        self._counted = None
        self._run.saving.touch_now(entry)
        self._run.pump()

    # Running

    async def run(self) -> None:
        """Poll until stopped."""
        if self._run is not None:
            raise ConfigError(f"fleet {self.name} is already running; create another one")
        again = {
            name: RunningTarget(each.target, each.probe, each.host, each.strategy, each.within)
            for name, each in self._scheduler.entries.items()
        }
        self._planned = {**again, **self._planned}
        self._scheduler = self._new_scheduler()
        self._run = FleetRun(
            self.name, self.node, self.options, self._scheduler, self.store, self.clock,
            self.events,
        )  # fmt: skip
        alerts = self._running_alerts = RunningAlerts(
            self.name, self.node, self._run, self.store, self._memory_alerts, self.clock,
            self.events, self.alerts, self._listeners, self.maintenance,
        )  # fmt: skip
        ask_maintenance(self._run.observers, self.maintenance)
        for chore in self._chores:
            self._run.chore(*chore)
        if self.events.wants(FleetCounted):
            count = Counting(self.name, self._scheduler, self.clock, self.events)
            self._run.chore("count targets", COUNT_EVERY, count)
        try:
            if self._stop_asked:
                self._run.stop()
            grace = seconds(self.options.grace, "grace")
            with stopping_on_signals(self.stop if self.options.signals else None, grace):
                async with connections(), alerts:
                    await self._run.main(self._planned, self._before, self._paused)
        finally:
            self._now = self.clock.now()
            if self.store is None:
                self._before = {
                    name: saved(entry, self._scheduler)
                    for name, entry in self._scheduler.entries.items()
                }
            self._run = self._running_alerts = None
            self._stop_asked = False

    def stop(self) -> None:
        """Start no more polls and finish those in progress; a second call ends the grace."""
        self._stop_asked = True
        if self._run is not None:
            self._run.stop()

    def _new_scheduler(self) -> Scheduler:
        chosen, budget = self.options, None
        if chosen.budget is not None:
            budget = FleetBudget(float(chosen.budget), chosen.budget_burst, chosen.goal)
        return Scheduler(chosen.rules, chosen.per_host, budget, self._random)
