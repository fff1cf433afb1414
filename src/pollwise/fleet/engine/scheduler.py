"""The scheduler decides which target is polled next, and when again. It has no tasks and no timers;
callers pass the time.

Every target is in one place: on the agenda, waiting for its host, being polled, or gone. Taking it
off the agenda starts a poll, and only the end of that poll puts it back, so no target is polled
twice at once, and none is lost. Only the end of a poll moves a due time further away; everything
else moves it nearer. (Except that missed polls are spread, see `restore.catch_up`.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random

from pollwise.core.agenda import Agenda
from pollwise.core.grid import point_after, spread
from pollwise.core.host_limits import HostLimits
from pollwise.core.jitter import jittered
from pollwise.core.outcome import Outcome
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import JITTER, FreshnessPacer
from pollwise.errors import ConfigError
from pollwise.fleet.engine.budget import FleetBudget
from pollwise.fleet.engine.failures import FailureDecision, FailureRules, Unconfirmed
from pollwise.fleet.engine.running_target import AGENDA, FLIGHT, GONE, WAITING, RunningTarget
from pollwise.fleet.targets import Reading

#: A new target is first polled within its interval, and within this many seconds.
FIRST_WITHIN = 60.0


def _stalest_first(entry: RunningTarget) -> tuple[float, str]:
    """Orders targets that are due together: the stalest at that time, then by name."""
    return -entry.score(entry.due), entry.target.name


class Scheduler:
    """All targets of a fleet and their due times. Times are of the loop's clock."""

    def __init__(
        self, rules: FailureRules, per_host: int | None, budget: FleetBudget | None, random: Random
    ) -> None:
        self.rules = rules
        self.budget = budget
        self.entries: dict[str, RunningTarget] = {}
        #: Number of targets that this node holds; without other nodes, all.
        self.held: int = 0
        #: By due time, then priority, then score, then name. Parked targets are not on it.
        self.agenda: Agenda[RunningTarget] = Agenda(ties=_stalest_first)
        #: Seconds since 1970 minus the loop's time, for quiet hours and saved times.
        self.offset: float = 0.0
        #: Number of targets that are due and wait for a slot, as last counted by the run.
        self.queued = 0
        #: Number of polls in progress.
        self.flying: int = 0
        self.waiting: int = 0
        #: Targets that quiet hours defer, and when they would be due.
        self.deferred: dict[RunningTarget, float] = {}
        self._hosts: HostLimits[RunningTarget] = HostLimits(per_host or math.inf, _stalest_first)
        #: Targets removed during their poll, by name, and the new target of that name that waits.
        self._leaving: dict[str, RunningTarget | None] = {}
        self._random = random.random

    # Adding and removing

    def add(self, entries: Iterable[RunningTarget], now: float) -> None:
        """Plan new targets on the grids of their names, with the first poll soon, or as planned."""
        fresh = list(entries)
        for entry in fresh:
            if entry.target.name in self.entries:
                raise ConfigError(
                    f"target {entry.target.name!r} already exists; names must be unique"
                )
            self.entries[entry.target.name] = entry
            self.held += entry.until != -math.inf
        if self.budget is not None:
            others = len(self.entries)
            self._allot(now)
            for entry in fresh:
                self._join(entry, others)
        for entry in fresh:
            if math.isinf(entry.due):
                entry.interval = self._first_interval(entry)
                entry.due = min(self.on_grid(entry, now), self._soon(entry, now))
            if entry.fixed:
                entry.interval = entry.strategy.min_interval
                entry.grid = self.on_grid(entry, now)
            entry.place = AGENDA
            self._plan(entry, entry.due)

    def remove(self, name: str) -> RunningTarget:
        """Remove a target. If it is being polled, the result is dropped."""
        entry = self.entries.pop(name)
        self.held -= entry.until != -math.inf
        if self.budget is not None:
            self.budget.leave(entry)
            self._allot(None)
        self.deferred.pop(entry, None)
        if entry.place == FLIGHT:
            self._leaving[name] = None
        else:
            self._cancel_wait(entry)
            self.agenda.remove(entry)
            self._promote(entry.host)
        entry.place = GONE
        return entry

    def _first_interval(self, entry: RunningTarget) -> float:
        if self.budget is not None and entry.share is not None:
            return self.budget.even(entry)
        if entry.pacer is None:
            return entry.strategy.min_interval
        return entry.pacer.first().delay

    def _soon(self, entry: RunningTarget, now: float) -> float:
        """Latest time of the first poll of a new target, so that a mistake shows within a minute
        and not within its interval. A budget is respected."""
        within = FIRST_WITHIN
        if self.budget is not None:
            within = max(within, len(self.entries) / self.budget.polls)
        if within >= entry.interval or entry.polled_at is not None:
            return math.inf  # its grid is soon enough
        return now + spread(entry.target.name) * within

    def on_grid(self, entry: RunningTarget, now: float) -> float:
        """The next point of a target's grid, which its name gives it: one an interval."""
        phase = spread(entry.target.name) * entry.interval
        return point_after(phase - self.offset, entry.interval, now)

    # Polls

    def next_start(self, now: float) -> float:
        """When the next poll can start: its target is due and the budget has a token."""
        due = self.agenda.first_due()
        if self.budget is None or due == math.inf:
            return due
        return max(due, self.budget.tokens.ready_at(now))

    def take(self, now: float) -> RunningTarget | None:
        """Take the next target that is due and may be polled; None if there is none."""
        if self.budget is not None and not self.budget.tokens.has(now):
            return None
        while (first := self.agenda.pop_due(now)) is not None:
            entry = first.key
            if entry.until <= now:  # its lease expired without renewal
                entry.place = AGENDA
                self.lose(entry)
                continue
            entry.ensure_probe()
            if self._leaving and entry.target.name in self._leaving:
                self._leaving[entry.target.name] = entry
                self._promote(entry.host)
            elif entry.host is None or self._hosts.enter(
                entry.host, entry, entry.due, entry.target.priority
            ):
                return self._start(entry)
            entry.place = WAITING
            self.waiting += 1
        return None

    def _start(self, entry: RunningTarget) -> RunningTarget:
        entry.place = FLIGHT
        self.flying += 1
        if self.budget is not None:
            self.budget.tokens.spend()
        return entry

    def changed(self, entry: RunningTarget, reading: Reading) -> bool:
        """True if the reading changed. The first reading never counts as a change."""
        return entry.reading is not None and entry.reading.value != reading.value

    def succeeded(self, entry: RunningTarget, reading: Reading, at: float, now: float) -> None:
        """Record a poll that succeeded at `at`."""
        if self._landed(entry):
            return
        changed = self.changed(entry, reading)
        waits: tuple[float, ...] = ()
        if changed:
            entry.changed_at = at
            if reading.changed_at is not None:
                waits = (max(at + self.offset - reading.changed_at, 0.0),)
        entry.reading = reading
        entry.polled_at = entry.succeeded_at = at
        entry.failures = 0
        entry.failing_since = entry.down_since = None
        if entry.dead:
            entry.dead = entry.permanent = False
            self._rejoin(entry)
        if entry.pacer is None:
            self._plan_fixed(entry, now)
        else:
            self._plan(entry, max(at + self._paced(entry, at, changed, waits), now))

    def _paced(
        self, entry: RunningTarget, at: float, changed: bool, waits: tuple[float, ...]
    ) -> float:
        pacer, strategy = entry.pacer, entry.strategy
        assert pacer is not None  # noqa: S101 - for the type checker
        learns = type(pacer) is FreshnessPacer
        if learns:
            pacer.queued = self.queued  # type: ignore[attr-defined]
        interval = pacer.after(Outcome(at, 1 if changed else 0, 1, waits)).delay
        interval = min(interval, entry.within)
        if self.budget is not None:
            if entry.share is None:
                if not learns and not self._parked(entry):
                    self.budget.take(entry, 1.0 / interval)
            elif learns:
                interval = self.budget.interval(entry, pacer.changes)  # type: ignore[attr-defined]
        entry.interval = interval
        longest = min(strategy.max_interval, entry.within)
        return jittered(
            interval, min(strategy.min_interval, longest), longest, self._random(), JITTER
        )

    def failed(
        self,
        entry: RunningTarget,
        error: str,
        permanent: bool,
        at: float,
        wait: float = 0.0,
        unconfirmed: Unconfirmed | None = None,
    ) -> FailureDecision | None:
        """Record a failed poll; None if its target was removed.

        wait: seconds that the source asked to wait, which is respected up to a limit.
        unconfirmed: if other locations did not see the failure, or not yet.
        """
        if self._landed(entry):
            return None
        entry.polled_at = entry.failed_at = at
        entry.failures += 1
        if entry.failing_since is None:
            entry.failing_since = at
        entry.error = error
        if entry.pacer is not None:
            entry.pacer.after(Outcome(at, 0, 1, failed=True))
        if unconfirmed is None:
            decision = self.rules.failed(
                entry.failures,
                permanent=permanent,
                dead=entry.dead,
                soon=min(entry.strategy.min_interval, entry.interval),
                u=self._random(),
                dead_after=entry.target.dead_after,
                within=entry.within,
                exact_for=at - entry.failing_since if entry.fixed else None,
            )
            down = decision.dead or entry.failures > self.rules.confirmations
        else:
            decision, down = FailureDecision(min(unconfirmed.delay, entry.within), False), False
            if unconfirmed.well:
                entry.failing_since = None
            entry.failures = min(entry.failures, max(self.rules.confirmations, 1))
        entry.permanent = permanent and unconfirmed is None
        if decision.dead != entry.dead:
            entry.dead = decision.dead
            self._rejoin(entry)
        entry.down_since = entry.failing_since if down else None
        due = at + decision.delay
        if not decision.dead and entry.grid is not None:  # not later than its next regular poll
            due = min(due, point_after(entry.grid, entry.interval, at))
        wait = min(wait, self.rules.longest_wait(entry.strategy.max_interval), entry.within)
        if due < at + wait:
            due, decision = at + wait, decision._replace(delay=wait)
        self._plan(entry, due)
        return decision

    def abandoned(self, entry: RunningTarget) -> None:
        """Record a poll that ended without a result; its due time stays."""
        if not self._landed(entry):
            self._plan(entry, entry.due)

    def _landed(self, entry: RunningTarget) -> bool:
        """End the poll of a target; True if the target was removed."""
        self.flying -= 1
        if entry.host is not None:
            self._hosts.leave(entry.host)
            self._promote(entry.host)
        if entry.place == GONE:
            namesake = self._leaving.pop(entry.target.name)
            if namesake is not None:
                self._stop_wait(namesake)
            return True
        entry.place = AGENDA
        return False

    def _promote(self, host: str | None) -> None:
        """End the wait of one target for this host, if the host has room.

        To be called after each poll there, and if a target that had waited was not polled after
        all (paused, removed, lost).
        """
        follower = self._hosts.follower(host)
        if follower is not None:
            self._stop_wait(follower)

    def _stop_wait(self, entry: RunningTarget) -> None:
        self.waiting -= 1
        entry.place = AGENDA
        self._on_agenda(entry)

    def _cancel_wait(self, entry: RunningTarget) -> None:
        """End the wait of a target without a poll, if it waits."""
        if entry.place != WAITING:
            return
        self.waiting -= 1
        entry.place = AGENDA
        if self._leaving.get(entry.target.name) is entry:
            self._leaving[entry.target.name] = None
        elif entry.host is not None:
            self._hosts.forget(entry.host, entry)

    # Planning

    def _plan(self, entry: RunningTarget, due: float) -> None:
        quiet = entry.target.quiet
        if quiet is not None:
            ends = quiet.ends(due + self.offset)
            if ends is None:
                self.deferred.pop(entry, None)
            else:
                self.deferred[entry] = due
                due = self._after_quiet(entry, ends - self.offset)
        entry.due = due
        self._on_agenda(entry)

    def _after_quiet(self, entry: RunningTarget, ends: float) -> float:
        """A time after quiet hours; spread out, so that not all targets are polled at once."""
        if entry.grid is None:
            return ends + spread(entry.target.name) * entry.interval
        point = point_after(entry.grid, entry.interval, ends)
        return ends if point - ends >= entry.interval else point

    def _plan_fixed(self, entry: RunningTarget, now: float) -> None:
        """Plan the next point of its grid; missed points are skipped."""
        entry.interval = entry.strategy.min_interval
        if entry.grid is None:
            entry.grid = entry.due
        self._plan(entry, point_after(entry.grid, entry.interval, now))

    def _on_agenda(self, entry: RunningTarget) -> None:
        if self._parked(entry):
            self.agenda.remove(entry)
        else:
            self.agenda.upsert(entry, entry.due, entry.target.priority)

    def _parked(self, entry: RunningTarget) -> bool:
        return entry.paused or entry.until == -math.inf

    def _join(self, entry: RunningTarget, others: int) -> None:
        if self.budget is None or self._parked(entry):
            return
        if entry.dead:
            self.budget.take(entry, 1.0 / self.every(entry))
        else:
            self.budget.join(entry, others)

    def _rejoin(self, entry: RunningTarget) -> None:
        """Give a target that died or came back its new part of the budget."""
        if self.budget is not None:
            self.budget.leave(entry)
            self._join(entry, len(self.entries))

    # Orders

    def pause(self, entry: RunningTarget) -> None:
        """Stop polling it; a poll in progress is finished."""
        if not entry.paused:
            entry.paused = True
            self._park(entry)

    def resume(self, entry: RunningTarget, now: float) -> None:
        """Poll it again, at its planned time if that is still in the future."""
        if entry.paused:
            entry.paused = False
            self._unpark(entry, now)

    def poll_now(self, entry: RunningTarget, now: float) -> None:
        """Poll it next, paused or not, before those that wait already; a poll in progress counts
        as that poll. With a budget it takes a token, as every poll."""
        if entry.place == FLIGHT or entry.until == -math.inf:
            return
        self.deferred.pop(entry, None)
        entry.due = min(entry.due, now)
        first = self.agenda.first_due()
        if first < entry.due:
            entry.due = math.nextafter(first, -math.inf)
        if entry.place == AGENDA:
            self.agenda.upsert(entry, entry.due, entry.target.priority)

    def close_breaker(self, entry: RunningTarget, now: float) -> None:
        """Clear its failures, close its breaker, and poll it next."""
        entry.failures = 0
        entry.failing_since = entry.down_since = None
        entry.permanent = False
        if entry.dead:
            entry.dead = False
            self._rejoin(entry)
        if not entry.paused:
            self.poll_now(entry, now)

    def repace(self, entry: RunningTarget, strategy: Strategy, now: float) -> None:
        """Use another strategy from now on, keeping what was learned; never polls later than
        planned."""
        learner, succeeded_at = entry.learner, entry.succeeded_at
        if self.budget is not None:
            self.budget.leave(entry)
        entry.strategy = strategy
        entry.pacer = None if isinstance(strategy, Fixed) else strategy.pacer()
        if learner is not None and entry.learner is not None:
            entry.learner.changes = learner.changes
            if succeeded_at is not None:
                entry.learner.after(Outcome(succeeded_at, 0, 1))
        self._join(entry, len(self.entries))
        failing = entry.dead or entry.failures > 0
        if not failing:
            entry.interval = min(max(entry.interval, strategy.min_interval), strategy.max_interval)
        entry.grid = None
        if entry.place != AGENDA:
            return  # it is planned when its poll ends
        due = self.deferred.get(entry, entry.due)
        if not failing and not math.isinf(due):
            due = min(due, self.on_grid(entry, now))
        if entry.fixed:
            entry.grid = due
        self._plan(entry, due)

    # Nodes

    def hold(self, entry: RunningTarget, token: int, until: float, now: float) -> None:
        """Record that this node holds it until `until`."""
        lost = entry.until == -math.inf
        entry.token, entry.until = token, until
        if lost:
            self.held += 1
            self._allot(now)
            if not entry.paused:
                self._unpark(entry, now)

    def lose(self, entry: RunningTarget) -> None:
        """Stop polling it here: another node may hold it."""
        if entry.until != -math.inf:
            entry.until = -math.inf
            self.held -= 1
            self._allot(None)
            self._park(entry)

    def _allot(self, now: float | None) -> None:
        """Use the part of the budget that belongs to the targets held here."""
        if self.budget is not None and self.entries:
            self.budget.allot(self.held / len(self.entries), now)

    def _park(self, entry: RunningTarget) -> None:
        if self.budget is not None:
            self.budget.leave(entry)
        if entry.place in (AGENDA, WAITING):
            self._cancel_wait(entry)
            self._on_agenda(entry)
            self._promote(entry.host)

    def _unpark(self, entry: RunningTarget, now: float) -> None:
        if math.isinf(entry.due):
            entry.due = self.on_grid(entry, now)
        self._join(entry, len(self.entries))
        if entry.place == AGENDA:
            self._plan(entry, entry.due)

    # Time

    def stepped(self, offset: float) -> None:
        """Apply an adjustment of the wall clock, which only quiet hours depend on."""
        self.offset = offset
        for entry in self.entries.values():
            if entry.target.quiet is not None and entry.place == AGENDA:
                self._plan(entry, self.deferred.get(entry, entry.due))
                self._promote(entry.host)

    @property
    def depth(self) -> int:
        """Number of planned polls, due or not: on the agenda, or waiting for their host."""
        return len(self.agenda) + self.waiting

    def count_due(self, now: float, maximum: int = 1000) -> int:
        """Number of targets that wait for a slot or for their host."""
        return self.agenda.count_due(now, maximum) + self.waiting

    def every(self, entry: RunningTarget) -> float:
        """The current seconds between two polls of a target; of a dead one, between rechecks."""
        return min(self.rules.recheck, entry.within) if entry.dead else entry.interval

    def state(self, entry: RunningTarget) -> str:
        """The state of a target."""
        return self.rules.state(entry.failures, dead=entry.dead, asked=entry.place == FLIGHT)
