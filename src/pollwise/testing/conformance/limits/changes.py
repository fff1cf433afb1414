"""Limits that change while jobs wait and run, and what they show and hint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from pollwise.errors import ConfigError
from pollwise.queues.limits.record import Concurrency, Limit, Rate
from pollwise.runtime.jobs import Claim, NewJob
from pollwise.testing.conformance.bench import (
    Bench,
    done,
    equal,
    expect,
    numbered,
    payloads,
    refused,
    require,
)
from pollwise.testing.conformance.limits.kit import limited, of_groups, rate_of

#: How long an attempt to claim pauses, in units.
PAUSE = 50.0


# Changes


async def check_limits_change_while_jobs_run(bench: Bench) -> None:
    """A stricter limit lets running jobs go on; any change applies from the next claim on."""
    queue, other = await limited(bench, Concurrency(4))
    await queue.put(numbered(*range(9)))
    claims = await bench.take(queue)
    equal(len(claims), 4, "jobs of the first claim")
    await other.limits.set("job", Concurrency(2))
    equal((await queue.renew(claims, 500 * bench.unit)).lost, (), "leases lost by a renewal")
    await queue.settle(done(claims[:2]))
    equal(await bench.take(queue), [], "a claim while two run")
    await queue.settle(done(claims[2:3]))
    equal(payloads(await bench.take(queue)), [4], "a claim while one runs")
    await other.limits.set("job", Concurrency(3))
    equal(payloads(await bench.take(queue)), [5], "a claim under a looser limit")
    equal(await other.limits.remove("job"), True, "remove of limits")
    equal(payloads(await bench.take(queue)), [6, 7, 8], "a claim without limits")


async def check_limits_of_jobs_that_wait_already(bench: Bench) -> None:
    """Limits apply to jobs that were put before them, with and without a group."""
    queue, other = await bench.queue(), await bench.queue()
    require(queue.capabilities.limits, "limits")
    await queue.put([*of_groups("a" * 30 + "-" * 30 + "b"), NewJob("other", "other")])
    await other.limits.set("job", Concurrency(1, by="tenant"))
    claims: list[Claim] = []
    for _ in range(10):
        claims += await bench.take(queue)
        if len(claims) == 4:
            break
    equal(sorted(payloads(claims)), ["-", "a", "b", "other"], "one of each group, and the other")
    equal(await bench.take(other), [], "a claim while they run")
    await other.limits.set("job", Concurrency(3))
    await queue.settle(done(claims))
    equal(len(await bench.take(queue)), 3, "jobs of a claim when groups do not count")


async def check_removed_limits_hold_nothing_up(bench: Bench) -> None:
    """After limits were removed, workers claim the kind ahead of free handlers again."""
    queue, other = await limited(bench, Concurrency(1))
    await queue.put(numbered(1, 2, 3))
    claims = await bench.take(queue)
    equal(queue._limited, {"job"}, "kinds for free handlers")
    await queue.settle(done(claims))
    await other.limits.remove("job")
    await queue.settle(done(await bench.take(queue)))
    equal(queue._limited, set(), "kinds for free handlers, when there are no limits")


async def check_faster_rate(bench: Bench) -> None:
    """After a rate became faster, nothing waits longer than the new rate says."""
    queue, _ = await limited(bench, rate_of(bench, 1, 900))
    await queue.put(numbered(1, 2, 3))
    equal(payloads(await bench.take(queue)), [1], "the first claim")
    await queue.limits.set("job", rate_of(bench, 1, 10))
    equal(await bench.take(queue), [], "a claim at once")
    await bench.elapse(10)
    equal(payloads(await bench.take(queue)), [2], "a claim when the new rate allows it")
    equal(await bench.take(queue), [], "a claim after that")


async def check_limits_are_listed(bench: Bench) -> None:
    """`list` shows what was set, by kind; `remove` says whether there was something."""
    queue, other = await limited(bench, Concurrency(5, by="tenant"), kind="mail")
    rate = Rate(100, "1m", by="tenant", burst=10)
    made = await queue.limits.set("☃", rate, fair_by="tenant", weights={"big ☃": 3})
    found = await other.limits.list()
    equal([each.kind for each in found], ["mail", "☃"], "the kinds that have limits")
    equal(found[1], made, "the limits of one of them")
    equal(found[1].weights, {"big ☃": 3}, "its weights")
    words = "100 in 1m, 10 at once for each tenant; fair by tenant; weights big ☃=3"
    equal(found[1].text, words, "its limits in words")
    equal(await other.limits.remove("mail"), True, "remove")
    equal(await queue.limits.remove("mail"), False, "remove of what is not there")
    equal([each.kind for each in await queue.limits.list()], ["☃"], "the rest")


async def check_limits_bad_arguments(bench: Bench) -> None:
    """Limits that contradict each other, and empty ones, are refused."""
    queue, _ = await limited(bench, Concurrency(1))
    wrong: dict[str, tuple[Limit | Iterable[Limit], dict[str, Any]]] = {
        "no limit": ([], {}),
        "two of the same sort": ([Concurrency(1), Concurrency(2)], {}),
        "two arguments": ([Concurrency(1, by="a"), Rate(2, by="b")], {}),
        "weights without groups": (Concurrency(1), {"weights": {"a": 2}}),
        "a weight of nothing": ([], {"fair_by": "a", "weights": {"a": 0}}),
    }
    for what, (limits, options) in wrong.items():
        await refused(ConfigError, queue.limits.set("other", limits, **options), what)
    await refused(ConfigError, queue.limits.set("\0", Concurrency(1)), "a kind no job can have")
    await refused(ConfigError, queue.limits.use(groups=-1), "a negative number of groups")
    equal([each.kind for each in await queue.limits.list()], ["job"], "the limits after that")


async def check_use_of_limits(bench: Bench) -> None:
    """`use` shows how many run and wait, when the next may start, and the fullest groups."""
    queue, other = await limited(
        bench, Concurrency(4), Concurrency(2, by="tenant"), rate_of(bench, 3, 300, burst=3)
    )
    await queue.limits.set("idle", rate_of(bench, 1, 100))
    await queue.put(of_groups("aaaaabb-"))
    before = queue.clock.epoch()
    claims = await bench.take(queue)
    equal(len(claims), 3, "jobs of the claim")
    idle, used = await other.limits.use()
    equal(idle.limits.kind, "idle", "the first kind")
    equal((idle.running, idle.waiting, idle.next_at, idle.groups), (0, 0, None, ()), "its use")
    equal((used.running, used.waiting), (3, 5), "jobs of the other kind that run and wait")
    expect(
        used.next_at is not None and used.next_at >= before + 99 * bench.unit,
        f"the next start, at {used.next_at}, is 100 units after {before}",
    )
    groups = {each.group: each.running + each.waiting for each in used.groups}
    equal(groups, {"a": 5, "b": 2, "": 1}, "jobs by group")
    equal([each.group for each in used.groups], ["a", "b", ""], "the fullest first")
    equal(sum(each.running for each in used.groups), 3, "running jobs of all groups")
    [only] = await other.limits.use("job", groups=1)
    equal([each.group for each in only.groups], ["a"], "the groups when one is asked for")
    equal(await other.limits.use("unknown"), [], "the use of a kind without limits")


async def check_use_of_rates_of_groups(bench: Bench) -> None:
    """`use` shows when the rate of a group lets its next job start."""
    queue, other = await limited(bench, rate_of(bench, 1, 100, by="tenant"))
    await queue.put(of_groups("aab"))
    before = queue.clock.epoch()
    await queue.settle(done(await bench.take(queue)))
    await queue.put(of_groups("c"))
    [use] = await other.limits.use("job")
    times = {each.group: each.next_at for each in use.groups}
    equal((sorted(times), times["c"]), (["a", "c"], None), "groups that wait, and one that may run")
    at = times["a"]
    expect(at is not None and at >= before + 99 * bench.unit, f"the next start of a: {at}")


# Hints


async def check_settling_a_limited_job_hints(bench: Bench) -> None:
    """When a job ends for which others wait, a pause of the same handle ends."""
    queue, _ = await limited(bench, Concurrency(1))
    require(queue.capabilities.hints != "none", "hints")
    await queue.put(numbered(1, 2))
    claims = await bench.take(queue)
    equal(len(claims), 1, "jobs of the claim")
    pause = asyncio.ensure_future(bench.pause(queue, PAUSE))
    await bench.elapse(1)
    equal(pause.done(), False, "the pause is over before the job ended")
    await queue.settle(done(claims))
    await bench.elapse(1)
    equal(pause.done(), True, "the pause is over one unit after the job ended")
    equal(await pause, True, "a hint ended it")


async def check_a_rate_ends_a_pause(bench: Bench) -> None:
    """A claim that waits only for a rate learns when the next job may start, and a pause ends."""
    queue, _ = await limited(bench, rate_of(bench, 1, 10))
    require(queue.capabilities.next_due, "next_due")
    await queue.put(numbered(1, 2))
    equal(payloads(await bench.take(queue, 1)), [1], "the first claim")
    equal(await bench.take(queue), [], "a claim at the same time")
    equal(await bench.pause(queue, PAUSE), True, "a hint ended the pause")
    equal(payloads(await bench.take(queue)), [2], "a claim after the pause")
