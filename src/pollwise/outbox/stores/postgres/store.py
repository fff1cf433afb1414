"""An outbox in the user's own Postgres database.

Functions in a schema, created by `migrate`, do the work: a claim, a settlement of a batch and a put
are each one statement and one round trip. Leases and retries use the server's clock. How the order
of a key is kept while transactions are open is explained in `0001_outbox.sql`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from pollwise.durations import Duration
from pollwise.errors import MissingExtra
from pollwise.outbox.records import (
    KEY_ACTIONS,
    RECORD_STATES,
    BlockedKey,
    HeldRecord,
    KeyClaim,
    KeySettlement,
    NewRecord,
    OutboxStats,
    RecordFilter,
    RecordInfo,
    RecordState,
    RelayInfo,
    claim_of,
    outbox_of,
    stored_record,
    why_waiting,
)
from pollwise.outbox.stores.base import RELAY_LIVE, OnDead, OutboxStore
from pollwise.outbox.stores.viewed import KEYS_EXAMINED, capped_stats
from pollwise.outbox.stores.walks import RecordWalk, WalkedOutbox, WalkedRow, with_shown
from pollwise.outbox.writers.common import OutboxTarget, batch_of, check_uniques, ids_of
from pollwise.queues.base import MAX_PAYLOAD_BYTES
from pollwise.queues.views import COUNTED_MAX
from pollwise.runtime.clock import Clock
from pollwise.runtime.rollups.rows import HistoryRange, HistoryRow
from pollwise.storage.ids import number_of, place_after
from pollwise.storage.in_doubt import InDoubt

try:
    import psycopg  # noqa: F401 - the modules below need it
except ImportError as error:  # also raised if libpq is missing
    raise MissingExtra("an outbox on Postgres", "postgres") from error

from pollwise.outbox.stores.postgres.identity import PostgresIdentity
from pollwise.storage.postgres.database import Database
from pollwise.storage.postgres.history import PostgresHistory, written_columns
from pollwise.storage.postgres.params import Param, flag, number, numbers, text, texts
from pollwise.storage.postgres.schema import TableSet, quoted
from pollwise.storage.postgres.work_store import PostgresWorkStore
from pollwise.storage.sql import statements

#: Relays run without version 4, the history.
TABLES = TableSet(
    __package__, "outbox_migrations", "pollwise outbox migrate URL", "outbox", optional=(4,)
)

#: The prefix of the tables' keys for records without a key.
_ALONE = "\x01"
#: The state of a key that waits for an open transaction.
_DELAYED = 1
#: The states of keys whose first record is in one of these states.
_KEY_STATES = {"waiting": 2, "leased": 3}


class PostgresOutboxStore(PostgresWorkStore[KeyClaim, KeySettlement], WalkedOutbox, OutboxStore):
    """Records in a Postgres database, in a schema that `await store.migrate()` creates.

    conninfo: the libpq connection string of the database that holds the user's data.
    schema: the schema of the tables; it can hold many outboxes and queues.
    listen: a conninfo for hints, if `conninfo` goes through a pooler that does not support LISTEN.
    timeout: how long a call may take; a longer one fails and is cancelled at the server.
    connections: the maximum number of connections; further calls wait.
    """

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
        on_dead: OnDead = "block",
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
            sql=_statements(),
            apart="claim",  # claims take turns anyway
        )
        self._listen = self.database.listening(listen)
        self._history = PostgresHistory(self.database, name)
        self._in_doubt = InDoubt(claim_of)
        self._identity = PostgresIdentity(self.database.conninfo, self.database.url)
        super().__init__(
            name,
            clock=self.database.clock,
            keep=keep,
            on_dead=on_dead,
            max_payload_bytes=max_payload_bytes,
        )

    def target(self) -> OutboxTarget:
        """For writers; the SQL function itself sends the hint of their transaction."""
        return OutboxTarget(
            "postgresql",
            self.name,
            self.url,
            schema=self.schema,
            now=self.clock.imposed,
            identity=self._identity,
        )

    # The relay's side

    async def _put(self, records: list[NewRecord]) -> list[str]:
        # Without a hint: it is sent separately, so that it does not delay the commits of others.
        params = [text(self.name), text(batch_of(records)), b"", self.database.now()]
        if all(each.plain for each in records):
            return [str(seq) for (seq,) in await self.database.rows("put", params)]
        uniques = [each.unique for each in records if each.unique is not None]
        taken = await self.database.rows("taken", [text(self.name), texts(uniques)], safe=True)
        check_uniques(records, taken)
        return ids_of(records, await self.database.rows("put_more", params))

    async def _claim(
        self, lane: str, relay: str, keys: int, per_key: int, lease: float
    ) -> list[KeyClaim]:
        rows, (*_, again, lanes) = await self._polled(
            "claim_lane" if lane else "claim",
            [
                text(outbox_of(self.name, lane)),
                text(relay),
                number(keys),
                number(per_key),
                number(lease),
                None if lane else text(self._channel.check()),
                self.database.now(),
            ],
        )
        if again is not None:
            self._hints.send_at(self.clock.now() + max(again, 0.0))
        if not lane:
            self.lanes: tuple[str, ...] = tuple(lanes.split("\n")) if lanes else ()
        rows.sort(key=itemgetter(1, 0))  # by key, then in order
        claims = [
            self._claim_of(lane, relay, list(each)) for _, each in groupby(rows, itemgetter(1))
        ]
        claims.sort(key=lambda claim: claim.records[0].row)
        return claims

    def _claim_of(self, lane: str, relay: str, rows: list[tuple[Any, ...]]) -> KeyClaim:
        key = None if rows[0][1][0] == _ALONE else rows[0][1]
        *_, lapses, token, until, _ = rows[0]
        records = tuple(
            HeldRecord(
                stored_record(origin or seq, self.name, kind, payload, key, headers, at),
                progress or "",
                retried,
                str(seq) if origin else "",
            )
            for seq, _, kind, payload, headers, at, progress, retried, _, _, _, origin in rows
        )
        return KeyClaim(key, token, relay, until, records, lapses, lane)

    async def _settle(self, lane: str, ends: list[KeySettlement]) -> list[KeyClaim]:
        # Sorted by key, as all calls lock them, to avoid deadlocks.
        batch = sorted(ends, key=lambda end: _line(end.claim))
        name = "settle_lane" if lane else "fan_out" if batch[0].lanes else "settle"
        params = self._settle_params(lane, batch)
        with self._in_doubt.unless_answered(batch):
            lost, more = await self._settled(batch, params, name)
        self.database.sweep(sum(end.done for end in batch))
        if more:
            self._more_behind(more)
        refused = await self._not_settled(lane, [batch[place - 1] for place in lost or ()])
        self._in_doubt.answered(batch)
        return [end.claim for end in refused]

    def _settle_params(self, lane: str, batch: Sequence[KeySettlement]) -> list[Param]:
        done, places, copies = [], [], []
        for place, end in enumerate(batch, 1):
            for at, held in enumerate(end.claim.records[: end.done]):
                done.append(held.copy or held.record.id)
                places.append(place)
                if end.lanes:
                    copies += [(held.row, place, *each) for each in end.lanes[at].items()]
        params: list[Param] = [
            text(outbox_of(self.name, lane)),
            texts([_line(end.claim) for end in batch]),
            numbers([end.claim.token for end in batch]),
            f"{{{','.join(done)}}}".encode(),
            numbers(places),
        ]
        if all(end.done == len(end.claim.records) for end in batch):
            params += [None] * 5
        else:
            params += [
                numbers([KEY_ACTIONS.index(end.action) for end in batch]),
                numbers([_next(end) for end in batch]),
                numbers([end.delay for end in batch]),
                texts([end.error for end in batch]),
                texts([end.progress for end in batch]),
            ]
        params.append(flag(self.on_dead == "block"))
        if batch[0].lanes:
            params += [
                numbers([row for row, *_ in copies]),
                numbers([place for _, place, *_ in copies]),
                texts([name for *_, name, _ in copies]),
                texts([progress for *_, progress in copies]),
            ]
        else:
            params.append(flag(self.keep is not None))
        return [*params, self.database.now()]

    async def _not_settled(
        self, lane: str, refused: Sequence[KeySettlement]
    ) -> Sequence[KeySettlement]:
        """The refused settlements, without those that a call whose answer was lost had applied."""
        doubted = [end.claim for end in refused if end in self._in_doubt]
        if not doubted:
            return refused
        names = {_line(claim): claim.name for claim in doubted}
        seqs = [held.row for claim in doubted for held in claim.records]
        tokens, live = {}, set()
        params = [text(outbox_of(self.name, lane)), texts(list(names)), numbers(seqs)]
        for key, value in await self.database.rows("fates", params, safe=True):
            if key is None:
                live.add(value)
            else:
                tokens[names[key]] = value
        return [
            end
            for end in refused
            if end not in self._in_doubt or not _was_settled(end, tokens, live)
        ]

    async def _renew(self, lane: str, claims: list[KeyClaim], lease: float) -> list[KeyClaim]:
        batch = sorted({(_line(claim), claim.token) for claim in claims})
        [(places,)] = await self.database.rows(
            "renew",
            [
                text(outbox_of(self.name, lane)),
                texts([key for key, _ in batch]),
                numbers([token for _, token in batch]),
                number(lease),
                self.database.now(),
            ],
            safe=True,
        )
        lost = {batch[place - 1] for place in places or ()}
        return [claim for claim in claims if (_line(claim), claim.token) in lost]

    async def _announce_handlers(
        self,
        relay: str,
        handlers: Mapping[str, list[str]],
        age: float,
        history: Sequence[HistoryRow],
    ) -> list[RelayInfo]:
        params = [
            text(self.name),
            text(relay),
            text(json.dumps(handlers) if handlers else None),
            number(age),
            number(RELAY_LIVE),
            self.database.now(),
        ]
        name = "announce"
        if history:
            name = "announce_with_history"
            params += written_columns(history)
        return [_relay_of(*row) for row in await self.database.rows(name, params, safe=True)]

    async def _read_history(self, ranges: Sequence[HistoryRange]) -> list[list[HistoryRow]]:
        return await self._history.read(ranges)

    async def _replace_history(self, old: Sequence[HistoryRow], new: Sequence[HistoryRow]) -> bool:
        return await self._history.replace(old, new)

    # For operators

    async def relays(self) -> list[RelayInfo]:
        params = [text(self.name), number(RELAY_LIVE), self.database.now()]
        return [_relay_of(*row) for row in await self.database.rows("relays", params, safe=True)]

    async def _read_lanes(self) -> tuple[str, ...]:
        [(lanes,)] = await self.database.rows("lanes", [text(self.name)], safe=True)
        return tuple(lanes.split("\n")) if lanes else ()

    async def forget_lanes(self, besides: Collection[str]) -> None:
        await self.database.rows("forget_lanes", [text(self.name), texts(besides)])

    async def _stats(self, lane: str, most: int) -> OutboxStats:
        of_lane, keys = text(outbox_of(self.name, lane)), KEYS_EXAMINED
        params = [of_lane, self.database.now(), number(most + 1), number(keys)]
        [row] = await self.database.rows("stats", params, safe=True)
        live, leased, waiting, dead, done, blocked, behind, age, delayed = row
        counts = {
            "leased": leased, "waiting": waiting, "dead": dead, "done": done, "delayed": delayed,
            "keys_blocked": blocked, "behind": most + 1 if blocked > keys else behind,
        }  # fmt: skip
        return capped_stats(live, most, counts, None if age is None else max(age, 0.0))

    async def _blocked(self, lane: str, limit: int, after: str | None) -> list[BlockedKey]:
        of_lane = text(outbox_of(self.name, lane))
        params = [of_lane, text(after or ""), number(limit), number(COUNTED_MAX)]
        return [
            BlockedKey(key, str(seq), kind, error, since, behind, lane)
            for key, seq, kind, error, since, behind in await self.database.rows(
                "blocked", params, safe=True
            )
        ]

    async def _records(
        self,
        state: RecordState | None,
        kind: str | None,
        key: str | None,
        limit: int,
        after: str | None,
    ) -> list[RecordInfo]:
        name, place = text(self.name), number(place_after(after))
        chosen = [text(kind), text(key), number(limit)]
        if state == "dead":
            rows = await self.database.rows("list_dead", [name, place, *chosen], safe=True)
        else:
            code = None if state is None else number(RECORD_STATES.index(state))
            rows = await self.database.rows(
                "list", [name, self.database.now(), place, code, *chosen], safe=True
            )
        return [self._info(*row) for row in rows]

    async def _rows_of(self, record: int) -> list[RecordInfo]:
        rows = await self.database.rows("rows_of", [number(record)], safe=True)
        return await self._at([seq for (seq,) in rows])

    async def _at(self, seqs: Sequence[int]) -> list[RecordInfo]:
        params = [text(self.name), self.database.now(), numbers(seqs)]
        return [self._info(*row) for row in await self.database.rows("at", params, safe=True)]

    async def _walk(self, walk: RecordWalk) -> list[WalkedRow]:
        whose = text(outbox_of(self.name, walk.lane))
        if walk.name == "all":
            lanes = ("", *await self._read_lanes())
            whose = texts([outbox_of(self.name, lane) for lane in lanes])
        asked = [text(walk.kind), text(walk.key), text(walk.error)]
        begins = text(_line_after(walk.a)) if isinstance(walk.a, str) else number(walk.a)
        params = [whose, number(walk.most), *asked, number(walk.b)]
        if walk.name not in ("all", "dead", "key"):  # they have places of one number
            params.append(begins)
        if walk.name == "held":
            key_state = _KEY_STATES[walk.state or "leased"]
            params += [self.database.now(), number(key_state)]
        rows = await self.database.rows(f"walk_{walk.name}", params, safe=True)
        return [WalkedRow(*row) for row in rows]

    def _info(
        self,
        seq: int,
        kind: str,
        payload: str,
        key: str | None,
        headers: str | None,
        at: float,
        shown: int,
        since: float,
        error: str | None,
        progress: str | None,
        relay: str | None,
        place: int,
        lane: str,
        key_state: int | None,
        before: str | None,
    ) -> RecordInfo:
        record = stored_record(seq, self.name, kind, payload, key, headers, at)
        state = RECORD_STATES[shown]
        first, _, its_error = (before or "").partition("\n")
        why = why_waiting(
            state, error, relay, first, its_error, open_transaction=key_state == _DELAYED
        )
        info = RecordInfo(record, state, since, error, progress or "", relay)
        return replace(info, lane=lane, place=str(place), why=why)

    async def _retry(
        self, lane: str, ids: Sequence[str] | None, keys: Sequence[str] | None, *, drop: bool
    ) -> int:
        seqs = None if ids is None else numbers([number_of(each) for each in ids])
        params = [seqs, None if keys is None else texts(keys), flag(drop)]
        if not lane:
            return await self._count("retry", *params, self.database.now())
        params += [flag(self.keep is not None), self.database.now()]
        of_lane = text(outbox_of(self.name, lane))
        [(count,)] = await self.database.rows("retry_lane", [of_lane, *params])
        return int(count)

    async def _replay(self, chosen: RecordFilter) -> int:
        total, after = 0, 0
        while True:
            params = [*self._filter(chosen), number(after), self.database.now()]
            [(count, last)] = await self.database.rows("replay", [text(self.name), *params])
            if not count:
                return total
            total, after = total + count, last

    async def _replayable(self, chosen: RecordFilter) -> int:
        return await self._count("replayable", *self._filter(chosen))

    @staticmethod
    def _filter(chosen: RecordFilter) -> list[Param]:
        since, until = (None if at is None else number(at) for at in (chosen.since, chosen.until))
        return [text(chosen.kind), text(chosen.key), since, until]

    async def _release(self, lane: str, keys: Sequence[str] | None, relay: str | None) -> int:
        of_keys = None if keys is None else texts(keys)
        params = [text(outbox_of(self.name, lane)), of_keys, text(relay), self.database.now()]
        [(count,)] = await self.database.rows("release", params)
        return int(count)

    def _channel_name(self) -> str:
        return channel_of(self.schema, self.name)


def channel_of(schema: str, outbox: str) -> str:
    """The channel where its relays listen; the same as the SQL function `outbox_channel`."""
    digest = hashlib.sha256(f"{quoted(schema)}.{outbox}".encode()).hexdigest()
    return f"pollwise_outbox_{digest[:16]}"


def _line_after(place: str) -> str:
    """The line of a place in the walk over live records, without the outbox."""
    return _ALONE + place[1:] if place.startswith("0") else place[1:]


def _relay_of(name: str, handlers: str, started: float, seen: float, newer: bool) -> RelayInfo:
    sets = {each: tuple(patterns) for each, patterns in json.loads(handlers).items()}
    return RelayInfo(name, sets, started, seen, newer)


def _line(claim: KeyClaim) -> str:
    """The key of a claim as it is in the tables."""
    return f"{_ALONE}{claim.records[0].row}" if claim.key is None else claim.key


def _next(end: KeySettlement) -> int | None:
    records = end.claim.records
    return records[end.done].row if end.done < len(records) else None


def _was_settled(end: KeySettlement, tokens: Mapping[str, int], live: Collection[int]) -> bool:
    """True if a call whose answer was lost settled this claim, which was refused the second time.

    tokens: the tokens of keys that have a row, by the names of their claims.
    live: the rows of records that exist and are neither done nor dead.

    A settlement leaves the token one higher, or no row at all. A later claim sets the token to the
    time of the claim; then only the records show what happened.
    """
    claim = end.claim
    if tokens.get(claim.name) == claim.token + 1:
        return True
    if any(held.row in live for held in claim.records[: end.done]):
        return False
    if end.action == "dead":
        return claim.records[end.done].row not in live
    # A record to retry keeps its row; for the others, all visible effects have happened.
    return end.action == "give_back"


def _statements() -> dict[str, str]:
    """The statements, with an announcement that also writes history."""
    named = with_shown(
        statements(TABLES.package), after="r.seq > $3::bigint", among="r.seq = ANY ($3::bigint[])"
    )
    written, announce = named["write_history"], named["announce"].removeprefix("WITH ")
    return {**named, "announce_with_history": f"WITH written AS ({written}), {announce}"}
