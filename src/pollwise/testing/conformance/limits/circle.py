"""Limit groups that cannot run now are not examined, and come back when they may be able to."""

from __future__ import annotations

from collections.abc import Callable

from pollwise.queues.limits.record import Concurrency, Limit
from pollwise.runtime.jobs import Claim, NewJob, Settlement
from pollwise.testing.conformance.bench import (
    LONG,
    Bench,
    done,
    equal,
    payloads,
    require,
)
from pollwise.testing.conformance.limits.kit import groups_of, limited, of_groups, rate_of

#: More groups than one claim examines.
MANY = 1100
#: How long a pause is that nothing should end, in units.
PAUSE = 50.0


async def check_many_full_groups_cost_nothing(bench: Bench) -> None:
    """While very many groups are full, nothing claims again, and one claim finds a free group."""
    queue, other = await limited(bench, Concurrency(1, by="tenant"))
    names = [f"tenant {n}" for n in range(MANY)]
    await queue.put([NewJob("job", name, limit_group=name) for name in names for _ in range(2)])
    claims: list[Claim] = []
    while len(claims) < MANY:
        found = await bench.take(queue, 300)
        equal(bool(found), True, f"a claim finds more, after {len(claims)} jobs of {MANY} groups")
        claims += found
    ended = True
    for _ in range(2):  # the first pause may end by a hint of the put
        equal(await bench.take(other), [], "a claim when all groups are full")
        ended = await bench.pause(other, PAUSE)
    if queue.capabilities.next_due:
        equal(ended, False, "a hint ended a pause, with all groups full")
    for free in ("a", "tenant 5000", "z"):
        await queue.put([NewJob("job", free, limit_group=free)])
        equal(payloads(await bench.take(other)), [free], "one claim, when one group is free")
    await queue.settle(done(claims[700:701]))
    equal(payloads(await bench.take(other)), payloads(claims[700:701]), "a claim when one ended")


async def check_full_groups_come_back(bench: Bench) -> None:
    """A group that was full is examined again after everything that lets its next job start."""
    later = 900 * bench.unit
    ends: dict[str, Callable[[Claim], Settlement]] = {
        "done": Settlement.done,
        "dead": lambda claim: Settlement.dead(claim, "broken"),
        "cancelled": lambda claim: Settlement.cancelled(claim, "stopped"),
        "retried": lambda claim: Settlement.retry(claim, later, "again"),
        "given back": lambda claim: Settlement.give_back(claim, later),
    }
    queue, other = await limited(bench, Concurrency(1, by="tenant"))
    for end, settlement in ends.items():
        await queue.put(of_groups("abab"))
        first = await bench.take(queue)
        equal(sorted(payloads(first)), ["a", "b"], "the first claim")
        equal(await bench.take(other), [], "a claim when both groups are full")
        await other.settle([settlement(first[0])])
        second = await bench.take(queue)
        equal(payloads(second), payloads(first[:1]), f"a claim after a job is {end}")
        await queue.settle(done([*first[1:], *second]))
        await queue.settle(done(await bench.take(queue)))


async def check_full_groups_come_back_when_a_lease_runs_out(bench: Bench) -> None:
    """A killed worker's groups come back; so do those of a renewed lease that then ends."""
    queue, other = await limited(bench, Concurrency(1, by="tenant"))
    await queue.put(of_groups("abab"))
    first = await bench.take(queue, lease=2)
    equal(await bench.take(other), [], "a claim when both groups are full")
    equal((await queue.renew(first[:1], 6 * bench.unit)).lost, (), "what a renewal lost")
    equal(await bench.take(other), [], "a claim after a renewal")
    await bench.elapse(2)
    again = await bench.take(other)
    equal(payloads(again), payloads(first[1:]), "a claim after one of the leases ran out")
    await bench.elapse(4)
    equal(payloads(await bench.take(other)), payloads(first[:1]), "a claim after the other")


