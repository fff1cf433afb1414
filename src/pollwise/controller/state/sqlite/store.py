"""The SQLite side of `SqliteState`: plain calls on one connection, made from one thread.

A call is one transaction, so what it looks at first is so still when it writes.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pollwise.controller.state import encoding as rows
from pollwise.controller.state.base import LOG_READ_MAX, checked_limit
from pollwise.controller.state.values import (
    LIVE,
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
from pollwise.runtime.audit import AuditEntry
from pollwise.storage.sqlite.file import SqliteFile, transaction

_CONDITIONS = {
    "state": "state = :state",
    "kind": "kind = :kind",
    "worker": "worker_id = :worker",
    "after": "id < :after",
}


class StateFile(SqliteFile):
    """The tables of the controller in a file."""

    package = __package__
    version_table = "pollwise_controller_schema"
    holds = "controller's state, which `pollwise serve` makes when it first starts"

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._sql = rows.filled(self._sql)

    # Jobs

    def add_jobs(self, now: float, new: Sequence[JobRow]) -> list[JobRow]:
        kept: list[JobRow] = []
        with transaction(self.connect()):
            for row in new:
                values = rows.new_job(row) | {"now": now}
                self._run("require", values)
                self._run("add_job", values)
                found = self._jobs([row.id]).get(row.id)
                if found is None:
                    [twin] = self._rows("twin", unique=values["unique"])
                    found = rows.job_of(twin)
                kept.append(found)
        return kept

    def mark_ready(self, now: float, put: Sequence[tuple[str, int, str]]) -> list[bool]:
        with transaction(self.connect()):
            return [
                bool(
                    self._run(
                        "mark_ready",
                        {"id": job_id, "round": round_, "queue_id": queue_id, "now": now},
                    )
                )
                for job_id, round_, queue_id in put
            ]

    def stuck(self, now: float, older_than_s: float, limit: int) -> list[JobRow]:
        found = self._rows("stuck", before=now - older_than_s, limit=checked_limit(limit))
        return [rows.job_of(row) for row in found]

    def jobs(self, ids: Sequence[str]) -> dict[str, JobRow]:
        self.connect()
        return self._jobs(ids)

    def list_jobs(
        self,
        *,
        state: JobState | None = None,
        kind: str | None = None,
        worker: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[JobRow]:
        asked = {"state": state, "kind": kind, "worker": worker, "after": after}
        wanted = {name: value for name, value in asked.items() if value is not None}
        where = " AND ".join(_CONDITIONS[name] for name in wanted) or "true"
        statement = self._sql["list_jobs"].replace("{where}", where)
        found = self._execute(statement, {**wanted, "limit": checked_limit(limit)})
        return [rows.job_of(row) for row in found]

    def deliver(self, now: float, runs: Sequence[RunRow]) -> list[JobRow | None]:
        with transaction(self.connect()):
            return [self._deliver(run, now) for run in runs]

    def _deliver(self, run: RunRow, now: float) -> JobRow | None:
        job = self._jobs([run.job_id]).get(run.job_id)
        if job is None or job.round != run.round or job.state not in LIVE:
            return None
        before = self.run(run.job_id)
        again = before is not None and before.token == run.token
        if job.cancel and not again:
            self._end(job.id, "cancelled", now, error=job.error)
            return None
        values = rows.new_run(run) | {"now": now}
        if not self._run("deliver", values):
            return None
        if again:
            return job
        [row] = self._rows("start", **_only(values, _START))
        return rows.job_of(row)

    def runs_of(self, worker_id: str) -> list[RunRow]:
        return [rows.run_of(row) for row in self._rows("runs_of", worker_id=worker_id)]

    def run(self, job_id: str) -> RunRow | None:
        found = self._rows("run", job_id=job_id)
        return rows.run_of(found[0]) if found else None

    def contact(self, now: float, contacts: Sequence[Contact]) -> list[RunRow | None]:
        told: list[RunRow | None] = []
        with transaction(self.connect()):
            for contact in contacts:
                values = rows.new_contact(contact) | {"now": now}
                found = self._rows("hear", **_only(values, _HEAR))
                told.append(rows.run_of(found[0]) if found else None)
                if found and (contact.progress is not None or contact.message is not None):
                    self._run("progress", _only(values, _PROGRESS))
        return told

    def end_runs(self, now: float, endings: Sequence[RunEnding]) -> list[EndResult]:
        found: dict[str, EndResult] = {}
        with transaction(self.connect()):
            for ending in endings:
                if ending.job_id not in found:
                    found[ending.job_id] = self._end_run(ending, now)
        return rows.end_results(endings, found)

    def _end_run(self, ending: RunEnding, now: float) -> EndResult:
        values = rows.new_ending(ending) | {"now": now}
        if self._run("end_run", _only(values, ("job_id", "worker_id", "token"))):
            self._rows("end_job", **_only(values, _END))
            return "ended"
        if self.run(values["job_id"]) is not None:
            return "lost"
        job = self._jobs([values["job_id"]]).get(values["job_id"])
        return "repeated" if job is not None and job.ended_by == ending.worker_id else "lost"

    def _end(
        self,
        job_id: str,
        state: JobState,
        now: float,
        *,
        error: str | None = None,
        result: str | None = None,
    ) -> JobRow:
        """End a job that no report of a worker ends, and its run."""
        self._rows("drop_run", job_id=job_id)
        result = rows.plain(result)
        [row] = self._rows(
            "end_job",
            job_id=job_id,
            worker_id=None,
            state=state,
            error=rows.text(error),
            exit_code=None,
            result=result,
            result_bytes=0 if result is None else len(result.encode()),
            now=now,
        )
        return rows.job_of(row)

    def end_job(
        self,
        now: float,
        job_id: str,
        round: int,
        expected: Collection[JobState],
        state: JobState,
        *,
        error: str | None = None,
        result: str | None = None,
    ) -> JobRow | None:
        with transaction(self.connect()):
            job = self._jobs([job_id]).get(job_id)
            if job is None or job.round != round or job.state not in expected:
                return None
            return self._end(job_id, state, now, error=error, result=result)

    def release_lapsed(self, now: float, grace_s: float, limit: int) -> list[RunRow]:
        before, limit = now - grace_s, checked_limit(limit)
        if not self._rows("lapsed", before=before, limit=1):
            return []  # a look, without the write lock
        with transaction(self.connect()):
            lapsed = self._rows("lapsed", before=before, limit=limit)
            return [self._release(job_id, now) for (job_id,) in lapsed]

    def _release(self, job_id: str, now: float) -> RunRow:
        run = self.run(job_id)
        assert run is not None  # noqa: S101
        self._end(job_id, "ready", now, error=f"the lease of {run.worker_id} ran out")
        return run

    def cancel(self, now: float, job_id: str) -> JobRow | None:
        with transaction(self.connect()):
            self._run("cancel", {"id": job_id, "now": now})
            return self._jobs([job_id]).get(job_id)

    def renew_job(self, now: float, job_id: str, round: int) -> JobRow | None:
        with transaction(self.connect()):
            found = self._rows("renew_job", id=job_id, round=round, now=now)
            if not found:
                return None
            job = rows.job_of(found[0])
            values = rows.new_job(job)
            self._run("require", values | {"now": now})
            return job

    def finished_before(self, now: float, keep_s: float, limit: int) -> list[str]:
        before, limit = now - keep_s, checked_limit(limit)
        if not self._rows("finished_before", before=before, limit=1):
            return []  # a look, without the write lock
        with transaction(self.connect()):
            found = self._rows("finished_before", before=before, limit=limit)
            ids = [job_id for (job_id,) in found]
            self._run("retire", {"ids": json.dumps(ids)})
        return ids

    def forget(self, ids: Sequence[str]) -> int:
        with transaction(self.connect()):
            return self._run("forget", {"ids": json.dumps(list(ids))})

    def requirements(self) -> list[Requirement]:
        return [rows.requirement_of(row) for row in self._rows("requirements")]

    def prune_requirements(self, now: float, unused_s: float) -> int:
        before = now - max(unused_s, 2 * rows.REQUIREMENT_REST)
        with transaction(self.connect()):
            return self._run("prune_requirements", {"before": before})

    def stats(self, now: float, live_s: float) -> ControllerStats:
        return rows.stats_of(self._rows("stats", since=now - live_s, now=now))

    # Workers

    def add_worker(self, now: float, row: WorkerRow) -> WorkerRow:
        with transaction(self.connect()):
            self._run("add_worker", rows.new_worker(row) | {"now": now})
            return self.workers([row.id])[row.id]

    def workers(self, ids: Sequence[str]) -> dict[str, WorkerRow]:
        found = map(rows.worker_of, self._rows("workers", ids=json.dumps(list(ids))))
        return {row.id: row for row in found}

    def worker_by_token(self, token_hash: str) -> WorkerRow | None:
        found = self._rows("worker_by_token", hash=token_hash)
        return rows.worker_of(found[0]) if found else None

    def list_workers(
        self,
        now: float,
        *,
        live: bool | None = None,
        live_s: float = 120.0,
        drain: bool | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[WorkerRow]:
        asked = {"live": live, "since": now - live_s, "drain": drain, "after": after}
        found = self._rows("list_workers", **asked, limit=checked_limit(limit))
        return [rows.worker_of(row) for row in found]

    def seen(self, now: float, batch: Sequence[WorkerSeen]) -> list[str]:
        if not batch:
            return []
        with transaction(self.connect()):
            return [
                each.worker_id
                for each in batch
                if not self._run(
                    "seen",
                    {
                        "id": each.worker_id,
                        "at": now - each.ago_s,
                        "address": rows.text(each.address),
                    },
                )
            ]

    def set_drain(self, worker_id: str, drain: bool) -> WorkerRow | None:
        with transaction(self.connect()):
            found = self._rows("set_drain", id=worker_id, drain=drain)
        return rows.worker_of(found[0]) if found else None

    def remove_worker(self, now: float, worker_id: str) -> list[RunRow] | None:
        with transaction(self.connect()):
            if not self._run("remove_worker", {"id": worker_id}):
                return None
            runs = self.runs_of(worker_id)
            for run in runs:
                self._end(run.job_id, "ready", now, error=f"{worker_id} was unregistered")
            return runs

    def prune_workers(self, now: float, unseen_s: float, limit: int) -> int:
        values = {"before": now - unseen_s, "limit": checked_limit(limit)}
        with transaction(self.connect()):
            return self._run("prune_workers", values)

    # Tokens and audit

    def add_token(self, now: float, token: Token) -> Token:
        with transaction(self.connect()):
            self._run("add_token", rows.new_token(token) | {"now": now})
            return rows.token_of(self._rows("token", id=token.id)[0])

    def token(self, token_id: str) -> Token | None:
        return self._token("token", id=token_id)

    def token_by_hash(self, token_hash: str) -> Token | None:
        return self._token("token_by_hash", hash=token_hash)

    def rotate_token(
        self, token_id: str, old_hash: str, new_hash: str, expires_at: float | None
    ) -> Token | None:
        return self._token(
            "rotate_token", id=token_id, old=old_hash, hash=new_hash, expires_at=expires_at
        )

    def _token(self, statement: str, **values: Any) -> Token | None:
        found = self._rows(statement, **values)
        return rows.token_of(found[0]) if found else None

    def revoke_token(self, now: float, token_id: str) -> Token | None:
        with transaction(self.connect()):
            found = self._token("revoke_token", id=token_id, now=now)
            if found is not None:
                self._run("expire_workers", {"id": token_id, "now": now})
            return found

    def list_tokens(self, *, limit: int = 100, after: str | None = None) -> list[Token]:
        found = self._rows("list_tokens", limit=checked_limit(limit), after=after)
        return [rows.token_of(row) for row in found]

    def tokens_used(self, now: float, used: Mapping[str, float]) -> None:
        if not used:
            return
        with transaction(self.connect()):
            for token_id, ago_s in used.items():
                self._run("token_used", {"id": token_id, "at": now - ago_s})

    def audit(self, now: float, entries: Sequence[AuditEntry]) -> None:
        if not entries:
            return
        with transaction(self.connect()):
            for entry in entries:
                self._run("audit", rows.new_audit(entry) | {"now": now})

    def list_audit(
        self,
        *,
        who: str | None = None,
        action: str | None = None,
        what: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> list[AuditEntry]:
        asked = {"who": who, "action": action, "what": what, "before": before}
        found = self._rows("list_audit", **asked, limit=checked_limit(limit))
        return [rows.audit_of(row) for row in found]

    def prune_audit(self, now: float, keep_s: float, limit: int) -> int:
        values = {"before": now - keep_s, "limit": checked_limit(limit)}
        with transaction(self.connect()):
            return self._run("prune_audit", values)

    # Artefacts and logs

    def put_artefact(self, now: float, row: ArtefactRow, most: int) -> ArtefactRow | None:
        values = rows.new_artefact(row) | {"now": now}
        with transaction(self.connect()):
            if not self._rows("job_exists", id=row.job_id):
                raise rows.job_gone(row.job_id)
            [(others,)] = self._rows("count_artefacts", **_only(values, _ARTEFACT))
            if others >= most:
                raise rows.too_many(row.job_id, most)
            before = self.artefact(row.job_id, values["name"], input=row.input)
            self._run("put_artefact", values)
        return before if before is not None and before.blob != row.blob else None

    def artefact(self, job_id: str, name: str, *, input: bool = False) -> ArtefactRow | None:
        found = self._artefacts(job_id, input, name)
        return found[0] if found else None

    def artefacts(self, job_id: str, *, input: bool = False) -> list[ArtefactRow]:
        return self._artefacts(job_id, input, None)

    def _artefacts(self, job_id: str, input: bool, name: str | None) -> list[ArtefactRow]:
        found = self._rows("artefacts", job_id=job_id, input=input, name=name)
        return [rows.artefact_of(row) for row in found]

    def append_log(
        self,
        job_id: str,
        part: int,
        offset: int,
        data: bytes,
        limit: int,
        end_mark: bytes,
        begin_mark: bytes = b"",
    ) -> LogPlace | None:
        with transaction(self.connect()):
            place = self.log_place(job_id)
            if place is None or part < place.part:
                return None
            after, kept = rows.appended(place, part, offset, data, limit, end_mark, begin_mark)
            if after != place:
                values = {"job_id": job_id, "size": after.size, "part": after.part}
                values |= {"received": after.received, "cut": after.cut}
                self._run("put_log_place", values)
            if kept:
                values = {"job_id": job_id, "start": place.size, "size": len(kept), "data": kept}
                self._run("add_log_bytes", values)
        return after

    def log_place(self, job_id: str) -> LogPlace | None:
        found = self._rows("log_place", job_id=job_id)
        if not found:
            return None
        size, part, received, cut, ended = found[0]
        return LogPlace(size, part, received, bool(cut), bool(ended))

    def read_log(self, job_id: str, start: int, length: int) -> bytes:
        stop = start + min(length, LOG_READ_MAX)
        found = self._rows("read_log", job_id=job_id, start=start, stop=stop)
        return rows.cut_out(found, start, stop)

    def ping(self) -> None:
        self.connect().execute("SELECT 1").fetchone()

    # Within a transaction

    def _jobs(self, ids: Sequence[str]) -> dict[str, JobRow]:
        found = map(rows.job_of, self._rows("jobs", ids=json.dumps(list(ids))))
        return {row.id: row for row in found}

    def _rows(self, name: str, /, **values: Any) -> list[tuple[Any, ...]]:
        return self._execute(self._sql[name], values).fetchall()

    def _run(self, name: str, values: Mapping[str, Any]) -> int:
        return self._execute(self._sql[name], values).rowcount

    def _execute(self, statement: str, values: Mapping[str, Any]) -> sqlite3.Cursor:
        kept = {
            name: rows.plain(value) if isinstance(value, str) else value
            for name, value in values.items()
        }
        return self.connect().execute(statement, kept)


_START = ("job_id", "queue_id", "attempt", "worker_id", "now")
_HEAR = ("job_id", "worker_id", "heard", "until", "now")
_PROGRESS = ("job_id", "progress", "message", "now")
_END = (
    "job_id", "worker_id", "state", "error", "exit_code", "result", "result_bytes", "now"
)  # fmt: skip
_ARTEFACT = ("job_id", "input", "name")


def _only(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: values[name] for name in names}
