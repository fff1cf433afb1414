"""What operators see of an outbox: counts, pages of records, blocked keys, relays.

The work of a page is bounded, whatever is in the outbox: a store examines at most EXAMINED_MAX
records for it, and counts up to COUNTED_MAX.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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
from pollwise.queues.views import COUNTED_MAX, EXAMINED_MAX, lowered
from pollwise.runtime.store import WorkStore, check_page
from pollwise.storage.ids import number_of

#: The maximum number of blocked keys, and of keys in work, that are examined to count the records
#: behind them and to find the oldest record.
KEYS_EXAMINED = 1000


class ViewedOutbox(WorkStore[KeyClaim]):
    """The views of an outbox's store."""

    @abstractmethod
    async def relays(self) -> list[RelayInfo]:
        """The live relays, the oldest first. `newer` is False: nobody asks."""

    async def stats(self, most: int = COUNTED_MAX) -> OutboxStats:
        """How many records are in each state.

        most: the store stops counting there; what it did not count is in `OutboxStats.capped`.
        """
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most < 2**31 - 1:
            raise ConfigError(f"most = {most!r} must be a whole number above 0")
        stats = await self._stats("", most)
        lanes = await self._read_lanes()
        if not lanes:
            return stats
        return stats.with_lanes({lane: await self._stats(lane, most) for lane in lanes})

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
        _check_state(state)
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
        """A page of records with a bounded amount of work: at most EXAMINED_MAX are examined.

        Dead records and all records come in order; those of another state in the order of the
        store's index: ready ones by key, done ones from the newest. With a key, no delayed and done
        records are found unless `state` asks for them.

        error: text in the error; upper and lower case of A to Z are equal.
        after: the `next` of the page before.
        """
        _check_state(state)
        check_page(limit)
        page = await self._page(state, kind, key, error, limit, after)
        return replace(page, records=self._shown(page.records))

    async def _page(
        self,
        state: RecordState | None,
        kind: str | None,
        key: str | None,
        error: str | None,
        limit: int,
        after: str | None,
    ) -> RecordsFound:
        """As `page`; for a store whose lists are cheap."""
        page = [
            info
            for info in await self._records(state, kind, key, EXAMINED_MAX, after)
            if error is None or lowered(error) in lowered(info.error or "")
        ]
        more = page[limit - 1].place if len(page) > limit else None
        return RecordsFound(page[:limit], more, len(page))

    async def get(self, record_id: str) -> list[RecordInfo]:
        """One record, once for each lane that has to handle it; empty if it is not there."""
        number = number_of(record_id)
        if not number:
            return []
        return self._shown(await self._rows_of(number))

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
    async def _stats(self, lane: str, most: int) -> OutboxStats: ...

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
    ) -> list[RecordInfo]: ...

    @abstractmethod
    async def _rows_of(self, record: int) -> list[RecordInfo]:
        """A record, or instead of it its copies in lanes."""


def _check_state(state: RecordState | None) -> None:
    if state is not None and state not in RECORD_STATES:
        raise ConfigError(f"state = {state!r} must be one of {', '.join(RECORD_STATES)}")


def capped_stats(
    live: int, most: int, names: Mapping[str, int], oldest_age: float | None
) -> OutboxStats:
    """The counts of a store that stops counting above `most`. live: ready, leased and waiting."""
    counts = {"ready": max(live - names["leased"] - names["waiting"], 0), **names}
    capped = {name for name, count in counts.items() if count > most}
    if live > most:
        capped.add("ready")
    if names["leased"] + names["waiting"] > most:
        capped |= {"leased", "waiting"}
    shown: dict[str, Any] = {name: min(count, most) for name, count in counts.items()}
    return OutboxStats(**shown, oldest_age=oldest_age, capped=frozenset(capped))
