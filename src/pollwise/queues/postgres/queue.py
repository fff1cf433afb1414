"""A queue in Postgres: for many machines, in a database that you already have.

The work is done by functions in the schema, created by `migrate`: a claim, the settlement of a
batch and the put of a batch are each one statement, one transaction and one round trip. The
server's clock decides about leases and delays. Hints travel by NOTIFY, in the transaction of the
put itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pollwise.durations import Duration
from pollwise.errors import ConfigError, MissingExtra, PayloadError, SchemaError
from pollwise.queues.base import MAX_PAYLOAD_BYTES, ClaimRequest, Queue, claim_of
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.flows.view import FLOW_KEPT, FlowJob
from pollwise.queues.limits.record import KindLimits
from pollwise.queues.limits.use import LimitUse
from pollwise.queues.notes import (
    NewNote,
    Note,
    NoteWritten,
    ScheduleSwap,
    ScheduleSwapped,
    Topic,
)
from pollwise.queues.record import Examined, endings_from, info_from, job_from, listed_from
from pollwise.queues.unique import check_replaced, check_twin
from pollwise.queues.viewed import DEAD
from pollwise.queues.views import COUNTED_MAX, JobFilter, JobPage, Stats
from pollwise.queues.waiting import JobEnding
from pollwise.runtime.clock import Clock
from pollwise.runtime.decoding import same_payload
from pollwise.runtime.jobs import (
    ACTIONS,
    STATES,
    UNKNOWN_HEADERS,
    Claim,
    JobInfo,
    NewJob,
    Progress,
    Renewal,
    Settlement,
    State,
    worker_of_lapse,
)
from pollwise.runtime.rollups.rows import HistoryRange, HistoryRow
from pollwise.runtime.tracing import spans
from pollwise.storage.ids import number_of, place_after
from pollwise.storage.in_doubt import InDoubt

try:
    import psycopg
except ImportError as error:  # also raised if psycopg is installed without libpq
    raise MissingExtra("a queue on Postgres", "postgres") from error

from pollwise.queues.postgres.blocking import BlockingPuts
from pollwise.queues.postgres.flows import PostgresFlows, keeps_of
from pollwise.queues.postgres.limits import PostgresLimits
from pollwise.queues.postgres.notes import PostgresNotes
from pollwise.queues.postgres.pages import PostgresPages, with_arrivals
from pollwise.queues.postgres.puts import (
    TYPES,
    is_plain,
    more_params,
    one_params,
    put_params,
    statement_of,
)
from pollwise.runtime.store import PRUNE_SLICE
from pollwise.storage.postgres.database import Database
from pollwise.storage.postgres.errors import refused_here
from pollwise.storage.postgres.history import PostgresHistory
from pollwise.storage.postgres.params import (
    Param,
    flag,
    number,
    numbers,
    on_connection,
    text,
    texts,
    unless_all,
)
from pollwise.storage.postgres.schema import TableSet
from pollwise.storage.postgres.work_store import PostgresWorkStore
from pollwise.storage.sql import statements

#: Workers run without versions 6 to 11: history, views, schedules, puts that replace, limits and
#: flows.
TABLES = TableSet(
    f"{__package__}.tables",
    "migrations",
    "pollwise queue migrate URL",
    "queue",
    optional=(6, 7, 8, 9, 10, 11),
)

#: The maximum bytes of payloads in one put: Postgres has no values above 1 GB.
BATCH_BYTES_MAX = 256 * 1024 * 1024
_SEQ_MAX = 2**63 - 1


class PostgresQueue(PostgresWorkStore[Claim, Settlement], Queue):
    """Jobs in a schema of a Postgres database. `await queue.migrate()` creates the schema.

    conninfo: as libpq takes it: a URL, or `host=… dbname=…`.
    schema: where the tables are; it may hold many queues.
    listen: a conninfo for hints, if `conninfo` goes through a pooler that drops LISTEN.
    timeout: how long a call may take; a longer one fails and is cancelled at the server.
    connections: the maximum number of connections; further calls wait for a free one.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(hints="network")
    _hints_of_puts = True

    def __init__(
        self,
        conninfo: str,
        name: str = "default",
        *,
        schema: str = "pollwise",
        listen: str | None = None,
        timeout: Duration = "30s",
        connections: int = 4,
        clock: Clock | None = None,
        keep: Duration | None = None,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self.database: Database = Database(
            conninfo,
            TABLES,
            name,
            schema=schema,
            timeout=timeout,
            connections=connections,
            clock=clock,
            sql=with_arrivals(statements(TABLES.package)),
        )
        self._pages = PostgresPages(self.database, name)
        self._flows = PostgresFlows(self.database, name)
        self._listen = self.database.listening(listen)
        self._history = PostgresHistory(self.database, name)
        self._notes = PostgresNotes(self.database, name)
        self._limits = PostgresLimits(self.database, name)
        self._in_doubt = InDoubt(claim_of)
        self._blocking: BlockingPuts | None = None
        self._examined = Examined()
        super().__init__(
            name, clock=self.database.clock, keep=keep, max_payload_bytes=max_payload_bytes
        )

    # Jobs

    async def put(self, jobs: NewJob | Iterable[NewJob], *, connection: Any = None) -> list[str]:
        """Put jobs, all or none, and return their ids. Sends a hint to waiting workers.

        connection: your own psycopg connection, sync or async. The jobs join its open transaction:
            they appear when it commits, and do not if it is rolled back.
        """
        if connection is None:
            return await super().put(jobs)
        if not isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection)):
            raise ConfigError(
                f"connection = {type(connection).__name__} is not a psycopg connection; give a "
                "psycopg.Connection or a psycopg.AsyncConnection"
            )
        self.database.connections.check_open()
        batch = self.check_jobs(jobs)
        if not batch:
            return []
        hint = self._channel.message(len(batch), {job.kind for job in batch}, later=True)
        tracer = spans.tracer()
        if tracer is None:
            return (await self._put_all(self.sealed(batch), hint, connection))[0]
        span = self.send_span(tracer)
        with span.ended():
            ids, _ = await self._put_all(self.sealed(span.begin(batch)), hint, connection)
        span.end(ids)
        return ids

    async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        kinds = {job.kind for job in jobs}
        message = self._channel.ride(len(jobs), kinds)
        seq = None
        if message is None and is_plain(jobs):
            [(seq,)] = await self.database.rows("put_one", self._one_params(jobs[0]))
        if seq is not None:
            ids, fresh = [str(seq)], 1
        else:
            ids, fresh = await self._put_all(jobs, message, None)
        if fresh and message is None:
            self._channel.send_to_others(fresh, kinds)
        return ids, fresh

    async def _put_all(
        self, jobs: list[NewJob], message: str | None, connection: Any
    ) -> tuple[list[str], int]:
        size = sum(job.size for job in jobs)
        if size > BATCH_BYTES_MAX:
            raise PayloadError(
                f"the payloads of this batch have {size} bytes of JSON; Postgres takes at most "
                f"{BATCH_BYTES_MAX} at once, so split it"
            )
        encoded = [job.encoded for job in jobs]
        name = statement_of(jobs)
        more = more_params(name, jobs, self.keep)
        while True:
            params = self._put_params(jobs, encoded, message, alone=connection is None) + more
            if connection is None:
                [row] = await self.database.rows(name, params)
            else:
                statement = self.database.sql[name]
                with self.clock.outside(), refused_here(self.url, TABLES.advice):
                    row = await on_connection(connection, statement, TYPES[name], params)
            ids, fresh, place, seq, kind, payload, *key = row
            if place is None:
                return ids.split(","), fresh
            job = jobs[place - 1]
            if job.replace:
                if payload is None:
                    check_replaced(job, seq, kind, key[0])
                continue  # another call has just put it: replace that job
            check_twin(job, seq, kind, payload)
            for at, other in enumerate(jobs):  # the same JSON, written differently: use the stored
                if other.unique == job.unique and same_payload(payload, other.encoded):
                    encoded[at] = payload

    def put_here(self, jobs: list[NewJob], loop: asyncio.AbstractEventLoop) -> list[str] | None:
        if self._blocking is None:
            self._blocking = BlockingPuts(self, self._channel)
        return self._blocking.put(jobs, loop)

    async def close(self) -> None:
        if self._blocking is not None:
            self._blocking.close()
        await super().close()

    def _one_params(self, job: NewJob) -> list[Param]:
        return one_params(self.name, job, self.database.now())

    def _put_params(
        self, jobs: Sequence[NewJob], encoded: Sequence[str], message: str | None, *, alone: bool
    ) -> list[Param]:
        hint = self._transport.channel, message
        return put_params(self.name, jobs, encoded, hint, self.database.now(), alone=alone)

    async def _claim(self, asked: ClaimRequest) -> list[Claim]:
        rows, last = await self._claimed(
            [
                text(self.name),
                text(asked.worker),
                number(asked.limit),
                number(asked.lease),
                None if asked.kinds is None else texts(asked.kinds),
                flag(self.keep is not None),
                flag(asked.ahead),
                text(self._transport.channel),
                text(self._channel.check()),
                self.database.now(),
            ],
        )
        rows.sort(key=_in_order)
        self._limits.note(asked.kinds, last[1])
        self._limited = self._limits.limited
        worker, suspect, told = asked.worker, bool(last[5]), len(last) > 12
        return [
            Claim(
                job_from(row, self.name), row[10], worker, row[11], "", suspect, len(row[2]),
                worker_of_lapse(row[12]) if told and row[12] else "",
            )
            for row in rows
        ]  # fmt: skip

    async def _settle(self, settlements: list[Settlement]) -> list[str]:
        # In the order of the rows, as all calls lock them, so that there is no deadlock.
        batch = sorted(settlements, key=lambda s: _row(s.claim))
        plain = all(s.action == "done" for s in batch)
        keep = self.keep is not None
        keeps = unless_all(None, keeps_of(batch, self.keep), numbers)
        unknown = any(s.claim.job.headers is UNKNOWN_HEADERS for s in batch)
        params = [
            text(self.name),
            numbers([number_of(s.claim.job.id) for s in batch]),
            numbers([s.claim.token for s in batch]),
            None if plain else numbers([ACTIONS.index(s.action) for s in batch]),
            None if plain else unless_all(0.0, [s.delay for s in batch], numbers),
            None if plain else unless_all(None, [s.failure for s in batch], texts),
            unless_all(None, [s.result for s in batch], texts)
            if keep or keeps or unknown
            else None,
            keeps,
            flag(any(s.claim.job.key is not None for s in batch)),
            flag(keep),
            self.database.now(),
        ]
        name = "settle"
        if unknown:
            name = "settle_unknown"
            params += [number(self.keep or 0.0), number(FLOW_KEPT)]
        with self._in_doubt.unless_answered(batch):
            (lost,) = await self._settled(batch, params, name)
            refused = await self._not_settled([batch[place - 1] for place in lost or ()])
        self.database.sweep(len(batch))
        self._in_doubt.answered(batch)
        if not refused:
            return []
        gone = {_row(s.claim) for s in refused}
        return [s.claim.job.id for s in settlements if _row(s.claim) in gone]

    async def _not_settled(self, refused: Sequence[Settlement]) -> Sequence[Settlement]:
        """The refused settlements, without those that an earlier call had carried out.

        A settlement leaves the token one higher, or, when done or cancelled and not kept, no row.
        A claim by another worker leaves the time of that claim as the token.
        """
        doubted = [number_of(s.claim.job.id) for s in refused if s in self._in_doubt]
        if not doubted:
            return refused
        tokens = dict(await self.database.rows("tokens", [numbers(doubted)], safe=True))

        def settled(settlement: Settlement) -> bool:
            if settlement not in self._in_doubt:
                return False
            seq, token = _row(settlement.claim)
            if seq not in tokens:
                return settlement.action in ("done", "cancelled")
            return bool(tokens[seq] == token + 1)

        return [s for s in refused if not settled(s)]

    async def _renew(
        self, claims: list[Claim], lease: float, progress: Mapping[str, Progress]
    ) -> Renewal:
        # Each once, and in the order of the rows, as all calls lock them.
        held = {_row(claim): claim for claim in claims}
        batch = [held[row] for row in sorted(held)]
        news = [_encoded(progress.get(c.job.id)) for c in batch] if progress else None
        [(places,)] = await self.database.rows(
            "renew",
            [
                text(self.name),
                numbers([number_of(c.job.id) for c in batch]),
                numbers([c.token for c in batch]),
                texts([c.worker for c in batch]),
                None if news is None else texts(news),
                number(lease),
                self.database.now(),
            ],
            safe=True,
        )

        if not places:
            return Renewal()
        lost = {_row(batch[place - 1]) for place in places if place > 0}
        cancel = {_row(batch[-place - 1]) for place in places if place < 0}
        return Renewal(
            tuple(c.job.id for c in claims if _row(c) in lost),
            tuple(c.job.id for c in claims if _row(c) in cancel),
        )

    async def _cancel(self, ids: Sequence[str]) -> dict[str, State]:
        params = [text(self.name), _seqs(ids), flag(self.keep is not None), self.database.now()]
        states = dict(await self.database.rows("cancel", params))
        numbered = {job_id: number_of(job_id) for job_id in ids}
        return {job_id: STATES[states[n]] for job_id, n in numbered.items() if n in states}

    # Views and ended jobs

    async def stats(self, most: int = COUNTED_MAX) -> Stats:
        return await self._pages.stats(most)

    async def stats_by_kind(
        self, most: int = COUNTED_MAX, ready_most: int | None = None
    ) -> dict[str, Stats]:
        return await self._pages.stats_by_kind(most, ready_most or most)

    async def _page(self, chosen: JobFilter) -> JobPage:
        return await self._pages.page(chosen)

    async def _page_ids(self, chosen: JobFilter) -> tuple[list[str], str | None]:
        return await self._pages.ids(chosen)

    async def _names(self) -> list[str]:
        return await self._pages.names()

    async def _find(self, job_id: str) -> JobInfo | None:
        seq = number_of(job_id)
        rows = await self._between("get", seq - 1, seq + 1, 1)
        return info_from(rows[0], self.name) if rows else None

    async def _endings(self, ids: Sequence[str]) -> dict[str, JobEnding | None]:
        params = [text(self.name), _seqs(ids), self.database.now()]
        return endings_from(await self.database.rows("endings", params, safe=True), ids)

    async def _predecessors(self, job_id: str) -> list[tuple[str, JobEnding | None]]:
        return await self._flows.predecessors(job_id)

    async def _compensated(self, ids: Sequence[str] | None) -> list[str]:
        try:
            return await self._flows.compensated(ids)
        except SchemaError:  # tables before version 11
            return []

    async def _flow(self, job_id: str, most: int) -> list[FlowJob]:
        return await self._flows.flow(job_id, most)

    async def _arrivals(self, chosen: JobFilter) -> list[JobInfo]:
        rows = await self._between("arrivals", place_after(chosen.after), _SEQ_MAX, chosen.limit)
        return [listed_from(row, self.name) for row in rows]

    async def _between(
        self, name: str, after: int, before: int, limit: int
    ) -> list[tuple[Any, ...]]:
        limits = [number(after), number(before), number(limit)]
        params = [text(self.name), *limits, self.database.now()]
        return await self.database.rows(name, params, safe=True)

    async def _write_note(self, note: NewNote) -> NoteWritten:
        return await self._notes.write(note)

    async def _read_notes(self, topics: Sequence[Topic]) -> list[Note]:
        return await self._notes.read(topics)

    async def _swap_schedule(self, swap: ScheduleSwap) -> ScheduleSwapped:
        return await self._notes.swap_schedule(swap)

    async def _limit_use(self, limits: KindLimits, groups: int) -> LimitUse:
        return await self._limits.use(limits, groups)

    async def _read_history(self, ranges: Sequence[HistoryRange]) -> list[list[HistoryRow]]:
        return await self._history.read(ranges)

    async def _replace_history(self, old: Sequence[HistoryRow], new: Sequence[HistoryRow]) -> bool:
        return await self._history.replace(old, new)

    async def _retry(self, ids: Sequence[str] | None) -> int:
        return await self._count("retry", _seqs(ids), self.database.now())

    async def _drop(self, ids: Sequence[str] | None, states: Sequence[State] = DEAD) -> int:
        which = _seqs(ids), _codes(states)
        try:
            keep = flag(self.keep is not None)
            return await self._count("drop_linked", *which, keep, self.database.now())
        except SchemaError:  # tables before version 11
            return await self._count("drop", *which)

    async def _prune(self, keep: float | None) -> int:
        params = [text(self.name), None if keep is None else number(keep), self.database.now()]
        params.append(number(self._examined.next))
        [(kept, expired, now, linked, last)] = await self.database.rows("prune", params)
        if linked:
            await self.database.rows("unlink", [numbers(linked)])
        if kept >= PRUNE_SLICE:
            self._examined.pause([last])
            return int(kept) + int(expired)
        await self._limits.prune()
        if keep is not None:
            self._examined.end(now, now - keep)
        return int(kept) + int(expired)


def _encoded(progress: Progress | None) -> str | None:
    """`[fraction, note]`; the server adds the time."""
    if progress is None:
        return None
    return json.dumps([progress.fraction, progress.note], ensure_ascii=False)


def _row(claim: Claim) -> tuple[int, int]:
    """The row that a claim holds, and its token."""
    return number_of(claim.job.id), claim.token


def _in_order(row: tuple[Any, ...]) -> tuple[int, float, int]:
    """The sort key of claims: priority, then due time, then put order."""
    return -row[4], row[7], row[0]


def _codes(states: Sequence[State]) -> Param:
    return numbers([STATES.index(state) for state in states])


def _seqs(ids: Sequence[str] | None) -> Param:
    return None if ids is None else numbers([number_of(job_id) for job_id in ids])
