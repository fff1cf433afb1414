"""Leases: one holder at a time, fenced by a token. And suspects: a job that kills its workers is
found, and takes no other job with it.
"""

from __future__ import annotations

import asyncio

from pollwise.queues.base import Queue
from pollwise.runtime.jobs import LAPSES_ALONE, Claim, NewJob, Settlement
from pollwise.testing.conformance.bench import (
    Bench,
    done,
    equal,
    expect,
    gone,
    ids,
    lost,
    numbered,
    payloads,
    require,
)


async def check_lease_excludes(bench: Bench) -> None:
    """While its lease is valid, a job cannot be claimed by any handle."""
    queue, other = await bench.queue(), await bench.queue()
    await queue.put(NewJob("job"))
    await bench.take_one(queue, lease=6)
    await bench.elapse(3)
    equal(await bench.take(queue), [], "a second claim by the same handle")
    equal(await bench.take(other), [], "a second claim by another handle")


async def check_lease_runs_out(bench: Bench) -> None:
    """When its lease ran out, a job can be claimed again: a new token, and one more attempt."""
    queue, other = await bench.queue(), await bench.queue()
    [job_id] = await queue.put(NewJob("job", "again"))
    first = await bench.take_one(queue, worker="a", lease=2)
    await bench.elapse(2)
    second = await bench.take_one(other, worker="b")
    equal((second.job.id, second.job.payload), (job_id, "again"), "the job")
    equal(second.job.attempt, 2, "its attempt")
    expect(second.token != first.token, f"both claims have the token {first.token}")
    equal(second.worker, "b", "its worker")


async def check_late_settle_is_refused(bench: Bench) -> None:
    """A settlement with an old token is refused with `LeaseLost` and changes nothing."""
    queue, other = await bench.queue(), await bench.queue()
    can = queue.capabilities
    require(can.fenced and can.views, "fence against old tokens, or no view of jobs")
    await queue.put(NewJob("job"))
    old = await bench.take_one(queue, lease=2)
    await bench.elapse(2)
    new = await bench.take_one(other, worker="b")
    before = await other.get(new.job.id)
    for late in (
        Settlement.done(old),
        Settlement.retry(old, error="late"),
        Settlement.give_back(old),
        Settlement.dead(old, "late"),
    ):
        await lost(queue.settle([late]), [old.job.id], f"a late {late.action}")
        equal(await other.get(new.job.id), before, f"the job after a late {late.action}")
    await other.settle(done([new]))
    equal(await queue.get(new.job.id), None, "the job after the holder settled it")


async def check_lost_names_the_refused(bench: Bench) -> None:
    """In a batch exactly the refused claims are named, and the others are settled."""
    queue = await bench.queue()
    can = queue.capabilities
    require(can.fenced and can.views, "fence against old tokens, or no view of jobs")
    put = await queue.put(numbered(*range(6)))
    old = {claim.job.id: claim for claim in await bench.take(queue, 3, lease=2)}
    await bench.elapse(2)
    new = {claim.job.id: claim for claim in await bench.take(queue)}
    expect(set(old) < set(new), "the jobs whose leases ran out are claimed again")
    held = [job_id for job_id in put if job_id not in old]
    batch = [
        *(Settlement.done(claim) for claim in old.values()),
        Settlement.done(new[held[0]]),
        Settlement.retry(new[held[1]]),
        Settlement.dead(new[held[2]], "broken"),
    ]
    await lost(queue.settle(batch), old, "a batch with three late settlements")
    views = {job_id: await queue.get(job_id) for job_id in put}
    states = {job_id: view.state if view else None for job_id, view in views.items()}
    equal([states[job_id] for job_id in held], [None, "ready", "dead"], "those held were settled")
    equal({states[job_id] for job_id in old}, {"leased"}, "those refused are leased as before")


async def check_old_and_new_token_in_one_batch(bench: Bench) -> None:
    """Of one job's old and new claim in a batch, the new one counts and the old one is refused."""
    queue = await bench.queue()
    require(queue.capabilities.fenced, "fence against old tokens")
    await queue.put(NewJob("job"))
    old = await bench.take_one(queue, lease=2)
    await bench.elapse(2)
    new = await bench.take_one(queue)
    equal((await queue.renew([old, new], bench.unit)).lost, (old.job.id,), "renewing both")
    batch = [Settlement.dead(old, "late"), Settlement.done(new)]
    await lost(queue.settle(batch), [old.job.id], "settling both")
    await gone(queue, new.job.id, "the job, which the new claim settled as done")


