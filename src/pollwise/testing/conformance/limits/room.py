"""How many jobs of a limited kind run at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from pollwise.queues.limits.record import Concurrency
from pollwise.runtime.jobs import Claim, Settlement
from pollwise.testing.conformance.bench import (
    LONG,
    Bench,
    done,
    equal,
    expect,
    ids,
    numbered,
    payloads,
)
from pollwise.testing.conformance.limits.kit import groups_of, limited, of_groups, rate_of


async def check_limit_of_jobs_at_a_time(bench: Bench) -> None:
    """A kind with a `Concurrency` has no more jobs leased than it says, by all handles together."""
    queue, other = await limited(bench, Concurrency(3))
    await queue.put(numbered(*range(6)))
    first = await bench.take(queue, 2)
    equal(payloads(first), [0, 1], "a claim of two, while three may run")
    second = await bench.take(other)
    equal(payloads(second), [2], "a claim of all, while one more may run")
    equal(await bench.take(queue), [], "a claim while three run")
    equal((await queue.stats()).ready, 3, "jobs that wait for the limit are ready")
    await other.settle(done([first[1], second[0]]))
    equal(payloads(await bench.take(queue)), [3, 4], "a claim after two of them ended")


async def check_limit_at_a_time_for_each_group(bench: Bench) -> None:
    """With `by`, the limit is for each group; jobs without a group are one group."""
    queue, other = await limited(bench, Concurrency(2, by="tenant"))
    await queue.put(of_groups("aaa-b--bb"))
    claims = await bench.take(queue)
    equal("".join(sorted(payloads(claims))), "--aabb", "the groups of the first claim")
    equal(await groups_of(bench, other, 100), "", "a claim while each group is at its limit")
    await queue.settle(done(claim for claim in claims if claim.job.payload == "b"))
    equal(await groups_of(bench, other, 100), "b", "a claim after the jobs of b ended")


async def check_limits_of_kind_and_group_together(bench: Bench) -> None:
    """A limit for the kind and one for each group apply at the same time."""
    queue, _ = await limited(bench, Concurrency(3), Concurrency(2, by="tenant"))
    await queue.put(of_groups("aaaabbbb"))
    claims = await bench.take(queue)
    equal(len(claims), 3, "jobs of a claim")
    groups = Counter(payloads(claims))
    expect(max(groups.values()) == 2, f"at most two of a group: {groups}")
    await queue.settle(done(claims))
    equal(len(await bench.take(queue)), 3, "jobs of a claim after these ended")


async def check_everything_that_ends_a_run_makes_room(bench: Bench) -> None:
    """A job that is done, dead, cancelled, given back, or retried later no longer counts."""
    queue, other = await limited(bench, Concurrency(1, by="tenant"), Concurrency(2))
    ends: dict[str, Callable[[Claim], Settlement]] = {
        "done": Settlement.done,
        "dead": lambda claim: Settlement.dead(claim, "broken"),
        "cancelled": lambda claim: Settlement.cancelled(claim, "stopped"),
        "retried": lambda claim: Settlement.retry(claim, 900 * bench.unit, "again"),
        "given back": lambda claim: Settlement.give_back(claim, 900 * bench.unit),
    }
    for end, settlement in ends.items():
        first, second = await queue.put(of_groups("aa"))
        claims = await bench.take(queue)
        equal(ids(claims), [first], f"the first claim, before a job is {end}")
        await other.settle([settlement(claims[0])])
        claims = await bench.take(other)
        equal(ids(claims), [second], f"a claim after a job is {end}")
        await other.settle(done(claims))


async def check_a_lease_that_runs_out_makes_room(bench: Bench) -> None:
    """A job whose lease ran out no longer counts; it is claimed again within the limit."""
    queue, other = await limited(bench, Concurrency(2))
    await queue.put(numbered(1, 2, 3))
    equal(payloads(await bench.take(queue, lease=2)), [1, 2], "the first claim")
    equal(await bench.take(other), [], "a claim while two run")
    await bench.elapse(2)
    claims = await bench.take(other)
    equal(payloads(claims), [1, 2], "a claim after their leases ran out")
    equal([claim.job.attempt for claim in claims], [2, 2], "their attempts")
    await other.settle(done(claims))
    equal(payloads(await bench.take(queue)), [3], "a claim after they are done")


async def check_a_late_renewal_counts(bench: Bench) -> None:
    """A lease that ran out becomes valid again only if its limit has room for it."""
    queue, other = await limited(bench, Concurrency(2))
    await queue.put(numbered(1, 2))
    late = await bench.take(queue, lease=2)
    await bench.elapse(2)
    await queue.put(numbered(3, 4, priority=1))
    claims = await bench.take(other)
    equal(payloads(claims), [3, 4], "a claim after the leases ran out")
    renewal = await queue.renew(late, LONG * bench.unit)
    equal(sorted(renewal.lost), sorted(ids(late)), "what a late renewal lost, with a full limit")
    await other.settle(done(claims[:1]))
    renewal = await queue.renew(late, LONG * bench.unit)
    equal(renewal.lost, (late[1].job.id,), "what it lost, with room for one")
    equal(await bench.take(other), [], "a claim while the other runs")
    equal((await queue.renew(late[:1], LONG * bench.unit)).lost, (), "what the next one lost")
    await other.settle(done(claims[1:]))
    await queue.settle(done(late[:1]))
    equal(payloads(await bench.take(queue)), [2], "a claim after both ended")


async def check_a_late_renewal_counts_in_its_group(bench: Bench) -> None:
    """A lease that ran out becomes valid again only if its group has room; rates do not matter."""
    rate = rate_of(bench, 3, 900, by="tenant", burst=3)
    queue, other = await limited(bench, Concurrency(1, by="tenant"), rate)
    await queue.put(of_groups("-abc"))
    late = await bench.take(queue, lease=2)
    equal(len(late), 4, "jobs of the first claim")
    await bench.elapse(2)
    await queue.put(of_groups("ab", priority=1))
    equal(len(await bench.take(other, 2)), 2, "a claim of two after the leases ran out")
    renewal = await queue.renew(late, LONG * bench.unit)
    kept = [claim for claim in late if claim.job.id not in renewal.lost]
    equal(sorted(payloads(kept)), ["-", "c"], "the groups whose leases were not lost")
    equal(await groups_of(bench, other, 100), "", "a claim while all groups are full")
    await queue.settle(done(kept))
    equal(await groups_of(bench, other, 100), "", "a claim of the other groups")


async def check_waiting_for_a_limit_costs_nothing(bench: Bench) -> None:
    """A job that waits for a limit stays as it is: no attempt, no lease, no change of state."""
    queue, other = await limited(bench, Concurrency(1), rate_of(bench, 1, 20))
    await queue.put(numbered(1))
    [waits] = await queue.put(numbered(2))
    before = await queue.get(waits)
    claims = await bench.take(queue)
    for _ in range(3):
        equal(await bench.take(other), [], "a claim while the first one runs")
    await queue.settle(done(claims))
    equal(await bench.take(other), [], "a claim before its rate lets the next one start")
    equal(await queue.get(waits), before, "the job that waits")
    await bench.elapse(20)
    equal([c.job.attempt for c in await bench.take(other)], [1], "its attempt when it runs")


async def check_concurrent_claims_keep_the_limit(bench: Bench) -> None:
    """Claims of several handles at the same time never lease more than the limit."""
    queue, _ = await limited(bench, Concurrency(3), Concurrency(2, by="tenant"))
    handles = [queue, *[await bench.queue() for _ in range(3)]]
    await queue.put(of_groups("aaaaaabbbbbbcc-"))
    left, rounds = 15, 0
    while left and rounds < 40:
        rounds += 1
        some = await asyncio.gather(*(bench.take(each, 2) for each in handles))
        claims = [claim for found in some for claim in found]
        groups = Counter(payloads(claims))
        expect(len(claims) <= 3, f"at most three run: {groups}")
        expect(max(groups.values(), default=0) <= 2, f"at most two of a group: {groups}")
        await asyncio.gather(
            *(each.settle(done(found)) for each, found in zip(handles, some, strict=True) if found)
        )
        left -= len(claims)
    equal(left, 0, "jobs that are left after 40 rounds")
