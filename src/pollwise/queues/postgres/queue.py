"""A queue in Postgres: for many machines, in a database that you already have.

The work is done by functions in the schema, created by `migrate`: a claim, the settlement of a
batch and the put of a batch are each one statement, one transaction and one round trip. The
server's clock decides about leases and delays. Hints travel by NOTIFY, in the transaction of the
put itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from pollwise.durations import Duration
from pollwise.errors import ConfigError, MissingExtra, PayloadError
from pollwise.queues.base import MAX_PAYLOAD_BYTES, Capabilities, Queue, Stats, claim_of
from pollwise.queues.unique import check_twin
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import (
    ACTIONS,
    STATES,
    Claim,
    Job,
    JobInfo,
    NewJob,
    Settlement,
    State,
    same_payload,
)
from pollwise.storage.ids import number_of, place_after
from pollwise.storage.in_doubt import InDoubt

try:
    import psycopg
except ImportError as error:  # also raised if psycopg is installed without libpq
    raise MissingExtra("a queue on Postgres", "postgres") from error

from pollwise.storage.postgres.database import Database
from pollwise.storage.postgres.errors import refused_here
from pollwise.storage.postgres.params import (
    PUT_TYPES,
    Param,
    flag,
    flags,
    number,
    numbers,
    on_connection,
    text,
    texts,
    unless_all,
)
from pollwise.storage.postgres.schema import TableSet
from pollwise.storage.postgres.work_store import PostgresWorkStore

TABLES = TableSet(__package__, "migrations", "pollwise queue migrate URL", "queue")

#: The maximum bytes of payloads in one put: Postgres has no values above 1 GB.
BATCH_BYTES_MAX = 256 * 1024 * 1024
_SEQ_MAX = 2**63 - 1


class PostgresQueue(PostgresWorkStore[Claim, Settlement], Queue):
    """Jobs in a schema of a Postgres database. `await queue.migrate()` creates the schema.

    conninfo: as libpq takes it: a URL, or `host=… dbname=…`.
    schema: where the tables are; it may hold many queues.
    listen: a conninfo for hints, if `conninfo` goes through a pooler that swallows LISTEN.
    timeout: how long a call may take; a longer one fails and is cancelled at the server.
    connections: the maximum number; further calls wait for their turn.
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
        self.database = Database(
            conninfo,
            TABLES,
            name,
            schema=schema,
            timeout=timeout,
            connections=connections,
            clock=clock,
        )
        self._listen = self.database.listening(listen)
        self._in_doubt = InDoubt(claim_of)
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
        batch = self._checked_jobs(jobs)
        if not batch:
            return []
        hint = self._channel.message(len(batch), {job.kind for job in batch}, later=True)
        ids, _ = await self._put_all(batch, hint, connection)
        return ids

    async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        kinds = {job.kind for job in jobs}
        message = self._channel.ride(len(jobs), kinds)
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
        while True:
            params = self._put_params(jobs, encoded, message, alone=connection is None)
            if connection is None:
                [row] = await self.database.rows("put", params)
            else:
                with self.clock.outside(), refused_here(self.url, TABLES.advice):
                    row = await on_connection(
                        connection, self.database.sql["put"], PUT_TYPES, params
                    )
            ids, fresh, place, seq, kind, payload = row
            if place is None:
                return ids.split(","), fresh
            job = jobs[place - 1]
            check_twin(job, seq, kind, payload)
            for at, other in enumerate(jobs):  # the same JSON, written differently: use the stored
                if other.unique == job.unique and same_payload(payload, other.encoded):
                    encoded[at] = payload

    def _put_params(
        self, jobs: Sequence[NewJob], encoded: Sequence[str], message: str | None, *, alone: bool
    ) -> list[Param]:
        return [
            text(self.name),
            texts([job.kind for job in jobs]),
            texts(encoded),
            unless_all(0, [job.priority for job in jobs], numbers),
            unless_all(0.0, [job.delay for job in jobs], numbers),
            unless_all(None, [job.run_at for job in jobs], numbers),
            unless_all(None, [job.key for job in jobs], texts),
            unless_all(None, [job.unique for job in jobs], texts),
            flag(alone),
            text(self._transport.channel),
            text(message),
            self.database.now(),
        ]

    async def _claim(
        self, worker: str, limit: int, lease: float, hold: float, kinds: Sequence[str] | None
    ) -> list[Claim]:
        rows = await self._claimed(
            [
                text(self.name),
                text(worker),
                number(limit),
                number(lease),
                None if kinds is None else texts(kinds),
                text(self._transport.channel),
                text(self._channel.check()),
                self.database.now(),
            ],
        )
        rows.sort(key=_in_order)
        queue, load = self.name, json.loads
        return [
            Claim(Job(str(row[0]), queue, row[1], load(row[2]), *row[3:9]), row[9], worker, row[10])
            for row in rows
        ]

    async def _settle(self, settlements: list[Settlement]) -> list[str]:
        # In the order of the rows, as all calls lock them, so that there is no deadlock.
        batch = sorted(settlements, key=lambda s: _row(s.claim))
        plain = all(s.action == "done" for s in batch)
        params = [
            text(self.name),
            numbers([number_of(s.claim.job.id) for s in batch]),
            numbers([s.claim.token for s in batch]),
            None if plain else numbers([ACTIONS.index(s.action) for s in batch]),
            None if plain else numbers([s.delay for s in batch]),
            None if plain else texts([s.error for s in batch]),
            None if plain else flags([s.counted for s in batch]),
            flag(any(s.claim.job.key is not None for s in batch)),
            flag(self.keep is not None),
            self.database.now(),
        ]
        with self._in_doubt.unless_answered(batch):
            (lost,) = await self._settled(batch, params)
            refused = await self._not_settled([batch[place - 1] for place in lost or ()])
        self.database.sweep(len(batch))
        self._in_doubt.answered(batch)
        if not refused:
            return []
        gone = {_row(s.claim) for s in refused}
        return [s.claim.job.id for s in settlements if _row(s.claim) in gone]

    async def _not_settled(self, refused: Sequence[Settlement]) -> Sequence[Settlement]:
        """The refused settlements, without those that an earlier call had carried out.

        A settlement leaves the token one higher, or, when done, no row. A claim by another worker
        leaves the time of that claim as the token.
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
                return settlement.action == "done"
            return bool(tokens[seq] == token + 1)

        return [s for s in refused if not settled(s)]

    async def _renew(self, claims: list[Claim], lease: float) -> list[str]:
        # Each once, and in the order of the rows, as all calls lock them.
        held = {_row(claim): claim.worker for claim in claims}
        batch = sorted(held)
        [(places,)] = await self.database.rows(
            "renew",
            [
                text(self.name),
                numbers([seq for seq, _ in batch]),
                numbers([token for _, token in batch]),
                texts([held[each] for each in batch]),
                number(lease),
                self.database.now(),
            ],
            safe=True,
        )
        lost = {batch[place - 1] for place in places or ()}
        return [claim.job.id for claim in claims if _row(claim) in lost]

    # Views and dead jobs

    async def stats(self) -> Stats:
        counts = dict.fromkeys(STATES, 0)
        ages = []
        for code, count, age in await self.database.rows(
            "stats", [text(self.name), self.database.now()], safe=True
        ):
            counts[STATES[code]] += count
            if age is not None:
                ages.append(max(age, 0.0))
        return Stats(**counts, oldest_age=max(ages, default=None))

    async def get(self, job_id: str) -> JobInfo | None:
        seq = number_of(job_id)
        page = await self._page(seq - 1, seq, None, None, 1)
        return page[0] if page else None

    async def _list_jobs(
        self, state: State | None, kind: str | None, limit: int, after: str | None
    ) -> list[JobInfo]:
        return await self._page(place_after(after), _SEQ_MAX, state, kind, limit)

    async def _page(
        self, after: int, last: int, state: State | None, kind: str | None, limit: int
    ) -> list[JobInfo]:
        params = [text(self.name), number(after), number(last), text(kind), number(limit)]
        if state == "dead":
            rows = await self.database.rows("list_dead", params, safe=True)
        else:
            code = None if state is None else number(STATES.index(state))
            rows = await self.database.rows("list", [*params, code, self.database.now()], safe=True)
        queue = self.name
        return [
            JobInfo(
                Job(str(row[0]), queue, row[1], json.loads(row[2]), *row[3:9]),
                STATES[row[9]],
                *row[10:],
            )
            for row in rows
        ]

    async def _retry(self, ids: Sequence[str] | None) -> int:
        return await self._count("retry", _seqs(ids), self.database.now())

    async def _drop(self, ids: Sequence[str] | None) -> int:
        return await self._count("drop", _seqs(ids))


def _row(claim: Claim) -> tuple[int, int]:
    """The row that a claim holds, and its token."""
    return number_of(claim.job.id), claim.token


def _in_order(row: tuple[Any, ...]) -> tuple[int, float, int]:
    """The sort key of claims: priority, then due time, then put order."""
    return -row[4], row[7], row[0]


def _seqs(ids: Sequence[str] | None) -> Param:
    return None if ids is None else numbers([number_of(job_id) for job_id in ids])