async def check_settle_twice(bench: Bench) -> None:
    """A claim can be settled once; the second time is refused, in another batch or the same."""
    queue = await bench.queue()
    can = queue.capabilities
    require(can.fenced and can.views, "fence against old tokens, or no view of jobs")
    await queue.put(numbered(1, 2, 3, 4))
    a, b, c, d = await bench.take(queue)
    await queue.settle(
        [Settlement.done(a), Settlement.dead(b, "broken"), Settlement.retry(c, 60 * bench.unit)]
    )
    for claim in (a, b, c):
        await lost(queue.settle(done([claim])), [claim.job.id], "a second settlement")
    twice = [Settlement.retry(d, error="first"), Settlement.done(d)]
    await lost(queue.settle(twice), [d.job.id], "two settlements of one claim in a batch")
    view = await queue.get(d.job.id)
    equal(view and (view.state, view.error), ("ready", "first"), "the job: the first one counts")


async def check_renew_keeps_the_lease(bench: Bench) -> None:
    """Renewing counts from now, so a job can be kept for as long as it takes."""
    queue, other = await bench.queue(), await bench.queue()
    await queue.put(numbered(1, 2))
    claims = await bench.take(queue, lease=4)
    for _ in range(3):
        await bench.elapse(2)
        await queue.renew(claims, 4 * bench.unit)
    await bench.elapse(2)
    equal(await bench.take(other), [], "a claim eight units into a lease of four, renewed")
    await queue.settle(done(claims))
    equal(await bench.take(other), [], "a claim after they are done")


async def check_renew_may_shorten(bench: Bench) -> None:
    """A renewal counts from now, even if the lease then ends earlier."""
    queue = await bench.queue()
    await queue.put(NewJob("job"))
    claim = await bench.take_one(queue, lease=100)
    await queue.renew([claim], 2 * bench.unit)
    await bench.elapse(2)
    equal((await bench.take_one(queue)).job.attempt, 2, "the attempt after the shorter lease")


async def check_renew_too_late(bench: Bench) -> None:
    """An old token cannot be renewed; the others of the batch are."""
    queue, other = await bench.queue(), await bench.queue()
    require(queue.capabilities.fenced, "fence against old tokens")
    await queue.put(numbered(1, 2))
    [old] = await bench.take(queue, 1, lease=2)
    [kept] = await bench.take(queue, 1, lease=6)
    await bench.elapse(3)
    new = await bench.take_one(other, lease=6)
    equal(new.job.id, old.job.id, "the job that the other took over")
    renewal = await queue.renew([old, kept], 20 * bench.unit)
    equal(renewal.lost, (old.job.id,), "an old token renewed")
    await bench.elapse(8)
    equal(ids(await bench.take(queue)), [new.job.id], "only the lease not renewed ran out")


async def check_renew_after_settle(bench: Bench) -> None:
    """A settled claim cannot be renewed."""
    queue = await bench.queue()
    require(queue.capabilities.fenced, "fence against old tokens")
    await queue.put(numbered(1, 2, 3))
    claims = await bench.take(queue)
    await queue.settle(
        [
            Settlement.done(claims[0]),
            Settlement.dead(claims[1], "broken"),
            Settlement.retry(claims[2]),
        ]
    )
    renewal = await queue.renew(claims, bench.unit)
    equal(sorted(renewal.lost), sorted(ids(claims)), "renewing what is settled")
    retried = [claims[2].job.payload]
    equal(payloads(await bench.take(queue)), retried, "what may be claimed: the one retried")


async def check_claims_do_not_overlap(bench: Bench) -> None:
    """Handles that claim at the same time never hold the same job, and get them all."""
    first = await bench.queue()
    await first.put(numbered(*range(60)))
    handles = [first, *[await bench.queue() for _ in range(3)]]
    rounds = await asyncio.gather(
        *(bench.take(handle, 4, worker=f"w{n}") for n in range(5) for handle in handles)
    )
    claims = [claim for each in rounds for claim in each]
    equal(len({claim.job.id for claim in claims}), len(claims), "different jobs among all claimed")
    claims += await bench.take(first)
    equal(sorted(payloads(claims)), list(range(60)), "all jobs claimed")


async def check_one_settlement_wins(bench: Bench) -> None:
    """Of many settlements of one claim at once, by several handles, exactly one is accepted."""
    queue = await bench.queue()
    require(queue.capabilities.fenced, "fence against old tokens")
    await queue.put(NewJob("job"))
    claim = await bench.take_one(queue)
    handles = [await bench.queue() for _ in range(3)]
    results = await asyncio.gather(
        *(handle.settle([Settlement.retry(claim)]) for handle in handles for _ in range(2)),
        return_exceptions=True,
    )
    equal(results.count(None), 1, f"how many were accepted of {results!r}")
    equal((await bench.take_one(queue)).job.attempt, 2, "the attempt after one retry")


# Suspects


