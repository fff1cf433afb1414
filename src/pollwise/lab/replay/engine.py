"""Replays: what a strategy would have done with a trace.

`replay` picks the engine. The *reference* runs the real `PollLoop` with the real pacers on a real
source, under the virtual clock: several workers that race, holds, hints, latency, failures,
handlers that keep places, jitter. The *fast path* (`fast.py`) is for the plain case. Where both
apply they give the same, to the bit; when a replay begins and ends, and what it counts, is in
`rules.py`.

The source of the reference is modelled so:

- A poll reaches the source after half the latency, and its answer takes the other half. What
  arrives after the look is not in the answer.
- Items are taken in the order of their arrival, whoever comes first.
- A held poll that finds nothing stays until something arrives or the hold is over.
- A poll that fails does so without a look, when its answer is due.
- With hints, each arrival wakes one sleeper, and a full poll passes the hint on, as queues do. A
  worker that has no place free does not poll; it claims nothing ahead.
- Several workers without `jitter` begin together and march in step. Real ones don't: turn it on.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from pollwise.core.strategies.base import Strategy
from pollwise.errors import PollwiseError
from pollwise.lab.needs import np
from pollwise.lab.replay import rules
from pollwise.lab.replay.fast import fast, lean, sweep, why_not
from pollwise.lab.replay.results import Replay, Situation, Trace
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import Events
from pollwise.runtime.hints import Hints
from pollwise.runtime.loop import Batch, LoopOptions, PollLoop

__all__ = ["fast", "lean", "reference", "replay", "sweep", "why_not"]


def replay(
    trace: Trace,
    strategy: Strategy,
    situation: Situation | None = None,
    *,
    seed: int = 0,
    keep_polls: bool = False,
) -> Replay:
    """Replay a trace with a strategy, by the fastest engine that can.

    seed: for failures and jitter; the same seed gives the same replay.
    keep_polls: keep when each poll began.
    """
    situation = situation or Situation()
    rules.check(trace, strategy, situation)
    engine = reference if why_not(strategy, situation) else fast
    return engine(trace, strategy, situation, seed=seed, keep_polls=keep_polls)


def reference(
    trace: Trace,
    strategy: Strategy,
    situation: Situation | None = None,
    *,
    seed: int = 0,
    keep_polls: bool = False,
) -> Replay:
    """Replay a trace with the real loop under the virtual clock, in any situation."""
    situation = situation or Situation()
    rules.check(trace, strategy, situation)
    clock = VirtualClock()
    scene = clock.run(_play(trace, strategy, situation, seed, clock))
    return _told(trace, strategy, scene.polls, scene.waits, keep_polls)


class PollFailedOnPurpose(PollwiseError):
    """The situation's `failure_share` struck."""


@dataclass(slots=True)
class _Poll:
    """One poll, as its source saw it."""

    began: float
    held: bool
    found: int = 0
    failed: bool = False

    def counts(self, span: float) -> bool:
        return self.began < span or self.found > 0


