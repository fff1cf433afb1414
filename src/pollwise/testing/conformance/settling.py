"""Settlements: retry, give back, and what is kept; dead jobs, and how operators handle them."""

from __future__ import annotations

from pollwise.queues.base import Queue
from pollwise.queues.views import JobFilter
from pollwise.runtime.jobs import ERROR_LENGTH_MAX, Claim, NewJob, Settlement
from pollwise.testing.conformance.bench import (
    Bench,
    arranged,
    done,
    equal,
    expect,
    gone,
    ids,
    keeping,
    kill,
    lost,
    nothing_left,
    numbered,
    payloads,
    require,
)


async def check_retry_counts(bench: Bench) -> None:
    """A retry counts as an attempt, and its error can be read."""
    queue = await bench.queue()
    [job_id] = await queue.put(NewJob("job", "tried"))
    for attempt in (1, 2, 3):
        claim = await bench.take_one(queue)
        equal((claim.job.id, claim.job.payload), (job_id, "tried"), "the job")
        equal(claim.job.attempt, attempt, "its attempt")
        await queue.settle([Settlement.retry(claim, error=f"failure {attempt}")])
        if queue.capabilities.views:
            view = await queue.get(job_id)
            equal(view and (view.state, view.error), ("ready", f"failure {attempt}"), "its view")


async def check_retry_waits(bench: Bench) -> None:
    """A retry with a delay cannot be claimed before that, and can afterwards."""
    queue = await bench.queue()
    await queue.put(NewJob("job"))
    await queue.settle([Settlement.retry(await bench.take_one(queue), 4 * bench.unit)])
    await bench.elapse(2)
    equal(await bench.take(queue), [], "a claim half-way through the delay")
    await bench.elapse(2)
    equal((await bench.take_one(queue)).job.attempt, 2, "the attempt after the delay")


async def check_give_back(bench: Bench) -> None:
    """A job that is given back can be claimed at once, or after the delay and not before."""
    queue, other = await bench.queue(), await bench.queue()
    await queue.put(NewJob("job", "back"))
    await queue.settle([Settlement.give_back(await bench.take_one(queue))])
    claim = await bench.take_one(other)
    await other.settle([Settlement.give_back(claim, 3 * bench.unit)])
    equal(await bench.take(queue), [], "a claim during the delay")
    await bench.elapse(3)
    equal((await bench.take_one(queue)).job.payload, "back", "the job after the delay")


async def check_give_back_does_not_count(bench: Bench) -> None:
    """A job that is given back, at once or later, has not used up an attempt."""
    queue = await bench.queue()
    require(queue.capabilities.uncounted, "give-back that does not count")
    await queue.put(NewJob("job"))
    claim = await bench.take_one(queue)
    await queue.settle([Settlement.give_back(claim)])
    claim = await bench.take_one(queue)
    equal(claim.job.attempt, 1, "the attempt after a give-back")
    await queue.settle([Settlement.give_back(claim, 2 * bench.unit)])
    equal(await bench.take(queue), [], "a claim during the delay")
    await bench.elapse(2)
    equal((await bench.take_one(queue)).job.attempt, 1, "the attempt after a late give-back")


async def check_settle_a_mixed_batch(bench: Bench) -> None:
    """A batch may settle each of its claims in a different way."""
    queue = await bench.queue()
    put = await queue.put(numbered(*range(5)))
    claims = {claim.job.id: claim for claim in await bench.take(queue)}
    ways = [
        Settlement.done(claims[put[0]]),
        Settlement.retry(claims[put[1]], error="again"),
        Settlement.retry(claims[put[2]], 60 * bench.unit),
        Settlement.give_back(claims[put[3]]),
        Settlement.dead(claims[put[4]], "broken"),
    ]
    await queue.settle(ways)
    if queue.capabilities.views:
        views = [await queue.get(job_id) for job_id in put]
        states = [view.state if view else None for view in views]
        equal(states, [None, "ready", "delayed", "ready", "dead"], "the states in the order put")
    equal([view.job.payload for view in await queue.jobs("dead")], [4], "the dead jobs")
    attempts = {claim.job.payload: claim.job.attempt for claim in await bench.take(queue)}
    given_back = 1 if queue.capabilities.uncounted else attempts.get(3)
    equal(attempts, {1: 2, 3: given_back}, "attempts of what may be claimed again")


