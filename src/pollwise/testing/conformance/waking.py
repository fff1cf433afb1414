"""Hints and held claims: what ends a wait early."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pollwise.queues.base import Queue
from pollwise.runtime.hints import CANCELS, Hint
from pollwise.runtime.jobs import Claim, NewJob, Settlement
from pollwise.testing.conformance.bench import (
    Bench,
    done,
    equal,
    expect,
    ids,
    numbered,
    payloads,
    require,
)

#: How long the checks pause, in units; a hint has to come well before that.
PAUSE = 50.0


async def _hinted(bench: Bench) -> Queue:
    queue = await bench.queue()
    require(queue.capabilities.hints != "none", "hints")
    return queue


async def _asleep(bench: Bench, queue: Queue, pauses: int = 1) -> list[asyncio.Task[bool]]:
    """Pauses under way."""
    tasks = [asyncio.ensure_future(bench.pause(queue, PAUSE)) for _ in range(pauses)]
    await bench.elapse(1)
    equal([task.done() for task in tasks], [False] * pauses, "pauses over before any hint")
    return tasks


async def _woken(tasks: list[asyncio.Task[bool]]) -> int:
    """How many of the pauses were ended by a hint; the others sleep to their end."""
    return sum(await asyncio.gather(*tasks))


async def check_put_ends_a_pause(bench: Bench) -> None:
    """A put ends a pause of the same handle at once."""
    queue = await _hinted(bench)
    tasks = await _asleep(bench, queue)
    await queue.put(NewJob("job"))
    await bench.elapse(1)
    equal(tasks[0].done(), True, "the pause is over one unit after the put")
    equal(await _woken(tasks), 1, "pauses ended by the hint")


async def check_put_elsewhere_ends_a_pause(bench: Bench) -> None:
    """A put by another handle soon ends a pause, too, if hints cross processes."""
    queue = await _hinted(bench)
    require(queue.capabilities.hints in ("machine", "network"), "hints between processes")
    other = await bench.queue()
    tasks = await _asleep(bench, queue)
    await other.put(NewJob("job"))
    equal(await _woken(tasks), 1, "pauses ended by a put of another handle")


async def check_a_herd_is_not_woken(bench: Bench) -> None:
    """A hint of n jobs ends n pauses, not all of them."""
    queue = await _hinted(bench)
    tasks = await _asleep(bench, queue, 6)
    await queue.put(numbered(1, 2))
    await bench.elapse(1)
    equal(sum(task.done() for task in tasks), 2, "pauses that a put of two jobs ended")
    equal(await _woken(tasks), 2, "pauses ended by hints in the end")


async def check_a_full_claim_passes_the_hint_on(bench: Bench) -> None:
    """A claim that found as many jobs as it can take wakes another, since there may be more."""
    queue = await _hinted(bench)
    await queue.put(numbered(*range(4)))
    tasks = await _asleep(bench, queue, 2)
    await bench.take(queue, 2)
    await bench.elapse(1)
    equal(sum(task.done() for task in tasks), 1, "pauses that a full claim ended")
    equal(await _woken(tasks), 1, "pauses ended by hints in the end")


async def check_due_time_ends_a_pause(bench: Bench) -> None:
    """After an empty claim, a pause ends as soon as the next delayed job is due."""
    queue = await _hinted(bench)
    require(queue.capabilities.delay and queue.capabilities.next_due, "delay and due times")
    [job_id] = await queue.put(NewJob("job", delay=10 * bench.unit))
    equal(await bench.take(queue), [], "a claim before the job is due")
    equal(ids(await _poll_until_found(bench, queue, 14)), [job_id], "the job, when it was due")


async def check_lease_end_ends_a_pause(bench: Bench) -> None:
    """After an empty claim, a pause ends when the lease of another worker runs out."""
    queue = await _hinted(bench)
    require(queue.capabilities.next_due, "due times")
    [job_id] = await queue.put(NewJob("job"))
    await bench.take_one(queue, lease=10)
    equal(await bench.take(queue), [], "a claim while the lease lives")
    equal(ids(await _poll_until_found(bench, queue, 14)), [job_id], "the job, when its lease ended")


async def check_retry_ends_a_pause(bench: Bench) -> None:
    """A job that is given back or retried at once ends a pause; one with a delay, after that."""
    queue = await _hinted(bench)
    [job_id] = await queue.put(NewJob("job"))
    for back in (Settlement.give_back, Settlement.retry):
        claim = await bench.take_one(queue)
        queue.hints().close()  # no due time from the empty claims before
        tasks = await _asleep(bench, queue)
        await queue.settle([back(claim)])
        await bench.elapse(1)
        equal(tasks[0].done(), True, f"the pause is over one unit after {back.__name__}")
        await _woken(tasks)
    claim = await bench.take_one(queue)
    await queue.settle([Settlement.retry(claim, 10 * bench.unit)])
    equal(ids(await _poll_until_found(bench, queue, 14)), [job_id], "the job after its delay")


async def check_freed_key_ends_a_pause(bench: Bench) -> None:
    """When a job of a key is done, the next of that key ends a pause."""
    queue = await _hinted(bench)
    require(queue.capabilities.keys, "keys")
    await queue.put(numbered(1, 2, key="k"))
    claim = await bench.take_one(queue)
    tasks = await _asleep(bench, queue)
    await queue.settle(done([claim]))
    await bench.elapse(1)
    equal(tasks[0].done(), True, "the pause is over one unit after the key was freed")
    await _woken(tasks)


async def check_retrying_dead_jobs_ends_a_pause(bench: Bench) -> None:
    """A dead job that is retried ends a pause."""
    queue = await _hinted(bench)
    await queue.put(NewJob("job"))
    await queue.settle([Settlement.dead(await bench.take_one(queue), "broken")])
    tasks = await _asleep(bench, queue)
    await queue.retry()
    await bench.elapse(1)
    equal(tasks[0].done(), True, "the pause is over one unit after the retry")
    await _woken(tasks)


async def check_cancel_of_a_run_is_broadcast(bench: Bench) -> None:
    """To cancel a job that runs sends a broadcast to those who hold jobs, and ends no pause."""
    queue = await _hinted(bench)
    await _broadcasts_cancel(bench, queue, queue)


async def check_cancel_elsewhere_is_broadcast(bench: Bench) -> None:
    """The broadcast comes from another handle, too, if hints cross processes."""
    queue = await _hinted(bench)
    require(queue.capabilities.hints in ("machine", "network"), "hints between processes")
    await _broadcasts_cancel(bench, queue, await bench.queue())


async def _broadcasts_cancel(bench: Bench, queue: Queue, other: Queue) -> None:
    """Expect `queue` to hear of a cancel of `other`."""
    require(queue.capabilities.cancel, "cancel")
    [running] = await queue.put(NewJob("job"))
    await bench.take_one(queue)
    heard = Hint()

    def note(_: str) -> None:
        heard.give()

    listening = queue.hints().listen(note, [CANCELS])
    tasks = await _asleep(bench, queue)
    equal(await other.cancel([running]), {running: "leased"}, "the state of a job that runs")
    equal(await queue.clock.sleep(PAUSE * bench.unit, heard), True, "heard of the cancel")
    equal([task.done() for task in tasks], [False], "pauses that the cancel ended")
    tasks[0].cancel()
    listening.close()
    heard.forget()
    await other.cancel([running])
    await bench.elapse(1)
    equal(await queue.clock.sleep(0, heard), False, "heard after it was closed")


async def _poll_until_found(bench: Bench, queue: Queue, units: float) -> list[Claim]:
    """Poll as the loop does, with long pauses that only hints end, for this many units."""
    began = queue.clock.now()
    while True:
        claims = await bench.take(queue)
        passed = (queue.clock.now() - began) / bench.unit
        expect(
            passed <= units,
            f"no hint came in time: {passed:.1f} units passed, the job was due within {units}",
        )
        if claims:
            return claims
        await bench.pause(queue, PAUSE)


# Held claims (long polling)


async def _held(bench: Bench) -> Queue:
    queue = await bench.queue()
    require(queue.capabilities.long_poll, "long poll")
    return queue


async def _hold(
    bench: Bench, queue: Queue, kinds: Sequence[str] | None = None
) -> tuple[list[Claim], float]:
    """A held claim's result, and how many units it took."""
    began = queue.clock.now()
    claims = await queue.claim("w", 1, 100 * bench.unit, PAUSE * bench.unit, kinds)
    return claims, (queue.clock.now() - began) / bench.unit


