"""The SQLite side of `SqliteQueue`: plain calls on one connection, made from one thread.

A batch is one transaction and, for claims and settlements, one statement.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pollwise.queues.base import Stats
from pollwise.queues.unique import check_twin
from pollwise.runtime.jobs import STATES, Claim, Job, JobInfo, NewJob, Settlement, State
from pollwise.storage.ids import number_of, place_after
from pollwise.storage.sqlite.file import SqliteFile, transaction

#: The maximum number of jobs that one claim makes ready or one prune deletes; it limits how long
#: the lock is held.
MOST_AT_ONCE = 1000
#: The maximum number of kinds that a claim looks up one by one, because SQLite allows 500 selects
#: in a union; with more kinds, it sorts all ready jobs.
MOST_KINDS = 400

_SEQ_MAX = 2**63 - 1
_CODES = {state: code for code, state in enumerate(STATES)}


class SqliteStore(SqliteFile):
    """The jobs of one queue in a file."""

    package = __package__
    version_table = "pollwise_schema"
    holds = "queue"

    def __init__(self, path: Path, queue: str, *, synchronous: str, create: bool) -> None:
        super().__init__(path, synchronous=synchronous, create=create, queue=queue)
        self._queue = queue

    # Jobs

    def put(self, now: float, jobs: Sequence[NewJob]) -> tuple[list[str], int]:
        connection = self.connect()
        ids, fresh = [], 0
        with transaction(connection):
            for job in jobs:
                values = {
                    "queue": self._queue,
                    "kind": job.kind,
                    "payload": job.encoded,
                    "priority": job.priority,
                    "run_at": job.due_at(now),
                    "now": now,
                    "key": job.key,
                    "unique": job.unique,
                }
                cursor = connection.execute(self._sql["put"], values)
                if cursor.rowcount:
                    ids.append(str(cursor.lastrowid))
                    fresh += 1
                else:
                    ids.append(self._twin(job))
        return ids, fresh

    def _twin(self, job: NewJob) -> str:
        seq, kind, payload = self._rows("twin", unique=job.unique)[0]
        check_twin(job, seq, kind, payload)
        return str(seq)

    def claim(
        self,
        worker: str,
        limit: int,
        lease: float,
        kinds: Sequence[str] | None,
        now: float,
        within: Callable[[Sequence[Claim]], None] | None = None,
    ) -> tuple[list[Claim], float | None]:
        """The claims; and, if no more are ready, when the next job is due.

        within: called with the claims inside their transaction.
        """
        anything, due = self._glance(kinds)
        if not anything and (due is None or due > now):
            return [], due
        while True:
            with transaction(self.connect()):
                if due is not None and due <= now:
                    self._rows("promote", now=now, most=MOST_AT_ONCE)
                rows = self._claim(kinds, worker, limit, now + lease)
                rows.sort(key=lambda row: (-row[4], row[7], row[0]))
                until = now + lease
                claims = [Claim(self._job(row[:9]), row[9], worker, until) for row in rows]
                if claims and within is not None:
                    within(claims)
            if claims:
                return claims, self._glance(kinds)[1] if len(rows) < limit else None
            _, due = self._glance(kinds)
            if due is None or due > now:
                return [], due

    def _glance(self, kinds: Sequence[str] | None) -> tuple[int, float | None]:
        """True if a job is ready, and when the next is due. Does not take the write lock."""
        if kinds is None:
            anything, due = self._rows("glance")[0]
        else:
            anything, due = self._rows("glance_kinds", kinds=json.dumps(kinds))[0]
        return anything, due

    def left(self, kinds: Sequence[str]) -> tuple[str | None, float | None]:
        """One of these kinds that has a ready job, or None and when the next job is due."""
        found = self._rows("ready_kind", kinds=json.dumps(kinds))
        return (found[0][0], None) if found else (None, self._glance(kinds)[1])

    def _claim(
        self, kinds: Sequence[str] | None, worker: str, limit: int, until: float
    ) -> list[tuple[Any, ...]]:
        chosen = [k for (k,) in self._rows("ready_kinds")] if kinds is None else kinds
        if not chosen:
            return []
        values: dict[str, Any] = {
            "queue": self._queue, "limit": limit, "until": until, "worker": worker,
        }  # fmt: skip
        if len(chosen) > MOST_KINDS:
            arms = self._sql["claim_arm_many"]
            values["kinds"] = json.dumps(chosen)
        else:
            arm = self._sql["claim_arm"]
            arms = " UNION ALL ".join(arm.replace("{n}", str(n)) for n in range(len(chosen)))
            values |= {f"kind_{n}": kind for n, kind in enumerate(chosen)}
        statement = self._sql["claim"].replace("{arms}", arms)
        return self.connect().execute(statement, values).fetchall()

    def settle(self, settlements: Sequence[Settlement], now: float, keep: bool) -> list[str]:
        """Settle the claims that are still valid and return the ids of the others."""
        by_action: dict[str, list[list[Any]]] = {"done": [], "retry": [], "dead": []}
        for s in settlements:
            row: list[Any] = [number_of(s.claim.job.id), s.claim.token]
            if s.action == "retry":
                row += [s.delay, s.error, s.counted]
            elif s.action == "dead":
                row.append(s.error)
            by_action[s.action].append(row)
        settled: list[tuple[Any, ...]] = []
        names = {"done": "settle_kept" if keep else "settle_done"}
        with transaction(self.connect()):
            for action, batch in by_action.items():
                if batch:
                    name = names.get(action, f"settle_{action}")
                    settled += self._rows(name, batch=json.dumps(batch), now=now)
        return _missing((s.claim for s in settlements), settled)

    def renew(self, now: float, claims: Sequence[Claim], lease: float) -> list[str]:
        batch = json.dumps([[number_of(c.job.id), c.token, c.worker] for c in claims])
        with transaction(self.connect()):
            held = self._rows("renew", batch=batch, until=now + lease)
        return _missing(claims, held)

    def stats(self, now: float) -> Stats:
        counts = dict.fromkeys(STATES, 0)
        ages = []
        for code, count, first in self._rows("stats", now=now):
            counts[STATES[code]] += count
            if first is not None:
                ages.append(max(now - first, 0.0))
        return Stats(**counts, oldest_age=max(ages, default=None))

    def get(self, now: float, job_id: str) -> JobInfo | None:
        number = number_of(job_id)
        page = self._page(now=now, state=None, kind=None, limit=1, after=number - 1, last=number)
        return page[0] if page else None

    def list_jobs(
        self, now: float, state: State | None, kind: str | None, limit: int, after: str | None
    ) -> list[JobInfo]:
        code = None if state is None else _CODES[state]
        place = place_after(after)
        return self._page(now=now, state=code, kind=kind, limit=limit, after=place, last=_SEQ_MAX)

    def _page(self, **values: Any) -> list[JobInfo]:
        rows = self._rows("list", **values)
        return [JobInfo(self._job(row[:9]), STATES[row[9]], *row[10:]) for row in rows]

    def retry(self, now: float, ids: Sequence[str] | None) -> int:
        connection = self.connect()
        with transaction(connection):
            dead = self._rows("dead_ids", batch=_id_batch(ids))
            # One at a time, so that two jobs of one key see each other.
            for (seq,) in dead:
                connection.execute(self._sql["retry"], {"seq": seq, "now": now})
        return len(dead)

    def drop(self, ids: Sequence[str] | None) -> int:
        with transaction(self.connect()):
            return len(self._rows("drop", batch=_id_batch(ids)))

    def prune(self, now: float, keep: float) -> int:
        with transaction(self.connect()):
            return len(self._rows("prune", before=now - keep, most=MOST_AT_ONCE))

    def _job(self, row: tuple[Any, ...]) -> Job:
        seq, kind, payload, key, priority, attempt, created_at, run_at, unique = row
        # RETURNING returns whole REALs as int.
        return Job(
            str(seq), self._queue, kind, json.loads(payload), key, priority, attempt,
            float(created_at), float(run_at), unique,
        )  # fmt: skip


def _missing(claims: Iterable[Claim], rows: list[tuple[Any, ...]]) -> list[str]:
    """The ids of those claims whose (seq, token) is not among the rows."""
    found = set(rows)
    return [claim.job.id for claim in claims if (number_of(claim.job.id), claim.token) not in found]


def _id_batch(ids: Sequence[str] | None) -> str | None:
    return None if ids is None else json.dumps([number_of(job_id) for job_id in ids])
