"""What operators see of an outbox: counts, pages of records, blocked keys, relays.

The work of a page is bounded, whatever is in the outbox: a store examines at most EXAMINED_MAX
records for it, and counts up to COUNTED_MAX.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from pollwise.errors import ConfigError
from pollwise.outbox.records import (
    RECORD_STATES,
    BlockedKey,
    KeyClaim,
    OutboxStats,
    RecordInfo,
    RecordsFound,
    RecordState,
    RelayInfo,
)
from pollwise.queues.views import EXAMINED_MAX, LISTED_AT_ONCE, lowered
from pollwise.runtime.store import MAX_PAGE, WorkStore, check_page
from pollwise.storage.ids import number_of


class ViewedOutbox(WorkStore[KeyClaim]):
    """The views of an outbox's store."""

    @abstractmethod
    async def relays(self) -> list[RelayInfo]:
        """The live relays, the oldest first. `newer` is False: nobody asks."""

    async def stats(self) -> OutboxStats:
        """How many records are in each state."""
        stats = await self._stats("")
        lanes = await self._read_lanes()
        if not lanes:
            return stats
        return stats.with_lanes({lane: await self._stats(lane) for lane in lanes})

    async def blocked(self, limit: int = 50, after: str | None = None) -> list[BlockedKey]:
        """A page of the blocked keys, sorted; `after` is the last key of the page before.

        A key can be blocked in several lanes. They are on the same page.
        """
        check_page(limit)
        page = await self._blocked("", limit, after)
        lanes = await self._read_lanes()
        if not lanes:
            return page
        for lane in lanes:
            page += await self._blocked(lane, limit, after)
        page.sort(key=lambda blocked: (blocked.key, blocked.lane))
        last = page[min(limit, len(page)) - 1].key if page else ""
        return [blocked for blocked in page if blocked.key <= last]

    async def records(
        self,
        state: RecordState | None = None,
        *,
        kind: str | None = None,
        key: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> list[RecordInfo]:
        """A page of records in order; `after` is the last `place` of the page before.

        A record that was handed to its lanes is shown once for each lane that has not completed
        it.
        """
        if state is not None and state not in RECORD_STATES:
            raise ConfigError(f"state = {state!r} must be one of {', '.join(RECORD_STATES)}")
        check_page(limit)
        return self._shown(await self._records(state, kind, key, limit, after))

    async def page(
        self,
        state: RecordState | None = None,
        *,
        kind: str | None = None,
        key: str | None = None,
        error: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> RecordsFound:
        """As `records`, with a bounded amount of work: at most EXAMINED_MAX records are examined.

        error: text in the error; upper and lower case of A to Z are equal.
        after: the `next` of the page before.
        """
        found: list[RecordInfo] = []
        examined = 0
        step = limit if error is None else min(LISTED_AT_ONCE, MAX_PAGE)
        while True:
            part = await self.records(state, kind=kind, key=key, limit=step, after=after)
            for info in part:
                after, examined = info.place, examined + 1
                if error is None or lowered(error) in lowered(info.error or ""):
                    found.append(info)
                    if len(found) == limit:
                        return RecordsFound(found, after, examined)
            if len(part) < step:
                return RecordsFound(found, None, examined)
            if examined >= EXAMINED_MAX:
                return RecordsFound(found, after, examined)

    async def get(self, record_id: str) -> list[RecordInfo]:
        """One record, once for each lane that has to handle it; empty if it is not there."""
        number = number_of(record_id)
        if not number:
            return []
        return self._shown(await self._records(None, None, None, MAX_PAGE, None, number))

    def _shown(self, page: list[RecordInfo]) -> list[RecordInfo]:
        return [replace(info, record=self._sealing.opened(info.record)) for info in page]

    async def kinds(self) -> list[str]:
        """The different kinds of the first records in the outbox."""
        return list(dict.fromkeys(info.record.kind for info in await self.records(limit=50)))

    # Each store implements these.

    @abstractmethod
    async def _read_lanes(self) -> tuple[str, ...]:
        """The lanes that the outbox has now, sorted."""

    @abstractmethod
    async def _stats(self, lane: str) -> OutboxStats: ...

    @abstractmethod
    async def _blocked(self, lane: str, limit: int, after: str | None) -> list[BlockedKey]: ...

    @abstractmethod
    async def _records(
        self,
        state: RecordState | None,
        kind: str | None,
        key: str | None,
        limit: int,
        after: str | None,
        record: int | None = None,
    ) -> list[RecordInfo]: ...
