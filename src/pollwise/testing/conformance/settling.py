"""Settlements: retry, give back, and finished jobs that are kept for a while."""

from __future__ import annotations

from pollwise.runtime.jobs import ERROR_LENGTH_MAX, NewJob, Settlement
from pollwise.testing.conformance.bench import (
    Bench,
    done,
    equal,
    expect,
    keeping,
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
    equal([view.job.payload for view in await queue.jobs("dead")], [4], "the dead letters")
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
    states = [view.state for view in await queue.jobs()]
    equal(states, ["dead", "leased", "ready"], "the jobs there are")