async def check_retry_by_the_hundred(bench: Bench) -> None:
    """A batch of hundreds settles as a whole, each claim with its own delay and error."""
    queue = await bench.queue()
    await queue.put(numbered(*range(300)))
    claims = {claim.job.payload: claim for claim in await bench.take(queue, 300)}
    await queue.settle(
        [
            Settlement.retry(claim, (n % 2) * 60 * bench.unit, error=f"error {n}")
            for n, claim in claims.items()
        ]
    )
    again = await bench.take(queue, 300)
    equal(sorted(payloads(again)), list(range(0, 300, 2)), "those retried at once")
    if queue.capabilities.views:
        view = await queue.get(claims[7].job.id)
        equal(view and (view.state, view.error), ("delayed", "error 7"), "one of the delayed")


async def check_errors_are_storable(bench: Bench) -> None:
    """Any text may be an error: what a store cannot keep is escaped."""
    queue = await bench.queue()
    texts = ["", "ünï ☃ 😀 '\"\\ %s", "a\0b", "bad \udcff byte", "line\nbreak", "x" * 100_000]
    await queue.put(numbered(*range(len(texts))))
    for claim in await bench.take(queue):
        await queue.settle([Settlement.dead(claim, texts[claim.job.payload])])
    dead = {view.job.payload: view.error for view in await queue.jobs("dead")}
    kept = [dead[n] for n in range(len(texts))]
    wanted = ["", "ünï ☃ 😀 '\"\\ %s", "a\\0b", "bad \\udcff byte", "line\nbreak"]
    equal(kept[:5], wanted, "the errors as they are kept")
    equal(len(kept[5] or ""), ERROR_LENGTH_MAX, "the length of the longest")


async def check_done_jobs_are_kept(bench: Bench) -> None:
    """With `keep`, a finished job can be read for that long, does not run, and is pruned."""
    queue = await keeping(bench, 5)
    require(queue.capabilities.views, "view of jobs")
    early, late = await queue.put(numbered("early", "late"))
    first, second = sorted(await bench.take(queue), key=lambda claim: str(claim.job.payload))
    await queue.settle(done([first]))
    view = await queue.get(early)
    equal(view and (view.state, view.job.payload), ("done", "early"), "the finished job")
    await bench.elapse(3)
    await queue.settle(done([second]))
    equal(await queue.prune(), 0, "finished jobs pruned before their time")
    equal(await bench.take(queue), [], "a claim when all are done")
    await bench.elapse(3)
    equal(await queue.prune(), 1, "finished jobs pruned when the first is old enough")
    equal(await queue.get(early), None, "the pruned job")
    expect(await queue.get(late) is not None, "the younger finished job was pruned too")
    equal([view.job.id for view in await queue.jobs("done")], [late], "the list of finished jobs")


async def check_prune_leaves_the_rest(bench: Bench) -> None:
    """Pruning touches finished jobs only; without `keep` there is nothing to prune."""
    queue = await keeping(bench, 1)
    can = queue.capabilities
    require(can.views and can.ordered, "view of jobs, or no order")
    await queue.put(numbered("dead", "leased", "ready"))
    dead, _ = await bench.take(queue, 2)
    await queue.settle([Settlement.dead(dead, "broken")])
    await bench.elapse(10)
    equal(await queue.prune(), 0, "what there was to prune")
    states = sorted(view.state for view in await queue.jobs())
    equal(states, ["dead", "leased", "ready"], "the jobs there are")


# Dead jobs


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
    await kill(bench, queue, *(NewJob("ab"[n % 2], n) for n in range(6)))
    equal(
        sorted(v.job.payload for v in await queue.jobs("dead", kind="b")),
        [1, 3, 5],
        "those of kind b",
    )
    equal(len(await queue.jobs("dead", limit=4)), 4, "dead jobs on a page of four")
    require(queue.capabilities.views and queue.capabilities.ordered, "view of jobs by pages")
    first = await queue.page(JobFilter("dead", limit=4))
    rest = await queue.page(JobFilter("dead", limit=4, after=first.next))
    pages = sorted(info.job.payload for info in (*first.jobs, *rest.jobs))
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
    equal(sorted(left), sorted([put[0], put[2]]), "those left dead")
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
        equal(sorted(found), ["leased", "ready"], "jobs there are")
    equal(await queue.retry(put), 0, "a retry of what was dropped")
    equal(payloads(await bench.take(queue)), ["ready"], "what may be claimed")
    await queue.settle(done([held]))
