"""An outbox in memory: for tests, and as the model that the other stores are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote

from pollwise.outbox.records import (
    BlockedKey,
    HeldRecord,
    KeyClaim,
    KeySettlement,
    NewRecord,
    OutboxStats,
    Record,
    RecordInfo,
    RecordState,
    RelayInfo,
)
from pollwise.outbox.stores.base import CLAIM_BYTES, RELAY_LIVE, OutboxStore
from pollwise.runtime.decoding import decode_job
from pollwise.storage.ids import number_of, place_after


@dataclass(slots=True)
class _StoredRecord:
    seq: int
    new: NewRecord
    created_at: float
    progress: str = ""
    retried: bool = False
    state: RecordState = "ready"  # ready, dead or done; its key says the rest
    since: float = 0.0
    error: str | None = None

    @property
    def name(self) -> str:
        """As `KeyClaim.name`."""
        return f"#{self.seq}" if self.new.key is None else f"={self.new.key}"


@dataclass(slots=True)
class _KeyQueue:
    """The open records of a key, or a record without a key, and the relay that holds it."""

    key: str | None
    rows: dict[int, _StoredRecord] = field(default_factory=dict)
    token: int = 0
    state: RecordState = "ready"  # ready, leased or waiting
    due: float = 0.0
    relay: str | None = None
    lapses: int = 0


class MemoryOutboxStore(OutboxStore):
    """Records in memory: all features of an outbox, but nothing survives the process."""

    @property
    def url(self) -> str:
        return f"memory://?outbox={quote(self.name, safe='')}"

    def __init__(self, name: str = "default", **options: object) -> None:
        super().__init__(name, **options)  # type: ignore[arg-type]
        self._rows: dict[int, _StoredRecord] = {}
        self._lines: dict[str, _KeyQueue] = {}
        self._relays: dict[str, RelayInfo] = {}
        self._last = 0
        self._tokens = 0

    async def _put(self, records: list[NewRecord]) -> list[str]:
        now = self.clock.epoch()
        ids = []
        for new in records:
            self._last += 1
            row = _StoredRecord(self._last, new, now, since=now)
            self._rows[row.seq] = row
            self._enter(row)
            ids.append(str(row.seq))
        return ids

    def _enter(self, row: _StoredRecord) -> None:
        line = self._lines.setdefault(row.name, _KeyQueue(row.new.key))
        back = bool(line.rows) and row.seq < next(reversed(line.rows))
        line.rows[row.seq] = row
        if back:  # a dead record that is retried goes to its old place
            line.rows = dict(sorted(line.rows.items()))

    async def _claim(self, relay: str, keys: int, per_key: int, lease: float) -> list[KeyClaim]:
        now = self.clock.epoch()
        claims: list[KeyClaim] = []
        free = [line for line in self._lines.values() if self._claimable(line, now)]
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
            held = tuple(HeldRecord(self._record(row), row.progress, row.retried) for row in rows)
            claims.append(KeyClaim(line.key, line.token, relay, line.due, held, line.lapses))
        if len(claims) < keys:
            due = [line.due for line in self._lines.values() if line.state != "ready"]
            self._hint_when_due(min(due, default=None))
        return claims

    @staticmethod
    def _claimable(line: _KeyQueue, now: float) -> bool:
        if line.state != "ready" and line.due > now:
            return False
        return next(iter(line.rows.values())).state != "dead"

    async def _settle(self, ends: list[KeySettlement]) -> list[KeyClaim]:
        now = self.clock.epoch()
        lost, more = [], 0
        for end in ends:
            line = self._held(end.claim)
            if line is None:
                lost.append(end.claim)
                continue
            line.state, line.relay, line.due = "ready", None, 0.0
            line.token = line.lapses = 0
            for held in end.claim.records[: end.done]:
                self._complete(line, number_of(held.record.id), now)
            if end.done < len(end.claim.records):
                row = line.rows[number_of(end.claim.records[end.done].record.id)]
                self._leave_off(line, row, end, now)
            if not line.rows:
                del self._lines[end.claim.name]
            elif end.done and self._claimable(line, now):
                more += 1
        if more:
            self._more_behind(more)
        return lost

    def _complete(self, line: _KeyQueue, seq: int, now: float) -> None:
        row = line.rows.pop(seq)
        row.state, row.since = "done", now
        if self.keep is None:
            del self._rows[seq]

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

    def _held(self, claim: KeyClaim) -> _KeyQueue | None:
        line = self._lines.get(claim.name)
        return line if line is not None and line.token == claim.token else None

    async def _renew(self, claims: list[KeyClaim], lease: float) -> list[KeyClaim]:
        lost = []
        for claim in claims:
            line = self._held(claim)
            if line is None:
                lost.append(claim)
            else:
                line.due = self.clock.epoch() + lease
        return lost

    async def _announce_handlers(
        self, relay: str, handlers: Mapping[str, list[str]], age: float
    ) -> list[RelayInfo]:
        now = self.clock.epoch()
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

    async def stats(self) -> OutboxStats:
        now = self.clock.epoch()
        counts: dict[str, int] = dict.fromkeys(("ready", "leased", "waiting", "dead", "done"), 0)
        for row in self._rows.values():
            counts[self._state_of(row, now)] += 1
        live = [r.created_at for r in self._rows.values() if r.state == "ready"]
        blocked = await self._blocked(len(self._lines), None)
        return OutboxStats(
            **counts,
            keys_blocked=len(blocked),
            behind=sum(key.behind for key in blocked),
            oldest_age=max(now - min(live), 0.0) if live else None,
        )

    def _state_of(self, row: _StoredRecord, now: float) -> RecordState:
        line = self._lines.get(row.name)
        if row.state != "ready" or line is None or next(iter(line.rows)) != row.seq:
            return row.state
        return line.state if line.due > now else "ready"

    async def _blocked(self, limit: int, after: str | None) -> list[BlockedKey]:
        found = []
        for line in self._lines.values():
            first = next(iter(line.rows.values()))
            if line.key is not None and first.state == "dead" and (after or "") < line.key:
                behind = sum(row.state == "ready" for row in line.rows.values())
                found.append(
                    BlockedKey(
                        line.key, str(first.seq), first.new.kind, first.error, first.since, behind
                    )
                )
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
                and state in (None, info.state)
                and kind in (None, row.new.kind)
                and key in (None, row.new.key)
            ):
                page.append(info)
                if len(page) == limit:
                    break
        return page

    def _info(self, row: _StoredRecord, now: float) -> RecordInfo:
        state, since, relay = self._state_of(row, now), row.since, None
        if state in ("leased", "waiting"):
            since, relay = self._lines[row.name].due, self._lines[row.name].relay
        return RecordInfo(self._record(row), state, since, row.error, row.progress, relay)

    async def _retry(self, ids: Sequence[str] | None, keys: Sequence[str] | None) -> int:
        chosen = self._dead(ids, keys)
        for row in chosen:
            row.state, row.since, row.retried = "ready", self.clock.epoch(), True
            self._enter(row)
        return len(chosen)

    async def _drop(self, ids: Sequence[str] | None, keys: Sequence[str] | None) -> int:
        chosen = self._dead(ids, keys)
        for row in chosen:
            del self._rows[row.seq]
            line = self._lines.get(row.name)
            if line is not None:
                line.rows.pop(row.seq, None)
                if not line.rows and line.state == "ready":
                    del self._lines[row.name]
        return len(chosen)

    async def _release(self, keys: Sequence[str] | None, relay: str | None) -> int:
        chosen = [
            line
            for line in self._lines.values()
            if line.state == "leased"
            and (keys is None or line.key in keys)
            and (relay is None or line.relay == relay)
        ]
        for line in chosen:
            line.state, line.relay, line.due, line.token = "ready", None, 0.0, 0
        return len(chosen)

    def _dead(self, ids: Sequence[str] | None, keys: Sequence[str] | None) -> list[_StoredRecord]:
        return [
            row
            for row in self._rows.values()
            if row.state == "dead"
            and (ids is None or str(row.seq) in ids)
            and (keys is None or row.new.key in keys)
        ]

    async def _prune(self, keep: float) -> int:
        before = self.clock.epoch() - keep
        old = [r.seq for r in self._rows.values() if r.state == "done" and r.since <= before]
        for seq in old:
            del self._rows[seq]
        return len(old)

    def _record(self, row: _StoredRecord) -> Record:
        new, decoded = row.new, decode_job(row.new.encoded)
        return Record(
            str(row.seq),
            self.name,
            new.kind,
            decoded.payload,
            new.key,
            new.headers,
            row.created_at,
            unreadable=decoded.unreadable,
        )
