"""Claims of limited kinds in a SQLite file: which jobs they take, and what they are charged.

All of it happens in the transaction of the claim, whose write lock makes it exact: running jobs are
counted, and never kept as a number. The cost of a claim depends on the number of groups that it
examines, and not on how many jobs these have.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pollwise.queues.limits.plan import (
    ENTERED_AT_ONCE,
    GROUPS_MAX,
    Charge,
    KindUse,
    Line,
    Place,
    Plan,
    WaitingJobs,
    back_until,
    fits,
    planned,
    shares,
    suspect_charge,
)
from pollwise.queues.limits.record import KindLimits, limits_from
from pollwise.queues.limits.use import WAITING_MAX, GroupUse, LimitUse, fullest

#: How many jobs that were put since the last claim are examined, to see if they need a group. They
#: are few, so that a million new jobs slow no claim down.
SWEPT_AT_ONCE = 500
#: The same if the claim is not full.
SWEPT_MORE = 10_000
#: How many groups whose rate is unused a claim that charges groups forgets, in addition to twice as
#: many as it charges.
FORGOTTEN = 100
#: The maximum number of rows that one prune deletes.
PRUNED_AT_ONCE = 1000

#: Runs a named statement of the store.
Rows = Callable[..., list[tuple[Any, ...]]]


class Chosen(NamedTuple):
    """The jobs that a claim takes, by number; a suspect is alone. again: when there may be more."""

    seqs: list[int]
    suspect: bool = False
    again: float | None = None


class SqliteLimits:
    """The limits of one queue in a file."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._parsed: dict[str, tuple[str, KindLimits | None]] = {}

    def read(self) -> dict[str, KindLimits]:
        """The limits by kind."""
        parsed: dict[str, tuple[str, KindLimits | None]] = {}
        for kind, text in self._rows("limit_notes"):
            known = self._parsed.get(kind)
            same = known is not None and known[0] == text
            parsed[kind] = known if known and same else (text, limits_from(kind, text))
        self._parsed = parsed
        return {kind: limits for kind, (_, limits) in parsed.items() if limits is not None}

    def choose(
        self,
        limits: Mapping[str, KindLimits],
        others: Callable[[], Iterable[tuple[int, float, int]]],
        kinds: Sequence[str],
        most: int,
        now: float,
        *,
        suspects: bool,
    ) -> Chosen:
        """The jobs for a claim of at most `most`, which are charged.

        limits: of all wanted kinds that have limits. others: the best jobs of the other kinds.
        kinds: all wanted kinds. suspects: there may be suspects.
        """
        uses, complete = self._uses(limits, SWEPT_AT_ONCE)
        if suspects and (seq := self._suspect(uses, kinds, now)) is not None:
            return Chosen([seq], suspect=True)
        complete = self._come_back(uses, now) and complete
        free = [Place(*row) for row in others()]
        plans, counts = self._compete(uses, free, most, now)
        if not complete and counts.total() < most:
            uses, complete = self._uses(limits, SWEPT_MORE)
            plans, counts = self._compete(uses, free, most, now)
        chosen = free[: counts[""]]
        times = [] if complete else [now]
        for kind, plan in plans.items():
            count = counts[kind]
            chosen += plan.places[:count]
            self._charge(kind, plan.use, plan.charge(count), now)
            self._leave(kind, plan.leaving(count))
            if (again := plan.again_at(count, self._first_back(plan.use.limits))) is not None:
                times.append(again)
        return Chosen([place.seq for place in chosen], again=min(times, default=None))

    def _compete(
        self, uses: Mapping[str, KindUse], free: Sequence[Place], most: int, now: float
    ) -> tuple[dict[str, Plan], Counter[str]]:
        """The plan for each limited kind, and how many of its jobs the claim takes."""
        plans = {
            kind: planned(use, KindJobs(self._rows, use.limits), most, now)
            for kind, use in uses.items()
        }
        places = {kind: plan.places for kind, plan in plans.items()}
        return plans, shares({"": free, **places}, most)  # no kind has the name ""

    def _uses(
        self, limits: Mapping[str, KindLimits], sweep: int
    ) -> tuple[dict[str, KindUse], bool]:
        """How kinds are used; and True if all of their jobs have groups, which are in the circle
        if they have to be."""
        most = max((each.most or 0 for each in limits.values()), default=0)
        rows = self._rows("limit_kinds", kinds=json.dumps([*limits]), most=most)
        unswept: dict[int, list[str]] = {}
        done = True
        for kind, _, _, _, swept, note, entered, _, _ in rows:
            if limits[kind].grouped:
                unswept.setdefault(swept, []).append(kind)
            done = self._enter(kind, limits[kind], note, entered) and done
        for swept, kinds in unswept.items():
            done = self._sweep(kinds, swept, sweep) and done
        return {
            kind: KindUse(limits[kind], running, full_at, turn, left, bool(waits))
            for kind, turn, left, full_at, _, _, _, waits, running in rows
        }, done

    def _enter(self, kind: str, limits: KindLimits, note: str | None, entered: str | None) -> bool:
        """Enter the next groups in the circle of a kind, if its limits changed; True if these are
        all."""
        if not limits.grouped:
            if note is not None:
                self._rows("limit_begin", kind=kind, note=None)
                self._rows("limit_end", kind=kind)
            return True
        text, _ = self._parsed[kind]
        if note != text:
            self._rows("limit_begin", kind=kind, note=text)
            entered = ""
        if entered is None:
            return True
        groups = [
            group
            for (group,) in self._rows(
                "limit_waiting", kind=kind, start=entered, most=ENTERED_AT_ONCE
            )
        ]
        self._rows("limit_enter", kind=kind, groups=json.dumps(groups))
        # No name has characters below a space, so this is the lowest name behind the last.
        entered = groups[-1] + "\x01" if len(groups) == ENTERED_AT_ONCE else None
        self._rows("limit_entered", kind=kind, entered=entered)
        return entered is None

    def _come_back(self, uses: Mapping[str, KindUse], now: float) -> bool:
        """Enter groups whose rate allows the next start; True if these are all."""
        done = True
        for kind, use in uses.items():
            rate = use.limits.rate_each
            until = back_until(rate, self._first_back(use.limits), now) if rate else None
            if until is not None:
                back = self._rows("limit_back", kind=kind, until=until, most=ENTERED_AT_ONCE)
                done = len(back) < ENTERED_AT_ONCE and done
        return done

    def _first_back(self, limits: KindLimits) -> float | None:
        if limits.rate_each is None:
            return None
        [[first]] = self._rows("limit_first_back", kind=limits.kind)
        return first  # type: ignore[no-any-return]

    def _leave(self, kind: str, leaving: Mapping[str, float | None]) -> None:
        """Take groups out of the circle."""
        if not leaving:
            return
        self._rows("limit_leave", kind=kind, groups=json.dumps([*leaving]))
        back = [(group, at) for group, at in leaving.items() if at is not None]
        if back:
            self._rows("limit_leave_until", kind=kind, groups=json.dumps(back))

    def _sweep(self, kinds: list[str], swept: int, most: int) -> bool:
        """Give a group to the next jobs of these kinds that have none; True if these are all."""
        [[first, last]] = self._rows("limit_unswept", swept=swept)
        if first is None:
            return True
        upto = min(first + most, last)
        of_kinds = {"kinds": json.dumps(kinds), "upto": upto}
        self._rows("limit_sweep", **of_kinds, swept=swept)
        self._rows("limit_swept", **of_kinds)
        return bool(upto == last)

    def _suspect(self, uses: Mapping[str, KindUse], kinds: Sequence[str], now: float) -> int | None:
        """The first suspect that may run; it is charged."""
        full: set[tuple[str, str]] = set()
        for seq, kind, group in self._rows("limit_suspects", kinds=json.dumps(kinds)):
            use, name = uses.get(kind), group or ""
            if use is None:
                return int(seq)
            if (kind, name) in full:
                continue
            running, full_at = self._rows(
                "limit_group", kind=kind, group=name, most_each=use.limits.most_each or 0
            )[0]
            charge = suspect_charge(use, Line(name, running, full_at), now)
            if charge is not None:
                self._charge(kind, use, charge, now)
                return int(seq)
            full.add((kind, name))
        return None

    def _charge(self, kind: str, use: KindUse, charge: Charge, now: float) -> None:
        turn, left = charge.turn, charge.left
        if charge.full_at is not None or (turn, left) != (use.turn, use.left):
            self._rows("limit_charge", kind=kind, turn=turn, left=left, full_at=charge.full_at)
        for group, full_at in charge.groups.items():
            self._rows("limit_charge_group", kind=kind, group=group, full_at=full_at)
        if charge.groups:
            self._rows("limit_forget_groups", now=now, most=FORGOTTEN + 2 * len(charge.groups))

    def take_back(
        self, batch: list[list[Any]], renewed: list[tuple[Any, ...]], until: float
    ) -> list[tuple[Any, ...]]:
        """Renew leases that ran out, of limited kinds, as far as there is room.

        batch: as of the statement `renew`. renewed: what that returned.
        """
        rows: list[tuple[Any, ...]] = []
        if len(renewed) == len(batch):
            return rows
        known = {row[:2] for row in renewed}
        left = json.dumps([row for row in batch if tuple(row[:2]) not in known])
        limits: Mapping[str, KindLimits] | None = None
        for seq, _, worker, progress, kind, group in self._rows("lapsed", batch=left):
            limits = self.read() if limits is None else limits
            of_kind = limits.get(kind)
            if of_kind is None or self._fits(of_kind, group or ""):
                values = {"seq": seq, "until": until, "worker": worker, "progress": progress}
                rows += self._rows("renew_limited", **values)
        return rows

    def _fits(self, limits: KindLimits, group: str) -> bool:
        most, most_each = limits.most or 0, limits.most_each or 0
        [[*_, running]] = self._rows("limit_kinds", kinds=json.dumps([limits.kind]), most=most)
        [[of_group, _]] = self._rows(
            "limit_group", kind=limits.kind, group=group, most_each=most_each
        )
        return fits(limits, running, of_group)

    # Changes, and how they are used

    def removed(self, kind: str, now: float) -> None:
        """A kind has no limits any more."""
        self._rows("limit_removed", kind=kind)
        self._rows("limit_end", kind=kind)
        self._rows("limit_forget", now=now)

    def prune(self, now: float) -> None:
        """Delete rows that are no longer needed: claims do so only while groups have rates."""
        self._rows("limit_forget", now=now)
        self._rows("limit_forget_groups", now=now, most=PRUNED_AT_ONCE)

    def use(self, limits: KindLimits, most: int, now: float) -> LimitUse:
        """How the limits of a kind are used."""
        of_kind = {"kind": limits.kind, "waiting_most": WAITING_MAX}
        running, waiting, full_at = self._rows("limit_use", **of_kind)[0]
        groups: list[GroupUse] = []
        if limits.grouped and most:
            rate = limits.rate_each
            for name, running_each, waiting_each, full_at_each in self._rows(
                "limit_use_groups", **of_kind, most=GROUPS_MAX
            ):
                next_at = rate.next_start(full_at_each, now) if rate else None
                groups.append(GroupUse(name, running_each, waiting_each, next_at))
        next_at = limits.rate.next_start(full_at, now) if limits.rate else None
        return LimitUse(limits, running, waiting, next_at, fullest(groups, most))


