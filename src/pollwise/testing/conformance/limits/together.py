"""Limits with everything else: priorities, suspects, pauses, delays, keys."""

from __future__ import annotations

from pollwise.queues.limits.record import Concurrency
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.testing.conformance.bench import (
    Bench,
    done,
    equal,
    ids,
    numbered,
    payloads,
    require,
)
from pollwise.testing.conformance.limits.kit import groups_of, limited, of_groups, rate_of


async def check_limited_kinds_compete_by_priority(bench: Bench) -> None:
    """Limited and other kinds share a claim by priority and age, and a full one gives way."""
    queue, _ = await limited(bench, Concurrency(2), kind="slow")
    await queue.put([NewJob("slow", f"slow {n}") for n in range(4)])
    await queue.put(numbered(1, 2))
    await queue.put(NewJob("job", "first", priority=1))
    equal(payloads(await bench.take(queue, 2)), ["first", "slow 0"], "the first two")
    equal(payloads(await bench.take(queue, 2)), ["slow 1", 1], "the next two")
    equal(payloads(await bench.take(queue, kinds=["slow"])), [], "a claim of the limited kind")
    equal(payloads(await bench.take(queue, kinds=["slow", "job"])), [2], "a claim of both")


async def check_two_limited_kinds(bench: Bench) -> None:
    """Each kind has its own limits, which one claim of several kinds keeps to."""
    queue, _ = await limited(bench, Concurrency(1), kind="a")
    await queue.limits.set("b", rate_of(bench, 2, 500, burst=2))
    await queue.put([NewJob(kind, f"{kind}{n}") for n in range(3) for kind in "abc"])
    claims = await bench.take(queue, kinds=["c", "b", "a"])
    equal(payloads(claims), ["a0", "b0", "c0", "b1", "c1", "c2"], "the first claim")
    await queue.settle(done(claims))
    equal(payloads(await bench.take(queue)), ["a1"], "a claim of all kinds after these ended")


async def check_suspects_keep_the_limits(bench: Bench) -> None:
    """A suspect is claimed alone, and counts: the next one waits until it has ended."""
    queue, other = await limited(bench, Concurrency(1))
    require(queue.capabilities.suspects, "suspects")
    [suspect] = await queue.put(numbered("suspect"))
    for _ in range(2):
        equal(len(await bench.take(queue, lease=1)), 1, "jobs of a claim whose lease runs out")
        await bench.elapse(1)
    await queue.limits.set("job", [Concurrency(1), Concurrency(1, by="tenant")])
    await queue.put([*numbered("next"), NewJob("free")])
    claims = await bench.take(queue)
    equal((ids(claims), claims[0].suspect), ([suspect], True), "the suspect, alone")
    equal([c.job.kind for c in await bench.take(other)], ["free"], "a claim while it runs")
    await bench.elapse(1)
    await queue.settle([Settlement.retry(claims[0], error="again")])
    equal(len(await bench.take(other)), 1, "jobs of a claim after it was retried")
    equal(await bench.take(queue), [], "a claim while the limit is reached")


async def check_suspects_wait_for_room(bench: Bench) -> None:
    """While its group is at its limit, a suspect stays ready, and other groups run."""
    queue, other = await limited(bench, Concurrency(1, by="tenant"))
    require(queue.capabilities.suspects, "suspects")
    [suspect] = await queue.put(of_groups("a", priority=1))
    for _ in range(2):
        equal(len(await bench.take(queue, lease=1)), 1, "jobs of a claim whose lease runs out")
        await bench.elapse(1)
    await queue.limits.set("job", Concurrency(2, by="tenant"))
    await queue.put(of_groups("aab"))
    equal(ids(await bench.take(queue)), [suspect], "the suspect, alone")
    equal(await groups_of(bench, other, 100, lease=1), "ab", "others while it runs")
    await queue.limits.set("job", Concurrency(1, by="tenant"))
    await bench.elapse(1)
    equal(await groups_of(bench, other, 100), "b", "a claim while the suspect fills its group")


async def check_paused_kind_with_limits(bench: Bench) -> None:
    """A limited kind can be paused as any other, and does not use its rate meanwhile."""
    queue, other = await limited(bench, rate_of(bench, 1, 500))
    require(queue.capabilities.pause, "pause")
    await queue.put([*numbered(1), NewJob("free", "free")])
    await queue.pause("job")
    equal(payloads(await bench.take(other)), ["free"], "a claim while the kind is paused")
    await queue.resume("job")
    equal(payloads(await bench.take(other)), [1], "a claim after the pause")


async def check_delayed_jobs_with_limits(bench: Bench) -> None:
    """Delayed and retried jobs of a limited kind keep their group, and wait for its limits."""
    queue, _ = await limited(bench, Concurrency(1, by="tenant"))
    require(queue.capabilities.delay, "delay")
    await queue.put(of_groups("aab-", delay=2 * bench.unit))
    equal(await groups_of(bench, queue, 100), "", "a claim before the delay is over")
    await bench.elapse(2)
    claims = await bench.take(queue)
    equal("".join(sorted(payloads(claims))), "-ab", "a claim after the delay")
    await queue.settle([Settlement.retry(claim, 2 * bench.unit) for claim in claims])
    equal(await groups_of(bench, queue, 100), "a", "the other job of a")
    await bench.elapse(2)
    equal(await groups_of(bench, queue, 100), "-b", "the retried ones, of which a still waits")


async def check_keyed_jobs_with_limits(bench: Bench) -> None:
    """A key keeps its order, whatever the group of its jobs."""
    queue, _ = await limited(bench, Concurrency(2), fair_by="tenant")
    require(queue.capabilities.keys, "keys")
    await queue.put(of_groups("baab", key="k"))
    await queue.put(of_groups("c"))
    got = ""
    for _ in range(5):
        claims = await bench.take(queue, 2)
        got += "".join(payloads(claims)).replace("c", "")
        await queue.settle(done(claims))
    equal(got, "baab", "the jobs of the key, in the order of their runs")


async def check_replaced_jobs_change_their_group(bench: Bench) -> None:
    """A job that is replaced is in the group of the new one."""
    queue, _ = await limited(bench, Concurrency(1, by="tenant"))
    require(queue.capabilities.replace, "replace")
    await queue.put([*of_groups("a"), NewJob("job", "old", unique="u", limit_group="a")])
    await queue.put(NewJob("job", "new", unique="u", replace=True, limit_group="b"))
    equal(sorted(payloads(await bench.take(queue))), ["a", "new"], "a claim")


async def check_dead_jobs_keep_their_group(bench: Bench) -> None:
    """A dead job that is retried is in its group again, which is in its headers, too."""
    queue, _ = await limited(bench, Concurrency(1, by="tenant"))
    await queue.put(of_groups("a"))
    claim = await bench.take_one(queue)
    equal(NewJob("job", headers=claim.job.headers).limit_group, "a", "its group, put again")
    await queue.settle([Settlement.dead(claim, "broken")])
    await queue.put(of_groups("a"))
    running = await bench.take_one(queue)
    await queue.retry([claim.job.id])
    equal(await bench.take(queue), [], "a claim while another job of the group runs")
    await queue.settle(done([running]))
    equal(ids(await bench.take(queue)), [claim.job.id], "a claim after that")
