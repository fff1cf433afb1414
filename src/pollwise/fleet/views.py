"""The state of a fleet and of its targets as plain values.

Times are in seconds since 1970, None if never. A fleet saves at most once a second, so for other
processes, which see its store, the state is that far behind. A target that became due a moment ago
is probably being polled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Protocol

from pollwise.core.strategies.freshness import staleness_score
from pollwise.fleet.engine.restore import saved
from pollwise.fleet.engine.run import FleetRun
from pollwise.fleet.engine.running_target import FLIGHT, WAITING, RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.stores.base import TARGET_STATES, SavedTarget, TargetOrder
from pollwise.fleet.stores.paging import plan_of, polled_every
from pollwise.fleet.targets import TIMEOUT

#: A target is stale if its last success is older than this many intervals plus its timeout.
STALE_INTERVALS = 2.0
#: Type of a target that only the store knows.
UNKNOWN = "?"
#: The fields of a state that are shown as they are saved.
_AS_SAVED = (
    "name", "paused", "failures", "error", "polled_at", "succeeded_at", "failed_at", "changed_at",
)  # fmt: skip
#: The plans of targets that are not polled on purpose: their age misses no goal.
RESTING = ("paused", "quiet")
#: Maximum number of names in `dead_targets`.
NAMES_MAX = 100


@dataclass(frozen=True, slots=True)
class TargetState:
    """The state of one target.

    state: closed, confirming, backing off, open, half-open or dead.
    plan: whether it is due: one of PLANS; see `plan_of`.
    next_at: time of the next poll; None while it is paused or polled by another node.
    interval: seconds between two polls; while it fails, from its last poll to the next.
    deferred_since: when it would have been polled without its quiet hours; None if they defer
        nothing.
    behind: the targets whose outage holds its alerts back.
    down_since: when the failures began that are now confirmed; None while it is not down.
    origin: where it is defined: "file", "api" or "code"; None if that is not known here.
    staleness: age of its last success; None if it never succeeded.
    diff: the last change of the text that its probe selects; None if it selects none.
    score: how stale it is, from 0 to 1: its staleness as a share of its max_interval, or 1 if it
        never succeeded. None if its max_interval is not known.
    locations: the last poll from each location, if failures are confirmed from several: location,
        at, ok, took and error.
    living_locations: number of locations with a living node, if they are fewer than the target asks
        for: then these decide. None if they suffice.
    pending: orders that no node carried out yet, oldest first.
    """

    name: str
    type: str
    group: str | None
    state: str
    paused: bool
    polling: bool
    waiting: bool
    held: bool
    plan: str
    next_at: float | None
    deferred_since: float | None
    interval: float
    failures: int
    error: str | None
    permanent: bool
    polled_at: float | None
    succeeded_at: float | None
    failed_at: float | None
    changed_at: float | None
    down_since: float | None
    staleness: float | None
    score: float | None
    stale: bool
    changes_per_second: float | None
    summary: str | None
    facts: dict[str, Any]
    diff: str | None
    origin: str | None
    locations: tuple[Mapping[str, Any], ...] = ()
    living_locations: int | None = None
    pending: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        # Not `asdict`, which copies all values: a page of the API has many targets.
        return {name: getattr(self, name) for name in _STATE_FIELDS}


_STATE_FIELDS = tuple(each.name for each in fields(TargetState))


@dataclass(frozen=True, slots=True)
class FleetState:
    """The state of a fleet.

    targets: number of targets. target_list: the state of each, sorted by name.
    queue_depth: targets whose next poll is planned, due or not. due: those that are due and wait
        for a slot, their host or the budget. overdue: those that wait for more than 5 seconds.
        quiet: those that quiet hours defer.
    states: number of targets in each state. stale: number of targets that are older than they
        should be. never: number that never succeeded.
    problems: what is wrong with the fleet itself, for people.
    """

    name: str
    running: bool
    targets: int
    queue_depth: int
    due: int
    overdue: int
    quiet: int
    in_flight: int
    stuck: int
    paused: int
    dead: int
    stale: int
    states: dict[str, int]
    dead_targets: list[str]
    stalest: str | None
    staleness: float | None
    never: int
    polls: int
    budget: float | None
    budget_asked: float | None
    unsaved: int
    problems: list[str]
    target_list: list[TargetState] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Definition(Protocol):
    """What is shown of a target's definition: a `Target`, or what a view read of it."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def group(self) -> str | None: ...
    @property
    def timeout(self) -> float: ...
    @property
    def behind(self) -> tuple[str, ...]: ...
    @property
    def origin(self) -> str: ...


