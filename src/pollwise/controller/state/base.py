"""What the controller keeps beside the queue: the contract of a `ControllerState`.

The queue holds what is to be done; the state holds what users ask about. Two controllers may work
on one state at once, so whatever depends on how a row is says so: a change names what it expects
and answers whether it was made. The order that a crash in between cannot harm is always *state
first, queue second*: a job that the state calls done and the queue hands out again is settled, not
run (`deliver` refuses it).

The store's clock decides: durations go in ("seen 3 s ago", "kept for a day"), times come out. All
calls are bounded: batches by the caller, pages by `PAGE_MAX`, sweeps by their `limit`.
Errors are those of queues: `StoreUnavailable` for what may work later, else `StoreError`.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Self

from pollwise.controller.state.values import (
    ArtefactRow,
    Contact,
    ControllerStats,
    EndResult,
    JobRow,
    JobState,
    LogPlace,
    Requirement,
    RunEnding,
    RunRow,
    Token,
    WorkerRow,
    WorkerSeen,
)
from pollwise.errors import ConfigError
from pollwise.runtime.audit import AuditEntry, write_down
from pollwise.runtime.clock import Clock

#: The most rows of a page.
PAGE_MAX = 1000
#: Payloads and results longer than this, in bytes of JSON, are left out of pages.
BRIEF = 4096
#: The most bytes that one read of a log returns.
LOG_READ_MAX = 1024 * 1024


def new_id(clock: Clock) -> str:
    """32 hex digits that nobody can guess; ids sort by the millisecond they were made in."""
    return f"{int(clock.epoch() * 1000) & 0xFFFF_FFFF_FFFF:012x}{secrets.token_hex(10)}"


class ControllerState(ABC):
    """Jobs, runs, workers, tokens, audit and logs; the same for every store.

    `clock` is the system's unless a test gives a virtual one, by which the store then goes too.
    """

    clock: Clock

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it is, fit to be printed."""

    async def migrate(self) -> list[int]:
        """Make the tables that are missing; the versions that were applied.

        A store that makes them by itself has nothing to do.
        """
        return []

    def migration(self) -> str:
        """The SQL that `migrate` runs, for who wants to read it first."""
        raise ConfigError(f"{self.url} makes its tables by itself; there is nothing to print")

    @abstractmethod
    async def ping(self) -> None:
        """Is it there, with tables that fit? Raises when not."""

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Jobs: putting

    @abstractmethod
    async def add_jobs(self, new: Sequence[JobRow]) -> list[JobRow]:
        """Keep new jobs, all or none, with their requirements; the rows as they are kept.

        A row whose `unique` is taken is not kept: the answer has the row that holds it, with
        another id, in its place. Whether that is the same job, the caller sees.
        """

    @abstractmethod
    async def mark_ready(self, put: Sequence[tuple[str, int, str]]) -> list[bool]:
        """`putting` → `ready` for (job id, round, the queue's id), once they were put.

        False where it was not `putting` in that round any more (claimed already, cancelled).
        """

    @abstractmethod
    async def stuck(self, older_than_s: float, limit: int) -> list[JobRow]:
        """Jobs that are `putting` for so long: a controller went away between the two steps.

        To be put again with the same `unique`, then marked.
        """

    # Jobs: views

    @abstractmethod
    async def jobs(self, ids: Sequence[str]) -> dict[str, JobRow]:
        """Those that are there, by id, in full."""

    async def job(self, job_id: str) -> JobRow | None:
        return (await self.jobs([job_id])).get(job_id)

    @abstractmethod
    async def list_jobs(
        self,
        *,
        state: JobState | None = None,
        kind: str | None = None,
        worker: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[JobRow]:
        """A page, newest first; `after` is the last id of the page before. Long JSON is left out.

        worker: the worker that runs it or ran it last.
        """

    # Jobs: runs

    @abstractmethod
    async def deliver(self, runs: Sequence[RunRow]) -> list[JobRow | None]:
        """Write down that claimed jobs go to workers, before they are handed out.

        None where that is void, and the claim is to be settled done: the job ended, was cancelled,
        is not known, is of another round, or a newer claim (one with a later `until`) was
        delivered. Delivering the same claim again is allowed. Else the job, in full: `leased`,
        under its new attempt. A run that another worker had is over by this.
        """

    @abstractmethod
    async def runs_of(self, worker_id: str) -> list[RunRow]:
        """What a worker has, oldest first."""

    @abstractmethod
    async def run(self, job_id: str) -> RunRow | None: ...

    @abstractmethod
    async def contact(self, contacts: Sequence[Contact]) -> list[RunRow | None]:
        """Note what workers say of their runs; each run as it is now, None where it is lost.

        `until`, after the queue renewed the lease; it never goes back.
        """

    @abstractmethod
    async def end_runs(self, endings: Sequence[RunEnding]) -> list[EndResult]:
        """End runs of workers, each only if the worker still has it; what came of each.

        "ended"; "repeated" when the same worker's report had ended the job's newest run already;
        "lost" otherwise, and nothing is changed. `ready`: the error is kept, the attempt counts.
        The caller settles their claims afterwards; a lease that is lost then does no harm.
        """

    @abstractmethod
    async def end_job(
        self,
        job_id: str,
        round: int,
        expected: Collection[JobState],
        state: JobState,
        *,
        error: str | None = None,
        result: str | None = None,
    ) -> JobRow | None:
        """Give a job another state if it is as expected; None, and nothing is changed, if not.

        For what no worker reports: attempts used up, a queue that refused. A run that it had is
        over.
        """

    @abstractmethod
    async def release_lapsed(self, grace_s: float, limit: int) -> list[RunRow]:
        """`leased` → `ready` where the lease ended so long ago; the runs that are over by it.

        The queue hands such jobs out anyway; this only shows how it is until somebody claims.
        """

    # Jobs: what people do

    @abstractmethod
    async def cancel(self, job_id: str) -> JobRow | None:
        """`putting`, `ready` → `cancelled` at once; `leased`: `cancel` is set; else no change.

        A running job that is asked to cancel is never `ready` again: failed, released or claimed
        again, it is `cancelled`. None if there is no such job.
        """

    @abstractmethod
    async def renew_job(self, job_id: str, round: int) -> JobRow | None:
        """Restart an ended job: `putting`, round + 1, no attempt, no result and no error.

        None, and nothing is changed, if it is not ended, not of that round, or about to be
        forgotten. To be put, under a `unique` of the new round, and marked.
        """

    @abstractmethod
    async def finished_before(self, keep_s: float, limit: int) -> list[str]:
        """The ids of jobs that ended so long ago, oldest first; none can be restarted any more.

        So their artefacts' bytes can be deleted, and then they be forgotten.
        """

    @abstractmethod
    async def forget(self, ids: Sequence[str]) -> int:
        """Delete ended jobs with their logs and the rows of their artefacts; how many there were.

        Delete the artefacts' bytes before.
        """

    # Requirements and stats

    @abstractmethod
    async def requirements(self) -> list[Requirement]:
        """Every (kind, requires) that jobs came with, those without any requirement included."""

    @abstractmethod
    async def prune_requirements(self, unused_s: float) -> int:
        """Delete those that no live job has and no new job came with for so long."""

    @abstractmethod
    async def stats(self, live_s: float) -> ControllerStats:
        """Counts; a worker seen within `live_s` is live."""

    # Workers

    @abstractmethod
    async def add_worker(self, row: WorkerRow) -> WorkerRow:
        """Keep a new worker; its times are filled in. `token_expires_at` is kept as given."""

    @abstractmethod
    async def workers(self, ids: Sequence[str]) -> dict[str, WorkerRow]: ...

    async def worker(self, worker_id: str) -> WorkerRow | None:
        return (await self.workers([worker_id])).get(worker_id)

    @abstractmethod
    async def worker_by_token(self, token_hash: str) -> WorkerRow | None: ...

    @abstractmethod
    async def list_workers(
        self,
        *,
        live: bool | None = None,
        live_s: float = 120.0,
        drain: bool | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[WorkerRow]:
        """A page in the order of ids; `live` (True, False) filters by who was seen lately."""

    @abstractmethod
    async def seen(self, batch: Sequence[WorkerSeen]) -> list[str]:
        """Note when workers were last seen, in one statement; the ids that are not known.

        What another controller wrote and is newer stays.
        """

    @abstractmethod
    async def set_drain(self, worker_id: str, drain: bool) -> WorkerRow | None: ...

    @abstractmethod
    async def remove_worker(self, worker_id: str) -> list[RunRow] | None:
        """Forget a worker, and its token with it; the runs it had, whose jobs are `ready` again.

        None if there is no such worker.
        """

    @abstractmethod
    async def prune_workers(self, unseen_s: float, limit: int) -> int:
        """Forget workers that were not seen for so long and run nothing."""

    # Tokens

    @abstractmethod
    async def add_token(self, token: Token) -> Token: ...

    @abstractmethod
    async def token_by_hash(self, token_hash: str) -> Token | None:
        """Also one that expired or was revoked."""

    @abstractmethod
    async def list_tokens(self, *, limit: int = 100, after: str | None = None) -> list[Token]: ...

    @abstractmethod
    async def token(self, token_id: str) -> Token | None: ...

    @abstractmethod
    async def revoke_token(self, token_id: str) -> Token | None:
        """Revoked from now on, or as long as it was before; None if there is no such token.

        The tokens of the workers that registered with it hold no longer either.
        """

    @abstractmethod
    async def rotate_token(
        self, token_id: str, old_hash: str, new_hash: str, expires_at: float | None
    ) -> Token | None:
        """Another token under the same id and name; None if it is not `old_hash` or was revoked."""

    @abstractmethod
    async def tokens_used(self, used: Mapping[str, float]) -> None:
        """Token id -> how many seconds ago it was used."""

    # Audit

    @abstractmethod
    async def audit(self, entries: Sequence[AuditEntry]) -> None: ...

    async def note(
        self, who: str, action: str, what: str = "", detail: str = "", address: str = ""
    ) -> None:
        """Write one entry into the audit log."""
        entry = AuditEntry.of(who, action, what, detail, address)
        await write_down(entry, lambda kept: self.audit([kept]))

    @abstractmethod
    async def list_audit(
        self,
        *,
        who: str | None = None,
        action: str | None = None,
        what: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> list[AuditEntry]:
        """A page, newest first; `before` is the last id of the page before."""

    @abstractmethod
    async def prune_audit(self, keep_s: float, limit: int) -> int: ...

    # Artefacts: their rows; their bytes are elsewhere (see `artefacts`)

    @abstractmethod
    async def put_artefact(self, row: ArtefactRow, most: int) -> ArtefactRow | None:
        """Keep a row; the one that it replaced, whose blob may be deleted.

        `JobError` if the job is gone, or would have more than `most`.
        """

    @abstractmethod
    async def artefacts(self, job_id: str, *, input: bool = False) -> list[ArtefactRow]:
        """All of a job, by name."""

    @abstractmethod
    async def artefact(
        self, job_id: str, name: str, *, input: bool = False
    ) -> ArtefactRow | None: ...

    # Logs: see `logs`, which checks and bounds

    @abstractmethod
    async def append_log(
        self,
        job_id: str,
        part: int,
        offset: int,
        data: bytes,
        limit: int,
        end_mark: bytes,
        begin_mark: bytes = b"",
    ) -> LogPlace | None:
        """Append what is new of `data`, which the run `part` sent from its byte `offset` on.

        Bytes that it sent before are ignored. What would pass `limit` is not kept, and `end_mark`
        is, once. `begin_mark` is kept before the first bytes of a run that is not the first. None,
        and nothing is changed, where the job is gone or a newer run wrote; a gap (an offset above
        what was received) changes nothing either: the answer's `received` tells.
        """

    @abstractmethod
    async def log_place(self, job_id: str) -> LogPlace | None:
        """How far the log is; None if there is no such job."""

    @abstractmethod
    async def read_log(self, job_id: str, start: int, length: int) -> bytes:
        """The bytes from `start` on: up to `length` and `LOG_READ_MAX`, fewer at the end."""


def checked_limit(limit: object) -> int:
    """Check the limit of a page or a sweep."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise ConfigError(f"limit = {limit!r} must be a whole number from 1 to {PAGE_MAX}")
    return limit
