"""Jobs wait for others of their batch, and are freed when the last of these is done."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pollwise.queues.views import JobFilter
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.runtime.jobs.new_job import FLOW_HEADER
from pollwise.testing.conformance.bench import (
    Bench,
    equal,
    expect,
    ids,
    payloads,
    require,
)
from pollwise.testing.conformance.flows.jobs import able, chain, finish, job, states

# Waiting and being freed


async def check_a_flow_has_its_ids_at_once(bench: Bench) -> None:
    """The jobs of a flow are put together, have ids, and those with predecessors are blocked."""
    queue = await able(bench)
    put, fresh = await queue.put_counted([*chain(1, 2, 3), NewJob("job", 4)])
    equal((len(set(put)), fresh), (4, 4), "ids and new jobs")
    equal(await states(queue, put), ["ready", "blocked", "blocked", "ready"], "the states")
    stats = await queue.stats()
    equal((stats.ready, stats.blocked), (2, 2), "the counts")
    listed = [info.job.id for info in await queue.jobs("blocked")]
    equal(sorted(listed), sorted(put[1:3]), "the blocked jobs in a list")
    equal(payloads(await bench.take(queue)), [1, 4], "what may run")
    infos = [await queue.get(job_id) for job_id in put]
    names = [info.job.headers.get(FLOW_HEADER) for info in infos if info is not None]
    expect(names[0] is not None and names[0] == names[1] == names[2], f"one flow: {names!r}")
    equal(names[3], None, "the flow of a job that is not linked")


async def check_a_chain_runs_in_its_order(bench: Bench) -> None:
    """Each job of a chain is freed when the one before it is done, and not by its retry."""
    queue = await able(bench)
    put = await queue.put(chain(1, 2, 3))
    first = await bench.take_one(queue)
    await queue.settle([Settlement.retry(first)])
    first = await bench.take_one(queue)
    equal((first.job.payload, first.job.attempt), (1, 2), "the job that came back")
    await finish(queue, [first])
    equal(await states(queue, put[1:]), ["ready", "blocked"], "the states after the first")
    for wanted in (2, 3):
        claims = await bench.take(queue)
        equal(payloads(claims), [wanted], "the next of the chain")
        equal(claims[0].job.attempt, 1, "its attempts")
        await finish(queue, claims)
    equal(await bench.take(queue), [], "what is left to run")


async def check_one_job_frees_many(bench: Bench) -> None:
    """Fan-out: all successors of a job are freed when it is done."""
    queue = await able(bench)
    first = job("first")
    await queue.put([first, *(job(n, first) for n in range(50))])
    await finish(queue, [await bench.take_one(queue)])
    equal(sorted(payloads(await bench.take(queue))), list(range(50)), "what may run")


async def check_many_jobs_free_one(bench: Bench) -> None:
    """Fan-in: a job waits for all of its predecessors, settled one by one or together."""
    queue = await able(bench)
    before = [job(n) for n in range(20)]
    put = await queue.put([*before, job("last", *before)])
    claims = await bench.take(queue)
    equal(len(claims), 20, "what may run at first")
    await finish(queue, claims[:1])
    await finish(queue, claims[1:19])
    equal(await states(queue, put[-1:]), ["blocked"], "while one is missing")
    await finish(queue, claims[19:])
    equal(payloads(await bench.take(queue)), ["last"], "when all are done")


async def check_a_batch_frees_what_waits_for_all_of_it(bench: Bench) -> None:
    """One settlement of all predecessors frees their successors, each once."""
    queue = await able(bench)
    before = [job(n) for n in range(10)]
    await queue.put([*before, job("a", *before), job("b", *before), job("c", before[0])])
    await finish(queue, await bench.take(queue))
    found = await bench.take(queue)
    equal(sorted(payloads(found)), ["a", "b", "c"], "when all are done")
    await finish(queue, found)
    equal(await bench.take(queue), [], "what is left to run")


async def check_flows_nest(bench: Bench) -> None:
    """A diamond behind a chain: fan-out, then fan-in, each at its time."""
    queue = await able(bench)
    a = job("a")
    b, c, d = job("b", a), job("c", a), job("d", a)
    e = job("e", b)
    await queue.put([a, b, c, d, e, job("f", c, d, e), job("g", a)])
    order = []
    while claims := await bench.take(queue):
        order.append(sorted(payloads(claims)))
        await finish(queue, claims)
    equal(order, [["a"], ["b", "c", "d", "g"], ["e"], ["f"]], "what ran together")


async def check_two_settlers_free_once(bench: Bench) -> None:
    """The last two predecessors, settled at the same time, free their successor once."""
    queue, other = await able(bench), await bench.queue()
    for _ in range(10):
        left, right = job("left"), job("right")
        [*_, last] = await queue.put([left, right, job("last", left, right)])
        one, two = await bench.take(queue)
        await asyncio.gather(finish(queue, [one]), finish(other, [two]))
        claims = await bench.take(queue)
        equal(ids(claims), [last], "what was freed")
        await finish(queue, claims)


async def check_a_flow_in_a_queue_that_keeps_jobs(bench: Bench) -> None:
    """A queue that keeps its finished jobs frees successors as well."""
    queue = await able(bench, keep=100)
    put = await queue.put(chain(1, 2))
    await finish(queue, await bench.take(queue))
    await finish(queue, await bench.take(queue))
    equal(await states(queue, put), ["done", "done"], "the states")


async def check_a_freed_job_ends_a_pause(bench: Bench) -> None:
    """A worker that sleeps is woken when a settlement frees a job."""
    queue = await able(bench)
    require(queue.capabilities.hints != "none", "hints")
    await queue.put(chain(1, 2))
    claims = await bench.take(queue)
    pause = asyncio.ensure_future(bench.pause(queue, 60))
    await asyncio.sleep(0)
    await finish(queue, claims)
    equal(await pause, True, "whether a hint ended the pause")


# How a job enters when it is freed


async def check_a_delay_counts_from_release(bench: Bench) -> None:
    """The delay of a successor begins when it is freed; a `run_at` is a moment."""
    queue = await able(bench)
    require(queue.capabilities.delay, "delay")
    first = job("first")
    soon = queue.clock.epoch() + 8 * bench.unit
    await queue.put(
        [
            first,
            job("at once", first),
            job("delay", first, delay=5 * bench.unit),
            job("moment", first, run_at=soon),
        ]
    )
    await bench.elapse(6)
    await finish(queue, await bench.take(queue))
    equal(payloads(await bench.take(queue)), ["at once"], "what may run when it is freed")
    equal((await queue.stats()).delayed, 2, "those that are delayed")
    await bench.elapse(3)
    equal(payloads(await bench.take(queue)), ["moment"], "what may run 9 units after the put")
    await bench.elapse(3)
    equal(payloads(await bench.take(queue)), ["delay"], "what may run 6 units after the release")


async def check_a_freed_job_counts_as_new(bench: Bench) -> None:
    """A job that is freed comes after those that were ready before, and before later ones."""
    queue = await able(bench)
    require(queue.capabilities.ordered, "order")
    await queue.put(chain("first", "freed"))
    await bench.elapse(1)
    [first] = await bench.take(queue, 1)
    await queue.put(NewJob("job", "before"))
    await bench.elapse(1)
    await finish(queue, [first])
    await bench.elapse(1)
    await queue.put(NewJob("job", "after"))
    equal(payloads(await bench.take(queue)), ["before", "freed", "after"], "the order")


async def check_priority_of_a_freed_job(bench: Bench) -> None:
    """A job that is freed keeps its priority."""
    queue = await able(bench)
    require(queue.capabilities.priorities and queue.capabilities.ordered, "priorities and order")
    await queue.put([*chain("first", "high", priority=5), NewJob("job", "low", priority=1)])
    await finish(queue, [c for c in await bench.take(queue, 2) if c.job.payload == "low"])
    claims = await queue.jobs("leased")
    equal(len(claims), 1, "the job that runs")
    held = claims[0].claim
    if held is None:
        return  # the store does not show claims
    await finish(queue, [held])
    await queue.put(NewJob("job", "low", priority=1))
    equal(payloads(await bench.take(queue)), ["high", "low"], "the order")


async def check_a_waiting_job_is_not_in_its_line(bench: Bench) -> None:
    """A job that waits for others of its flow does not block its key; its key is shown."""
    queue = await able(bench)
    require(queue.capabilities.keys, "keys")
    put = await queue.put(chain("first", "second", key="k"))
    info = await queue.get(put[1])
    equal(info and (info.state, info.job.key), ("blocked", "k"), "the job that waits")
    await queue.put(NewJob("job", "other", key="k"))
    claims = await bench.take(queue)
    equal(payloads(claims), ["first", "other"], "what may run")
    await finish(queue, claims[:1])
    equal(await states(queue, put[1:]), ["blocked"], "the job that waits for its key now")
    equal(await bench.take(queue), [], "what may run while the key is taken")
    await finish(queue, claims[1:])
    [second] = await bench.take(queue)
    equal((second.job.payload, second.job.key), ("second", "k"), "what the key frees")
    await queue.put(NewJob("job", "third", key="k"))
    equal(await bench.take(queue), [], "what may run while the freed job has the key")
    await finish(queue, [second])
    equal(payloads(await bench.take(queue)), ["third"], "what comes after it")


async def check_keys_of_jobs_that_are_freed_together(bench: Bench) -> None:
    """Of the jobs of one key that are freed together, one runs at a time, in put order."""
    queue = await able(bench)
    require(queue.capabilities.keys, "keys")
    first = job("first")
    rest = [job(n, first, key=f"k{n % 2}") for n in range(6)]
    await queue.put([first, *rest])
    await finish(queue, await bench.take(queue))
    order = []
    while claims := await bench.take(queue):
        order.append(sorted(payloads(claims)))
        await finish(queue, claims)
    equal(order, [[0, 1], [2, 3], [4, 5]], "what ran together")


async def check_a_waiting_job_of_a_key_is_cancelled(bench: Bench) -> None:
    """The cancellation of a job that waits in a flow leaves the line of its key alone."""
    queue = await able(bench)
    can = queue.capabilities
    require(can.keys and can.cancel, "keys and cancel")
    put = await queue.put(chain("first", "second", key="k"))
    await queue.put([NewJob("job", "holder", key="k"), NewJob("job", "next", key="k")])
    equal(await queue.cancel(put[1:]), {put[1]: "cancelled"}, "the cancelled job")
    info = await queue.get(put[1])
    equal(info and info.job.key, "k", "its key")
    claims = await bench.take(queue)
    equal(payloads(claims), ["first", "holder"], "what may run")
    await finish(queue, claims)
    equal(payloads(await bench.take(queue)), ["next"], "what comes after the holder")


async def check_filters_find_waiting_jobs(bench: Bench) -> None:
    """Pages and filters show jobs that wait in a flow, with and without a key."""
    queue = await able(bench)
    require(queue.capabilities.keys, "keys")
    first = job("first")
    jobs = [first, job(1, first), job(2, first, key="k"), NewJob("other", 3, after=[first])]
    put = await queue.put(jobs)
    for chosen, wanted in (
        (JobFilter("blocked"), put[1:]),
        (JobFilter("blocked", key="k"), put[2:3]),
        (JobFilter(key="k"), put[2:3]),
        (JobFilter("blocked", kinds=("other",)), put[3:]),
        (JobFilter(live=True), put),
        (JobFilter("blocked", limit=2), None),
    ):
        found: list[str] = []
        after = chosen.after
        while True:
            page = await queue.page(replace(chosen, after=after))
            found += [info.job.id for info in page.jobs]
            after = page.next
            if after is None:
                break
        equal(sorted(found), sorted(put[1:] if wanted is None else wanted), f"found by {chosen}")
    by_kind = await queue.stats_by_kind()
    equal({kind: each.blocked for kind, each in by_kind.items()}, {"job": 2, "other": 1}, "counts")
