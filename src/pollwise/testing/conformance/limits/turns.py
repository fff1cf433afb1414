"""Whose turn it is when groups share a limit."""

from __future__ import annotations

from collections import Counter

from pollwise.queues.limits.record import Concurrency
from pollwise.runtime.jobs import Claim, NewJob
from pollwise.testing.conformance.bench import (
    Bench,
    done,
    equal,
    expect,
    payloads,
    require,
)
from pollwise.testing.conformance.limits.kit import groups_of, limited, of_groups


async def check_groups_take_turns(bench: Bench) -> None:
    """With `fair_by`, each group gives one job in its turn, however many it has."""
    queue, other = await limited(bench, fair_by="tenant")
    await queue.put(of_groups("a" * 50))
    await queue.put(of_groups("bbc"))
    equal(await groups_of(bench, queue, 3), "abc", "a claim of three")
    equal(await groups_of(bench, other, 3), "aab", "a claim of three, when two groups are left")
    equal(await groups_of(bench, other, 10), "a" * 10, "a claim of ten, when one group is left")


async def check_turns_go_on_with_the_next_claim(bench: Bench) -> None:
    """A claim begins with the group behind the one where the last claim stopped."""
    queue, other = await limited(bench, fair_by="tenant")
    await queue.put(of_groups("aaaabbbbcccc-"))
    got = [await groups_of(bench, each, 1) for each in (queue, other) * 3]
    expect("".join(got[:4]) in "abc-abc-abc", f"each group once in a circle: {got}")
    expect("-" in got[:4], f"jobs without a group have a turn: {got}")
    await queue.put(of_groups("b" * 20, priority=9))
    rest = "".join([await groups_of(bench, queue, 1) for _ in range(3)])
    equal("".join(sorted(rest)), "abc", "the priority of a job is not that of its group")


async def check_weights(bench: Bench) -> None:
    """A group with a weight gives as many jobs in its turn, in one claim or over several."""
    queue, other = await limited(bench, fair_by="tenant", weights={"b": 3})
    await queue.put(of_groups("a" * 10 + "b" * 10 + "c" * 10))
    equal(await groups_of(bench, queue, 10), "aabbbbbbcc", "a claim of two rounds")
    one_by_one = [await groups_of(bench, (queue, other)[n % 2], 1) for n in range(5)]
    equal(Counter(one_by_one), Counter("abbbc"), "five claims of one: a round")
    expect("bbb" in "".join(one_by_one), f"the turn of b goes on: {one_by_one}")


async def check_order_within_a_group(bench: Bench) -> None:
    """Within a group, priority and then age decide."""
    queue, _ = await limited(bench, fair_by="tenant")
    await queue.put([
        NewJob("job", n, limit_group="a", priority=priority)
        for n, priority in enumerate([0, 0, 2, 1])
    ])  # fmt: skip
    got = [payloads(await bench.take(queue, 1))[0] for _ in range(4)]
    equal(got, [2, 3, 0, 1], "the jobs of a group, one by one")


async def check_many_groups(bench: Bench) -> None:
    """Of very many groups, each gets its turn; a group with many jobs does not delay them."""
    queue, other = await limited(bench, Concurrency(40), fair_by="tenant")
    names = [f"tenant {n}" for n in range(1200)]
    await queue.put([NewJob("job", "hot", limit_group="hot") for _ in range(500)])
    await queue.put([NewJob("job", name, limit_group=name) for name in names])
    seen: Counter[str] = Counter()
    for n in range(40):
        claims = await bench.take((queue, other)[n % 2], 30)
        seen.update(payloads(claims))
        await queue.settle(done(claims))
    expect(seen["hot"] <= 3, f"jobs of the group with many, in the first circle: {seen['hot']}")
    for n in range(40):
        claims = await bench.take((queue, other)[n % 2], 30)
        seen.update(payloads(claims))
        await queue.settle(done(claims))
    equal(len(seen), 1201, "groups that had a turn")


async def check_many_groups_without_room(bench: Bench) -> None:
    """Groups that may not run now do not hide one that may, however many they are."""
    queue, other = await limited(bench, Concurrency(1, by="tenant"))
    names = [f"tenant {n}" for n in range(1100)]
    await queue.put([NewJob("job", name, limit_group=name) for name in names for _ in range(2)])
    running = 0
    for _ in range(40):
        running += len(await bench.take(queue, 300))
        if running == len(names):
            break
        await bench.elapse(1)
    equal(running, len(names), "jobs that run, one of each group")
    await queue.put([NewJob("job", "free", limit_group=f"x{name}") for name in "ab"])
    found: list[Claim] = []
    for _ in range(10):
        found += await bench.take(other)
        if len(found) == 2:
            break
        await bench.elapse(1)
    equal(payloads(found), ["free", "free"], "the jobs of the groups that may run")


async def check_no_group_behind_a_full_one(bench: Bench) -> None:
    """A job without a group starts with the next claim, whatever waits for a full group."""
    queue, other = await limited(bench, Concurrency(1, by="tenant"))
    await queue.put([NewJob("job", "full", limit_group="full") for _ in range(1200)])
    equal(payloads(await bench.take(queue, 10)), ["full"], "the jobs of a group that may run one")
    await queue.put(NewJob("job", "none"))
    equal(payloads(await bench.take(other, 10)), ["none"], "the jobs of a claim while it is full")


async def check_no_group_behind_a_full_one_before_limits(bench: Bench) -> None:
    """Likewise one put before its kind had limits, after a few claims."""
    queue = await bench.queue()
    require(queue.capabilities.limits, "limits")
    await queue.put([NewJob("job", "full", limit_group="full") for _ in range(2500)])
    await queue.put(NewJob("job", "none"))
    await queue.limits.set("job", Concurrency(1, by="tenant"))
    found = [claim for _ in range(5) for claim in await bench.take(queue, 10)]
    equal(sorted(payloads(found)), ["full", "none"], "the jobs of five claims")
