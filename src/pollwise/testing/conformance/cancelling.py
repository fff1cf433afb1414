"""Cancellation: a call that is cancelled at any point loses nothing and leaves nothing claimed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from pollwise.queues.base import Queue
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.testing.conformance.bench import Bench, done, equal, nothing_left, numbered, require

#: The maximum number of steps of the event loop after which the checks cancel a call.
STEPS = 30


async def _cancel_after(task: asyncio.Task[Any], steps: int, times: int = 1) -> bool:
    """Let a task run for some steps, cancel it, and return whether it had not ended before."""
    for _ in range(steps):
        await asyncio.sleep(0)
    cancelled = task.cancel()
    for _ in range(times - 1):
        await asyncio.sleep(0)
        task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return cancelled


async def _all_ready(bench: Bench, queue: Queue, count: int, what: str) -> None:
    """Expect this number of jobs, none of them claimed or counted."""
    if queue.capabilities.views:
        views = [(view.state, view.job.attempt) for view in await queue.jobs()]
        equal(views, [("ready", 0)] * count, f"states and attempts, {what}")
        return
    claims = await bench.take(queue)
    equal(len(claims), count, f"the jobs that another handle may claim, {what}")
    if queue.capabilities.uncounted:
        equal({claim.job.attempt for claim in claims}, {1}, f"their attempts, {what}")
    await queue.settle([Settlement.give_back(claim) for claim in claims])


async def check_cancelled_claim_claims_nothing(bench: Bench) -> None:
    """A claim that is cancelled after any number of steps leaves nothing claimed or counted."""
    queue, other = await bench.queue(), await bench.queue()
    await queue.put(numbered(1, 2, 3))
    for steps in range(STEPS):
        task = asyncio.ensure_future(bench.take(queue))
        await _cancel_after(task, steps)
        if not task.cancelled():  # it was faster, and keeps its claims
            claims = task.result()
            equal(len(claims), 3, f"claimed by a call that ended before {steps} steps")
            await queue.settle(done(claims))
            await queue.put(numbered(1, 2, 3))
        await _all_ready(bench, other, 3, f"cancelled after {steps} steps")
    equal(len(await bench.take(other)), 3, "what another handle may claim in the end")


async def check_claim_cancelled_twice(bench: Bench) -> None:
    """A second cancellation, while the first is being handled, leaves nothing claimed either."""
    queue, other = await bench.queue(), await bench.queue()
    await queue.put(numbered(1, 2, 3))
    for steps in range(STEPS):
        task = asyncio.ensure_future(bench.take(queue))
        await _cancel_after(task, steps, times=3)
        if not task.cancelled():
            await queue.settle(done(task.result()))
            await queue.put(numbered(1, 2, 3))
        await bench.elapse(1)
        await _all_ready(bench, other, 3, f"a unit after cancelling thrice, {steps} steps in")


async def check_cancelled_hold_claims_nothing(bench: Bench) -> None:
    """A held claim that is cancelled as a job arrives leaves it to others, and wakes one."""
    queue = await bench.queue()
    require(queue.capabilities.long_poll, "long poll")
    for steps in range(STEPS):
        held = asyncio.ensure_future(queue.claim("a", 1, bench.unit * 100, bench.unit * 50))
        rival = asyncio.ensure_future(queue.claim("b", 1, bench.unit * 100, bench.unit * 50))
        await bench.elapse(1)
        began = queue.clock.now()
        put = asyncio.ensure_future(queue.put(NewJob("job", steps)))
        await _cancel_after(held, steps)
        await put
        if held.cancelled():
            claims = await rival
            took = (queue.clock.now() - began) / bench.unit
            equal(len(claims), 1, f"what the rival got, the other cancelled {steps} steps in")
            equal(took < 25, True, f"the rival got it in time: {took:.1f} units")
        else:
            claims = held.result()
            rival.cancel()
            with suppress(asyncio.CancelledError):
                claims += await rival
        await queue.settle(done(claims))
        await nothing_left(queue, "the jobs left")


async def check_cancelled_put_is_whole(bench: Bench) -> None:
    """A put that is cancelled has put all of its batch, or nothing."""
    queue = await bench.queue()
    require(queue.capabilities.atomic_put, "put as a whole")
    for steps in range(STEPS):
        task = asyncio.ensure_future(queue.put(numbered(1, 2, 3)))
        await _cancel_after(task, steps)
        await bench.elapse(1)
        claims = await bench.take(queue)
        equal(len(claims) in (0, 3), True, f"{len(claims)} of 3 put, cancelled {steps} steps in")
        await queue.settle(done(claims))


async def check_cancelled_settle_is_whole(bench: Bench) -> None:
    """A settlement that is cancelled has settled all of its batch, or nothing."""
    queue = await bench.queue()
    can = queue.capabilities
    require(can.atomic_settle and can.views, "settlement as a whole, or no view of jobs")
    for steps in range(STEPS):
        await queue.put(numbered(1, 2, 3))
        claims = await bench.take(queue)
        task = asyncio.ensure_future(queue.settle(done(claims)))
        await _cancel_after(task, steps)
        await bench.elapse(1)
        left = len(await queue.jobs())
        equal(left in (0, 3), True, f"{left} of 3 left, cancelled {steps} steps in")
        if left:
            await queue.settle(done(claims))
