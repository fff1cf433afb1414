"""The decisions of a poll loop: how long it pauses, and how a poll changes the next pause.

There are two drivers, and both only wait and poll: `PollLoop` awaits, and `SyncPollLoop` blocks its
thread. All decisions are made here, so that the same polls lead to the same pauses in both.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pollwise.core.budget import Allowance
from pollwise.core.jitter import jittered
from pollwise.core.outcome import Outcome, Pause, Plain
from pollwise.core.retry import Retry, asked_wait
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.saved_pace import pace_restored, pace_saved
from pollwise.durations import Duration, seconds, shown
from pollwise.errors import ConfigError
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import (
    Events,
    PaceChanged,
    PaceRestored,
    PollFailed,
    PollFinished,
    PollRecovered,
    WindowPassed,
)
from pollwise.runtime.hints import Hint, Hints
from pollwise.runtime.limits.budget import SharedBudget

T = TypeVar("T")

#: How a failed poll is retried: after 1 s to 60 s, without end, and without the pacer.
POLL_RETRY = Retry.exponential("1s", max_delay="60s", attempts=None)
#: Errors in the code of a user's function, not in what it polls: no later poll will do better.
MISTAKES = (TypeError, NameError, AttributeError, ImportError, NotImplementedError)
#: The same for a user's function, whose mistakes are raised.
FETCH_RETRY = Retry.exponential("1s", max_delay="60s", attempts=None, exclude=MISTAKES)


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """The result of a poll: the items found, out of a capacity, and how long each had waited.

    not_before: how long the server asked not to be polled again, counted from the end of this poll:
        seconds, or text such as "30s". No hint, full batch or strategy ends it sooner.
    allowance: what the server said about its rate limit; once nothing remains, the next poll is
        not before it resets.

    passed: how many items the source listed, if all were new where some should have been known, so
        that what lay between is lost; it becomes the event `WindowPassed`.

    The loop respects `not_before` and `allowance` up to its `max_retry_after`.
    """

    items: Sequence[T]
    capacity: int | None = None
    waits: tuple[float, ...] = ()
    not_before: Duration | None = None
    allowance: Allowance | None = None
    passed: int = 0

    @property
    def wait(self) -> float:
        """How long the server asked not to be polled again, in seconds; 0 if it did not ask."""
        asked = 0.0 if self.not_before is None else seconds(self.not_before, "not_before")
        if self.allowance is not None:
            remaining, resets_in = _checked_allowance(self.allowance)
            if remaining <= 0:
                asked = max(asked, resets_in)
        return asked


def _checked_allowance(allowance: Allowance) -> tuple[float, float]:
    values = getattr(allowance, "remaining", None), getattr(allowance, "resets_in", None)
    if not all(isinstance(value, (int, float)) for value in values):
        raise ConfigError(
            f"allowance = {shown(allowance)} must be an Allowance of two numbers; give e.g. "
            "Allowance(remaining=4000, resets_in=1800)"
        )
    return allowance.remaining, allowance.resets_in


@dataclass(slots=True)
class Counts:
    """Counts of what a loop did so far.

    last_found, last_at: how many items the last poll found that succeeded, and when it ended, in
        the clock's time; None before the first.
    """

    polls: int = 0
    empty: int = 0
    failed: int = 0
    found: int = 0
    hinted: int = 0
    last_found: int | None = None
    last_at: float | None = None


#: The longest pause while hints are proven to arrive, in seconds.
LONG_INTERVAL = 60.0
#: A pace is worth saving once this many polls have succeeded.
PACE_POLLS = 20


@dataclass(slots=True)
class LoopOptions:
    """How a loop runs; every field has a default that a library user rarely changes.

    hints: where hints come from that end a pause early.
    long_interval: how long a pause may be after an empty poll, in seconds, while it is proven that
        hints arrive; else, and for a strategy whose min_interval is its max_interval, the strategy
        decides.
    wants: the kinds of items that the source polls for; hints about others do not wake it.
    retry: how a failed poll is retried. An error it calls permanent ends the loop and is raised.
    max_retry_after: the longest wait that the server may ask for, in seconds, with
        `Batch.not_before` or an error's `retry_after`. By default a minute, the longest delay of
        a retry, so that no proxy keeps a worker from its queue for long; `pollwise.poll` allows
        more.
    budget: asked before each poll, and shared with other loops.
    drain: poll again at once after a full batch; None leaves it to the strategy: all do except
        `Fixed`.
    empty: deliver empty batches too, for a consumer that has something to do after every poll.
    spread: put the first poll at a random point of the first interval, so that processes started
        together do not poll together; else it is made at once. Not for a strategy that plans its
        first poll.
    ends_at: when the loop's last poll begins, in the clock's time, whatever the strategy and the
        retry say. A poll that is still running at that time is the last one.
    state: the pace to go on from, as the `dump` of a loop returned it.
    """

    clock: Clock = field(default_factory=Clock)
    random: random.Random = field(default_factory=random.Random)
    events: Events = field(default_factory=Events)
    hints: Hints | None = None
    long_interval: float = LONG_INTERVAL
    wants: frozenset[str] | None = None
    retry: Retry = POLL_RETRY
    max_retry_after: float = POLL_RETRY.max_delay
    budget: SharedBudget | None = None
    drain: bool | None = None
    empty: bool = False
    spread: bool = True
    ends_at: float | None = None
    state: Mapping[str, Any] | None = None


class LoopDecisions(Generic[T]):
    """The state of a loop and its decisions. It never waits; a driver does, and polls."""

    def __init__(
        self, strategy: Strategy, name: str, options: LoopOptions | None, hint: type[Hint]
    ) -> None:
        self.name = name
        self.strategy = strategy
        self.counts: Counts = Counts()
        self._options = options or LoopOptions()
        drain = self._options.drain
        self._drains = strategy.drains if drain is None else drain
        self._pacer = strategy.pacer()
        self._pause = self._pacer.first()
        self._restored = False
        self._hint = hint(self._options.wants)
        self._hint.drains = self._drains
        #: The present pause before jitter, and how long the next poll may block, in seconds.
        self.interval: float = self._pause.delay + self._pause.hold
        self._next_at: float | None = None
        self._poll_by: float | None = None
        self._not_before = -math.inf
        #: Hints do not end the present pause, or not before a time: see `_deaf_until`.
        self._deaf = False
        self._ends_at = self._options.ends_at
        self._failures = 0
        self._stopped = False
        if self._options.hints is not None:
            self._options.hints.join(self._hint)
            self._options.hints.report_to(name, self._options.events)

    def stop(self) -> None:
        """End the iteration: at once when it pauses, else before its next poll."""
        self._stopped = True
        self._hint.give()
        if self._options.hints is not None:
            self._options.hints.leave(self._hint)

    @property
    def stopped(self) -> bool:
        """True if the loop polls no more."""
        return self._stopped

    def hint(self) -> None:
        """End the current pause, or skip the next one; a failed poll still backs off."""
        self._hint.give()

    def poll_by(self, when: float) -> None:
        """For a source to call in its poll: poll again by `when`, even if the pacer says later."""
        self._poll_by = when if self._poll_by is None else min(when, self._poll_by)

    @property
    def next_at(self) -> float | None:
        """When the next poll is due, in the clock's time; None before the first."""
        return None if self._next_at is None else self._due(self._next_at)

    def state(self) -> dict[str, Plain]:
        """The pacer's running state and the loop's counts, as plain values.

        last_poll_at: when the last poll ended that succeeded, in seconds since 1970.
        """
        counts, clock = self.counts, self._options.clock
        last = counts.last_at
        return {
            **self._pacer.state(),
            "polls": counts.polls,
            "polls_empty": counts.empty,
            "polls_failed": counts.failed,
            "found": counts.found,
            "hinted": counts.hinted,
            "last_found": counts.last_found,
            "last_poll_at": None if last is None else clock.epoch() - (clock.now() - last),
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

        The first poll still comes as soon as without it, because items may have waited. The
        pacer's time goes on by the time since the state was saved, of which nothing is known.
        """
        clock = self._options.clock
        saved = pace_restored(self.strategy, state, clock.now(), clock.epoch())
        self._pacer, self._restored = saved.pacer, not saved.problem
        self._options.events.emit(PaceRestored(self.name, saved.age, saved.problem))
        return self._restored

    # For the driver

    def _left(self) -> float:
        """How many seconds are left until the next poll is due."""
        now = self._options.clock.now()
        if self._next_at is None:
            if self._options.state is not None:
                self.restore(self._options.state)
            if not self._restored:
                self._pacer.begin(now)
            share = self._options.random.random() if self._options.spread else 0.0
            self._next_at = now + self._pause.delay * (1.0 if self.strategy.plans_first else share)
        due = self._next_at
        if self._poll_by is not None or self._ends_at is not None:
            due = self._due(due)
        return max(due - now, 0.0)

    def _turn_left(self, budget: SharedBudget) -> float:
        """How many seconds are left until the budget is asked again; 0 if the poll may begin.

        Stops a loop that has no turn until its end.
        """
        now = self._options.clock.now()
        at = budget.ask(self, now)
        if self._ends_at is not None and at > now:
            if now >= self._ends_at:
                self.stop()
            at = min(at, self._ends_at)
        return max(at - now, 0.0)

    def _deaf_until(self) -> float:
        """When a hint may end the pause again; none does after a failure, or if asked to wait."""
        until = self._not_before
        if self._failures and self._next_at is not None:
            until = self._next_at
        return until if self._ends_at is None else min(until, self._ends_at)

    def _due(self, next_at: float) -> float:
        # A source that failed is not polled sooner because it asked for that before.
        if self._poll_by is not None and not self._failures:
            next_at = max(min(next_at, self._poll_by), self._not_before)
        return next_at if self._ends_at is None else min(next_at, self._ends_at)

    def _begin_poll(self) -> float:
        """A poll begins; returns the time."""
        self._hint.forget()
        self._hint.polling = True
        self._poll_by = None
        return self._options.clock.now()

    def _note_failure(self, error: Exception, began: float) -> None:
        options, now = self._options, self._options.clock.now()
        retry, wait = options.retry, asked_wait(error, options.max_retry_after)
        if options.budget is not None and getattr(error, "retry_after", None) is not None:
            options.budget.refused(began, now, wait)
        self._failures += 1
        self._deaf = True
        self.counts.polls += 1
        self.counts.failed += 1
        if retry.classify(error) == "permanent" or retry.exhausted(self._failures):
            self.stop()
            raise error
        self._pause = self._pacer.after(Outcome(now, 0, None, failed=True))
        delay = max(retry.delay(self._failures, options.random.random()), wait)
        self._next_at = now + delay
        options.events.emit(
            PollFailed(self.name, f"{type(error).__name__}: {error}", self._failures, delay)
        )
        if self._ends_at is not None and now >= self._ends_at:
            self.stop()

    def _note_success(self, batch: Batch[T], wait: float, began: float, hinted: bool) -> None:
        options, counts = self._options, self.counts
        now = options.clock.now()
        if options.budget is not None:
            options.budget.answered(now, batch.allowance)
        if self._failures:
            options.events.emit(PollRecovered(self.name, self._failures))
            self._failures = 0
        found = len(batch.items)
        counts.polls += 1
        counts.found += found
        counts.empty += not found
        counts.hinted += hinted
        counts.last_found, counts.last_at = found, now
        outcome = Outcome(now, found, batch.capacity, batch.waits, hinted=hinted)
        self._pause = pause = self._pacer.after(outcome)
        interval = self._interval_of(pause, outcome, began)
        self.interval = interval + pause.hold
        delay = self._delay_of(pause, interval, outcome)
        self._not_before = -math.inf
        self._deaf = wait > 0.0
        if self._deaf:
            wait = min(wait, options.max_retry_after)
            self._not_before = now + wait
            delay = max(delay, wait)
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
        if batch.passed:
            options.events.emit(WindowPassed(self.name, batch.passed))
        for change in pause.changes:
            options.events.emit(PaceChanged(self.name, change.what, change.before, change.after))
        if self._ends_at is not None and now >= self._ends_at:
            self.stop()

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

    def _delay_of(self, pause: Pause, interval: float, outcome: Outcome) -> float:
        if outcome.full and self._drains:
            return 0.0
        if pause.exact and interval == pause.delay:
            return interval
        strategy = self.strategy
        u = self._options.random.random()
        return jittered(interval, strategy.min_interval, max(strategy.max_interval, interval), u)


# What `poll` and `poll_sync` have in common


def check_shared(budget: SharedBudget | None, hints: Hints | None) -> None:
    """Check what a loop shares with other parts of the program."""
    if hints is not None and not isinstance(hints, Hints):
        raise ConfigError(
            f"hints = {shown(hints)} is not a Hints; give pollwise.Hints(), whose send() ends a "
            "pause"
        )
    if budget is not None and not isinstance(budget, SharedBudget):
        raise ConfigError(
            f"budget = {budget!r} is not a SharedBudget; give e.g. SharedBudget(60, per='1m')"
        )


def checked_strategy(
    fetch: Callable[..., Any], strategy: Strategy, retry: Retry, what: str = "fetch"
) -> Strategy:
    """Check what a loop is made from; returns the strategy as it suits the source.

    what: the name of the argument `fetch`.
    """
    if not callable(fetch):
        raise ConfigError(f"{what} = {fetch!r} is not callable; give a function")
    if not isinstance(strategy, Strategy):
        raise ConfigError(
            f"strategy = {strategy!r} is not a strategy; give e.g. Adaptive('100ms', '5s')"
        )
    if not isinstance(retry, Retry):
        raise ConfigError(f"retry = {retry!r} is not a Retry; give e.g. Retry.exponential('1s')")
    can_hold = takes_hold(fetch)
    strategy = strategy.for_source(can_hold)
    if strategy.longest_hold and not can_hold:
        raise ConfigError(
            f"{strategy!r} holds its polls, but {what} has no argument named `hold`; "
            "add one and pass it on to the server, or use a strategy without a hold"
        )
    return strategy


def check_capacity(capacity: int | None) -> None:
    if capacity is not None and (
        isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1
    ):
        raise ConfigError(
            f"capacity = {capacity!r} must be a whole number, 1 or more: the most items a fetch "
            "can return; None if there is no limit"
        )


def takes_hold(fetch: Callable[..., Any]) -> bool:
    try:
        own = inspect.signature(fetch, follow_wrapped=False).parameters
        passes_on = any(each.kind is each.VAR_KEYWORD for each in own.values())
        # A decorator that takes only some arguments hides those of the function that it wraps.
        return "hold" in (inspect.signature(fetch).parameters if passes_on else own)
    except ValueError:  # some builtins have no signature
        return False


def name_of(fetch: Callable[..., Any]) -> str:
    return str(getattr(fetch, "__name__", type(fetch).__name__))


def batch_of(found: Any, capacity: int | None) -> Batch[Any]:
    """Return the result of a fetch as a batch."""
    batch = found if isinstance(found, Batch) else Batch(() if found is None else found, capacity)
    items = batch.items
    if isinstance(items, (str, bytes, Mapping)) or not hasattr(items, "__len__"):
        raise ConfigError(
            f"fetch returned {type(items).__name__}, not a list of items; return a list "
            "(empty or None when there is nothing), or a pollwise.Batch of one"
        )
    return batch
