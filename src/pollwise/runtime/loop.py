"""The poll loop: pacer + source + hints + clock. There is one; everything that polls uses it.

It is an iterator, so its consumer sets the limit: no poll begins before the last batch was taken.
Between a poll's return and the batch's delivery nothing is awaited, so a cancelled loop never loses
a batch.

What it decides is in `polling.decisions`, which the loop for code without an event loop
(`polling.sync`) uses too.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from pollwise.core.retry import RETRY_AFTER_MAX, Retry
from pollwise.core.strategies.base import Strategy
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events
from pollwise.runtime.hints import Hint, Hints
from pollwise.runtime.limits.budget import SharedBudget
from pollwise.runtime.polling.decisions import (
    FETCH_RETRY,
    LoopDecisions,
    batch_of,
    check_capacity,
    check_shared,
    checked_strategy,
    name_of,
    takes_hold,
)
from pollwise.runtime.polling.decisions import LONG_INTERVAL as LONG_INTERVAL
from pollwise.runtime.polling.decisions import PACE_POLLS as PACE_POLLS
from pollwise.runtime.polling.decisions import POLL_RETRY as POLL_RETRY
from pollwise.runtime.polling.decisions import Batch as Batch
from pollwise.runtime.polling.decisions import Counts as Counts
from pollwise.runtime.polling.decisions import LoopOptions as LoopOptions

T = TypeVar("T")

#: One poll of a source. The argument is the hold: how many seconds the poll may block.
Source = Callable[[float], Awaitable[Batch[T]]]


class PollLoop(LoopDecisions[T], AsyncIterator[Sequence[T]]):
    """Iterate over the batches of a source, at the pace of a strategy."""

    def __init__(
        self, source: Source[T], strategy: Strategy, name: str, options: LoopOptions | None = None
    ) -> None:
        super().__init__(strategy, name, options, Hint)
        self._source = source

    def __aiter__(self) -> PollLoop[T]:
        return self

    async def __anext__(self) -> Sequence[T]:
        while True:
            hinted = await self._rest()
            if self._options.budget is not None:
                await self._wait_for_turn(self._options.budget)
            if self._stopped:
                raise StopAsyncIteration
            items = await self._poll(hinted)
            if items is not None and (len(items) or self._options.empty):
                return items

    async def poll_once(self) -> Sequence[T] | None:
        """Pause, poll, and return what the poll found; None if it failed, or the loop is stopped.

        For a consumer that has something to do after each poll, failed ones included.
        """
        hinted = await self._rest()
        if self._options.budget is not None:
            await self._wait_for_turn(self._options.budget)
        return None if self._stopped else await self._poll(hinted)

    async def aclose(self) -> None:
        """End the iteration; there is nothing to wait for."""
        self.stop()

    async def _rest(self) -> bool:
        """Sleep until the next poll is due; return True if a hint ended the sleep."""
        if self._stopped:
            return False
        clock, hints = self._options.clock, self._options.hints
        left = self._left()
        if self._deaf:
            hinted = await self._rest_until(self._deaf_until())
            if hinted or self._failures:
                return hinted and not self._failures
            left = self._left()
        if hints is None or left == 0.0:
            return await clock.sleep(left, self._hint if left else None)
        hints.asleep(self._hint)
        try:
            return await clock.sleep(left, self._hint)
        finally:
            hints.awake(self._hint)

    async def _rest_until(self, when: float) -> bool:
        """Sleep until then, also if a hint comes; return True if one came."""
        clock, hinted = self._options.clock, False
        while not self._stopped and (left := when - clock.now()) > 0:
            hinted = await clock.sleep(left, self._hint) or hinted
        return hinted

    async def _wait_for_turn(self, budget: SharedBudget) -> None:
        """Sleep until the budget allows a poll, which it then counts."""
        clock = self._options.clock
        try:
            while not self._stopped and (left := self._turn_left(budget)) > 0:
                await clock.sleep(left, self._hint)
        finally:
            budget.leave(self)

    async def _poll(self, hinted: bool) -> Sequence[T] | None:
        """Poll; return the items found, or None if the poll failed."""
        began = self._begin_poll()
        try:
            batch = await self._source(self._pause.hold)
            asks = batch.not_before is not None or batch.allowance is not None
            wait = batch.wait if asks else 0.0
        except Exception as error:
            self._note_failure(error, began)
            return None
        finally:
            self._hint.polling = False
        self._note_success(batch, wait, began, hinted)
        return batch.items


def poll(
    fetch: Callable[..., Awaitable[Any]],
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
) -> PollLoop[Any]:
    """Poll anything at the right pace: `async for batch in pollwise.poll(fetch, strategy)`.

    fetch: an async callable that returns a list of items (an empty list or None when there are
        none), or a `Batch`. When it takes an argument named `hold`, it gets how many seconds it
        may block at the server.
    capacity: how many items a fetch can return at most.
    drain: poll again at once after a full batch. By default every strategy does so except `Fixed`,
        which polls at its interval exactly.
    hints: a `Hints` whose `send()` ends the pause early.
    retry: how a fetch that raised is retried; a permanent error is raised to you, and so are
        mistakes in its code (TypeError, NameError, AttributeError, ImportError,
        NotImplementedError), unless you give a retry of your own.
    max_retry_after: how long the server may silence this poller, with `Batch(not_before=…)` or an
        error that has an attribute `retry_after`; one hour by default.
    budget: a `SharedBudget` that is asked before each poll.
    spread: begin at a random point of the first interval, not at once.
    seed: makes the jitter repeatable.
    state: what `dump()` of an earlier loop returned, so that this one goes on at its pace. If it
        does not fit, or is older than seven days, it is not used; the event `PaceRestored` says
        why.

    A source of `pollwise.sources` brings its own hints, budget and name; a new loop begins after
    what was committed last.

    Only batches that found something are delivered. Leave the loop with `break`, or end it from
    elsewhere with `.stop()`. Without an event loop, use `poll_sync`.
    """
    strategy = checked_strategy(fetch, strategy, retry)
    check_capacity(capacity)
    check_shared(budget, hints)
    if begin := getattr(fetch, "begin_polling", None):
        begin()
    options = LoopOptions(
        clock=clock or Clock(),
        random=random.Random(seed),
        events=events or Events(),
        hints=hints or _own(fetch, "hints", Hints),
        retry=retry,
        max_retry_after=seconds(max_retry_after, "max_retry_after"),
        budget=budget or _own(fetch, "budget", SharedBudget),
        drain=drain,
        spread=spread,
        state=state,
    )
    name = name or _own(fetch, "name", str) or name_of(fetch)
    return PollLoop(_source_from(fetch, capacity), strategy, name, options)


def _own(fetch: object, name: str, kind: type[T]) -> T | None:
    """Return the attribute of a source if it is of this type, else None."""
    found = getattr(fetch, name, None)
    return found if isinstance(found, kind) else None


def _source_from(fetch: Callable[..., Any], capacity: int | None) -> Source[Any]:
    can_hold = takes_hold(fetch)

    async def source(hold: float) -> Batch[Any]:
        polling = fetch(hold=hold) if can_hold else fetch()
        if not inspect.isawaitable(polling):
            raise ConfigError(
                f"fetch returned {type(polling).__name__}, which cannot be awaited; "
                "make it an async function (`async def fetch(): ...`), or use pollwise.poll_sync"
            )
        return batch_of(await polling, capacity)

    return source