class _Scene:
    """Where items arrive by the trace, and what the polls did about it."""

    def __init__(
        self, trace: Trace, strategy: Strategy, situation: Situation, seed: int, clock: VirtualClock
    ) -> None:
        self.situation = situation
        self.clock = clock
        self.hints = Hints() if situation.hints else None
        self.polls: list[_Poll] = []
        self.waits = [0.0] * len(trace.arrivals)
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._strategy = strategy
        self._arrivals: list[float] = trace.arrivals.tolist()
        self._trace = trace
        self._taken = 0
        self._answered = 0
        self._in_vain = 0
        self._luck = rules.drawn_by(seed, "failures")

    async def poll(self, hold: float, limit: int | None) -> Batch[float]:
        """One look; the items are their arrival times."""
        clock, half = self.clock, self.situation.poll_latency / 2
        poll = self._begin(hold)
        await self._travel(half)
        poll.failed = self._luck.random() < self.situation.failure_share
        first, until = (0, 0) if poll.failed else await self._look(hold, limit)
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

    async def announce(self) -> None:
        """Give a hint for each arrival, as it arrives."""
        assert self.hints is not None  # noqa: S101
        told = 0
        while told < len(self._arrivals):
            await self._until(self._arrivals[told])
            arrived = bisect_right(self._arrivals, self.clock.now(), told)
            self.hints.send(arrived - told)
            told = arrived

    def _begin(self, hold: float) -> _Poll:
        poll = _Poll(self.clock.now(), hold > 0)
        same_moment = bool(self.polls) and self.polls[-1].began == poll.began
        self._in_vain = self._in_vain + 1 if same_moment and not self.polls[-1].found else 0
        stuck = self._in_vain > rules.STUCK_AFTER * self.situation.workers
        if stuck or len(self.polls) > rules.POLLS_MAX:
            raise rules.too_many_polls(self._strategy, self._trace)
        self.polls.append(poll)
        return poll

    async def _look(self, hold: float, limit: int | None) -> tuple[int, int]:
        """Take what is there; with a hold, wait for it. Returns from where to where was taken."""
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
        while (left := moment - self.clock.now()) > 0:  # a sum of floats may fall short of it
            await self.clock.sleep(left)

    def _end(self, poll: _Poll, found: int, now: float) -> None:
        poll.found = found
        self._answered += found
        if (
            self._answered == len(self._arrivals)
            and now >= self._trace.span
            and not self.over.done()
        ):
            self.over.set_result(None)


class _Worker:
    """A poller, and the places its items keep while they are handled."""

    def __init__(self, scene: _Scene, strategy: Strategy, seed: int, number: int) -> None:
        situation = scene.situation
        self._scene = scene
        self._capacity = situation.capacity
        self._places = situation.concurrency
        self._busy = 0
        self._room = asyncio.Event()
        self._loop = PollLoop(
            self._claim,
            strategy if situation.jitter else rules.Exactly(strategy),
            f"worker {number}",
            LoopOptions(
                clock=scene.clock,
                events=Events(quiet=True),
                random=rules.drawn_by(seed, f"worker {number}"),
                hints=scene.hints,
                retry=rules.retry_of(situation),
                drain=situation.drain,
                spread=situation.jitter,
            ),
        )

    async def run(self) -> None:
        async for _ in self._loop:
            while self._places is not None and self._busy >= self._places:
                self._room.clear()
                await self._room.wait()

    async def _claim(self, hold: float) -> Batch[float]:
        free = None if self._places is None else self._places - self._busy
        limits = [limit for limit in (self._capacity, free) if limit is not None]
        batch = await self._scene.poll(hold, min(limits) if limits else None)
        self._handle(len(batch.items))
        return batch

    def _handle(self, count: int) -> None:
        took = self._scene.situation.handler_time
        if count and took and self._places is not None:
            self._busy += count
            asyncio.get_running_loop().call_later(took, self._leave, count)

    def _leave(self, count: int) -> None:
        self._busy -= count
        self._room.set()


async def _play(
    trace: Trace, strategy: Strategy, situation: Situation, seed: int, clock: VirtualClock
) -> _Scene:
    scene = _Scene(trace, strategy, situation, seed, clock)
    workers = [_Worker(scene, strategy, seed, number) for number in range(situation.workers)]
    parts = [asyncio.ensure_future(worker.run()) for worker in workers]
    if situation.hints:
        parts.append(asyncio.ensure_future(scene.announce()))
    try:
        await _until_over_or_failed(scene.over, parts)
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
    return scene


async def _until_over_or_failed(
    over: asyncio.Future[None], parts: Iterable[asyncio.Future[None]]
) -> None:
    running = {over, *parts}
    while not over.done():
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()  # raises what a part raised; those that announce end by themselves


def _told(
    trace: Trace, strategy: Strategy, polls: list[_Poll], waits: list[float], keep_polls: bool
) -> Replay:
    counted = [poll for poll in polls if poll.counts(trace.span)]
    failed = sum(poll.failed for poll in counted)
    began = np.array([poll.began for poll in counted]) if keep_polls else None
    return rules.result(
        trace,
        strategy,
        polls=len(counted),
        empty=sum(not poll.found for poll in counted) - failed,
        failed=failed,
        held=sum(poll.held for poll in counted),
        waits=rules.as_seconds(waits),
        poll_times=began,
    )
