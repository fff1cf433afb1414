"""The scheduler against a model: every live target has exactly one next run."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pollwise.core.grid import spread
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.errors import ConfigError
from pollwise.fleet.engine.budget import FleetBudget
from pollwise.fleet.engine.failures import FailureRules
from pollwise.fleet.engine.running_target import AGENDA, FLIGHT, GONE, WAITING, RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.targets import Reading, Target

PER_HOST = 2
PLACES = 5


async def probe(target: Target, context: object) -> None: ...


def entry_of(name: str, strategy: Any = None, **given: Any) -> RunningTarget:
    target = Target(name, probe, **given)
    return RunningTarget(target, probe, target.host, strategy or Freshness())


def scheduler_of(**given: Any) -> Scheduler:
    usual = {"rules": FailureRules(), "per_host": PER_HOST, "budget": None, "random": Random(1)}
    return Scheduler(**{**usual, **given})


# The agenda


def test_order_is_due_then_priority_then_score_then_name() -> None:
    """As in Pulse's queue: of targets due together, the stalest first, then by name."""
    scheduler = scheduler_of()
    for name, due, priority, succeeded_at in [
        ("d", 400, 9, None), ("c", 300, 0, 200), ("b", 300, 0, 200), ("a", 300, -1, None),
        ("e", 300, 5, 290), ("f", 300, 0, 90), ("g", 300, 0, None),
    ]:  # fmt: skip
        entry = entry_of(name, priority=priority)
        entry.due, entry.succeeded_at = due, succeeded_at
        scheduler.add([entry], 0.0)
    order = []
    while (taken := scheduler.take(500.0)) is not None:
        order.append(taken.target.name)
    assert order == ["e", "g", "f", "b", "c", "a", "d"]
    assert scheduler.agenda.first_due() == math.inf


def test_namesakes_are_never_compared() -> None:
    """What is left in the heap of a target that is gone ties with the new one of its name."""
    scheduler = scheduler_of()
    for _ in range(3):
        entry = entry_of("a")
        entry.due = 1.0
        scheduler.add([entry], 0.0)
        scheduler.remove("a")
    entry = entry_of("a")
    entry.due = 1.0
    scheduler.add([entry], 0.0)
    assert scheduler.take(1.0) is entry
    assert scheduler.take(1.0) is None


@pytest.mark.parametrize("how", ["pause", "lose"])
def test_parked_targets_are_not_on_the_agenda(how: str) -> None:
    scheduler = scheduler_of()
    entries = [entry_of(name) for name in "ab"]
    scheduler.add(entries, 0.0)
    getattr(scheduler, how)(entries[0])
    assert len(scheduler.agenda) == 1
    assert scheduler.count_due(1e9) == 1
    scheduler.poll_now(entries[0], 0.0)
    assert len(scheduler.agenda) == (2 if how == "pause" else 1)


# Planning


def test_first_polls_are_spread_and_a_restart_keeps_the_phase() -> None:
    dues = []
    for offset in (1e9, 1e9 + 12_345.6):
        scheduler = scheduler_of()
        scheduler.offset = offset
        scheduler.add([entry_of(str(n)) for n in range(1000)], now=5.0)
        found = [entry.due for entry in scheduler.entries.values()]
        assert all(5.0 < due <= 15.0 for due in found)
        counts = [sum(5 + n < due <= 6 + n for due in found) for n in range(10)]
        assert min(counts) > 60
        dues.append([(due + offset) % 10.0 for due in found])
    for one, other in zip(*dues, strict=True):
        assert min(abs(one - other), 10 - abs(one - other)) < 1e-5
    assert 0 <= spread("") < 1


def test_a_known_name_is_refused() -> None:
    scheduler = scheduler_of()
    scheduler.add([entry_of("a")], 0.0)
    with pytest.raises(ConfigError, match="'a' already"):
        scheduler.add([entry_of("a")], 0.0)


def test_replanning_never_pushes_a_due_time_away() -> None:
    scheduler = scheduler_of()
    entry = entry_of("a")
    scheduler.add([entry], 0.0)
    due = entry.due
    for now in (1.0, 2.0):
        scheduler.resume(entry, now)
        scheduler.pause(entry)
        scheduler.pause(entry)
        scheduler.resume(entry, now)
        scheduler.stepped(scheduler.offset + 1e6)
        assert entry.due == due
    scheduler.poll_now(entry, due + 100)
    assert entry.due == due, "due for long already"


