"""The controller's state in Postgres, in the queue's schema: several controllers share it.

What concerns several rows is a function of the schema, made by `migrate`: one statement, one
transaction and one round trip. The server's clock decides. Most calls may be repeated when a
connection broke in the middle: their second run changes nothing more.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pollwise.controller.state import encoding as rows
from pollwise.controller.state.base import LOG_READ_MAX, ControllerState, checked_limit
from pollwise.controller.state.encoding import REQUIREMENT_REST
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
from pollwise.durations import Duration
from pollwise.errors import MissingExtra
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.clock import Clock
from pollwise.storage.sql import statements

try:
    from pollwise.storage.postgres.database import Database
except ImportError as error:  # also where it is installed without the library that it needs
    raise MissingExtra("a controller on Postgres", "postgres") from error

from pollwise.storage.postgres.errors import ConnectionLost
from pollwise.storage.postgres.params import Param, flag, number, text, texts
from pollwise.storage.postgres.schema import TableSet

#: The tables of the controller.
TABLES = TableSet(
    __package__, "controller_migrations", "pollwise serve URL --migrate", "controller"
)


class PostgresState(ControllerState):
    """The state in a Postgres database. `await state.migrate()` makes its tables.

    conninfo, schema, timeout, connections: as a `PostgresQueue` has them.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        schema: str = "pollwise",
        timeout: Duration = "30s",
        connections: int = 4,
        clock: Clock | None = None,
    ) -> None:
        self.database = Database(
            conninfo,
            TABLES,
            "agents",
            schema=schema,
            timeout=timeout,
            connections=connections,
            clock=clock,
            what="queue",
            sql=rows.filled(statements(TABLES.package)),
        )
        self.schema, self.clock = self.database.schema, self.database.clock

    @property
    def url(self) -> str:
        return self.database.url

    # Migrating

    async def migrate(self) -> list[int]:
        return await self.database.migrate()

    def migration(self) -> str:
        return self.database.migration()

    async def ping(self) -> None:
        await self.database.check()

    async def close(self) -> None:
        await self.database.close()

    # Jobs

    async def add_jobs(self, rows_: Sequence[JobRow]) -> list[JobRow]:
        new = [rows.new_job(row) for row in rows_]
        # In the order of what is locked, so that nobody waits in a circle.
        batch = sorted(
            new, key=lambda row: (row["kind"], row["requires_hash"], row["unique"] or "")
        )
        kept = list(map(rows.job_of, await self._rows("add_jobs", _json(batch), self._now())))
        by_id = {row.id: row for row in kept}
        by_unique = {row.unique: row for row in kept if row.unique is not None}
        return [by_id.get(row["id"]) or by_unique[row["unique"]] for row in new]

    async def mark_ready(self, put: Sequence[tuple[str, int, str]]) -> list[bool]:
        batch = [
            {"id": job_id, "round": round_, "queue_id": queue_id}
            for job_id, round_, queue_id in put
        ]
        marked = set(await self._rows("mark_ready", _json(batch), self._now()))
        return [(job_id, round_) in marked for job_id, round_, _ in put]

    async def stuck(self, older_than_s: float, limit: int) -> list[JobRow]:
        params = [number(older_than_s), number(checked_limit(limit)), self._now()]
        return list(map(rows.job_of, await self._rows("stuck", *params)))

    async def jobs(self, ids: Sequence[str]) -> dict[str, JobRow]:
        found = map(rows.job_of, await self._rows("jobs", _ids(ids)))
        return {row.id: row for row in found}

    async def list_jobs(
        self,
        *,
        state: JobState | None = None,
        kind: str | None = None,
        worker: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[JobRow]:
        asked = [_asked(value) for value in (state, kind, worker, after)]
        found = await self._rows("list_jobs", *asked, number(checked_limit(limit)))
        return list(map(rows.job_of, found))

    async def deliver(self, runs: Sequence[RunRow]) -> list[JobRow | None]:
        told: list[JobRow | None] = [None] * len(runs)
        left = list(enumerate(runs))
        while left:  # a job that comes twice has its second claim looked at after its first
            wave = {run.job_id: place for place, run in reversed(left)}
            batch = [rows.new_run(runs[place]) for place in wave.values()]
            found = await self._rows("deliver", _json(batch), self._now())
            for job in map(rows.job_of, found):
                told[wave[job.id]] = job
            left = [(place, run) for place, run in left if wave[run.job_id] != place]
        return told

    async def runs_of(self, worker_id: str) -> list[RunRow]:
        return list(map(rows.run_of, await self._rows("runs_of", _asked(worker_id))))

    async def run(self, job_id: str) -> RunRow | None:
        found = await self._rows("run", _asked(job_id))
        return rows.run_of(found[0]) if found else None

    async def contact(self, contacts: Sequence[Contact]) -> list[RunRow | None]:
        if not contacts:
            return []
        batch = {(each.job_id, each.worker_id): rows.new_contact(each) for each in contacts}
        found = await self._rows("contact", _json(list(batch.values())), self._now())
        runs = {(run.job_id, run.worker_id): run for run in map(rows.run_of, found)}
        return [runs.get((each.job_id, each.worker_id)) for each in contacts]

    async def end_runs(self, endings: Sequence[RunEnding]) -> list[EndResult]:
        if not endings:
            return []
        first: dict[str, RunEnding] = {}
        for each in endings:
            first.setdefault(each.job_id, each)
        params = [_json([rows.new_ending(each) for each in first.values()]), self._now()]
        try:
            found = dict(await self._rows("end_runs", *params, safe=False))
        except ConnectionLost:  # what is repeated now may have been ended by the call before
            found = dict(await self._rows("end_runs", *params, safe=False))
            found = {job: "ended" if it == "repeated" else it for job, it in found.items()}
        told: dict[str, EndResult] = {each: found[rows.plain(each)] for each in first}
        return rows.end_results(endings, told)

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
        kept = rows.plain(result)
        ending = {
            "job_id": job_id,
            "worker_id": None,
            "state": state,
            "error": rows.text(error),
            "result": kept,
            "result_bytes": 0 if kept is None else len(kept.encode()),
        }
        params = [_json(ending), number(round), texts(expected), self._now()]
        return await self._job("end_job", *params, safe=False)

    async def release_lapsed(self, grace_s: float, limit: int) -> list[RunRow]:
        params = [None, number(grace_s), number(checked_limit(limit)), self._now()]
        return list(map(rows.run_of, await self._rows("release", *params)))

    async def cancel(self, job_id: str) -> JobRow | None:
        return await self._job("cancel", _asked(job_id), self._now())

    async def renew_job(self, job_id: str, round: int) -> JobRow | None:
        return await self._job("renew_job", _asked(job_id), number(round), self._now(), safe=False)

    async def finished_before(self, keep_s: float, limit: int) -> list[str]:
        params = [number(keep_s), number(checked_limit(limit)), self._now()]
        found = await self._rows("finished_before", *params)
        return [job_id for job_id, _ in sorted(found, key=lambda row: (row[1], row[0]))]

    async def forget(self, ids: Sequence[str]) -> int:
        return len(await self._rows("forget", _ids(ids)))

    async def requirements(self) -> list[Requirement]:
        return list(map(rows.requirement_of, await self._rows("requirements")))

    async def prune_requirements(self, unused_s: float) -> int:
        unused = max(unused_s, 2 * REQUIREMENT_REST)
        return len(await self._rows("prune_requirements", number(unused), self._now()))

    async def stats(self, live_s: float) -> ControllerStats:
        return rows.stats_of(await self._rows("stats", number(live_s), self._now()))

    async def _job(self, name: str, *params: Param, safe: bool = True) -> JobRow | None:
        found = await self._rows(name, *params, safe=safe)
        return rows.job_of(found[0]) if found else None

    # Workers

    async def add_worker(self, row: WorkerRow) -> WorkerRow:
        found = await self._rows("add_worker", _json(rows.new_worker(row)), self._now())
        return rows.worker_of(found[0])

    async def workers(self, ids: Sequence[str]) -> dict[str, WorkerRow]:
        found = map(rows.worker_of, await self._rows("workers", _ids(ids)))
        return {row.id: row for row in found}

    async def worker_by_token(self, token_hash: str) -> WorkerRow | None:
        return await self._worker("worker_by_token", _asked(token_hash))

    async def list_workers(
        self,
        *,
        live: bool | None = None,
        live_s: float = 120.0,
        drain: bool | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[WorkerRow]:
        found = await self._rows(
            "list_workers",
            None if live is None else flag(live),
            number(live_s),
            None if drain is None else flag(drain),
            number(checked_limit(limit)),
            _asked(after),
            self._now(),
        )
        return list(map(rows.worker_of, found))

    async def seen(self, batch: Sequence[WorkerSeen]) -> list[str]:
        if not batch:
            return []
        # In the order of ids, as all lock them.
        ordered = sorted({each.worker_id: each for each in batch}.items())
        given = [
            {"id": each.worker_id, "ago_s": each.ago_s, "address": rows.text(each.address)}
            for _, each in ordered
        ]
        known = {worker_id for (worker_id,) in await self._rows("seen", _json(given), self._now())}
        return [each.worker_id for each in batch if each.worker_id not in known]

    async def set_drain(self, worker_id: str, drain: bool) -> WorkerRow | None:
        return await self._worker("set_drain", _asked(worker_id), flag(drain))

    async def remove_worker(self, worker_id: str) -> list[RunRow] | None:
        if not await self._rows("remove_worker", _asked(worker_id), safe=False):
            return None
        # Should this controller end in between, the leases run out, as those of any silent worker.
        params = [text(worker_id), number(0.0), None, self._now()]
        return list(map(rows.run_of, await self._rows("release", *params)))

    async def prune_workers(self, unseen_s: float, limit: int) -> int:
        params = [number(unseen_s), number(checked_limit(limit)), self._now()]
        return len(await self._rows("prune_workers", *params))

    async def _worker(self, name: str, *params: Param) -> WorkerRow | None:
        found = await self._rows(name, *params)
        return rows.worker_of(found[0]) if found else None

    # Tokens and audit

    async def add_token(self, token: Token) -> Token:
        found = await self._rows("add_token", _json(rows.new_token(token)), self._now())
        return rows.token_of(found[0])

    async def token(self, token_id: str) -> Token | None:
        return await self._token("token", _asked(token_id))

    async def token_by_hash(self, token_hash: str) -> Token | None:
        return await self._token("token_by_hash", _asked(token_hash))

    async def list_tokens(self, *, limit: int = 100, after: str | None = None) -> list[Token]:
        found = await self._rows("list_tokens", number(checked_limit(limit)), _asked(after))
        return list(map(rows.token_of, found))

    async def revoke_token(self, token_id: str) -> Token | None:
        return await self._token("revoke_token", _asked(token_id), self._now())

    async def rotate_token(
        self, token_id: str, old_hash: str, new_hash: str, expires_at: float | None
    ) -> Token | None:
        expires = None if expires_at is None else number(expires_at)
        params = [_asked(token_id), text(old_hash), text(new_hash), expires]
        return await self._token("rotate_token", *params)

    async def tokens_used(self, used: Mapping[str, float]) -> None:
        if used:
            batch = [{"id": each, "ago_s": ago_s} for each, ago_s in sorted(used.items())]
            await self._rows("tokens_used", _json(batch), self._now())

    async def _token(self, name: str, *params: Param) -> Token | None:
        found = await self._rows(name, *params)
        return rows.token_of(found[0]) if found else None

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        if entries:
            batch = [rows.new_audit(entry) for entry in entries]
            await self._rows("audit", _json(batch), self._now(), safe=False)

    async def list_audit(
        self,
        *,
        who: str | None = None,
        action: str | None = None,
        what: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> list[AuditEntry]:
        asked = [_asked(value) for value in (who, action, what)]
        last = None if before is None else number(before)
        found = await self._rows("list_audit", *asked, number(checked_limit(limit)), last)
        return list(map(rows.audit_of, found))

    async def prune_audit(self, keep_s: float, limit: int) -> int:
        params = [number(keep_s), number(checked_limit(limit)), self._now()]
        return len(await self._rows("prune_audit", *params))

    # Artefacts and logs

    async def put_artefact(self, row: ArtefactRow, most: int) -> ArtefactRow | None:
        params = [_json(rows.new_artefact(row)), number(most), self._now()]
        [(result, before)] = await self._rows("put_artefact", *params)
        if result == "gone":
            raise rows.job_gone(row.job_id)
        if result == "full":
            raise rows.too_many(row.job_id, most)
        replaced = None if before is None else ArtefactRow(**json.loads(before))
        return None if replaced is None or replaced.blob == row.blob else replaced

    async def artefacts(self, job_id: str, *, input: bool = False) -> list[ArtefactRow]:
        found = await self._rows("artefacts", _asked(job_id), flag(input), None)
        return list(map(rows.artefact_of, found))

    async def artefact(self, job_id: str, name: str, *, input: bool = False) -> ArtefactRow | None:
        found = await self._rows("artefacts", _asked(job_id), flag(input), _asked(name))
        return rows.artefact_of(found[0]) if found else None

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
        found = await self._rows(
            "append_log",
            _asked(job_id),
            number(part),
            number(offset),
            _bytes(data),
            number(limit),
            _bytes(end_mark),
            _bytes(begin_mark),
        )
        return LogPlace(*found[0]) if found else None

    async def log_place(self, job_id: str) -> LogPlace | None:
        found = await self._rows("log_place", _asked(job_id))
        return LogPlace(*found[0]) if found else None

    async def read_log(self, job_id: str, start: int, length: int) -> bytes:
        stop = start + min(length, LOG_READ_MAX)
        found = await self._rows("read_log", _asked(job_id), number(start), number(stop))
        return rows.cut_out([(first, data) for first, data in found], start, stop)

    # The rest

    async def _rows(self, name: str, *params: Param, safe: bool = True) -> list[tuple[Any, ...]]:
        return await self.database.rows(name, params, safe=safe)

    def _now(self) -> Param:
        return self.database.now()


def _json(batch: Any) -> bytes:
    return json.dumps(batch).encode()


def _asked(value: str | None) -> Param:
    """What somebody asked for: text that no row can hold finds none."""
    return text(rows.plain(value))


def _ids(ids: Iterable[str]) -> bytes:
    return texts(map(rows.plain, ids))


def _bytes(data: bytes) -> bytes:
    return b"\\x" + data.hex().encode()
