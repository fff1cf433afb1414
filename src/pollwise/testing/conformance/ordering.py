"""Order: due time, put order, priority, kinds, and keys that run one at a time."""

from __future__ import annotations

from datetime import UTC, datetime

from pollwise.errors import Unsupported
from pollwise.queues.base import Queue
from pollwise.queues.limits.record import Concurrency
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.testing.conformance.bench import (
    Bench,
    NotCapable,
    arranged,
    done,
    equal,
    expect,
    ids,
    numbered,
    payloads,
    refused,
    require,
)


async def check_first_in_first_out(bench: Bench) -> None:
    """Jobs are claimed in put order, across batches and handles."""
    queue, other = await bench.queue(), await bench.queue()
    require(queue.capabilities.ordered, "order")
    await queue.put(numbered(0, 1, 2))
    await other.put(numbered(3, 4))
    await queue.put(numbered(5))
    found = payloads(await bench.take(other, 2)) + payloads(await bench.take(queue))
    equal(found, list(range(6)), "payloads in the order of the claims")


async def check_order_is_by_due_time(bench: Bench) -> None:
    """Among delayed jobs, the one that was due first comes first; put order breaks ties."""
    queue = await bench.queue()
    require(queue.capabilities.delay and queue.capabilities.ordered, "delay and order")
    delays = [3, 1, 2, 0, 1]
    await queue.put([NewJob("job", n, delay=d * bench.unit) for n, d in enumerate(delays)])
    await bench.elapse(4)
    equal(payloads(await bench.take(queue)), [3, 1, 4, 2, 0], "payloads in the order of claims")


async def check_priority(bench: Bench) -> None:
    """A higher priority goes first, also across kinds and before older jobs."""
    queue = await bench.queue()
    can = queue.capabilities
    require(can.priorities and can.ordered, "priorities and order")
    priorities = [0, -1000, 5, 0, 1000, 5]
    await queue.put([NewJob(f"kind{p % 2}", n, priority=p) for n, p in enumerate(priorities)])
    found = payloads(await bench.take(queue, 2)) + payloads(await bench.take(queue, 4))
    equal(found, [4, 2, 5, 0, 3, 1], "payloads in the order of the claims")


async def check_priority_does_not_beat_time(bench: Bench) -> None:
    """A priority does not make a delayed job run early."""
    queue = await bench.queue()
    require(queue.capabilities.priorities and queue.capabilities.delay, "priorities and delay")
    await queue.put([NewJob("job", "later", priority=9, delay=5 * bench.unit)])
    await queue.put([NewJob("job", "now")])
    equal(payloads(await bench.take(queue)), ["now"], "what may be claimed before the delay ends")


async def check_delay(bench: Bench) -> None:
    """A delayed job cannot be claimed before its time, and can from then on."""
    queue = await bench.queue()
    require(queue.capabilities.delay, "delay")
    [job_id] = await queue.put(NewJob("job", delay=4 * bench.unit))
    equal(await bench.take(queue), [], "a claim at once")
    await bench.elapse(2)
    equal(await bench.take(queue), [], "a claim half-way through the delay")
    await bench.elapse(2)
    equal(ids(await bench.take(queue)), [job_id], "a claim when the delay is over")


async def check_run_at(bench: Bench) -> None:
    """`run_at` is a time, as a datetime or in seconds since 1970; a past one means now."""
    queue = await bench.queue()
    require(queue.capabilities.delay, "delay")
    now = queue.clock.epoch()
    when = datetime.fromtimestamp(now + 4 * bench.unit, UTC)
    await queue.put(NewJob("job", "datetime", run_at=when))
    await queue.put(NewJob("job", "seconds", run_at=now + 6 * bench.unit))
    await queue.put(NewJob("job", "past", run_at=1.0))
    equal(payloads(await bench.take(queue)), ["past"], "a claim at once")
    await bench.elapse(4.5)
    equal(payloads(await bench.take(queue)), ["datetime"], "a claim after 4.5 units")
    await bench.elapse(2)
    equal(payloads(await bench.take(queue)), ["seconds"], "a claim after 6.5 units")


