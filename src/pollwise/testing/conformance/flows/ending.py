"""How jobs react when a job they wait for is dead, cancelled, dropped, or done again."""

from __future__ import annotations

from pollwise.errors import Compensated, JobFailed
from pollwise.queues.views import JobFilter
from pollwise.runtime.jobs import Settlement
from pollwise.testing.conformance.bench import (
    Bench,
    equal,
    payloads,
    refused,
    require,
)
from pollwise.testing.conformance.flows.jobs import (
    able,
    chain,
    finish,
    job,
    states,
    without_headers,
)

# Ends that are not `done`


async def check_a_dead_job_holds_its_successors(bench: Bench) -> None:
    """A dead job blocks its successors until it is retried and done."""
    queue = await able(bench)
    put = await queue.put(chain(1, 2, 3))
    await queue.settle([Settlement.dead(await bench.take_one(queue), "broken")])
    equal(await states(queue, put), ["dead", "blocked", "blocked"], "the states")
    equal(await bench.take(queue), [], "what may run")
    equal(await queue.retry([put[0]]), 1, "retried jobs")
    await finish(queue, await bench.take(queue))
    equal(payloads(await bench.take(queue)), [2], "what may run when it was done")


async def check_ends_for_clients_that_send_no_headers(bench: Bench) -> None:
    """Settlements without the headers of a job mean the same for those that wait for it."""
    queue = await able(bench)
    put = await queue.put([*chain(1, 2), *chain(3, 4), *chain(5, 6)])
    one, three, five = map(without_headers, await bench.take(queue))
    await queue.settle(
        [Settlement.done(one), Settlement.cancelled(three), Settlement.dead(five, "broken")]
    )
    ends = ["done", "ready", "cancelled", "cancelled", "dead", "blocked"]
    equal(await states(queue, put), ends, "the states")


async def check_on_failure_runs_when_a_job_is_dead(bench: Bench) -> None:
    """The first dead predecessor frees an `on_failure` job, whatever else it waits for; once."""
    queue = await able(bench)
    a, b = job("a"), job("b")
    put = await queue.put(
        [a, b, job("both", a, b), job("failed", a, b, on_failure=True), job("more", b)]
    )
    claims = {claim.job.payload: claim for claim in await bench.take(queue)}
    await queue.settle([Settlement.dead(claims["a"], "broken")])
    freed = await bench.take(queue)
    equal(payloads(freed), ["failed"], "what may run when a job is dead")
    await queue.settle([Settlement.dead(claims["b"], "broken too")])
    equal(await bench.take(queue), [], "what may run when the other is dead too")
    await finish(queue, freed)
    await queue.retry(put[:2], anyway=True)
    await finish(queue, await bench.take(queue))
    found = sorted(payloads(await bench.take(queue)))
    equal(found, ["both", "more"], "what may run when both were done after a retry")


async def check_what_is_compensated_is_not_retried_by_mistake(bench: Bench) -> None:
    """A dead job whose failure has started an `on_failure` job is retried only if that is meant."""
    queue = await able(bench)
    a, alone, plain = job("a"), job("alone"), job("plain")
    put = await queue.put(
        [a, job("next", a), job("undo", a, on_failure=True), alone, job("later", alone), plain]
    )
    dead = [put[0], put[3], put[5]]
    await queue.settle([Settlement.dead(each, "broken") for each in await bench.take(queue)])
    await finish(queue, await bench.take(queue))
    await refused(Compensated, queue.retry(dead), "a retry of a job that is compensated")
    equal(await states(queue, dead), ["dead"] * 3, "the states after that")
    equal((await queue.retry(JobFilter("dead"))).count, 2, "what a filter retries")
    equal(await states(queue, dead), ["dead", "ready", "ready"], "the states after that")
    await queue.settle([Settlement.dead(each, "broken") for each in await bench.take(queue)])
    equal(await queue.retry(), 2, "what is retried without being named")
    equal(await states(queue, dead), ["dead", "ready", "ready"], "the states after that")
    equal(await queue.retry(put[:1], anyway=True), 1, "what is retried anyway")
    equal(await states(queue, put[:3]), ["ready", "blocked", "done"], "the states of the flow")
    await finish(queue, await bench.take(queue))
    equal(sorted(payloads(await bench.take(queue))), ["later", "next"], "what goes on")


async def check_what_is_not_undone_yet_can_be_retried(bench: Bench) -> None:
    """A dead job can be retried when the jobs of `on_failure` were cancelled before they began."""
    queue = await able(bench)
    a = job("a")
    put = await queue.put([a, job("undo", a, on_failure=True)])
    [claim] = await bench.take(queue)
    await queue.settle([Settlement.dead(claim, "broken")])
    await queue.cancel(put[1:])
    equal(await queue.retry(put[:1]), 1, "what is retried")


