"""The relay: claim keys, handle their records in order, settle, until it is stopped.

A relay holds a key under a lease, handles its first few records one after the other, and settles
them together. Other keys are handled at the same time, so a slow key does not delay them. Records
that it does not settle are handled again: at least once, never out of order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from pollwise.outbox.handlers import RecordHandlers
from pollwise.outbox.handling import Handling
from pollwise.outbox.other_relays import ANNOUNCE_AGAIN, OtherRelays
from pollwise.outbox.progress import (
    DEATHS_MAX,
    RecordProgress,
    deaths_of,
    is_suspect,
    reason,
    suspect_wait,
)
from pollwise.outbox.records import KeyAction, KeyClaim, KeySettlement
from pollwise.outbox.stores.base import OutboxStore
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import (
    BreakerChanged,
    ChoreFailed,
    Event,
    Events,
    KeyBlocked,
    KeyGivenBack,
    KeyLost,
    OutboxMeasured,
    PatternUnmatched,
    RecordDead,
    RelayStarted,
    RelayStopped,
    RelayStopping,
)
from pollwise.runtime.executor.breakers import Breakers
from pollwise.runtime.executor.executor import Executor
from pollwise.runtime.executor.handlers import text_of
from pollwise.runtime.executor.settling import Settler
from pollwise.runtime.executor.starting import RunPlan
from pollwise.runtime.loop import POLL_RETRY, Batch

#: A key is settled after this many seconds even if records of its claim are left, so that a crash
#: repeats less.
SETTLE_AFTER = 1.0
#: How long a key waits after an error of the relay itself, in seconds.
AFTER_OWN_FAULT = 5.0
#: Handlers that do not wait end in waves, one per turn of the event loop, because concurrency is
#: limited. A settlement waits this many turns, so that one call settles a whole claim.
SETTLE_ROUNDS = 4
#: How often the relay checks whether a settlement was sent, in seconds.
SETTLED_CHECK = 0.01
#: How often the outbox is measured for metrics, in seconds; done during a poll.
MEASURE_EVERY = 60.0
#: How long closing the publishers and leaving the outbox may take, in seconds.
CLOSE_WITHIN = 5.0


@dataclass(frozen=True, slots=True)
class RelayPlan(RunPlan):
    """The checked options of a relay.

    batch: the maximum number of keys per poll.
    records_per_key: the maximum number of records of one key that are claimed together.
    """

    batch: int = 100
    records_per_key: int = 20


@dataclass(slots=True, eq=False)
class HeldKey:
    """A claimed key, until it is settled.

    done: how many records of the claim are completed.
    progress: what the handlers have done with the next record, once they have begun.
    """

    claim: KeyClaim
    done: int = 0
    progress: RecordProgress | None = None
    settled: KeySettlement | None = None
    task: asyncio.Task[None] | None = None
    began: bool = False
    ended: Literal["", "stop", "lost", "cancel"] = ""

    def settlement(
        self, action: KeyAction = "give_back", delay: float = 0.0, error: str | None = None
    ) -> KeySettlement:
        """The settlement of the claim, with what was done so far."""
        if self.done == len(self.claim.records):
            return KeySettlement(self.claim, self.done)
        item, known = self.claim.records[self.done], self.progress
        if item.retried and known is None:
            known = RecordProgress.read(item.progress, retried=True)
        changed = known is not None and (known or item.retried)  # writing it clears `retried`
        progress = known.text() if known is not None and changed else None
        return KeySettlement(self.claim, self.done, action, delay, error, progress)


class Relay(Executor[HeldKey, KeyClaim]):
    """A running relay."""

    what = "relay"

    def __init__(
        self,
        store: OutboxStore,
        plan: RelayPlan,
        registry: RecordHandlers,
        clock: Clock,
        events: Events,
    ) -> None:
        super().__init__(store, plan, clock, events, f"outbox:{store.name}", None)
        self._outbox = store
        self._registry = registry
        self._batch, self._per_key = plan.batch, plan.records_per_key
        self._others = OtherRelays(
            store, plan.name, self._source, registry.patterns(), clock, events
        )
        self._breakers = Breakers(registry.handlers, clock, self._note_breaker)
        self._ahead = 0.0  # how far the store's clock is ahead of the event loop's
        self._handling = Handling(
            plan.name,
            self._source,
            registry,
            self._threads,
            self._breakers,
            clock,
            events,
            self._random,
            plan.timeout,
            self._store_now,
        )
        self._settling: Settler[KeySettlement] = Settler(
            self._settle,
            lambda end: end.claim.name,
            self._source,
            clock,
            events,
            self._random,
            self._room.set,
            SETTLE_ROUNDS,
        )
        self._suspect: HeldKey | None = None  # the suspect that is handled, and those put back
        self._other_suspects: set[str] = set()
        self._next_measure = 0.0
        #: Set when the outbox was found, or could not be reached for now.
        self.ready = asyncio.Event()

    # From start to stop

    async def main(self) -> None:
        """Relay until stopped. Raises at once if the outbox does not exist or is not migrated."""
        try:
            await self._others.announce()
            await self._check_patterns()
        except Exception as error:
            if POLL_RETRY.classify(error) == "permanent":
                raise
            self._events.emit(ChoreFailed(self._source, "announce handlers", text_of(error)))
        self.ready.set()
        await super().main()

    async def _check_patterns(self) -> None:
        """Report the patterns that match no record; do nothing if the outbox is empty."""
        kinds = await self._outbox.kinds()
        for handler, pattern in self._registry.unmatched(kinds) if kinds else ():
            self._events.emit(
                PatternUnmatched(
                    self._source, self._plan.name, handler, pattern, tuple(sorted(kinds)[:10])
                )
            )

    def _lifecycle_event(
        self, what: Literal["started", "stopping", "stopped"], grace: float
    ) -> Event:
        name, plan = self._plan.name, self._plan
        if what == "started":
            handlers = tuple(self._registry.handlers)
            strategy, instance = repr(plan.polling), self._others.me
            return RelayStarted(self._source, name, handlers, plan.concurrency, strategy, instance)
        if what == "stopping":
            return RelayStopping(self._source, name, len(self._running), grace)
        return RelayStopped(self._source, name, self._given_back)

    async def _finish(self) -> None:
        await super()._finish()
        closing = [asyncio.ensure_future(self._quietly("leave", self._others.leave()))]
        for handler in self._registry.handlers.values():
            for given in handler.given:
                aclose = getattr(given, "aclose", None)
                if aclose is not None:
                    closing.append(asyncio.ensure_future(self._quietly("close", aclose())))
        _, late = await asyncio.wait(closing, timeout=CLOSE_WITHIN)
        for each in late:
            each.cancel()

    async def _quietly(self, chore: str, work: Any) -> None:
        try:
            await work
        except Exception as error:
            self._events.emit(ChoreFailed(self._source, chore, text_of(error)))

    def wake(self) -> None:
        """Poll at once, because something was committed. Callable from any thread."""
        with suppress(RuntimeError):  # the event loop is closed: the next relay finds it
            self._loop.call_soon_threadsafe(self.poll_loop.hint)

    # Claiming

    async def _claim(self, hold: float) -> Batch[KeyClaim]:
        """The poll: claim as many keys as there is room for, and start them."""
        await self._room_for(lambda: 1)
        await self._others.announce()
        by = self._others.announce_again_by()
        if by is not None:
            self.poll_loop.poll_by(by)
        limit = min(self._room_left(), self._batch)
        if self._others.standing_by:
            self._hand_over()
            return Batch((), self._batch)
        if self._stopping or limit < 1:
            return Batch((), self._batch)
        claims = await self._outbox.claim(self._plan.name, limit, self._per_key, self._plan.lease)
        self._take(claims)
        await self._prune()
        await self._measure()
        return Batch(claims, limit, tuple(map(self._waited, claims)))

    def _waited(self, claim: KeyClaim) -> float:
        """How long the first record waited for this claim, by the store's clock."""
        first = claim.records[0]
        if first.progress:
            return 0.0  # it waited for its retry, not for a poll
        return max(claim.until - self._plan.lease - first.record.created_at, 0.0)

    def _take(self, claims: list[KeyClaim]) -> None:
        """Hold claims, and start those that have a free place."""
        if not claims:
            return
        self._ahead = claims[0].until - self._plan.lease - self._clock.now()
        older = self._held()
        suspects: list[HeldKey] = []
        for claim in claims:
            if claim.name in older:  # our own lease on it expired
                self._lose(older[claim.name])
            (suspects if is_suspect(claim) else self._waiting).append(HeldKey(claim))
        if suspects:
            self._examine(suspects)
        self._chores.wake("renew leases")
        self._start_waiting()

    def _store_now(self) -> float:
        """The time by the store's clock, estimated from the last claim."""
        return self._clock.now() + self._ahead

    def _hand_over(self) -> None:
        """Give back the keys that have not begun: a newer relay has more handlers."""
        while self._waiting:
            self._give_back(self._waiting.popleft(), "a newer relay has more handlers")

    async def _measure(self) -> None:
        """Emit the counts of the outbox once a minute, if anyone listens."""
        now = self._clock.now()
        if now < self._next_measure or not self._events.wants(OutboxMeasured):
            return
        self._next_measure = now + MEASURE_EVERY
        try:
            stats = await self._outbox.stats()
        except Exception as error:
            self._events.emit(ChoreFailed(self._source, "measure", text_of(error)))
            return
        self._events.emit(
            OutboxMeasured(
                self._source,
                self._plan.name,
                stats.ready,
                stats.leased,
                stats.waiting,
                stats.dead,
                stats.keys_blocked,
                stats.behind,
                stats.oldest_age or 0.0,
            )
        )

    # Handling

    def _start(self, held: HeldKey) -> None:
        self._begin(held, self._work)

    async def _work(self, held: HeldKey) -> None:
        """Handle the records of a claim as far as possible. Never raises a handler's error."""
        held.began = True
        began = self._clock.now()
        raised: BaseException | None = None
        try:
            held.settled = await self._handle_records(held, began)
        except BaseException as error:
            raised = error
        took = self._clock.now() - began
        self._note_took(took)
        self._leave(held, raised, took)

    async def _handle_records(self, held: HeldKey, began: float) -> KeySettlement:
        """Handle records in order, until one is not completed."""
        claim = held.claim
        # After a relay died, one record at a time, to find out which of them was the cause.
        records = claim.records[:1] if claim.lapses or held is self._suspect else claim.records
        while held is self._suspect and self._settling.has(self._other_suspects):
            await self._clock.sleep(SETTLED_CHECK)  # the relay must hold no other suspect
        for item in records:
            if held.done and (self._hand_back_now() or self._clock.now() - began > SETTLE_AFTER):
                break
            if not self._registry.matching(item.record.kind):
                if not await self._announced_again():  # before it counts against the record
                    return held.settlement("retry", ANNOUNCE_AGAIN)
                if self._others.standing_by:
                    break
            held.progress = RecordProgress.read(item.progress, item.retried)
            unfinished = await self._handling.handle(item.record, held.progress, lambda: held.ended)
            if unfinished is None:
                held.done += 1
                held.progress = None
            elif unfinished.delay is None:
                self._note_blocked(claim, held.done)
                return held.settlement("dead", error=unfinished.error)
            else:
                return held.settlement("retry", unfinished.delay, unfinished.error)
        return held.settlement()

    async def _announced_again(self) -> bool:
        try:
            await self._others.announce(ANNOUNCE_AGAIN)
        except Exception as error:
            self._events.emit(ChoreFailed(self._source, "announce handlers", text_of(error)))
            return False
        return True

    def _hand_back_now(self) -> bool:
        return self._stopping or self._others.standing_by

    def _examine(self, suspects: list[HeldKey]) -> None:
        """Handle one of the keys under which relays died, alone; put the others back."""
        alone = [] if self._suspect is not None else [h for h in suspects if not h.claim.lapses]
        chosen = self._random.choice(alone) if alone else None
        self._other_suspects = {held.claim.name for held in suspects if held is not chosen}
        for held in suspects:
            if held is not chosen:
                end = self._put_back(held)
                self._settling.add(end)
                if end.action == "retry":  # poll again then, whatever the pacer says
                    self.poll_loop.poll_by(self._clock.now() + end.delay)
        if chosen is not None:
            self._suspect = chosen
            self._waiting.append(chosen)

    def _clear(self, held: HeldKey) -> None:
        """The key is no longer held: if it was the suspect, another can be handled."""
        if held is self._suspect:
            self._suspect = None

    def _put_back(self, held: HeldKey) -> KeySettlement:
        """The settlement of a suspect: it waits, or is dead if it killed too many relays."""
        claim, record = held.claim, held.claim.records[0].record
        held.progress, deaths = deaths_of(claim)
        error = reason(deaths)
        if deaths < DEATHS_MAX:
            return held.settlement("retry", suspect_wait(self._random), error)
        if self._events.wants(RecordDead):
            name = self._plan.name
            self._events.emit(
                RecordDead(self._source, name, record.id, record.kind, record.key, error)
            )
        self._note_blocked(claim, 0)
        return held.settlement("dead", error=error)

    def _leave(self, held: HeldKey, raised: BaseException | None, took: float) -> None:
        """Free the place of a key, and settle the key if its lease is still ours."""
        self._running.pop(held, None)
        self._clear(held)
        if held.settled is not None and held.ended != "lost":
            self._settling.add(held.settled)
        elif held.ended == "stop":
            self._give_back(held, f"the {self.what} stops")
        elif raised is not None and not held.ended:  # our own error: handlers' errors are caught
            self._events.emit(ChoreFailed(self._source, "handle", text_of(raised)))
            self._settling.add(held.settlement("retry", AFTER_OWN_FAULT, text_of(raised)))
        self._slot_is_free()

    def _give_back(self, held: HeldKey, reason: str, delay: float = 0.0) -> None:
        self._given_back += 1
        self._clear(held)
        claim = held.claim
        self._settling.add(held.settlement())
        if self._events.wants(KeyGivenBack):
            left = len(claim.records) - held.done
            self._events.emit(KeyGivenBack(self._source, self._plan.name, claim.key, left, reason))

    # Blocked keys

    def _note_blocked(self, claim: KeyClaim, at: int) -> None:
        record = claim.records[at].record
        if claim.key is None or self._outbox.on_dead != "block":
            return
        self._events.emit(KeyBlocked(self._source, self._plan.name, claim.key, record.id))

    # Breakers

    def _note_breaker(self, handler: str, state: str) -> None:
        self._events.emit(BreakerChanged(self._source, handler, state))

    # Leases

    async def _settle(self, batch: list[KeySettlement]) -> None:
        for claim in await self._outbox.settle(batch):
            self._note_lost(claim)

    async def _renew(self) -> None:
        """The chore: renew all leases in one call."""
        held = self._held()
        late = {end.claim.name: end.claim for end in self._settling.late()}
        claims = late | {name: each.claim for name, each in held.items()}
        if not claims:
            self._chores.rest("renew leases")
            return
        for claim in await self._outbox.renew(claims.values(), self._plan.lease):
            if claim.name in held and held[claim.name].claim is claim:
                self._lose(held[claim.name])

    def _held(self) -> Mapping[str, HeldKey]:
        """The keys that are claimed and not yet settled, by the names of their claims."""
        running = (held for held in self._running if held.ended != "lost")
        return {held.claim.name: held for held in (*running, *self._waiting)}

    def _lose(self, held: HeldKey) -> None:
        if held in self._running:
            self._note_lost(held.claim)
            self._end(held, "lost")
        elif held in self._waiting:
            self._note_lost(held.claim)
            self._waiting.remove(held)
            self._clear(held)
            self._room.set()

    def _note_lost(self, claim: KeyClaim) -> None:
        if self._events.wants(KeyLost):
            first = claim.records[0].record.id
            self._events.emit(KeyLost(self._source, self._plan.name, claim.key, first))
