"""Runs: jobs that are handed out to workers, kept and reported. No HTTP here.

A run is a job that a worker has, under a claim on the queue. All about it is in the state, so a
worker may reach a different controller with each request. The lease decides: while a worker sends
requests, its leases are renewed; when it is silent, they end, and the queue hands the job to
another worker, as the next attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from random import Random
from typing import Literal

from pollwise.controller.state.sqlite.one_file import (
    Decide,
    EndedRuns,
    JobRequest,
    RunEnd,
    TakenJobs,
)
from pollwise.controller.state.values import LIVE, Contact, JobRow, JobState, RunEnding, RunRow
from pollwise.controller.workers.base import ContactResult, ControllerPart, RunProgress, RunReport
from pollwise.controller.workers.matching import MARK
from pollwise.controller.workers.registry import RUNS_FRESH, KnownWorker
from pollwise.errors import LeaseLost
from pollwise.runtime.events import JobDelivered, JobGivenUp, JobLapsed, JobReported
from pollwise.runtime.jobs import Claim, Settlement

#: A lease is renewed after this fraction of it, not with each request.
RENEW_AFTER = 0.25
#: How many claims in a row may turn out void (cancelled jobs) before a poll is answered.
VOID_MAX = 50
#: How often a read of a worker's runs is repeated if a job was handed out meanwhile.
READS_MAX = 3
#: The longest progress message, in characters.
MESSAGE_MAX = 500
#: How long after its lease a job is shown as ready again, in seconds, and how many at a time.
LAPSED_AFTER = 1.0
SWEEP = 500


LEASED: tuple[JobState, ...] = ("leased",)


class Runs(ControllerPart):
    """The runs of a controller's workers."""

    @cached_property
    def lease_s(self) -> float:
        return self._options.span("heartbeat_timeout")

    @cached_property
    def _random(self) -> Random:
        return Random()

    # Getting

    async def claim(self, known: KnownWorker, limit: int) -> list[tuple[JobRow, RunRow]]:
        """Claim up to `limit` jobs for a worker, and store that it has them."""
        group = self._registry.group_of(known)
        delivered: list[tuple[JobRow, RunRow]] = []
        for _ in range(VOID_MAX):
            if not group.kinds:
                break
            puts, began = group.puts, self._clock.now()
            take = self._take(known, limit - len(delivered))
            taken = await self._claim(known, take)
            delivered += await self._hand_over(known, take, taken, puts, began)
            if len(taken.claims) < take.limit or len(delivered) == limit:
                break
        return delivered

    def _take(self, known: KnownWorker, limit: int) -> JobRequest:
        kinds = sorted(self._registry.group_of(known).kinds)
        return JobRequest(known.id, limit, self.lease_s, kinds)

    async def _claim(self, known: KnownWorker, take: JobRequest) -> TakenJobs:
        if self._one_file is None:
            claims = await self._queue.claim(known.id, take.limit, take.lease, kinds=take.kinds)
            return TakenJobs(claims)
        try:
            return await self._one_file.claim(take)
        except BaseException:
            known.runs_at = -RUNS_FRESH  # it may have a job now: its next poll reads its runs
            raise

    async def _hand_over(
        self, known: KnownWorker, take: JobRequest, taken: TakenJobs, puts: int, began: float
    ) -> list[tuple[JobRow, RunRow]]:
        """What a worker gets of a claim that began then, when `news` was the newest."""
        if len(taken.claims) < take.limit:
            known.group.found_nothing(puts, began + self._options.span("empty_for"))
        return await self._deliver(known, taken.claims, taken.rows) if taken.claims else []

    async def unheard(
        self, known: KnownWorker, running: Collection[str], limit: int
    ) -> list[tuple[JobRow, RunRow]]:
        """Jobs that a worker has and seems not to know of, because the answer was lost."""
        missed = [
            run
            for run in known.runs.values()
            if run.heard_of_at is None and run.job_id not in running
        ][:limit]
        if not missed:
            return []
        # The answer promises the whole lease.
        untils = await self._renew(known, missed, ContactResult(), at_once=True)
        contacts = [Contact(each, known.id, until, heard=False) for each, until in untils.items()]
        if contacts:
            await self._state.contact(contacts)
        rows = await self._state.jobs(list(untils))
        again = [(rows[run.job_id], run) for run in missed if run.job_id in rows]
        for row, run in again:
            self._events.emit(self._delivered(row, run, 0.0, again=True))
        return again

    async def _deliver(
        self, known: KnownWorker, claims: Sequence[Claim], delivered: Mapping[str, JobRow | None]
    ) -> list[tuple[JobRow, RunRow]]:
        try:
            return await self._hand_out(known, claims, delivered)
        except BaseException:
            # No worker knows of them: give them back. If that fails as well, their leases end.
            with suppress(Exception):
                await self._queue.settle([Settlement.give_back(claim) for claim in claims])
            raise

    async def _hand_out(
        self, known: KnownWorker, claims: Sequence[Claim], delivered: Mapping[str, JobRow | None]
    ) -> list[tuple[JobRow, RunRow]]:
        runs: list[tuple[Claim, RunRow]] = []
        settled: list[Settlement] = []
        for claim in claims:
            run = RunRow.of(claim, known.id)
            if run is None:
                settled.append(Settlement.dead(claim, "the controller did not put this job"))
            else:
                runs.append((claim, run))
        over = await self._used_up([run for _, run in runs])
        settled += [Settlement.done(claim) for claim, run in runs if run.job_id in over]
        runs = [(claim, run) for claim, run in runs if run.job_id not in over]
        rows = await self._delivered_rows([run for _, run in runs], delivered)
        handed: list[tuple[JobRow, RunRow]] = []
        now = self._clock.epoch()
        for claim, run in runs:
            row = rows[run.queue_id]
            if row is None:  # cancelled, or ended, or of an older round
                settled.append(Settlement.done(claim))
                continue
            handed.append((row, run))
            self._events.emit(self._delivered(row, run, max(now - claim.job.run_at, 0.0)))
        if handed:
            known.runs = {**known.runs, **{run.job_id: run for _, run in handed}}
            untils = {run.job_id: run.until for _, run in handed}
            self._note_renewed(known, untils, self._clock.now())
        if settled:
            with suppress(LeaseLost):
                await self._queue.settle(settled)
        return handed

    async def _delivered_rows(
        self, runs: Sequence[RunRow], delivered: Mapping[str, JobRow | None]
    ) -> Mapping[str, JobRow | None]:
        """Store that a worker has these, where that is not done; the rows by the queue's id."""
        missing = [run for run in runs if run.queue_id not in delivered]
        if not missing:
            return delivered
        rows = await self._state.deliver(missing)
        told = {run.queue_id: row for run, row in zip(missing, rows, strict=True)}
        return {**delivered, **told}

    async def _used_up(self, runs: Sequence[RunRow]) -> set[str]:
        """End the jobs among these whose attempts are used up; their ids."""
        again = [run for run in runs if run.attempt > 1]
        rows = await self._state.jobs([run.job_id for run in again]) if again else {}
        over: set[str] = set()
        for run in again:
            row = rows.get(run.job_id)
            if row is None or row.round != run.round or row.state not in LIVE:
                continue
            if row.state == "leased" and row.worker_id is not None:
                # Not swept yet: the error of a leased job is that of an earlier attempt.
                lapsed = _lapsed(row.worker_id)
                await self._state.end_job(row.id, row.round, LEASED, "ready", error=lapsed)
                self._events.emit(
                    JobLapsed(self._queue.name, row.worker_id, row.id, row.kind, run.attempt - 1)
                )
            if run.attempt > row.attempts:
                over.add(run.job_id)
                await self._give_up(row, row.worker_id or "", run.attempt - 1)
        return over

    async def _give_up(self, row: JobRow, worker_id: str, attempt: int) -> bool:
        """End a job whose last worker was silent; False if it ended in another way."""
        error = (
            f"{_lapsed(worker_id)}: it was silent for {self.lease_s:g} s, in the last of "
            f"{row.attempts} attempts"
        )
        ended = await self._state.end_job(row.id, row.round, LIVE, "dead", error=error)
        if ended is None or ended.state != "dead":
            return False
        self._events.emit(JobGivenUp(self._queue.name, worker_id, row.id, row.kind, attempt, error))
        return True

    # Keeping

    async def read(self, known: KnownWorker, *, afresh: bool = False) -> None:
        """Read what a worker has, unless that is known."""
        now = self._clock.now()
        if afresh or now - known.runs_at >= min(RUNS_FRESH, RENEW_AFTER * self.lease_s):
            for _ in range(READS_MAX):
                before = known.runs
                found = await self._state.runs_of(known.id)
                if known.runs is before:  # otherwise a job was handed out meanwhile
                    known.runs = {run.job_id: run for run in found}
                    known.runs_at = now
                    break

    async def keep(
        self, known: KnownWorker, running: Sequence[RunProgress] | None, *, complete: bool = True
    ) -> ContactResult:
        """Renew the leases of a worker that sent a request.

        running: the jobs that it runs; None if it does not say.
        complete: `running` lists them all: a run that it reported before and leaves out now is not
            renewed, because the worker has lost it.
        """
        heard = ContactResult()
        if not known.runs and not running:
            return heard
        spoken = {each.job_id: each for each in running or ()}
        if spoken.keys() - known.runs.keys():
            await self.read(known, afresh=True)
        heard.lost = [job_id for job_id in spoken if job_id not in known.runs]
        kept = [
            run
            for run in known.runs.values()
            if running is None or not complete or run.job_id in spoken or run.heard_of_at is None
        ]
        renewed = await self._renew(known, kept, heard)
        contacts: list[Contact] = []
        for run in kept:
            said = spoken.get(run.job_id)
            until = renewed.get(run.job_id)
            news = said is not None and (
                run.heard_of_at is None or said.progress is not None or said.message is not None
            )
            if run.job_id not in heard.lost and (news or until is not None):
                contacts.append(
                    Contact(
                        run.job_id,
                        known.id,
                        until,
                        said.progress if said else None,
                        said.message[:MESSAGE_MAX] if said and said.message else None,
                        heard=said is not None,
                    )
                )
        if contacts:
            found = await self._state.contact(contacts)
            runs = dict(known.runs)
            for contact, now in zip(contacts, found, strict=True):
                if now is None:
                    runs.pop(contact.job_id, None)
                    if contact.job_id in spoken:
                        heard.lost.append(contact.job_id)
                else:
                    runs[contact.job_id] = now
            known.runs = runs
        heard.cancel = [run.job_id for run in known.runs.values() if run.cancel]
        return heard

    def left(self, known: KnownWorker, job_id: str) -> float:
        """Seconds left of a lease, as far as this controller knows."""
        renewed_at, _ = known.renewed.get(job_id, (self._clock.now(), 0.0))
        return max(self.lease_s - (self._clock.now() - renewed_at), 0.0)

    async def _renew(
        self,
        known: KnownWorker,
        runs: Iterable[RunRow],
        heard: ContactResult,
        *,
        at_once: bool = False,
    ) -> dict[str, float]:
        """Renew the leases that are due; their new ends by job id.

        A lease is due by the time since this controller renewed it, not by the time of day: the
        store's clock may differ from ours. One that another controller renewed is due at once.
        """
        now = self._clock.now()
        due = [
            run
            for run in runs
            if at_once
            or run.job_id not in known.renewed
            or now - known.renewed[run.job_id][0] >= RENEW_AFTER * self.lease_s
        ]
        if not due:
            return {}
        refused: Collection[str] = ()
        try:
            await self._queue.renew([run.claim(self._queue.name) for run in due], self.lease_s)
        except LeaseLost as error:
            refused = set(error.lost)
        heard.lost += [run.job_id for run in due if run.queue_id in refused]
        untils: dict[str, float] = {}
        for run in due:
            if run.queue_id in refused:
                continue
            before = known.renewed.get(run.job_id)
            until = before[1] + now - before[0] if before else self._clock.epoch() + self.lease_s
            untils[run.job_id] = until
        self._note_renewed(known, untils, now)
        return untils

    @staticmethod
    def _note_renewed(known: KnownWorker, untils: Mapping[str, float], now: float) -> None:
        kept = {k: v for k, v in known.renewed.items() if k in known.runs}
        known.renewed = {**kept, **{job_id: (now, until) for job_id, until in untils.items()}}

    # RunEnding

    async def finish(
        self, known: KnownWorker, finished: Sequence[RunReport], max_jobs: int = 0
    ) -> tuple[list[str], list[tuple[JobRow, RunRow]]]:
        """End runs as their worker reports; the ids of jobs that it has lost, and its next jobs.

        max_jobs: how many jobs it asks for next. They come along if one transaction can do both;
            otherwise none do, and the caller claims them.
        """
        reports: dict[str, RunReport] = {}
        for each in finished:
            reports.setdefault(each.job_id, each)  # the first report of a job counts

        def decide(runs: Mapping[str, RunRow], rows: Mapping[str, JobRow]) -> list[RunEnd]:
            return [
                self._end(report, known, rows[job_id], runs.get(job_id))
                for job_id, report in reports.items()
                if job_id in rows
            ]

        group, began = self._registry.group_of(known), self._clock.now()
        puts, take = group.puts, self._take(known, max_jobs)
        ended, taken = await self._end_all(known, list(reports), decide, take)
        over = {end.ending.job_id for end in ended.ends}
        known.runs = {k: run for k, run in known.runs.items() if k not in over}
        lost = [job_id for job_id in reports if job_id not in ended.rows]
        for end, result in zip(ended.ends, ended.results, strict=True):
            job_id = end.ending.job_id
            run = ended.runs.get(job_id)
            if result == "lost":
                lost.append(job_id)
            elif result == "ended" and run is not None:
                self._reported(known, ended.rows[job_id], run, reports[job_id], end.ending)
        if taken is None:
            return lost, []
        return lost, await self._hand_over(known, take, taken, puts, began)

    async def _end_all(
        self, known: KnownWorker, ids: Sequence[str], decide: Decide, take: JobRequest
    ) -> tuple[EndedRuns, TakenJobs | None]:
        """End the runs; and take the next jobs, if asked for and the stores are one file."""
        if self._one_file is not None:
            began, before = self._clock.now(), known.runs
            wanted = take if take.limit and take.kinds else None
            try:
                ended, taken = await self._one_file.end(known.id, ids, decide, wanted)
            except BaseException:
                known.runs_at = -RUNS_FRESH  # as after a claim
                raise
            if known.runs is before:  # otherwise they were read meanwhile
                known.runs, known.runs_at = ended.runs, began
            return ended, taken
        await self.read(known, afresh=True)
        runs = known.runs
        rows = await self._state.jobs(ids)
        ends = decide(runs, rows)
        results = await self._state.end_runs([end.ending for end in ends]) if ends else []
        settlements = [
            end.settlement
            for end, result in zip(ends, results, strict=True)
            if result == "ended" and end.settlement is not None
        ]
        if settlements:
            # The state has it: if the claim is lost, the next one turns out to be void.
            with suppress(LeaseLost):
                await self._queue.settle(settlements)
        return EndedRuns(runs, rows, ends, results), None

    async def give_back(self, runs: Sequence[RunRow]) -> None:
        """Give back the jobs of a worker that unregistered."""
        if runs:
            with suppress(LeaseLost):
                await self._queue.settle(
                    [Settlement.give_back(run.claim(self._queue.name)) for run in runs]
                )

    async def show_lapsed(self) -> int:
        """Show jobs whose lease ended as ready again; the queue hands them out anyway.

        A job without attempts left is dead at once: there may be no poll that would find out.
        """
        over = await self._state.release_lapsed(LAPSED_AFTER, SWEEP)
        if over:
            self._registry.notice_put()
            rows = await self._state.jobs([run.job_id for run in over])
            for run in over:
                kind = run.queue_kind.partition(MARK)[0]
                self._events.emit(
                    JobLapsed(self._queue.name, run.worker_id, run.job_id, kind, run.attempt)
                )
                known = self._registry.remembered(run.worker_id)
                if known is not None and run.job_id in known.runs:
                    known.runs = {k: v for k, v in known.runs.items() if k != run.job_id}
                row = rows.get(run.job_id)
                if row is None or row.state not in LIVE or row.round != run.round:
                    continue
                if run.attempt >= row.attempts and row.attempt == run.attempt:
                    if await self._give_up(row, run.worker_id, run.attempt):
                        with suppress(LeaseLost):  # a claim meanwhile turns out to be void
                            await self._queue.settle([Settlement.done(run.claim(self._queue.name))])
        return len(over)

    def _end(
        self, report: RunReport, known: KnownWorker, row: JobRow, run: RunRow | None
    ) -> RunEnd:
        """How a run ends by its report."""
        state: Literal["done", "ready", "dead", "cancelled"]
        if report.state == "done":
            state = "done"
        elif report.state == "cancelled" or row.cancel:  # it failed because it was cancelled
            state = "cancelled"
        else:
            attempt = row.attempt if run is None else run.attempt
            state = "ready" if attempt < row.attempts else "dead"
        ending = RunEnding(
            report.job_id,
            known.id,
            state,
            result=report.result if state == "done" else None,
            error=report.error,
            exit_code=report.exit_code,
            token=None if run is None else run.token,
        )
        return RunEnd(ending, None if run is None else self._settlement(run, ending))

    def _settlement(self, run: RunRow, ending: RunEnding) -> Settlement:
        claim = run.claim(self._queue.name)
        if ending.state != "ready":
            return Settlement.done(claim)
        delay = self._options.retry.delay(run.attempt, self._random.random())
        return Settlement.retry(claim, delay, ending.error)

    def _reported(
        self, known: KnownWorker, row: JobRow, run: RunRow, report: RunReport, ending: RunEnding
    ) -> None:
        result = "failed" if ending.state == "ready" else ending.state
        took = max(self._clock.epoch() - (run.delivered_at or row.started_at or 0.0), 0.0)
        self._events.emit(
            JobReported(
                self._queue.name,
                known.id,
                row.id,
                row.kind,
                run.attempt,
                result,
                took,
                report.error or "",
            )
        )

    def _delivered(
        self, row: JobRow, run: RunRow, waited: float, again: bool = False
    ) -> JobDelivered:
        return JobDelivered(
            self._queue.name, run.worker_id, row.id, row.kind, run.attempt, waited, again
        )


def _lapsed(worker_id: str) -> str:
    """The error of an attempt whose worker was silent, as in the state's own sweep."""
    return f"the lease of {worker_id} ran out"
