"""The limits of a queue in memory: jobs of limited kinds wait here, by group."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from pollwise.queues.limits.plan import (
    Charge,
    KindUse,
    Line,
    Place,
    Plan,
    WaitingJobs,
    back_until,
    counted,
    fits,
    planned,
    shares,
    suspect_charge,
)
from pollwise.queues.limits.record import KindLimits, limits_from
from pollwise.queues.limits.use import WAITING_MAX, GroupUse, LimitUse, fullest
from pollwise.queues.memory.job import Entry, MemoryJob

if TYPE_CHECKING:
    from pollwise.queues.memory.queue import MemoryQueue

#: How many groups whose rate is unused are forgotten with each charge.
FORGOTTEN = 10


class LimitedKind(WaitingJobs):
    """The jobs of one limited kind: those that are ready, in heaps, and those that are leased."""

    def __init__(self, text: str, limits: KindLimits, records: Mapping[int, MemoryJob]) -> None:
        self.text: str = text
        self.use: KindUse = KindUse(limits)
        self._records = records
        self._suspects: list[Entry] = []
        self._heaps: dict[str, list[Entry]] = {}
        self._circle: list[str] = []  # the groups that a claim examines, sorted
        self._back: list[tuple[float, str]] = []  # those that come back into it, by the time
        self._away: set[str] = set()  # the same groups
        self._leased: dict[int, str] = {}  # the group of each job
        self._running: dict[str, set[int]] = {}
        self._full_at: dict[str, float] = {}

    def moved(self, record: MemoryJob) -> None:
        """Note the new state of a job."""
        group = self._leased.pop(record.seq, None)
        if group is not None:
            self._running[group].remove(record.seq)
            if not self._running[group]:
                del self._running[group]
            if record.state != "leased" and group in self._heaps:
                self._enter(group)
        if record.state == "leased":
            group = self._leased[record.seq] = record.limit_group or ""
            self._running.setdefault(group, set()).add(record.seq)
        elif record.state == "ready":
            self._push(record)

    def changed(self, text: str, limits: KindLimits) -> None:
        """Take other limits; jobs wait in other heaps if groups begin or cease to take turns."""
        regroup = limits.grouped != self.use.limits.grouped
        self.text, self.use.limits = text, limits
        self._circle, self._back, self._away = sorted(self._heaps), [], set()
        if regroup:
            entries = [entry for heap in self._heaps.values() for entry in heap]
            self._heaps, self._circle = {}, []
            for entry in self._valid(entries):
                self._push(self._records[entry[2]])

    def _push(self, record: MemoryJob) -> None:
        if record.suspect:
            heapq.heappush(self._suspects, record.entry)
            return
        group = (record.limit_group or "") if self.use.limits.grouped else ""
        heapq.heappush(self._heaps.setdefault(group, []), record.entry)
        self._enter(group)

    def _enter(self, group: str) -> None:
        """Enter a group in the circle, unless it comes back at a time."""
        if group in self._away:
            return
        at = bisect_left(self._circle, group)
        if at == len(self._circle) or self._circle[at] != group:
            self._circle.insert(at, group)

    def _leave(self, group: str, back: float | None) -> None:
        """Take a group out of the circle, until a time if there is one."""
        at = bisect_left(self._circle, group)
        if at < len(self._circle) and self._circle[at] == group:
            del self._circle[at]
        if back is not None:
            heapq.heappush(self._back, (back, group))
            self._away.add(group)
        elif not self._heaps.get(group):
            self._heaps.pop(group, None)

    def _let_back(self, now: float) -> None:
        """Enter the groups again whose rate allows the next start."""
        rate = self.use.limits.rate_each
        until = back_until(rate, self.first_back, now) if rate else None
        while until is not None and self._back and self._back[0][0] <= until:
            _, group = heapq.heappop(self._back)
            self._away.remove(group)
            self._enter(group)

    @property
    def first_back(self) -> float | None:
        """When the first group comes back into the circle, by its rate."""
        return self._back[0][0] if self._back else None

    def _valid(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        for entry in entries:
            record = self._records.get(entry[2])
            if record is not None and record.version == entry[3]:
                yield entry

    def _pop(self, group: str) -> Place | None:
        heap = self._heaps.get(group, [])
        while heap:
            entry = heapq.heappop(heap)
            if any(self._valid([entry])):
                return Place(*entry[:3])
        return None

    # For a plan

    def groups(self, start: str, most: int) -> list[Line]:
        at = bisect_left(self._circle, start)
        return [self._line(group) for group in self._circle[at : at + most]]

    def fill(self, lines: Sequence[Line], most: int) -> None:
        for line in lines:
            for _ in range(most):
                place = self._pop(line.group)
                if place is None:
                    line.more = False
                    break
                line.jobs.append(place)

    def _line(self, group: str) -> Line:
        running = len(self._running.get(group, ()))
        return Line(group, running, self._full_at.get(group, 0.0))

    def plan(self, most: int, now: float) -> Plan:
        """Plan what a claim may lease; call `end` after it."""
        self.use.running = len(self._leased)
        self._let_back(now)
        return planned(self.use, self, most, now)

    def end(self, plan: Plan, count: int) -> list[MemoryJob]:
        """Charge the first `count` jobs of a plan and return them; the others wait again."""
        leaving = plan.leaving(count)
        others = [pick.place for pick in plan.picks[count:]]
        others += [place for line in plan.lines.values() for place in line.jobs]
        for place in others:
            self._push(self._records[place.seq])
        self.charge(plan.charge(count), plan.now)
        for group, back in leaving.items():
            self._leave(group, back)
        return [self._records[pick.place.seq] for pick in plan.picks[:count]]

    def suspect(self, now: float) -> tuple[Entry, Charge] | None:
        """The first suspect that may run, and what it is charged."""
        self._suspects = sorted(self._valid(self._suspects))
        self.use.running = len(self._leased)
        for entry in self._suspects:
            line = self._line(self._records[entry[2]].limit_group or "")
            if (charge := suspect_charge(self.use, line, now)) is not None:
                return entry, charge
        return None

    def fits(self, record: MemoryJob) -> bool:
        """True if one more job of this group may run."""
        of_group = self._running.get(record.limit_group or "", ())
        return fits(self.use.limits, len(self._leased), len(of_group))

    def charge(self, charge: Charge, now: float) -> None:
        if charge.full_at is not None:
            self.use.full_at = charge.full_at
        self.use.turn, self.use.left = charge.turn, charge.left
        for group, full_at in charge.groups.items():
            self._full_at.pop(group, None)  # so that it comes last
            self._full_at[group] = full_at
        for group in [*self._full_at][: FORGOTTEN * (1 + len(charge.groups))]:
            if self._full_at[group] <= now:
                del self._full_at[group]


class MemoryLimits:
    """The limited kinds of a queue in memory."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue
        self.kinds: dict[str, LimitedKind] = {}
        self._full_at: dict[str, float] = {}  # of kinds whose limits were removed

    def sync(self) -> bool:
        """Take over the limits that were set since the last call; True if there are any."""
        notes = self._queue._notes["limits"]
        if not notes and not self.kinds:
            return False
        parsed = {
            kind: limits
            for kind, (text, _) in notes.items()
            if (limits := self._known(kind, text)) is not None
        }
        for kind in self.kinds.keys() - parsed.keys():
            self._full_at[kind] = self.kinds.pop(kind).use.full_at
            for record in self._of_kind(kind):
                if record.state == "ready":
                    self._queue._push_ready(record)
        for kind, limits in parsed.items():
            text = notes[kind][0]
            if kind not in self.kinds:
                made = self.kinds[kind] = LimitedKind(text, limits, self._queue._records)
                made.use.full_at = self._full_at.pop(kind, 0.0)
                self._queue._ready.pop(kind, None)
                for record in self._of_kind(kind):
                    made.moved(record)
            elif self.kinds[kind].text != text:
                self.kinds[kind].changed(text, limits)
        self._queue._limited = counted(parsed)
        return bool(parsed)

    def _known(self, kind: str, text: str) -> KindLimits | None:
        known = self.kinds.get(kind)
        return known.use.limits if known and known.text == text else limits_from(kind, text)

    def _of_kind(self, kind: str) -> list[MemoryJob]:
        return [record for record in self._queue._records.values() if record.kind == kind]

    def choose(
        self, wanted: Sequence[str] | None, most: int, now: float
    ) -> tuple[Iterable[MemoryJob], float | None]:
        """The jobs that a claim takes, and when another claim may find more."""
        if not self.sync():
            return self._queue._take_ready(wanted), None
        free, limited = self._split(wanted)
        if (suspect := self._suspect(free, limited, now)) is not None:
            return [suspect], None
        others = [*islice(self._queue._take_ready(free), most)]
        plans = {each: each.plan(most, now) for each in limited}
        places = {each.use.limits.kind: plan.places for each, plan in plans.items()}
        places[""] = [Place(*record.entry[:3]) for record in others]  # no kind has this name
        counts = shares(places, most)
        for record in others[counts[""] :]:
            self._queue._push_ready(record)
        chosen = others[: counts[""]]
        times: list[float] = []
        for each, plan in plans.items():
            count = counts[each.use.limits.kind]
            chosen += each.end(plan, count)
            if (at := plan.again_at(count, each.first_back)) is not None:
                times.append(at)
        return sorted(chosen, key=lambda record: record.entry), min(times, default=None)

    def may_run(self, wanted: Sequence[str] | None, now: float) -> bool:
        """True if a claim of these kinds finds a job of a limited kind."""
        for each in self._split(wanted)[1]:
            plan = each.plan(1, now)
            found = bool(plan.picks) or each.suspect(now) is not None
            each.end(plan, 0)
            if found:
                return True
        return False

    def may_come_back(self, record: MemoryJob) -> bool:
        """True if a job whose lease ran out may be leased again by its renewal."""
        self.sync()
        limited = self.kinds.get(record.kind)
        return limited is None or limited.fits(record)

    def _split(self, wanted: Sequence[str] | None) -> tuple[list[str], list[LimitedKind]]:
        every = [*self._queue._ready, *self.kinds] if wanted is None else wanted
        kinds = [*self._queue._without_paused(every)]
        free = [kind for kind in kinds if kind not in self.kinds]
        return free, [self.kinds[kind] for kind in kinds if kind in self.kinds]

    def _suspect(
        self, free: Sequence[str], limited: Iterable[LimitedKind], now: float
    ) -> MemoryJob | None:
        """The suspect that comes first of those that may run; it is charged."""
        best: tuple[Entry, LimitedKind | None, Charge | None] | None = None
        heap = self._queue._best_heap(free)
        if heap and self._queue._records[heap[0][2]].suspect:
            best = heap[0], None, None
        for each in limited:
            found = each.suspect(now)
            if found is not None and (best is None or found[0] < best[0]):
                best = found[0], each, found[1]
        if best is None:
            return None
        entry, kind, charge = best
        if kind is not None and charge is not None:
            kind.charge(charge, now)
        return self._queue._records[entry[2]]  # what is left of it in its heap is stale

    def use(self, limits: KindLimits, most: int, now: float) -> LimitUse:
        """How the limits of a kind are used."""
        self.sync()
        running, waiting = Counter[str](), Counter[str]()
        for record in self._of_kind(limits.kind):
            group = record.limit_group or ""
            running[group] += record.state == "leased"
            waiting[group] += record.state == "ready"
        kept = self.kinds.get(limits.kind)
        groups: list[GroupUse] = []
        if limits.grouped:
            for group in running:
                full_at = 0.0 if kept is None else kept._full_at.get(group, 0.0)
                at = limits.rate_each.next_start(full_at, now) if limits.rate_each else None
                some = min(waiting[group], WAITING_MAX)
                groups.append(GroupUse(group, running[group], some, at))
        full_at = 0.0 if kept is None else kept.use.full_at
        next_at = limits.rate.next_start(full_at, now) if limits.rate else None
        total = min(waiting.total(), WAITING_MAX)
        return LimitUse(limits, running.total(), total, next_at, fullest(groups, most))