class KindJobs(WaitingJobs):
    """The waiting jobs of a limited kind."""

    def __init__(self, rows: Rows, limits: KindLimits) -> None:
        self._rows = rows
        self._limits = limits
        self._read: dict[str, int] = {}  # how many jobs of a group were read

    def groups(self, start: str, most: int) -> list[Line]:
        each = self._limits.most_each or 0
        found = self._rows(
            "limit_circle", kind=self._limits.kind, start=start, most=most, most_each=each
        )
        return [Line(*row) for row in found]

    def fill(self, lines: Sequence[Line], most: int) -> None:
        read = [self._read.get(line.group, 0) for line in lines]
        asked = max(read) + most
        found: list[list[Place]] = [[] for _ in lines]
        if self._limits.grouped:
            names = json.dumps([line.group for line in lines])
            for key, *place in self._rows(
                "limit_jobs", kind=self._limits.kind, groups=names, most=asked
            ):
                found[key].append(Place(*place))
            for places in found:
                places.sort()
        else:
            rows = self._rows("limit_jobs_of_kind", kind=self._limits.kind, most=asked)
            found = [[Place(*row) for row in rows]]
        for line, places, known in zip(lines, found, read, strict=True):
            line.jobs = deque([*line.jobs, *places[known:]])
            line.more = len(places) == asked
            self._read[line.group] = len(places)