def test_a_fixed_interval_skips_what_was_missed_and_keeps_its_grid() -> None:
    scheduler = scheduler_of()
    entry = entry_of("a", Fixed("10s"))
    scheduler.add([entry], 0.0)
    first = entry.due
    assert scheduler.take(first) is entry
    scheduler.succeeded(entry, Reading("x"), first + 34, first + 34)
    assert entry.due == first + 40
    assert scheduler.take(first + 40) is entry
    scheduler.failed(entry, "no", False, first + 47)
    assert entry.due == first + 50, "confirmed at its own time, which is sooner"


@pytest.mark.parametrize("how", ["remove", "pause", "lose", "quiet"])
def test_waiting_for_a_host_ends_when_another_target_is_not_polled(how: str) -> None:
    """Those let go when a poll ends may be paused or removed before their turn comes."""
    scheduler = scheduler_of()
    quiet = "00:00-06:00" if how == "quiet" else None
    entries = [entry_of(f"t{n}", host="h", quiet=quiet) for n in range(4)]
    entries.append(entry_of("last", host="h"))
    scheduler.offset = 12 * 3600.0
    scheduler.add(entries, 0.0)
    for n, entry in enumerate(entries):
        scheduler.pause(entry)
        entry.due = float(n)
        scheduler.resume(entry, 0.0)
    first = [scheduler.take(10.0), scheduler.take(10.0)]
    assert first == entries[:2]
    assert scheduler.take(10.0) is None
    assert scheduler.waiting == 3
    for entry in entries[:2]:
        scheduler.succeeded(entry, Reading("x"), 10.0, 10.0)
    assert scheduler.waiting == 1
    for entry in entries[2:4]:
        if how == "remove":
            scheduler.remove(entry.target.name)
        elif how == "pause":
            scheduler.pause(entry)
        elif how == "lose":
            scheduler.lose(entry)
    if how == "quiet":
        scheduler.stepped(0.0)  # the clock is set back to midnight
    assert scheduler.take(10.0) is entries[4]
    assert scheduler.waiting == 0


# The state machine

names = st.integers(0, 11).map(lambda n: f"t{n}")


class EveryTargetHasOneNextRun(RuleBasedStateMachine):
    budget: float | None = None

    def __init__(self) -> None:
        super().__init__()
        budget = None if self.budget is None else FleetBudget(self.budget)
        self.scheduler = scheduler_of(budget=budget)
        self.live: dict[str, RunningTarget] = {}
        self.flying: list[RunningTarget] = []
        self.now = 0.0

    @rule(name=names, fixed=st.booleans(), host=st.sampled_from([None, "h", "h"]))
    def add(self, name: str, fixed: bool, host: str | None) -> None:
        entry = entry_of(name, Fixed("7s") if fixed else None, host=host)
        if name in self.live:
            with pytest.raises(ConfigError):
                self.scheduler.add([entry], self.now)
        else:
            self.scheduler.add([entry], self.now)
            self.live[name] = entry

    @rule(name=names)
    def remove(self, name: str) -> None:
        if name in self.live:
            assert self.scheduler.remove(name) is self.live.pop(name)

    @rule(name=names, what=st.sampled_from(["pause", "resume", "poll_now", "close_breaker"]))
    def order(self, name: str, what: str) -> None:
        entry = self.live.get(name)
        if entry is None:
            return
        if what == "pause":
            self.scheduler.pause(entry)
            assert entry.paused
        else:
            getattr(self.scheduler, what)(entry, self.now)

    @rule(name=names, lose=st.booleans())
    def lease(self, name: str, lose: bool) -> None:
        entry = self.live.get(name)
        if entry is not None and lose:
            self.scheduler.lose(entry)
        elif entry is not None:
            self.scheduler.hold(entry, 1, math.inf, self.now)

    @rule(by=st.sampled_from([0.0, 1.0, 5.0, 60.0, 2000.0]))
    def time_passes(self, by: float) -> None:
        self.now += by

    @rule()
    def take(self) -> None:
        if len(self.flying) < PLACES:
            entry = self.scheduler.take(self.now)
            if entry is not None:
                assert entry.due <= self.now
                names = [each.target.name for each in self.flying]
                assert entry.target.name not in names, "polled twice at once"
                self.flying.append(entry)
                at_host = [each for each in self.flying if each.host == entry.host]
                assert entry.host is None or len(at_host) <= PER_HOST

    @precondition(lambda self: self.flying)
    @rule(place=st.integers(0, PLACES), how=st.sampled_from(["same", "new", "no", "never", "cut"]))
    def land(self, place: int, how: str) -> None:
        entry = self.flying.pop(place % len(self.flying))
        if how == "cut":
            self.scheduler.abandoned(entry)
        elif how in ("no", "never"):
            self.scheduler.failed(entry, how, how == "never", self.now)
        else:
            value = "same" if how == "same" else str(self.now)
            self.scheduler.succeeded(entry, Reading(value), self.now, self.now)
        if entry.place != GONE and how != "cut":
            assert entry.due > self.now

    @invariant()
    def exactly_one_next_run(self) -> None:
        scheduler = self.scheduler
        assert scheduler.entries == self.live
        hosts = scheduler._hosts.hosts.values()
        waiting = {entry for host in hosts for entry in self.live.values() if entry in host.waiting}
        assert len(waiting) == sum(len(host.waiting) for host in hosts)
        waiting |= {entry for entry in scheduler._leaving.values() if entry is not None}
        assert scheduler.waiting == len(waiting)
        assert scheduler.flying == len(self.flying)
        for entry in self.live.values():
            parked = entry.paused or entry.until == -math.inf
            assert math.isfinite(entry.due)
            assert (entry.place == FLIGHT) == (entry in self.flying)
            assert (entry.place == WAITING) == (entry in waiting)
            if entry.place == AGENDA and not parked:
                assert scheduler.agenda.due(entry) == entry.due, f"{entry} is forgotten"
            if entry.place != AGENDA:
                assert entry not in scheduler.agenda
        counted = [entry for entry in self.live.values() if entry in scheduler.agenda]
        assert len(scheduler.agenda) == len(counted)

    @invariant()
    def who_waits_waits_for_somebody(self) -> None:
        scheduler = self.scheduler
        for name, host in scheduler._hosts.hosts.items():
            if len(host.waiting):
                there = [e for e in self.live.values() if e.host == name]
                let_go = [e for e in there if e in scheduler.agenda and e.due <= self.now]
                assert host.busy or let_go, f"those at {name} wait for nobody"
        flying = {entry.target.name for entry in self.flying if entry.place == GONE}
        assert set(scheduler._leaving) == flying

    @invariant()
    def the_budget_knows_who_shares(self) -> None:
        budget = self.scheduler.budget
        if budget is None:
            return
        parked = [e for e in self.live.values() if e.paused or e.until == -math.inf]
        for entry in self.live.values():
            shares = entry.share is not None
            assert shares == (not entry.fixed and not entry.dead and entry not in parked)
            outside = (entry.fixed or entry.dead) and entry not in parked
            assert (entry in budget._taken) == outside
        assert len(budget._shares) == sum(e.share is not None for e in self.live.values())
        assert budget._outside == pytest.approx(sum(budget._taken.values()), abs=1e-9)