async def check_kinds(bench: Bench) -> None:
    """A claim for some kinds leaves the others; a claim for no kind takes nothing."""
    queue = await bench.queue()
    require(queue.capabilities.kinds, "claim by kinds")
    await queue.put([NewJob(kind, kind) for kind in "abcab"])
    equal(await bench.take(queue, kinds=[]), [], "a claim for no kind")
    equal(await bench.take(queue, kinds=["x"]), [], "a claim for a kind that nobody put")
    found = payloads(await bench.take(queue, 3, kinds=["c", "b", "b", "x"]))
    equal(arranged(queue, found), arranged(queue, ["b", "c", "b"]), "those of kinds b and c")
    equal(payloads(await bench.take(queue)), ["a", "a"], "what is left for others")


async def check_many_kinds(bench: Bench) -> None:
    """A claim may name a thousand kinds, and a queue may hold as many."""
    queue = await bench.queue()
    require(queue.capabilities.kinds and queue.capabilities.ordered, "claim by kinds and order")
    kinds = [f"kind{n}" for n in range(1000)]
    await queue.put([NewJob(kind, n) for n, kind in enumerate(kinds)])
    named = payloads(await bench.take(queue, 500, kinds=kinds))
    equal(named, list(range(500)), "payloads of the first half, claimed by naming every kind")
    rest = payloads(await bench.take(queue, 600))
    equal(rest, list(range(500, 1000)), "payloads of the second half, claimed without naming any")


async def check_what_a_store_cannot_do_is_refused(bench: Bench) -> None:
    """What the capabilities deny is refused with `Unsupported`, and nothing is put."""
    queue = await bench.queue()
    can = queue.capabilities
    asked = {
        "keys": (can.keys, NewJob("job", key="k")),
        "priorities": (can.priorities, NewJob("job", priority=1)),
        "delay": (can.delay, NewJob("job", delay=1)),
        "unique": (can.unique, NewJob("job", unique="u")),
        "replace": (can.replace, NewJob("job", unique="u", replace=True)),
        "limit_group": (can.limits, NewJob("job", limit_group="g")),
    }
    for what, (possible, job) in asked.items():
        if not possible:
            await refused(Unsupported, queue.put([NewJob("job"), job]), f"a job that needs {what}")
    if not can.long_poll:
        await refused(Unsupported, queue.claim("w", 1, 1, hold=1), "a hold")
    if not can.kinds:
        await refused(Unsupported, queue.claim("w", 1, 1, kinds=["job"]), "a claim by kinds")
    if not can.views:
        await refused(Unsupported, queue.get("1"), "get of a job")
        await refused(Unsupported, queue.jobs(), "a list of jobs")
    if not can.pause:
        await refused(Unsupported, queue.pause(), "a pause")
        await refused(Unsupported, queue.resume("job"), "the end of a pause")
        await refused(Unsupported, queue.paused(), "the list of pauses")
    if not can.schedules:
        schedule = queue.schedules.set("s", NewJob("job"), every="1h")
        await refused(Unsupported, schedule, "a schedule")
        await refused(Unsupported, queue.schedules.list(), "the list of schedules")
    if not can.limits:
        await refused(Unsupported, queue.limits.set("job", Concurrency(1)), "a limit")
        await refused(Unsupported, queue.limits.list(), "the list of limits")
    if not can.presence:
        await refused(Unsupported, queue.workers(), "the list of workers")
        await refused(Unsupported, queue.set_concurrency("w", 1), "an order to a worker")
    can_put = [possible for possible, _ in asked.values()]
    others = (can.long_poll, can.kinds, can.views, can.pause, can.presence, can.schedules)
    if all((*can_put, *others)):
        raise NotCapable("the store can do everything")
    equal(await bench.take(queue), [], "what the refused batches left behind")


# Keys


async def _keyed(bench: Bench, *numbers: int) -> Queue:
    queue = await bench.queue()
    require(queue.capabilities.keys, "keys")
    await queue.put(numbered(*numbers, key="k"))
    return queue


async def check_key_one_at_a_time(bench: Bench) -> None:
    """Jobs of one key run one at a time, in put order, each after the one before it is done."""
    queue = await _keyed(bench, 0, 1)
    await queue.put(numbered(2, key="k"))
    other = await bench.queue()
    for n in range(3):
        claims = await bench.take(other)
        equal(payloads(claims), [n], "what may be claimed of the key")
        equal(await bench.take(queue), [], f"a second claim while {n} is leased")
        await queue.settle(done(claims))
    equal(await bench.take(queue), [], "a claim after all are done")


async def check_keys_run_in_parallel(bench: Bench) -> None:
    """Jobs of different keys, or of none, do not wait for each other."""
    queue = await bench.queue()
    require(queue.capabilities.keys, "keys")
    jobs = [("a", 1), ("b", 2), (None, 3), ("a", 4), (None, 5), ("c", 6)]
    await queue.put([NewJob("job", n, key=key) for key, n in jobs])
    equal(sorted(payloads(await bench.take(queue))), [1, 2, 3, 5, 6], "payloads of one claim")


