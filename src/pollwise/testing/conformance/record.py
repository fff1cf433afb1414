"""The record of a job: headers, progress, results, errors, and requests to cancel."""

from __future__ import annotations

import asyncio

from pollwise.errors import JobError, LeaseLost, PayloadError
from pollwise.queues.base import Queue
from pollwise.runtime.jobs import (
    ENDED,
    ERRORS_KEPT,
    MAX_HEADER_BYTES,
    MAX_RESULT_BYTES,
    PROGRESS_NOTE_MAX,
    JobInfo,
    NewJob,
    Progress,
    Settlement,
)
from pollwise.testing.conformance.bench import (
    Bench,
    NotCapable,
    equal,
    expect,
    gone,
    keeping,
    lost,
    numbered,
    payloads,
    refused,
    require,
)

HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "ü": "☃ '\""}


async def _shown(queue: Queue, job_id: str) -> JobInfo:
    info = await queue.get(job_id)
    if info is None:
        raise AssertionError(f"the job {job_id} is gone")
    return info


async def _keeping(bench: Bench, *able: str) -> Queue:
    """A queue that keeps finished jobs for long, shows jobs, and can do these things."""
    queue = await keeping(bench, 500)
    for what in ("views", *able):
        require(getattr(queue.capabilities, what), what)
    return queue


# Headers


async def check_headers_travel(bench: Bench) -> None:
    """The headers of a job reach each run and every view; without any they are empty."""
    queue = await bench.queue()
    require(queue.capabilities.headers, "headers")
    await queue.put(NewJob("job", 1, headers=HEADERS))
    claim = await bench.take_one(queue)
    equal(dict(claim.job.headers), HEADERS, "the headers of the first run")
    if queue.capabilities.views:
        equal(dict((await _shown(queue, claim.job.id)).job.headers), HEADERS, "those of its view")
    await queue.settle([Settlement.retry(claim)])
    claim = await bench.take_one(queue)
    equal(dict(claim.job.headers), HEADERS, "the headers of the second run")
    await queue.settle([Settlement.done(claim)])
    await queue.put([NewJob("job", "with", headers=HEADERS), NewJob("job", "without")])
    found = {claim.job.payload: dict(claim.job.headers) for claim in await bench.take(queue)}
    equal(found, {"with": HEADERS, "without": {}}, "the headers of two jobs put together")


async def check_headers_are_bounded(bench: Bench) -> None:
    """Headers of the largest size are stored; what is not text or too large is refused."""
    queue = await bench.queue()
    require(queue.capabilities.headers, "headers")
    size = MAX_HEADER_BYTES - len('{"a": ""}')
    await queue.put(NewJob("job", headers={"a": "x" * size}))
    equal(len((await bench.take_one(queue)).job.headers["a"]), size, "the largest header")
    for bad in ({"a": "x" * (size + 1)}, {"a": 1}, {"": "x"}, {"a": "b\0c"}, {"a": "\udcff"}, "a"):
        try:
            NewJob("job", headers=bad)  # type: ignore[arg-type]
        except JobError:
            continue
        raise AssertionError(f"the headers {str(bad)[:40]} were accepted")


# Results


async def check_results_are_kept(bench: Bench) -> None:
    """With `keep`, a result can be read until its job is pruned; None means no result."""
    queue = await keeping(bench, 5)
    can = queue.capabilities
    require(can.results and can.views, "results")
    values = [{"sum": 1.5, "ü": ["☃", None, True]}, "", 0, False, [], None]
    put = await queue.put(numbered(*range(len(values))))
    claims = {claim.job.id: claim for claim in await bench.take(queue)}
    await queue.settle(
        [Settlement.done(claims[job_id], value) for job_id, value in zip(put, values, strict=True)]
    )
    for job_id, value in zip(put, values, strict=True):
        info = await _shown(queue, job_id)
        equal((info.state, info.result), ("done", value), "a finished job")
        equal(type(info.result), type(value), "the type of its result")
    await bench.elapse(6)
    equal(await queue.prune(), len(put), "pruned jobs")
    await gone(queue, put[0], "a pruned job with a result")


