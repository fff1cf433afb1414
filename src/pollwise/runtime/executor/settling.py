"""Sends settlements to the store: in batches, retried until the store takes them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from pollwise.core.retry import Retry
from pollwise.errors import LeaseLost
from pollwise.runtime.clock import Clock
from pollwise.runtime.contexts import task_in
from pollwise.runtime.events import ChoreFailed, Events
from pollwise.runtime.executor.work import Held, Work
from pollwise.runtime.hints import Hint
from pollwise.runtime.store import WorkStore
from pollwise.runtime.tracing import spans

#: How a settlement that failed is retried.
SETTLE_RETRY = Retry.exponential("100ms", max_delay="5s", attempts=None)

H = TypeVar("H", bound=Held)


class Settler(Generic[H]):
    """The settlements to send. Those added while one batch is sent form the next batch.

    Where each call to the store is billed (`gather`), settlements may wait a moment for more.

    held: the executor's table, from which settled work is removed.
    on_room: called after each batch, sent or failed.
    rounds: how many turns of the event loop the first settlement of a batch waits for others.
    """

    def __init__(
        self,
        held: dict[str, H],
        work: Work[H, Any],
        store: WorkStore[Any],
        lease: float,
        clock: Clock,
        events: Events,
        rng: random.Random,
        on_room: Callable[[], None],
        rounds: int,
    ) -> None:
        self._held = held
        self._work = work
        self._clock = clock
        self._events = events
        self._random = rng
        self._on_room = on_room
        self._rounds = rounds
        self._context = copy_context()
        self._pending: dict[str, H] = {}
        self._flush: asyncio.Task[None] | None = None
        self._failures = 0  # in a row
        self._tries_left: int | None = None
        self._now = Hint()
        self._enough = Hint()
        # A lease must not run out while its settlement is gathered.
        self._gather = min(store.gather, lease / 6)
        self._gather_up_to = store.gather_up_to

    def __len__(self) -> int:
        return len(self._pending)

    def late(self, held: H, now: float) -> bool:
        """True unless its settlement is just being gathered."""
        return held.settlement is None or held.settled_at <= now - self._gather

    def add(self, held: H) -> None:
        """Send `held.settlement`; it replaces an older settlement of the same work."""
        self._pending[held.name] = held
        held.settled_at = self._clock.now()
        if self._gather and (not held.may_wait or len(self._pending) >= self._gather_up_to):
            self._enough.give()
        self._begin()

    def _begin(self) -> None:
        if self._flush is None:
            self._flush = task_in(self._context, self._flush_all())

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

    async def _flush_all(self) -> None:
        try:
            for _ in range(self._rounds):
                await asyncio.sleep(0)
            while self._pending and self._tries_left != 0:
                if self._gather and self._tries_left is None:
                    await self._clock.sleep(self._gather, self._enough)
                try:
                    self._enough.forget()
                    await self._send()
                    self._failures = 0
                except Exception as error:
                    await self._failed(error)
                self._on_room()
        finally:
            self._flush = None

    async def _send(self) -> None:
        """Settle all that is pending; where calls are billed, only full calls."""
        batch = list(self._pending.values())
        full = len(batch) - len(batch) % self._gather_up_to
        if self._gather and full and self._tries_left is None:
            if all(held.may_wait for held in batch):
                batch = batch[:full]
        began = self._clock.now()
        try:
            lost = await self._work.settle([held.settlement for held in batch])
        except Exception as error:
            self._note_failed(batch, began, error)
            raise
        if lost:
            theirs = [each for each in batch if each.name in lost]
            self._note_failed(theirs, began, LeaseLost([each.name for each in theirs]))
        for held in batch:
            name = held.name
            if self._pending.get(name) is held:
                del self._pending[name]
            if self._held.get(name) is held:
                del self._held[name]
            if name in lost:
                self._work.lost(held)

    def _note_failed(self, batch: list[H], began: float, error: Exception) -> None:
        headers = (each for held in batch for each in held.headers())
        took = self._clock.now() - began
        spans.settle_failed(self._work.source, took, spans.type_of(error), headers, len(batch))

    async def _failed(self, error: Exception) -> None:
        self._failures += 1
        if self._tries_left is not None:
            self._tries_left -= 1
        text = f"{type(error).__name__}: {error}"
        self._events.emit(ChoreFailed(self._work.source, "settle", text))
        if self._tries_left != 0:
            delay = SETTLE_RETRY.delay(self._failures, self._random.random())
            await self._clock.sleep(delay, self._now)
