"""Counts the targets that a process polls, by type and group, for metrics.

A fleet may have a million targets, so they are counted in portions between which polls go on, and
not more often than the time it takes allows.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping

from pollwise.fleet.engine.running_target import RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.stores.base import TARGET_STATES
from pollwise.fleet.views import RESTING, is_stale_here, plan_here
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, FleetCounted, TargetTally

#: Seconds between two counts; and at least this many times as long as a count takes.
COUNT_EVERY = 10.0
COUNTING_SHARE = 100.0
#: Number of targets that are counted before other tasks get a turn.
PORTION = 500
BREAKER_STATES = ("closed", "half-open", "open")


def breakers_of(states: Mapping[str, int]) -> dict[str, int]:
    """The number of breakers in each state, from the number of targets in each state.

    The breaker of a target that is confirming or backing off is still closed, and that of a dead
    one is open.
    """
    opened, half = states["open"] + states["dead"], states["half-open"]
    return {"closed": sum(states.values()) - opened - half, "half-open": half, "open": opened}


class _GroupCount:
    """The targets of one type and group, while they are counted."""

    def __init__(self) -> None:
        self.states: Counter[str] = Counter()
        self.plans: Counter[str] = Counter()
        self.never = self.down = self.stale = 0
        self.oldest: float | None = None
        self.score = 0.0

    def add(self, entry: RunningTarget, scheduler: Scheduler, plan: str, now: float) -> None:
        self.states[scheduler.state(entry)] += 1
        self.plans[plan] += 1
        self.down += entry.down_since is not None
        self.stale += is_stale_here(entry, scheduler, now)
        if plan in RESTING:
            return
        at = entry.succeeded_at
        if at is None:
            self.never += 1
        elif self.oldest is None or at < self.oldest:
            self.oldest = at
        self.score = max(self.score, entry.score(now))

    def result(self, type: str, group: str, now: float) -> TargetTally:
        plans = self.plans
        return TargetTally(
            type,
            group,
            targets=sum(self.states.values()),
            states=tuple((each, self.states[each]) for each in TARGET_STATES),
            breakers=tuple(breakers_of(self.states).items()),
            never=self.never,
            down=self.down,
            stale=self.stale,
            due=plans["due"] + plans["overdue"],
            overdue=plans["overdue"],
            paused=plans["paused"],
            quiet=plans["quiet"],
            staleness=None if self.oldest is None else max(now - self.oldest, 0.0),
            score=self.score,
        )


async def tallied(scheduler: Scheduler, clock: Clock) -> tuple[TargetTally, ...]:
    """The counts of the targets that this node polls."""
    found: dict[tuple[str, str], _GroupCount] = {}
    entries = list(scheduler.entries.values())
    for place, entry in enumerate(entries, 1):
        now = clock.now()
        plan = plan_here(entry, scheduler, now)
        if plan != "elsewhere":
            key = entry.target.type, entry.target.group or ""
            tally = found.get(key)
            if tally is None:
                tally = found[key] = _GroupCount()
            tally.add(entry, scheduler, plan, now)
        if place % PORTION == 0:
            await asyncio.sleep(0)
    now = clock.now()
    return tuple(each.result(*key, now) for key, each in sorted(found.items()))


class Counting:
    """Emits `FleetCounted`; a chore of a fleet calls it."""

    def __init__(self, name: str, scheduler: Scheduler, clock: Clock, events: Events) -> None:
        self._name = name
        self._scheduler = scheduler
        self._clock = clock
        self._events = events
        self._again_at = 0.0

    async def __call__(self) -> None:
        scheduler = self._scheduler
        if self._clock.now() < self._again_at:
            return
        began = time.process_time()
        tallies = await tallied(scheduler, self._clock)
        pause = COUNTING_SHARE * (time.process_time() - began)
        self._again_at = self._clock.now() + (pause if pause > COUNT_EVERY else 0.0)
        due = sum(each.due for each in tallies)
        self._events.emit(FleetCounted(self._name, tallies, scheduler.depth, due))
