"""What workers do with jobs: get them, keep them, report how they ended; no HTTP in here.

A run is a job in the hands of a worker, under a claim on the queue. What it takes to go on with one
is in the state, so a worker may talk to a different controller each time. Everything is decided by
the lease: while a worker is heard of, its leases are renewed; when it is silent, they run out and
the queue hands the job to another, as the next attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random

from pollux.controller.matching import MARK
from pollux.controller.part import Part
from pollux.controller.rows import LIVE, Contact, Ending, JobRow, Run
from pollux.controller.workers import RUNS_FRESH, Known
from pollux.errors import LeaseLost
from pollux.events import JobDelivered, JobGivenUp, JobReassigned, JobReported
from pollux.jobs import Claim, Job, Settlement

#: A lease is renewed when this share of it is over, not at each contact.
RENEW_AFTER = 0.25
#: How many claims in a row may turn out void (cancelled jobs) before a poll gives up for now.
VOID_MAX = 50
#: How often a read of a worker's runs is tried again, when something was delivered meanwhile.
READS_MAX = 3
#: The longest progress message, in characters.
MESSAGE_MAX = 500
#: How long after its lease a run is shown as queued again, in seconds, and how many at a time.
LAPSED_AFTER = 1.0
SWEEP = 500


@dataclass(frozen=True, slots=True)
class Progress:
    """What a worker says of a job that it works on."""

    job_id: str
    progress: float | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """What a worker says of a job that it is through with: done, failed or cancelled."""

    job_id: str
    status: str
    result: str | None = None
    error: str | None = None
    exit_code: int | None = None
    #: The last that it said of its progress, where it did not say so before.
    last: Progress | None = None


@dataclass(slots=True)
class Heard:
    """What came of a contact: runs that are the worker's, ids that are not, ids to cancel."""

    lost: list[str] = field(default_factory=list)
    cancel: list[str] = field(default_factory=list)


