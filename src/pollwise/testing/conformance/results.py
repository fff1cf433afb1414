"""Results that are kept for a stated time, and waiting for them."""

from __future__ import annotations

import asyncio

from pollwise.errors import JobFailed, UniqueConflict
from pollwise.queues.base import Queue
from pollwise.runtime.jobs import (
    ERROR_LENGTH_MAX,
    TRACEBACK_LENGTH_MAX,
    Claim,
    NewJob,
    Settlement,
)
from pollwise.testing.conformance.bench import (
    Bench,
    equal,
    expect,
    gone,
    keeping,
    lost,
    numbered,
    refused,
    require,
)


async def _able(bench: Bench) -> Queue:
    queue = await bench.queue()
    require(queue.capabilities.results, "results")
    return queue


async def check_a_result_for_its_time(bench: Bench) -> None:
    """A result can be kept for a time although finished jobs are not, and then is gone."""
    queue = await _able(bench)
    put = await queue.put(numbered(1, 2, 3))
    claims = {claim.job.id: claim for claim in await bench.take(queue)}
    long, short, none = (claims[job_id] for job_id in put)
    await queue.settle(
        [
            Settlement.done(long, {"ü": [1.5, "☃"]}, keep=50 * bench.unit),
            Settlement.done(short, "short", keep=3 * bench.unit),
            Settlement.done(none, "none"),
        ]
    )
    await gone(queue, put[2], "a job whose result is not kept")
    equal(await queue.result(put[0]), {"ü": [1.5, "☃"]}, "the result")
    equal(await queue.result(put[1]), "short", "the result that is kept for a short time")
    info = await queue.get(put[1])
    equal(info and (info.state, info.result, info.worker), ("done", "short", "worker"), "its view")
    equal(await queue.prune(), 0, "results that were deleted before their time")
    await bench.elapse(4)
    await gone(queue, put[1], "a result whose time is over, before it is deleted")
    failed = await refused(JobFailed, queue.result(put[1]), "waiting for it")
    equal(failed.state, None, "the state of a job that is gone")
    shown = [each.job.id for each in await queue.jobs()]
    equal(shown, [put[0]], "the jobs in a list")
    equal(await queue.prune(), 1, "results that were deleted after their time")
    equal((await queue.stats()).done, 1, "finished jobs that are left")
    equal(await queue.result(put[0]), {"ü": [1.5, "☃"]}, "the result that has more time")


async def check_a_result_frees_its_unique(bench: Bench) -> None:
    """A job that is kept only for its result does not keep its `unique`."""
    queue = await _able(bench)
    require(queue.capabilities.unique and queue.capabilities.exact_unique, "exact unique")
    [first] = await queue.put(NewJob("job", 1, unique="u"))
    await queue.settle([Settlement.done(await bench.take_one(queue), "one", keep=5 * bench.unit)])
    [second] = await queue.put(NewJob("job", 2, unique="u"))
    expect(first != second, "the same job was put again")
    equal(await queue.result(first), "one", "the result of the first")
    await bench.elapse(6)
    await queue.prune()
    await refused(UniqueConflict, queue.put(NewJob("job", 3, unique="u")), "the third")
    equal(await queue.put(NewJob("job", 2, unique="u")), [second], "the second again")


async def check_a_result_outlasts_keep(bench: Bench) -> None:
    """A result may be kept for longer than finished jobs are."""
    queue = await keeping(bench, 3)
    require(queue.capabilities.results, "results")
    [job_id] = await queue.put(NewJob("job", 1))
    claim = await bench.take_one(queue)
    await queue.settle([Settlement.done(claim, "one", keep=100 * bench.unit)])
    await bench.elapse(4)
    await queue.prune()
    [other] = await queue.put(NewJob("job", 2))
    equal(await queue.result(job_id), "one", "the result after `keep`")
    equal((await queue.stats()).done, 1, "finished jobs")
    await queue.settle([Settlement.done(await bench.take_one(queue), keep=1 * bench.unit)])
    await bench.elapse(2)
    equal(await queue.prune(), 0, "what ended less than `keep` ago")
    equal(await queue.result(other), None, "a result whose time is shorter than `keep`")


async def check_retry_what_has_a_result(bench: Bench) -> None:
    """A job that is kept for its result can run again; then its new result counts."""
    queue = await _able(bench)
    require(queue.capabilities.views, "view of jobs")
    [job_id] = await queue.put(NewJob("job"))
    claim = await bench.take_one(queue)
    await queue.settle([Settlement.done(claim, "old", keep=3 * bench.unit)])
    equal(await queue.retry([job_id]), 1, "jobs that run again")
    await bench.elapse(4)
    equal(await queue.prune(), 0, "jobs that were deleted although they run again")
    new = await bench.take_one(queue)
    await lost(
        queue.settle([Settlement.done(claim, "late", keep=50 * bench.unit)]),
        [job_id],
        "the result of an old lease",
    )
    await queue.settle([Settlement.done(new, "new", keep=50 * bench.unit)])
    equal(await queue.result(job_id), "new", "the result")


