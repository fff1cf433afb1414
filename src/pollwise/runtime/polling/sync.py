"""The poll loop for code without an event loop: it blocks its thread where the other one awaits.

It decides nothing by itself; see `polling.decisions`. Any thread may stop it or give it a hint.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from pollwise.core.retry import RETRY_AFTER_MAX, Retry
from pollwise.core.strategies.base import Strategy
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events
from pollwise.runtime.hints import BlockingHint, Hints
from pollwise.runtime.limits.budget import SharedBudget
from pollwise.runtime.polling.decisions import (
    FETCH_RETRY,
    Batch,
    LoopDecisions,
    LoopOptions,
    batch_of,
    check_capacity,
    check_shared,
    checked_strategy,
    name_of,
    takes_hold,
)

T = TypeVar("T")

#: One poll of a source. The argument is the hold: how many seconds the poll may block.
SyncSource = Callable[[float], Batch[T]]


class SyncPollLoop(LoopDecisions[T], Iterator[Sequence[T]]):
    """Iterate over the batches of a source, at the pace of a strategy, in one thread.

    As a context manager it is stopped at the end of the block.
    """

    _hint: BlockingHint

    def __init__(
        self,
        source: SyncSource[T],
        strategy: Strategy,
        name: str,
        options: LoopOptions | None = None,
    ) -> None:
        hints = None if options is None else options.hints
        if hints is not None and type(hints).asleep is not Hints.asleep:
            raise ConfigError(
                f"hints = {type(hints).__name__}: the hints of a store need an event loop; give a "
                "pollwise.Hints() and call its send(), or use the async call"
            )
        super().__init__(strategy, name, options, BlockingHint)
        self._source = source

    def __next__(self) -> Sequence[T]:
        while True:
            hinted = self._turn()
            if self._stopped:
                raise StopIteration
            items = self._poll(hinted)
            if items is not None and (len(items) or self._options.empty):
                return items

    def poll_once(self) -> Sequence[T] | None:
        """Pause, poll, and return what the poll found; None if it failed, or the loop is stopped.

        For a consumer that has something to do after each poll, failed ones included.
        """
        hinted = self._turn()
        return None if self._stopped else self._poll(hinted)

    def close(self) -> None:
        """End the iteration; there is nothing to wait for."""
        self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _turn(self) -> bool:
        """Block until the poll may begin; return True if a hint ended the pause."""
        hinted = self._rest()
        if self._options.budget is not None:
            self._wait_for_turn(self._options.budget)
        return hinted

    def _rest(self) -> bool:
        """Block until the next poll is due; return True if a hint ended the pause."""
        if self._stopped:
            return False
        clock, hints = self._options.clock, self._options.hints
        left = self._left()
        if self._deaf:
            hinted = self._rest_until(self._deaf_until())
            if hinted or self._failures:
                return hinted and not self._failures
            left = self._left()
        if left == 0.0:
            return False
        if hints is None:
            return clock.wait(left, self._hint)
        hints.asleep(self._hint)
        try:
            return clock.wait(left, self._hint)
        finally:
            hints.awake(self._hint)

    def _rest_until(self, when: float) -> bool:
        """Block until then, also if a hint comes; return True if one came."""
        clock, hinted = self._options.clock, False
        while not self._stopped and (left := when - clock.now()) > 0:
            hinted = clock.wait(left, self._hint) or hinted
        return hinted

    def _wait_for_turn(self, budget: SharedBudget) -> None:
        """Block until the budget allows a poll, which it then counts."""
        clock = self._options.clock
        try:
            while not self._stopped and (left := self._turn_left(budget)) > 0:
                clock.wait(left, self._hint)
        finally:
            budget.leave(self)

    def _poll(self, hinted: bool) -> Sequence[T] | None:
        """Poll; return the items found, or None if the poll failed."""
        began = self._begin_poll()
        try:
            batch = self._source(self._pause.hold)
            wait = batch.wait
        except Exception as error:
            self._note_failure(error, began)
            return None
        finally:
            self._hint.polling = False
        self._note_success(batch, wait, began, hinted)
        return batch.items


def poll_sync(
    fetch: Callable[..., Any],
    strategy: Strategy,
    *,
    capacity: int | None = None,
    name: str | None = None,
    hints: Hints | None = None,
    retry: Retry = FETCH_RETRY,
    max_retry_after: Duration = RETRY_AFTER_MAX,
    budget: SharedBudget | None = None,
    drain: bool | None = None,
    spread: bool = True,
    clock: Clock | None = None,
    events: Events | None = None,
    seed: int | None = None,
    state: Mapping[str, Any] | None = None,
) -> SyncPollLoop[Any]:
    """Poll anything at the right pace, without an event loop: `for batch in poll_sync(fetch, …)`.

    fetch: a function that returns a list of items (an empty list or None when there are none), or
        a `Batch`. When it takes an argument named `hold`, it gets how many seconds it may block at
        the server.

    The other arguments are those of `poll`, and the same polls lead to the same pauses. It runs in
    the thread that iterates, and starts no other. Leave it with `break`, or end it from another
    thread or from a signal handler with `.stop()`. Any thread may call `send()` of its `hints`.
    Ctrl-C ends a pause at once.
    """
    strategy = checked_strategy(fetch, strategy, retry)
    check_capacity(capacity)
    check_shared(budget, hints)
    options = LoopOptions(
        clock=clock or Clock(),
        random=random.Random(seed),
        events=events or Events(),
        hints=hints,
        retry=retry,
        max_retry_after=seconds(max_retry_after, "max_retry_after"),
        budget=budget,
        drain=drain,
        spread=spread,
        state=state,
    )
    return SyncPollLoop(_source_from(fetch, capacity), strategy, name or name_of(fetch), options)


def _source_from(fetch: Callable[..., Any], capacity: int | None) -> SyncSource[Any]:
    can_hold = takes_hold(fetch)

    def source(hold: float) -> Batch[Any]:
        found = fetch(hold=hold) if can_hold else fetch()
        if inspect.isawaitable(found):
            refuse_awaitable(found, "fetch", "poll")
        return batch_of(found, capacity)

    return source


def refuse_awaitable(found: Any, what: str, other: str) -> None:
    """Raise the error about an async function where a plain one belongs."""
    if inspect.iscoroutine(found):
        found.close()  # else Python warns that nobody awaited it
    raise ConfigError(
        f"{what} returned {type(found).__name__}, which has to be awaited; make it a plain "
        f"function (`def {what}(): ...`), or use pollwise.{other}"
    )