async def check_results_are_bounded(bench: Bench) -> None:
    """A large result is stored whole; one that is too large or not JSON is refused at once."""
    queue = await _keeping(bench, "results")
    [job_id] = await queue.put(NewJob("job"))
    claim = await bench.take_one(queue)
    for bad in ("x" * MAX_RESULT_BYTES, {1, 2}, float("nan")):
        try:
            Settlement.done(claim, bad)
        except PayloadError:
            continue
        raise AssertionError("a result that cannot be stored was accepted")
    large = "ü" * (MAX_RESULT_BYTES // 2 - 1)
    await queue.settle([Settlement.done(claim, large)])
    expect((await _shown(queue, job_id)).result == large, "the large result was changed")


async def check_result_of_an_old_lease(bench: Bench) -> None:
    """A result of an old lease is refused and changes nothing."""
    queue = await _keeping(bench, "results")
    [job_id] = await queue.put(NewJob("job"))
    old = await bench.take_one(queue, lease=1)
    await bench.elapse(2)
    new = await bench.take_one(queue, worker="other")
    await lost(queue.settle([Settlement.done(old, "old")]), [job_id], "the result of an old lease")
    await queue.settle([Settlement.done(new, "new")])
    await lost(queue.settle([Settlement.done(old, "old")]), [job_id], "the same when it is done")
    info = await _shown(queue, job_id)
    equal((info.state, info.result, info.worker), ("done", "new", "other"), "the job")


async def check_a_result_without_keep(bench: Bench) -> None:
    """Without `keep`, a finished job is deleted, with or without a result."""
    queue = await bench.queue()
    require(queue.capabilities.results, "results")
    [job_id] = await queue.put(NewJob("job"))
    await queue.settle([Settlement.done(await bench.take_one(queue), {"a": 1})])
    await gone(queue, job_id, "the finished job")


# Progress


async def check_progress_rides_on_renewals(bench: Bench) -> None:
    """Progress is stored by a renewal, stays until the next report, and belongs to its run."""
    queue = await bench.queue()
    can = queue.capabilities
    require(can.progress and can.views, "progress")
    [job_id, other] = await queue.put(numbered(1, 2))
    claims = await bench.take(queue, lease=50)
    equal((await _shown(queue, job_id)).progress, None, "progress before the first report")
    renewal = await queue.renew(claims, 50 * bench.unit, {job_id: Progress(0.25, "page 1 ☃")})
    equal((renewal.lost, renewal.cancel), ((), ()), "the renewal")
    first = (await _shown(queue, job_id)).progress
    equal(first and (first.fraction, first.note), (0.25, "page 1 ☃"), "the first report")
    await bench.elapse(2)
    await queue.renew(claims, 50 * bench.unit)
    equal((await _shown(queue, job_id)).progress, first, "the report after a plain renewal")
    await queue.renew(claims, 50 * bench.unit, {job_id: Progress(1, "x" * 10_000)})
    second = (await _shown(queue, job_id)).progress
    if first is None or second is None:
        raise AssertionError("a report is gone")
    equal((second.fraction, len(second.note or "")), (1.0, PROGRESS_NOTE_MAX), "the second report")
    expect(second.at > first.at, "the second report is not newer than the first")
    equal((await _shown(queue, other)).progress, None, "the progress of the other job")
    [mine] = [claim for claim in claims if claim.job.id == job_id]
    await queue.settle([Settlement.retry(mine)])
    await bench.take_one(queue)
    equal((await _shown(queue, job_id)).progress, None, "the progress of the next run")


async def check_progress_of_an_old_lease(bench: Bench) -> None:
    """Progress of an old lease is refused and changes nothing."""
    queue = await bench.queue()
    can = queue.capabilities
    require(can.progress and can.views, "progress")
    [job_id] = await queue.put(NewJob("job"))
    old = await bench.take_one(queue, lease=1)
    await bench.elapse(2)
    new = await bench.take_one(queue)
    renewal = await queue.renew([old], 50 * bench.unit, {job_id: Progress(0.9)})
    equal(renewal.lost, (job_id,), "the lost leases")
    equal((await _shown(queue, job_id)).progress, None, "the progress after the old report")
    await queue.settle([Settlement.done(new)])
    renewal = await queue.renew([new], 50 * bench.unit, {job_id: Progress(0.9)})
    equal(renewal.lost, (job_id,), "the lost leases when the job is settled")


# Errors


async def check_errors_are_a_history(bench: Bench) -> None:
    """The errors of the last attempts are kept, the newest last, with their attempts."""
    queue = await bench.queue()
    require(queue.capabilities.views, "view of jobs")
    [job_id] = await queue.put(NewJob("job"))
    equal((await _shown(queue, job_id)).errors, (), "the errors of a new job")
    count = ERRORS_KEPT + 2
    for attempt in range(1, count):
        claim = await bench.take_one(queue)
        await queue.settle([Settlement.retry(claim, error=f"failure {attempt} ☃")])
    await queue.settle([Settlement.give_back(await bench.take_one(queue))])
    await queue.settle([Settlement.dead(await bench.take_one(queue), "the end")])
    info = await _shown(queue, job_id)
    equal(info.error, "the end", "the newest error")
    wanted = [f"failure {n} ☃" for n in range(1, count)] + ["the end"]
    equal([each.error for each in info.errors], wanted[-ERRORS_KEPT:], "the history")
    if queue.capabilities.uncounted:
        attempts = [each.attempt for each in info.errors]
        equal(attempts, list(range(1, count + 1))[-ERRORS_KEPT:], "their attempts")
    times = [each.at for each in info.errors]
    equal(times, sorted(times), "their times")


async def check_a_lapse_is_an_error(bench: Bench) -> None:
    """A lease that ran out is an error of its attempt."""
    queue = await bench.queue()
    require(queue.capabilities.views, "view of jobs")
    [job_id] = await queue.put(NewJob("job"))
    await bench.take_one(queue, worker="silent", lease=1)
    await bench.elapse(2)
    await bench.take_one(queue)
    [failure] = (await _shown(queue, job_id)).errors
    equal((failure.attempt, "silent" in failure.error), (1, True), "the error of the lapse")


# Cancelling


async def check_cancel_what_waits(bench: Bench) -> None:
    """A job that waits is cancelled at once: ready, delayed or blocked. It never runs."""
    queue = await _keeping(bench, "cancel")
    put = await queue.put(
        [
            NewJob("job", "ready"),
            NewJob("job", "delayed", delay=5 * bench.unit),
            NewJob("job", "left"),
        ]
    )
    if queue.capabilities.keys:
        put += await queue.put([NewJob("job", "head", key="k"), NewJob("job", "behind", key="k")])
    chosen = [put[0], put[1], *put[4:]]
    states = await queue.cancel([*chosen, "no-such-job"])
    equal(states, dict.fromkeys(chosen, "cancelled"), "what cancel returns")
    for job_id in chosen:
        equal((await _shown(queue, job_id)).state, "cancelled", "the state of a cancelled job")
    equal(await queue.cancel(chosen), states, "what a second cancel returns")
    await bench.elapse(6)
    left = {"left", "head"} if queue.capabilities.keys else {"left"}
    equal(set(payloads(await bench.take(queue))), left, "the jobs that run")
    equal((await queue.stats()).cancelled, len(chosen), "cancelled jobs in stats")
    page = await queue.jobs("cancelled")
    equal(sorted(info.job.id for info in page), sorted(chosen), "the list of cancelled jobs")


async def check_cancel_frees_the_key(bench: Bench) -> None:
    """A cancelled job does not block its key, and a blocked one that is cancelled frees nothing."""
    queue = await _keeping(bench, "cancel")
    require(queue.capabilities.keys, "keys")
    head, second, third = await queue.put(numbered(1, 2, 3, key="k"))
    running = await bench.take_one(queue)
    await queue.cancel([second])
    equal(await bench.take(queue), [], "a claim while the head runs")
    await queue.settle([Settlement.done(running)])
    [claim] = await bench.take(queue)
    equal(claim.job.id, third, "the job after the head")
    await queue.settle([Settlement.give_back(claim)])
    [last] = await queue.put(numbered(4, key="k"))
    await queue.cancel([third])
    equal([c.job.id for c in await bench.take(queue)], [last], "the job after a cancelled head")
    expect(head != last, "ids are used again")


async def check_cancel_without_keep(bench: Bench) -> None:
    """Without `keep`, a cancelled job is deleted, as a finished one is."""
    queue = await bench.queue()
    require(queue.capabilities.cancel and queue.capabilities.views, "cancel")
    waiting, running, silent = await queue.put(numbered(1, 2, 3))
    claims = {c.job.id: c for c in await bench.take(queue, lease=50)}
    await queue.settle([Settlement.give_back(claims[waiting])])
    equal(await queue.cancel([waiting]), {waiting: "cancelled"}, "the state of what waits")
    await gone(queue, waiting, "the job that waited")
    equal(await queue.cancel([running]), {running: "leased"}, "the state of what runs")
    await queue.settle([Settlement.cancelled(claims[running])])
    await gone(queue, running, "the job that ran")
    await queue.cancel([silent])
    await bench.elapse(51)
    equal(await bench.take(queue), [], "a claim after the lease of a cancelled job")
    await gone(queue, silent, "the job whose worker was silent")


async def check_cancel_what_runs(bench: Bench) -> None:
    """The worker of a running job learns of the request with its next renewal, and settles it."""
    queue, other = await _keeping(bench, "cancel"), await keeping(bench, 500)
    first, second = await queue.put(numbered(1, 2))
    claims = await bench.take(queue)
    equal((await queue.renew(claims, 50 * bench.unit)).cancel, (), "requests before the first")
    equal(await other.cancel([first]), {first: "leased"}, "what cancel returns")
    info = await _shown(queue, first)
    equal((info.state, info.cancel), ("leased", True), "the job that was asked to cancel")
    renewal = await queue.renew(claims, 50 * bench.unit)
    equal((renewal.lost, renewal.cancel), ((), (first,)), "the renewal")
    equal((await queue.renew(claims, 50 * bench.unit)).cancel, (first,), "the next renewal")
    [mine] = [claim for claim in claims if claim.job.id == first]
    await queue.settle([Settlement.cancelled(mine, "stopped by its worker")])
    info = await _shown(queue, first)
    equal((info.state, info.cancel, info.worker), ("cancelled", False, "worker"), "at the end")
    equal(info.error, "stopped by its worker", "its error")
    await lost(queue.settle([Settlement.done(mine)]), [first], "a settlement after that")
    equal((await _shown(queue, second)).cancel, False, "the other job")


async def check_cancel_or_settle_first(bench: Bench) -> None:
    """Done before it learns of the request is done; what would run again is cancelled instead."""
    queue = await _keeping(bench, "cancel")
    put = await queue.put(numbered(*range(5)))
    claims = {claim.job.id: claim for claim in await bench.take(queue)}
    await queue.cancel(put)
    ways = [
        Settlement.done(claims[put[0]]),
        Settlement.retry(claims[put[1]], error="again"),
        Settlement.retry(claims[put[2]], 5 * bench.unit),
        Settlement.give_back(claims[put[3]]),
        Settlement.dead(claims[put[4]], "broken"),
    ]
    await queue.settle(ways)
    states = [(await _shown(queue, job_id)).state for job_id in put]
    wanted = ["done", "cancelled", "cancelled", "cancelled", "dead"]
    equal(states, wanted, "the states in the order put")
    equal((await _shown(queue, put[1])).error, "again", "the error of a retry that was cancelled")
    await bench.elapse(6)
    equal(await bench.take(queue), [], "a claim when all have ended")
    equal(list((await queue.cancel(put)).values()), wanted, "cancelling what has ended")


async def check_cancel_of_a_silent_worker(bench: Bench) -> None:
    """A job whose lease runs out after the request is cancelled and does not run again."""
    queue = await _keeping(bench, "cancel")
    before, after = await queue.put(numbered("before", "after"))
    await bench.take(queue, lease=3)
    await queue.cancel([before])
    await bench.elapse(4)
    equal(await queue.cancel([after]), {after: "cancelled"}, "cancelling when the lease ran out")
    equal(await bench.take(queue), [], "a claim after both leases")
    for job_id in (before, after):
        equal((await _shown(queue, job_id)).state, "cancelled", "the state of the job")


async def check_old_lease_of_a_cancelled_job(bench: Bench) -> None:
    """A claim on a job that was cancelled after its lease is lost."""
    queue = await _keeping(bench, "cancel")
    [job_id] = await queue.put(NewJob("job"))
    claim = await bench.take_one(queue, lease=1)
    await bench.elapse(2)
    await queue.cancel([job_id])
    equal((await queue.renew([claim], 5 * bench.unit)).lost, (job_id,), "the renewal")
    for settlement in (Settlement.done(claim), Settlement.retry(claim)):
        await lost(queue.settle([settlement]), [job_id], "a late settlement")
    equal((await _shown(queue, job_id)).state, "cancelled", "the state")


async def check_retry_what_has_ended(bench: Bench) -> None:
    """Named jobs run again from any end, with fresh attempts, without result or progress."""
    queue = await _keeping(bench, "cancel")
    put = await queue.put(numbered("done", "dead", "cancelled", "waits"))
    claims = {claim.job.id: claim for claim in await bench.take(queue)}
    await queue.settle(
        [
            Settlement.done(claims[put[0]], "result")
            if queue.capabilities.results
            else Settlement.done(claims[put[0]]),
            Settlement.dead(claims[put[1]], "broken"),
            Settlement.cancelled(claims[put[2]]),
            Settlement.give_back(claims[put[3]]),
        ]
    )
    equal(await queue.retry(put), 3, "jobs that run again")
    for job_id in put[:3]:
        info = await _shown(queue, job_id)
        equal(
            (info.state, info.job.attempt, info.result, info.progress, info.worker),
            ("ready", 0, None, None, None),
            "a job that runs again",
        )
    again = await bench.take(queue)
    equal(sorted(c.job.id for c in again), sorted(put), "the jobs that can be claimed")
    await queue.settle([Settlement.done(claim) for claim in again])
    equal(await queue.retry(), 0, "jobs that run again without being named: only dead ones")


# Views


async def check_views_of_a_run(bench: Bench) -> None:
    """A view shows who runs a job and since when, and gives the claim that holds it."""
    queue = await _keeping(bench)
    put = await queue.put(numbered(1, 2, 3))
    claims = {c.job.id: c for c in await bench.take(queue, 2, worker="mine")}
    [theirs] = await bench.take(queue, worker="theirs")
    mine = await queue.jobs("leased", worker="mine")
    equal(sorted(info.job.id for info in mine), sorted(claims), "what one worker holds")
    for info in mine:
        claim = claims[info.job.id]
        shown = info.claim and (info.claim.token, info.claim.worker)
        wanted = (claim.token, "mine") if queue.capabilities.shows_claims else None
        equal(shown, wanted, "the claim in a view")
        expect(info.claimed_at is not None, "the view has no time of the claim")
        await queue.settle([Settlement.done(info.claim or claim)])
    equal([info.job.id for info in await queue.jobs("leased")], [theirs.job.id], "what is left")
    ended = await queue.jobs("done", worker="mine")
    equal(sorted(info.job.id for info in ended), sorted(claims), "what one worker has ended")
    equal([info.claim for info in ended], [None, None], "claims of ended jobs")
    equal(len(put), 3, "the jobs put")


async def check_lists_of_kinds(bench: Bench) -> None:
    """A list is as long as the limit, if that many jobs match, and may be of some kinds only."""
    queue = await _keeping(bench)
    put = await queue.put([NewJob(kind, n) for n, kind in enumerate("abcab")])
    equal(len(await queue.jobs(limit=2)), 2, "the jobs of a list with limit 2")
    everything = {info.job.id for info in await queue.jobs(limit=5)}
    equal(sorted(everything), sorted(put), "all jobs")
    kinds = [info.job.kind for info in await queue.jobs(kind=["a", "c"])]
    equal(sorted(kinds), ["a", "a", "c"], "the jobs of two kinds")


async def check_stats_by_kind(bench: Bench) -> None:
    """`stats_by_kind` counts for each kind what `stats` counts for all."""
    queue = await _keeping(bench)
    await queue.put([NewJob(kind, n) for n, kind in enumerate("aaab")])
    await queue.put(NewJob("c", delay=50 * bench.unit))
    [claim] = await bench.take(queue, 1, kinds=["a"]) if queue.capabilities.kinds else [None]
    if claim is None:
        raise NotCapable("the store's capabilities deny: kinds")
    await queue.settle([Settlement.done(claim)])
    await bench.take(queue, 1, kinds=["a"])
    found = await queue.stats_by_kind()
    equal(sorted(found), ["a", "b", "c"], "the kinds")
    a = found["a"]
    equal((a.ready, a.leased, a.done), (1, 1, 1), "the jobs of one kind")
    equal((found["b"].ready, found["c"].delayed), (1, 1), "the jobs of the others")
    ages = [found[kind].oldest_age is not None for kind in "abc"]
    equal(ages, [True, True, False], "kinds that have a ready job")
    whole = await queue.stats()
    for state in ("ready", "delayed", "leased", *ENDED):
        parts = sum(getattr(each, state) for each in found.values())
        equal(parts, getattr(whole, state), f"{state} jobs of all kinds")


async def check_cancel_races_with_a_settlement(bench: Bench) -> None:
    """A cancel beside a settlement ends in one of the two, and everybody agrees."""
    queue, other = await _keeping(bench, "cancel"), await keeping(bench, 500)
    put = await queue.put(numbered(*range(20)))
    claims = await bench.take(queue)
    await asyncio.gather(
        queue.settle([Settlement.done(claim) for claim in claims[:10]]),
        *(other.cancel([job_id]) for job_id in put),
        queue.settle([Settlement.retry(claim) for claim in claims[10:]]),
    )
    for n, claim in enumerate(claims):
        info = await _shown(queue, claim.job.id)
        expect(
            info.state == ("done" if n < 10 else "cancelled"), f"it ended as {info.state}: {info}"
        )
    equal(await bench.take(queue), [], "a claim when all have ended")
    await refused(LeaseLost, queue.settle([Settlement.done(claims[-1])]), "a settlement after that")
