"""Pages of targets, and counts over them, for views that must not read a whole fleet.

A view shows one state for each target: `paused`, `new` (it never succeeded and did not fail), or
the saved state. SQL stores compute the same in their statements.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from pollwise.errors import ConfigError
from pollwise.runtime.store import check_page

TargetSort = Literal["name", "stale", "next"]
TARGET_SORTS: tuple[TargetSort, ...] = get_args(TargetSort)
#: The states that a view shows, the worst first.
VIEWED_STATES = ("dead", "open", "backing off", "confirming", "new", "paused", "closed")
#: The longest text to search for, in characters.
TEXT_MAX = 255
#: A target is overdue this many seconds after its due time: until then it is being polled or saved.
OVERDUE = 5.0
#: What is planned for a target; see `plan_of`.
PLANS = ("paused", "elsewhere", "polling", "overdue", "due", "quiet", "planned", "unplanned")
#: Sorts behind every time.
_LAST = 1e300


def is_overdue(due: float | None, succeeded_at: float | None, now: float) -> bool:
    """True if a target that is not paused should have been polled by now.

    A success in the future counts too: the clock was set back since, so the due time is also too
    late, and nobody planned the target again. The SQL stores compute the same in `counts`.
    """
    return (due is not None and due < now - OVERDUE) or was_set_back(succeeded_at, now)


def was_set_back(at: float | None, now: float) -> bool:
    """True if the clock was set back since `at`, the time of a poll."""
    return at is not None and at > now + OVERDUE


def polled_every(
    state: str, interval: float | None, polled_at: float | None, due: float | None
) -> float | None:
    """Seconds between two polls of a target; while it fails, from its last poll to the next.

    The SQL stores compute the same in `counts`.
    """
    if state == "closed" or polled_at is None or due is None or due <= polled_at:
        return interval
    return due - polled_at


def plan_of(
    due: float | None,
    now: float,
    *,
    succeeded_at: float | None = None,
    paused: bool = False,
    elsewhere: bool = False,
    polling: bool = False,
    deferred: bool = False,
) -> str:
    """What is planned for a target, one of PLANS. All views use it.

    - paused: no poll until somebody resumes it.
    - elsewhere: another node polls it, and this one does not know when.
    - polling: it is being polled.
    - overdue: it should have been polled OVERDUE seconds ago or earlier.
    - due: it waits for a free slot, its host or the budget.
    - quiet: its quiet hours defer the poll until they end.
    - planned: its next poll is later. A dead target's is its recheck.
    - unplanned: no node planned it yet.
    """
    if paused:
        return "paused"
    if polling:
        return "polling"
    if elsewhere:
        return "elsewhere"
    if is_overdue(due, succeeded_at, now):
        return "overdue"
    if due is None or not math.isfinite(due):
        return "unplanned"
    if due <= now:
        return "due"
    return "quiet" if deferred else "planned"


@dataclass(frozen=True, slots=True)
class TargetFilter:
    """Which targets a page shows, in which order, and which page; None means any.

    state: one of VIEWED_STATES. group: "" for targets without a group.
    text: part of the name; upper and lower case of A to Z are equal.
    sort: by name; by the age of the last success, the oldest first; or by the time of the next
        poll. Paused targets come last in both.
    after: the `next` of the page before.
    """

    state: str | None = None
    group: str | None = None
    text: str | None = None
    sort: TargetSort = "name"
    limit: int = 50
    after: str | None = None

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in VIEWED_STATES:
            raise ConfigError(f"state = {self.state!r} is not one of {', '.join(VIEWED_STATES)}")
        if self.sort not in TARGET_SORTS:
            raise ConfigError(f"sort = {self.sort!r} is not one of {', '.join(TARGET_SORTS)}")
        for name in ("group", "text"):
            value = getattr(self, name)
            if value is not None and (len(value) > TEXT_MAX or "\0" in value):
                raise ConfigError(f"{name} must be text of at most {TEXT_MAX} characters")
        check_page(self.limit)
        _ = self.place  # refuses a wrong cursor now

    @property
    def narrows(self) -> bool:
        """True if it leaves targets out."""
        return (self.state, self.group, self.text) != (None, None, None)

    @property
    def place(self) -> tuple[float, str]:
        """The sort value and the name after which the page begins."""
        if self.after is None:
            return -math.inf, ""
        at, _, name = self.after.partition(" ")
        try:
            value = float(at)
        except ValueError:
            value = math.nan
        if math.isnan(value) or len(name) > TEXT_MAX or "\0" in name:
            raise ConfigError("after must be the `next` of the page before")
        return value, name


class ViewedTarget(NamedTuple):
    """What decides whether a target is on a page, and where."""

    name: str
    group: str | None
    state: str
    paused: bool
    succeeded_at: float | None
    due: float | None
    #: As `polled_every` gives it.
    every: float | None = None

    @property
    def viewed(self) -> str:
        """One of VIEWED_STATES."""
        if self.paused:
            return "paused"
        return "new" if self.state == "closed" and self.succeeded_at is None else self.state

    def sorted_by(self, sort: TargetSort) -> float:
        """Its place in this order."""
        if sort == "name":
            return 0.0
        if self.paused:
            return _LAST
        if sort == "stale":
            return -1.0 if self.succeeded_at is None else self.succeeded_at
        return _LAST if self.due is None or not math.isfinite(self.due) else self.due


@dataclass(frozen=True, slots=True)
class TargetCounts:
    """How many targets a fleet has.

    groups: by group (None: no group) and state, one of VIEWED_STATES.
    overdue: how many should have been polled by now.
    succeeded_at: the time of the newest success; None if there was none.
    rates: by group, how many polls a second its targets ask for, by `polled_every`.
    """

    groups: Mapping[str | None, Mapping[str, int]] = field(default_factory=dict)
    overdue: int = 0
    succeeded_at: float | None = None
    rates: Mapping[str | None, float] = field(default_factory=dict)

    @property
    def states(self) -> dict[str, int]:
        """The number of targets in each of VIEWED_STATES."""
        every = sum((Counter(counts) for counts in self.groups.values()), Counter[str]())
        return {state: every[state] for state in VIEWED_STATES}

    @property
    def total(self) -> int:
        return sum(self.states.values())


def page_names(
    targets: Iterable[ViewedTarget], chosen: TargetFilter
) -> tuple[list[str], str | None]:
    """The names on a page, in order, and the cursor of the next page; of targets in memory."""
    place = chosen.place
    text = None if chosen.text is None else chosen.text.lower()
    found = sorted(
        key
        for each in targets
        if chosen.state in (None, each.viewed)
        and chosen.group in (None, each.group or "")
        and (text is None or text in each.name.lower())
        and (key := (each.sorted_by(chosen.sort), each.name)) > place
    )[: chosen.limit + 1]
    return [name for _, name in found[: chosen.limit]], cursor_after(found, chosen.limit)


def cursor_after(found: Sequence[Sequence[Any]], limit: int) -> str | None:
    """The cursor of the next page. found: places and names, one more than `limit` if there are
    more."""
    if len(found) <= limit:
        return None
    value, name = found[limit - 1]
    return f"{value!r} {name}"


def counts_of(targets: Iterable[ViewedTarget], now: float) -> TargetCounts:
    """The counts over targets in memory."""
    groups: dict[str | None, Counter[str]] = {}
    rates: dict[str | None, float] = {}
    overdue, newest = 0, None
    for each in targets:
        groups.setdefault(each.group, Counter())[each.viewed] += 1
        if each.every and not each.paused:
            rates[each.group] = rates.get(each.group, 0.0) + 1.0 / each.every
        overdue += not each.paused and is_overdue(each.due, each.succeeded_at, now)
        if each.succeeded_at is not None:
            newest = max(newest or 0.0, each.succeeded_at)
    return TargetCounts(groups, overdue, newest, rates)


def counts_from(rows: Iterable[Sequence[Any]]) -> TargetCounts:
    """The counts from the rows of a statement: group, state, paused, how many, how many of them
    never succeeded, how many are overdue, the newest success, and polls a second."""
    groups: dict[str | None, Counter[str]] = {}
    rates: dict[str | None, float] = {}
    overdue, newest = 0, None
    for group, state, paused, count, never, late, succeeded, rate in rows:
        counts = groups.setdefault(group, Counter())
        new = never if state == "closed" and not paused else 0
        counts["new"] += new
        counts["paused" if paused else state] += count - new
        overdue += 0 if paused else late or 0
        if succeeded is not None:
            newest = max(newest or 0.0, succeeded)
        if not paused:
            rates[group] = rates.get(group, 0.0) + float(rate or 0.0)
    return TargetCounts(groups, overdue, newest, rates)
