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
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Self

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, JobError, LeaseLost, PayloadError, Unsupported
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hints
from pollwise.runtime.jobs import (
    MAX_LEASE,
    STATES,
    Claim,
    JobInfo,
    NewJob,
    Settlement,
    State,
    checked_name,
)

#: The maximum size of a payload, in bytes of JSON.
MAX_PAYLOAD_BYTES = 1024 * 1024
#: The maximum number of jobs in one put, claim or settle.
MAX_BATCH = 10_000
#: The maximum number of jobs that `jobs` returns at once.
MAX_PAGE = 1_000
#: How long `close` waits for jobs that are being given back, in seconds; then their leases run out.
GIVE_BACK_WITHIN = 5.0


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do. Asking for what it cannot do is an error at the call that asks.

    keys: jobs with the same key run one at a time, in order.
    priorities, delay, unique: the fields of `NewJob` with these names.
    exact_unique: a `unique` is taken until its job is done, and another payload under it is
        refused; if False, repeats are recognised for a limited time only.
    ordered: jobs are claimed in the order they fell due and were put; if False, roughly so.
    kinds: a claim can ask for some kinds only.
    views: `get` and `jobs` show any job; if False, only `jobs("dead")` works.
    keep: finished jobs can be kept.
    uncounted: a job that is given back has not used up an attempt.
    fenced: the store refuses a settlement with an old token; if False, a settlement after the end
        of its lease may go unnoticed.
    atomic_put, atomic_settle: a batch is stored as a whole or not at all; if False, part of it may
        be stored when an error is raised.
    long_poll: a claim may block at the store until a job arrives.
    hints: how far the hints of a put reach: "none", "process", "machine" or "network".
    next_due: an empty claim learns when the next job falls due, and the pause ends then.
    exact_depth: `stats` counts; if False, it estimates.
    """

    keys: bool = True
    priorities: bool = True
    delay: bool = True
    unique: bool = True
    exact_unique: bool = True
    ordered: bool = True
    kinds: bool = True
    views: bool = True
    keep: bool = True
    uncounted: bool = True
    fenced: bool = True
    atomic_put: bool = True
    atomic_settle: bool = True
    long_poll: bool = False
    hints: str = "process"
    next_due: bool = True
    exact_depth: bool = True


@dataclass(frozen=True, slots=True)
class Stats:
    """The number of jobs in each state, and how long the oldest ready one has waited."""

    ready: int
    delayed: int
    blocked: int
    leased: int
    dead: int
    done: int
    oldest_age: float | None


class Queue(ABC):
    """Jobs in a store. Open one with `pollwise.open(url)`."""

    capabilities: ClassVar[Capabilities]
    #: `_put` sends hints to other processes itself, in the transaction of the put.
    _hints_of_puts: ClassVar[bool] = False
    #: The kind under which a claim delivers messages in the store that are not Pollwise jobs.
    foreign_kind: ClassVar[str | None] = None
    #: How long a worker gathers settlements for one call, in seconds, and how many at most. Only
    #: stores that bill each call gather.
    gather: ClassVar[float] = 0.0
    gather_up_to: ClassVar[int] = 1

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
        self.name = checked_name(name, "queue", ConfigError)
        self.clock = clock or Clock()
        self.keep = None if keep is None else seconds(keep, "keep", positive=True)
        if self.keep is not None and not self.capabilities.keep:
            raise Unsupported(
                f"keep = {keep!r}: {type(self).__name__} deletes finished jobs and cannot keep "
                "them; leave `keep` out or choose a store that can"
            )
        if max_payload_bytes < 1:
            raise ConfigError(f"max_payload_bytes = {max_payload_bytes!r} must be at least 1")
        self.max_payload_bytes = max_payload_bytes
        self._hints = self._make_hints()
        self._giving_back: set[asyncio.Task[None]] = set()

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the queue is, without credentials, so that it is safe to print."""

    async def put(self, jobs: NewJob | Iterable[NewJob]) -> list[str]:
        """Put jobs, all or none, and return their ids. Sends a hint to waiting workers."""
        ids, _ = await self.put_counted(jobs)
        return ids

    async def put_counted(self, jobs: NewJob | Iterable[NewJob]) -> tuple[list[str], int]:
        """As `put`; also returns how many jobs are new, not repeats of a `unique`."""
        batch = self._checked_jobs(jobs)
        if not batch:
            return [], 0
        ids, fresh = await self._put(batch)
        if fresh:
            kinds = {job.kind for job in batch}
            if self._hints_of_puts:
                self._hints.send(fresh, kinds)
            else:
                self._announce(fresh, kinds)
        return ids, fresh

    async def claim(
        self,
        worker: str,
        limit: int,
        lease: Duration,
        hold: Duration = 0,
        kinds: Sequence[str] | None = None,
    ) -> list[Claim]:
        """Take up to `limit` jobs that may run now, each under a lease for `worker`.

        hold: how long to wait for a job when there is none.
        kinds: only jobs of these kinds; None means all.
        A call that is cancelled leaves nothing claimed.
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
        claims = await self._claim_or_give_back(worker, limit, lease_s, hold_s, wanted)
        if len(claims) == limit:
            self._hints.pass_on()
        return claims

    async def settle(self, settlements: Iterable[Settlement]) -> None:
        """End claims. Claims whose lease is lost are refused; the others in the batch are settled.

        Raises `LeaseLost` with the ids of the refused claims, after the others are settled. If a
        batch settles one claim twice, the first settlement counts and the second is refused.
        """
        batch = list(settlements)
        check_batch(batch, "settle")
        if not batch:
            return
        once: dict[tuple[str, int], Settlement] = {}
        again = []
        for settlement in batch:
            claim = claim_of(settlement)
            if claim in once:
                again.append(claim[0])
            once.setdefault(claim, settlement)
        lost = [*await self._settle(list(once.values())), *again]
        self._hint_after(batch)
        if lost:
            raise LeaseLost(lost)

    async def renew(self, claims: Iterable[Claim], lease: Duration) -> None:
        """Renew the leases of claims, from now. Raises `LeaseLost` for those already lost."""
        batch = list(claims)
        check_batch(batch, "renew")
        if not batch:
            return
        lost = await self._renew(batch, checked_lease(lease))
        if lost:
            raise LeaseLost(lost)

    @abstractmethod
    async def stats(self) -> Stats:
        """The number of jobs in each state."""

    @abstractmethod
    async def get(self, job_id: str) -> JobInfo | None:
        """One job, or None if no job has this id (any more)."""

    async def jobs(
        self,
        state: State | None = None,
        *,
        kind: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> list[JobInfo]:
        """A page of jobs in put order; `after` is the last id of the previous page."""
        if state is not None and state not in STATES:
            raise ConfigError(f"state = {state!r} is not one of {', '.join(STATES)}")
        if not 1 <= limit <= MAX_PAGE:
            raise ConfigError(f"limit = {limit!r} must be from 1 to {MAX_PAGE}")
        if state != "dead" and not self.capabilities.views:
            raise self._no_views("list jobs")
        return await self._list_jobs(state, kind, limit, after)

    async def retry(self, ids: Sequence[str] | None = None) -> int:
        """Make dead jobs ready again with fresh attempts (None: all); return how many."""
        count = await self._retry(distinct(ids, "ids"))
        if count:
            self._announce(count)
        return count

    async def drop(self, ids: Sequence[str] | None = None) -> int:
        """Delete dead jobs permanently (None: all); return how many."""
        return await self._drop(distinct(ids, "ids"))

    async def prune(self) -> int:
        """Delete a bounded number of finished jobs that were kept long enough; return how many."""
        if self.keep is None:
            return 0
        return await self._prune(self.keep)

    async def migrate(self) -> list[int]:
        """Create or update the store's tables; return the versions that were applied.

        Does nothing for a store that has no tables or updates them itself.
        """
        return []

    def migration(self) -> str | None:
        """The SQL that `migrate` would run; None for a store where it does nothing."""
        return None

    def hints(self) -> Hints:
        """The hints that end the pauses of this queue's pollers early."""
        return self._hints

    async def close(self) -> None:
        """Release the store. A closed queue cannot be used again."""
        if self._giving_back:
            await asyncio.wait(self._giving_back, timeout=GIVE_BACK_WITHIN)
        await self._hints.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # What a store implements.

    @abstractmethod
    async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        """Put all or none; return the ids, and how many of the jobs are new."""

    @abstractmethod
    async def _claim(
        self,
        worker: str,
        limit: int,
        lease: float,
        hold: float,
        kinds: Sequence[str] | None,
    ) -> list[Claim]: ...

    @abstractmethod
    async def _settle(self, settlements: list[Settlement]) -> list[str]:
        """Settle the claims whose lease is valid; return the ids of the others."""

    @abstractmethod
    async def _renew(self, claims: list[Claim], lease: float) -> list[str]:
        """Renew the leases that are valid; return the ids of the others."""

    @abstractmethod
    async def _list_jobs(
        self, state: State | None, kind: str | None, limit: int, after: str | None
    ) -> list[JobInfo]: ...

    @abstractmethod
    async def _retry(self, ids: Sequence[str] | None) -> int: ...

    @abstractmethod
    async def _drop(self, ids: Sequence[str] | None) -> int: ...

    @abstractmethod
    async def _prune(self, keep: float) -> int: ...

    def _make_hints(self) -> Hints:
        return Hints()

    def _announce(self, count: int, kinds: Iterable[str] | None = None) -> None:
        """Send a hint of `count` jobs to sleepers in this process and in others."""
        self._hints.send_to_others(count, kinds)  # first: it asks who sleeps here
        self._hints.send(count, kinds)

    def _hint_after(self, settled: Sequence[Settlement]) -> None:
        """Hint at jobs that came back, and at jobs that a finished key no longer blocks."""
        delays = [s.delay for s in settled if s.action == "retry"]
        at_once = delays.count(0.0)
        if at_once:
            self._announce(at_once, {s.claim.job.kind for s in settled})
        if len(delays) > at_once:
            soonest = min(delay for delay in delays if delay)
            self._hints.send_at(self.clock.now() + soonest)
        behind = sum(s.claim.job.key is not None and s.action != "retry" for s in settled)
        if behind:
            self._hints.send(behind)

    def _hint_when_due(self, due: float | None) -> None:
        """Wake a poller when the next job falls due, as reported by a claim that found no more."""
        if due is not None:
            self._hints.send_at(self.clock.now() + max(due - self.clock.epoch(), 0.0))

    async def _claim_or_give_back(
        self,
        worker: str,
        limit: int,
        lease: float,
        hold: float,
        kinds: Sequence[str] | None,
    ) -> list[Claim]:
        """Claim; if the caller is cancelled meanwhile, give back what the store hands out."""
        call = asyncio.ensure_future(self._claim(worker, limit, lease, hold, kinds))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if hold:
                call.cancel()  # a held claim can end without claiming
            # In a task of its own: a second cancellation must not strand the claims either.
            task = asyncio.ensure_future(self._give_back(call))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)
            await asyncio.shield(task)
            raise

    async def _give_back(self, call: asyncio.Future[list[Claim]]) -> None:
        """Give back the jobs of a claim that nobody waits for any more."""
        # The caller is gone, so errors are dropped; if giving back fails, the leases run out.
        with suppress(asyncio.CancelledError, Exception):
            await self.settle([Settlement.give_back(claim) for claim in await call])

    def _no_views(self, what: str) -> Unsupported:
        return Unsupported(
            f"{self.url} cannot {what}: its store shows a job only to the worker that claims it. "
            '`stats` counts the jobs, and `jobs("dead")` shows the dead ones'
        )

    def _checked_jobs(self, jobs: NewJob | Iterable[NewJob]) -> list[NewJob]:
        batch = [jobs] if isinstance(jobs, NewJob) else list(jobs)
        for job in batch:
            self._check(job)
        check_batch(batch, "put")
        return batch

    def _check(self, job: NewJob) -> None:
        if not isinstance(job, NewJob):
            raise JobError(f"expected a NewJob, got {job!r}; put NewJob(kind, payload)")
        can = self.capabilities
        asked = {
            "key": (job.key is not None, can.keys),
            "priority": (job.priority != 0, can.priorities),
            "delay": (bool(job.delay) or job.run_at is not None, can.delay),
            "unique": (job.unique is not None, can.unique),
        }
        for what, (wanted, able) in asked.items():
            if wanted and not able:
                raise Unsupported(
                    f"{self.url} does not support `{what}`, used by the job of kind {job.kind!r}; "
                    "leave it out or choose a store that can"
                )
        if job.size > self.max_payload_bytes:
            raise PayloadError(
                f"the payload of kind {job.kind!r} has {job.size} bytes of JSON; the limit "
                f"max_payload_bytes is {self.max_payload_bytes}. Store it elsewhere and put a "
                "reference to it, or raise the limit."
            )


def claim_of(settlement: Settlement) -> tuple[str, int]:
    """The job id and the token of a settlement's claim."""
    return settlement.claim.job.id, settlement.claim.token


def check_batch(batch: Sequence[object], call: str) -> None:
    if len(batch) > MAX_BATCH:
        raise ConfigError(
            f"{call} got a batch of {len(batch)}; at most {MAX_BATCH} at once, so split it"
        )


def checked_lease(lease: Duration) -> float:
    lease_s = seconds(lease, "lease", positive=True)
    if lease_s > MAX_LEASE:
        raise ConfigError(f"lease = {lease!r} is above the limit of {MAX_LEASE:g} s")
    return lease_s


def distinct(names: Sequence[str] | None, what: str) -> Sequence[str] | None:
    """Each name once. A single string is refused: it would be split into its letters."""
    if isinstance(names, str):
        raise ConfigError(f"{what} = {names!r} is one string; give a list: [{names!r}]")
    return None if names is None else list(dict.fromkeys(names))
