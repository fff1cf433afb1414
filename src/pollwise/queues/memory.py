"""A queue in this process's memory, for tests and for work that may be lost with the process.

It is also the model that the other stores are compared with: plain dictionaries and heaps, no SQL.
"""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import quote

from pollwise.queues.base import Capabilities, Queue, Stats
from pollwise.queues.unique import check_twin
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import Claim, Job, JobInfo, NewJob, Settlement, State
from pollwise.storage.ids import number_of, place_after


@dataclass(slots=True)
class _MemoryJob:
    seq: int
    kind: str
    encoded: str
    key: str | None
    priority: int
    unique: str | None
    created_at: float
    run_at: float
    state: State = "ready"
    since: float = 0.0
    attempt: int = 0
    token: int = 0
    worker: str | None = None
    error: str | None = None
    version: int = field(default=0)  # distinguishes stale heap entries from the current one


class MemoryQueue(Queue):
    """Jobs in memory: everything a queue can do, but nothing survives the process."""

    capabilities: ClassVar[Capabilities] = Capabilities(long_poll=True)

    @property
    def url(self) -> str:
        return f"memory://?queue={quote(self.name, safe='')}"

    def __init__(self, name: str = "default", **options: object) -> None:
        super().__init__(name, **options)  # type: ignore[arg-type]
        self._records: dict[int, _MemoryJob] = {}
        self._last = 0
        self._ready: dict[str, list[tuple[int, float, int, int]]] = {}
        self._due: list[tuple[float, int, int]] = []  # delayed and leased, by the time that ends
        self._keys: dict[str, deque[int]] = {}  # live jobs of a key; the first is not blocked
        self._unique: dict[str, _MemoryJob] = {}
        self._holding: dict[Hint, Sequence[str] | None] = {}  # held claims and the kinds they want

    async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        now = self.clock.epoch()
        ids: list[str] = []
        fresh: list[_MemoryJob] = []
        in_batch: dict[str, _MemoryJob] = {}
        seq = self._last
        for job in jobs:
            twin = self._twin(job, in_batch)
            if twin is not None:
                ids.append(str(twin.seq))
                continue
            seq += 1
            due = job.due_at(now)
            fresh.append(
                _MemoryJob(seq, job.kind, job.encoded, job.key, job.priority, job.unique, now, due)
            )
            ids.append(str(seq))
            if job.unique is not None:
                in_batch[job.unique] = fresh[-1]
        self._unique.update(in_batch)
        for record in fresh:
            self._records[record.seq] = record
            self._enter(record, now)
        self._last = seq
        return ids, len(fresh)

    def _twin(self, job: NewJob, in_batch: dict[str, _MemoryJob]) -> _MemoryJob | None:
        """The job that already has this `unique`, if it is the same job."""
        if job.unique is None:
            return None
        twin = self._unique.get(job.unique) or in_batch.get(job.unique)
        if twin is not None:
            check_twin(job, twin.seq, twin.kind, twin.encoded)
        return twin

    async def _claim_or_give_back(
        self, claiming: Coroutine[Any, Any, list[Claim]], *, held: bool = False
    ) -> list[Claim]:
        return await claiming  # nothing to give back here

    async def _claim(
        self, worker: str, limit: int, lease: float, hold: float, kinds: Sequence[str] | None
    ) -> list[Claim]:
        claims = self._take(worker, limit, lease, kinds)
        if claims or not hold:
            return claims
        until = self.clock.now() + hold
        hint = Hint()
        self._hints.join(hint)
        self._holding[hint] = kinds
        try:
            while not claims and (left := until - self.clock.now()) > 0:
                self._hints.asleep(hint)
                await self.clock.sleep(left, hint)
                self._hints.awake(hint)
                claims = self._take(worker, limit, lease, kinds)
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
            if self._best_heap(kinds):
                self._hints.awake(hint)
                hint.give()
                return

    def _take(
        self, worker: str, limit: int, lease: float, kinds: Sequence[str] | None
    ) -> list[Claim]:
        now = self.clock.epoch()
        self._promote(now)
        claims: list[Claim] = []
        while len(claims) < limit and (record := self._next_ready(kinds)):
            record.attempt += 1
            record.token += 1
            record.worker = worker
            self._move(record, "leased", now + lease)
            claims.append(Claim(self._job(record), record.token, worker, now + lease))
        if len(claims) < limit:
            self._hint_when_due(self._next_due())
        return claims

    def _promote(self, now: float) -> None:
        """Make due jobs ready: delayed ones, and leased ones whose lease ran out."""
        while (due := self._next_due()) is not None and due <= now:
            _, seq, _ = heapq.heappop(self._due)
            record = self._records[seq]
            if record.state == "leased":
                record.error = f"the lease of {record.worker} ran out"
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

    def _next_ready(self, kinds: Sequence[str] | None) -> _MemoryJob | None:
        best = self._best_heap(kinds)
        return None if best is None else self._records[heapq.heappop(best)[2]]

    def _best_heap(self, kinds: Sequence[str] | None) -> list[tuple[int, float, int, int]] | None:
        """The heap whose first job comes first of all."""
        best = None
        for kind in self._ready if kinds is None else kinds:
            heap = self._ready.get(kind, [])
            while heap:
                record = self._records.get(heap[0][2])
                if record is not None and record.version == heap[0][3]:
                    break
                heapq.heappop(heap)
            if heap and (best is None or heap[0] < best[0]):
                best = heap
        return best

    def _move(self, record: _MemoryJob, state: State, since: float) -> None:
        record.state, record.since = state, since
        record.version += 1
        if state == "ready":
            entry = (-record.priority, since, record.seq, record.version)
            heapq.heappush(self._ready.setdefault(record.kind, []), entry)
        elif state in ("delayed", "leased"):
            heapq.heappush(self._due, (since, record.seq, record.version))

    def _enter(self, record: _MemoryJob, now: float) -> None:
        """Enter a job: blocked behind its key, delayed until it is due, or ready."""
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

    def _unblock_behind(self, record: _MemoryJob) -> None:
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
        now = self.clock.epoch()
        lost = []
        for settlement in settlements:
            record = self._held(settlement.claim)
            if record is None:
                lost.append(settlement.claim.job.id)
                continue
            record.token += 1
            record.worker = None
            if settlement.error is not None:
                record.error = settlement.error
            if settlement.action == "retry":
                record.attempt -= not settlement.counted
                record.run_at = now + settlement.delay
                self._move(record, "delayed" if settlement.delay else "ready", record.run_at)
            else:
                self._end(record, settlement.action, now)
        return lost

    def _end(self, record: _MemoryJob, action: State, now: float) -> None:
        self._move(record, action, now)
        self._unblock_behind(record)
        if action == "done" and self.keep is None:
            self._delete(record)

    def _delete(self, record: _MemoryJob) -> None:
        del self._records[record.seq]
        if record.unique is not None:
            del self._unique[record.unique]

    def _held(self, claim: Claim) -> _MemoryJob | None:
        """The job, if this claim is its newest and was not settled yet."""
        record = self._records.get(number_of(claim.job.id))
        if record is None or record.token != claim.token:
            return None
        return record if record.state in ("leased", "ready") else None

    async def _renew(self, claims: list[Claim], lease: float) -> list[str]:
        until = self.clock.epoch() + lease
        lost = []
        for claim in claims:
            record = self._held(claim)
            if record is None:
                lost.append(claim.job.id)
            else:
                record.worker = claim.worker
                self._move(record, "leased", until)
        return lost

    async def stats(self) -> Stats:
        now = self.clock.epoch()
        counts = dict.fromkeys(("ready", "delayed", "blocked", "leased", "dead", "done"), 0)
        oldest = None
        for record in self._records.values():
            state = self._state_at(record, now)
            counts[state] += 1
            if state == "ready":
                oldest = record.run_at if oldest is None else min(oldest, record.run_at)
        return Stats(**counts, oldest_age=None if oldest is None else max(now - oldest, 0.0))

    @staticmethod
    def _state_at(record: _MemoryJob, now: float) -> State:
        over = record.state in ("delayed", "leased") and record.since <= now
        return "ready" if over else record.state

    async def get(self, job_id: str) -> JobInfo | None:
        record = self._records.get(number_of(job_id))
        return None if record is None else self._info(record)

    async def _list_jobs(
        self, state: State | None, kind: str | None, limit: int, after: str | None
    ) -> list[JobInfo]:
        page: list[JobInfo] = []
        for record in self._by_seq(place_after(after)):
            info = self._info(record)
            if state in (None, info.state) and kind in (None, record.kind):
                page.append(info)
                if len(page) == limit:
                    break
        return page

    def _by_seq(self, after: int) -> Iterator[_MemoryJob]:
        return (record for seq, record in self._records.items() if seq > after)

    async def _retry(self, ids: Sequence[str] | None) -> int:
        now = self.clock.epoch()
        dead = self._dead(ids)
        for record in dead:
            record.attempt = 0
            record.token += 1
            record.run_at = now
            self._enter(record, now)
        return len(dead)

    async def _drop(self, ids: Sequence[str] | None) -> int:
        dead = self._dead(ids)
        for record in dead:
            self._delete(record)
        return len(dead)

    def _dead(self, ids: Sequence[str] | None) -> list[_MemoryJob]:
        wanted = None if ids is None else {number_of(job_id) for job_id in ids}
        return [
            record
            for record in self._by_seq(0)
            if record.state == "dead" and (wanted is None or record.seq in wanted)
        ]

    async def _prune(self, keep: float) -> int:
        before = self.clock.epoch() - keep
        old = [r for r in self._records.values() if r.state == "done" and r.since <= before]
        for record in old:
            self._delete(record)
        return len(old)

    def _job(self, record: _MemoryJob) -> Job:
        return Job(
            id=str(record.seq),
            queue=self.name,
            kind=record.kind,
            payload=json.loads(record.encoded),
            key=record.key,
            priority=record.priority,
            attempt=record.attempt,
            created_at=record.created_at,
            run_at=record.run_at,
            unique=record.unique,
        )

    def _info(self, record: _MemoryJob) -> JobInfo:
        state = self._state_at(record, self.clock.epoch())
        return JobInfo(self._job(record), state, record.since, record.worker, record.error)
