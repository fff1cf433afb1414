"""The poll loop: pacer + source + hints + clock. There is one; everything that polls uses it.

It is an iterator, so its consumer sets the limit: no poll begins before the last batch was taken.
Between a poll's return and the batch's delivery nothing is awaited, so a cancelled loop never loses
a batch.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pollwise.core.jitter import jittered
from pollwise.core.outcome import Outcome, Pause, Plain
from pollwise.core.retry import Retry
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.saved_pace import pace_restored, pace_saved
from pollwise.errors import ConfigError
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import (
    Events,
    PaceChanged,
    PaceRestored,
    PollFailed,
    PollFinished,
    PollRecovered,
)
from pollwise.runtime.hints import Hint, Hints

T = TypeVar("T")

#: How a failed poll is retried: after 1 s to 60 s, without end; the pacer has no say in it.
POLL_RETRY = Retry.exponential("1s", max_delay="60s", attempts=None)


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """What a source returns: the items found, out of a capacity, and how long each had waited."""

    items: Sequence[T]
    capacity: int | None = None
    waits: tuple[float, ...] = ()


@dataclass(slots=True)
class Counts:
    """What a loop did so far."""

    polls: int = 0
    empty: int = 0
    failed: int = 0
    found: int = 0
    hinted: int = 0


#: The longest pause while hints are proven to arrive, in seconds.
LONG_INTERVAL = 60.0

#: A pace is worth saving once this many polls have succeeded.
PACE_POLLS = 20

#: One poll of a source. The argument is the hold: how many seconds the poll may block.
Source = Callable[[float], Awaitable[Batch[T]]]


@dataclass(slots=True)
class LoopOptions:
    """How a loop runs; every field has a default that a library user rarely changes.

    hints: where hints come from that end a pause early.
    long_interval: how long a pause may be after an empty poll, in seconds, while it is proven that
        hints arrive; else, and for a strategy whose min_interval is its max_interval, the strategy
        decides.
    wants: the kinds of items that the source polls for; hints about others do not wake it.
    retry: how a failed poll is retried. An error it calls permanent ends the loop and is raised.
    drain: poll again at once after a full batch; None leaves it to the strategy: all do except
        `Fixed`.
    empty: deliver empty batches too, for a consumer that has something to do after every poll.
    spread: put the first poll at a random point of the first interval, so that processes started
        together do not poll together.
    state: the pace to go on from, as `PollLoop.dump` returned it.
    """

    clock: Clock = field(default_factory=Clock)
    random: random.Random = field(default_factory=random.Random)
    events: Events = field(default_factory=Events)
    hints: Hints | None = None
    long_interval: float = LONG_INTERVAL
    wants: frozenset[str] | None = None
    retry: Retry = POLL_RETRY
    drain: bool | None = None
    empty: bool = False
    spread: bool = True
    state: Mapping[str, Any] | None = None


class PollLoop(AsyncIterator[Sequence[T]], Generic[T]):
    """Iterate over the batches of a source, at the pace of a strategy."""

    def __init__(
        self, source: Source[T], strategy: Strategy, name: str, options: LoopOptions | None = None
    ) -> None:
        self.name = name
        self.strategy = strategy
        self.counts = Counts()
        self._source = source
        self._options = options or LoopOptions()
        drain = self._options.drain
        self._drains = strategy.drains if drain is None else drain
        self._pacer = strategy.pacer()
        self._pause = self._pacer.first()
        self._restored = False
        self._hint = Hint(self._options.wants)
        #: The length of the present pause, in seconds, before jitter.
        self.interval = self._pause.delay
        self._next_at: float | None = None
        self._poll_by: float | None = None
        self._failures = 0
        self._stopped = False
        if self._options.hints is not None:
            self._options.hints.join(self._hint)
            self._options.hints.report_to(name, self._options.events)

    def __aiter__(self) -> PollLoop[T]:
        return self

    async def __anext__(self) -> Sequence[T]:
        while True:
            hinted = await self._rest()
            if self._stopped:
                raise StopAsyncIteration
            items = await self._poll(hinted)
            if items is not None and (len(items) or self._options.empty):
                return items

    def stop(self) -> None:
        """End the iteration: at once when it pauses, else before its next poll."""
        self._stopped = True
        self._hint.give()
        if self._options.hints is not None:
            self._options.hints.leave(self._hint)

    def hint(self) -> None:
        """End the current pause, or skip the next one; a failed poll still backs off."""
        self._hint.give()

    def poll_by(self, when: float) -> None:
        """For a source to call in its poll: poll again by `when`, even if the pacer says later."""
        self._poll_by = when if self._poll_by is None else min(when, self._poll_by)

    async def aclose(self) -> None:
        """End the iteration; there is nothing to wait for."""
        self.stop()

    def state(self) -> dict[str, Plain]:
        """The pacer's running state and the loop's counts, as plain values."""
        counts = self.counts
        return {
            **self._pacer.state(),
            "polls": counts.polls,
            "polls_empty": counts.empty,
            "polls_failed": counts.failed,
            "found": counts.found,
            "hinted": counts.hinted,
        }

    def dump(self) -> dict[str, Any] | None:
        """The pace that was learned, as JSON values, for the `state` of a later loop of the same
        strategy; None before there is anything worth saving."""
        succeeded = self.counts.polls - self.counts.failed
        if not succeeded or (not self._restored and succeeded < PACE_POLLS):
            return None
        clock = self._options.clock
        return pace_saved(self._pacer, clock.now(), clock.epoch())

    def restore(self, state: object) -> bool:
        """Go on from a saved pace, before the first poll; False if it cannot be used.

        The first poll still comes as soon as without it, because items may have waited. The time
        since the state was saved has passed for the pacer too, but nobody saw it.
        """
        clock = self._options.clock
        saved = pace_restored(self.strategy, state, clock.now(), clock.epoch())
        self._pacer, self._restored = saved.pacer, not saved.problem
        self._options.events.emit(PaceRestored(self.name, saved.age, saved.problem))
        return self._restored

    async def _rest(self) -> bool:
        """Sleep until the next poll is due; return True if a hint ended the sleep."""
        if self._stopped:
            return False
        now = self._options.clock.now()
        if self._next_at is None:
            if self._options.state is not None:
                self.restore(self._options.state)
            share = self._options.random.random() if self._options.spread else 0.0
            self._next_at = now + self._pause.delay * share
        left = max(self._next_at - now, 0.0)
        if self._failures:
            return await self._rest_after_failure(left)
        if self._poll_by is not None:
            left = min(left, max(self._poll_by - now, 0.0))
        hints = self._options.hints
        if hints is None or left == 0.0:
            return await self._options.clock.sleep(left, self._hint if left else None)
        hints.asleep(self._hint)
        try:
            return await self._options.clock.sleep(left, self._hint)
        finally:
            hints.awake(self._hint)

    async def _rest_after_failure(self, left: float) -> bool:
        """Sleep out the retry's delay: a hint does not repair a source that fails."""
        until = self._options.clock.now() + left
        while left > 0 and not self._stopped:
            await self._options.clock.sleep(left, self._hint)
            left = until - self._options.clock.now()
        return False

    async def _poll(self, hinted: bool) -> Sequence[T] | None:
        """What a poll found; None if it failed."""
        clock = self._options.clock
        self._hint.forget()
        self._hint.polling = True
        self._poll_by = None
        began = clock.now()
        try:
            batch = await self._source(self._pause.hold)
        except Exception as error:
            self._note_failure(error, clock.now())
            return None
        finally:
            self._hint.polling = False
        self._note_success(batch, began, clock.now(), hinted)
        return batch.items

    def _note_failure(self, error: Exception, now: float) -> None:
        retry = self._options.retry
        self._failures += 1
        self.counts.polls += 1
        self.counts.failed += 1
        if retry.classify(error) == "permanent" or retry.exhausted(self._failures):
            self.stop()
            raise error
        self._pause = self._pacer.after(Outcome(now, 0, None, failed=True))
        delay = retry.delay(self._failures, self._options.random.random())
        self._next_at = now + delay
        self._options.events.emit(
            PollFailed(self.name, f"{type(error).__name__}: {error}", self._failures, delay)
        )

    def _note_success(self, batch: Batch[T], began: float, now: float, hinted: bool) -> None:
        options, counts = self._options, self.counts
        if self._failures:
            options.events.emit(PollRecovered(self.name, self._failures))
            self._failures = 0
        found = len(batch.items)
        counts.polls += 1
        counts.found += found
        counts.empty += not found
        counts.hinted += hinted
        outcome = Outcome(now, found, batch.capacity, batch.waits, hinted=hinted)
        self._pause = pause = self._pacer.after(outcome)
        interval = self._interval_of(pause, outcome, began)
        self.interval = interval
        delay = self._delay_of(interval, outcome)
        self._next_at = now + delay
        if options.events.wants(PollFinished):
            options.events.emit(
                PollFinished(
                    source=self.name,
                    found=found,
                    capacity=batch.capacity,
                    took=now - began,
                    interval=interval,
                    delay=delay,
                    hold=pause.hold,
                    hinted=hinted,
                    average=pause.average,
                    forecast=pause.forecast,
                )
            )
        for change in pause.changes:
            options.events.emit(PaceChanged(self.name, change.what, change.before, change.after))

    def _interval_of(self, pause: Pause, outcome: Outcome, began: float) -> float:
        """The pacer's delay, or the long interval after an empty poll while hints are proven.

        Only a poll that began after the proof counts: then no hint about what it missed was lost.
        """
        hints, strategy = self._options.hints, self.strategy
        if (
            hints is None
            or outcome.found
            or pause.hold
            or strategy.min_interval == strategy.max_interval
        ):
            return pause.delay
        proven_at = hints.proven_at
        if proven_at is None or proven_at > began:
            return pause.delay
        return max(self._options.long_interval, pause.delay)

    def _delay_of(self, interval: float, outcome: Outcome) -> float:
        if outcome.full and self._drains:
            return 0.0
        strategy = self.strategy
        u = self._options.random.random()
        return jittered(interval, strategy.min_interval, max(strategy.max_interval, interval), u)