async def check_key_through_retry(bench: Bench) -> None:
    """A job that is retried later keeps its key: its successor waits through the delay."""
    queue = await _keyed(bench, 0, 1)
    claim = await bench.take_one(queue)
    await queue.settle([Settlement.retry(claim, 4 * bench.unit)])
    equal(await bench.take(queue), [], "a claim during the delay of the key's first job")
    await bench.elapse(4)
    claims = await bench.take(queue)
    equal(payloads(claims), [0], "a claim after the delay")
    await queue.settle([Settlement.retry(claims[0])])
    claims = await bench.take(queue)
    equal(payloads(claims), [0], "a claim after a retry at once")
    await queue.settle(done(claims))
    equal(payloads(await bench.take(queue)), [1], "a claim after the first is done")


async def check_key_through_death(bench: Bench) -> None:
    """A dead job frees its key: the next one can run."""
    queue = await _keyed(bench, 0, 1)
    await queue.settle([Settlement.dead(await bench.take_one(queue), "broken")])
    equal(payloads(await bench.take(queue)), [1], "a claim after the key's first job died")


async def check_key_through_give_back(bench: Bench) -> None:
    """A job that is given back stays the first of its key."""
    queue = await _keyed(bench, 0, 1)
    await queue.settle([Settlement.give_back(await bench.take_one(queue))])
    equal(payloads(await bench.take(queue)), [0], "a claim after a give-back")


async def check_key_through_expiry(bench: Bench) -> None:
    """A job whose lease ran out stays the first of its key."""
    queue = await _keyed(bench, 0, 1)
    await bench.take_one(queue, lease=2)
    await bench.elapse(3)
    equal(payloads(await bench.take(queue)), [0], "a claim after the lease of the first ran out")


async def check_key_holds_back_a_better_job(bench: Bench) -> None:
    """Neither priority nor an earlier due time lets a job overtake its key."""
    queue = await bench.queue()
    can = queue.capabilities
    require(can.keys and can.delay and can.priorities, "keys, delay and priorities")
    await queue.put(NewJob("job", "first", key="k", delay=4 * bench.unit))
    await queue.put(NewJob("job", "second", key="k", priority=9))
    equal(await bench.take(queue), [], "a claim while the key's first job is delayed")
    await bench.elapse(4)
    claims = await bench.take(queue)
    equal(payloads(claims), ["first"], "a claim when the first is due")
    await queue.settle(done(claims))
    equal(payloads(await bench.take(queue)), ["second"], "a claim after the first is done")


async def check_key_successor_keeps_its_delay(bench: Bench) -> None:
    """When a key is freed, a successor with its own delay still waits for it."""
    queue = await bench.queue()
    require(queue.capabilities.keys and queue.capabilities.delay, "keys and delay")
    await queue.put(NewJob("job", "first", key="k"))
    await queue.put(NewJob("job", "second", key="k", delay=4 * bench.unit))
    await queue.settle(done(await bench.take(queue)))
    equal(await bench.take(queue), [], "a claim before the successor is due")
    await bench.elapse(4)
    equal(payloads(await bench.take(queue)), ["second"], "a claim when it is due")


async def check_key_over_kinds(bench: Bench) -> None:
    """A key orders jobs of different kinds too."""
    queue = await bench.queue()
    require(queue.capabilities.keys and queue.capabilities.kinds, "keys and claim by kinds")
    await queue.put([NewJob("a", 1, key="k"), NewJob("b", 2, key="k")])
    equal(await bench.take(queue, kinds=["b"]), [], "a claim for the kind of the second only")
    claims = await bench.take(queue, kinds=["a"])
    await queue.settle(done(claims))
    equal(payloads(await bench.take(queue, kinds=["b"])), [2], "a claim after the first is done")


async def check_key_of_an_ended_job_is_free(bench: Bench) -> None:
    """After all jobs of a key are done, the key can be used again."""
    queue = await _keyed(bench, 0)
    await queue.settle(done(await bench.take(queue)))
    await queue.put(numbered(1, key="k"))
    claims = await bench.take(queue)
    equal(payloads(claims), [1], "a claim of a new job with an old key")
    expect(claims[0].job.key == "k", f"its key is {claims[0].job.key!r}")