class Runs(Part):
    """The runs of a controller's workers."""

    @cached_property
    def lease_s(self) -> float:
        return self._options.span("heartbeat_timeout")

    @cached_property
    def _random(self) -> Random:
        return Random()

    # Getting

    async def claim(self, known: Known, limit: int) -> list[tuple[JobRow, Run]]:
        """Claim up to `limit` jobs for a worker, and write down that it has them."""
        crowd = self._registry.crowd_of(known)
        delivered: list[tuple[JobRow, Run]] = []
        for _ in range(VOID_MAX):
            news, began = crowd.news, self._clock.now()
            asked = limit - len(delivered)
            kinds = sorted(crowd.kinds)
            if not kinds:
                break
            claims = await self._queue.claim(known.id, asked, self.lease_s, kinds=kinds)
            if len(claims) < asked:
                crowd.found_nothing(news, began + self._options.span("empty_for"))
            if claims:
                delivered += await self._deliver(known, claims)
            if len(claims) < asked or len(delivered) == limit:
                break
        return delivered

    async def unheard(
        self, known: Known, running: Collection[str], limit: int
    ) -> list[tuple[JobRow, Run]]:
        """What a worker was given and seems not to know of: the answer was lost on its way."""
        missed = [
            run
            for run in known.runs.values()
            if run.heard_of_at is None and run.job_id not in running
        ][:limit]
        if not missed:
            return []
        # It is told that it has the whole lease, so it shall.
        untils = await self._renew(known, missed, Heard(), at_once=True)
        contacts = [Contact(each, known.id, until, heard=False) for each, until in untils.items()]
        if contacts:
            await self._state.contact(contacts)
        rows = await self._state.jobs(list(untils))
        again = [(rows[run.job_id], run) for run in missed if run.job_id in rows]
        for row, run in again:
            self._events.emit(self._delivered(row, run, 0.0, again=True))
        return again

    async def _deliver(self, known: Known, claims: Sequence[Claim]) -> list[tuple[JobRow, Run]]:
        try:
            return await self._hand_out(known, claims)
        except BaseException:
            # Nobody heard of them: they go back as if they had not been claimed. Should that fail
            # as well, their leases run out.
            with suppress(Exception):
                await self._queue.settle([Settlement.give_back(claim) for claim in claims])
            raise

    async def _hand_out(self, known: Known, claims: Sequence[Claim]) -> list[tuple[JobRow, Run]]:
        runs: list[tuple[Claim, Run]] = []
        settled: list[Settlement] = []
        for claim in claims:
            run = _run_from(claim, known.id)
            if run is None:
                settled.append(Settlement.dead(claim, "it is no job of the controller's"))
            else:
                runs.append((claim, run))
        over = await self._used_up([run for _, run in runs])
        settled += [Settlement.done(claim) for claim, run in runs if run.job_id in over]
        runs = [(claim, run) for claim, run in runs if run.job_id not in over]
        rows = await self._state.deliver([run for _, run in runs]) if runs else []
        handed: list[tuple[JobRow, Run]] = []
        now = self._clock.epoch()
        for (claim, run), row in zip(runs, rows, strict=True):
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

    async def _used_up(self, runs: Sequence[Run]) -> set[str]:
        """End the jobs among these whose attempts are used up; their ids."""
        again = [run for run in runs if run.attempt > 1]
        rows = await self._state.jobs([run.job_id for run in again]) if again else {}
        over: set[str] = set()
        for run in again:
            row = rows.get(run.job_id)
            if row is None or row.round != run.round or row.status not in LIVE:
                continue
            if row.status == "running" and row.worker_id is not None:
                self._events.emit(
                    JobReassigned(
                        self._queue.name, row.worker_id, row.id, row.kind, run.attempt - 1
                    )
                )
            if run.attempt > row.attempts:
                error = row.error or (
                    f"its worker {row.worker_id} was silent for {self.lease_s:g} s in attempt "
                    f"{run.attempt - 1}"
                )
                ended = await self._state.end_job(row.id, row.round, LIVE, "dead", error=error)
                over.add(run.job_id)
                if ended is not None:
                    self._events.emit(
                        JobGivenUp(
                            self._queue.name,
                            row.worker_id or "",
                            row.id,
                            row.kind,
                            run.attempt - 1,
                            error,
                        )
                    )
        return over

    # Keeping

    async def read(self, known: Known, *, afresh: bool = False) -> None:
        """Read what a worker has, unless that is known."""
        now = self._clock.now()
        if afresh or now - known.runs_at >= min(RUNS_FRESH, RENEW_AFTER * self.lease_s):
            for _ in range(READS_MAX):
                before = known.runs
                found = await self._state.runs_of(known.id)
                if known.runs is before:  # else something was delivered meanwhile
                    known.runs = {run.job_id: run for run in found}
                    known.runs_at = now
                    break

    async def keep(
        self, known: Known, running: Sequence[Progress] | None, *, complete: bool = True
    ) -> Heard:
        """A worker was heard of: renew the leases of what it has.

        running: what it says that it works on; None: it does not say.
        complete: that is all it works on: a run of which it does not speak, though it did before,
            is not renewed, for it lost it.
        """
        heard = Heard()
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

    def left(self, known: Known, job_id: str) -> float:
        """How much of a lease is left, in seconds, as far as this controller knows."""
        renewed_at, _ = known.renewed.get(job_id, (self._clock.now(), 0.0))
        return max(self.lease_s - (self._clock.now() - renewed_at), 0.0)

    async def _renew(
        self, known: Known, runs: Iterable[Run], heard: Heard, *, at_once: bool = False
    ) -> dict[str, float]:
        """Extend the leases of which enough is over; until when, by job id.

        By how long ago this controller did so, not by the time of day: the store's clock, which
        leases end by, may differ from ours. What another controller did last is extended at once.
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
            await self._queue.extend(
                [_claim_of(run, self._queue.name) for run in due], self.lease_s
            )
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
    def _note_renewed(known: Known, untils: Mapping[str, float], now: float) -> None:
        kept = {k: v for k, v in known.renewed.items() if k in known.runs}
        known.renewed = {**kept, **{job_id: (now, until) for job_id, until in untils.items()}}

    # Ending

    async def finish(self, known: Known, finished: Sequence[Finished]) -> list[str]:
        """End runs as their worker reports; the ids of those that are not its any more."""
        await self.read(known, afresh=True)
        runs: dict[str, Run] = dict(known.runs)
        rows = await self._state.jobs([each.job_id for each in finished])
        endings: list[Ending] = []
        told: list[Finished] = []
        lost: list[str] = []
        for each in finished:
            row = rows.get(each.job_id)
            if row is None or any(each.job_id == other.job_id for other in told):
                if row is None:
                    lost.append(each.job_id)
                continue
            told.append(each)
            endings.append(self._ending(each, known, row, runs.get(each.job_id)))
        verdicts = await self._state.end_runs(endings) if endings else []
        ended = {ending.job_id for ending in endings}
        known.runs = {k: run for k, run in known.runs.items() if k not in ended}
        settlements: list[Settlement] = []
        for report, ending, verdict in zip(told, endings, verdicts, strict=True):
            run = runs.pop(report.job_id, None)
            if verdict == "lost":
                lost.append(report.job_id)
            elif verdict == "ended" and run is not None:
                settlements.append(self._settlement(run, ending))
                self._reported(known, rows[report.job_id], run, report, ending)
        if settlements:
            # The state has it: a claim that is lost now is found to be void when it comes up.
            with suppress(LeaseLost):
                await self._queue.settle(settlements)
        return lost

    async def give_back(self, runs: Sequence[Run]) -> None:
        """Put back what a worker that left had."""
        if runs:
            with suppress(LeaseLost):
                await self._queue.settle(
                    [Settlement.give_back(_claim_of(run, self._queue.name)) for run in runs]
                )

    async def show_lapsed(self) -> int:
        """Show as queued what nobody renewed; the queue hands it out anyway."""
        over = await self._state.release_lapsed(LAPSED_AFTER, SWEEP)
        if over:
            self._registry.heard_news()
            for run in over:
                kind = run.queue_kind.partition(MARK)[0]
                self._events.emit(
                    JobReassigned(self._queue.name, run.worker_id, run.job_id, kind, run.attempt)
                )
                known = self._registry.remembered(run.worker_id)
                if known is not None and run.job_id in known.runs:
                    known.runs = {k: v for k, v in known.runs.items() if k != run.job_id}
        return len(over)

    def _ending(self, report: Finished, known: Known, row: JobRow, run: Run | None) -> Ending:
        token = None if run is None else run.token
        common = Ending(
            report.job_id,
            known.id,
            "done",
            error=report.error,
            exit_code=report.exit_code,
            token=token,
        )
        if report.status == "done":
            return replace(common, result=report.result)
        if report.status == "cancelled":
            return replace(common, status="cancelled")
        if row.cancel:  # it failed because it was told to stop
            return replace(common, status="cancelled")
        attempt = row.attempt if run is None else run.attempt
        return replace(common, status="queued" if attempt < row.attempts else "dead")

    def _settlement(self, run: Run, ending: Ending) -> Settlement:
        claim = _claim_of(run, self._queue.name)
        if ending.status != "queued":
            return Settlement.done(claim)
        delay = self._options.retry.delay(run.attempt, self._random.random())
        return Settlement.retry(claim, delay, ending.error)

    def _reported(
        self, known: Known, row: JobRow, run: Run, report: Finished, ending: Ending
    ) -> None:
        result = "failed" if ending.status == "queued" else ending.status
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

    def _delivered(self, row: JobRow, run: Run, waited: float, again: bool = False) -> JobDelivered:
        return JobDelivered(
            self._queue.name, run.worker_id, row.id, row.kind, run.attempt, waited, again
        )


def _run_from(claim: Claim, worker_id: str) -> Run | None:
    """The run that a claim begins; None if the queue's job is none of the controller's."""
    payload = claim.job.payload
    if not isinstance(payload, Mapping):
        return None
    job_id, round = payload.get("job"), payload.get("round")
    if not isinstance(job_id, str) or not isinstance(round, int):
        return None
    return Run(
        job_id=job_id,
        worker_id=worker_id,
        queue_id=claim.job.id,
        token=claim.token,
        claimed_as=claim.worker,
        queue_kind=claim.job.kind,
        round=round,
        attempt=claim.job.attempt,
        until=claim.until,
        key=claim.job.key,
        receipt=claim.receipt,
    )


def _claim_of(run: Run, queue: str) -> Claim:
    """The claim on the queue that a run stands for."""
    job = Job(
        id=run.queue_id,
        queue=queue,
        kind=run.queue_kind,
        payload=None,
        key=run.key,
        priority=0,
        attempt=run.attempt,
        created_at=0.0,
        run_at=0.0,
        unique=None,
    )
    return Claim(job, run.token, run.claimed_as, run.until, run.receipt)
