"""Replays: what a strategy would have done with a trace.

`replay` picks the engine. The *reference* runs the real `PollLoop` with the real pacers under the
virtual clock. It covers several workers, holds, hints, latency, failures, handlers that occupy
slots, and jitter. The *fast path* (`fast.py`) is for the plain case. Where both apply they give
exactly the same. `base.py` says when a replay begins and ends, and what it counts.

The reference models the source like this:

- A poll reaches the source after half the latency, and its answer takes the other half. Items that
  arrive in the second half are not in the answer.
- Items are taken in the order of their arrival, by whichever poll comes first.
- A held poll that finds nothing waits until something arrives or the hold is over.
- A poll that fails takes nothing, and fails when its answer is due.
- With hints, each arrival wakes one sleeping worker, and a full poll passes the hint on, as queues
  do. A worker without a free slot does not poll.
- Several workers without `jitter` poll in step, unlike real ones: turn it on.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from pollwise.core.strategies.base import Strategy
from pollwise.errors import PollwiseError
from pollwise.lab.numeric import np
from pollwise.lab.replay import base
from pollwise.lab.replay.base import Replay, Situation, Trace
from pollwise.lab.replay.fast import fast, lean, sweep, why_not
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import Events
from pollwise.runtime.hints import Hints
from pollwise.runtime.loop import POLL_RETRY, Batch, LoopOptions, PollLoop

__all__ = ["fast", "lean", "reference", "replay", "sweep", "why_not"]


def replay(
    trace: Trace,
    strategy: Strategy,
    situation: Situation = base.PLAIN,
    *,
    seed: int = 0,
    keep_polls: bool = False,
) -> Replay:
    """Replay a trace with a strategy, by the fastest engine that supports the situation.

    seed: for failures and jitter; the same seed gives the same replay.
    keep_polls: keep the time of each poll.
    """
    strategy = base.checked(trace, strategy, situation)
    engine = reference if why_not(strategy, situation) else fast
    return engine(trace, strategy, situation, seed=seed, keep_polls=keep_polls)


def reference(
    trace: Trace,
    strategy: Strategy,
    situation: Situation = base.PLAIN,
    *,
    seed: int = 0,
    keep_polls: bool = False,
) -> Replay:
    """Replay a trace with the real loop under the virtual clock, in any situation."""
    strategy = base.checked(trace, strategy, situation)
    clock = VirtualClock()
    source = clock.run(_play(trace, strategy, situation, seed, clock))
    return _result(trace, strategy, source, keep_polls)


class PollFailedOnPurpose(PollwiseError):
    """This poll is one of the situation's `failure_share`."""


@dataclass(slots=True)
class _ReplayedPoll:
    """One poll, as the source saw it."""

    began: float
    held: bool
    found: int = 0
    failed: bool = False

    def counts(self, span: float) -> bool:
        return self.began < span or self.found > 0


class _ReplaySource:
    """The source where the items of the trace arrive, with a record of its polls."""

    def __init__(
        self, trace: Trace, strategy: Strategy, situation: Situation, seed: int, clock: VirtualClock
    ) -> None:
        self.situation = situation
        self.clock = clock
        self.hints = Hints() if situation.hints else None
        self.polls: list[_ReplayedPoll] = []
        self.waits = [0.0] * len(trace.arrivals)
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._strategy = strategy
        self._arrivals: list[float] = trace.arrivals.tolist()
        self._trace = trace
        self._taken = 0
        self._answered = 0
        self._stuck = 0
        self._luck = base.drawn_by(seed, "failures")

    async def poll(self, hold: float, limit: int | None) -> Batch[float]:
        """One poll; an item is its arrival time."""
        clock, half = self.clock, self.situation.poll_latency / 2
        poll = self._begin(hold)
        await self._travel(half)
        poll.failed = self._luck.random() < self.situation.failure_share
        first, until = (0, 0) if poll.failed else await self._take(hold, limit)
        await self._travel(half)
        if poll.failed:
            raise PollFailedOnPurpose("this poll fails on purpose")
        now = clock.now()
        items = self._arrivals[first:until]
        waits = [now - arrival for arrival in items]
        self.waits[first:until] = waits
        self._end(poll, len(items), now)
        if self.hints is not None and limit is not None and len(items) >= limit:
            self.hints.pass_on()
        return Batch(items, limit, tuple(waits) if self.situation.timestamps else ())

    async def send_hints(self) -> None:
        """Send a hint for each arrival."""
        assert self.hints is not None  # noqa: S101
        told = 0
        while told < len(self._arrivals):
            await self._until(self._arrivals[told])
            arrived = bisect_right(self._arrivals, self.clock.now(), told)
            self.hints.send(arrived - told)
            told = arrived

    def _begin(self, hold: float) -> _ReplayedPoll:
        poll = _ReplayedPoll(self.clock.now(), hold > 0)
        same_moment = bool(self.polls) and self.polls[-1].began == poll.began
        self._stuck = self._stuck + 1 if same_moment and not self.polls[-1].found else 0
        stuck = self._stuck > base.STUCK_AFTER * self.situation.workers
        if stuck or len(self.polls) > base.POLLS_MAX:
            raise base.too_many_polls(self._strategy, self._trace)
        self.polls.append(poll)
        return poll

    async def _take(self, hold: float, limit: int | None) -> tuple[int, int]:
        """Take what has arrived, or wait for it with a hold; the range of items taken."""
        until = self.clock.now() + hold
        while True:
            first, now = self._taken, self.clock.now()
            there = bisect_right(self._arrivals, now, first)
            self._taken = there if limit is None else min(there, first + limit)
            if self._taken > first or now >= until:
                return first, self._taken
            next_arrival = self._arrivals[first] if first < len(self._arrivals) else until
            await self.clock.sleep(min(next_arrival, until) - now)

    async def _travel(self, seconds: float) -> None:
        if seconds:
            await self.clock.sleep(seconds)

    async def _until(self, moment: float) -> None:
        while (left := moment - self.clock.now()) > 0:  # a sum of floats may be a little less
            await self.clock.sleep(left)

    def _end(self, poll: _ReplayedPoll, found: int, now: float) -> None:
        poll.found = found
        self._answered += found
        if (
            self._answered == len(self._arrivals)
            and now >= self._trace.span
            and not self.over.done()
        ):
            self.over.set_result(None)