def poll(
    fetch: Callable[..., Awaitable[Any]],
    strategy: Strategy,
    *,
    capacity: int | None = None,
    name: str | None = None,
    hints: Hints | None = None,
    retry: Retry = POLL_RETRY,
    drain: bool | None = None,
    spread: bool = True,
    clock: Clock | None = None,
    events: Events | None = None,
    seed: int | None = None,
    state: Mapping[str, Any] | None = None,
) -> PollLoop[Any]:
    """Poll anything at the right pace: `async for batch in pollwise.poll(fetch, strategy)`.

    fetch: an async callable that returns a list of items (an empty list or None when there are
        none), or a `Batch`. When it takes an argument named `hold`, it gets how many seconds it
        may block at the server.
    capacity: how many items a fetch can return at most.
    drain: poll again at once after a full batch. By default every strategy does so except `Fixed`,
        which polls at its interval exactly.
    hints: a `Hints` whose `send()` ends the pause early.
    retry: how a fetch that raised is retried; a permanent error is raised to you.
    spread: begin at a random point of the first interval, not at once.
    seed: makes the jitter repeatable.
    state: what `dump()` of an earlier loop returned, so that this one goes on at its pace. If it
        does not fit, or is older than seven days, it is not used; the event `PaceRestored` says
        why.

    Only batches that found something are delivered. Leave the loop with `break`, or end it from
    elsewhere with `.stop()`.
    """
    if not callable(fetch):
        raise ConfigError(f"fetch = {fetch!r} is not callable; give an async function")
    if not isinstance(strategy, Strategy):
        raise ConfigError(
            f"strategy = {strategy!r} is not a strategy; give e.g. Adaptive('100ms', '5s')"
        )
    if capacity is not None and (
        isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1
    ):
        raise ConfigError(
            f"capacity = {capacity!r} must be a whole number, 1 or more: the most items a fetch "
            "can return; None if there is no limit"
        )
    if not isinstance(retry, Retry):
        raise ConfigError(f"retry = {retry!r} is not a Retry; give e.g. Retry.exponential('1s')")
    strategy = strategy.for_source(_takes_hold(fetch))
    if strategy.longest_hold and not _takes_hold(fetch):
        raise ConfigError(
            f"{strategy!r} holds its polls, but fetch has no argument named `hold`; "
            "add one and pass it on to the server, or use a strategy without a hold"
        )
    options = LoopOptions(
        clock=clock or Clock(),
        random=random.Random(seed),
        events=events or Events(),
        hints=hints,
        retry=retry,
        drain=drain,
        spread=spread,
        state=state,
    )
    label = name or str(getattr(fetch, "__name__", type(fetch).__name__))
    return PollLoop(_source_from(fetch, capacity), strategy, label, options)


