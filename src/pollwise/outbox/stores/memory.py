"""An outbox in memory: for tests, and as the model that the other stores are compared with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import quote

from pollwise.outbox.records import (
    RECORD_STATES,
    BlockedKey,
    HeldRecord,
    KeyClaim,
    KeySettlement,
    NewRecord,
    OutboxStats,
    Record,
    RecordFilter,
    RecordInfo,
    RecordState,
    RelayInfo,
    why_waiting,
)
from pollwise.outbox.stores.base import CLAIM_BYTES, RELAY_LIVE, OutboxStore
from pollwise.outbox.writers.common import check_uniques
from pollwise.runtime.decoding import decode_job
from pollwise.runtime.rollups.keeping import HistoryTable
from pollwise.runtime.rollups.rows import HistoryRange, HistoryRow
from pollwise.storage.ids import place_after


@dataclass(slots=True)
class _StoredRecord:
    seq: int
    new: NewRecord
    created_at: float
    progress: str = ""
    retried: bool = False
    state: str = "ready"  # ready, dead, done, delayed or in lanes; its key says the rest
    since: float = 0.0
    error: str | None = None
    lane: str = ""
    origin: int | None = None  # the record that it is a copy of

    @property
    def id(self) -> str:
        return str(self.origin or self.seq)

    @property
    def name(self) -> str:
        """As `KeyClaim.name`."""
        name = f"#{self.id}" if self.new.key is None else f"={self.new.key}"
        return f"{name}\n{self.lane}" if self.lane else name


@dataclass(slots=True)
class _KeyQueue:
    """The open records of a key, or a record without a key, and the relay that holds it."""

    key: str | None
    lane: str = ""
    rows: dict[int, _StoredRecord] = field(default_factory=dict)
    token: int = 0
    state: RecordState = "ready"  # ready, leased or waiting
    due: float = 0.0
    relay: str | None = None
    lapses: int = 0
    dead: _StoredRecord | None = None  # blocks the key


class MemoryOutboxStore(OutboxStore):
    """Records in memory: all features of an outbox, but nothing survives the process."""

    @property
    def url(self) -> str:
        return f"memory://?outbox={quote(self.name, safe='')}"

    def __init__(self, name: str = "default", **options: object) -> None:
        super().__init__(name, **options)  # type: ignore[arg-type]
        self._rows: dict[int, _StoredRecord] = {}
        self._lines: dict[str, _KeyQueue] = {}
        self._lanes: set[str] = set()
        self._relays: dict[str, RelayInfo] = {}
        self._history = HistoryTable()
        self._last = 0
        self._tokens = 0

    async def _put(self, records: list[NewRecord]) -> list[str]:
        now = self.clock.epoch()
        taken = {
            row.new.unique: (row.new.unique, row.seq, row.new.kind, row.new.encoded)
            for row in self._rows.values()
            if row.new.unique is not None and row.origin is None
        }
        uniques = check_uniques(records, taken.values())
        ids = []
        for new in records:
            if new.unique in uniques:
                ids.append(uniques[new.unique])
                continue
            due = new.due_at(now)
            row = self._add(new, due, since=due, state="delayed" if due > now else "ready")
            if new.unique is not None:
                uniques[new.unique] = row.id
            ids.append(row.id)
        return ids

    def _add(self, new: NewRecord, created_at: float, **more: Any) -> _StoredRecord:
        self._last += 1
        row = self._rows[self._last] = _StoredRecord(self._last, new, created_at, **more)
        if row.state == "ready":
            self._enter(row)
        return row

    def _promote(self, now: float) -> float | None:
        """Make delayed records ready that are due; return when the next is."""
        delayed = [row for row in self._rows.values() if row.state == "delayed"]
        for row in delayed:
            if row.since <= now:
                row.state, row.since = "ready", now
                self._enter(row)
        return min((row.since for row in delayed if row.state == "delayed"), default=None)

    def _enter(self, row: _StoredRecord) -> None:
        line = self._lines.setdefault(row.name, _KeyQueue(row.new.key, row.lane))
        back = bool(line.rows) and row.seq < next(reversed(line.rows))
        line.rows[row.seq] = row
        if back:  # a dead record that is retried goes to its old place
            line.rows = dict(sorted(line.rows.items()))

    async def _claim(
        self, lane: str, relay: str, keys: int, per_key: int, lease: float
    ) -> list[KeyClaim]:
        now = self.clock.epoch()
        next_due = self._promote(now)
        self.lanes: tuple[str, ...] = tuple(sorted(self._lanes))
        claims: list[KeyClaim] = []
        lines = [line for line in self._lines.values() if line.lane == lane]
        free = [line for line in lines if self._claimable(line, now)]
        for line in sorted(free, key=lambda line: next(iter(line.rows)))[:keys]:
            self._tokens += 1
            line.lapses += line.state == "leased"
            line.token, line.relay = self._tokens, relay
            line.state, line.due = "leased", now + lease
            rows: list[_StoredRecord] = []
            size = 0
            for row in line.rows.values():
                if row.state == "dead" or len(rows) == per_key or size >= CLAIM_BYTES:
                    break
                rows.append(row)
                size += row.new.size
            held = tuple(
                HeldRecord(
                    self._record(row), row.progress, row.retried, str(row.seq) if row.origin else ""
                )
                for row in rows
            )
            claims.append(KeyClaim(line.key, line.token, relay, line.due, held, line.lapses, lane))
        if len(claims) < keys:
            due = [line.due for line in lines if line.state != "ready"]
            due += [] if next_due is None else [next_due]
            self._hint_when_due(min(due, default=None))
        return claims

    @staticmethod
    def _claimable(line: _KeyQueue, now: float) -> bool:
        return line.dead is None and (line.state == "ready" or line.due <= now)

    async def _settle(self, lane: str, ends: list[KeySettlement]) -> list[KeyClaim]:
        now = self.clock.epoch()
        lost, more = [], 0
        for end in ends:
            line = self._held(end.claim)
            if line is None:
                lost.append(end.claim)
                continue
            line.state, line.relay, line.due = "ready", None, 0.0
            line.token = line.lapses = 0
            for place, held in enumerate(end.claim.records[: end.done]):
                row = line.rows.pop(held.row)
                if end.lanes:
                    self._fan_out(row, end.lanes[place])
                else:
                    self._complete(row, now)
            if end.done < len(end.claim.records):
                row = line.rows[end.claim.records[end.done].row]
                self._leave_off(line, row, end, now)
            if not line.rows:
                del self._lines[end.claim.name]
            elif end.done and self._claimable(line, now):
                more += 1
        if more:
            self._more_behind(more)
        return lost

    def _fan_out(self, row: _StoredRecord, lanes: Mapping[str, str]) -> None:
        row.state = "in lanes"
        for lane, progress in sorted(lanes.items()):
            self._lanes.add(lane)
            now = self.clock.epoch()
            copied = {"progress": progress, "lane": lane, "origin": row.seq, "since": now}
            self._add(row.new, row.created_at, **copied)

    def _complete(self, row: _StoredRecord, now: float) -> None:
        row.state, row.since = "done", now
        if self.keep is None or row.origin is not None:
            del self._rows[row.seq]
        if row.origin is not None and not self._copies(row.origin):
            self._complete(self._rows[row.origin], now)

    def _copies(self, origin: int) -> bool:
        return any(row.origin == origin for row in self._rows.values())

    def _leave_off(
        self, line: _KeyQueue, row: _StoredRecord, end: KeySettlement, now: float
    ) -> None:
        if end.progress is not None:
            row.progress, row.retried = end.progress, False
        if end.error is not None:
            row.error = end.error
        if end.action == "retry":
            line.state, line.due = "waiting", now + end.delay
        elif end.action == "dead":
            row.state, row.since = "dead", now
            if self.on_dead == "continue" or line.key is None:
                del line.rows[row.seq]
            else:
                line.dead = row

    def _held(self, claim: KeyClaim) -> _KeyQueue | None:
        line = self._lines.get(claim.name)
        return line if line is not None and line.token == claim.token else None

    async def _renew(self, lane: str, claims: list[KeyClaim], lease: float) -> list[KeyClaim]:
        lost = []
        for claim in claims:
            line = self._held(claim)
            if line is None:
                lost.append(claim)
            else:
                line.due = self.clock.epoch() + lease
        return lost

    async def _announce_handlers(
        self,
        relay: str,
        handlers: Mapping[str, list[str]],
        age: float,
        history: Sequence[HistoryRow],
    ) -> list[RelayInfo]:
        now = self.clock.epoch()
        self._history.write(history)
        before = self._relays.pop(relay, None)
        started_at = before.started_at if before is not None else now - age
        if handlers:
            sets = {name: tuple(patterns) for name, patterns in handlers.items()}
            self._relays[relay] = RelayInfo(relay, sets, started_at, now, False)
        return [
            replace(info, newer=(info.started_at, info.relay) > (started_at, relay))
            for info in self._relays.values()
            if info.relay != relay and info.seen_at > now - RELAY_LIVE
        ]

    async def relays(self) -> list[RelayInfo]:
        gone = self.clock.epoch() - RELAY_LIVE
        live = [info for info in self._relays.values() if info.seen_at > gone]
        return sorted(live, key=lambda info: (info.started_at, info.relay))

    async def _read_history(self, ranges: Sequence[HistoryRange]) -> list[list[HistoryRow]]:
        return [self._history.read(asked) for asked in ranges]

    async def _replace_history(self, old: Sequence[HistoryRow], new: Sequence[HistoryRow]) -> bool:
        return self._history.replace(old, new)

    async def _read_lanes(self) -> tuple[str, ...]:
        return tuple(sorted(self._lanes))

    async def forget_lanes(self, besides: Collection[str]) -> None:
        self._lanes &= {*besides, *(row.lane for row in self._rows.values())}

    async def _stats(self, lane: str, most: int) -> OutboxStats:
        now = self.clock.epoch()
        counts: dict[str, Any] = dict.fromkeys(RECORD_STATES, 0)
        rows = [r for r in self._rows.values() if r.lane == lane and r.state != "in lanes"]
        for row in rows:
            counts[self._state_of(row, now)] += 1
        live = [row.created_at for row in rows if row.state == "ready"]
        blocked = await self._blocked(lane, len(self._lines), None)
        return OutboxStats(
            **counts,
            keys_blocked=len(blocked),
            behind=sum(key.behind for key in blocked),
            oldest_age=max(now - min(live), 0.0) if live else None,
        )

    def _state_of(self, row: _StoredRecord, now: float) -> RecordState:
        line = self._lines.get(row.name)
        if row.state != "ready" or line is None or next(iter(line.rows)) != row.seq:
            return cast("RecordState", row.state)
        return line.state if line.due > now else "ready"

    async def _blocked(self, lane: str, limit: int, after: str | None) -> list[BlockedKey]:
        found = []
        for line in self._lines.values():
            if line.key is None or line.lane != lane or (after or "") >= line.key:
                continue
            if line.dead is not None:
                dead = line.dead
                behind = sum(row.state == "ready" for row in line.rows.values())
                what = (dead.id, dead.new.kind, dead.error, dead.since, behind, lane)
                found.append(BlockedKey(line.key, *what))
        return sorted(found, key=lambda blocked: blocked.key)[:limit]

    async def _records(
        self,
        state: RecordState | None,
        kind: str | None,
        key: str | None,
        limit: int,
        after: str | None,
    ) -> list[RecordInfo]:
        now = self.clock.epoch()
        place = place_after(after)
        page: list[RecordInfo] = []
        for row in self._rows.values():
            info = self._info(row, now)
            if (
                row.seq > place
                and row.state != "in lanes"
                and state in (None, info.state)
                and kind in (None, row.new.kind)
                and key in (None, row.new.key)
            ):
                page.append(info)
                if len(page) == limit:
                    break
        return page

    async def _rows_of(self, record: int) -> list[RecordInfo]:
        every = await self._records(None, None, None, len(self._rows), None)
        return [info for info in every if info.record.id == str(record)]

    def _info(self, row: _StoredRecord, now: float) -> RecordInfo:
        state, since, relay = self._state_of(row, now), row.since, None
        line = self._lines.get(row.name)
        if line is not None and state in ("leased", "waiting"):
            since, relay = line.due, line.relay
        first = None if line is None else line.dead or next(iter(line.rows.values()))
        behind = first is not None and first is not row
        before, error = (first.id, first.error) if first is not None and behind else ("", None)
        why = why_waiting(state, row.error, relay, before, error)
        info = RecordInfo(self._record(row), state, since, row.error, row.progress, relay)
        return replace(info, lane=row.lane, place=str(row.seq), why=why)

    async def _release(self, lane: str, keys: Sequence[str] | None, relay: str | None) -> int:
        chosen = [
            line
            for line in self._lines.values()
            if (line.state, line.lane) == ("leased", lane)
            and (keys is None or line.key in keys)
            and (relay is None or line.relay == relay)
        ]
        for line in chosen:
            line.state, line.relay, line.due, line.token = "ready", None, 0.0, 0
        return len(chosen)

    async def _retry(
        self, lane: str, ids: Sequence[str] | None, keys: Sequence[str] | None, *, drop: bool
    ) -> int:
        chosen = [
            row
            for row in self._rows.values()
            if (row.state, row.lane) == ("dead", lane)
            and (ids is None or row.id in ids)
            and (keys is None or row.new.key in keys)
        ]
        for row in chosen:
            line = self._lines.get(row.name)
            if line is not None and line.dead is row:
                line.dead = None
            if drop:
                self._delete(row)
            else:
                row.state, row.since, row.retried = "ready", self.clock.epoch(), True
                self._enter(row)
        return len(chosen)

    def _delete(self, row: _StoredRecord) -> None:
        del self._rows[row.seq]
        line = self._lines.get(row.name)
        if line is not None:
            line.rows.pop(row.seq, None)
            if not line.rows and line.state == "ready":
                del self._lines[row.name]
        if row.origin is not None and not self._copies(row.origin):
            self._complete(self._rows[row.origin], self.clock.epoch())

    def _kept(self, chosen: RecordFilter) -> list[_StoredRecord]:
        done = [row for row in self._rows.values() if row.state == "done"]
        return [row for row in done if chosen.matches(self._record(row))]

    async def _replayable(self, chosen: RecordFilter) -> int:
        return len(self._kept(chosen))

    async def _replay(self, chosen: RecordFilter) -> int:
        rows = self._kept(chosen)
        for row in rows:
            row.state, row.since, row.progress = "ready", self.clock.epoch(), ""
            row.retried, row.error = False, None
            self._enter(row)
        return len(rows)

    async def _prune(self, keep: float) -> int:
        before = self.clock.epoch() - keep
        old = [r.seq for r in self._rows.values() if r.state == "done" and r.since <= before]
        for seq in old:
            del self._rows[seq]
        return len(old)

    def _record(self, row: _StoredRecord) -> Record:
        new, decoded = row.new, decode_job(row.new.encoded)
        return Record(
            row.id,
            self.name,
            new.kind,
            decoded.payload,
            new.key,
            new.headers,
            row.created_at,
            unreadable=decoded.unreadable,
        )
