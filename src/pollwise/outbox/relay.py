"""One run of a relay: claim keys -> handle their records in order -> settle, until it is stopped.

A key is one line of records. A relay holds it under a lease, handles the first few of its records
one after the other, and settles them together; other keys are handled beside it, so a slow one
holds nobody else up. What it does not settle comes again: at least once, never out of order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pollwise.outbox.handlers import Registry
from pollwise.outbox.handling import Handling
from pollwise.outbox.peers import AGAIN, Peers
from pollwise.outbox.progress import Progress
from pollwise.outbox.records import KeyClaim, KeyEnd
from pollwise.outbox.stores.base import OutboxStore
from pollwise.outbox.suspects import DEATHS_MAX, deaths_of, is_suspect, reason, time_apart
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
from pollwise.runtime.executor.handlers import text_of
from pollwise.runtime.executor.plan import Plan
from pollwise.runtime.executor.runner import Runner
from pollwise.runtime.executor.settling import Settling
from pollwise.runtime.loop import POLL_RETRY, Batch

#: A run that took so long is settled as far as it is, in seconds: a crash repeats no more.
RUN_SECONDS = 1.0
#: How long a key waits when the relay itself failed on it, in seconds.
AFTER_OWN_FAULT = 5.0
#: Handlers that do not wait end in waves, each in a turn of the event loop, since only so many keys
#: are handled at a time. A settlement waits for so many turns: so a claim is settled by one call.
SETTLE_ROUNDS = 4
#: How often it is looked whether a settlement is through, in seconds.
SETTLED_SOON = 0.01
#: How often the outbox is measured for metrics, in seconds; rides on a poll.
MEASURE_EVERY = 60.0
#: How long a publisher may take to close, and taking an announcement back, in seconds.
CLOSE_WITHIN = 5.0


@dataclass(frozen=True, slots=True)
class RelayPlan(Plan):
    """What a relay goes by.

    batch: the most keys a poll claims.
    run: the most records of a key that are claimed together.
    """

    batch: int = 100
    run: int = 20


@dataclass(slots=True, eq=False)
class HeldKey:
    """A claimed key, until it is settled.

    done: how many records of its run are completed.
    progress: how far the handlers are with the next one, once they have begun.
    """

    claim: KeyClaim
    done: int = 0
    progress: Progress | None = None
    settled: KeyEnd | None = None
    task: asyncio.Task[None] | None = None
    began: bool = False
    ended: Literal["", "stop", "lost"] = ""

    def end(self, verdict: Any = "free", delay: float = 0.0, error: str | None = None) -> KeyEnd:
        """How the claim ends, with what was done so far."""
        if self.done == len(self.claim.run):
            return KeyEnd(self.claim, self.done)
        item, known = self.claim.run[self.done], self.progress
        if item.fresh and known is None:
            known = Progress.read(item.progress, fresh=True)
        changed = known is not None and (known or item.fresh)  # progress ends that it is fresh
        progress = known.text() if known is not None and changed else None
        return KeyEnd(self.claim, self.done, verdict, delay, error, progress)


class Relay(Runner[HeldKey, KeyClaim]):
    """A relay at work."""

    what = "relay"

    def __init__(
        self,
        store: OutboxStore,
        plan: RelayPlan,
        registry: Registry,
        clock: Clock,
        events: Events,
    ) -> None:
        super().__init__(store, plan, clock, events, f"outbox:{store.name}", None)
        self._outbox = store
        self._registry = registry
        self._batch, self._run = plan.batch, plan.run
        self._peers = Peers(store, plan.name, self._source, registry.sets(), clock, events)
        self._breakers = Breakers(registry.handlers, clock, self._note_breaker)
        self._ahead = 0.0  # of the store's clock before the event loop's
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
        self._settling: Settling[KeyEnd] = Settling(
            self._settle,
            lambda end: end.claim.name,
            self._source,
            clock,
            events,
            self._random,
            self._room.set,
            SETTLE_ROUNDS,
        )
        self._suspect: HeldKey | None = None  # the one that is handled, and those set apart
        self._apart: set[str] = set()
        self._next_measure = 0.0
        #: Set when the outbox was seen to be there, or to be out of reach for now.
        self.ready = asyncio.Event()

    # From start to stop

    async def main(self) -> None:
        """Relay until stopped. An outbox that is not there, or not migrated, is an error now."""
        try:
            await self._peers.look()
            await self._check_patterns()
        except Exception as error:
            if POLL_RETRY.classify(error) == "permanent":
                raise
            self._events.emit(ChoreFailed(self._source, "announce handlers", text_of(error)))
        self.ready.set()
        await super().main()

    async def _check_patterns(self) -> None:
        """Say which patterns match nothing of what is there; an empty outbox says nothing."""
        kinds = await self._outbox.kinds()
        for handler, pattern in self._registry.unmatched(kinds) if kinds else ():
            self._events.emit(
                PatternUnmatched(
                    self._source, self._plan.name, handler, pattern, tuple(sorted(kinds)[:10])
                )
            )

    def _told(self, what: Literal["started", "stopping", "stopped"], grace: float) -> Event:
        name, plan = self._plan.name, self._plan
        if what == "started":
            handlers = tuple(self._registry.handlers)
            strategy, run = repr(plan.polling), self._peers.me
            return RelayStarted(self._source, name, handlers, plan.concurrency, strategy, run)
        if what == "stopping":
            return RelayStopping(self._source, name, len(self._running), grace)
        return RelayStopped(self._source, name, self._given_back)

    async def _finish(self) -> None:
        await super()._finish()
        closing = [asyncio.ensure_future(self._quietly("leave", self._peers.leave()))]
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
        """Look at once: something was committed. From any thread."""
        try:
            self._loop.call_soon_threadsafe(self.poll_loop.hint)
        except RuntimeError:  # its event loop is closed: whoever relays next finds it
            return

    # Claiming

    async def _claim(self, hold: float) -> Batch[KeyClaim]:
        """The poll: claim as many keys as there is room for, and begin with them."""
        await self._room_for(lambda: 1)
        await self._peers.look()
        by = self._peers.look_again_by()
        if by is not None:
            self.poll_loop.look_by(by)
        limit = min(self._room_left(), self._batch)
        if self._peers.standing_by:
            self._hand_over()
            return Batch((), self._batch)
        if self._stopping or limit < 1:
            return Batch((), self._batch)
        claims = await self._outbox.claim(self._plan.name, limit, self._run, self._plan.lease)
        self._take(claims)
        await self._prune()
        await self._measure()
        return Batch(claims, limit, tuple(map(self._waited, claims)))

    def _waited(self, claim: KeyClaim) -> float:
        """How long a key had something new when it was claimed, by the clock of the store."""
        first = claim.run[0]
        if first.progress:
            return 0.0  # it waited for its retry, not for us
        return max(claim.until - self._plan.lease - first.record.created_at, 0.0)

    def _take(self, claims: list[KeyClaim]) -> None:
        """Hold claims, and start what there is a place for."""
        if not claims:
            return
        self._ahead = claims[0].until - self._plan.lease - self._clock.now()
        older = self._held()
        suspects: list[HeldKey] = []
        for claim in claims:
            if claim.name in older:  # our own lease on it had run out
                self._lose(older[claim.name])
            (suspects if is_suspect(claim) else self._waiting).append(HeldKey(claim))
        if suspects:
            self._examine(suspects)
        self._chores.wake("renew leases")
        self._start_waiting()

    def _store_now(self) -> float:
        """The time by the store's clock, as far as the last claim told."""
        return self._clock.now() + self._ahead

    def _hand_over(self) -> None:
        """A newer relay has what this one lacks: what has not begun is for that one."""
        while self._waiting:
            self._give_back(self._waiting.popleft(), "a newer relay has more handlers")

    async def _measure(self) -> None:
        """The chore that rides on polls, when somebody wants to know."""
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
        """Handle a run, or as much of it as can be. Nothing a handler raises leaves this."""
        held.began = True
        began = self._clock.now()
        raised: BaseException | None = None
        try:
            held.settled = await self._handle_run(held, began)
        except BaseException as error:
            raised = error
        took = self._clock.now() - began
        self._note_took(took)
        self._leave(held, raised, took)

    async def _handle_run(self, held: HeldKey, began: float) -> KeyEnd:
        """Handle records in order, until one is not completed."""
        claim = held.claim
        # Where a relay died, one record at a time, to know which of them it is.
        run = claim.run[:1] if claim.lapses or held is self._suspect else claim.run
        while held is self._suspect and self._settling.has(self._apart):
            await self._clock.sleep(SETTLED_SOON)  # the others are not to be held beside it
        for item in run:
            if held.done and (self._hand_back_now() or self._clock.now() - began > RUN_SECONDS):
                break
            if not self._registry.matching(item.record.kind):
                if not await self._looked_again():  # before it counts against the record
                    return held.end("retry", AGAIN)
                if self._peers.standing_by:
                    break
            held.progress = Progress.read(item.progress, item.fresh)
            open_one = await self._handling.handle(item, held.progress, held)
            if open_one is None:
                held.done += 1
                held.progress = None
            elif open_one.delay is None:
                self._note_blocked(claim, held.done)
                return held.end("dead", error=open_one.error)
            else:
                return held.end("retry", open_one.delay, open_one.error)
        return held.end()

    async def _looked_again(self) -> bool:
        try:
            await self._peers.look(AGAIN)
        except Exception as error:
            self._events.emit(ChoreFailed(self._source, "announce handlers", text_of(error)))
            return False
        return True

    def _hand_back_now(self) -> bool:
        return self._stopping or self._peers.standing_by

    def _examine(self, suspects: list[HeldKey]) -> None:
        """Keys under which relays died: one of them is handled, alone; the others wait apart."""
        alone = [] if self._suspect is not None else [h for h in suspects if not h.claim.lapses]
        chosen = self._random.choice(alone) if alone else None
        self._apart = {held.claim.name for held in suspects if held is not chosen}
        for held in suspects:
            if held is not chosen:
                end = self._set_apart(held)
                self._settling.add(end)
                if end.verdict == "retry":  # many may wait: whatever the pacer says, look then
                    self.poll_loop.look_by(self._clock.now() + end.delay)
        if chosen is not None:
            self._suspect = chosen
            self._waiting.append(chosen)

    def _clear(self, held: HeldKey) -> None:
        """It is not held any more: if it was the suspect, another may be examined."""
        if held is self._suspect:
            self._suspect = None

    def _set_apart(self, held: HeldKey) -> KeyEnd:
        claim, record = held.claim, held.claim.run[0].record
        held.progress, deaths = deaths_of(claim)
        error = reason(deaths)
        if deaths < DEATHS_MAX:
            return held.end("retry", time_apart(self._random), error)
        if self._events.wants(RecordDead):
            name = self._plan.name
            self._events.emit(
                RecordDead(self._source, name, record.id, record.kind, record.key, error)
            )
        self._note_blocked(claim, 0)
        return held.end("dead", error=error)

    def _leave(self, held: HeldKey, raised: BaseException | None, took: float) -> None:
        """A run is over: give its place free, and settle the key if it is still ours."""
        self._running.pop(held, None)
        self._clear(held)
        if held.settled is not None and held.ended != "lost":
            self._settling.add(held.settled)
        elif held.ended == "stop":
            self._give_back(held, f"the {self.what} stops")
        elif raised is not None and not held.ended:  # ours, since handlers' errors are caught
            self._events.emit(ChoreFailed(self._source, "handle", text_of(raised)))
            self._settling.add(held.end("retry", AFTER_OWN_FAULT, text_of(raised)))
        self._place_is_free()

    def _give_back(self, held: HeldKey, reason: str, delay: float = 0.0) -> None:
        self._given_back += 1
        self._clear(held)
        claim = held.claim
        self._settling.add(held.end())
        if self._events.wants(KeyGivenBack):
            left = len(claim.run) - held.done
            self._events.emit(KeyGivenBack(self._source, self._plan.name, claim.key, left, reason))

    # Blocked keys

    def _note_blocked(self, claim: KeyClaim, at: int) -> None:
        record = claim.run[at].record
        if claim.key is None or self._outbox.on_dead != "block":
            return
        self._events.emit(KeyBlocked(self._source, self._plan.name, claim.key, record.id))

    # Breakers

    def _note_breaker(self, handler: str, state: str) -> None:
        self._events.emit(BreakerChanged(self._source, handler, state))

    # Leases

    async def _settle(self, batch: list[KeyEnd]) -> None:
        for claim in await self._outbox.settle(batch):
            self._note_lost(claim)

    async def _renew(self) -> None:
        """The chore: renew every lease that is held, in one call."""
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
        """What is claimed and not yet settled, as far as we know, by its line."""
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
            first = claim.run[0].record.id
            self._events.emit(KeyLost(self._source, self._plan.name, claim.key, first))