def _takes_hold(fetch: Callable[..., Any]) -> bool:
    try:
        own = inspect.signature(fetch, follow_wrapped=False).parameters
        passes_on = any(each.kind is each.VAR_KEYWORD for each in own.values())
        # A decorator that takes only some arguments hides those of the function that it wraps.
        return "hold" in (inspect.signature(fetch).parameters if passes_on else own)
    except ValueError:  # some builtins have no signature
        return False


def _source_from(fetch: Callable[..., Any], capacity: int | None) -> Source[Any]:
    takes_hold = _takes_hold(fetch)

    async def source(hold: float) -> Batch[Any]:
        polling = fetch(hold=hold) if takes_hold else fetch()
        if not inspect.isawaitable(polling):
            raise ConfigError(
                f"fetch returned {type(polling).__name__}, which cannot be awaited; "
                "make it an async function: `async def fetch(): ...`"
            )
        found = await polling
        batch = (
            found if isinstance(found, Batch) else Batch(() if found is None else found, capacity)
        )
        items = batch.items
        if isinstance(items, (str, bytes, Mapping)) or not hasattr(items, "__len__"):
            raise ConfigError(
                f"fetch returned {type(items).__name__}, not a list of items; return a list "
                "(empty or None when there is nothing), or a pollwise.Batch of one"
            )
        return batch

    return source
