"""One wait: what `until` and `until_sync` have in common, which is all but the waiting itself."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

from pollwise.core.forecast.durations import Durations
from pollwise.core.retry import Retry
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.completion import Completion
from pollwise.durations import Duration, seconds, short, shown
from pollwise.errors import ConfigError, NotYet
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events
from pollwise.runtime.hints import Hints
from pollwise.runtime.limits.budget import SharedBudget
from pollwise.runtime.polling.decisions import (
    MISTAKES,
    Batch,
    LoopDecisions,
    LoopOptions,
    check_shared,
    checked_strategy,
    name_of,
    takes_hold,
)
from pollwise.runtime.redact import without_secrets_inside
from pollwise.waiting.histories import WaitHistory
from pollwise.waiting.progress import Report, WaitLine, WaitProgress

T = TypeVar("T")

#: The pace of a wait: each pause is about 15 % of the time that has passed, from 100 ms to 30 s. So
#: an end is noticed about 7 % too late on average, whether it takes a second or minutes. The
#: number of polls grows with the logarithm of the time. That is what `Adaptive` does while
#: polls are empty: the sum of the pauses so far is the next one / (multiplier - 1).
WAIT_PACE = Adaptive("100ms", "30s", backoff_multiplier=1.15)
#: How a failed check is retried: after 1 s to 30 s until the timeout.
WAIT_RETRY = Retry.exponential("1s", max_delay="30s", attempts=None, exclude=MISTAKES)
#: A check that runs at the deadline is cancelled after this many seconds in all.
LAST_CHECK = 1.0

#: If checks take longer, one more begins early enough before the deadline to take this many times
#: as long as the slowest one so far.
SLOW_CHECK_ROOM = 1.25
#: How many characters of a value an error shows.
_SHOWN_MAX = 40


class Wait(Generic[T]):
    """One wait: its arguments, checked, and what its polls have returned."""

    def __init__(
        self,
        check: Callable[..., Any],
        *,
        timeout: Duration | None,
        done: Callable[[T], object] | None,
        strategy: Strategy | None,
        retry: Retry,
        progress: Report | bool | None,
        hints: Hints | None,
        budget: SharedBudget | None,
        name: str | None,
        clock: Clock | None,
        events: Events | None,
        seed: int | None,
        poll_cost: float | None,
        wait_cost: float | None,
        history: Durations | str | Path | None,
    ) -> None:
        learns = not (poll_cost is None and wait_cost is None and history is None)
        if learns and strategy is not None:
            raise ConfigError(
                "a wait with a `strategy` takes its pace from that; leave out poll_cost, wait_cost "
                "and history, which are for a wait that learns its pace"
            )
        self._poll_cost = 1.0 if poll_cost is None else poll_cost
        self._wait_cost = 1.0 if wait_cost is None else wait_cost
        if learns:
            strategy = self._learning(None)
        self.strategy: Strategy = checked_strategy(
            check, WAIT_PACE if strategy is None else strategy, retry, "check"
        )
        #: What the wait learns from and adds to; None if it does not learn.
        self.history: WaitHistory | None = WaitHistory(name, history) if learns else None
        check_shared(budget, hints)
        _check_callbacks(done, progress)
        self.timeout: float | None = None if timeout is None else seconds(timeout, "timeout")
        self.name: str = name or name_of(check)
        self.clock: Clock = clock or Clock()
        self.began: float = self.clock.now()
        #: When the last poll begins, in the clock's time.
        self.ends_at: float | None = None if self.timeout is None else self.began + self.timeout
        self.options: LoopOptions = LoopOptions(
            clock=self.clock,
            random=random.Random(seed),
            events=events or Events(),
            hints=hints,
            budget=budget,
            retry=retry,
            spread=False,
            ends_at=self.ends_at,
        )
        self._check = check
        self._takes_hold = takes_hold(check)
        self._done = done
        self._progress = progress
        self._report: Report | None = None
        self._slowest = 0.0
        #: The last poll at which it was not finished, in seconds since the wait began.
        self._unfinished: float | None = None
        #: When it was found finished, likewise.
        self._finished: float | None = None
        self.value: T | None = None
        self.error: Exception | None = None
        #: True if the last check was cancelled at the deadline.
        self.cut = False

    def plan(self, known: Durations) -> None:
        """Use what is known of the durations. The pacer learns into a copy, which is dropped."""
        self.strategy = self._learning(known)

    def _learning(self, known: Durations | None) -> Completion:
        return Completion(poll_cost=self._poll_cost, wait_cost=self._wait_cost, history=known)

    def learned(self, history: Durations) -> None:
        """Add this run to the history, as far as it is known."""
        if self._finished is not None:
            history.add_between(self._unfinished or 0.0, self._finished)
        elif self._unfinished is not None:
            history.add_unfinished(self._unfinished)

    def call(self, hold: float, now: float) -> Any:
        """Call the check. A hold does not go beyond the deadline."""
        if not self._takes_hold:
            return self._check()
        return self._check(hold=hold if self.ends_at is None else min(hold, self.left(now)))

    def left(self, now: float) -> float:
        return 0.0 if self.ends_at is None else max(self.ends_at - now, 0.0)

    def cancel_at(self, began: float) -> float | None:
        """When to cancel a check that began at this time; None for never."""
        return None if self.ends_at is None else max(self.ends_at, began + LAST_CHECK)

    def seen(self, value: T, began: float, loop: LoopDecisions[T]) -> Batch[T]:
        """A check returned `value`; the batch holds it if the wait is over."""
        now = self.clock.now()
        self.value, self.error = value, None
        if self._is_over(value):
            self._finished = now - self.began
            return Batch([value])
        self._unfinished = began - self.began
        self._slowest = max(self._slowest, now - began)
        if self.ends_at is not None and self._slowest > LAST_CHECK:
            # A slow check gets a poll that can still end in time, before the last one.
            last = self.ends_at - SLOW_CHECK_ROOM * self._slowest
            if last > now:
                loop.poll_by(last)
        return Batch(())

    def _is_over(self, value: T) -> bool:
        if self._done is None:
            return bool(value)
        over = self._done(value)
        if inspect.iscoroutine(over):  # which is true, whatever it would return
            over.close()
            raise ConfigError(
                f"done = {shown(self._done)} is an async function; give a plain one "
                "(`def done(value): ...`)"
            )
        return bool(over)

    def failed(self, error: Exception) -> None:
        self.value, self.error = None, error

    # Progress

    def shown(self) -> AbstractContextManager[object]:
        """Show the wait inside the block, as it was asked for."""
        if self._progress is True:
            line = WaitLine(self.name, self.timeout)
            self._report = line
            return line
        self._report = self._progress or None
        return nullcontext()

    def report(self, loop: LoopDecisions[T]) -> None:
        """A poll did not end the wait."""
        if self._report is None or loop.stopped:
            return
        now = self.clock.now()
        next_at = now if loop.next_at is None else loop.next_at
        self._report(
            WaitProgress(
                name=self.name,
                polls=loop.counts.polls,
                elapsed=now - self.began,
                value=self.value,
                error=self.error,
                next_delay=max(next_at - now, 0.0),
                timeout=self.timeout,
            )
        )

    def not_yet(self, loop: LoopDecisions[T]) -> NotYet:
        """The error about a wait that took too long."""
        polls = loop.counts.polls
        counted = f"{polls} poll{'' if polls == 1 else 's'}"
        if not polls:
            last = "the budget allowed none"
        elif self.cut:
            last = "the last check was still running and was cancelled"
        elif self.error is not None:
            text = without_secrets_inside(f"{type(self.error).__name__}: {self.error}")
            last = f"the last one failed with {text}"
        else:
            last = f"the last one returned {_value_shown(self.value)}"
        within = short(self.timeout or 0.0)
        return NotYet(
            f"{self.name} was not finished within {within} ({counted}; {last}). Give a longer "
            "timeout, or look at what it waits for",
            value=self.value,
            polls=polls,
        )


def _check_callbacks(done: object, progress: object) -> None:
    if done is not None and not callable(done):
        raise ConfigError(
            f"done = {shown(done)} is not callable; give a function that gets what the check "
            "returned, and returns True when the wait is over"
        )
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise ConfigError(
            f"progress = {shown(progress)} is not callable; give a function that gets a "
            "WaitProgress after each poll, or True for a line in the terminal"
        )


def _value_shown(value: object) -> str:
    """A plain value as text; of others only their type, because they may contain secrets."""
    if isinstance(value, Enum):
        return str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return shown(value)
    if isinstance(value, str):
        cut = value if len(value) <= _SHOWN_MAX else value[:_SHOWN_MAX] + " …"
        return repr(without_secrets_inside(cut))
    return f"a {type(value).__name__}; the error's `value` has it"
