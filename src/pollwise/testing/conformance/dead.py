"""Dead jobs: listed with their error, retried or dropped by an operator."""

from __future__ import annotations

from pollwise.queues.base import Queue
from pollwise.runtime.jobs import Claim, NewJob, Settlement
from pollwise.testing.conformance.bench import (
    Bench,
    arranged,
    done,
    equal,
    gone,
    ids,
    kill,
    lost,
    nothing_left,
    numbered,
    payloads,
    require,
)


async def check_dead_jobs_are_listed(bench: Bench) -> None:
    """A dead job is listed with its error, and does not run."""
    queue = await bench.queue()
    before = queue.clock.epoch()
    [job_id] = await kill(bench, queue, NewJob("mail", {"to": "x"}), error="no such address")
    await queue.put(NewJob("job"))
    [view] = await queue.jobs("dead")
    equal((view.job.id, view.job.kind, view.job.payload), (job_id, "mail", {"to": "x"}), "the job")
    equal((view.state, view.error), ("dead", "no such address"), "its state")
    equal(view.job.attempt, 1, "the attempts it had")
    equal(before <= view.since <= queue.clock.epoch(), True, f"dead since = {view.since}, just now")
    equal(payloads(await bench.take(queue)), [None], "what may be claimed: the other job")


async def check_dead_jobs_by_page_and_kind(bench: Bench) -> None:
    """Dead jobs are listed in pages and by kind."""
    queue = await bench.queue()
    put = await kill(bench, queue, *(NewJob("ab"[n % 2], n) for n in range(6)))
    equal(
        sorted(v.job.payload for v in await queue.jobs("dead", kind="b")),
        [1, 3, 5],
        "those of kind b",
    )
    equal(len(await queue.jobs("dead", limit=4)), 4, "dead jobs on a page of four")
    require(queue.capabilities.views and queue.capabilities.ordered, "view of jobs by pages")
    pages = [v.job.payload for v in await queue.jobs("dead", limit=4)]
    pages += [v.job.payload for v in await queue.jobs("dead", limit=4, after=put[3])]
    equal(pages, list(range(6)), "the dead of two pages")


async def check_retry_all(bench: Bench) -> None:
    """Retry makes all dead jobs run again, with fresh attempts, and counts them."""
    queue, other = await bench.queue(), await bench.queue()
    put = await kill(bench, queue, *numbered(1, 2, 3))
    equal(await other.retry(), 3, "how many were retried")
    equal(await other.retry(), 0, "how many are left to retry")
    equal(await queue.jobs("dead"), [], "the dead jobs after it")
    claims = await bench.take(queue)
    equal(arranged(queue, ids(claims)), arranged(queue, put), "the jobs that run again")
    equal({claim.job.attempt for claim in claims}, {1}, "their attempts, fresh")
    await queue.settle(done(claims))
    await nothing_left(queue, "the jobs left when they are done")


async def check_retry_some(bench: Bench) -> None:
    """Retry by ids changes only those; ids that are unknown, foreign or not dead are ignored."""
    queue = await bench.queue()
    put = await kill(bench, queue, *numbered("a", "b", "c"))
    held, ready = await _leased_and_ready(bench, queue)
    wanted = [put[1], put[1], held.job.id, ready, "no-such-id", "", "99999999999999999999", "-1"]
    equal(await queue.retry(wanted), 1, "how many were retried")
    equal(await queue.retry([]), 0, "how many of no ids")
    left = [view.job.id for view in await queue.jobs("dead")]
    equal(arranged(queue, left), arranged(queue, [put[0], put[2]]), "those left dead")
    equal(sorted(payloads(await bench.take(queue))), ["b", "ready"], "what may be claimed")
    await queue.settle(done([held]))


async def _leased_and_ready(bench: Bench, queue: Queue) -> tuple[Claim, str]:
    """Two more jobs: one that is claimed, and the id of one that is not."""
    await queue.put(NewJob("job", "leased"))
    held = await bench.take_one(queue)
    [ready] = await queue.put(NewJob("job", "ready"))
    return held, ready


async def check_retried_job_is_fenced(bench: Bench) -> None:
    """The token from before a job died is not valid after its retry."""
    queue = await bench.queue()
    require(queue.capabilities.fenced, "fence against old tokens")
    await queue.put(NewJob("job"))
    old = await bench.take_one(queue)
    await queue.settle([Settlement.dead(old, "broken")])
    await queue.retry()
    await lost(queue.settle(done([old])), [old.job.id], "a settlement with the old token")
    renewal = await queue.renew([old], bench.unit)
    equal(renewal.lost, (old.job.id,), "what a renewal with the old token lost")
    equal((await bench.take_one(queue)).job.id, old.job.id, "the job, which is still there")


async def check_retry_respects_the_key(bench: Bench) -> None:
    """A retried job of a key still runs one at a time with it, in put order."""
    queue = await bench.queue()
    require(queue.capabilities.keys and queue.capabilities.ordered, "keys and order")
    await queue.put(numbered(0, 1, 2, 3, 4, key="k"))
    for _ in range(2):
        await queue.settle([Settlement.dead(await bench.take_one(queue), "broken")])
    running = await bench.take_one(queue)
    equal(running.job.payload, 2, "the job that runs when two of its key died")
    equal(await queue.retry(), 2, "how many were retried")
    equal(await bench.take(queue), [], "a claim while one of the key runs")
    order = []
    await queue.settle(done([running]))
    while claims := await bench.take(queue):
        equal(len(claims), 1, "how many of a key one claim gets")
        order += payloads(claims)
        await queue.settle(done(claims))
    equal(order, [0, 1, 3, 4], "the order they ran in after that")


async def check_retry_a_whole_key(bench: Bench) -> None:
    """Jobs of one key that are retried together run one at a time, in put order."""
    queue = await bench.queue()
    require(queue.capabilities.keys, "keys")
    await queue.put(numbered(0, 1, 2, key="k"))
    for _ in range(3):
        await queue.settle([Settlement.dead(await bench.take_one(queue), "broken")])
    equal(await queue.retry(), 3, "how many were retried")
    for n in range(3):
        claims = await bench.take(queue)
        equal(payloads(claims), [n], "what may be claimed of the key")
        await queue.settle(done(claims))


async def check_drop(bench: Bench) -> None:
    """Drop deletes dead jobs permanently, by ids or all, and no other jobs."""
    queue = await bench.queue()
    put = await kill(bench, queue, *numbered("a", "b", "c"))
    held, ready = await _leased_and_ready(bench, queue)
    equal(await queue.drop([put[0], held.job.id, ready, "no-such-id"]), 1, "how many of the ids")
    await gone(queue, put[0], "a dropped job")
    equal(await queue.drop([]), 0, "how many of no ids")
    equal(await queue.drop(), 2, "how many of the rest")
    equal(await queue.drop(), 0, "how many when none is left")
    if queue.capabilities.views:
        found = [view.job.payload for view in await queue.jobs()]
        equal(arranged(queue, found), ["leased", "ready"], "jobs there are")
    equal(await queue.retry(put), 0, "a retry of what was dropped")
    equal(payloads(await bench.take(queue)), ["ready"], "what may be claimed")
    await queue.settle(done([held]))