async def check_groups_come_back_by_their_rates(bench: Bench) -> None:
    """A group whose rate is used comes back in time, and not before."""
    queue, other = await limited(bench, rate_of(bench, 1, 10, by="tenant"))
    await queue.put(of_groups("aaabb"))
    equal(await groups_of(bench, queue, 100), "ab", "the first claim")
    equal(await groups_of(bench, other, 100), "", "a claim at the same time")
    await queue.put(of_groups("ac"))
    equal(await groups_of(bench, other, 100), "c", "a claim after another group has a job")
    await bench.elapse(10)
    equal(await groups_of(bench, other, 100), "ab", "a claim when the next ones may start")
    equal(await groups_of(bench, queue, 100), "", "another claim at the same time")
    await bench.elapse(10)
    equal(await groups_of(bench, queue, 100), "a", "a claim when the next one may start")


async def check_groups_come_back_when_limits_change(bench: Bench) -> None:
    """Other limits apply to groups that were full, or had no rate left, under those before."""
    queue, other = await limited(bench, Concurrency(1, by="tenant"))
    await queue.put(of_groups("ab-" * 20))
    changes: dict[str, tuple[Limit, str]] = {
        "were raised": (Concurrency(2, by="tenant"), "-ab"),
        "became a rate": (rate_of(bench, 1, 900, by="tenant"), "-ab"),
        "became a number again": (Concurrency(5, by="tenant"), "--aabb"),
    }
    equal(await groups_of(bench, queue, 100), "-ab", "the first claim")
    for change, (limit, wanted) in changes.items():
        equal(await bench.take(other), [], f"a claim before the limits {change}")
        await other.limits.set("job", limit)
        equal(await groups_of(bench, queue, 100), wanted, f"a claim after the limits {change}")
    await other.limits.set("job", rate_of(bench, 1, 900, by="tenant"))
    await bench.take(queue)
    await other.limits.set("job", rate_of(bench, 1, 10, by="tenant"))
    await bench.take(queue)
    await bench.elapse(10)
    equal(await groups_of(bench, queue, 100), "-ab", "a claim after the rate became faster")
    await other.limits.remove("job")
    equal(len(await bench.take(queue, 3)), 3, "a claim of three without limits")
    await other.limits.set("job", Concurrency(12, by="tenant"))
    found = await groups_of(bench, queue, 100)
    equal(len(found.strip("-")) >= 4, True, f"a claim after the limits were set again: {found}")
    equal(await bench.take(other), [], "a claim after that")
    await other.limits.set("job", Concurrency(100))
    equal(len(await bench.take(queue, 5)), 5, "a claim of five with a limit for the kind")
    await other.limits.set("job", fair_by="tenant")
    equal(await groups_of(bench, queue, 3), "-ab", "a claim with turns only")


async def check_groups_come_back_by_schedules(bench: Bench) -> None:
    """A job that a schedule puts is found, as any other."""
    queue, other = await limited(bench, Concurrency(2, by="tenant"))
    require(queue.capabilities.schedules, "schedules")
    await queue.put(of_groups("a"))
    first = await bench.take(queue)
    equal(payloads(first), ["a"], "the first claim")
    equal(await bench.take(queue), [], "a claim when nothing waits")
    await other.schedules.set("each", NewJob("job", "b", limit_group="b"), every="1h")
    await other.schedules.run("each")
    equal(payloads(await bench.take(queue)), ["b"], "a claim after a schedule's job")


async def check_groups_of_a_paused_kind_come_back(bench: Bench) -> None:
    """What ended while a kind was paused, and a prune, let a group back, too."""
    queue, other = await limited(bench, Concurrency(1, by="tenant"))
    await queue.put(of_groups("abab"))
    first = await bench.take(queue)
    equal(await bench.take(other), [], "a claim when both groups are full")
    await queue.pause("job")
    await queue.settle(done(first[:1]))
    await queue.prune()
    equal(await bench.take(other), [], "a claim while the kind is paused")
    await queue.resume("job")
    equal(payloads(await bench.take(other)), payloads(first[:1]), "a claim after that")
    equal((await queue.renew(first[1:], LONG * bench.unit)).lost, (), "what a renewal lost")
    await queue.prune()
    equal(await bench.take(other), [], "a claim when both are full again")
