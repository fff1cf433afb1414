"""What the controller keeps beside the queue, as values: jobs, runs, workers, tokens, and the rest.

Times are seconds since 1970 by the clock of the store, or None for what has not happened. JSON
is kept as the text it came in, so that what only passes through is neither decoded nor encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pollwise.runtime.jobs import Claim, Job

#: `putting`: written here, and not yet in the queue. People see it as `ready`.
JobState = Literal["putting", "ready", "leased", "done", "dead", "cancelled"]
JOB_STATES: tuple[JobState, ...] = ("putting", "ready", "leased", "done", "dead", "cancelled")
SHOWN_STATES: tuple[JobState, ...] = JOB_STATES[1:]
#: What a job can still become something else from, by itself.
LIVE: tuple[JobState, ...] = ("putting", "ready", "leased")
#: What only a person changes.
ENDED: tuple[JobState, ...] = ("done", "dead", "cancelled")

Scope = Literal["read", "put", "operate", "worker", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "put", "operate", "worker", "admin")


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as users ask about it.

    id: made by `new_id`; ids sort by when they were made.
    payload, result: JSON text. Pages leave out what is longer than `BRIEF`: then it is None though
        `payload_bytes` or `result_bytes` is not 0.
    requires: capability -> what is asked of it; requires_hash names it, "" when nothing is.
    round: how often it was restarted by `renew_job`; a queue's job of an older round is void.
    attempt: the number of its newest run, 0 before the first.
    queue_id: what the queue calls it; None until it was put.
    cancel: a person asked to cancel it while it ran.
    ended_by: whose report ended its newest run; None while it runs and before. So a report that
        is repeated because its answer was lost is known.
    """

    id: str
    kind: str
    payload: str | None = "null"
    payload_bytes: int = 4
    requires: Mapping[str, Any] = field(default_factory=dict)
    requires_hash: str = ""
    priority: int = 0
    key: str | None = None
    unique: str | None = None
    delay_s: float = 0.0
    timeout_s: float | None = None
    attempts: int = 3
    inputs: tuple[str, ...] = ()
    created_by: str = ""
    state: JobState = "putting"
    round: int = 0
    attempt: int = 0
    queue_id: str | None = None
    progress: float | None = None
    message: str | None = None
    worker_id: str | None = None
    cancel: bool = False
    ended_by: str | None = None
    created_at: float = 0.0
    changed_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    error: str | None = None
    exit_code: int | None = None
    result: str | None = None
    result_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RunRow:
    """A job in the hands of a worker, under a claim on the queue: at most one a job.

    What it takes to settle and to renew the claim is all here, so any controller can go on:
    `queue_id`, `token`, `claimed_as` (the claim's worker), `receipt`, `key`, and the kind of the
    queue's job.

    round: of the job, when it was claimed. `deliver` refuses a run of another round.
    until: when the lease ends, as the queue said.
    heard_of_at: when the worker last spoke of it; None if it may not know of it yet.
    cancel: the job's; filled by reads.
    """

    job_id: str
    worker_id: str
    queue_id: str
    token: int
    claimed_as: str
    queue_kind: str
    round: int
    attempt: int
    until: float
    key: str | None = None
    receipt: str = ""
    delivered_at: float = 0.0
    heard_of_at: float | None = None
    cancel: bool = False

    @classmethod
    def of(cls, claim: Claim, worker_id: str) -> RunRow | None:
        """The run that a claim begins; None if the controller did not put the queue's job."""
        payload = claim.job.payload
        if not isinstance(payload, Mapping):
            return None
        job_id, round = payload.get("job"), payload.get("round")
        if not isinstance(job_id, str) or not isinstance(round, int):
            return None
        return cls(
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

    def claim(self, queue: str) -> Claim:
        """The claim on the queue that this run holds."""
        job = Job(
            id=self.queue_id,
            queue=queue,
            kind=self.queue_kind,
            payload=None,
            key=self.key,
            priority=0,
            attempt=self.attempt,
            created_at=0.0,
            run_at=0.0,
            unique=None,
        )
        return Claim(job, self.token, self.claimed_as, self.until, self.receipt)


@dataclass(frozen=True, slots=True)
class Contact:
    """A worker spoke of a run; what is None stays as it is."""

    job_id: str
    worker_id: str
    until: float | None = None
    progress: float | None = None
    message: str | None = None
    heard: bool = True


@dataclass(frozen=True, slots=True)
class RunEnding:
    """How a run ended: `ready` when the job runs again, else as the job ends.

    token: of the run that is meant; None for the one that the worker has.
    """

    job_id: str
    worker_id: str
    state: Literal["done", "ready", "dead", "cancelled"]
    result: str | None = None
    error: str | None = None
    exit_code: int | None = None
    token: int | None = None


EndResult = Literal["ended", "repeated", "lost"]


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A registered worker.

    token_hash: of its own token. It holds until `token_expires_at`, None for ever.
    """

    id: str
    name: str
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    slots: int = 1
    token_hash: str = ""
    token_expires_at: float | None = None
    registered_at: float = 0.0
    registered_by: str = ""
    last_seen: float = 0.0
    drain: bool = False
    address: str = ""


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker was seen this many seconds ago, from an address."""

    worker_id: str
    ago_s: float = 0.0
    address: str = ""


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is kept: without itself. `hash` is the SHA-256 of it in hex."""

    id: str
    name: str
    scope: Scope
    hash: str
    created_at: float = 0.0
    created_by: str = ""
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """What jobs of a kind in the queue ask of a worker; `hash` is "" when nothing is asked."""

    hash: str
    kind: str
    requires: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WaitingJobs:
    """Ready jobs, by kind and requirement."""

    kind: str
    requires_hash: str
    count: int
    oldest_age_s: float


@dataclass(frozen=True, slots=True)
class ControllerStats:
    """Counts: jobs by state, what waits by kind, workers, those seen lately, runs under way."""

    jobs: Mapping[JobState, int]
    waiting: tuple[WaitingJobs, ...]
    workers: int
    workers_live: int
    runs: int

    def shown_jobs(self) -> dict[str, int]:
        """Jobs by the state that people see."""
        ready = self.jobs.get("putting", 0) + self.jobs.get("ready", 0)
        shown: dict[str, int] = {state: self.jobs.get(state, 0) for state in SHOWN_STATES}
        return shown | {"ready": ready}


@dataclass(frozen=True, slots=True)
class ArtefactRow:
    """A file of a job: `input` came with it, else a run made it. `blob` names its bytes."""

    job_id: str
    name: str
    blob: str
    size: int
    sha256: str
    input: bool = False
    content_type: str = "application/octet-stream"
    created_at: float = 0.0
    created_by: str = ""


@dataclass(frozen=True, slots=True)
class LogPlace:
    """How far a job's log is.

    size: bytes that are kept, of all runs together.
    part: the newest run that wrote (see `logs`); received: the bytes it has sent.
    cut: no more is kept: the limit is reached.
    ended: the job has; filled by `log_place`.
    """

    size: int = 0
    part: int = 0
    received: int = 0
    cut: bool = False
    ended: bool = False
