"""What a controller keeps beside its queue: the contract of a `ControllerState`.

Jobs are in the queue alone. The state has the registered workers, the tokens, the requirements that
jobs came with, the audit log, the logs of jobs and the names of their files. Two controllers may
work on one state at once.

The store's clock decides: durations go in ("seen 3 s ago", "kept for a day"), times come out. All
calls are bounded: batches by the caller, pages by `PAGE_MAX`, sweeps by their `limit`.
Errors are those of queues: `StoreUnavailable` for what may work later, else `StoreError`.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from pollwise.controller.state.values import (
    ArtefactRow,
    LogPlace,
    Requirement,
    Token,
    WorkerRow,
    WorkerSeen,
)
from pollwise.errors import ConfigError
from pollwise.runtime.audit import AuditEntry, write_down
from pollwise.runtime.clock import Clock

#: The most rows of a page.
PAGE_MAX = 1000
#: The most bytes that one read of a log returns.
LOG_READ_MAX = 1024 * 1024


def new_id(clock: Clock) -> str:
    """32 hex digits that nobody can guess; ids sort by the millisecond they were made in."""
    return f"{int(clock.epoch() * 1000) & 0xFFFF_FFFF_FFFF:012x}{secrets.token_hex(10)}"


class ControllerState(ABC):
    """Workers, tokens, requirements, audit, files and logs; the same for every store.

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

    # Requirements

    @abstractmethod
    async def require(self, kind: str, requires_hash: str, requires: Mapping[str, Any]) -> None:
        """Note that a job of this kind came with this requirement ("" and {} for none)."""

    @abstractmethod
    async def requirements(self) -> list[Requirement]:
        """Every (kind, requires) that jobs came with, those without any requirement included."""

    @abstractmethod
    async def prune_requirements(self, unused_s: float, used: Collection[tuple[str, str]]) -> int:
        """Delete those that no new job came with for so long, except `used` (kind, hash)."""

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
    async def remove_worker(self, worker_id: str) -> bool:
        """Forget a worker, and its token with it; False if there is no such worker."""

    @abstractmethod
    async def prune_workers(self, unseen_s: float, limit: int) -> int:
        """Forget workers that were not seen for so long."""

    @abstractmethod
    async def count_workers(self, live_s: float) -> tuple[int, int]:
        """How many workers there are, and how many of them were seen within `live_s`."""

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
    async def audit(self, entries: Sequence[AuditEntry], ago_s: Sequence[float] = ()) -> None:
        """Write entries; `ago_s` says for each how long ago it happened, if not now."""

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

        `JobError` if its folder would have more than `most`.
        """

    @abstractmethod
    async def artefacts(self, folder: str, *, input: bool = False) -> list[ArtefactRow]:
        """All of a folder, by name."""

    @abstractmethod
    async def artefact(
        self, folder: str, name: str, *, input: bool = False
    ) -> ArtefactRow | None: ...

    # Logs: see `logs`, which checks and bounds

    @abstractmethod
    async def append_log(
        self,
        folder: str,
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
        and nothing is changed, where a newer run wrote; a gap (an offset above what was received)
        changes nothing either: the answer's `received` tells.
        """

    @abstractmethod
    async def log_place(self, folder: str) -> LogPlace:
        """How far the log is."""

    @abstractmethod
    async def read_log(self, folder: str, start: int, length: int) -> bytes:
        """The bytes from `start` on: up to `length` and `LOG_READ_MAX`, fewer at the end."""

    # Retention of both

    @abstractmethod
    async def attach(self, folder: str, job: str) -> None:
        """Note whose files a folder of inputs has, once their job was put."""

    @abstractmethod
    async def folders_before(
        self, keep_s: float, limit: int, after: str | None = None
    ) -> list[tuple[str, str]]:
        """(folder, job) of files and logs that were last written so long ago, by folder.

        job: as `attach` noted it for inputs, None as "" if it never did; for others the folder.
        """

    @abstractmethod
    async def forget(self, folders: Sequence[str]) -> None:
        """Delete the logs and the rows of the files of these folders.

        Delete the files' bytes before.
        """


def checked_limit(limit: object) -> int:
    """Check the limit of a page or a sweep."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise ConfigError(f"limit = {limit!r} must be a whole number from 1 to {PAGE_MAX}")
    return limit
