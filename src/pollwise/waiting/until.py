"""`until` and `until_sync`: poll until one thing is finished, and return it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack, overload

from pollwise.core.forecast.durations import Durations
from pollwise.core.retry import Retry
from pollwise.core.strategies.base import Strategy
from pollwise.durations import Duration
from pollwise.errors import ConfigError
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events
from pollwise.runtime.hints import Hints
from pollwise.runtime.limits.budget import SharedBudget
from pollwise.runtime.loop import PollLoop
from pollwise.runtime.polling.decisions import Batch
from pollwise.runtime.polling.sync import SyncPollLoop, refuse_awaitable
from pollwise.waiting.histories import WaitHistory
from pollwise.waiting.progress import Report
from pollwise.waiting.wait import WAIT_RETRY, Wait

T = TypeVar("T")


class WaitOptions(TypedDict, total=False):
    """The arguments of `until` and `until_sync` that do not change what they return."""

    timeout: Duration | None
    strategy: Strategy | None
    retry: Retry
    progress: Report | bool | None
    hints: Hints | None
    budget: SharedBudget | None
    name: str | None
    poll_cost: float | None
    wait_cost: float | None
    history: Durations | str | Path | None
    clock: Clock | None
    events: Events | None
    seed: int | None


@overload
async def until(
    check: Callable[..., Awaitable[T | None]], *, done: None = None, **options: Unpack[WaitOptions]
) -> T: ...
@overload
async def until(
    check: Callable[..., Awaitable[T]],
    *,
    done: Callable[[T], object],
    **options: Unpack[WaitOptions],
) -> T: ...
async def until(
    check: Callable[..., Awaitable[Any]],
    *,
    timeout: Duration | None = None,
    done: Callable[[Any], object] | None = None,
    strategy: Strategy | None = None,
    retry: Retry = WAIT_RETRY,
    progress: Report | bool | None = None,
    hints: Hints | None = None,
    budget: SharedBudget | None = None,
    name: str | None = None,
    poll_cost: float | None = None,
    wait_cost: float | None = None,
    history: Durations | str | Path | None = None,
    clock: Clock | None = None,
    events: Events | None = None,
    seed: int | None = None,
) -> Any:
    """Poll until `check` returns something true, and return that: `await until(ready, timeout=60)`.

    check: an async callable. When it takes an argument named `hold`, it gets how many seconds it
        may block at the server.
    timeout: how long to wait; then `NotYet` is raised. The last poll begins at that time, even if
        the pause would be longer. A check that is still running then is cancelled, but it gets at
        least one second in all. None waits without limit.
    done: a function that gets what the check returned; the wait is over when it returns something
        true. By default, the wait is over when the check returns something true.
    strategy: the pace; by default each pause is 15 % of the time that has passed, from 100 ms to
        30 s. The first poll is made at once.
    retry: how a check that raised is retried: by default after 1 s to 30 s until the timeout.
        Mistakes in its code (TypeError, NameError, AttributeError, ImportError,
        NotImplementedError) and permanent errors are raised at once.
    progress: is called with a `WaitProgress` after each poll that did not end the wait; True shows
        a line in the terminal.
    hints: a `Hints` whose `send()` ends a pause early.
    budget: a `SharedBudget` that is asked before each poll. A wait that has no turn when its time
        is over ends without a last poll.
    name: what is waited for, in events, progress and errors.
    poll_cost, wait_cost: what a poll and a second of waiting cost. With these, or with `history`,
        the wait learns: it remembers how long things of this name took, and polls when the expected
        waiting is worth a poll. A poll is worth one second of waiting by default.
    history: where the durations are kept: a `Durations`, or the path or URL of a SQLite file
        (`sqlite:///durations.db`); by default in this process.
    """
    wait: Wait[Any] = Wait(
        check, timeout=timeout, done=done, strategy=strategy, retry=retry, progress=progress,
        hints=hints, budget=budget, name=name, poll_cost=poll_cost, wait_cost=wait_cost,
        history=history, clock=clock, events=events, seed=seed,
    )  # fmt: skip

    async def source(hold: float) -> Batch[Any]:
        began = wait.clock.now()
        limit = asyncio.timeout_at(wait.cancel_at(began))
        try:
            async with limit:
                looking = wait.call(hold, began)
                if not inspect.isawaitable(looking):
                    raise ConfigError(
                        f"check returned {type(looking).__name__}, which cannot be awaited; make "
                        "it an async function, or use pollwise.until_sync"
                    )
                value = await looking
            return wait.seen(value, began, loop)
        except Exception as error:
            wait.failed(error)
            if limit.expired():
                wait.cut = True
                raise TimeoutError("it still ran at the deadline and was cancelled") from None
            raise

    learning = wait.history
    if learning is not None:
        wait.plan(await _outside(learning, learning.load))
    loop: PollLoop[Any] = PollLoop(source, wait.strategy, wait.name, wait.options)
    found: Sequence[Any] | None = None
    try:
        with wait.shown():
            while not found and not loop.stopped:
                found = await loop.poll_once()
                if not found:
                    wait.report(loop)
    except TimeoutError:
        if not wait.cut:
            raise
    finally:
        loop.stop()
    if learning is not None:
        learn = partial(learning.learn, wait.learned, wait.clock.epoch())
        await _outside(learning, learn)
    if found:
        return found[0]
    raise wait.not_yet(loop) from wait.error


async def _outside(history: WaitHistory, call: Callable[[], T]) -> T:
    """Make a call that may wait for a disk in a thread."""
    return await asyncio.to_thread(call) if history.blocks else call()


@overload
def until_sync(
    check: Callable[..., T | None], *, done: None = None, **options: Unpack[WaitOptions]
) -> T: ...
@overload
def until_sync(
    check: Callable[..., T], *, done: Callable[[T], object], **options: Unpack[WaitOptions]
) -> T: ...
def until_sync(
    check: Callable[..., Any],
    *,
    timeout: Duration | None = None,
    done: Callable[[Any], object] | None = None,
    strategy: Strategy | None = None,
    retry: Retry = WAIT_RETRY,
    progress: Report | bool | None = None,
    hints: Hints | None = None,
    budget: SharedBudget | None = None,
    name: str | None = None,
    poll_cost: float | None = None,
    wait_cost: float | None = None,
    history: Durations | str | Path | None = None,
    clock: Clock | None = None,
    events: Events | None = None,
    seed: int | None = None,
) -> Any:
    """As `until`, without an event loop: it blocks until `check` returns something true.

    check: a function. The timeout cannot interrupt it, so give it a timeout of its own, for example
        that of an HTTP request. If it takes an argument named `hold`, the hold ends at the
        deadline.

    It polls in the thread that calls it. Ctrl-C ends a pause at once.
    """
    wait: Wait[Any] = Wait(
        check, timeout=timeout, done=done, strategy=strategy, retry=retry, progress=progress,
        hints=hints, budget=budget, name=name, poll_cost=poll_cost, wait_cost=wait_cost,
        history=history, clock=clock, events=events, seed=seed,
    )  # fmt: skip

    def source(hold: float) -> Batch[Any]:
        began = wait.clock.now()
        try:
            value = wait.call(hold, began)
            if inspect.isawaitable(value):
                refuse_awaitable(value, "check", "until")
            return wait.seen(value, began, loop)
        except Exception as error:
            wait.failed(error)
            raise

    if wait.history is not None:
        wait.plan(wait.history.load())
    loop: SyncPollLoop[Any] = SyncPollLoop(source, wait.strategy, wait.name, wait.options)
    found: Sequence[Any] | None = None
    try:
        with wait.shown():
            while not found and not loop.stopped:
                found = loop.poll_once()
                if not found:
                    wait.report(loop)
    finally:
        loop.stop()
    if wait.history is not None:
        wait.history.learn(wait.learned, wait.clock.epoch())
    if found:
        return found[0]
    raise wait.not_yet(loop) from wait.error