async def check_on_failure_is_cancelled_when_all_is_well(bench: Bench) -> None:
    """An `on_failure` job is cancelled when all of its predecessors are done."""
    queue = await able(bench)
    a, b = job("a"), job("b")
    failed = job("failed", a, b, on_failure=True)
    put = await queue.put([a, b, failed, job("after", failed)])
    one, two = await bench.take(queue)
    await finish(queue, [one])
    equal(await states(queue, put[2:]), ["blocked", "blocked"], "while one is missing")
    await finish(queue, [two])
    equal(await states(queue, put[2:]), ["cancelled", "cancelled"], "when both are done")
    equal(await bench.take(queue), [], "what may run")


async def check_a_cancel_cascades(bench: Bench) -> None:
    """A cancelled job cancels all that waits for it, and what waits for that."""
    queue = await able(bench)
    require(queue.capabilities.cancel, "cancel")
    a, z = job("a"), job("z")
    b = job("b", a)
    cascade = [a, z, b, job("c", b, z), job("failed", a, b, on_failure=True), job("y", z)]
    put = await queue.put(cascade)
    equal(await queue.cancel([put[0]]), {put[0]: "cancelled"}, "what the call says")
    wanted = ["cancelled", "ready", "cancelled", "cancelled", "cancelled", "blocked"]
    equal(await states(queue, put), wanted, "the states")
    error = await refused(JobFailed, queue.result(put[3], 1), "waiting for a successor")
    equal(error.state, "cancelled", "the state of the successor")
    await finish(queue, await bench.take(queue))
    equal(payloads(await bench.take(queue)), ["y"], "what may run of the rest")


async def check_a_long_chain_is_cancelled(bench: Bench) -> None:
    """A cancel cascades through a chain of 2,000 jobs."""
    queue = await able(bench)
    require(queue.capabilities.cancel, "cancel")
    put = await queue.put(chain(*range(2000)))
    await queue.cancel(put[:1])
    stats = await queue.stats()
    equal((stats.cancelled, stats.blocked), (2000, 0), "cancelled and blocked jobs")


async def check_a_run_that_is_cancelled_cascades(bench: Bench) -> None:
    """A job that is cancelled while it runs cancels its successors when its run ends, or lapses."""
    queue = await able(bench)
    require(queue.capabilities.cancel, "cancel")
    for lapses in (False, True):
        put = await queue.put(chain(1, 2))
        claim = await bench.take_one(queue, lease=2 if lapses else 1000)
        equal(await queue.cancel(put), {put[0]: "leased", put[1]: "cancelled"}, "the call")
        put += await queue.put(chain(3, 4))
        claims = [claim, await bench.take_one(queue, lease=2 if lapses else 1000)]
        equal(await queue.cancel(put[2:3]), {put[2]: "leased"}, "the call for the second flow")
        equal(await states(queue, put[3:]), ["blocked"], "the successor of a job that runs")
        if lapses:
            await bench.elapse(3)
            equal(await bench.take(queue), [], "what may run when the leases ran out")
        else:
            await queue.settle([Settlement.cancelled(each) for each in claims])
        equal(await states(queue, put), ["cancelled"] * 4, f"the states, lapses = {lapses}")


async def check_a_retry_that_was_cancelled_cascades(bench: Bench) -> None:
    """A job that was asked to cancel and comes back is cancelled, and its successors with it."""
    queue = await able(bench)
    require(queue.capabilities.cancel, "cancel")
    put = await queue.put(chain(1, 2))
    claim = await bench.take_one(queue)
    await queue.cancel(put[:1])
    await queue.settle([Settlement.retry(claim, error="broken")])
    equal(await states(queue, put), ["cancelled", "cancelled"], "the states")


async def check_a_drop_cascades(bench: Bench) -> None:
    """A dead job that is dropped cancels what waits for it."""
    queue = await able(bench)
    for which in ("ids", "all"):
        put = await queue.put(chain(1, 2, 3))
        await queue.settle([Settlement.dead(await bench.take_one(queue), "broken")])
        equal(await queue.drop(put[:1] if which == "ids" else None), 1, "dropped jobs")
        equal(await states(queue, put), [None, "cancelled", "cancelled"], f"the states: {which}")


async def check_later_ends_change_nothing(bench: Bench) -> None:
    """A job that was done and is retried frees, blocks and cancels nothing a second time."""
    queue = await able(bench)
    require(queue.capabilities.cancel, "cancel")
    a, b = job("a"), job("b")
    put = await queue.put([a, b, job("last", a, b), job("failed", a, b, on_failure=True)])
    claims = {claim.job.payload: claim for claim in await bench.take(queue)}
    await finish(queue, [claims["a"]])
    for end in ("done", "dead", "cancelled"):
        equal(await queue.retry(put[:1]), 1, "retried jobs")
        again = await bench.take_one(queue)
        await queue.settle([Settlement(again, end)])
        now = await states(queue, put[2:])
        equal(now, ["blocked", "blocked"], f"the states when it was {end} again")
    await finish(queue, [claims["b"]])
    equal(await states(queue, put[2:]), ["ready", "cancelled"], "when the other was done")