class _ReplayWorker:
    """A poller, and the slots that its items occupy while they are handled."""

    def __init__(self, source: _ReplaySource, strategy: Strategy, seed: int, number: int) -> None:
        situation = source.situation
        self._source = source
        self._capacity = situation.capacity
        self._slots = situation.concurrency
        self._busy = 0
        self._room = asyncio.Event()
        self._loop = PollLoop(
            self._claim,
            strategy if situation.jitter else base.WithoutJitter(strategy),
            f"worker {number}",
            LoopOptions(
                clock=source.clock,
                events=Events(quiet=True),
                random=base.drawn_by(seed, f"worker {number}"),
                hints=source.hints,
                retry=POLL_RETRY if situation.jitter else base.EXACT_RETRY,
                drain=base.drains(strategy, situation),
                spread=situation.jitter,
            ),
        )

    async def run(self) -> None:
        async for _ in self._loop:
            while self._slots is not None and self._busy >= self._slots:
                self._room.clear()
                await self._room.wait()

    async def _claim(self, hold: float) -> Batch[float]:
        free = None if self._slots is None else self._slots - self._busy
        limits = [limit for limit in (self._capacity, free) if limit is not None]
        batch = await self._source.poll(hold, min(limits) if limits else None)
        self._handle(len(batch.items))
        return batch

    def _handle(self, count: int) -> None:
        took = self._source.situation.handler_time
        if count and took and self._slots is not None:
            self._busy += count
            asyncio.get_running_loop().call_later(took, self._leave, count)

    def _leave(self, count: int) -> None:
        self._busy -= count
        self._room.set()


async def _play(
    trace: Trace, strategy: Strategy, situation: Situation, seed: int, clock: VirtualClock
) -> _ReplaySource:
    source = _ReplaySource(trace, strategy, situation, seed, clock)
    workers = [_ReplayWorker(source, strategy, seed, number) for number in range(situation.workers)]
    parts = [asyncio.ensure_future(worker.run()) for worker in workers]
    if situation.hints:
        parts.append(asyncio.ensure_future(source.send_hints()))
    try:
        await _until_over_or_failed(source.over, parts)
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
    return source


async def _until_over_or_failed(
    over: asyncio.Future[None], parts: Iterable[asyncio.Future[None]]
) -> None:
    running = {over, *parts}
    while not over.done():
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()  # raises what a part raised; the one that sends hints may end


def _result(trace: Trace, strategy: Strategy, source: _ReplaySource, keep_polls: bool) -> Replay:
    counted = [poll for poll in source.polls if poll.counts(trace.span)]
    failed = sum(poll.failed for poll in counted)
    began = np.array([poll.began for poll in counted]) if keep_polls else None
    return base.result(
        trace,
        strategy,
        polls=len(counted),
        empty=sum(not poll.found for poll in counted) - failed,
        failed=failed,
        held=sum(poll.held for poll in counted),
        waits=base.as_seconds(source.waits),
        poll_times=began,
    )
