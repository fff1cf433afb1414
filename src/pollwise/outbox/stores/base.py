"""The contract of all stores of an outbox.

Records of one key are claimed together, in order, by one relay at a time. A claim holds the key
under a lease with a fencing token, and a settlement with an old token changes nothing. All calls
take batches, and a batch is one round trip.

A store implements the methods with a leading underscore. The public methods check their arguments
first, so that all stores refuse the same values with the same errors.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal

from pollwise.durations import Duration
from pollwise.errors import ConfigError, OutboxError
from pollwise.outbox.records import (
    KeyClaim,
    KeySettlement,
    NewRecord,
    RecordFilter,
    RelayInfo,
    claim_of,
    writer_of,
)
from pollwise.outbox.stores.viewed import ViewedOutbox
from pollwise.outbox.writers.common import OutboxTarget
from pollwise.queues.base import MAX_PAYLOAD_BYTES
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import checked_moment, checked_name
from pollwise.runtime.rollups.keeping import KeptHistory
from pollwise.runtime.rollups.rows import HistoryRow, checked_rows
from pollwise.runtime.store import (
    MAX_BATCH,
    checked_batch,
    checked_lease,
    distinct,
    once_each,
)
from pollwise.runtime.tracing import spans

OnDead = Literal["block", "continue"]
#: The maximum number of records of one key in a claim.
MAX_PER_KEY = 1_000
#: A claim of a key ends with the record whose payload makes it this large, in bytes, because a
#: relay keeps its claims in memory. 0001_outbox.sql of Postgres contains the same number.
CLAIM_BYTES = 256 * 1024
#: A relay that has not announced itself for this many seconds counts as gone.
RELAY_LIVE = 90.0


class OutboxStore(KeptHistory, ViewedOutbox):
    """The records of one outbox in a database."""

    _what = "outbox"

    def __init__(
        self,
        name: str = "default",
        *,
        clock: Clock | None = None,
        keep: Duration | None = None,
        on_dead: OnDead = "block",
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        """
        name: the name of the outbox in its database.
        keep: how long completed records are kept; None deletes them at once.
        on_dead: what a dead record does to its key. "block": the records behind it wait until an
            operator retries or drops it, so order is kept. "continue": they are handled without it.
        max_payload_bytes: larger payloads are refused; store large data elsewhere and put a
            reference to it into the payload.
        """
        if on_dead not in ("block", "continue"):
            raise ConfigError(f"on_dead = {on_dead!r} must be 'block' or 'continue'")
        self.on_dead: OnDead = on_dead
        #: The lanes that have copies of records, or may get some, as the last claim saw them.
        self.lanes: tuple[str, ...] = ()
        self._turn = 0
        super().__init__(name, clock=clock, keep=keep, max_payload_bytes=max_payload_bytes)

    # The relay's side

    async def claim(
        self,
        relay: str,
        keys: int,
        per_key: int,
        lease: Duration,
        most: Mapping[str, int] = MappingProxyType({}),
    ) -> list[KeyClaim]:
        """Claim up to `keys` free keys, with up to `per_key` records each, for `relay`.

        most: the maximum number of keys of a lane, by lane.

        A record without a key counts as a key of its own. If fewer than `keys` were found, a hint
        is given when the next retry or lease is due. A cancelled call leaves nothing claimed.
        """
        checked_name(relay, "relay", ConfigError)
        for value, what, highest in ((keys, "keys", MAX_BATCH), (per_key, "per_key", MAX_PER_KEY)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= highest:
                raise ConfigError(f"{what} = {value!r} must be a whole number from 1 to {highest}")
        claims = await self._claim_or_give_back(
            self._claim_all(relay, keys, per_key, checked_lease(lease), most)
        )
        if len(claims) == keys:
            self._hints.pass_on()
        return [self._opened(claim) for claim in claims]

    def _opened(self, claim: KeyClaim) -> KeyClaim:
        sealing = self._sealing
        if not sealing.concerns(each.record.payload for each in claim.records):
            return claim
        held = [replace(each, record=sealing.opened(each.record)) for each in claim.records]
        return replace(claim, records=tuple(held))

    async def _claim_all(
        self, relay: str, keys: int, per_key: int, lease: float, most: Mapping[str, int]
    ) -> list[KeyClaim]:
        """Claim from the outbox itself and from its lanes, each in its turn an equal part."""
        if not self.lanes:
            return await self._claim("", relay, keys, per_key, lease)
        lanes = ["", *self.lanes]
        self._turn = (self._turn + 1) % len(lanes)
        lanes = lanes[self._turn :] + lanes[: self._turn]
        left = {lane: most.get(lane, keys) for lane in lanes}
        claims: list[KeyClaim] = []
        try:
            for part in (-(-keys // len(lanes)), keys):  # first for each, then what is left
                for lane in lanes:
                    limit = min(part, left[lane], keys - len(claims))
                    if limit < 1:
                        continue
                    found = await self._claim(lane, relay, limit, per_key, lease)
                    claims += found
                    left[lane] = left[lane] - limit if len(found) == limit else 0
        except Exception:
            with suppress(Exception):
                await self._give_back(claims)
            raise
        return claims

    async def settle(self, ends: Iterable[KeySettlement]) -> list[KeyClaim]:
        """End claims; return those whose lease was lost, for which nothing was changed.

        If a batch settles a claim twice, the first settlement counts and the second is lost.
        """
        batch = checked_batch(ends, "settle")
        if not batch:
            return []
        once, again = once_each(batch, claim_of)
        lost: list[KeyClaim] = []
        parts: dict[tuple[str, bool], list[KeySettlement]] = {}
        for end in once:
            parts.setdefault((end.claim.lane, bool(end.lanes)), []).append(end)
        for (lane, _), part in parts.items():
            lost += await self._settle(lane, part)
        self._hint_after(batch)
        return [*lost, *(end.claim for end in again)]

    async def renew(self, claims: Iterable[KeyClaim], lease: Duration) -> list[KeyClaim]:
        """Renew the leases of claims, from now on; return the claims that are lost."""
        batch = checked_batch(claims, "renew")
        if not batch:
            return []
        lost: list[KeyClaim] = []
        for lane in dict.fromkeys(claim.lane for claim in batch):
            part = [claim for claim in batch if claim.lane == lane]
            lost += await self._renew(lane, part, checked_lease(lease))
        return lost

    @abstractmethod
    async def forget_lanes(self, besides: Collection[str]) -> None:
        """Remove the lanes that have no copies, except those of `besides`."""

    async def announce_handlers(
        self,
        relay: str,
        handlers: Mapping[str, Sequence[str]],
        age: float,
        history: Sequence[HistoryRow] = (),
    ) -> list[RelayInfo]:
        """Store the handlers (name → patterns) of a relay; return the other live relays.

        age: how many seconds ago the relay was started. Which relay is newer is decided by the
            first announcement of each, on the store's clock, because clocks of machines differ.
        history: what the relay did, to be stored in the same call.
        Repeat it well within RELAY_LIVE; an empty mapping takes the announcement back.
        """
        checked_name(relay, "relay", ConfigError)
        listed = {name: list(patterns) for name, patterns in handlers.items()}
        rows = checked_rows(history, writer_of(relay))
        return await self._announce_handlers(relay, listed, age, rows)

    # For operators

    async def retry(
        self,
        ids: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
        *,
        lane: str | None = None,
    ) -> int:
        """Make dead records ready again, by ids or by keys or all; return how many.

        Handlers that are done are not called again; the others start with fresh attempts.

        lane: only in this lane. A record counts once for each lane in which it was dead.
        """
        return await self._restart(ids, keys, lane, drop=False)

    async def drop(
        self,
        ids: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
        *,
        lane: str | None = None,
    ) -> int:
        """Delete dead records, by ids or by keys or all; return how many. Their keys go on.

        lane: only in this lane; its other lanes still handle the record.
        """
        return await self._restart(ids, keys, lane, drop=True)

    async def _restart(
        self,
        ids: Sequence[str] | None,
        keys: Sequence[str] | None,
        lane: str | None,
        *,
        drop: bool,
    ) -> int:
        chosen = _chosen(ids, keys)
        lanes = ("", *await self._read_lanes())
        if lane is not None and lane not in lanes[1:]:
            known = ", ".join(lanes[1:]) or "none"
            raise ConfigError(f"lane = {lane!r} is not a lane of this outbox; it has: {known}")
        count = 0
        for each in lanes if lane is None else [lane]:
            count += await self._retry(each, *chosen, drop=drop)
        if count:
            self._give_hints(count)
        return count

    async def replay(
        self,
        *,
        kind: str | None = None,
        key: str | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        dry_run: bool = False,
    ) -> int:
        """Handle kept records again, with all their handlers; return how many.

        They keep their ids and go to their old places: in order, before the records of their keys
        that are not handled yet.

        since, until: when they were put, from `since` on and before `until`.
        dry_run: only count them.
        """
        times = [
            None if at is None else checked_moment(at, name)
            for at, name in ((since, "since"), (until, "until"))
        ]
        chosen = RecordFilter(kind, key, *times)
        if dry_run:
            return await self._replayable(chosen)
        count = await self._replay(chosen)
        if count:
            self._give_hints(count)
        return count

    async def release(self, keys: Sequence[str] | None = None, relay: str | None = None) -> int:
        """End leases at once: of these keys, of the relays of this name, or all; return how many.

        For relays that are gone. If one still runs, it loses the keys, and the records that it is
        handling are handled once more.
        """
        chosen = distinct(keys, "keys")
        count = 0
        for lane in ("", *await self._read_lanes()):
            count += await self._release(lane, chosen, relay)
        if count:
            self._give_hints(count)
        return count

    def target(self) -> OutboxTarget:
        """What writers need to put records in the user's own transaction."""
        raise OutboxError(
            f"{self.url} is not in a database, so a transaction cannot reach it; use "
            "`await store.put(records)`"
        )

    # Applications put records in their own transactions with `Outbox.put`, not with this.

    async def put(self, records: NewRecord | Iterable[NewRecord]) -> list[str]:
        """Put records in a separate transaction; return their ids."""
        batch = self.checked(records)
        if not batch:
            return []
        if (tracer := spans.tracer()) is None:
            ids = await self._put(self.sealed(batch))
        else:
            span = self.send_span(tracer)
            ids = await span.around(lambda: self._put(self.sealed(span.begin(batch))))
        self._give_hints(len(ids))
        return ids

    def send_span(self, tracer: Any) -> spans.SendSpan[NewRecord]:
        """The span of a put."""
        return spans.SendSpan(tracer, f"outbox:{self.name}", NewRecord.with_trace)

    def checked(self, records: NewRecord | Iterable[NewRecord]) -> list[NewRecord]:
        """The records as a list; raises if one of them cannot be put here."""
        batch = [records] if isinstance(records, NewRecord) else list(records)
        if len(batch) > MAX_BATCH:
            raise OutboxError(f"put got {len(batch)} records; at most {MAX_BATCH} at once")
        for record in batch:
            if not isinstance(record, NewRecord):
                raise OutboxError(f"expected a NewRecord, got {record!r}")
            if self.codec is None:  # else what counts is its size when it is encoded
                self._check_size(record.kind, record.size)
        return batch

    def sealed(self, records: list[NewRecord]) -> list[NewRecord]:
        """Records as they are stored: encoded by the codec, if there is one."""
        if self.codec is None:
            return records
        batch = []
        for record in records:
            unique = record.unique is not None
            encoded = self._sealing.text(record.encoded, record.kind, unique=unique)
            batch.append(record.with_encoded(encoded))
            self._check_size(record.kind, batch[-1].size)
        return batch

    # Each store implements these.

    @abstractmethod
    async def _put(self, records: list[NewRecord]) -> list[str]: ...

    @abstractmethod
    async def _claim(
        self, lane: str, relay: str, keys: int, per_key: int, lease: float
    ) -> list[KeyClaim]:
        """Claim from a lane; or from the outbox itself (""), and then read `lanes`.

        `lanes` is read after the keys are leased: a key whose records may have copies that are not
        handled yet must not be handled by a relay that does not know of lanes.
        """

    @abstractmethod
    async def _settle(self, lane: str, ends: list[KeySettlement]) -> list[KeyClaim]:
        """Settle the claims that are still leased, of one lane; return the others.

        Either all or none of them hand records to lanes. Calls `_more_behind` with the number of
        keys that have more records to claim.
        """

    @abstractmethod
    async def _renew(self, lane: str, claims: list[KeyClaim], lease: float) -> list[KeyClaim]: ...

    @abstractmethod
    async def _announce_handlers(
        self,
        relay: str,
        handlers: Mapping[str, list[str]],
        age: float,
        history: Sequence[HistoryRow],
    ) -> list[RelayInfo]: ...

    @abstractmethod
    async def _retry(
        self, lane: str, ids: Sequence[str] | None, keys: Sequence[str] | None, *, drop: bool
    ) -> int: ...

    @abstractmethod
    async def _replay(self, chosen: RecordFilter) -> int: ...

    @abstractmethod
    async def _replayable(self, chosen: RecordFilter) -> int: ...

    @abstractmethod
    async def _release(self, lane: str, keys: Sequence[str] | None, relay: str | None) -> int: ...

    async def _give_back(self, claims: list[KeyClaim]) -> None:
        await self.settle([KeySettlement(claim, 0) for claim in claims])

    def _more_behind(self, keys: int) -> None:
        """Wake relays of this process: this many keys are free and have more records."""
        self._hints.send(keys, backlog=True)

    def _hint_after(self, ends: Sequence[KeySettlement]) -> None:
        """Give hints for keys that were given back, and for retries when they are due."""
        back = sum(end.action == "give_back" and end.done < len(end.claim.records) for end in ends)
        if back:
            self._give_hints(back)
        copies = [lane for end in ends for lanes in end.lanes for lane in lanes]
        if copies:
            # The next claim is to find the copies, also those in a lane that is new.
            self.lanes = tuple(sorted({*self.lanes, *copies}))
            self._give_hints(len(copies))
        delays = [end.delay for end in ends if end.action == "retry"]
        if delays:
            self._hints.send_at(self.clock.now() + min(delays))


def _chosen(
    ids: Sequence[str] | None, keys: Sequence[str] | None
) -> tuple[Sequence[str] | None, Sequence[str] | None]:
    if ids is not None and keys is not None:
        raise ConfigError("give ids or keys, not both")
    return distinct(ids, "ids"), distinct(keys, "keys")
