"""Suspects: a job that kills its workers is found, and takes no other job with it."""

from __future__ import annotations

from pollwise.queues.base import Queue
from pollwise.runtime.jobs import LAPSES_ALONE, Claim, NewJob, Settlement
from pollwise.testing.conformance.bench import Bench, done, equal, expect, numbered, require


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


async def check_a_settlement_clears_suspects(bench: Bench) -> None:
    """After a settlement, leases that ran out before it count no more."""
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