async def _lapse(bench: Bench, queue: Queue, *, ahead: bool, limit: int = 100) -> list[Claim]:
    """Claim jobs, and let their leases run out, as if the worker had died."""
    claims = await queue.claim("dies", limit, 2 * bench.unit, ahead=ahead)
    await bench.elapse(2)
    return claims


async def _suspicious(bench: Bench, count: int, *, ahead: bool) -> Queue:
    """A queue with this number of jobs whose leases ran out so often that they are suspects."""
    queue = await bench.queue()
    require(queue.capabilities.suspects, "suspects")
    await queue.put(numbered(*range(count)))
    for _ in range(LAPSES_ALONE):
        equal(len(await _lapse(bench, queue, ahead=ahead)), count, "claimed together so far")
    return queue


async def check_a_suspect_is_claimed_alone(bench: Bench) -> None:
    """A job whose leases ran out several times in a row is claimed alone, before the others."""
    queue = await _suspicious(bench, 3, ahead=True)
    await queue.put(numbered(3, 4, priority=5))
    for left in (3, 2, 1):
        claims = await bench.take(queue)
        equal([claim.suspect for claim in claims], [True], f"a claim while {left} are suspects")
        expect(claims[0].job.payload in range(3), "the suspects come first")
    claims = await bench.take(queue)
    equal(sorted(claim.job.payload for claim in claims), [3, 4], "then all the others, together")
    expect(not any(claim.suspect for claim in claims), "none of them is a suspect")


async def check_jobs_claimed_ahead_keep_their_attempts(bench: Bench) -> None:
    """When the lease of a job that was claimed ahead runs out, its attempt does not count.

    That of a suspect does, because it is started at once; and that of any other job.
    """
    queue = await _suspicious(bench, 2, ahead=True)
    for attempt in (1, 2, 3):
        claims = [
            claim
            for _ in range(2)
            for claim in await queue.claim("dies", 100, 4 * bench.unit, ahead=True)
        ]
        equal(len({claim.job.id for claim in claims}), 2, "both suspects, one after the other")
        await bench.elapse(4)
        equal([claim.job.attempt for claim in claims], [attempt] * 2, "their attempts")
    other = await bench.queue()
    await other.put(NewJob("other"))
    [claim] = await other.claim("dies", 1, 2 * bench.unit, kinds=["other"])
    await bench.elapse(2)
    [claim] = await other.claim("lives", 1, 2 * bench.unit, kinds=["other"])
    equal(claim.job.attempt, 2, "the attempt of a job that was not claimed ahead")


async def check_a_claim_names_the_worker_whose_lease_ran_out(bench: Bench) -> None:
    """The claim of a job whose lease ran out says whose lease it was; no other claim does."""
    queue = await bench.queue()
    require(queue.capabilities.suspects, "suspects")
    await queue.put(numbered(1, 2))
    claims = await queue.claim("the first, who dies", 100, 2 * bench.unit)
    equal([claim.lapsed_from for claim in claims], ["", ""], "first claims")
    await bench.elapse(2)
    claims = await queue.claim("the second", 100, 2 * bench.unit, ahead=True)
    equal([each.lapsed_from for each in claims], ["the first, who dies"] * 2, "taken over")
    await bench.elapse(2)
    for _ in claims:  # they are suspects
        [claim] = await bench.take(queue)
        equal(claim.lapsed_from, "the second", "taken over from the second worker")
        await queue.settle([Settlement.retry(claim)])
    claims = await bench.take(queue)
    equal([claim.lapsed_from for claim in claims], ["", ""], "after a settlement")


async def check_a_settlement_clears_suspects(bench: Bench) -> None:
    """After a settlement, leases that ran out before it no longer count."""
    queue = await _suspicious(bench, 2, ahead=False)
    for settle in (Settlement.retry, Settlement.give_back):
        [claim] = await bench.take(queue)
        await queue.settle([settle(claim)])
    claims = await bench.take(queue)
    equal([claim.suspect for claim in claims], [False] * 2, "claimed together again")
    await queue.settle(done(claims))


async def check_a_late_renewal_is_no_lapse(bench: Bench) -> None:
    """A lease that ran out and was renewed before anyone else took the job has not run out."""
    queue = await bench.queue()
    require(queue.capabilities.suspects and queue.capabilities.fenced, "suspects")
    await queue.put(numbered(1, 2))
    for _ in range(LAPSES_ALONE + 1):
        claims = await _lapse(bench, queue, ahead=True)
        equal(len(claims), 2, "claimed together")
        renewal = await queue.renew(claims, 10 * bench.unit)
        equal(renewal.lost, (), "what was lost meanwhile")
        await queue.settle([Settlement.retry(claim) for claim in claims])
    claims = await bench.take(queue)
    equal([claim.suspect for claim in claims], [False] * 2, "no lease ran out")
    equal({claim.job.attempt for claim in claims}, {LAPSES_ALONE + 2}, "all their runs count")
