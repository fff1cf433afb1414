"""The SQLite side of `SqliteQueue`: plain calls on one connection, made from one thread.

A batch is one transaction and, for claims and settlements, one statement.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pollwise.queues.base import ClaimRequest
from pollwise.queues.flows.view import FlowJob
from pollwise.queues.limits.plan import counted
from pollwise.queues.limits.record import KindLimits
from pollwise.queues.notes import without_paused
from pollwise.queues.record import (
    Examined,
    encoded_progress,
    endings_from,
    info_from,
    job_from,
    listed_from,
    number_in,
    sort_claims,
)
from pollwise.queues.sqlite.flows import SqliteFlows
from pollwise.queues.sqlite.limits.claims import Chosen
from pollwise.queues.sqlite.limits.kinds import ReadyKinds
from pollwise.queues.sqlite.notes import SqliteNotes
from pollwise.queues.sqlite.pages import SqlitePages, with_columns
from pollwise.queues.unique import WAITING, check_replaced, check_twin
from pollwise.queues.viewed import DEAD
from pollwise.queues.views import COUNTED_MAX, JobFilter, JobPage, Stats
from pollwise.queues.waiting import JobEnding
from pollwise.runtime.jobs import (
    ERRORS_KEPT,
    STATES,
    Claim,
    JobInfo,
    NewJob,
    Progress,
    Renewal,
    Settlement,
    State,
    worker_of_lapse,
)
from pollwise.runtime.store import PRUNE_SLICE
from pollwise.storage.ids import number_of, place_after
from pollwise.storage.sqlite.file import snapshot, transaction

#: The maximum number of jobs that one claim makes ready; it limits how long the lock is held.
MOST_AT_ONCE = 1000

_SEQ_MAX = 2**63 - 1
_CODES: dict[str, int] = {state: code for code, state in enumerate(STATES)}
_DONE, _CANCELLED = _CODES["done"], _CODES["cancelled"]
#: For a page of one state, the condition of the index that holds such jobs.
#: The error that each statement adds, and its time.
_ERRORS = {
    "promote": ("CASE state WHEN 3 THEN 'the lease of ' || worker || ' ran out' END", "since"),
    "settle_end": ("json_extract(b.value, '$[3]')", ":now"),
    "settle_again": ("json_extract(b.value, '$[3]')", ":now"),
}


class SqliteStore(SqliteNotes):
    """The jobs of one queue in a file."""

    def __init__(
        self,
        path: Path,
        queue: str,
        *,
        synchronous: str,
        create: bool,
        keep: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(path, queue, synchronous=synchronous, create=create)
        self._keep = keep
        self._clock = clock
        self._examined = {state: Examined() for state in ("done", "cancelled")}
        self._sql = dict(self._sql)
        for name, (error, at) in _ERRORS.items():
            added = self._sql["with_error"].replace("{error}", error).replace("{at}", at)
            self._sql[name] = self._sql[name].replace("{with_error}", added)
        put = self._sql["put"]
        for name, column, value in (
            ("put", "", ""),
            ("put_grouped", ", limit_group", ", :limit_group"),
        ):
            self._sql[name] = put.replace("{column}", column).replace("{value}", value)
        self._sql |= with_columns(self._sql)
        #: The limited kinds that are claimed for free handlers, as the last claim saw them.
        self.limited: frozenset[str] = frozenset()
        self._kinds = ReadyKinds(self._rows, self._sql["claim_arm"])
        self._pages = SqlitePages(self.connect, self._sql, queue)
        self.flows: SqliteFlows = SqliteFlows(self._rows, self._many, queue, keep)

    # Jobs

    def put(self, now: float, jobs: Sequence[NewJob]) -> tuple[list[str], int]:
        connection = self.connect()
        if len(jobs) == 1 and jobs[0].unique is None and jobs[0].limit_group is None:
            # One statement is a transaction by itself.
            return [str(self._put_one(self._values(jobs[0], now)).lastrowid)], 1
        ids, fresh, grouped = [], 0, False
        linked = any(job.place is not None for job in jobs)
        with transaction(connection):
            for job in jobs:
                if job.replace and (replaced := self._replaced(job, now)) is not None:
                    ids.append(replaced)
                    fresh += 1
                    continue
                values = self._values(job, now)
                grouped = grouped or values["limit_group"] is not None
                cursor = self._put_one(values)
                if cursor.rowcount:
                    ids.append(str(cursor.lastrowid))
                    fresh += 1
                else:
                    ids.append(self._twin(job))
            if linked:
                self.flows.link(jobs, ids)
            if grouped:
                self._rows("limit_put", batch=json.dumps([int(each) for each in ids]))
        return ids, fresh

    def _put_one(self, values: Mapping[str, Any]) -> sqlite3.Cursor:
        statement = self._sql["put" if values["limit_group"] is None else "put_grouped"]
        return self.connect().execute(statement, values)

    def _values(self, job: NewJob, now: float) -> dict[str, Any]:
        return {
            "queue": self._queue,
            "kind": job.kind,
            "payload": job.encoded,
            "priority": job.priority,
            "run_at": job.due_at(now),
            "now": now,
            "key": job.key if job.place is None or not job.place.after else None,
            "unique": job.unique,
            "headers": job.encoded_headers,
            "limit_group": job.limit_group,
        }

    def _replaced(self, job: NewJob, now: float) -> str | None:
        """Replace the job that has a `unique`, if it waits; else take its `unique`."""
        found = self._rows("holder", unique=job.unique)
        if not found:
            return None
        seq, kind, key, state = found[0]
        check_replaced(job, seq, kind, key)
        if STATES[state] not in WAITING:
            self._rows("give_up_unique", seq=seq)
            return None
        self._rows("replace", **self._values(job, now), seq=seq)
        return str(seq)

    def _twin(self, job: NewJob) -> str:
        seq, kind, payload = self._rows("twin", unique=job.unique)[0]
        check_twin(job, seq, kind, payload)
        return str(seq)

    def claim(self, asked: ClaimRequest, now: float) -> tuple[list[Claim], float | None]:
        """The claims; and, if no more are ready, when the next job is due."""
        self._kinds.go_on()
        worker, kinds, until = asked.worker, asked.kinds, now + asked.lease
        anything, due, suspects, paused, limited = self._glance(kinds)
        if not limited:
            self.limited = frozenset()
        if paused and anything:
            anything = self._glance(self._without_paused(kinds))[0]
        if not anything and (due is None or due > now):
            return [], due
        values = {"worker": worker, "now": now, "until": until, "ahead": asked.ahead}
        while True:
            rows: list[tuple[Any, ...]] = []
            with transaction(self.connect()):
                if due is not None and due <= now:
                    suspects = self._promote(now) or suspects
                wanted = self._without_paused(kinds) if paused else kinds
                limits = self._limits_of(wanted) if limited else {}
                again = None
                if limits:
                    now = max(self._clock(), now)  # it may have waited for the lock
                    until = now + asked.lease
                    values |= {"now": now, "until": until}
                    chosen = self._choose(limits, wanted, asked.limit, suspects, now)
                    suspect, again = chosen.suspect, chosen.again
                    rows = self._claim_chosen(chosen.seqs, [*limits], suspect, values)
                else:
                    if suspects:
                        rows = self._claim_suspect(wanted, values)
                    suspect = bool(rows)
                    if not suspect:
                        rows = self._claim(wanted, asked.limit, values)
                sort_claims(rows)
                claims = [
                    Claim(
                        job_from(row, self._queue), row[10], worker, until, "", suspect,
                        len(row[2]), worker_of_lapse(row[11]) if row[11] else "",
                    )
                    for row in rows
                ]  # fmt: skip
                due = None
                if len(rows) < asked.limit and not suspect:
                    times = (self._glance(kinds)[1], again)
                    due = min((at for at in times if at is not None), default=None)
            if claims or due is None or due > now:
                return claims, due

    def _promote(self, now: float) -> bool:
        """Make due jobs ready; True if there were any."""
        any_moved = False
        while True:
            moved = self._rows("promote", now=now, most=MOST_AT_ONCE, errors_kept=ERRORS_KEPT)
            any_moved |= bool(moved)
            cancelled = [seq for seq, state in moved if state == _CANCELLED]
            if not cancelled:
                return any_moved
            self._after_cancel(now, cancelled)  # jobs that their keys blocked may be due as well

    def _after_cancel(self, now: float, cancelled: list[int]) -> None:
        """Cancel jobs that waited for these, and delete these if they are not kept."""
        if cancelled:
            batch = json.dumps(cancelled)
            self.flows.cancelled(now, batch)
            if self._keep is None:
                self._rows("forget", batch=batch)

    def _glance(self, kinds: Sequence[str] | None) -> tuple[int, float | None, int, int, int]:
        """Return if a job is ready, when the next is due, if there may be suspects, if anything is
        paused, and if anything is limited.

        Does not take the write lock.
        """
        if kinds is None:
            [row] = self._rows("glance")
        else:
            [row] = self._rows("glance_kinds", kinds=json.dumps(kinds))
        anything, due, suspects, paused, limited = row
        if type(due) is not float and due is not None:
            due = float(number_in(due)) or None  # text in a row that came from elsewhere
        return anything, due, suspects, paused, limited

    def _without_paused(self, kinds: Sequence[str] | None) -> list[str]:
        """The kinds to claim that are not paused; without kinds, all that have ready jobs."""
        paused = {note.name for note in self.read_notes(0.0, ["pauses"])}
        if kinds is None:
            kinds = self._kinds.names()
        return without_paused(kinds, paused)

    def _claim_suspect(
        self, kinds: Sequence[str] | None, values: dict[str, Any]
    ) -> list[tuple[Any, ...]]:
        statement = (
            self._sql["claim"].replace("{arms}", self._sql["suspects"]).replace("{more}", "")
        )
        wanted = None if kinds is None else json.dumps(kinds)
        values = {**values, "queue": self._queue, "kinds": wanted, "limit": 1, "ahead": False}
        return self.connect().execute(statement, values).fetchall()

    def _claim(
        self, kinds: Sequence[str] | None, limit: int, values: dict[str, Any]
    ) -> list[tuple[Any, ...]]:
        chosen = self._kinds.names() if kinds is None else kinds
        claimed: list[tuple[Any, ...]] = []
        while chosen:
            arms, more = self._kinds.arms(chosen)
            values = {**values, **more, "queue": self._queue, "limit": limit - len(claimed)}
            statement = self._sql["claim"].replace("{arms}", arms).replace("{more}", "")
            found = self.connect().execute(statement, values).fetchall()
            claimed += found
            if len(claimed) == limit or not self._kinds.are_many(chosen):
                break
            if not found:
                if kinds is not None:
                    break
                self._kinds.go_on()
                chosen = self._kinds.names()
        return claimed

    # Limits

    def _limits_of(self, wanted: Sequence[str] | None) -> dict[str, KindLimits]:
        """The limits of those wanted kinds that have some."""
        limits = self._limits.read()
        self.limited = counted(limits)
        chosen = self._kinds.names() if wanted is None else wanted
        return {kind: limits[kind] for kind in chosen if kind in limits}

    def _choose(
        self,
        limits: Mapping[str, KindLimits],
        wanted: Sequence[str] | None,
        most: int,
        suspects: int,
        now: float,
    ) -> Chosen:
        kinds = self._kinds.names() if wanted is None else wanted

        def others() -> list[tuple[int, float, int]]:
            free = [kind for kind in kinds if kind not in limits]
            if not free:
                return []
            arms, values = self._kinds.arms(free)
            statement = self._sql["best_of_arms"].replace("{arms}", arms)
            values |= {"queue": self._queue, "limit": most}
            return self.connect().execute(statement, values).fetchall()

        return self._limits.choose(limits, others, kinds, most, now, suspects=bool(suspects))

    def _claim_chosen(
        self, seqs: list[int], limited: list[str], suspect: bool, values: dict[str, Any]
    ) -> list[tuple[Any, ...]]:
        if not seqs:
            return []
        statement = self._sql["claim"].replace("{arms}", self._sql["chosen"])
        statement = statement.replace("{more}", self._sql["claim_group"])
        values = {**values, "batch": json.dumps(seqs), "limited": json.dumps(limited), "limit": -1}
        if suspect:
            values["ahead"] = False
        return self.connect().execute(statement, values).fetchall()

    # Ends of claims

    def settle(self, now: float, settlements: Sequence[Settlement]) -> list[str]:
        """Settle the claims that are still valid and return the ids of the others."""
        by_statement: dict[str, list[list[Any]]] = {}
        for s in settlements:
            row: list[Any] = [number_of(s.claim.job.id), s.claim.token]
            if s.action in ("retry", "give_back"):
                name = "settle_again"
                row += [s.delay, s.error, s.action == "retry"]
            elif s.action == "dead" or self._keep is not None or s.keep is not None:
                name = "settle_end"
                row += [_CODES[s.action], s.failure, s.result, s.outlasting(self._keep)]
            else:
                name = "settle_done"
            by_statement.setdefault(name, []).append(row)
        settled: set[tuple[int, int]] = set()
        flows: set[str | None] = set()
        with transaction(self.connect()):
            while by_statement:
                name, batch = by_statement.popitem()
                rows = self._rows(
                    name,
                    batch=json.dumps(batch),
                    now=now,
                    errors_kept=ERRORS_KEPT,
                    keep=self._keep is not None,
                    flow_kept=self.flows.kept,
                )
                settled |= {row[:2] for row in rows}
                if name == "settle_again":
                    again = [row[0] for row in rows if row[2] == _CANCELLED]
                    self._after_cancel(now, again)
                elif name == "settle_end":
                    flows |= {row[2] for row in rows}
                elif len(rows) < len(batch):  # lost, or kept for others of a flow
                    ends = {_place(s.claim): s for s in settlements}
                    left = [
                        [*at, _CODES[ends[at].action], ends[at].failure, ends[at].result, None]
                        for at in map(tuple, batch)
                        if at not in settled
                    ]
                    by_statement["settle_end"] = [*by_statement.get("settle_end", ()), *left]
            self.flows.ended(now, {flow for flow in flows if flow is not None})
        if len(settled) == len(settlements):
            return []
        return [s.claim.job.id for s in settlements if _place(s.claim) not in settled]

    def renew(
        self, now: float, claims: Sequence[Claim], lease: float, progress: Mapping[str, Progress]
    ) -> Renewal:
        batch = [
            [*_place(c), c.worker, encoded_progress(progress.get(c.job.id), now)] for c in claims
        ]
        with transaction(self.connect()):
            rows = self._rows("renew", batch=json.dumps(batch), until=now + lease)
            rows += self._limits.take_back(batch, rows, now + lease)
        cancel = {row[:2]: row[2] for row in rows}
        return Renewal(
            tuple(c.job.id for c in claims if _place(c) not in cancel),
            tuple(c.job.id for c in claims if cancel.get(_place(c))),
        )

    def cancel(self, now: float, ids: Sequence[str]) -> dict[str, State]:
        batch = _id_batch(ids)
        with transaction(self.connect()):
            ended = [seq for (seq,) in self._rows("cancel_waiting", batch=batch, now=now)]
            self._rows("cancel_leased", batch=batch)
            states = dict(self._rows("states", batch=batch))
            self._after_cancel(now, ended)
        numbers = {job_id: number_of(job_id) for job_id in ids}
        return {job_id: STATES[states[n]] for job_id, n in numbers.items() if n in states}

    def stats(self, now: float, most: int = COUNTED_MAX) -> Stats:
        return self._pages.stats(now, most)

    def stats_by_kind(
        self, now: float, most: int = COUNTED_MAX, ready_most: int | None = None
    ) -> dict[str, Stats]:
        return self._pages.stats_by_kind(now, most, ready_most or most)

    def page(self, now: float, chosen: JobFilter) -> JobPage:
        return self._pages.page(now, chosen)

    def page_ids(self, now: float, chosen: JobFilter) -> tuple[list[str], str | None]:
        return self._pages.ids(now, chosen)

    def names(self) -> list[str]:
        return self._pages.names()

    def get(self, now: float, job_id: str) -> JobInfo | None:
        number = number_of(job_id)
        rows = self._rows("get", now=now, after=number - 1, before=number + 1, limit=1)
        return info_from(rows[0], self._queue) if rows else None

    def endings(self, now: float, ids: Sequence[str]) -> dict[str, JobEnding | None]:
        rows = self._rows("endings", batch=_id_batch(ids), now=now)
        return endings_from(rows, ids)

    def arrivals(self, now: float, chosen: JobFilter) -> list[JobInfo]:
        after = place_after(chosen.after)
        rows = self._rows("arrivals", now=now, after=after, before=_SEQ_MAX, limit=chosen.limit)
        return [listed_from(row, self._queue) for row in rows]

    def retry(self, now: float, ids: Sequence[str] | None) -> int:
        connection = self.connect()
        with transaction(connection):
            name = "dead_ids" if ids is None else "ended_ids"
            ended = self._rows(name, batch=_id_batch(ids))
            # One at a time, so that two jobs of one key see each other.
            for (seq,) in ended:
                connection.execute(self._sql["retry"], {"seq": seq, "now": now})
        return len(ended)

    def drop(self, now: float, ids: Sequence[str] | None, states: Sequence[State] = DEAD) -> int:
        codes = json.dumps([_CODES[state] for state in states])
        with transaction(self.connect()):
            if ids is None:
                dropped = self._rows("drop_dead")
            else:
                dropped = self._rows("drop", batch=_id_batch(ids), states=codes)
            self.flows.ended(now, {flow for _, flow in dropped if flow is not None})
        return len(dropped)

    def prune(self, now: float, keep: float | None) -> int:
        with transaction(self.connect()):
            self.flows.sweep(now)
            self._limits.prune(now)
            count = len(self._rows("expire", now=now, most=PRUNE_SLICE))
            for state, examined in () if keep is None else self._examined.items():
                before, most = now - (keep or 0.0), max(PRUNE_SLICE - count, 0)
                span = {"state": _CODES[state], "before": before}
                ended = self._rows("prune", now=now, most=most, start=examined.next, **span)
                if len(ended) == most:
                    examined.pause([since for _, since in ended])
                else:
                    examined.end(now, before)
                count += len(ended)
            return count

    def predecessors(self, now: float, job_id: str) -> list[tuple[str, JobEnding | None]]:
        with snapshot(self.connect()):
            return self.flows.predecessors(now, job_id)

    def flow(self, now: float, job_id: str, most: int) -> list[FlowJob]:
        with snapshot(self.connect()):
            return self.flows.flow(now, job_id, most)

    def _many(self, name: str, values: list[dict[str, Any]]) -> None:
        self.connect().executemany(self._sql[name], values)


def _place(claim: Claim) -> tuple[int, int]:
    return number_of(claim.job.id), claim.token


def _id_batch(ids: Sequence[str] | None) -> str | None:
    return None if ids is None else json.dumps([number_of(job_id) for job_id in ids])