async def check_wait_for_many(bench: Bench) -> None:
    """`wait` returns results and failures by id, and leaves out what has not ended in time."""
    queue, other = await _able(bench), await bench.queue()
    put = await queue.put(numbered(*range(6)))
    claims = {claim.job.id: claim for claim in await bench.take(queue)}
    done, nothing, dead, cancelled, runs, waits = put
    waiting = asyncio.ensure_future(other.wait([*put[:4], "no-such-job", done]))
    await queue.settle([Settlement.done(claims[done], [1], keep=50 * bench.unit)])
    await queue.settle(
        [
            Settlement.done(claims[nothing], keep=50 * bench.unit),
            Settlement.dead(claims[dead], "broken", 'File "a.py", line 1'),
            Settlement.cancelled(claims[cancelled], "stopped", keep=50 * bench.unit),
        ]
    )
    found = await waiting
    equal(list(found), [*put[:4], "no-such-job"], "the jobs in the order they were named")
    equal((found[done], found[nothing]), ([1], None), "the results")
    for job_id, state in ((dead, "dead"), (cancelled, "cancelled"), ("no-such-job", None)):
        failed = found[job_id]
        expect(isinstance(failed, JobFailed), f"{job_id} has no JobFailed: {failed!r}")
        equal((failed.job_id, failed.state), (job_id, state), "why there is no result")
    expect("broken" in str(found[dead]), "JobFailed does not have the error")
    equal(found[dead].traceback, 'File "a.py", line 1', "the traceback")
    equal(await queue.wait([runs, waits], 0), {}, "jobs that have not ended")
    equal(await queue.wait([runs, done], 0.01), {done: [1]}, "one of two that has ended")
    equal(await queue.wait([]), {}, "no jobs")
    await refused(TimeoutError, queue.result(runs, 0.01), "a job that runs")


async def check_a_traceback(bench: Bench) -> None:
    """A dead job has its bounded traceback; JobFailed carries it, and a retried job has none."""
    queue = await _able(bench)
    require(queue.capabilities.views, "view of jobs")
    [job_id] = await queue.put(NewJob("job"))
    claim = await bench.take_one(queue)
    await queue.settle([Settlement.retry(claim, error="first\x1e")])
    claim = await bench.take_one(queue)
    long = "ü☃\n" * TRACEBACK_LENGTH_MAX
    await queue.settle([Settlement.dead(claim, "x" * (ERROR_LENGTH_MAX + 1), long)])
    info = await queue.get(job_id)
    if info is None:
        raise AssertionError("the dead job is gone")
    equal([each.traceback for each in info.errors[:-1]], [None], "a traceback of a retry")
    equal(info.error, "x" * ERROR_LENGTH_MAX, "the error")
    equal(info.traceback, long[:TRACEBACK_LENGTH_MAX], "the traceback")
    failed = await refused(JobFailed, queue.result(job_id), "the result of a dead job")
    equal((failed.state, failed.traceback), ("dead", info.traceback), "the failure")


async def check_cancelled_while_waited_for(bench: Bench) -> None:
    """A wait for a job ends when the job is cancelled here."""
    queue = await _able(bench)
    require(queue.capabilities.cancel, "cancel")
    [job_id] = await queue.put(NewJob("job"))
    waiting = asyncio.ensure_future(queue.result(job_id))
    equal(await queue.wait([job_id], 0), {}, "before it is cancelled")
    await queue.cancel([job_id])
    failed = await refused(JobFailed, waiting, "the result of a cancelled job")
    equal(failed.state, "cancelled", "the state")


async def check_waiters_come_and_go(bench: Bench) -> None:
    """Several can wait for one job; if one of them is cancelled, the others still wait."""
    queue = await _able(bench)
    [job_id] = await queue.put(NewJob("job"))
    waiting = [asyncio.ensure_future(queue.result(job_id)) for _ in range(3)]
    equal(await queue.wait([job_id], 0), {}, "before it ends")
    waiting[0].cancel()
    claim: Claim = await bench.take_one(queue)
    await queue.settle([Settlement.done(claim, 7, keep=50 * bench.unit)])
    equal(await asyncio.gather(*waiting[1:]), [7, 7], "what the others get")
    equal(waiting[0].cancelled(), True, "the one that left")
    equal(await queue.result(job_id), 7, "a wait that begins later")
