"""Outboxes that are shown, and what needs attention in them."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pollwise.errors import PollwiseError
from pollwise.outbox.records import OutboxStats, RelayInfo
from pollwise.outbox.stores.base import OutboxStore
from pollwise.runtime.clock import Clock
from pollwise.runtime.rollups import HistoryPoint
from pollwise.web.sources import COUNTS_REMEMBERED, RANGES, REST_REMEMBERED, Remembered


@dataclass(frozen=True, slots=True)
class ShownOutbox:
    """What a page shows of an outbox. error: why the store did not answer."""

    stats: OutboxStats | None = None
    relays: tuple[RelayInfo, ...] = ()
    error: str | None = None

    @property
    def marker(self) -> Hashable:
        """Changes when the counts or the relays do; not with the age of the oldest record."""
        if self.stats is None:
            return self.error
        lanes = {lane: replace(each, oldest_age=None) for lane, each in self.stats.lanes.items()}
        counts = replace(self.stats, oldest_age=None, lanes={})
        return repr((counts, lanes)), tuple(relay.relay for relay in self.relays)


class OutboxSource:
    """An outbox that is shown. slug: its name in addresses, unique among the outboxes."""

    def __init__(self, slug: str, store: OutboxStore, clock: Clock) -> None:
        self.slug = slug
        self.store = store
        self.name: str = store.name
        self.title: str = store.name
        self.place: str = store.url  # without secrets
        self._stats = Remembered(store.stats, clock, COUNTS_REMEMBERED)
        self._relays = Remembered(store.relays, clock, REST_REMEMBERED)
        self._ranges: dict[str, Remembered[Sequence[HistoryPoint]]] = {
            name: Remembered(partial(store.history, span), clock, step / 3)
            for name, (span, step) in RANGES.items()
        }

    async def snapshot(self) -> ShownOutbox:
        """The counts and the live relays."""
        try:
            stats, relays = await asyncio.gather(self._stats.get(), self._relays.get())
        except (PollwiseError, OSError) as error:
            return ShownOutbox(error=str(error) or type(error).__name__)
        return ShownOutbox(stats, tuple(relays))

    async def history(self, chosen: str) -> Sequence[HistoryPoint]:
        """What relays did in one of RANGES; nothing if the store does not answer."""
        try:
            return await self._ranges[chosen].get()
        except (PollwiseError, OSError):
            return ()

    def forget(self) -> None:
        """An action changed the outbox: the next page reads it again."""
        self._stats.forget()
        self._relays.forget()
