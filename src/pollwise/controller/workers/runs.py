"""Runs: jobs that are handed out to workers, kept and reported. No HTTP here.

A run is a job under a claim of its worker, and the queue knows all about it. This controller
remembers the claims of the workers that it talks to, so that a hand-out, a renewal and a report are
one call each. A worker may reach another controller with its next request: that one reads the claim
from the queue.

While a worker sends requests, its runs are renewed. When it is silent for the heartbeat timeout,
its jobs become ready for others, as the next attempt. Until another worker has taken such a job,
the first one may return, go on and report. The leases in the queue are much longer, so that a run
outlives an outage of the controllers. After an outage all workers get the whole timeout to return.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from pollwise.controller.options import ControllerOptions
from pollwise.controller.terms import JobTerms
from pollwise.controller.workers.registry import HeldRun, KnownWorker, WorkerRegistry
from pollwise.errors import LeaseLost, StoreError
from pollwise.queues.base import Queue
from pollwise.queues.views import JobFilter
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import (
    Events,
    JobDelivered,
    JobDied,
    JobGivenUp,
    JobLapsed,
    JobReported,
)
from pollwise.runtime.events.controller import AgentJobEvent
from pollwise.runtime.jobs import ENDED, Claim, JobInfo, Progress, Settlement

#: A lease is renewed after this fraction of it, not with each request.
RENEW_AFTER = 0.25
#: How long a read of all runs counts as fresh, in seconds: a worker may poll other controllers.
RUNS_FRESH = 30.0
#: How many claims in a row may be without attempts left before a poll is answered.
VOID_MAX = 50
#: How many unknown jobs that a worker names are looked up, one by one.
LOOKUPS_MAX = 100
#: How long the queue keeps a claim after its last renewal, in seconds.
HELD_FOR = 86400.0
#: The lease of a run that is released, in seconds: its claim stays valid until the next one.
RELEASED = 0.001
#: In its last attempt, a job is given up after this many heartbeat timeouts: no other worker may
#: take it, so the result of the silent one is awaited for longer.
LAST_ATTEMPT = 5.0
#: How many released runs are remembered, for workers that return.
RELEASED_MAX = 10_000
_PAGE = 500
_NO_PROGRESS: Mapping[str, Progress] = {}


@dataclass(frozen=True, slots=True)
class RunReport:
    """How a run ended, as its worker reports it: done, failed or cancelled.

    result: JSON text. last: its last progress, if that was not reported before.
    """

    job_id: str
    state: str
    result: str | None = None
    error: str | None = None
    last: Progress | None = None


class Runs:
    """The runs of a controller's workers."""

    def __init__(
        self,
        queue: Queue,
        registry: WorkerRegistry,
        options: ControllerOptions,
        clock: Clock,
        events: Events,
    ) -> None:
        self._queue = queue
        self._registry = registry
        self._options = options
        self._clock = clock
        self._events = events
        self._random = Random()
        self.lease_s: float = options.span("heartbeat_timeout")
        self._held_s = max(HELD_FOR, 2 * self.lease_s)
        self._fresh_for = min(RUNS_FRESH, RENEW_AFTER * self.lease_s)
        self._read_at = -RUNS_FRESH
        self._reading = asyncio.Lock()
        self._unknown: dict[str, list[JobInfo]] = {}  # runs of workers that were not seen yet
        #: By worker and job: runs that others may take, and that nobody has taken as far as known.
        self._released: OrderedDict[tuple[str, str], HeldRun] = OrderedDict()
        self._sweep_by = -math.inf  # no run is overdue before
        self._sweeping = asyncio.Lock()
        self._failed = False

    def _run(self, claim: Claim, renewed_at: float | None = None, cancel: bool = False) -> HeldRun:
        terms, now = JobTerms.of(claim.job, self._options.attempts), self._clock.now()
        return HeldRun(claim, terms, now, now if renewed_at is None else renewed_at, cancel)

    def _emit(
        self, event: Callable[..., AgentJobEvent], run: HeldRun, *rest: Any, attempt: int = 0
    ) -> None:
        job = run.claim.job
        attempt = attempt or job.attempt
        self._events.emit(
            event(self._queue.name, run.claim.worker, job.id, run.terms.kind, attempt, *rest)
        )

    # Handing out

    async def claim(self, known: KnownWorker, limit: int) -> list[HeldRun]:
        """Claim up to `limit` jobs for a worker; none while it has one that runs alone."""
        if self._clock.now() >= self._sweep_by:
            await self.sweep()
        group = self._registry.group_of(known)
        handed: list[HeldRun] = []
        for _ in range(VOID_MAX):
            if not group.kinds or known.has_isolated(self._clock.now()):
                break
            puts, began, wanted = group.puts, self._clock.now(), limit - len(handed)
            claims = await self._queue.claim(
                known.id, wanted, self._held_s, kinds=sorted(group.kinds)
            )
            alone = any(claim.suspect for claim in claims)
            if len(claims) < wanted and not alone:
                group.found_nothing(puts, began + self._options.span("empty_for"))
            handed += await self._hand_out(known, claims)
            if (len(claims) < wanted and not alone) or len(handed) == limit:
                break
        return handed

    async def _hand_out(self, known: KnownWorker, claims: Sequence[Claim]) -> list[HeldRun]:
        epoch = self._clock.epoch()
        handed: list[HeldRun] = []
        used_up: list[HeldRun] = []
        for run in map(self._run, claims):
            if run.claim.job.unreadable is not None:
                await self._bury(run, run.claim.job.unreadable)
                continue
            over = run.claim.job.attempt > run.terms.attempts
            (used_up if over else handed).append(run)
        if handed:
            known.runs = {**known.runs, **{run.job_id: run for run in handed}}
            known.polls_left += len(handed)
        for run in handed:
            if run.claim.job.attempt > 1:
                self._note_lapsed(run)
            self._emit(JobDelivered, run, max(epoch - run.claim.job.run_at, 0.0))
        for run in used_up:  # its last lease ran out, as its newest error says
            info = await self._queue.get(run.job_id)
            lapse = (info and info.error) or "its last lease ran out"
            self._note_lapsed(run)
            await self._give_up(run, lapse, run.claim.job.attempt - 1)
        return handed

    def _note_lapsed(self, taken: HeldRun) -> None:
        """Forget the run of a job under an older claim, if this controller remembers one."""
        for known in self._registry:
            old = known.runs.get(taken.job_id)
            if old is not None and old is not taken:
                self._forget(known, [old.job_id])
                self._emit(JobLapsed, old)

    async def unheard(
        self, known: KnownWorker, running: Collection[str], limit: int
    ) -> list[HeldRun]:
        """Jobs that a worker has and seems not to know of, because the answer was lost."""
        missed = [
            run for run in known.runs.values() if not run.heard and run.job_id not in running
        ][:limit]
        if not missed:
            return []
        lost = await self._renew(known, missed)  # the answer promises the whole lease
        again = [run for run in missed if run.job_id not in lost]
        for run in again:
            self._emit(JobDelivered, run, 0.0, True)
        return again

    # Reading what other controllers handed out

    async def read(self, known: KnownWorker) -> None:
        """Read what workers have, unless that was done lately."""
        if not self.is_fresh(self._clock.now()):
            async with self._reading:
                if not self.is_fresh(self._clock.now()):
                    await self._read_all()
        if known.runs_at < self._read_at:
            self._merge(known, self._unknown.pop(known.id, []), self._read_at)

    def is_fresh(self, now: float) -> bool:
        return now - self._read_at < self._fresh_for

    async def read_all(self) -> None:
        async with self._reading:
            await self._read_all()

    async def _read_all(self) -> None:
        began = self._clock.now()
        found: dict[str, list[JobInfo]] = {}
        chosen: JobFilter | None = JobFilter("leased", limit=_PAGE)
        while chosen is not None:  # a job that is renewed meanwhile may be read twice
            page = await self._queue.page(chosen)
            for info in page.jobs:
                if info.claim is not None:
                    found.setdefault(info.claim.worker, []).append(info)
            chosen = None if page.next is None else replace(chosen, after=page.next)
        for known in self._registry:
            self._merge(known, found.pop(known.id, []), began)
        self._unknown, self._read_at = found, began

    def _merge(self, known: KnownWorker, found: Iterable[JobInfo], began: float) -> None:
        """Remember what a read that began then found, and what was handed out since."""
        runs = {job_id: run for job_id, run in known.runs.items() if run.since >= began}
        for info in found:
            run = self._run_of(info)
            before = known.runs.get(run.job_id)
            if before is not None and before.claim.token == run.claim.token:
                before.cancel = before.cancel or info.cancel
                before.renewed_at = max(before.renewed_at, run.renewed_at)
                run = before
            runs.setdefault(run.job_id, run)
        if runs or known.runs:
            known.runs = runs
        known.runs_at = began

    def _run_of(self, info: JobInfo) -> HeldRun:
        if info.claim is None:
            raise ValueError(f"job {info.job.id} is not leased")
        left = min(max(info.claim.until - self._clock.epoch(), 0.0), self._held_s)
        return self._run(info.claim, self._clock.now() - (self._held_s - left), info.cancel)

    async def adopt(self, known: KnownWorker, ids: Collection[str]) -> None:
        """Look up jobs that a worker names: another controller may have handed them out.

        A worker that was silent for long gets back the runs that nobody else has taken.
        """
        released = [run for i in ids if (run := self._released.pop((known.id, i), None))]
        if released:
            known.runs = {**known.runs, **{run.job_id: run for run in released}}
            await self._renew(known, released)
        unknown = [job_id for job_id in ids if job_id not in known.runs]
        if len(unknown) > LOOKUPS_MAX:
            await self.read_all()
            return
        for job_id in unknown:
            info = await self._queue.get(job_id)
            if info is not None and info.claim is not None and info.claim.worker == known.id:
                known.runs = {**known.runs, job_id: self._run_of(info)}

    # Keeping

    async def keep(
        self,
        known: KnownWorker,
        running: dict[str, Progress | None] | None,
        *,
        complete: bool = True,
    ) -> tuple[list[str], list[str]]:
        """Renew the leases of a worker that sent a request; return what it lost, and must cancel.

        running: the progress of the jobs that it runs; None if it does not say which run.
        complete: `running` lists them all: a run that it reported before and leaves out now is not
            renewed, because the worker has lost it.
        """
        if not known.runs and not running:
            return [], []
        spoken = running or {}
        await self.adopt(known, spoken)
        lost = [job_id for job_id in spoken if job_id not in known.runs]
        kept = [
            run
            for run in known.runs.values()
            if running is None or not complete or run.job_id in spoken or not run.heard
        ]
        progress = {job_id: said for job_id, said in spoken.items() if said is not None}
        now = self._clock.now()
        due = [
            run
            for run in kept
            if run.job_id in progress or now - run.renewed_at >= RENEW_AFTER * self.lease_s
        ]
        if due:
            lost += [
                job_id for job_id in await self._renew(known, due, progress) if job_id in spoken
            ]
        for job_id in spoken:
            if job_id in known.runs:
                known.runs[job_id].note_heard()
        return lost, [run.job_id for run in known.runs.values() if run.cancel]

    def left(self, run: HeldRun) -> float:
        """Seconds left of a lease, as far as this controller knows."""
        return max(self.lease_s - (self._clock.now() - run.renewed_at), 0.0)

    async def _renew(
        self,
        known: KnownWorker,
        runs: Sequence[HeldRun],
        progress: Mapping[str, Progress] = _NO_PROGRESS,
    ) -> Sequence[str]:
        """Renew leases and store progress, in one call; return the ids of those that are lost."""
        now = self._clock.now()
        ids = {run.job_id for run in runs}
        said = {job_id: each for job_id, each in progress.items() if job_id in ids}
        renewal = await self._queue.renew([run.claim for run in runs], self._held_s, said)
        for run in runs:
            run.renewed_at = now
            run.cancel = run.cancel or run.job_id in renewal.cancel
        self._forget(known, renewal.lost)
        return renewal.lost

    @staticmethod
    def _forget(known: KnownWorker, ids: Collection[str]) -> None:
        if any(job_id in known.runs for job_id in ids):
            known.runs = {k: run for k, run in known.runs.items() if k not in ids}

    # Ending

    async def finish(
        self, known: KnownWorker, finished: Sequence[RunReport], max_jobs: int = 0
    ) -> tuple[list[str], list[HeldRun]]:
        """End runs as their worker reports; return the jobs that it has lost, and its next jobs.

        max_jobs: how many jobs it asks for next, if it has no others then. They are claimed at the
            same time, so that a store may commit both at once.
        """
        reports: dict[str, RunReport] = {}
        for each in finished:
            reports.setdefault(each.job_id, each)  # the first report of a job counts
        await self.adopt(known, reports)
        runs = {job_id: known.runs[job_id] for job_id in reports if job_id in known.runs}
        last = {job_id: said for job_id in runs if (said := reports[job_id].last) is not None}
        if last:
            await self._renew(known, [runs[job_id] for job_id in last], last)
        ends = {job_id: self._settlement(reports[job_id], run) for job_id, run in runs.items()}
        others = known.runs.keys() - runs.keys()
        settling = asyncio.ensure_future(self._settle(list(ends.values())))
        await asyncio.sleep(0)  # it comes first, so that the claim finds what it unblocks
        handed: list[HeldRun] = []
        try:
            if max_jobs and not others:
                handed = await self.claim(known, max_jobs)
        finally:
            refused = await settling
        self._forget(known, [i for i in runs if known.runs.get(i) is runs[i]])
        for job_id, end in ends.items():
            if job_id not in refused:
                known.polls_left += 1.0
                result = "failed" if end.comes_back else end.action
                took = max(self._clock.now() - runs[job_id].since, 0.0)
                error = reports[job_id].error or ""
                self._emit(JobReported, runs[job_id], result, took, error)
                if end.action == "dead":
                    self._emit(JobDied, runs[job_id], end.error or "")
        doubtful = [job_id for job_id in reports if job_id not in runs or job_id in refused]
        return [i for i in doubtful if not await self._ended_by(known, i)], handed

    async def _settle(self, settlements: Sequence[Settlement]) -> Collection[str]:
        """Settle; return the ids that were refused."""
        try:
            await self._queue.settle(settlements)
        except LeaseLost as error:
            return set(error.lost)
        return ()

    async def _ended_by(self, known: KnownWorker, job_id: str) -> bool:
        """True for a report that came twice: this worker's settlement had ended the job."""
        info = await self._queue.get(job_id)
        return info is not None and info.state in ENDED and info.worker == known.id

    def _settlement(self, report: RunReport, run: HeldRun) -> Settlement:
        claim = run.claim
        if report.state == "done":
            return Settlement(claim, "done", result=report.result)
        if report.state == "cancelled" or run.cancel:  # it failed because it was cancelled
            return Settlement.cancelled(claim, report.error)
        if claim.job.attempt >= run.terms.attempts:
            return Settlement.dead(claim, report.error or "it failed")
        delay = self._options.retry.delay(claim.job.attempt, self._random.random())
        return Settlement.retry(claim, delay, report.error)

    async def give_back(self, worker_id: str) -> int:
        """Give back the jobs of a worker that unregistered; return how many."""
        held = [
            info.claim
            for info in await self._queue.jobs("leased", worker=worker_id, limit=_PAGE)
            if info.claim is not None
        ]
        refused = await self._settle([Settlement.give_back(claim) for claim in held])
        return len(held) - len(refused)

    # Workers that are silent

    async def sweep(self) -> None:
        """Release the runs of silent workers, and give up those that had their last attempt."""
        async with self._sweeping:
            try:
                if self._overdue() or not self.is_fresh(self._clock.now()):
                    await self.read_all()  # others may have heard of them
                overdue = self._overdue()
                if self._failed:  # the store did not answer: no worker could be heard
                    self._failed, self._registry.resumed_at = False, self._clock.now()
                elif overdue:
                    await self._end_silent(overdue)
            except StoreError:
                self._failed = True
                raise

    def _overdue(self) -> list[HeldRun]:
        """The runs of workers that are silent for too long. Notes when the next one may be."""
        now, heard = self._clock.now(), self._registry.resumed_at
        overdue: list[HeldRun] = []
        self._sweep_by = now + self.lease_s
        unknown = (self._run_of(each) for found in self._unknown.values() for each in found)
        for run in (*(r for known in self._registry for r in known.runs.values()), *unknown):
            last = run.claim.job.attempt >= run.terms.attempts and not run.cancel
            until = max(run.renewed_at, heard) + self.lease_s * (LAST_ATTEMPT if last else 1.0)
            if until <= now:
                overdue.append(run)
            else:
                self._sweep_by = min(self._sweep_by, until)
        return overdue

    async def _end_silent(self, overdue: Sequence[HeldRun]) -> None:
        released: list[HeldRun] = []
        for run in overdue:
            if run.cancel:
                await self._settle([Settlement.cancelled(run.claim)])
            elif run.claim.job.attempt >= run.terms.attempts:
                self._emit(JobLapsed, run)
                lapse = f"the lease of {run.claim.worker} ran out"
                await self._give_up(run, lapse, run.claim.job.attempt)
            else:
                released.append(run)
                continue
            self._drop(run)
        if released:
            await self._release(released)

    async def _release(self, runs: Sequence[HeldRun]) -> None:
        """Let others take these runs; their claims stay valid until somebody does."""
        lost = (await self._queue.renew([run.claim for run in runs], RELEASED)).lost
        for run in runs:
            self._drop(run)
            self._emit(JobLapsed, run)
            if run.job_id not in lost:
                run.note_heard()
                self._released[run.claim.worker, run.job_id] = run
        while len(self._released) > RELEASED_MAX:
            self._released.popitem(last=False)
        await self._clock.sleep(2 * RELEASED)
        self._registry.notice_put()
        for run in runs:
            self._queue.hints().send(1, {run.claim.job.kind})

    def _drop(self, run: HeldRun) -> None:
        """Forget a run, of whichever worker."""
        worker, job_id = run.claim.worker, run.job_id
        known = self._registry.remembered(worker)
        if known is not None and known.runs.get(job_id) is run:
            self._forget(known, [job_id])
        if worker in self._unknown:
            self._unknown[worker] = [i for i in self._unknown[worker] if i.job.id != job_id]

    async def _give_up(self, run: HeldRun, lapse: str, attempt: int) -> None:
        """End a job whose last worker was silent in this attempt."""
        silent = LAST_ATTEMPT * self.lease_s
        error = (
            f"{lapse}: it was silent for {silent:g} s, in the last of {run.terms.attempts} attempts"
        )
        await self._bury(run, error, attempt)

    async def _bury(self, run: HeldRun, error: str, attempt: int = 0) -> None:
        if not await self._settle([Settlement.dead(run.claim, error)]):
            self._emit(JobGivenUp, run, error, attempt=attempt)
