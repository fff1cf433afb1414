"""The controller's state in a SQLite file: the queue's own, or any other.

Calls go to one thread with one connection, as those of `SqliteQueue` do.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pollwise.controller.state.base import ControllerState, checked_limit
from pollwise.controller.state.encoding import REQUIREMENT_REST
from pollwise.controller.state.sqlite.store import StateFile
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
from pollwise.queues.sqlite.queue import SYNCHRONOUS
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.clock import Clock
from pollwise.storage.sqlite.thread import SqliteThread


class SqliteState(ControllerState):
    """The state in a file; its tables are made when it is first used.

    path: the database; made when missing, unless `create` is off.
    synchronous: as a `SqliteQueue` has it: what survives a power cut.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: str = "full",
        create: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.path = Path(path)
        if self.path.name in ("", ".."):
            raise ConfigError(f"path = {str(path)!r} names no file; give one such as jobs.db")
        if synchronous not in SYNCHRONOUS:
            raise ConfigError(f"synchronous = {synchronous!r} is none of {', '.join(SYNCHRONOUS)}")
        self.synchronous = synchronous
        self.clock = clock or Clock()
        self._store = StateFile(self.path, synchronous=synchronous, create=create)
        self._folder: str | None = None
        self._thread = SqliteThread(
            self._store, name=f"pollwise-state-{self.path.name}", store=self.url
        )
        self._call = self._thread.call

    @classmethod
    def temporary(cls, clock: Clock | None = None) -> SqliteState:
        """A state that is gone when it is closed: beside a queue in memory, and for tests."""
        folder = tempfile.mkdtemp(prefix="pollwise-state-")
        state = cls(Path(folder) / "state.db", synchronous="off", clock=clock)
        state._folder = folder
        return state

    @property
    def url(self) -> str:
        return f"sqlite:///{quote(str(self.path))}"

    async def ping(self) -> None:
        await self._call(self._store.ping)

    async def close(self) -> None:
        if self._thread.closed:
            return
        try:
            await self._thread.close()
        finally:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    # Jobs

    async def add_jobs(self, rows: Sequence[JobRow]) -> list[JobRow]:
        return await self._call(self._store.add_jobs, rows, self._now())

    async def mark_ready(self, put: Sequence[tuple[str, int, str]]) -> list[bool]:
        return await self._call(self._store.mark_ready, put, self._now())

    async def stuck(self, older_than_s: float, limit: int) -> list[JobRow]:
        before = self._now() - older_than_s
        return await self._call(self._store.stuck, before, checked_limit(limit))

    async def jobs(self, ids: Sequence[str]) -> dict[str, JobRow]:
        return await self._call(self._store.jobs, ids)

    async def list_jobs(
        self,
        *,
        state: JobState | None = None,
        kind: str | None = None,
        worker: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[JobRow]:
        asked = {"state": state, "kind": kind, "worker": worker, "after": after}
        return await self._call(self._store.list_jobs, asked, checked_limit(limit))

    async def deliver(self, runs: Sequence[RunRow]) -> list[JobRow | None]:
        return await self._call(self._store.deliver, runs, self._now())

    async def runs_of(self, worker_id: str) -> list[RunRow]:
        return await self._call(self._store.runs_of, worker_id)

    async def run(self, job_id: str) -> RunRow | None:
        return await self._call(self._store.run, job_id)

    async def contact(self, contacts: Sequence[Contact]) -> list[RunRow | None]:
        return await self._call(self._store.contact, contacts, self._now())

    async def end_runs(self, endings: Sequence[RunEnding]) -> list[EndResult]:
        return await self._call(self._store.end_runs, endings, self._now())

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
        return await self._call(
            self._store.end_job, job_id, round, expected, state, error, result, self._now()
        )

    async def release_lapsed(self, grace_s: float, limit: int) -> list[RunRow]:
        now = self._now()
        return await self._call(
            self._store.release_lapsed, now - grace_s, checked_limit(limit), now
        )

    async def cancel(self, job_id: str) -> JobRow | None:
        return await self._call(self._store.cancel, job_id, self._now())

    async def renew_job(self, job_id: str, round: int) -> JobRow | None:
        return await self._call(self._store.renew_job, job_id, round, self._now())

    async def finished_before(self, keep_s: float, limit: int) -> list[str]:
        before = self._now() - keep_s
        return await self._call(self._store.finished_before, before, checked_limit(limit))

    async def forget(self, ids: Sequence[str]) -> int:
        return await self._call(self._store.forget, ids)

    async def requirements(self) -> list[Requirement]:
        return await self._call(self._store.requirements)

    async def prune_requirements(self, unused_s: float) -> int:
        before = self._now() - max(unused_s, 2 * REQUIREMENT_REST)
        return await self._call(self._store.prune_requirements, before)

    async def stats(self, live_s: float) -> ControllerStats:
        now = self._now()
        return await self._call(self._store.stats, now - live_s, now)

    # Workers

    async def add_worker(self, row: WorkerRow) -> WorkerRow:
        return await self._call(self._store.add_worker, row, self._now())

    async def workers(self, ids: Sequence[str]) -> dict[str, WorkerRow]:
        return await self._call(self._store.workers, ids)

    async def worker_by_token(self, token_hash: str) -> WorkerRow | None:
        return await self._call(self._store.worker_by_token, token_hash)

    async def list_workers(
        self,
        *,
        live: bool | None = None,
        live_s: float = 120.0,
        drain: bool | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[WorkerRow]:
        asked = {
            "live": live,
            "since": self._now() - live_s,
            "drain": drain,
            "limit": checked_limit(limit),
            "after": after,
        }
        return await self._call(self._store.list_workers, asked)

    async def seen(self, batch: Sequence[WorkerSeen]) -> list[str]:
        return await self._call(self._store.seen, batch, self._now()) if batch else []

    async def set_drain(self, worker_id: str, drain: bool) -> WorkerRow | None:
        return await self._call(self._store.set_drain, worker_id, drain)

    async def remove_worker(self, worker_id: str) -> list[RunRow] | None:
        return await self._call(self._store.remove_worker, worker_id, self._now())

    async def prune_workers(self, unseen_s: float, limit: int) -> int:
        before = self._now() - unseen_s
        return await self._call(self._store.prune_workers, before, checked_limit(limit))

    # Tokens and audit

    async def add_token(self, token: Token) -> Token:
        return await self._call(self._store.add_token, token, self._now())

    async def token(self, token_id: str) -> Token | None:
        return await self._token("token", id=token_id)

    async def token_by_hash(self, token_hash: str) -> Token | None:
        return await self._token("token_by_hash", hash=token_hash)

    async def list_tokens(self, *, limit: int = 100, after: str | None = None) -> list[Token]:
        return await self._call(self._store.list_tokens, checked_limit(limit), after)

    async def revoke_token(self, token_id: str) -> Token | None:
        return await self._call(self._store.revoke_token, token_id, self._now())

    async def rotate_token(
        self, token_id: str, old_hash: str, new_hash: str, expires_at: float | None
    ) -> Token | None:
        return await self._token(
            "rotate_token", id=token_id, old=old_hash, hash=new_hash, expires_at=expires_at
        )

    async def tokens_used(self, used: Mapping[str, float]) -> None:
        if used:
            await self._call(self._store.tokens_used, used, self._now())

    async def _token(self, statement: str, **values: Any) -> Token | None:
        return await self._call(self._store.one_token, statement, values)

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        if entries:
            await self._call(self._store.audit, entries, self._now())

    async def list_audit(
        self,
        *,
        who: str | None = None,
        action: str | None = None,
        what: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> list[AuditEntry]:
        asked = {"who": who, "action": action, "what": what, "before": before}
        return await self._call(self._store.list_audit, asked | {"limit": checked_limit(limit)})

    async def prune_audit(self, keep_s: float, limit: int) -> int:
        before = self._now() - keep_s
        return await self._call(self._store.prune_audit, before, checked_limit(limit))

    # Artefacts and logs

    async def put_artefact(self, row: ArtefactRow, most: int) -> ArtefactRow | None:
        return await self._call(self._store.put_artefact, row, most, self._now())

    async def artefacts(self, job_id: str, *, input: bool = False) -> list[ArtefactRow]:
        return await self._call(self._store.artefacts, job_id, input, None)

    async def artefact(self, job_id: str, name: str, *, input: bool = False) -> ArtefactRow | None:
        found = await self._call(self._store.artefacts, job_id, input, name)
        return found[0] if found else None

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
        return await self._call(
            self._store.append_log, job_id, part, offset, data, limit, end_mark, begin_mark
        )

    async def log_place(self, job_id: str) -> LogPlace | None:
        return await self._call(self._store.log_place, job_id)

    async def read_log(self, job_id: str, start: int, length: int) -> bytes:
        return await self._call(self._store.read_log, job_id, start, length)

    def _now(self) -> float:
        return self.clock.epoch()
