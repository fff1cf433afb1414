"""The relay: claim keys, handle their records in order, settle, until it is stopped.

A relay holds a key under a lease, handles its first few records one after the other, and settles
them together. Other keys are handled at the same time, so a slow key does not delay them. Records
that it does not settle are handled again: at least once, never out of order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.batch_fill import BatchFill
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError
from pollwise.outbox.export import measures
from pollwise.outbox.handlers import RecordHandlers
from pollwise.outbox.handling import Handling
from pollwise.outbox.lanes import to_lanes
from pollwise.outbox.other_relays import ANNOUNCE_AGAIN, ANNOUNCE_EVERY, OtherRelays
from pollwise.outbox.progress import (
    DEATHS_MAX,
    HeldKey,
    RecordProgress,
    deaths_of,
    is_suspect,
    reason,
    suspect_wait,
)
from pollwise.outbox.records import KeyClaim, KeySettlement
from pollwise.outbox.stores.base import MAX_PER_KEY, OutboxStore
from pollwise.queues.views import METERED_MAX
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import (
    ChoreFailed,
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
from pollwise.runtime.executor.background import to_its_end
from pollwise.runtime.executor.executor import Executor
from pollwise.runtime.executor.handlers import text_of
from pollwise.runtime.executor.starting import RunOptions, check_whole
from pollwise.runtime.jobs import Renewal
from pollwise.runtime.loop import POLL_RETRY, Batch
from pollwise.runtime.rollups.kept_pace import KeptPace

#: The maximum number of keys that one poll claims.
MAX_KEYS = 1000
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


@dataclass(frozen=True, kw_only=True)
class OutboxRunOptions(RunOptions):
    """How a relay runs.

    polling: the strategy that paces the polls.
    batch: the maximum number of keys per poll: the capacity that the strategy sees.
    records_per_key: the maximum number of records of one key that are claimed together.
    concurrency: how many keys are handled at a time; the records of one key, one by one.
    lease: how long a claim lasts without renewal. Leases are renewed while handlers run, so this
        is the time after which other relays take over the keys of a killed relay.
    grace: how long a stop waits for handlers before it cancels them and gives their keys back.
    timeout: how long a handler may run, unless it has its own timeout; None for no limit.
    drain: poll again at once after a full batch; None: every strategy does so except `Fixed`.
    hints: let a hint of a commit end a pause early.
    long_interval: the longest pause while hints are proven to arrive.
    signals: stop on SIGTERM, SIGINT and SIGHUP (in the main thread), unless the program handles
        them itself; a second one ends the grace. What then does not end, such as a handler that
        swallows its cancellation, ends with the process 30 s later.
    seed: makes jitter repeatable.
    max_memory: stop when the process uses more than this many bytes, so that a fresh process takes
        over; `Outbox.recycled` says why.
    recycle_when_full: the same when threads of handlers that timed out occupy all places.
    trace_context: how the OpenTelemetry span of a record refers to the span of its put: "link", or
        "parent" for one trace.
    check_patterns: at the start, report the patterns of handlers that match none of the records.
    """

    polling: Strategy = field(default_factory=BatchFill)
    batch: int = 100
    records_per_key: int = 20
    check_patterns: bool = True
    concurrency: int = 64
    lease: Duration = "30s"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.polling.longest_hold:
            raise ConfigError(
                f"{self.polling!r} holds its polls, which an outbox cannot do; "
                "use a strategy without a hold"
            )
        check_whole(self.batch, "batch", 1, MAX_KEYS)
        check_whole(self.records_per_key, "records_per_key", 1, MAX_PER_KEY)


class Relay:
    """A running relay."""

    what = "relay"

    def __init__(
        self,
        store: OutboxStore,
        name: str,
        options: OutboxRunOptions,
        registry: RecordHandlers,
        clock: Clock,
        events: Events,
    ) -> None:
        polling = options.polling.for_source(can_hold=False)
        if isinstance(polling, BatchFill):  # show the batch size that it will see
            polling = replace(polling, batch_size=options.batch)
        options = replace(options, polling=polling)
        self.source: str = f"outbox:{store.name}"
        self._outbox = store
        self._name = name
        self._options = options
        self._registry = registry
        self._clock = clock
        self._events = events
        self._executor: Executor[HeldKey, KeyClaim] = Executor(
            self, store, name, options, clock, events, rounds=SETTLE_ROUNDS
        )
        self._others = OtherRelays(store, name, self.source, registry.patterns(), clock, events)
        self._tally = self._others.tally
        self._others.pace = self._pace = KeptPace(store, self._executor.polls, clock, events)
        self._executor.pruning.fold = self._fold_history
        self._ahead = 0.0  # how far the store's clock is ahead of the event loop's
        self._handling = Handling(
            name,
            self.source,
            registry,
            self._executor.threads,
            clock,
            events,
            self._executor.random,
            None if options.timeout is None else seconds(options.timeout, "timeout"),
            lambda: clock.now() + self._ahead,
            self._tally,
            options.trace_context,
        )
        self._suspect: HeldKey | None = None  # the suspect that is handled, and those put back
        self._other_suspects: set[str] = set()
        self._next_measure = 0.0
        self._next_forget = 0.0
        self._full_lanes: set[str] = set()
        self._given_back = 0
        self._loop = asyncio.get_running_loop()
        #: Set when the outbox was found, or could not be reached for now.
        self.ready: asyncio.Event = asyncio.Event()
        self.stop: Callable[[], None] = self._executor.stop
        self.state: Callable[[], dict[str, Any]] = self._executor.state
        self.close_store: Callable[[], Awaitable[None]] = self._executor.close_store

    @property
    def recycled(self) -> str:
        return self._executor.recycling.reason

    # From start to stop

    async def main(self) -> None:
        """Relay until stopped. Raises at once if the outbox does not exist or is not migrated."""
        try:
            await self._others.announce()
            await self._pace.read()
            await self._check_patterns()
        except Exception as error:
            if POLL_RETRY.classify(error) == "permanent":
                raise
            self._chore_failed("announce handlers", error)
        self.ready.set()
        handlers, options = tuple(self._registry.handlers), self._options
        polling, me = repr(options.polling), self._others.me
        self._events.emit(
            RelayStarted(self.source, self._name, handlers, options.concurrency, polling, me)
        )
        try:
            async with self._executor as executor:
                async for claims in executor.polls:
                    executor.take(self._held(claims))
                    self._tally.polled(executor.polls.counts, executor.polls.interval)
                    executor.pruning.after_poll(bool(claims))
                    await self._measure()
                    await self._forget_lanes()
                    await executor.room_for_a_claim()
        finally:
            self._events.emit(RelayStopped(self.source, self._name, self._given_back))
            await to_its_end(self._close())

    async def _check_patterns(self) -> None:
        """Report the patterns that match no record; do nothing if the outbox is empty."""
        kinds = await self._outbox.kinds() if self._options.check_patterns else ()
        for handler, pattern in self._registry.unmatched(kinds) if kinds else ():
            self._events.emit(
                PatternUnmatched(
                    self.source, self._name, handler, pattern, tuple(sorted(kinds)[:10])
                )
            )

    def stopping(self, running: int, grace: float) -> None:
        self._events.emit(RelayStopping(self.source, self._name, running, grace))

    async def _close(self) -> None:
        """Leave the other relays, and close the publishers."""
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
            self._chore_failed(chore, error)

    def _chore_failed(self, chore: str, error: BaseException) -> None:
        self._events.emit(ChoreFailed(self.source, chore, text_of(error)))

    def wake(self) -> None:
        """Poll at once, because something was committed. Callable from any thread."""
        with suppress(RuntimeError):  # the event loop is closed: the next relay finds it
            self._loop.call_soon_threadsafe(self._executor.polls.hint)

    # Claiming

    async def claim(self, hold: float) -> Batch[KeyClaim]:
        """The poll: claim as many keys as there is room for."""
        executor, batch = self._executor, self._options.batch
        limit = min(await executor.room(), batch)
        await self._others.announce()
        by = self._others.announce_again_by()
        if by is not None:
            executor.polls.poll_by(by)
        if self._others.standing_by:
            executor.give_back_waiting("a newer relay has more handlers")
        if self._others.standing_by or executor.stopping or limit < 1:
            return Batch((), batch)
        most = self._room_of_lanes()
        claims = await self._outbox.claim(
            self._name, limit, self._options.records_per_key, executor.lease, most
        )
        taken = Counter(claim.lane for claim in claims)
        self._full_lanes = {lane for lane, room in most.items() if taken[lane] == room}
        if claims:
            self._note_found(claims)
        return Batch(claims, limit, tuple([self._waited(claim) for claim in claims]))

    def _note_found(self, claims: Sequence[KeyClaim]) -> None:
        """Count the records of claims for the history; retries did not wait for a poll."""
        now = claims[0].until - self._executor.lease
        items = [item for claim in claims for item in claim.records]
        waits = [
            None if item.progress else max(now - item.record.created_at, 0.0) for item in items
        ]
        self._tally.found(self._clock.now(), [item.record.kind for item in items], waits)

    def _room_of_lanes(self) -> dict[str, int]:
        """How many more keys of each lane can be handled at a time.

        Each lane has an equal part of the concurrency, so that a lane that hangs leaves the others
        theirs.
        """
        lanes = self._outbox.lanes
        if not lanes:
            return {}
        part = max(self._options.concurrency // len(lanes), 1)
        held = self._executor.count_by(lambda held: held.claim.lane)
        return {lane: max(part - held[lane], 0) for lane in lanes}

    def _waited(self, claim: KeyClaim) -> float:
        """How long the first record waited for this claim, by the store's clock."""
        first = claim.records[0]
        if first.progress:
            return 0.0  # it waited for its retry, not for a poll
        return max(claim.until - self._executor.lease - first.record.created_at, 0.0)

    def _held(self, claims: Sequence[KeyClaim]) -> list[HeldKey]:
        """Claims to hold; those that are not to be handled have their settlements."""
        if claims:
            self._ahead = claims[0].until - self._executor.lease - self._clock.now()
        held = [HeldKey(claim.name, claim) for claim in claims]
        if self._registry.lanes or self._outbox.lanes:
            for each in held:
                if not each.claim.lane:
                    each.settlement = to_lanes(each.claim, self._registry)
        suspects = [each for each in held if each.settlement is None and is_suspect(each.claim)]
        if suspects:
            self._examine(suspects)
        return held

    async def _forget_lanes(self) -> None:
        """Remove lanes that are empty and that this relay does not use."""
        now, used = self._clock.now(), self._registry.lanes
        if now >= self._next_forget and not used.issuperset(self._outbox.lanes):
            self._next_forget = now + ANNOUNCE_EVERY
            await self._quietly("forget lanes", self._outbox.forget_lanes(used))

    async def _fold_history(self) -> bool:
        return self._others.keeps_history and await self._outbox.fold_history()

    async def _measure(self) -> None:
        """Emit the counts of the outbox once a minute, if anyone listens."""
        now = self._clock.now()
        if now < self._next_measure or not self._events.wants(OutboxMeasured):
            return
        self._next_measure = now + MEASURE_EVERY
        try:
            stats = await self._outbox.stats(METERED_MAX)
        except Exception as error:
            self._chore_failed("measure", error)
            return
        for event in measures(self.source, self._name, stats, self._others.count + 1):
            self._events.emit(event)

    # Handling

    async def handle(self, held: HeldKey) -> KeySettlement:
        """Handle the records of a claim in order, until one is not completed."""
        try:
            return await self._handle_records(held)
        finally:
            self._clear(held)
            if held.claim.lane in self._full_lanes:  # now it has room
                self._executor.polls.hint()

    async def _handle_records(self, held: HeldKey) -> KeySettlement:
        claim, settle_at = held.claim, (held.began or 0.0) + SETTLE_AFTER
        # After a relay died, one record at a time, to find out which of them was the cause.
        records = claim.records[:1] if claim.lapses or held is self._suspect else claim.records
        while held is self._suspect and self._executor.holds(self._other_suspects):
            await self._clock.sleep(SETTLED_CHECK)  # the relay must hold no other suspect
        for item in records:
            if held.done and (self._hand_back_now() or self._clock.now() > settle_at):
                break
            if self._executor.leases.is_over(held):  # after a stall, another relay may have the key
                break
            held.progress = RecordProgress.read(item.progress, item.retried)
            handlers = (
                self._registry.named(held.progress.names)
                if claim.lane
                else self._registry.matching(item.record.kind)
            )
            if not handlers:
                if not await self._announced_again():  # before it counts against the record
                    return held.end("retry", ANNOUNCE_AGAIN)
                if self._others.standing_by:
                    break
            unfinished = await self._handling.handle(
                item.record, handlers, held.progress, held, claim.lane
            )
            if unfinished is None:
                held.done += 1
                held.progress = None
            elif unfinished.delay is None:
                self._note_blocked(claim, held.done)
                return held.end("dead", error=unfinished.error)
            else:
                return held.end("retry", unfinished.delay, unfinished.error)
        return held.end()

    async def _announced_again(self) -> bool:
        try:
            await self._others.announce(ANNOUNCE_AGAIN)
        except Exception as error:
            self._chore_failed("announce handlers", error)
            return False
        return True

    def _hand_back_now(self) -> bool:
        return self._executor.stopping or self._others.standing_by

    def failed(self, held: HeldKey, error: BaseException) -> KeySettlement:
        """After an error of the relay itself: those of handlers are caught."""
        self._chore_failed("handle", error)
        return held.end("retry", AFTER_OWN_FAULT, text_of(error))

    def give_back(self, held: HeldKey, reason: str) -> KeySettlement:
        self._given_back += 1
        self._clear(held)
        if self._events.wants(KeyGivenBack):
            claim = held.claim
            left = len(claim.records) - held.done
            about = (claim.key, left, reason)
            self._events.emit(KeyGivenBack(self.source, self._name, *about, lane=claim.lane))
        return held.end()

    def _note_blocked(self, claim: KeyClaim, at: int) -> None:
        record = claim.records[at].record
        if claim.key is not None and self._outbox.on_dead == "block":
            about = (claim.key, record.id)
            self._events.emit(KeyBlocked(self.source, self._name, *about, lane=claim.lane))

    # Records under which relays died

    def _examine(self, suspects: list[HeldKey]) -> None:
        """Handle one of the keys under which relays died, alone; put the others back."""
        alone = [] if self._suspect is not None else [h for h in suspects if not h.claim.lapses]
        chosen = self._executor.random.choice(alone) if alone else None
        self._other_suspects = {held.name for held in suspects if held is not chosen}
        for held in suspects:
            if held is not chosen:
                held.settlement = end = self._put_back(held)
                if end.action == "retry":  # poll again then, whatever the pacer says
                    self._executor.polls.poll_by(self._clock.now() + end.delay)
        self._suspect = chosen or self._suspect

    def _put_back(self, held: HeldKey) -> KeySettlement:
        """The settlement of a suspect: it waits, or is dead if it killed too many relays."""
        claim, record = held.claim, held.claim.records[0].record
        held.progress, deaths = deaths_of(claim)
        error = reason(deaths)
        if deaths < DEATHS_MAX:
            return held.end("retry", suspect_wait(self._executor.random), error)
        self._tally.died(record.kind)
        if self._events.wants(RecordDead):
            about = (record.id, record.kind, record.key, error)
            self._events.emit(RecordDead(self.source, self._name, *about, lane=claim.lane))
        self._note_blocked(claim, 0)
        return held.end("dead", error=error)

    def _clear(self, held: HeldKey) -> None:
        """The key is no longer held: if it was the suspect, another can be handled."""
        if held is self._suspect:
            self._suspect = None

    # Leases

    async def settle(self, settlements: list[KeySettlement]) -> Collection[str]:
        return [claim.name for claim in await self._outbox.settle(settlements)]

    async def renew(self, held: Sequence[HeldKey]) -> Renewal:
        lost = await self._outbox.renew([each.claim for each in held], self._executor.lease)
        return Renewal(tuple(claim.name for claim in lost))

    def label(self, held: HeldKey) -> str:
        claim = held.claim
        record = claim.records[min(held.done, len(claim.records) - 1)].record
        return f"record {record.id} of kind {record.kind}"

    def cancelled(self, held: HeldKey, _: BaseException | None = None) -> KeySettlement:
        return self.give_back(held, "it was cancelled")  # nobody can ask for that

    def lost(self, held: HeldKey) -> None:
        self._clear(held)
        if self._events.wants(KeyLost):
            claim = held.claim
            first = claim.records[0].record.id
            self._events.emit(KeyLost(self.source, self._name, claim.key, first, lane=claim.lane))
