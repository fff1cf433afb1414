"""The calls of `SqliteOutboxStore` on its connection, made from one thread.

The database is the user's own, so the write lock is held only briefly: a claim reads first without
it, and a limited number of rows is written under it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pollwise.errors import SchemaError
from pollwise.outbox.records import (
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
    outbox_of,
    stored_record,
    why_waiting,
)
from pollwise.outbox.stores.base import CLAIM_BYTES
from pollwise.outbox.stores.sqlite.relays import RelayCalls
from pollwise.outbox.stores.viewed import KEYS_EXAMINED, capped_stats
from pollwise.outbox.stores.walks import RecordWalk, WalkedRow, with_shown
from pollwise.outbox.writers.common import OutboxTarget, put_steps, run_steps
from pollwise.queues.views import COUNTED_MAX
from pollwise.runtime.store import PRUNE_SLICE
from pollwise.storage.ids import number_of, place_after
from pollwise.storage.sql import needed_version, statements
from pollwise.storage.sqlite.file import (
    FileConnection,
    lenient_text,
    snapshot,
    transaction,
)
from pollwise.storage.sqlite.history import SqliteHistory

#: The maximum number of new records that one claim reads: limits the time that the write lock is
#: held.
ROWS_MAX = 2000

#: Versions that relays run without: the history, and indexes for views.
OPTIONAL = (3, 4)

#: Part of a key that is not UTF-8 as it was read, and why its record is dead.
_REPLACED = "\N{REPLACEMENT CHARACTER}"
UNREADABLE = "its key is not UTF-8: put the record again with a key that is, and drop this one"

#: What is claimed, as the table of keys has it: a key and 0, or "" and a record without a key.
KeyOrRecord = tuple[str, int]

_CODES = {state: code for code, state in enumerate(RECORD_STATES)}
STATEMENTS = with_shown(
    statements(__package__),
    after="r.seq > :after",
    among="r.seq IN (SELECT value FROM json_each(:seqs))",
)


class SqliteCalls(RelayCalls):
    """The calls of a store. A call is one transaction or only reads."""

    package = __package__
    version_table = "pollwise_outbox_schema"
    holds = "outbox"
    made_by = "pollwise outbox migrate URL"

    def __init__(self, path: Path, outbox: str, timeout: float) -> None:
        absolute = path.absolute()  # the working directory may change
        super().__init__(absolute, synchronous=None, create=False, timeout=timeout, outbox=outbox)
        self._sql = STATEMENTS
        self._outbox = outbox
        self.history: SqliteHistory = SqliteHistory(
            self, "pollwise_outbox_history", "outbox", outbox
        )

    # The connection and the tables

    def _prepare(self, connection: FileConnection) -> None:
        """Check the tables. With a write-ahead log, do not wait for the disk.

        A power cut can then undo a claim or a settlement, and records are handled once more.
        Without a write-ahead log it could damage the file.
        """
        found, needed = self._version(connection), needed_version(__package__, OPTIONAL)
        if found < needed:
            old = f"outbox tables of version {found}; this code needs {needed}"
            has = old if found else "no outbox tables"
            raise SchemaError(f"{self.path} has {has}. Run `{self.made_by}`.")
        # SQLite accepts any bytes as text, and other programs put records too.
        connection.text_factory = lenient_text
        [(mode,)] = connection.execute("PRAGMA journal_mode")
        if mode == "wal":
            connection.execute("PRAGMA synchronous = NORMAL")

    def migrate(self) -> list[int]:
        connection = self._open(create=True)
        try:
            return self._migrate(connection)
        finally:
            connection.close()

    # For writers and relays

    def put(self, target: OutboxTarget, records: Sequence[NewRecord]) -> list[str]:
        connection = self.connect()
        with transaction(connection):
            return run_steps(
                put_steps(target, records),
                lambda statement, values: connection.execute(statement, values).fetchall(),
            )

    def forget_lanes(self, besides: Collection[str]) -> None:
        with transaction(self.connect()):
            self._change("forget_lanes", besides=json.dumps(list(besides)))

    def new_and_due(self) -> tuple[int, float | None]:
        """The newest of the new records (0: there is none), and when the next is due, of the outbox
        and its lanes."""
        found = [self._new_and_due()]
        for lane in self.lanes():
            with self._in_lane(lane):
                found.append(self._new_and_due())
        dues = [due for _, due in found if due is not None]
        return max(new for new, _ in found), min(dues, default=None)

    def _new_and_due(self) -> tuple[int, float | None]:
        """The newest of the new records, and when the next is due; takes no write lock."""
        [(new, due, delayed)] = self._rows("new_and_due")
        if delayed is not None:
            due = delayed if due is None else min(due, delayed)
        return new or 0, due

    def claim(
        self, lane: str, relay: str, keys: int, per_key: int, lease: float, now: float
    ) -> tuple[list[KeyClaim], float | None, tuple[str, ...], int]:
        """The claims; when the next key is due, if there was nothing more to claim; the lanes; and
        the newest record that was new before."""
        with self._in_lane(lane):
            new, due = self._new_and_due()
            if not new and (due is None or due > now):
                return [], due, self.lanes(), 0
            with transaction(self.connect()):
                self._change("promote", now=now)
                chosen, more = self._choose(keys, now)
                claims = self._lease(lane, chosen, relay, per_key, now, lease)
                lanes = self.lanes()
                if len(claims) == keys:
                    return claims, None, lanes, new
                _, due = self._new_and_due()
        if more or len(claims) < len(chosen):
            return claims, now, lanes, new  # there may be more records than one claim reads
        return claims, due, lanes, new

    def _choose(self, keys: int, now: float) -> tuple[list[KeyOrRecord], bool]:
        """The keys and records without a key that have waited longest.

        Also returns True if it stopped before it read all new records.
        """
        due = [((key, record), at) for key, record, at in self._rows("due", now=now, limit=keys)]
        known = dict.fromkeys((line for line, _ in due), True)
        waiting = iter([*due, (("", 0), math.inf)])
        line, at = next(waiting)
        chosen: list[KeyOrRecord] = []
        last, read = 0, 0
        for seq, key, created_at in self._new(keys):
            if key and _REPLACED in key and not self._rows("readable", seq=seq, key=key):
                read += self._change("unreadable", seq=seq, error=UNREADABLE, now=now)
                continue
            while at <= _time(created_at) and len(chosen) < keys:
                chosen.append(line)
                line, at = next(waiting)
            if len(chosen) == keys:
                break
            last, read = seq, read + 1
            its = (key, 0) if key else ("", seq)
            if its not in known:
                known[its] = bool(key and self._rows("known", key=key))
                if not known[its]:
                    chosen.append(its)
                    known[its] = True
        while at < math.inf and len(chosen) < keys:
            chosen.append(line)
            line, at = next(waiting)
        if last:
            self._change("note", last=last)
        return chosen, read >= ROWS_MAX and len(chosen) < keys

    def _new(self, keys: int) -> Iterator[tuple[int, str | None, float]]:
        """New records in order, at most ROWS_MAX."""
        size = min(max(2 * keys, 100), ROWS_MAX)
        last = 0
        for _ in range(0, ROWS_MAX, size):
            page = self._rows("new", after=last, limit=size)
            yield from page
            if len(page) < size:
                return
            last = page[-1][0]

    def _lease(
        self,
        lane: str,
        chosen: Sequence[KeyOrRecord],
        relay: str,
        per_key: int,
        now: float,
        lease: float,
    ) -> list[KeyClaim]:
        if not chosen:
            return []
        until = now + lease
        [(last,)] = self._rows("draw", count=len(chosen), now=now)
        claims = []
        for token, (key, record) in enumerate(chosen, last - len(chosen) + 1):
            if record:
                rows = self._rows("of_no_key", record=record)
            else:
                rows = _fitting(self._rows("of_key", key=key, limit=per_key))
            if not rows:  # another program deleted them
                self._change("remove_key", key=key, record=record)
                continue
            [(lapses,)] = self._rows(
                "lease", key=key, record=record, until=until, token=token, relay=relay
            )
            held = tuple(self._held(row, key or None) for row in rows)
            claims.append(KeyClaim(key or None, token, relay, until, held, lapses, lane))
        return claims

    def _held(self, row: tuple[Any, ...], key: str | None) -> HeldRecord:
        seq, kind, payload, headers, created_at, progress, retried, origin = row
        at = _time(created_at)
        record = stored_record(origin or seq, self._outbox, kind, payload, key, headers, at)
        return HeldRecord(record, progress, bool(retried), str(seq) if origin else "")

    def settle(
        self, lane: str, ends: Sequence[KeySettlement], now: float, *, keep: bool, block: bool
    ) -> tuple[list[KeyClaim], int]:
        """Settle claims; return the lost ones, and how many keys have more records to claim."""
        lost = []
        more = 0
        with self._in_lane(lane), transaction(self.connect()):
            held = []
            for end in ends:
                key, record = _claimed(end.claim)
                if self._rows("held", key=key, record=record, token=end.claim.token):
                    held.append(end)
                else:
                    lost.append(end.claim)
            done = [one.row for end in held for one in end.claim.records[: end.done]]
            if done:
                self._complete(lane, held, json.dumps(done), now, keep=keep)
            for end in held:
                more += self._leave(end, now, block=block)
        return lost, more

    def _complete(
        self, lane: str, ends: Sequence[KeySettlement], done: str, now: float, *, keep: bool
    ) -> None:
        if lane:
            origins = self._origins(done)
            self._change("complete", batch=done)
            self._finish(origins, now, keep=keep)
        elif ends[0].lanes:
            self._fan_out(ends)
            self._change("complete_in_lanes", batch=done, now=now)
        else:
            self._change("complete_kept" if keep else "complete", batch=done, now=now)

    def _fan_out(self, ends: Sequence[KeySettlement]) -> None:
        """Make the lanes' copies of completed records."""
        for lane in {lane for end in ends for lanes in end.lanes for lane in lanes}:
            self._change("add_lane", lane=lane)
        for end in ends:
            for held, lanes in zip(end.claim.records, end.lanes, strict=False):
                for lane, progress in sorted(lanes.items()):
                    self._change("copy", seq=held.row, lane=lane, progress=progress)

    def _origins(self, batch: str) -> str:
        return json.dumps([origin for (origin,) in self._rows("origins", batch=batch)])

    def _finish(self, batch: str, now: float, *, keep: bool) -> None:
        self._change("finish_kept" if keep else "finish", batch=batch, now=now)

    def _leave(self, end: KeySettlement, now: float, *, block: bool) -> bool:
        """Write the settlement of a key; True if it completed records and more can be claimed."""
        key, record = _claimed(end.claim)
        if end.done < len(end.claim.records):
            seq = end.claim.records[end.done].row
            dead = end.action == "dead"
            if dead or end.error is not None or end.progress is not None:
                self._change(
                    "leave_off",
                    seq=seq,
                    dead=dead,
                    error=end.error,
                    progress=end.progress,
                    now=now,
                )
            if end.action == "retry":
                self._change("wait", key=key, record=record, due=now + end.delay)
                return False
            if dead and block and key:
                self._change("block", key=key, dead=seq)
                return False
        free = "free_alone" if record else "free"
        if not self._change(free, key=key, record=record, now=now):
            self._change("remove_key", key=key, record=record)
            return False
        return end.done > 0

    def renew(
        self, now: float, lane: str, claims: Sequence[KeyClaim], lease: float
    ) -> list[KeyClaim]:
        lost, until = [], now + lease
        with self._in_lane(lane), transaction(self.connect()):
            for claim in claims:
                key, record = _claimed(claim)
                if not self._change(
                    "renew", key=key, record=record, token=claim.token, until=until
                ):
                    lost.append(claim)
        return lost

    # For operators

    def stats(self, now: float, lane: str, most: int) -> OutboxStats:
        with self._in_lane(lane), snapshot(self.connect()):
            one_more, keys = most + 1, KEYS_EXAMINED
            [(live, dead, done, delayed)] = self._rows("counts", most=one_more)
            [(leased, waiting, blocked, behind)] = self._rows(
                "key_counts", now=now, most=one_more, keys=keys
            )
            [(oldest,)] = self._rows("oldest", keys=keys)
        counts = {
            "leased": leased, "waiting": waiting, "dead": dead, "done": done, "delayed": delayed,
            "keys_blocked": blocked, "behind": one_more if blocked > keys else behind,
        }  # fmt: skip
        age = None if oldest is None else max(now - _time(oldest), 0.0)
        return capped_stats(live, most, counts, age)

    def blocked(self, lane: str, limit: int, after: str | None) -> list[BlockedKey]:
        with self._in_lane(lane):
            rows = self._rows("blocked", limit=limit, after=after or "", most=COUNTED_MAX)
        return [
            BlockedKey(key, str(seq), kind, error, _time(since), behind, lane)
            for key, seq, kind, error, since, behind in rows
        ]

    def records(
        self,
        now: float,
        state: RecordState | None,
        kind: str | None,
        key: str | None,
        limit: int,
        after: str | None,
    ) -> list[RecordInfo]:
        rows = self._rows(
            "list_dead" if state == "dead" else "list",
            now=now,
            state=None if state is None else _CODES[state],
            kind=kind,
            key=key,
            limit=limit,
            after=place_after(after),
        )
        return self._infos(rows)

    def rows_of(self, now: float, record: int) -> list[RecordInfo]:
        return self.at(now, [seq for (seq,) in self._rows("rows_of", one=record)])

    def at(self, now: float, seqs: Sequence[int]) -> list[RecordInfo]:
        return self._infos(self._rows("at", now=now, seqs=json.dumps(list(seqs))))

    def walk(self, now: float, walk: RecordWalk) -> list[WalkedRow]:
        held = None if walk.state not in ("leased", "waiting") else _CODES[walk.state]
        asked = {"kind": walk.kind, "key": walk.key, "error": walk.error, "most": walk.most}
        names: dict[str, Any] = {"now": now, "a": walk.a, "b": walk.b, "held": held}
        if walk.name == "all":
            lanes = [outbox_of(self._outbox, lane) for lane in ("", *self.lanes())]
            names["names"] = json.dumps(lanes)
        with self._in_lane(walk.lane):
            rows = self._rows(f"walk_{walk.name}", **asked, **names)
        return [WalkedRow(a, b, seq, bool(fits)) for a, b, seq, fits in rows]

    def _infos(self, rows: list[tuple[Any, ...]]) -> list[RecordInfo]:
        heads = {row[-1] for row in rows if row[-1] is not None}
        errors = {head: self._rows("error_of", seq=head)[0] for head in heads}
        return [self._info(row, *errors.get(row[-1], (None, None))) for row in rows]

    def _info(self, row: tuple[Any, ...], before: int | None, its_error: str | None) -> RecordInfo:
        seq, kind, payload, key, headers, created_at, code, due, since, error, *rest = row
        progress, relay, place, lane, _ = rest
        state = RECORD_STATES[code]
        record = stored_record(seq, self._outbox, kind, payload, key, headers, _time(created_at))
        held = state in ("leased", "waiting")
        relay = relay if held else None
        why = why_waiting(state, error, relay, str(before or ""), its_error)
        at = float(due) if held else _time(since)
        return RecordInfo(record, state, at, error, progress, relay, lane, str(place), why)

    def retry(
        self,
        now: float,
        lane: str,
        ids: Sequence[str] | None,
        keys: Sequence[str] | None,
        *,
        drop: bool,
        keep: bool,
    ) -> int:
        with self._in_lane(lane), transaction(self.connect()):
            batch, count = self._dead(ids, keys)
            if drop:
                origins = self._origins(batch)
                self._change("delete", batch=batch)
                self._finish(origins, now, keep=keep)
                self._change("remove_empty_keys", batch=batch)
            else:
                self._change("revive", batch=batch, now=now)
            self._change("unblock", batch=batch, now=now)
        return count

    def release(self, now: float, lane: str, keys: Sequence[str] | None, relay: str | None) -> int:
        chosen = None if keys is None else json.dumps(list(keys))
        with self._in_lane(lane), transaction(self.connect()):
            return self._change("release", now=now, keys=chosen, relay=relay)

    def replayable(self, chosen: RecordFilter) -> int:
        [(count,)] = self._rows("replayable", **asdict(chosen))
        return int(count)

    def replay(self, now: float, chosen: RecordFilter) -> int:
        with transaction(self.connect()):
            return self._change("replay", now=now, **asdict(chosen))

    def _dead(self, ids: Sequence[str] | None, keys: Sequence[str] | None) -> tuple[str, int]:
        numbers = None if ids is None else json.dumps([number_of(each) for each in ids])
        names = None if keys is None else json.dumps(list(keys))
        found = [seq for (seq,) in self._rows("dead", ids=numbers, keys=names)]
        return json.dumps(found), len(found)

    def prune(self, now: float, keep: float) -> int:
        with transaction(self.connect()):
            return len(self._rows("prune", before=now - keep, limit=PRUNE_SLICE))


def _claimed(claim: KeyClaim) -> KeyOrRecord:
    if claim.key is not None:
        return claim.key, 0
    return "", claim.records[0].row


def _fitting(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The records up to the one whose payload makes them `CLAIM_BYTES` or more."""
    size = 0
    for place, (_, _, payload, *_) in enumerate(rows, 1):
        size += len(payload)
        if size >= CLAIM_BYTES:
            return rows[:place]
    return rows


def _time(at: object) -> float:
    """When a record was put; 0 if another program wrote something that is not a time."""
    return float(at) if isinstance(at, (int, float)) and math.isfinite(at) else 0.0
