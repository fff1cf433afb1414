"""Views of flows, how long their jobs are kept, and which flows are refused."""

from __future__ import annotations

from pollwise.errors import JobError, Unsupported
from pollwise.queues.flows.linking import LINKS_MAX
from pollwise.queues.flows.view import FLOW_SHOWN
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.runtime.jobs.new_job import FLOW_HEADER
from pollwise.testing.conformance.bench import (
    Bench,
    done,
    equal,
    nothing_left,
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

# What successors and operators read


async def check_predecessors(bench: Bench) -> None:
    """A job can read the results and errors of its predecessors, in the order of `after`."""
    queue = await able(bench)
    a, b, c = job("a"), job("b"), job("c")
    put = await queue.put([a, b, c, job("last", c, a, b), job("failed", a, b, on_failure=True)])
    equal(await queue.predecessors(put[0]), [], "those of the first")
    before = await queue.predecessors(put[3])
    equal(before, [(put[2], None), (put[0], None), (put[1], None)], "those that have not ended")
    claims = {claim.job.payload: claim for claim in await bench.take(queue)}
    await queue.settle(
        [
            Settlement.done(claims["a"], {"n": 1}),
            Settlement.dead(claims["b"], "broken"),
            Settlement.done(claims["c"]),
        ]
    )
    found = await queue.predecessors(put[3])
    equal([each for each, _ in found], [put[2], put[0], put[1]], "their order")
    ends = [ending and (ending.kind, ending.state, ending.result) for _, ending in found]
    wanted = [("job", "done", None), ("job", "done", {"n": 1}), ("job", "dead", None)]
    equal(ends, wanted, "how they ended")
    [_, (_, broken)] = await queue.predecessors(put[4])
    equal(broken and broken.failure and broken.failure.error, "broken", "the error")
    equal(await queue.predecessors("987654321"), [], "those of a job that does not exist")


async def check_the_view_of_a_flow(bench: Bench) -> None:
    """Any job of a flow shows all of it: its jobs in put order, and their links."""
    queue = await able(bench)
    a, b = job("a"), job("b")
    put = await queue.put(
        [a, NewJob("job", "alone"), b, job("c", b, a), job("f", a, on_failure=True)]
    )
    [first] = [each for each in await bench.take(queue) if each.job.payload == "a"]
    await finish(queue, [first], "result")
    flow = [put[0], *put[2:]]
    for job_id in flow:
        view = await queue.flow(job_id)
        if view is None:
            raise AssertionError(f"job {job_id} shows no flow")
        equal([each.info.job.id for each in view.jobs], flow, "the jobs")
        links = [(each.after, each.on_failure) for each in view.jobs]
        wanted = [((), False), ((), False), ((put[2], put[0]), False), ((put[0],), True)]
        equal(links, wanted, "the links")
        states = [each.info.state for each in view.jobs]
        equal(states, ["done", "leased", "blocked", "cancelled"], "the states")
        equal(view.jobs[0].info.result, "result", "the result")
        equal((view.name, view.more), (first.job.headers[FLOW_HEADER], False), "its name")
    equal(await queue.flow(put[1]), None, "the flow of a job that is alone")
    equal(await queue.flow("987654321"), None, "the flow of a job that does not exist")


# How long jobs of flows are kept


async def check_results_stay_while_a_flow_goes_on(bench: Bench) -> None:
    """Ended jobs of a flow are kept while others wait; a prune takes nothing from it."""
    queue = await able(bench)
    require(bench.unit >= 1, "hours in a test")
    a, b = job("a"), job("b")
    put = await queue.put([a, b, job("last", a, b)])
    claims = {claim.job.payload: claim for claim in await bench.take(queue, lease=10 * FLOW_SHOWN)}
    await queue.settle([Settlement.done(claims["a"], "result", keep=1)])
    await bench.elapse(2 * FLOW_SHOWN / bench.unit)
    equal(await queue.prune(), 0, "pruned jobs")
    found = await queue.predecessors(put[2])
    equal(found[0][1] and found[0][1].result, "result", "the result of the first")
    await queue.settle([Settlement.dead(claims["b"], "broken")])
    await bench.elapse(2 * FLOW_SHOWN / bench.unit)
    equal(await queue.prune(), 0, "pruned jobs while one is dead")
    equal(await states(queue, put), ["done", "dead", "blocked"], "the states")


async def check_results_stay_for_clients_that_send_no_headers(bench: Bench) -> None:
    """A client that settles without the headers of a job need not know that others wait for it."""
    for keep in (None, 2.0):
        queue = await able(bench, keep)
        require(bench.unit >= 1, "hours in a test")
        first, second, other = job("first"), job("second"), job("other")
        put = await queue.put([first, second, other, job("last", first, second, other)])
        claims = await bench.take(queue, lease=10 * FLOW_SHOWN)
        bare = [without_headers(claim) for claim in claims]
        await queue.settle([Settlement.done(bare[0], "kept", keep=60), Settlement.done(bare[1], 2)])
        await bench.elapse(2 * FLOW_SHOWN / bench.unit)
        await queue.prune()
        found = await queue.predecessors(put[3])
        results = [ending and ending.result for _, ending in found]
        equal(results, ["kept", 2, None], f"results of a queue with keep = {keep}")
        await finish(queue, [*bare[2:]])
        await finish(queue, await bench.take(queue))
        await bench.elapse(2 * FLOW_SHOWN / bench.unit)
        await queue.prune()
        await nothing_left(queue, "jobs after the flow")


async def check_a_flow_that_has_ended_is_let_go(bench: Bench) -> None:
    """When all jobs of a flow have ended, they are kept for an hour, or longer if they ask."""
    queue = await able(bench)
    require(bench.unit >= 1, "hours in a test")
    put = await queue.put([*chain(1, 2, 3), NewJob("job", "other")])
    claims = {claim.job.payload: claim for claim in await bench.take(queue)}
    await queue.settle([Settlement.done(claims[1], "long", keep=3 * FLOW_SHOWN)])
    await queue.settle(done([claims["other"]]))
    await queue.cancel(put[2:3])
    await finish(queue, await bench.take(queue))
    await bench.elapse(0.9 * FLOW_SHOWN / bench.unit)
    equal(await queue.prune(), 0, "pruned jobs within the hour")
    equal(await states(queue, put[:3]), ["done", "done", "cancelled"], "the states")
    await bench.elapse(0.2 * FLOW_SHOWN / bench.unit)
    equal(await queue.prune(), 2, "pruned jobs after the hour")
    equal(await states(queue, put[:3]), ["done", None, None], "the states after the hour")
    equal(await queue.result(put[0], 1), "long", "the result with more time")
    await bench.elapse(2 * FLOW_SHOWN / bench.unit)
    equal(await queue.prune(), 1, "pruned jobs after its own time")
    await nothing_left(queue, "what is left of the flow")


async def check_a_drop_lets_a_flow_go(bench: Bench) -> None:
    """A flow whose last dead job is dropped has ended."""
    queue = await able(bench)
    require(bench.unit >= 1, "hours in a test")
    put = await queue.put(chain(1, 2, 3))
    await finish(queue, await bench.take(queue))
    await queue.settle([Settlement.dead(await bench.take_one(queue), "broken")])
    await bench.elapse(2 * FLOW_SHOWN / bench.unit)
    equal(await queue.drop(put[1:2]), 1, "dropped jobs")
    equal(await states(queue, put), ["done", None, "cancelled"], "the states")
    await bench.elapse(1.1 * FLOW_SHOWN / bench.unit)
    equal(await queue.prune(), 2, "pruned jobs")
    await nothing_left(queue, "what is left of the flow")


async def check_a_queue_with_a_longer_keep_keeps_its_flows(bench: Bench) -> None:
    """When a flow has ended, its jobs are kept as long as the queue keeps others."""
    queue = await able(bench, keep=4 * FLOW_SHOWN / bench.unit)
    require(bench.unit >= 1, "hours in a test")
    put = await queue.put(chain(1, 2))
    await finish(queue, await bench.take(queue))
    await finish(queue, await bench.take(queue))
    await bench.elapse(3 * FLOW_SHOWN / bench.unit)
    equal(await queue.prune(), 0, "pruned jobs within the time of the queue")
    equal(await states(queue, put), ["done", "done"], "the states")
    await bench.elapse(2 * FLOW_SHOWN / bench.unit)
    equal(await queue.prune(), 2, "pruned jobs after it")


# What is refused


async def check_links_that_are_refused(bench: Bench) -> None:
    """A successor outside of the batch, or before its predecessor, is refused; nothing is put."""
    queue = await able(bench)
    a = job("a")
    b = job("b", a)
    await refused(JobError, queue.put([b]), "a job whose predecessor is missing")
    await refused(JobError, queue.put([b, a]), "a job before its predecessor")
    unique = job("u", a, unique="u")
    await refused(JobError, queue.put([a, unique]), "a unique job in a flow")
    many = [job(n) for n in range(LINKS_MAX // 100 + 1)]
    crowd = [job("after", *many) for _ in range(100)]
    await refused(JobError, queue.put([*many, *crowd]), f"more than {LINKS_MAX} links")
    await nothing_left(queue, "what the refused batches left behind")


async def check_headers_of_another_job_make_no_flow(bench: Bench) -> None:
    """A job that is put with the headers of a job of a flow is not in that flow."""
    queue = await able(bench)
    await queue.put(chain(1, 2))
    claim = await bench.take_one(queue)
    headers = {**claim.job.headers, "more": "text"}
    [other] = await queue.put(NewJob("job", 3, headers=headers))
    info = await queue.get(other)
    equal(info and dict(info.job.headers), {"more": "text"}, "its headers")
    equal(await queue.flow(other), None, "its flow")


async def check_flows_are_refused_where_there_are_none(bench: Bench) -> None:
    """A store that cannot link jobs refuses them, and puts nothing."""
    queue = await bench.queue()
    require(not queue.capabilities.flows, "a store without flows")
    await refused(Unsupported, queue.put(chain(1, 2)), "a put of linked jobs")
    await refused(Unsupported, queue.predecessors("1"), "predecessors")
    await refused(Unsupported, queue.flow("1"), "a view of a flow")
    equal(await bench.take(queue), [], "what the refused batches left behind")