def saved_state(
    target: Definition | None,
    kept: SavedTarget,
    now: float,
    *,
    held: bool = True,
    here: Mapping[str, Any] = MappingProxyType({}),
) -> TargetState:
    """The state of one target; all times are in seconds since 1970.

    here: values that are known better in this process than from what is kept.
    """
    reading = kept.more.get("reading") or {}
    changes, seen_from = kept.more.get("changes"), kept.more.get("locations") or {}
    age = None if kept.succeeded_at is None else max(now - kept.succeeded_at, 0.0)
    interval = kept.interval or 0.0
    deferred = kept.more.get("deferred")
    longest = kept.more.get("max_interval")
    state = kept.state
    due = kept.due if kept.due is not None and math.isfinite(kept.due) else None
    if state == "open" and due is not None and due <= now:
        state = "half-open"
    known = {
        "type": (kept.type or UNKNOWN) if target is None else target.type,
        "group": kept.group if target is None else target.group,
        "state": state,
        "polling": False,
        "waiting": False,
        "held": held,
        "plan": plan_of(
            due,
            now,
            succeeded_at=kept.succeeded_at,
            paused=kept.paused,
            deferred=deferred is not None,
        ),
        "next_at": None if kept.paused else due,
        "deferred_since": deferred,
        "interval": _shown_interval(kept, due),
        "permanent": bool(kept.more.get("permanent")),
        "down_since": kept.more.get("failing_since") if kept.more.get("down") else None,
        "staleness": age,
        "score": 1.0 if age is None else None if longest is None else staleness_score(age, longest),
        "stale": _is_stale(kept, age_without_quiet(age, deferred, now), interval, _timeout(target)),
        "changes_per_second": changes[0] if changes else None,
        "summary": reading.get("summary"),
        "facts": reading.get("facts") or {},
        "diff": reading.get("diff"),
        "origin": None if target is None else target.origin,
        "locations": tuple(seen_from.get("results", ())),
        "living_locations": seen_from.get("living"),
        "behind": tuple(kept.more.get("behind", ()) if target is None else target.behind),
    }
    as_saved = {name: getattr(kept, name) for name in _AS_SAVED}
    return TargetState(**as_saved, **{**known, **here})


def _shown_interval(kept: SavedTarget, due: float | None) -> float:
    """The interval; of a failing target the delay that its failures ask for."""
    usual = kept.interval or 0.0
    if "deferred" in kept.more:
        return usual
    return polled_every(kept.state, usual, kept.polled_at, due) or 0.0


def _timeout(target: Definition | None) -> float:
    return TIMEOUT if target is None else target.timeout


def age_without_quiet(age: float | None, deferred_since: float | None, now: float) -> float | None:
    """The age of the last success when quiet hours began to defer the next poll. Else the age."""
    if age is None or deferred_since is None:
        return age
    return max(age - max(now - deferred_since, 0.0), 0.0)


def _is_stale(
    seen: SavedTarget | RunningTarget, age: float | None, interval: float, timeout: float
) -> bool:
    """True if it is older than its interval allows; a target that was never polled is not.

    age: as `age_without_quiet` gives it: what was fresh before its quiet hours stays fresh.
    """
    if seen.paused:
        return False
    if age is None:
        return seen.failures > 0
    return age > STALE_INTERVALS * interval + timeout


def target_state(entry: RunningTarget, scheduler: Scheduler, now: float) -> TargetState:
    """The state of one target now."""
    held, offset = entry.until > now, scheduler.offset
    here = {
        "state": scheduler.state(entry),
        "plan": plan_here(entry, scheduler, now),
        "polling": entry.place == FLIGHT,
        "waiting": entry.place == WAITING,
        "next_at": entry.due + offset if held and not entry.paused else None,
    }
    kept = saved(entry, scheduler, whole=False)
    return saved_state(entry.target, kept, now + offset, held=held, here=here)


