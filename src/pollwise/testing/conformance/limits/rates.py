"""How many jobs of a limited kind start in a period."""

from __future__ import annotations

from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.testing.conformance.bench import (
    Bench,
    done,
    equal,
    numbered,
    payloads,
)
from pollwise.testing.conformance.limits.kit import groups_of, limited, of_groups, rate_of


async def check_rate(bench: Bench) -> None:
    """A kind with a `Rate` starts its burst at once, and then one after each share of the time."""
    queue, other = await limited(bench, rate_of(bench, 2, 20, burst=2))
    await queue.put(numbered(*range(9)))
    claims = await bench.take(queue)
    equal(payloads(claims), [0, 1], "the first claim")
    await queue.settle(done(claims))
    equal(await bench.take(other), [], "a claim after the first jobs ended, at the same time")
    await bench.elapse(10)
    equal(payloads(await bench.take(other)), [2], "a claim half of the time later")
    equal(await bench.take(queue), [], "another claim at the same time")
    await bench.elapse(60)
    equal(payloads(await bench.take(queue)), [3, 4], "a claim after a quiet time: the burst")
    equal(await bench.take(queue), [], "a claim after the burst")


async def check_rate_for_each_group(bench: Bench) -> None:
    """With `by`, each group has the rate for itself."""
    queue, other = await limited(bench, rate_of(bench, 1, 10, by="tenant"))
    await queue.put(of_groups("aab-a-"))
    equal(await groups_of(bench, queue, 100), "-ab", "the first claim: one of each")
    equal(await groups_of(bench, other, 100), "", "a claim at the same time")
    await bench.elapse(10)
    equal(await groups_of(bench, other, 100), "-a", "a claim when the next ones may start")
    await queue.put(of_groups("b"))
    equal(await groups_of(bench, queue, 100), "b", "a group that was quiet")


async def check_rates_of_kind_and_group_together(bench: Bench) -> None:
    """A rate for the kind and one for each group apply at the same time."""
    queue, _ = await limited(
        bench, rate_of(bench, 3, 30, burst=3), rate_of(bench, 2, 40, by="tenant", burst=2)
    )
    await queue.put(of_groups("aaaaa"))
    equal(await groups_of(bench, queue, 100), "aa", "the burst of the group")
    await queue.put(of_groups("bbb"))
    equal(await groups_of(bench, queue, 100), "b", "what the burst of the kind leaves")
    await bench.elapse(10)
    equal(len(await bench.take(queue)), 1, "one more of the kind")


async def check_rate_counts_each_start(bench: Bench) -> None:
    """A retry counts as a start, and a job that is given back leaves the rate used."""
    queue, _ = await limited(bench, rate_of(bench, 2, 40, burst=2))
    await queue.put(numbered(1))
    await queue.settle([Settlement.retry(await bench.take_one(queue))])
    await queue.settle([Settlement.give_back(await bench.take_one(queue))])
    equal(await bench.take(queue), [], "a claim after two starts")
    await bench.elapse(20)
    claim = await bench.take_one(queue)
    equal(claim.job.attempt, 2, "the attempt: the claim that was given back does not count")


async def check_only_what_is_leased_is_charged(bench: Bench) -> None:
    """A limited job that lost its place to a job of another kind has not used the rate."""
    queue, _ = await limited(bench, rate_of(bench, 1, 500), kind="slow")
    await queue.put([NewJob("slow", "slow"), *numbered(1, 2, priority=1)])
    equal(payloads(await bench.take(queue, 2)), [1, 2], "a claim of two: those come first")
    equal(payloads(await bench.take(queue, 2)), ["slow"], "a claim after them")
