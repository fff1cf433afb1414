"""Shared by the tests of relays: an outbox in memory under the virtual clock, and its record."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from pollwise.outbox import NewRecord, Outbox, OutboxRunOptions
from pollwise.outbox.stores.base import OutboxStore
from pollwise.outbox.stores.memory import MemoryOutboxStore
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import Event, Events


class Bench:
    """An outbox, the events of its relays, and the calls of its handlers."""

    def __init__(self, **store: Any) -> None:
        self.clock = VirtualClock()
        self.store: OutboxStore = MemoryOutboxStore(clock=self.clock, **store)
        self.told: list[Event] = []
        self.calls: list[tuple[str, Any]] = []

    def outbox(self, store: OutboxStore | None = None, **options: Any) -> Outbox:
        """An outbox whose relay polls without jitter, and handles no signals."""
        relay, clock = options.pop("relay", None), options.pop("clock", None)
        events = Events(quiet=True)
        events.subscribe(self.told.append)
        settings = OutboxRunOptions(**{"signals": False, "seed": 1, **options})
        place = store or self.store
        return Outbox(place, options=settings, events=events, relay=relay, clock=clock)

    def recorder(self, name: str, delay: float = 0.0) -> Callable[[Any], Coroutine[Any, Any, None]]:
        """A handler that remembers its records."""

        async def handle(record: Any) -> None:
            if delay:
                await self.clock.sleep(delay)
            self.calls.append((name, record.payload))

        handle.__name__ = name
        return handle

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        self.clock.run(main)

    def events(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]

    async def put(self, count: int, *, key: str | None = "k", kind: str = "order.placed") -> None:
        await self.store.put([NewRecord(kind, number, key) for number in range(count)])

    def payloads(self, handler: str) -> list[Any]:
        return [payload for name, payload in self.calls if name == handler]