class EveryTargetHasOneNextRunWithABudget(EveryTargetHasOneNextRun):
    budget = 3.0


MACHINES = (EveryTargetHasOneNextRun, EveryTargetHasOneNextRunWithABudget)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_live_target_has_exactly_one_next_run(machine: type[RuleBasedStateMachine]) -> None:
    few = settings(max_examples=30, stateful_step_count=60, deadline=None)
    run_state_machine_as_test(machine, settings=few)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("machine", MACHINES)
def test_many_examples(machine: type[RuleBasedStateMachine]) -> None:
    many = settings(
        max_examples=500,
        stateful_step_count=200,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=many)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("machine", MACHINES)
def test_thousands_of_steps(machine: type[EveryTargetHasOneNextRun], seed: int) -> None:
    drawn(machine, seed, 3000)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("machine", MACHINES)
def test_ten_thousand_steps(machine: type[EveryTargetHasOneNextRun], seed: int) -> None:
    drawn(machine, seed, 10_000)


def drawn(machine: type[EveryTargetHasOneNextRun], seed: int, steps: int) -> None:
    """Longer runs than Hypothesis draws, for what shows only after many steps."""
    random, it = Random(seed), machine()
    for _ in range(steps):
        name = f"t{random.randrange(12)}"
        what = random.random()
        if what < 0.1:
            it.add(name, random.random() < 0.3, random.choice([None, "h", "h"]))
        elif what < 0.15:
            it.remove(name)
        elif what < 0.25:
            it.order(
                name, random.choice(["pause", "resume", "resume", "poll_now", "close_breaker"])
            )
        elif what < 0.3:
            it.lease(name, random.random() < 0.3)
        elif what < 0.4:
            it.time_passes(random.choice([0.0, 1.0, 5.0, 60.0, 2000.0]))
        elif what < 0.75:
            it.take()
        elif it.flying:
            it.land(random.randrange(PLACES), random.choice(["same", "new", "no", "never", "cut"]))
        it.exactly_one_next_run()
        it.who_waits_waits_for_somebody()
        it.the_budget_knows_who_shares()
