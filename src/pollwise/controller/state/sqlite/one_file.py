"""The queue and the state of a controller in one SQLite file: what belongs together, at once.

Where they are two stores, a put is four transactions (the state's row, the queue's job, the
mark that it is there, the audit log), a job that is handed out is two, and so is one that ended.
Each waits for the disk, and in one file for the lock of the other connection as well. Here each of
these is one transaction, on the connection and in the thread of the state: it is there in full or
not at all, and what is called later sees what was called before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.controller.state.sqlite.store import StateFile
from pollwise.controller.state.values import EndResult, JobRow, RunEnding, RunRow
from pollwise.queues.base import Queue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.queues.sqlite.store import SqliteStore
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.jobs import Claim, NewJob, Settlement
from pollwise.storage.sqlite.file import transaction


@dataclass(frozen=True, slots=True)
class RunEnd:
    """What follows from a report: how the run ends in the state, and its claim on the queue.

    settlement: None where the worker has no such run, so that there is no claim to settle.
    """

    ending: RunEnding
    settlement: Settlement | None


#: Given the runs of a worker and the jobs that it reports, what follows.
Decide = Callable[[Mapping[str, RunRow], Mapping[str, JobRow]], Sequence[RunEnd]]


@dataclass(frozen=True, slots=True)
class EndedRuns:
    """What the runs and jobs were when they were reported, and what became of each ending."""

    runs: Mapping[str, RunRow]
    rows: Mapping[str, JobRow]
    ends: Sequence[RunEnd]
    results: Sequence[EndResult]


@dataclass(frozen=True, slots=True)
class JobRequest:
    """How many jobs a worker asks for, of which kinds."""

    worker_id: str
    limit: int
    lease: float
    kinds: Sequence[str]


@dataclass(frozen=True, slots=True)
class TakenJobs:
    """What was claimed for a worker.

    rows: by the queue's id, what the state's `deliver` said of it; those that somebody had before
        are not among them, for they may be used up, which is handled apart.
    due: when the next job is due, where no more is ready.
    more: a kind of which more is ready.
    """

    claims: Sequence[Claim] = ()
    rows: Mapping[str, JobRow | None] = field(default_factory=dict)
    due: float | None = None
    more: str | None = None


class OneFile:
    """Calls that change the queue and the state in one transaction."""

    def __init__(self, queue: SqliteQueue, state: SqliteState) -> None:
        self._queue = queue
        self._call = state._thread.call
        self._rows = state._store
        self._jobs = _Beside(queue, state._store)
        self._opened = False

    @classmethod
    def of(cls, queue: Queue, state: ControllerState) -> OneFile | None:
        """The two as one; None where they are not in one file, or do not write alike."""
        # Exactly these: who makes a queue or a state of its own wants its own calls to be made.
        if type(queue) is not SqliteQueue or type(state) is not SqliteState:
            return None
        alike = (
            queue.path.absolute() == state.path.absolute()
            and queue.synchronous == state.synchronous
            and queue.clock is state.clock
        )
        return cls(queue, state) if alike else None

    async def put(self, row: JobRow, job: NewJob, entry: AuditEntry) -> JobRow:
        """Take a job in and put it; the job that was there before under the same `unique`.

        Pollers in this process get a hint at once: a claim that follows comes behind in the same
        thread, and finds the job. So a hint travels while the disk is waited for. Of one that may
        be there already they get one when it is known to be new.
        """
        kinds, hints = {job.kind}, self._queue.hints()
        doing = self._call(self._put, row, job, entry, self._now())
        if row.unique is None:
            hints.send(1, kinds)
        kept = await doing
        self._open()
        if kept.id == row.id:
            hints.send_to_others(1, kinds)
            if row.unique is not None:
                hints.send(1, kinds)
        return kept

    async def claim(self, take: JobRequest) -> TakenJobs:
        """Claim jobs for a worker, and deliver them.

        Cancelled, it may have done so all the same, as if its answer had been lost on the way.
        """
        taken = await self._call(self._claim, take, self._now())
        self._heed(taken)
        return taken

    async def end(
        self, worker_id: str, ids: Sequence[str], decide: Decide, take: JobRequest | None = None
    ) -> tuple[EndedRuns, TakenJobs | None]:
        """End runs of a worker and settle their claims; and take the next jobs for it.

        None where it did not look for any: a worker that has others may not know of those yet. A
        claim that was lost is found to be void when it comes up.
        """
        ended, settled, taken = await self._call(
            self._end, worker_id, ids, decide, take, self._now()
        )
        if settled:
            self._queue._hint_after(settled)
        if taken is not None:
            self._heed(taken)
        return ended, taken

    def _heed(self, taken: TakenJobs) -> None:
        """Send a hint for what is left."""
        self._open()
        self._queue._hint_when_due(taken.due)
        if taken.more is not None:
            self._queue.hints().pass_on({taken.more})

    # In the thread of the state

    def _put(self, row: JobRow, job: NewJob, entry: AuditEntry, now: float) -> JobRow:
        with transaction(self._jobs.connect()):
            [kept] = self._rows.add_jobs(now, [row])
            if kept.id != row.id:
                return kept
            [queue_id], _ = self._jobs.put(now, [job])
            self._rows.mark_ready(now, [(row.id, row.round, queue_id)])
            self._rows.audit(now, [entry])
        return replace(kept, state="ready", queue_id=queue_id)

    def _claim(self, take: JobRequest, now: float) -> TakenJobs:
        rows: dict[str, JobRow | None] = {}

        def deliver(claims: Sequence[Claim]) -> None:
            runs = [RunRow.of(claim, take.worker_id) for claim in claims]
            first = [run for run in runs if run is not None and run.attempt == 1]
            for run, row in zip(first, self._rows.deliver(now, first), strict=True):
                rows[run.queue_id] = row

        claims, due = self._jobs.claim(
            take.worker_id, take.limit, take.lease, take.kinds, now, within=deliver
        )
        more = None
        if len(claims) == take.limit:
            more, due = self._jobs.left(take.kinds)
        return TakenJobs(claims, rows, due, more)

    def _end(
        self,
        worker_id: str,
        ids: Sequence[str],
        decide: Decide,
        take: JobRequest | None,
        now: float,
    ) -> tuple[EndedRuns, list[Settlement], TakenJobs | None]:
        with transaction(self._jobs.connect()):
            runs = {run.job_id: run for run in self._rows.runs_of(worker_id)}
            rows = self._rows.jobs(ids)
            ends = decide(runs, rows)
            results = self._rows.end_runs(now, [each.ending for each in ends])
            settled = [
                end.settlement
                for end, result in zip(ends, results, strict=True)
                if result == "ended" and end.settlement is not None
            ]
            if settled:
                self._jobs.settle(settled, now, self._queue.keep is not None)
            has_others = runs.keys() - {end.ending.job_id for end in ends}
            taken = None if take is None or has_others else self._claim(take, now)
        return EndedRuns(runs, rows, ends, results), settled, taken

    def _open(self) -> None:
        """A call went well, so the file is ours: the hint file beside it may be set up."""
        if not self._opened:
            self._opened = True
            self._queue.hints().opened()

    def _now(self) -> float:
        return self._queue.clock.epoch()


class _Beside(SqliteStore):
    """The tables of the queue, on the connection of the state."""

    def __init__(self, queue: SqliteQueue, file: StateFile) -> None:
        create = queue._store._create
        super().__init__(queue.path, queue.name, synchronous=queue.synchronous, create=create)
        self._file = file

    def connect(self) -> sqlite3.Connection:
        connection = self._file.connect()
        if connection is not self._connection:
            self._prepare(connection)
            self._connection = connection
        return connection
