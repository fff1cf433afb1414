"""Measures an outbox for metrics without relaying: metrics are needed even while no relay runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from pollwise.outbox.records import OutboxStats
from pollwise.outbox.stores.base import OutboxStore
from pollwise.queues.views import METERED_MAX
from pollwise.runtime.events import ChoreFailed, Events, OutboxMeasured
from pollwise.runtime.executor.handlers import text_of
from pollwise.runtime.loop import POLL_RETRY

#: In place of the name of a relay.
EXPORTER = "export"


def measures(source: str, relay: str, stats: OutboxStats, relays: int) -> list[OutboxMeasured]:
    """The events that make the gauges of an outbox, one for each lane. relays: how many live."""
    return [
        OutboxMeasured(
            source,
            relay,
            counts.ready,
            counts.leased,
            counts.waiting,
            counts.dead,
            counts.keys_blocked,
            counts.behind,
            counts.oldest_age or 0.0,
            lane=lane,
            relays=relays,
        )
        for lane, counts in (stats.lanes or {"": stats}).items()
    ]


async def export(store: OutboxStore, events: Events, stop: asyncio.Event, every: float) -> None:
    """Measure the outbox every `every` seconds until stopped.

    Raises at the start if the outbox does not exist or is not migrated; a database that cannot be
    reached is tried again.
    """
    source, answered = f"outbox:{store.name}", False
    while not stop.is_set():
        try:
            stats, relays = await store.stats(METERED_MAX), await store.relays()
            for event in measures(source, EXPORTER, stats, len(relays)):
                events.emit(event)
            answered = True
        except Exception as error:
            if not answered and POLL_RETRY.classify(error) == "permanent":
                raise
            events.emit(ChoreFailed(source, "measure", text_of(error)))
        with suppress(TimeoutError):
            async with asyncio.timeout(every):
                await stop.wait()
