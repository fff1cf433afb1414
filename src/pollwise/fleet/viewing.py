"""What a fleet says of itself and its targets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from pollwise.durations import shown
from pollwise.errors import ConfigError
from pollwise.fleet.alerting.fleet import FleetWithAlerts
from pollwise.fleet.engine.restore import saved
from pollwise.fleet.engine.run import FleetRun
from pollwise.fleet.engine.running_target import RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.stores.base import SavedTarget, TargetPage
from pollwise.fleet.stores.paging import (
    TargetCounts,
    TargetFilter,
    ViewedTarget,
    counts_of,
    page_names,
    polled_every,
)
from pollwise.fleet.targets import Target
from pollwise.fleet.views import Census, FleetState, TargetState, target_state

#: Number of targets that are counted before other tasks get a turn.
PORTION = 2000
#: Counting walks over all targets, so a count is used again for this many times as long as it took;
#: orders and changes of targets end that.
COUNTING_SHARE = 20.0


class FleetWithViews(FleetWithAlerts):
    """The part of a fleet that answers questions."""

    name: str
    #: Problems of the fleet itself, as text for people, by topic.
    problems: dict[str, str]
    #: Targets that no run has taken yet.
    _planned: dict[str, RunningTarget]
    _scheduler: Scheduler
    _run: FleetRun | None
    _now: float
    #: All names, sorted, and those of each group; None after a change.
    _names: list[str] | None
    _by_group: dict[str | None, list[str]] | None
    #: The last count, and until when it is used again; None after a change.
    _counted: tuple[Census, float] | None

    def __contains__(self, name: object) -> bool:
        return name in self._planned or name in self._scheduler.entries

    def __len__(self) -> int:
        return len(self._planned) + len(self._scheduler.entries)

    @property
    def running(self) -> bool:
        """True while it polls."""
        return self._run is not None and self._run.loaded

    @property
    def in_flight(self) -> int:
        """Number of polls in progress in this process."""
        return self._scheduler.flying

    def not_ready(self) -> list[str]:
        """Why it cannot do its work now, for people; empty if it can."""
        return ["not running"] if self._run is None else self._run.not_ready()

    def state(self, *, targets: bool = True) -> FleetState:
        """The state of the whole fleet.

        targets: off leaves `target_list` empty, which is cheaper for a large fleet.
        """
        census = Census(self._scheduler, self._time())
        census.count(self._scheduler.entries.values())
        state = self._whole_state(census)
        if targets:
            state.target_list.extend(self.target(name) for name in self.names())
        return state

    async def figures(self) -> tuple[FleetState, int]:
        """The state without its targets, and how many targets this node holds; counted in portions,
        between which polls go on. Of a large fleet, the count may be some seconds old."""
        counted, scheduler = self._counted, self._scheduler
        if counted is None or counted[0].scheduler is not scheduler or counted[1] <= self._time():
            self._counted = counted = await self._count()
        return self._whole_state(counted[0]), counted[0].held

    async def _count(self) -> tuple[Census, float]:
        """A new count, and until when it is used again."""
        took, census = 0.0, Census(self._scheduler, self._time())
        entries = list(self._scheduler.entries.values())
        for place in range(0, len(entries), PORTION):
            began = time.process_time()
            census.count(entries[place : place + PORTION])
            took += time.process_time() - began
            await asyncio.sleep(0)
        reused = COUNTING_SHARE * took if len(entries) > PORTION else 0.0
        return census, self._time() + reused

    def _forget_views(self) -> None:
        """Targets were added, changed or removed, or an order was carried out."""
        self._names = self._by_group = self._counted = None

    def _whole_state(self, census: Census) -> FleetState:
        state = census.state(self.name, self._run)
        state.problems.extend(self.problems.values())
        unsent = None if self._running_alerts is None else self._running_alerts.problem()
        if unsent is not None:
            state.problems.append(unsent)
        return state

    def target(self, name: str) -> TargetState:
        """The state of one target."""
        return target_state(self._known(name), self._scheduler, self._time())

    def page(self, chosen: TargetFilter) -> TargetPage:
        """A page of the targets, as they are now in this process."""
        names, after = page_names(self._viewed(), chosen)
        return TargetPage([self.saved(name) for name in names], after)

    def saved(self, name: str) -> SavedTarget:
        """The state of one target as a store would keep it."""
        return saved(self._known(name), self._scheduler)

    def counts(self) -> TargetCounts:
        """How many targets are in each group and state; walks over all targets."""
        return counts_of(self._viewed(), self._time() + self._scheduler.offset)

    def _viewed(self) -> Iterator[ViewedTarget]:
        scheduler, offset = self._scheduler, self._scheduler.offset
        for entry in (*scheduler.entries.values(), *self._planned.values()):
            at = entry.succeeded_at
            state = scheduler.rules.state(entry.failures, dead=entry.dead, asked=False)
            yield ViewedTarget(
                entry.target.name,
                entry.target.group,
                state,
                entry.paused,
                None if at is None else at + offset,
                entry.due + offset,
                polled_every(state, scheduler.every(entry), entry.polled_at, entry.due),
            )

    def definition(self, name: str) -> Target:
        """A target as it was added."""
        return self._known(name).target

    def definitions(self, origin: str | None = None) -> list[Target]:
        """The targets that are defined there: "code", "file" or "api"; None for all."""
        every = (*self._scheduler.entries.values(), *self._planned.values())
        return [entry.target for entry in every if origin in (None, entry.target.origin)]

    def names(self) -> list[str]:
        """The names of all targets, sorted."""
        if self._names is None:
            self._names = sorted((*self._scheduler.entries, *self._planned))
        return list(self._names)

    def names_of_group(self, group: str) -> list[str]:
        """The names of the targets in a group, sorted."""
        if self._by_group is None:
            self._by_group = {}
            for name in self.names():
                self._by_group.setdefault(self._known(name).target.group, []).append(name)
        return list(self._by_group.get(group, ()))

    def matching(
        self, names: Sequence[str], state: str | None = None, group: str | None = None
    ) -> list[str]:
        """Those of these targets that have this state and group; None for any. Those that other
        nodes poll have any state."""
        now, scheduler, planned = self._time(), self._scheduler, self._planned
        find = scheduler.entries.get
        found = [(name, entry) for name in names if (entry := find(name) or planned.get(name))]
        if state is not None and state != "closed":  # nearly all are closed
            found = [
                each for each in found if each[1].failures or each[1].dead or each[1].until <= now
            ]
        return [
            name
            for name, entry in found
            if group in (None, entry.target.group)
            and (state is None or entry.until <= now or scheduler.state(entry) == state)
        ]

    def groups(self) -> set[str]:
        """The groups of the targets."""
        self.names_of_group("")
        return {group for group in self._by_group or () if group is not None}

    def is_held(self, name: str) -> bool:
        """True if this node polls it; without other nodes it polls all targets."""
        return self._known(name).until > self._time()

    def _find(self, name: str) -> RunningTarget | None:
        return self._scheduler.entries.get(name) or self._planned.get(name)

    def _known(self, name: str) -> RunningTarget:
        entry = self._find(name)
        if entry is None:
            raise ConfigError(f"this fleet has no target {shown(name)}")
        return entry

    def _time(self) -> float:
        return self._now if self._run is None else self.clock.now()
