"""A queue in this process's memory, for tests and for work that may be lost with the process.

It is also the model that the other stores are compared with: plain dictionaries and heaps, no SQL.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar

from pollwise.queues.base import ClaimRequest
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.limits.record import KindLimits
from pollwise.queues.limits.use import LimitUse
from pollwise.queues.memory.job import Entry, MemoryJob
from pollwise.queues.memory.limits import MemoryLimits
from pollwise.queues.memory.views import MemoryViews
from pollwise.queues.unique import WAITING, check_replaced, check_twin, replaced_run_at
from pollwise.queues.viewed import DEAD
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import (
    ENDED,
    ERRORS_KEPT,
    Claim,
    JobFailure,
    NewJob,
    Progress,
    Renewal,
    Settlement,
    State,
    worker_of_lapse,
)
from pollwise.runtime.store import PRUNE_SLICE
from pollwise.storage.ids import number_of


class MemoryQueue(MemoryViews):
    """Jobs in memory: everything a queue can do, but nothing survives the process."""

    capabilities: ClassVar[Capabilities] = Capabilities(long_poll=True)
    one_loop = False

    def __init__(self, name: str = "default", **options: object) -> None:
        super().__init__(name, **options)
        self._last = 0
        self._ready: dict[str, list[Entry]] = {}
        self._due: list[tuple[float, int, int]] = []  # delayed and leased, by the time that ends
        self._keys: dict[str, deque[int]] = {}  # live jobs of a key; the first is not blocked
        self._unique: dict[str, MemoryJob] = {}
        self._kept: list[tuple[float, int, int]] = []  # done and cancelled, by when they ended
        self._expiring: list[tuple[float, int, int]] = []  # by when their results are over
        self._limits = MemoryLimits(self)
        self._holding: dict[Hint, Sequence[str] | None] = {}  # held claims and the kinds they want

    def leave_loop(self) -> None:
        self._home.leave()

    async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        now = self._now()
        ids: list[str] = []
        fresh: list[MemoryJob] = []
        in_batch: dict[str, MemoryJob] = {}
        replaced: list[tuple[NewJob, MemoryJob]] = []
        seq = self._last
        for job in jobs:
            twin = self._twin(job, in_batch)
            if twin is not None and job.replace:
                replaced.append((job, twin))
            if twin is not None and (not job.replace or twin.state in WAITING):
                ids.append(str(twin.seq))
                continue
            seq += 1
            made = seq, job.kind, job.encoded, job.key, job.priority, job.unique, now
            fresh.append(MemoryJob(*made, job.due_at(now), job.headers, job.limit_group))
            self._flows.link(fresh[-1], job, ids)
            ids.append(str(seq))
            if job.unique is not None:
                in_batch[job.unique] = fresh[-1]
        for job, twin in replaced:
            self._replace(job, twin, now)
        self._unique.update(in_batch)
        for record in fresh:
            self._records[record.seq] = record
            self._flows.enter(record)
            self._enter(record, now)
        self._last = seq
        return ids, len(fresh) + sum(twin.state in WAITING for _, twin in replaced)

    def _replace(self, job: NewJob, record: MemoryJob, now: float) -> None:
        """Replace a job that waits; a job that runs or has ended loses its `unique`."""
        if record.state not in WAITING:
            self._free_unique(record)
            return
        record.run_at = replaced_run_at(job, record.run_at, now)
        record.encoded, record.headers, record.priority = job.encoded, job.headers, job.priority
        record.limit_group = job.limit_group
        record.attempt, record.lapsed = 0, False
        record.token += 2
        state: State = "delayed" if record.run_at > now else "ready"
        self._move(record, "blocked" if record.state == "blocked" else state, record.run_at)

    def _twin(self, job: NewJob, in_batch: dict[str, MemoryJob]) -> MemoryJob | None:
        """The job that already has this `unique`, if it is the same job."""
        if job.unique is None:
            return None
        twin = self._unique.get(job.unique) or in_batch.get(job.unique)
        if twin is not None and job.replace:
            check_replaced(job, twin.seq, twin.kind, twin.key)
        elif twin is not None:
            check_twin(job, twin.seq, twin.kind, twin.encoded)
        return twin

    async def _claim_or_give_back(
        self, claiming: Coroutine[Any, Any, list[Claim]], *, held: bool = False
    ) -> list[Claim]:
        return await claiming  # nothing to give back here

    async def _claim(self, asked: ClaimRequest) -> list[Claim]:
        claims = self._take(asked)
        if claims or not asked.hold:
            return claims
        until = self.clock.now() + asked.hold
        hint = Hint()
        self._hints.join(hint)
        self._holding[hint] = asked.kinds
        try:
            while not claims and (left := until - self.clock.now()) > 0:
                self._hints.asleep(hint)
                await self.clock.sleep(left, hint)
                self._hints.awake(hint)
                claims = self._take(asked)
                if not claims:
                    self._pass_wake_up_on()
        finally:
            self._hints.leave(hint)
            del self._holding[hint]
            if not claims:  # cancelled, perhaps just as it was woken
                self._pass_wake_up_on()
        return claims

    def _pass_wake_up_on(self) -> None:
        """Pass a wake-up on: wake a held claim that wants a kind that is ready."""
        for hint, kinds in self._holding.items():
            if self._best_heap(kinds) or self._limits.may_run(kinds, self._now()):
                self._hints.awake(hint)
                hint.give()
                return

    def _take(self, asked: ClaimRequest) -> list[Claim]:
        now, worker, limit = self._now(), asked.worker, asked.limit
        until = now + asked.lease
        self._promote(now)
        claims: list[Claim] = []
        chosen, again = self._limits.choose(asked.kinds, limit, now)
        for record in islice(chosen, limit):
            suspect = record.suspect
            lapsed_from = worker_of_lapse(record.errors[-1].error) if record.lapsed else ""
            record.attempt += not (record.lapsed and record.ahead)
            record.lapses = record.lapses + 1 if record.lapsed else 0
            record.ahead, record.lapsed = asked.ahead and not suspect, False
            record.token += 1
            record.worker, record.claimed_at, record.progress = worker, now, None
            self._move(record, "leased", until)
            made = self._job(record), record.token, worker, until, "", suspect
            claims.append(Claim(*made, len(record.encoded), lapsed_from))
            if suspect:
                return claims
        if len(claims) < limit:
            self._hint_when_due(min(filter(None, (self._next_due(), again)), default=None))
        return claims

    def _promote(self, now: float) -> None:
        """Make due jobs ready: delayed ones, and leased ones whose lease ran out."""
        while (due := self._next_due()) is not None and due <= now:
            _, seq, _ = heapq.heappop(self._due)
            record = self._records[seq]
            if record.state == "leased":
                self._note_error(record, due, f"the lease of {record.worker} ran out")
                if record.cancel:
                    self._end(record, "cancelled", now)
                    continue
                record.lapsed = True
            record.worker = None
            self._move(record, "ready", record.run_at)

    def _next_due(self) -> float | None:
        while self._due:
            due, seq, version = self._due[0]
            record = self._records.get(seq)
            if record is not None and record.version == version:
                return due
            heapq.heappop(self._due)
        return None

    def _take_ready(self, kinds: Sequence[str] | None) -> Iterator[MemoryJob]:
        """Take ready jobs in the order of claims: looks at the kinds once, not for each job."""
        heads = [(heap[0], heap) for heap in self._ready_heaps(kinds)]
        heapq.heapify(heads)
        while heads:
            _, heap = heads[0]
            yield self._records[heapq.heappop(heap)[2]]
            if self._first_of(heap) is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (heap[0], heap))

    def _best_heap(self, kinds: Sequence[str] | None) -> list[Entry] | None:
        """The heap whose first job comes first of all."""
        return min(self._ready_heaps(kinds), key=operator.itemgetter(0), default=None)

    def _ready_heaps(self, kinds: Sequence[str] | None) -> list[list[Entry]]:
        """The heaps of these kinds that have a job; forgets the kinds that have none."""
        found = []
        for kind in [*self._without_paused(self._ready if kinds is None else kinds)]:
            heap = self._ready.get(kind)
            if heap is None:
                continue
            if self._first_of(heap) is None:
                del self._ready[kind]
            else:
                found.append(heap)
        return found

    def _first_of(self, heap: list[Entry]) -> Entry | None:
        """The first entry of a heap that is still true."""
        while heap:
            record = self._records.get(heap[0][2])
            if record is not None and record.version == heap[0][3]:
                return heap[0]
            heapq.heappop(heap)
        return None

    def _move(self, record: MemoryJob, state: State, since: float) -> None:
        record.state, record.since = state, since
        record.version += 1
        limited = self._limits.kinds.get(record.kind)
        if limited is not None:
            limited.moved(record)
        elif state == "ready":
            self._push_ready(record)
        if state in ("delayed", "leased"):
            heapq.heappush(self._due, (since, record.seq, record.version))

    def _push_ready(self, record: MemoryJob) -> None:
        heapq.heappush(self._ready.setdefault(record.kind, []), record.entry)

    def _enter(self, record: MemoryJob, now: float) -> None:
        """Enter a job: blocked behind its flow or its key, delayed until it is due, or ready."""
        self._flows.count(record, "ready", now)
        if record.waits:
            self._move(record, "blocked", record.run_at)
            return
        if record.key is not None:
            line = self._keys.setdefault(record.key, deque())
            if line:
                self._line_up(line, record.seq)
                self._move(record, "blocked", record.run_at)
                return
            line.append(record.seq)
        self._move(record, "delayed" if record.run_at > now else "ready", record.run_at)

    @staticmethod
    def _line_up(line: deque[int], seq: int) -> None:
        """Insert behind the head, which may be running, in put order."""
        at = len(line)
        while at > 1 and line[at - 1] > seq:
            at -= 1
        line.insert(at, seq)

    def _unblock_behind(self, record: MemoryJob) -> None:
        """Unblock the next job of a key whose head ended."""
        if record.key is None:
            return
        line = self._keys[record.key]
        line.popleft()
        if not line:
            del self._keys[record.key]
            return
        successor = self._records[line[0]]
        self._move(successor, "delayed", successor.run_at)

    async def _settle(self, settlements: list[Settlement]) -> list[str]:
        now = self._now()
        lost = []
        ended: list[tuple[MemoryJob, State]] = []
        for settlement in settlements:
            record = self._held(settlement.claim)
            if record is None:
                lost.append(settlement.claim.job.id)
                continue
            record.token += 1
            record.lapsed = False
            if settlement.failure is not None:
                self._note_error(record, now, settlement.failure)
            if settlement.action == "give_back":
                record.attempt -= 1
            if settlement.comes_back and not record.cancel:
                record.worker = None
                record.run_at = now + settlement.delay
                self._move(record, "delayed" if settlement.delay else "ready", record.run_at)
            else:
                record.result = settlement.result
                if (more := settlement.outlasting(self.keep)) is not None:
                    record.expires_at = now + more
                ways: dict[str, State] = {"done": "done", "dead": "dead"}
                ended.append((record, ways.get(settlement.action, "cancelled")))
        # As in the other stores: jobs blocked by a key come before jobs that wait in flows.
        for record, _ in ended:
            self._unblock_behind(record)
        for record, state in ended:
            self._finish(record, state, now)
        return lost

    @staticmethod
    def _note_error(record: MemoryJob, at: float, error: str) -> None:
        failure = JobFailure.stored(at, record.attempt, error)
        record.errors = (*record.errors, failure)[-ERRORS_KEPT:]

    def _end(self, record: MemoryJob, state: State, now: float) -> None:
        """End a job that is not blocked."""
        self._unblock_behind(record)
        self._finish(record, state, now)

    def _finish(self, record: MemoryJob, state: State, now: float) -> None:
        """End a job that no other is blocked behind, and all that its end cancels."""
        ended = [(record, state)]
        while ended:
            record, state = ended.pop()
            self._finish_one(record, state, now)
            ended += self._follow(record, state, now)

    def _finish_one(self, record: MemoryJob, state: State, now: float) -> None:
        record.cancel = False
        self._move(record, state, now)
        if state != "dead":
            record.expires_at = self._flows.kept(record, now)
        self._flows.count(record, state, now)
        if state == "dead":
            return
        self._free_unique(record)
        if record.expires_at is not None:
            self._push_expiring(record)
        if self.keep is not None:
            heapq.heappush(self._kept, (record.since, record.seq, record.version))
        elif record.expires_at is None:
            self._delete(record, now)

    def _push_expiring(self, record: MemoryJob) -> None:
        if record.expires_at is not None:
            heapq.heappush(self._expiring, (record.expires_at, record.seq, record.version))

    def _follow(self, record: MemoryJob, state: State, now: float) -> list[tuple[MemoryJob, State]]:
        """Release the jobs that waited for one that ended; return those to cancel."""
        released, cancelled = self._flows.follow(record, state)
        for each in released:
            delay = each.held_delay
            each.run_at = max(each.run_at, now) if delay is None else now + delay
            self._enter(each, now)
        return [(each, "cancelled") for each in cancelled]

    async def _cancel(self, ids: Sequence[str]) -> dict[str, State]:
        now = self._now()
        states: dict[str, State] = {}
        for job_id in ids:
            record = self._records.get(number_of(job_id))
            if record is None:
                continue
            state = self._state_at(record, now)
            if state == "leased":
                record.cancel = True
            elif state == "blocked":
                if record.key is not None and not record.waits:
                    self._keys[record.key].remove(record.seq)
                record.waits = 0
                self._finish(record, "cancelled", now)
                state = "cancelled"
            elif state not in ENDED:
                record.worker = None
                self._end(record, "cancelled", now)
                state = "cancelled"
            states[job_id] = state
        return states

    def _delete(self, record: MemoryJob, now: float) -> None:
        self._flows.delete(record, now)
        del self._records[record.seq]
        self._free_unique(record)

    def _free_unique(self, record: MemoryJob) -> None:
        if record.unique is not None:
            del self._unique[record.unique]
            record.unique = None

    def _held(self, claim: Claim) -> MemoryJob | None:
        """The job, if this claim is its newest and was not settled yet."""
        record = self._records.get(number_of(claim.job.id))
        if record is None or record.token != claim.token:
            return None
        return record if record.state in ("leased", "ready") else None

    async def _renew(
        self, claims: list[Claim], lease: float, progress: Mapping[str, Progress]
    ) -> Renewal:
        now = self._now()
        lost, cancel = [], []
        for claim in claims:
            job_id = claim.job.id
            record = self._held(claim)
            if record is None or (
                record.state == "ready" and not self._limits.may_come_back(record)
            ):
                lost.append(job_id)
                continue
            record.worker = claim.worker
            record.lapsed = False
            if job_id in progress:
                record.progress = replace(progress[job_id], at=now)
            if record.cancel:
                cancel.append(job_id)
            self._move(record, "leased", now + lease)
        return Renewal(tuple(lost), tuple(cancel))

    async def _retry(self, ids: Sequence[str] | None) -> int:
        now = self._now()
        ended = self._ended(ids, ("dead",) if ids is None else ENDED)
        for record in ended:
            record.attempt = 0
            record.lapsed = False
            record.token += 1
            record.run_at = now
            record.worker = record.progress = record.result = record.claimed_at = None
            record.expires_at = None
            self._enter(record, now)
        return len(ended)

    async def _compensated(self, ids: Sequence[str] | None) -> list[str]:
        return [str(each.seq) for each in self._ended(ids, DEAD) if self._flows.compensates(each)]

    async def _drop(self, ids: Sequence[str] | None, states: Sequence[State] = DEAD) -> int:
        now = self._now()
        ended = self._ended(ids, states)
        for record in ended:
            for each, state in self._follow(record, "cancelled", now):
                self._finish(each, state, now)
            self._delete(record, now)
        return len(ended)

    def _ended(self, ids: Sequence[str] | None, states: Sequence[State]) -> list[MemoryJob]:
        wanted = None if ids is None else {number_of(job_id) for job_id in ids}
        return [
            record
            for record in self._records.values()
            if record.state in states and (wanted is None or record.seq in wanted)
        ]

    async def _limit_use(self, limits: KindLimits, groups: int) -> LimitUse:
        return self._limits.use(limits, groups, self._now())

    async def _prune(self, keep: float | None) -> int:
        now = self._now()
        while self._flows.relaxed:
            self._push_expiring(self._flows.relaxed.pop())
        before = -math.inf if keep is None else now - keep
        count = 0
        for record in self._ended_by(self._expiring, now):
            if self._expired(record):
                self._delete(record, now)
                count += 1
            if count == PRUNE_SLICE:
                return count
        for record in self._ended_by(self._kept, before):
            if record.expires_at is None:
                self._delete(record, now)
                count += 1
            if count == PRUNE_SLICE:
                return count
        return count

    def _ended_by(self, heap: list[tuple[float, int, int]], end: float) -> Iterator[MemoryJob]:
        """Remove entries up to this time from a heap; yield those that are still true."""
        while heap and heap[0][0] <= end:
            _, seq, version = heapq.heappop(heap)
            record = self._records.get(seq)
            if record is not None and record.version == version:
                yield record
