"""Presence: the records that workers leave, and the orders that they get."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.queues.notes import order_hint
from pollwise.queues.presence import PRESENCE_KEPT, RunningJob, WorkerInfo
from pollwise.runtime.hints import Hint
from pollwise.testing.conformance.bench import Bench, equal, expect, refused, require

INFO = WorkerInfo(
    name="ann-1",
    instance="a1",
    host="ann.example",
    pid=7,
    version="1.0",
    kinds=("mail", "☃"),
    concurrency=8,
    busy=1,
    waiting=2,
    running=(RunningJob("17", "mail", 5.5),),
    started_at=1.5,
    seen_at=2.5,
    strategy="Adaptive()",
    interval=0.5,
    hints=True,
    breakers=("☃",),
)


async def _with_presence(bench: Bench) -> Queue:
    queue = await bench.queue()
    require(queue.capabilities.presence, "presence")
    return queue


async def _attend(bench: Bench, queue: Queue, info: WorkerInfo) -> int | None:
    """Poll and leave a record, as a worker does."""
    await bench.take(queue)
    return await queue.attend(info, PRESENCE_KEPT)


async def check_workers_are_listed(bench: Bench) -> None:
    """Every handle sees the records of workers whole, sorted by name, the newest of each."""
    queue, other = await _with_presence(bench), await bench.queue()
    equal(await queue.workers(), [], "the workers of a new queue")
    later = replace(INFO, name="bob/☃ " + "x" * 190, instance="b", kinds=None, running=())
    for info in (later, INFO, replace(INFO, busy=0), replace(INFO, busy=3)):
        equal(await queue.attend(info, PRESENCE_KEPT), None, "an order, though none was given")
    equal(await other.workers(), [replace(INFO, busy=3), later], "the workers that are there")


async def check_workers_of_one_name(bench: Bench) -> None:
    """Workers that share a name are told apart, and an order reaches all of them."""
    queue, other = await _with_presence(bench), await bench.queue()
    twin = replace(INFO, instance="a2", started_at=9.0)
    await queue.attend(INFO, PRESENCE_KEPT)
    await other.attend(twin, PRESENCE_KEPT)
    equal(await other.workers(), [INFO, twin], "the workers that are there")
    equal(await queue.set_concurrency("ann-1", 3), 2, "how many workers have the name")
    equal(await _attend(bench, queue, INFO), 3, "the order of the first")
    equal(await _attend(bench, other, twin), 3, "the order of the second")


async def check_worker_leaves(bench: Bench) -> None:
    """A worker that stops is gone at once; the others stay."""
    queue, other = await _with_presence(bench), await bench.queue()
    stays = replace(INFO, name="bob", instance="b")
    await queue.attend(INFO, PRESENCE_KEPT)
    await other.attend(stays, PRESENCE_KEPT)
    await queue.leave(INFO)
    equal(await other.workers(), [stays], "the workers that are there")
    await queue.leave(INFO)


async def check_worker_not_heard_of_is_gone(bench: Bench) -> None:
    """A record counts for as long as its worker said, and not longer."""
    queue, other = await _with_presence(bench), await bench.queue()
    await queue.attend(INFO, bench.unit * 4)
    stays = replace(INFO, name="bob", instance="b")
    await queue.attend(stays, bench.unit * 1000)
    equal(len(await other.workers()), 2, "workers at first")
    await bench.elapse(6)
    equal(await other.workers(), [stays], "workers after the time of one of them")
    equal(await queue.attend(INFO, bench.unit * 1000), None, "an order after all that time")
    equal(len(await other.workers()), 2, "workers when the first came back")


async def check_set_concurrency(bench: Bench) -> None:
    """An order waits for its worker, and a later one replaces it; a restart ends it."""
    queue, other = await _with_presence(bench), await bench.queue()
    await queue.attend(INFO, PRESENCE_KEPT)
    equal(await other.set_concurrency("ann-1", 4), 1, "how many workers have the name")
    equal(await _attend(bench, queue, INFO), 4, "the order")
    await other.set_concurrency("ann-1", 1000)
    equal(await _attend(bench, queue, INFO), 1000, "the later order")
    again = replace(INFO, instance="a9")
    equal(await _attend(bench, queue, again), None, "an order after a restart")


async def check_set_concurrency_bad_arguments(bench: Bench) -> None:
    """Numbers out of bounds are refused, and names that no worker has, with the nearest ones."""
    queue = await _with_presence(bench)
    await queue.attend(INFO, PRESENCE_KEPT)
    for number in (0, -1, 1001, True):
        await refused(ConfigError, queue.set_concurrency("ann-1", number), f"{number}")
    error = await refused(ConfigError, queue.set_concurrency("anm-1", 2), "an unknown name")
    expect("'ann-1'" in str(error), f"the error does not name the nearest worker: {error}")


async def check_order_sends_a_hint(bench: Bench) -> None:
    """An order sends a hint that only its worker waits for."""
    queue = await _with_presence(bench)
    await queue.attend(INFO, PRESENCE_KEPT)
    hint, hints = Hint(frozenset({order_hint("ann-1")})), queue.hints()
    hints.join(hint)
    hints.asleep(hint)
    try:
        waiting = asyncio.ensure_future(queue.clock.sleep(bench.unit * 100, hint))
        await bench.elapse(1)
        await queue.set_concurrency("ann-1", 2)
        equal(await waiting, True, "a hint ended the pause")
    finally:
        hints.leave(hint)