def plan_here(entry: RunningTarget, scheduler: Scheduler, now: float) -> str:
    """What this node plans for a target: one of PLANS."""
    return plan_of(
        entry.due,
        now,
        succeeded_at=entry.succeeded_at,
        paused=entry.paused,
        elsewhere=entry.until <= now,
        polling=entry.place == FLIGHT,
        deferred=entry in scheduler.deferred,
    )


def is_stale_here(entry: RunningTarget, scheduler: Scheduler, now: float) -> bool:
    """True if a target of this process is older than its interval allows."""
    age = None if entry.succeeded_at is None else max(now - entry.succeeded_at, 0.0)
    age = age_without_quiet(age, scheduler.deferred.get(entry), now)
    return _is_stale(entry, age, entry.interval, entry.target.timeout)


def few_locations(living: Sequence[int]) -> str:
    """A warning if too few locations live; living: how many, for each target that asks for more."""
    asked = "target asks" if len(living) == 1 else "targets ask"
    locations = "location has" if min(living) == 1 else "locations have"
    return (
        f"{len(living)} {asked} for confirmation from several locations, but only {min(living)} "
        f"{locations} a living node: nothing else is asked; start a node elsewhere"
    )


class Census:
    """Counts the targets of a fleet; a million of them are counted in portions."""

    def __init__(self, scheduler: Scheduler, now: float) -> None:
        self.scheduler = scheduler
        self._now = now
        self.states: Counter[str] = Counter()
        self.plans: Counter[str] = Counter()
        self.dead: list[str] = []
        self.living: list[int] = []
        self.stale = self.never = self.held = 0
        self.oldest: RunningTarget | None = None

    def count(self, entries: Iterable[RunningTarget]) -> None:
        scheduler, now, oldest = self.scheduler, self._now, self.oldest
        first = math.inf if oldest is None else oldest.succeeded_at or 0.0
        inf, deferred = math.inf, bool(scheduler.deferred)
        usual = 0
        for entry in entries:
            at = entry.succeeded_at
            if (
                at is not None
                and not (entry.failures or entry.dead or entry.paused or deferred)
                and at <= now < entry.due < inf
                and now < entry.until
                and not entry.place  # AGENDA
                and entry.seen_from is None
                and (
                    now - at <= entry.interval
                    or now - at <= STALE_INTERVALS * entry.interval + entry.target.timeout
                )
            ):  # as nearly all are: the same as below, in a tenth of the time
                usual += 1
                if at < first:
                    oldest, first = entry, at
                continue
            self.held += entry.until > now
            self.states[scheduler.state(entry)] += 1
            plan = plan_here(entry, scheduler, now)
            self.plans[plan] += 1
            self.stale += is_stale_here(entry, scheduler, now)
            self.never += at is None
            if entry.seen_from is not None and entry.seen_from.living is not None:
                self.living.append(entry.seen_from.living)
            if entry.dead and len(self.dead) < NAMES_MAX:
                self.dead.append(entry.target.name)
            if at is not None and plan not in RESTING and at < first:
                oldest, first = entry, at
        self.held += usual
        self.states["closed"] += usual
        self.plans["planned"] += usual
        self.oldest = oldest

    def state(self, name: str, run: FleetRun | None) -> FleetState:
        """The state of the fleet, without `target_list`."""
        scheduler, states, plans, oldest = self.scheduler, self.states, self.plans, self.oldest
        now, budget = self._now, scheduler.budget
        problems = []
        if run is not None and run.saving.error is not None:
            problems.append(f"state is not saved: {run.saving.error}")
        if run is not None and run.stuck:
            stuck = len(run.stuck)
            problems.append(f"{stuck} poll(s) still run after their cancellation at the deadline")
        if budget is not None and budget.asked > budget.polls:
            problems.append(
                f"fixed intervals, rechecks and max_intervals need {budget.asked:.3g} polls a "
                f"second, but the budget is {budget.polls:.3g}: raise it, or the max_intervals"
            )
        if self.living:
            problems.append(few_locations(self.living))
        return FleetState(
            name=name,
            running=run is not None,
            targets=len(scheduler.entries),
            queue_depth=scheduler.depth,
            due=scheduler.count_due(now, max(len(scheduler.entries), 1)),
            overdue=plans["overdue"],
            quiet=plans["quiet"],
            in_flight=scheduler.flying,
            stuck=0 if run is None else len(run.stuck),
            paused=plans["paused"],
            dead=states["dead"],
            stale=self.stale,
            states={each: states[each] for each in TARGET_STATES},
            dead_targets=self.dead,
            stalest=None if oldest is None else oldest.target.name,
            staleness=None if oldest is None else max(now - (oldest.succeeded_at or 0.0), 0.0),
            never=self.never,
            polls=0 if run is None else run.polls,
            budget=None if budget is None else budget.polls,
            budget_asked=None if budget is None else budget.asked,
            unsaved=0 if run is None else run.saving.unsaved,
            problems=problems,
        )


