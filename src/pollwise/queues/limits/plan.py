"""Decides which jobs of a limited kind a claim may take, for stores that do so in Python.

A store says how its kind is used (`KindUse`) and shows its `WaitingJobs`; `planned` picks some of
them. Then all kinds of the claim compete (`shares`), and what is leased is charged.

Groups take turns by name, in a circle that begins where the last claim stopped. In its turn, a
group gives as many jobs as its weight, within its own limits. Rounds go on until the kind has no
room, or nothing was given in one. Groups are read a few at a time, and only as many of their jobs
as are needed. So the cost of a claim does not depend on the number of jobs in a group.

A store keeps the circle. A group enters it when a job of it becomes ready, or ceases to be leased:
by a settlement, or because its lease ran out. A claim that finds nothing to start in a group takes
it out (`Plan.leaving`); one that waits only for its rate comes back at a time. So each group is
examined once for each such event, and groups that are full cost the other claims nothing. The
circle may name a group that is full or empty, but never misses one that may start a job. When the
limits of a kind change, the store enters all groups again that have ready jobs, some in each claim.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pollwise.queues.limits.record import SLACK, KindLimits, KindRate

#: How many groups one claim examines. If there are more, they get one round, and the next claim
#: goes on behind them.
GROUPS_MAX = 1000
#: A claim that waits only for a rate is repeated after at least this many seconds, or after half of
#: its burst: not for each single start.
RATE_PAUSE = 0.1
#: How many groups a claim enters in the circle at most because a time came, or limits changed.
ENTERED_AT_ONCE = 1000


class Place(NamedTuple):
    """A job that waits: its place in the order of claims. rank: minus its priority."""

    rank: int
    since: float
    seq: int


class Pick(NamedTuple):
    """A job to lease: its group, and how many more this has in its turn."""

    place: Place
    group: str
    left: int


@dataclass(slots=True)
class KindUse:
    """A kind in a claim.

    running: how many of its jobs are leased. full_at: of its rate; 0 if unknown.
    turn, left: the group that had the last turn, and how many more jobs it has in it.
    waits: False if no job of the kind is ready.
    """

    limits: KindLimits
    running: int = 0
    full_at: float = 0.0
    turn: str = ""
    left: int = 0
    waits: bool = True

    def room(self, most: int, now: float) -> int:
        """How many jobs of the kind a claim of `most` may lease."""
        return _room(self.limits.most, self.running, self.limits.rate, self.full_at, most, now)

    def group_room(self, line: Line, most: int, now: float) -> int:
        """The same within the limits of one group."""
        limits = self.limits
        return _room(limits.most_each, line.running, limits.rate_each, line.full_at, most, now)


@dataclass(slots=True)
class Line:
    """The waiting jobs of a group.

    running, full_at: as in `KindUse`, of the group. jobs: the first of them, in the order of
    claims. more: there may be others behind them.
    """

    group: str
    running: int = 0
    full_at: float = 0.0
    jobs: deque[Place] = field(default_factory=deque)
    more: bool = True
    room: int = 0

    @property
    def open(self) -> bool:
        return self.room > 0 and (self.more or bool(self.jobs))


class WaitingJobs(Protocol):
    """The waiting jobs of one kind, without suspects."""

    def groups(self, start: str, most: int) -> list[Line]:
        """The first groups in the circle, by name from `start` on; without jobs."""

    def fill(self, lines: Sequence[Line], most: int) -> None:
        """Add the next jobs of these groups, up to this many each; `more` is False at the end.

        Lines of one kind without turns have the group "" and all its jobs.
        """


class Charge(NamedTuple):
    """The changes by a claim: the new `full_at` and turn of the kind, and `full_at` of groups."""

    full_at: float | None
    turn: str
    left: int
    groups: Mapping[str, float]


@dataclass(slots=True)
class Plan:
    """The jobs of a kind that a claim may lease, in their order.

    lines: the groups that were examined. complete: there are no others. unseen: the last one of
    GROUPS_MAX, if there are others.
    """

    use: KindUse
    now: float
    room: int
    picks: list[Pick] = field(default_factory=list)
    lines: dict[str, Line] = field(default_factory=dict)
    complete: bool = False
    unseen: str | None = None

    @property
    def places(self) -> list[Place]:
        return [pick.place for pick in self.picks]

    def charge(self, count: int) -> Charge:
        """The changes if the first `count` are leased; there may be some even if that is 0."""
        use, now = self.use, self.now
        leased = self.picks[:count]
        rate, each = use.limits.rate, use.limits.rate_each
        full_at = None
        if rate and (count or rate.too_high(use.full_at, now)):
            full_at = rate.after(use.full_at, now, count)
        groups: dict[str, float] = {}
        if each:
            started = Counter(pick.group for pick in leased)
            for group, line in self.lines.items():
                if started[group] or each.too_high(line.full_at, now):
                    groups[group] = each.after(line.full_at, now, started[group])
        turn, left = use.turn, use.left
        if use.limits.grouped and leased:
            turn, left = leased[-1].group, leased[-1].left
        if self.unseen is not None and count == len(self.picks) < self.room:
            turn, left = self.unseen, 0
        return Charge(full_at, turn, left, groups)

    def leaving(self, count: int) -> dict[str, float | None]:
        """The groups that leave the circle if the first `count` are leased.

        Each with the time at which its rate allows the next start; None: it is full, or empty, and
        comes back with the next job that becomes ready or ends.
        """
        limits, now = self.use.limits, self.now
        if not limits.grouped:
            return {}
        started = Counter(pick.group for pick in self.picks[:count])
        waiting = {pick.group for pick in self.picks[count:]}
        leaving: dict[str, float | None] = {}
        for group, line in self.lines.items():
            starts = started[group]
            waits = line.jobs or line.more or group in waiting
            if not waits or line.running + starts >= (limits.most_each or math.inf):
                leaving[group] = None
            elif limits.rate_each is not None:
                full_at = limits.rate_each.after(line.full_at, now, starts)
                if not limits.rate_each.room(full_at, now):
                    leaving[group] = self._not_before(limits.rate_each, full_at)
        return leaving

    def again_at(self, count: int, first_back: float | None) -> float | None:
        """When another claim may find more, if all picks were leased; None: after another event.

        first_back: when the first group comes back into the circle, by its rate.
        """
        use, now = self.use, self.now
        limits = use.limits
        if count < len(self.picks) or not use.waits:
            return None
        if limits.most is not None and use.running + count >= limits.most:
            return None
        if limits.rate is not None:
            full_at = limits.rate.after(use.full_at, now, count)
            if not limits.rate.room(full_at, now):
                more = not self.complete or any(e.jobs or e.more for e in self.lines.values())
                return self._not_before(limits.rate, full_at) if more else None
        return first_back if self.unseen is None else now

    def _not_before(self, rate: KindRate, full_at: float) -> float:
        pause = min(RATE_PAUSE, rate.free / 2)
        return max(rate.next_start(full_at, self.now) or self.now, self.now + pause)


def planned(use: KindUse, source: WaitingJobs, most: int, now: float) -> Plan:
    """Plan which jobs of a kind a claim of at most `most` may lease."""
    plan = Plan(use, now, use.room(most, now) if use.waits else 0)
    if not plan.room:
        return plan
    if not use.limits.grouped:
        line = plan.lines[""] = Line("")
        source.fill([line], plan.room + 1)  # one more, to know if there are others
        jobs = [line.jobs.popleft() for _ in range(min(plan.room, len(line.jobs)))]
        plan.picks = [Pick(place, "", 0) for place in jobs]
        plan.complete = True
        return plan
    _take_turns(plan, source)
    return plan


def _take_turns(plan: Plan, source: WaitingJobs) -> None:
    use, room, picks = plan.use, plan.room, plan.picks
    weights = use.limits.weights
    turn = use.left  # what is left of the turn in which the last claim stopped
    circle = _circle(use, source, room + 1)
    for lines in circle:
        if len(plan.lines) >= GROUPS_MAX:
            plan.unseen = [*plan.lines][-1]
            return
        for line in lines:
            plan.lines[line.group] = line
            line.room = use.group_room(line, room, plan.now)
        for line in lines:
            allowed = weights.get(line.group, 1)
            if turn and line.group == use.turn:
                allowed = turn
            turn = 0
            _give(plan, source, line, allowed, lines)
            if len(picks) == room:
                return
    plan.complete = True
    while True:
        lines = [line for line in plan.lines.values() if line.open]
        before = len(picks)
        for line in lines:
            _give(plan, source, line, weights.get(line.group, 1), lines)
            if len(picks) == room:
                return
        if len(picks) == before:
            return


def _give(
    plan: Plan, source: WaitingJobs, line: Line, allowed: int, others: Sequence[Line]
) -> None:
    """Pick from a group in its turn; jobs are read for all groups of the round at once."""
    picks, weights = plan.picks, plan.use.limits.weights
    while allowed and line.open and len(picks) < plan.room:
        if not line.jobs:
            dry = [each for each in others if each.open and not each.jobs]
            rounds = -(-(plan.room - len(picks)) // sum(weights.get(e.group, 1) for e in dry))
            _fill(source, dry, {e.group: rounds * weights.get(e.group, 1) for e in dry})
            continue
        allowed -= 1
        line.room -= 1
        picks.append(Pick(line.jobs.popleft(), line.group, allowed))


def _fill(source: WaitingJobs, lines: Sequence[Line], wanted: Mapping[str, int]) -> None:
    """Read the wanted number of jobs of each line, rounded up to a power of 2, to read together."""
    sizes: dict[int, list[Line]] = {}
    for line in lines:
        size = min(wanted[line.group], line.room)
        sizes.setdefault((size - 1).bit_length(), []).append(line)
    for bits, some in sizes.items():
        source.fill(some, 1 << bits)


def _circle(use: KindUse, source: WaitingJobs, batch: int) -> Iterator[list[Line]]:
    """The groups from the turn on, in batches: GROUPS_MAX, and then at least one if there are more.

    The group that had the turn comes first if some of it is left, and otherwise last.
    """
    own: list[Line] = []
    seen = 0
    for wrapped in (False, True) if use.turn else (False,):
        start, after = "" if wrapped else use.turn, ""
        ended = False
        while not ended:
            batch = max(min(batch, GROUPS_MAX - seen), 1)
            asked = batch + bool(after)
            found = source.groups(after or start, asked)
            ended = len(found) < asked
            if after:
                found = found[1:]  # it was the last of the batch before
            lines = found
            if wrapped:
                lines = [line for line in found if line.group < use.turn]
                ended = ended or len(lines) < len(found)
            elif not use.left and found and found[0].group == use.turn:
                own, lines = found[:1], found[1:]
            if lines:
                seen += len(lines)
                yield lines
            if found:
                after = found[-1].group
            batch *= 2
    if own:
        yield own


def shares(places: Mapping[str, Sequence[Place]], limit: int) -> Counter[str]:
    """How many of its jobs each kind gets: the best of all, up to the limit of the claim."""
    if sum(map(len, places.values())) <= limit:
        return Counter({kind: len(some) for kind, some in places.items()})
    ranked = sorted((place, kind) for kind, some in places.items() for place in some)
    return Counter(kind for _, kind in ranked[:limit])


def suspect_charge(use: KindUse, line: Line, now: float) -> Charge | None:
    """The changes if a suspect of this group is leased alone; None if it may not."""
    if not use.room(1, now) or not use.group_room(line, 1, now):
        return None
    rate, each = use.limits.rate, use.limits.rate_each
    return Charge(
        rate.after(use.full_at, now, 1) if rate else None,
        use.turn,
        use.left,
        {line.group: each.after(line.full_at, now, 1)} if each else {},
    )


def back_until(rate: KindRate, first_back: float | None, now: float) -> float | None:
    """Until which time groups come back into the circle now; None if none does.

    first_back: when the first of them does. All do if that is later than the rate can be: the clock
    was set back.
    """
    if first_back is None or now < first_back <= now + max(rate.step, RATE_PAUSE) + SLACK:
        return None
    return now if first_back <= now else math.inf


def fits(limits: KindLimits, running: int, of_group: int) -> bool:
    """True if one more job may run, while this many of its kind and of its group do.

    For a lease that ran out and is taken back: the job starts no second time, so rates don't count.
    """
    most, each = limits.most, limits.most_each
    return (most is None or running < most) and (each is None or of_group < each)


def counted(limits: Mapping[str, KindLimits]) -> frozenset[str]:
    """The kinds whose jobs are claimed only for free handlers.

    They limit how many jobs run, or their groups take turns: no group should wait behind jobs that
    are claimed already.
    """
    return frozenset(kind for kind, each in limits.items() if each.most is not None or each.grouped)


def _room(
    number: int | None, running: int, rate: KindRate | None, full_at: float, most: int, now: float
) -> int:
    room = most
    if number is not None:
        room = min(room, number - running)
    if rate is not None:
        room = min(room, rate.room(full_at, now))
    return max(room, 0)
