"""The contract of every queue.

At least once, never lost, never two live leases on one job: every claim carries a fencing token,
and a settlement with an old token is refused with `LeaseLost` and changes nothing. All calls take
batches, and a batch is one round trip.

A store implements the methods with a leading underscore. The public methods check their arguments
first, so that every store refuses the same things with the same messages.
`pollwise.testing.conformance` tests any implementation of this contract.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, overload

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, JobError, LeaseLost, Unsupported
from pollwise.queues.breakers import SharedBreakers
from pollwise.queues.capabilities import WHY_NOT
from pollwise.queues.flows.keeping import frees_others, kept_for_flows
from pollwise.queues.flows.linking import linked
from pollwise.queues.flows.view import FLOW_SHOWN_MAX, FlowJob, FlowView, is_among
from pollwise.queues.limits.calls import Limits
from pollwise.queues.limits.record import KindLimits
from pollwise.queues.limits.use import LimitUse
from pollwise.queues.schedules.calls import Schedules
from pollwise.queues.unique import check_replacing
from pollwise.queues.viewed import ViewedStore
from pollwise.queues.views import METERED_MAX, BulkDone, JobFilter, listed
from pollwise.queues.waiting import ENDINGS, EndingWaiters, JobEnding, endings_one_by_one
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import CANCELS
from pollwise.runtime.jobs import (
    Claim,
    JobInfo,
    NewJob,
    Progress,
    Renewal,
    Settlement,
    State,
    checked_name,
)
from pollwise.runtime.jobs.new_job import FLOW_HEADER
from pollwise.runtime.store import (
    MAX_BATCH,
    checked_batch,
    checked_lease,
    distinct,
    once_each,
)
from pollwise.runtime.tracing import spans

#: The maximum size of a payload, in bytes of JSON.
MAX_PAYLOAD_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """The checked arguments of `Queue.claim`. Durations are in seconds."""

    worker: str
    limit: int
    lease: float
    hold: float
    kinds: Sequence[str] | None
    ahead: bool


class Queue(ViewedStore):
    """Jobs in a store. Open one with `pollwise.open(url)`."""

    _what = "queue"
    #: `_put` sends hints to other processes itself, in the transaction of the put.
    _hints_of_puts: ClassVar[bool] = False
    #: The kind under which a claim delivers messages in the store that are not Pollwise jobs.
    foreign_kind: ClassVar[str | None] = None
    #: True if the connections of a queue belong to one event loop at a time.
    one_loop: ClassVar[bool] = True
    #: How often to poll for results that somebody waits for.
    wait_pace: ClassVar[Strategy] = Adaptive("20ms", "1s", backoff_multiplier=1.5)
    #: The maximum number of jobs of each state that metrics count; small if requests are billed.
    measured_max: ClassVar[int] = METERED_MAX
    #: The limited kinds that workers claim only for free handlers, as the last claim of this handle
    #: saw them: kinds that limit how many jobs run, and kinds whose groups take turns.
    _limited: frozenset[str] = frozenset()

    def __init__(
        self,
        name: str = "default",
        *,
        clock: Clock | None = None,
        keep: Duration | None = None,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        """
        name: the queue inside its store.
        keep: how long finished jobs are kept; None deletes them at once.
        max_payload_bytes: larger payloads are refused; store large data elsewhere and put a
            reference to it into the payload.
        """
        if keep is not None and not self.capabilities.keep:
            raise Unsupported(
                f"keep = {keep!r}: {type(self).__name__} deletes finished jobs and cannot keep "
                "them; leave `keep` out or choose a store that can"
            )
        super().__init__(name, clock=clock, keep=keep, max_payload_bytes=max_payload_bytes)

    @cached_property  # made at first use, because the two objects refer to each other
    def _waiters(self) -> EndingWaiters:
        return EndingWaiters(self, lambda *result: self._sealing.opened_result(*result))

    @cached_property
    def schedules(self) -> Schedules:  # type: ignore[override]  # it is read only
        """Schedules, which put jobs at set times: `queue.schedules.set("nightly", job, cron=…)`."""
        return Schedules(self)

    @cached_property
    def limits(self) -> Limits:
        """Limits: how many jobs of a kind run at a time, or start in a period, over all workers."""
        return Limits(self)

    @cached_property
    def breakers(self) -> SharedBreakers:
        """The breakers of kinds that are not closed, as workers share them."""
        return SharedBreakers(self)

    async def put(self, jobs: NewJob | Iterable[NewJob]) -> list[str]:
        """Put jobs, all or none, and return their ids. Sends a hint to waiting workers."""
        ids, _ = await self.put_counted(jobs)
        return ids

    async def put_counted(self, jobs: NewJob | Iterable[NewJob]) -> tuple[list[str], int]:
        """As `put`; also returns how many jobs are new, not repeats of a `unique`."""
        batch = self.check_jobs(jobs)
        if not batch:
            return [], 0
        tracer = spans.tracer()
        if tracer is None:
            return await self.put_checked(batch)
        span = self.send_span(tracer)
        with span.ended():
            ids, fresh = await self.put_checked(span.begin(batch))
        span.end(ids)
        return ids, fresh

    async def put_checked(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        """As `put_counted`, without a span; for jobs that `check_jobs` returned."""
        batch = self.sealed(jobs)
        ids, fresh = await self._put(batch)
        if fresh:
            kinds = {job.kind for job in batch}
            if self._hints_of_puts:
                self._hints.send(fresh, kinds)
            else:
                self._give_hints(fresh, kinds)
        return ids, fresh

    async def claim(
        self,
        worker: str,
        limit: int,
        lease: Duration,
        hold: Duration = 0,
        kinds: Sequence[str] | None = None,
        *,
        ahead: bool = False,
    ) -> list[Claim]:
        """Take up to `limit` jobs that may run now, each under a lease for `worker`.

        hold: how long to wait for a job when there is none.
        kinds: only jobs of these kinds; None means all.
        ahead: some of the jobs will wait before they start. If their leases run out, it is unknown
            which jobs had started, so none of them has used up an attempt.
        A job whose last LAPSES_ALONE leases ran out is claimed first and alone, because it may have
        killed its workers. It must be started at once, so its attempt counts. A call that is
        cancelled leaves nothing claimed.
        """
        checked_name(worker, "worker", ConfigError)
        if limit < 1:
            raise ConfigError(f"limit = {limit!r} must be at least 1")
        lease_s = checked_lease(lease)
        hold_s = seconds(hold, "hold")
        if hold_s and not self.capabilities.long_poll:
            raise Unsupported(
                f"{self.url} cannot hold a poll (hold = {hold!r}); use a strategy without a hold"
            )
        wanted = distinct(kinds, "kinds")
        if wanted is not None and not wanted:
            return []
        if wanted is not None and not self.capabilities.kinds:
            raise Unsupported(
                f"{self.url} cannot pick jobs by kind (kinds = {wanted[:3]!r}); claim without "
                "kinds and give back the jobs that are not for you"
            )
        limit = min(limit, MAX_BATCH)
        asked = ClaimRequest(worker, limit, lease_s, hold_s, wanted, ahead)
        claims = await self._claim_or_give_back(self._claim(asked), held=hold_s > 0)
        if len(claims) == limit or (claims and claims[0].suspect):
            self._hints.pass_on(wanted)
        return self._sealing.claims(claims)

    async def settle(self, settlements: Iterable[Settlement]) -> None:
        """End claims. Claims whose lease is lost are refused; the others in the batch are settled.

        Raises `LeaseLost` with the ids of the refused claims, after the others are settled. If a
        batch settles one claim twice, the first settlement counts and the second is refused.
        """
        batch = checked_batch(settlements, "settle")
        if not batch:
            return
        if not self.capabilities.results and any(s.result is not None or s.keep for s in batch):
            raise self._cannot("keep results")
        once, again = (batch, []) if len(batch) == 1 else once_each(batch, claim_of)
        once = kept_for_flows(self._sealing.settlements(once))
        lost = [*await self._settle(once), *(settlement.claim.job.id for settlement in again)]
        limited = self._limited
        if any(
            s.action != "done" or frees_others(s.claim.job) or s.claim.job.kind in limited
            for s in batch
        ):
            self._hint_after(batch)
        if any(s.keep is not None or s.result is not None or s.action == "dead" for s in batch):
            self._hints.broadcast_if_wanted(ENDINGS)
        if lost:
            raise LeaseLost(lost)

    async def renew(
        self,
        claims: Iterable[Claim],
        lease: Duration,
        progress: Mapping[str, Progress] | None = None,
    ) -> Renewal:
        """Renew the leases of claims, from now; return the lost claims and the jobs to cancel.

        progress: the progress of some of these jobs, by id. It is not stored if the lease is lost.
        """
        batch = checked_batch(claims, "renew")
        if not batch:
            return Renewal()
        if progress and not self.capabilities.progress:
            raise self._cannot("keep the progress of a run")
        return await self._renew(batch, checked_lease(lease), progress or {})

    async def result(self, job_id: str, timeout: Duration | None = None) -> Any:
        """Wait until a job has ended; return its result, or raise `JobFailed`.

        timeout: how long to wait; then `TimeoutError` is raised, and the job goes on.
        """
        return await self._waiters.result(job_id, timeout)

    async def wait(
        self,
        ids: Sequence[str],
        timeout: Duration | None = None,
        *,
        until_failure: bool = False,
    ) -> dict[str, Any]:
        """Wait until jobs have ended; return the result of each, or its `JobFailed`, by id.

        timeout: how long to wait. Jobs that have not ended by then are left out, and go on.
        until_failure: also stop waiting as soon as one of the jobs has failed.
        """
        wanted = distinct(ids, "ids") or []
        return await self._waiters.results(wanted, timeout, until_failure=until_failure)

    async def endings(self, ids: Sequence[str]) -> dict[str, JobEnding | None]:
        """How jobs ended, by id; None if a job does not exist. Jobs that go on are left out."""
        if not self.capabilities.results:
            raise self._cannot("keep results")
        wanted = checked_batch(distinct(ids, "ids") or [], "endings")
        return await self._endings(wanted) if wanted else {}

    async def get(self, job_id: str) -> JobInfo | None:
        """Return a job; None if no job has this id (any more)."""
        info = await self._find(job_id)
        return None if info is None else self._sealing.info(info)

    @overload
    async def cancel(self, which: JobFilter) -> BulkDone: ...

    @overload
    async def cancel(self, which: Sequence[str]) -> dict[str, State]: ...

    async def cancel(self, which: JobFilter | Sequence[str]) -> BulkDone | dict[str, State]:
        """Cancel jobs; return the present state of each, by id. Unknown ids are left out.

        A job that waits ends at once: `cancelled`. A job that runs stays `leased` until its worker
        learns of it: by a broadcast that makes it renew its leases now, or with its next renewal.
        It may still end as done; otherwise it is cancelled and does not run again. A job that has
        ended stays as it is.
        With a filter: cancel the jobs that match and have not ended; see `BulkDone`.
        """
        if not self.capabilities.cancel:
            raise self._cannot("cancel jobs")
        if isinstance(which, JobFilter):
            return await self._bulk("cancel", replace(which, live=True), self._cancel_some)
        states = await self._cancel(distinct(which, "ids") or [])
        if "cancelled" in states.values():
            self._hints.send()  # a job that it blocked may run now
            self._waiters.cancelled(i for i, state in states.items() if state == "cancelled")
            self._hints.broadcast_if_wanted(ENDINGS)
        if "leased" in states.values():
            self._hints.broadcast(CANCELS)
        return states

    async def _cancel_some(self, ids: list[str]) -> int:
        states = (await self.cancel(ids)).values()
        return sum(state in ("cancelled", "leased") for state in states)

    async def predecessors(self, job_id: str) -> list[tuple[str, JobEnding | None]]:
        """The predecessors of a job of a flow, in order, by id, and how each ended.

        None for a predecessor that has not ended, or does not exist any more.
        """
        self._check_flows()
        found = await self._predecessors(job_id)
        return [
            (each, None if ending is None else self._opened_ending(each, ending))
            for each, ending in found
        ]

    def _opened_ending(self, job_id: str, ending: JobEnding) -> JobEnding:
        """Raises `CodecError`."""
        result = self._sealing.opened_result(ending.result, ending.kind, job_id)
        return replace(ending, result=result)

    async def flow(self, job_id: str) -> FlowView | None:
        """The flow that a job belongs to; None if the job is in no flow or does not exist.

        Of a flow with more than 1,000 jobs, the first 1,000 are returned, and the job itself.
        """
        self._check_flows()
        found = await self._flow(job_id, FLOW_SHOWN_MAX + 1)
        if len(found) > FLOW_SHOWN_MAX and not is_among(found[:FLOW_SHOWN_MAX], job_id):
            found = await self._flow(job_id, MAX_BATCH)
        jobs = [replace(each, info=self._sealing.info(listed(each.info))) for each in found]
        return FlowView.of(jobs, job_id) if jobs else None

    def _check_flows(self) -> None:
        if not self.capabilities.flows:
            raise self._cannot("link jobs")

    async def prune(self) -> int:
        """Delete finished jobs and results that were kept long enough, a limited number."""
        return await self._prune(self.keep)

    async def close(self) -> None:
        self._waiters.close()
        await super().close()

    # For puts in a thread, or in a transaction of the user.

    def check_jobs(self, jobs: NewJob | Iterable[NewJob]) -> list[NewJob]:
        """Check jobs as a put does before it calls the store; return them as a list."""
        batch = [jobs] if isinstance(jobs, NewJob) else checked_batch(jobs, "put")
        for job in batch:
            self._check(job)
        if any(job.replace for job in batch):
            check_replacing(batch)
        if any(job.after or FLOW_HEADER in job.headers for job in batch):
            return linked(batch)
        return batch

    def sealed(self, jobs: list[NewJob]) -> list[NewJob]:
        """Return checked jobs as a store puts them: encoded, if the queue has a codec."""
        return self._sealing.jobs(jobs, self._check_size)

    def send_span(self, tracer: Any) -> spans.SendSpan[NewJob]:
        """The span of a put."""
        return spans.send_span(tracer, self.name, headers=self.capabilities.headers)

    def put_here(self, jobs: list[NewJob], loop: asyncio.AbstractEventLoop) -> list[str] | None:
        """Put checked and sealed jobs in the calling thread, and send hints to other processes.

        This blocks, and is quicker than a call in `loop`, the event loop that the queue belongs to.
        Returns None, and puts nothing, if the store can never do this, or cannot do it now.
        """
        return None

    def leave_loop(self) -> None:
        """Let another event loop use the queue next; for queues whose `one_loop` is False."""

    # What a store implements.

    @abstractmethod
    async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        """Put all or none; return the ids, and how many of the jobs are new."""

    @abstractmethod
    async def _claim(self, asked: ClaimRequest) -> list[Claim]: ...

    @abstractmethod
    async def _settle(self, settlements: list[Settlement]) -> list[str]:
        """Settle the claims whose lease is valid; return the ids of the others."""

    @abstractmethod
    async def _renew(
        self, claims: list[Claim], lease: float, progress: Mapping[str, Progress]
    ) -> Renewal:
        """Renew the leases that are valid, and store the progress of their runs."""

    @abstractmethod
    async def _cancel(self, ids: Sequence[str]) -> dict[str, State]: ...

    @abstractmethod
    async def _find(self, job_id: str) -> JobInfo | None: ...

    @abstractmethod
    async def _prune(self, keep: float | None) -> int:
        """Delete jobs that ended `keep` seconds ago, and results whose time is over."""

    async def _endings(self, ids: Sequence[str]) -> dict[str, JobEnding | None]:
        """As `endings`; a store overrides this to read all of them in one call."""
        return await endings_one_by_one(self._find, ids)

    async def _limit_use(self, limits: KindLimits, groups: int) -> LimitUse:
        """How the limits of a kind are used, with at most this many groups."""
        raise self._cannot("keep limits")

    async def _predecessors(self, job_id: str) -> list[tuple[str, JobEnding | None]]:
        """The predecessors of this job, in the order of `after`, and how each ended."""
        raise self._cannot("link jobs")

    async def _flow(self, job_id: str, most: int) -> list[FlowJob]:
        """At most this many jobs of the flow of this job, in the order of their ids."""
        raise self._cannot("link jobs")

    # Helpers.

    async def _give_back(self, claims: list[Claim]) -> None:
        await self.settle([Settlement.give_back(claim) for claim in claims])

    def _hint_after(self, settled: Sequence[Settlement]) -> None:
        """Send hints for jobs that came back, and for jobs that a key, a flow or a limit no longer
        blocks."""
        delays = [s.delay for s in settled if s.comes_back]
        at_once = delays.count(0.0)
        if at_once:
            self._give_hints(at_once, {s.claim.job.kind for s in settled})
        if len(delays) > at_once:
            soonest = min(delay for delay in delays if delay)
            self._hints.send_at(self.clock.now() + soonest)
        behind = sum(frees_others(s.claim.job) and not s.comes_back for s in settled)
        if behind:
            self._hints.send(behind, backlog=True)
        freed = [s.claim.job.kind for s in settled if s.claim.job.kind in self._limited]
        if freed:
            self._hints.send(len(freed), set(freed), backlog=True)

    def _check(self, job: NewJob) -> None:
        if not isinstance(job, NewJob):
            raise JobError(f"expected a NewJob, got {job!r}; put NewJob(kind, payload)")
        can = self.capabilities
        for what, wanted, able, needs in (
            ("key", job.key is not None, can.keys, ""),
            ("priority", job.priority, can.priorities, ""),
            ("replace` or `debounce", job.replace, can.replace, ""),  # has a delay and a `unique`
            ("delay", job.delay or job.run_at is not None, can.delay, ""),
            ("unique", job.unique is not None, can.unique, ""),
            ("limit_group", job.limit_group is not None, can.limits, "keep limits"),
            ("after", job.after, can.flows, "link jobs"),
            ("headers", job.headers, can.headers, ""),
        ):
            if wanted and not able:
                why = f": {WHY_NOT[needs]}" if needs else ""
                raise Unsupported(
                    f"{self.url} does not support `{what}`, used by the job of kind {job.kind!r}"
                    f"{why}; leave it out or choose a store that can, such as SQLite, Postgres or "
                    "Redis"
                )
        if self.codec is None:  # with a codec, the size of the encoded payload counts
            self._check_size(job.kind, job.size)


def claim_of(settlement: Settlement) -> tuple[str, int]:
    """The job id and the token of a settlement's claim."""
    return settlement.claim.job.id, settlement.claim.token
