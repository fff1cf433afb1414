"""Sends settlements to the store: in batches, retried until the store takes them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Generic, TypeVar

from pollwise.core.retry import Retry
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import ChoreFailed, Events
from pollwise.runtime.hints import Hint

#: How a settlement that failed is retried.
SETTLE_RETRY = Retry.exponential("100ms", max_delay="5s", attempts=None)

S = TypeVar("S")


class Settler(Generic[S]):
    """The settlements to send. Those added while one batch is sent form the next batch.

    Where each call to the store is billed (`gather`), settlements may wait a moment for more.

    send: settles a batch and handles lost leases; raises when nothing of the batch was settled.
    name_of: identifies the settled work; a newer settlement of the same work replaces the older.
    on_room: called after each batch, sent or failed.
    rounds: how many turns of the event loop the first settlement of a batch waits for others.
    """

    def __init__(
        self,
        send: Callable[[list[S]], Awaitable[Any]],
        name_of: Callable[[S], str],
        source: str,
        clock: Clock,
        events: Events,
        rng: random.Random,
        on_room: Callable[[], None],
        rounds: int = 0,
    ) -> None:
        self._send = send
        self._name_of = name_of
        self._source = source
        self._clock = clock
        self._events = events
        self._random = rng
        self._on_room = on_room
        self._rounds = rounds
        self._pending: dict[str, S] = {}
        self._since: dict[str, float] = {}
        self._flush: asyncio.Task[None] | None = None
        self._failures = 0  # in a row
        self._tries_left: int | None = None
        self._now = Hint()
        self._enough = Hint()
        self._gather = 0.0
        self._gather_up_to = 1
        self._may_wait: Callable[[S], bool] = lambda _: False

    def gather(self, wait: float, up_to: int, may_wait: Callable[[S], bool]) -> None:
        """Let settlements that `may_wait` wait for more: for `wait` seconds, up to `up_to`."""
        self._gather, self._gather_up_to, self._may_wait = wait, up_to, may_wait

    def __len__(self) -> int:
        return len(self._pending)

    def has(self, names: Collection[str]) -> bool:
        """True if any of these waits to be settled."""
        return any(name in self._pending for name in names)

    def late(self) -> list[S]:
        """Settlements whose leases still need renewal: not those that are just being gathered."""
        by = self._clock.now() - self._gather
        return [item for name, item in self._pending.items() if self._since[name] <= by]

    def add(self, settlement: S) -> None:
        name = self._name_of(settlement)
        self._pending[name] = settlement
        self._since[name] = self._clock.now()
        if not self._may_wait(settlement) or len(self._pending) >= self._gather_up_to:
            self._enough.give()
        self._begin()

    async def finish(self, tries: int, within: float) -> None:
        """Settle the rest, with at most `tries` more calls in quick succession.

        within: how long that may take, in seconds, so that a hanging store does not block a stop.
        """
        self._tries_left = tries
        self._failures = 0
        self._now.give()  # it may be in a long retry delay
        self._enough.give()
        if self._pending:
            self._begin()
        if self._flush is not None:
            flush = self._flush
            await asyncio.wait([flush], timeout=within)
            flush.cancel()
            await asyncio.wait([flush])

    def _begin(self) -> None:
        if self._flush is None:
            self._flush = asyncio.get_running_loop().create_task(self._flush_all())

    async def _flush_all(self) -> None:
        try:
            for _ in range(self._rounds):
                await asyncio.sleep(0)
            while self._pending and self._tries_left != 0:
                if self._gather and self._tries_left is None:
                    await self._clock.sleep(self._gather, self._enough)
                try:
                    self._enough.forget()
                    await self._settle(self._next_batch())
                    self._failures = 0
                except Exception as error:
                    self._failures += 1
                    if self._tries_left is not None:
                        self._tries_left -= 1
                    text = f"{type(error).__name__}: {error}"
                    self._events.emit(ChoreFailed(self._source, "settle", text))
                    if self._tries_left != 0:
                        delay = SETTLE_RETRY.delay(self._failures, self._random.random())
                        await self._clock.sleep(delay, self._now)
                self._on_room()
        finally:
            self._flush = None

    def _next_batch(self) -> list[S]:
        """All that is pending; where calls are billed, only full calls, the rest with the next."""
        batch = list(self._pending.values())
        full = len(batch) - len(batch) % self._gather_up_to
        if self._gather and full and self._tries_left is None:
            return batch[:full] if all(map(self._may_wait, batch)) else batch
        return batch

    async def _settle(self, batch: list[S]) -> None:
        await self._send(batch)
        for settlement in batch:
            name = self._name_of(settlement)
            if self._pending.get(name) is settlement:
                del self._pending[name]
                del self._since[name]