async def check_hold_ends_when_nothing_comes(bench: Bench) -> None:
    """A held claim on an empty queue returns empty after the hold, and not before."""
    queue = await _held(bench)
    claims, took = await _hold(bench, queue)
    equal(claims, [], "what a held claim on an empty queue got")
    expect(PAUSE - 1 <= took <= PAUSE + 10, f"a hold of {PAUSE} units took {took:.1f}")


async def check_hold_returns_what_is_there(bench: Bench) -> None:
    """A held claim with something claimable returns at once."""
    queue = await _held(bench)
    await queue.put(NewJob("job", "there"))
    claims, took = await _hold(bench, queue)
    equal(payloads(claims), ["there"], "what the held claim got")
    expect(took < PAUSE / 2, f"it took {took:.1f} units with a job there")


async def check_hold_returns_early_on_put(bench: Bench) -> None:
    """A held claim returns as soon as a job is put; of two held claims, one gets it."""
    queue, other = await _held(bench), await bench.queue()
    calls = [asyncio.ensure_future(_hold(bench, queue)) for _ in range(2)]
    await bench.elapse(2)
    await other.put(NewJob("job", "new"))
    results = sorted(await asyncio.gather(*calls), key=lambda result: result[1])
    equal(payloads(results[0][0]), ["new"], "what the first held claim to return got")
    expect(results[0][1] < PAUSE / 2, f"it took {results[0][1]:.1f} units")
    equal(results[1][0], [], "what the other got")


async def check_hold_sees_what_falls_due(bench: Bench) -> None:
    """A held claim returns when a delayed job falls due during the hold."""
    queue = await _held(bench)
    require(queue.capabilities.delay, "delay")
    await queue.put(NewJob("job", "due", delay=5 * bench.unit))
    claims, took = await _hold(bench, queue)
    equal(payloads(claims), ["due"], "what the held claim got")
    expect(took < PAUSE / 2, f"it took {took:.1f} units, with a job due after 5")


async def check_hold_by_kinds(bench: Bench) -> None:
    """A job wakes a held claim that wants its kind, even if others have waited longer."""
    queue = await _held(bench)
    require(queue.capabilities.kinds, "claim by kinds")
    calls = [asyncio.ensure_future(_hold(bench, queue, kinds=[kind])) for kind in ("a", "b", "c")]
    await bench.elapse(2)
    await queue.put(NewJob("c", "for c"))
    *others, (claims, took) = await asyncio.gather(*calls)
    equal([other for other, _ in others], [[], []], "what the others got")
    equal(payloads(claims), ["for c"], "what the claim for kind c got")
    expect(took < PAUSE / 2, f"it took {took:.1f} units")
