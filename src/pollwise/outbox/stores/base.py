"""The contract of all stores of an outbox.

Records of one key are claimed together, in order, by one relay at a time. A claim holds the key
under a lease with a fencing token, and a settlement with an old token changes nothing. All calls
take batches, and a batch is one round trip.

A store implements the methods with a leading underscore. The public methods check their arguments
first, so that all stores refuse the same values with the same errors.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pollwise.durations import Duration
from pollwise.errors import ConfigError, OutboxError
from pollwise.outbox.records import (
    RECORD_STATES,
    BlockedKey,
    KeyClaim,
    KeySettlement,
    NewRecord,
    OutboxStats,
    RecordInfo,
    RecordState,
    RelayInfo,
)
from pollwise.outbox.writers.common import OutboxTarget
from pollwise.queues.base import MAX_PAYLOAD_BYTES
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import checked_name
from pollwise.runtime.store import (
    MAX_BATCH,
    WorkStore,
    check_page,
    checked_batch,
    checked_lease,
    distinct,
    once_each,
)
from pollwise.storage.ids import number_of

OnDead = Literal["block", "continue"]
#: The maximum number of records of one key in a claim.
MAX_PER_KEY = 1_000
#: A claim of a key ends with the record whose payload makes it this large, in bytes, because a
#: relay keeps its claims in memory. 0001_outbox.sql of Postgres contains the same number.
CLAIM_BYTES = 256 * 1024
#: A relay that has not announced itself for this many seconds counts as gone.
RELAY_LIVE = 90.0


class OutboxStore(WorkStore[KeyClaim]):
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
        super().__init__(name, clock=clock, keep=keep, max_payload_bytes=max_payload_bytes)

    # The relay's side

    async def claim(self, relay: str, keys: int, per_key: int, lease: Duration) -> list[KeyClaim]:
        """Claim up to `keys` free keys, with up to `per_key` records each, for `relay`.

        A record without a key counts as a key of its own. If fewer than `keys` were found, a hint
        is given when the next retry or lease is due. A cancelled call leaves nothing claimed.
        """
        checked_name(relay, "relay", ConfigError)
        for value, what, most in ((keys, "keys", MAX_BATCH), (per_key, "per_key", MAX_PER_KEY)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise ConfigError(f"{what} = {value!r} must be a whole number from 1 to {most}")
        claims = await self._claim_or_give_back(
            self._claim(relay, keys, per_key, checked_lease(lease))
        )
        if len(claims) == keys:
            self._hints.pass_on()
        return claims

    async def settle(self, ends: Iterable[KeySettlement]) -> list[KeyClaim]:
        """End claims; return those whose lease was lost, for which nothing was changed.

        If a batch settles a claim twice, the first settlement counts and the second is lost.
        """
        batch = checked_batch(ends, "settle")
        if not batch:
            return []
        once, again = once_each(batch, claim_of)
        lost = await self._settle(once)
        self._hint_after(batch)
        return [*lost, *(end.claim for end in again)]

    async def renew(self, claims: Iterable[KeyClaim], lease: Duration) -> list[KeyClaim]:
        """Renew the leases of claims, from now on; return the claims that are lost."""
        batch = checked_batch(claims, "renew")
        if not batch:
            return []
        return await self._renew(batch, checked_lease(lease))

    async def announce_handlers(
        self, relay: str, handlers: Mapping[str, Sequence[str]], age: float
    ) -> list[RelayInfo]:
        """Store the handlers (name → patterns) of a relay; return the other live relays.

        age: how many seconds ago the relay was started. Which relay is newer is decided by the
            first announcement of each, on the store's clock, because clocks of machines differ.
        Repeat it well within RELAY_LIVE; an empty mapping takes the announcement back.
        """
        checked_name(relay, "relay", ConfigError)
        listed = {name: list(patterns) for name, patterns in handlers.items()}
        return await self._announce_handlers(relay, listed, age)

    # For operators

    @abstractmethod
    async def relays(self) -> list[RelayInfo]:
        """The live relays, the oldest first. `newer` is False: nobody asks."""

    @abstractmethod
    async def stats(self) -> OutboxStats:
        """How many records are in each state."""

    async def blocked(self, limit: int = 50, after: str | None = None) -> list[BlockedKey]:
        """A page of the blocked keys, sorted; `after` is the last key of the page before."""
        check_page(limit)
        return await self._blocked(limit, after)

    async def records(
        self,
        state: RecordState | None = None,
        *,
        kind: str | None = None,
        key: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> list[RecordInfo]:
        """A page of records in order; `after` is the last id of the page before."""
        if state is not None and state not in RECORD_STATES:
            raise ConfigError(f"state = {state!r} must be one of {', '.join(RECORD_STATES)}")
        check_page(limit)
        return await self._records(state, kind, key, limit, after)

    async def get(self, record_id: str) -> RecordInfo | None:
        """One record; None if it is not in the outbox, any more or at all."""
        number = number_of(record_id)
        page = await self._records(None, None, None, 1, str(number - 1) if number > 1 else None)
        return page[0] if number and page and page[0].record.id == record_id else None

    async def kinds(self) -> list[str]:
        """The different kinds of the first records in the outbox."""
        return list(dict.fromkeys(info.record.kind for info in await self.records(limit=50)))

    async def retry(
        self, ids: Sequence[str] | None = None, keys: Sequence[str] | None = None
    ) -> int:
        """Make dead records ready again, by ids or by keys or all; return how many.

        Handlers that are done are not called again; the others start with fresh attempts.
        """
        count = await self._retry(*_chosen(ids, keys))
        if count:
            self._give_hints(count)
        return count

    async def drop(
        self, ids: Sequence[str] | None = None, keys: Sequence[str] | None = None
    ) -> int:
        """Delete dead records, by ids or by keys or all; return how many. Their keys go on."""
        count = await self._drop(*_chosen(ids, keys))
        if count:
            self._give_hints(count)
        return count

    async def release(self, keys: Sequence[str] | None = None, relay: str | None = None) -> int:
        """End leases at once: of these keys, of the relays of this name, or all; return how many.

        For relays that are gone. One that still runs loses the keys, and what it is just handling
        is handled once more.
        """
        count = await self._release(distinct(keys, "keys"), relay)
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
        ids = await self._put(batch)
        self._give_hints(len(ids))
        return ids

    def checked(self, records: NewRecord | Iterable[NewRecord]) -> list[NewRecord]:
        """The records as a list; raises if one of them cannot be put here."""
        batch = [records] if isinstance(records, NewRecord) else list(records)
        if len(batch) > MAX_BATCH:
            raise OutboxError(f"put got {len(batch)} records; at most {MAX_BATCH} at once")
        for record in batch:
            if not isinstance(record, NewRecord):
                raise OutboxError(f"expected a NewRecord, got {record!r}")
            self._check_size(record.kind, record.size)
        return batch

    # Each store implements these.

    @abstractmethod
    async def _put(self, records: list[NewRecord]) -> list[str]: ...

    @abstractmethod
    async def _claim(self, relay: str, keys: int, per_key: int, lease: float) -> list[KeyClaim]: ...

    @abstractmethod
    async def _settle(self, ends: list[KeySettlement]) -> list[KeyClaim]:
        """Settle the claims that are still leased; return the others.

        Calls `_more_behind` with the number of keys that have more records to claim.
        """

    @abstractmethod
    async def _renew(self, claims: list[KeyClaim], lease: float) -> list[KeyClaim]: ...

    @abstractmethod
    async def _announce_handlers(
        self, relay: str, handlers: Mapping[str, list[str]], age: float
    ) -> list[RelayInfo]: ...

    @abstractmethod
    async def _blocked(self, limit: int, after: str | None) -> list[BlockedKey]: ...

    @abstractmethod
    async def _records(
        self,
        state: RecordState | None,
        kind: str | None,
        key: str | None,
        limit: int,
        after: str | None,
    ) -> list[RecordInfo]: ...

    @abstractmethod
    async def _retry(self, ids: Sequence[str] | None, keys: Sequence[str] | None) -> int: ...

    @abstractmethod
    async def _drop(self, ids: Sequence[str] | None, keys: Sequence[str] | None) -> int: ...

    @abstractmethod
    async def _release(self, keys: Sequence[str] | None, relay: str | None) -> int: ...

    async def _give_back(self, claims: list[KeyClaim]) -> None:
        await self.settle([KeySettlement(claim, 0) for claim in claims])

    def _more_behind(self, keys: int) -> None:
        """Wake relays of this process: this many keys are free and have more records."""
        self._hints.send(keys)

    def _hint_after(self, ends: Sequence[KeySettlement]) -> None:
        """Give hints for keys that were given back, and for retries when they are due."""
        back = sum(end.action == "give_back" and end.done < len(end.claim.records) for end in ends)
        if back:
            self._give_hints(back)
        delays = [end.delay for end in ends if end.action == "retry"]
        if delays:
            self._hints.send_at(self.clock.now() + min(delays))


def claim_of(end: KeySettlement) -> tuple[str, int]:
    """The name and the token of a settlement's claim."""
    return end.claim.name, end.claim.token


def _chosen(
    ids: Sequence[str] | None, keys: Sequence[str] | None
) -> tuple[Sequence[str] | None, Sequence[str] | None]:
    if ids is not None and keys is not None:
        raise ConfigError("give ids or keys, not both")
    return distinct(ids, "ids"), distinct(keys, "keys")