# The saved state, as other processes see it


def states(
    targets: Iterable[Definition],
    saved: Iterable[SavedTarget],
    now: float,
    pending: Iterable[TargetOrder] = (),
) -> list[TargetState]:
    """The saved state of each target; targets without a saved state were never polled.

    pending: orders that are not carried out yet.
    """
    kept = {each.name: each for each in saved}
    known = {target.name: target for target in targets}
    # Without a file of targets: those in the store, of which some may be defined there.
    whole = any(target.origin != "api" for target in known.values())
    names = known if whole else {**known, **kept}
    found = [saved_state(known.get(name), kept.get(name, SavedTarget(name)), now) for name in names]
    return with_pending(found, pending)


def with_pending(every: Iterable[TargetState], pending: Iterable[TargetOrder]) -> list[TargetState]:
    """The states with the orders that are not carried out yet."""
    waiting: dict[str, tuple[str, ...]] = {}
    for order in pending:
        waiting[order.name] = (*waiting.get(order.name, ()), order.what)
    return [
        replace(each, pending=waiting[each.name]) if each.name in waiting else each
        for each in every
    ]


def after_orders(each: TargetState) -> TargetState:
    """The state of a target once its pending orders are carried out."""
    for what in each.pending:
        if what in ("pause", "resume"):
            each = replace(each, paused=what == "pause")
        elif what == "close-breaker":
            each = replace(each, state="closed", failures=0)
    return each


def summary(every: Sequence[TargetState]) -> dict[str, Any]:
    """Figures over all targets."""
    states = Counter(each.state for each in every)
    dead = [each.name for each in every if each.state == "dead"]
    plans = Counter(each.plan for each in every)
    ages = [each for each in every if each.staleness is not None and each.plan not in RESTING]
    oldest = max(ages, key=lambda each: each.staleness or 0.0, default=None)
    return {
        "targets": len(every),
        "queue_depth": sum(each.next_at is not None for each in every),
        "due": plans["due"] + plans["overdue"],
        "overdue": plans["overdue"],
        "quiet": plans["quiet"],
        "paused": plans["paused"],
        "pending": sum(len(each.pending) for each in every),
        "dead": len(dead),
        "dead_targets": dead[:NAMES_MAX],
        "states": {each: states[each] for each in TARGET_STATES},
        "stale": sum(each.stale for each in every),
        "never": sum(each.succeeded_at is None for each in every),
        "stalest": None if oldest is None else oldest.name,
        "staleness": None if oldest is None else oldest.staleness,
    }


def counted_targets(count: int) -> str:
    """A number of targets in words: 1 target, 2 targets."""
    return "1 target" if count == 1 else f"{count} targets"


def stalest_first(every: Iterable[TargetState]) -> list[TargetState]:
    """The targets by the age of their last success: never first, then the oldest; then those in
    quiet hours, and paused ones last."""

    def order(each: TargetState) -> tuple[bool, bool, float, str]:
        never = float("inf") if each.staleness is None else each.staleness
        return each.paused, each.plan == "quiet", -never, each.name

    return sorted(every, key=order)


def target_json(each: TargetState) -> Mapping[str, Any]:
    """A target for the API and for scripts."""
    known = each.as_dict()
    return {
        "from": known.pop("origin"),
        **known,
        "last_success_at": each.succeeded_at,
        "last_error": each.error,
        "last_error_at": each.failed_at,
    }
