"""Putting: ids, batches, limits, and payloads that arrive unchanged.

And unique: put once, however often it is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pollwise.errors import ConfigError, JobError, PayloadError, UniqueConflict
from pollwise.queues.base import Queue
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.testing.conformance.bench import (
    Bench,
    arranged,
    done,
    equal,
    expect,
    gone,
    ids,
    keeping,
    kill,
    lost,
    numbered,
    payloads,
    refused,
    require,
)

PAYLOADS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**53 + 1, -(2**63) - 1, 10**60, 0.1, -0.5, 1e-300, 1e300,
    "", " ", "plain", "ünï ☃ 😀 \u0000\u001f \u2028 \"quoted\" \\ 'single' %s {} $1 :a ?",
    [], {}, [[], [[]], {}], {"": {"": [None]}}, {"a": [1, "b", {"c": None}], "z": -0.25, "ß": "ß"},
    [True, 1, 1.5, "1", None],
)  # fmt: skip


async def check_put_claim_settle(bench: Bench) -> None:
    """A job is claimed as it was put, and is gone after it was settled as done."""
    queue = await bench.queue()
    before = queue.clock.epoch()
    [job_id] = await queue.put(NewJob("greet", {"name": "Ada"}))
    claim = await bench.take_one(queue, worker="first")
    after = queue.clock.epoch()
    job = claim.job
    equal(job.id, job_id, "the id of the job claimed")
    equal((job.kind, job.payload), ("greet", {"name": "Ada"}), "its kind and payload")
    equal((job.key, job.priority, job.unique), (None, 0, None), "what was not asked for")
    equal((job.attempt, job.queue), (1, queue.name), "its attempt and queue")
    equal(claim.worker, "first", "whose claim it is")
    expect(claim.until > before, f"the lease ends at {claim.until}, before it began at {before}")
    expect(
        before <= job.created_at <= after,
        f"created_at = {job.created_at} is not between {before} and {after}",
    )
    await queue.settle(done([claim]))
    await gone(queue, job_id, "get of a job that is done")
    equal(await bench.take(queue), [], "a claim after the only job is done")


async def check_empty_batches(bench: Bench) -> None:
    """Empty batches are not an error, and an empty queue gives an empty claim."""
    queue = await bench.queue()
    equal(await queue.put([]), [], "put of nothing")
    equal(await bench.take(queue), [], "claim from an empty queue")
    await queue.settle([])
    await queue.renew([], bench.unit)


async def check_put_ids(bench: Bench) -> None:
    """Ids come back in the order of the batch, all different, one for each job."""
    queue = await bench.queue()
    put = await queue.put(numbered(*range(20)))
    put += await queue.put(numbered(20))
    equal(len(set(put)), 21, f"how many different ids {put} holds")
    by_id = {claim.job.id: claim.job.payload for claim in await bench.take(queue)}
    equal(
        [by_id.get(job_id) for job_id in put], list(range(21)), "payloads in the order of the ids"
    )


async def check_put_is_all_or_nothing(bench: Bench) -> None:
    """One bad job in a batch, and nothing of it is put."""
    queue = await bench.queue(max_payload_bytes=100)
    batch = [NewJob("job", 1), NewJob("job", "x" * 101), NewJob("job", 2)]
    await refused(PayloadError, queue.put(batch), "a batch with a payload over the limit")
    equal(await bench.take(queue), [], "what a refused batch left behind")


async def check_payload_limit(bench: Bench) -> None:
    """A payload of exactly max_payload_bytes of JSON is taken; one byte more is refused."""
    queue = await bench.queue(max_payload_bytes=100)
    await queue.put(NewJob("job", "é" * 49))  # 98 bytes and two quotes
    error = await refused(PayloadError, queue.put(NewJob("job", "é" * 49 + "x")), "101 bytes")
    expect("max_payload_bytes" in str(error), f"the message does not name the limit: {error}")
    equal(payloads(await bench.take(queue)), ["é" * 49], "payloads put")


async def check_payloads_round_trip(bench: Bench) -> None:
    """Every JSON value arrives unchanged, with its type."""
    queue = await bench.queue()
    put = await queue.put(numbered(*PAYLOADS))
    arrived = {claim.job.id: claim.job.payload for claim in await bench.take(queue)}
    for job_id, sent in zip(put, PAYLOADS, strict=True):
        equal(repr(arrived.get(job_id)), repr(sent), "a payload after its journey")


async def check_large_payload(bench: Bench) -> None:
    """A payload near the default limit arrives whole."""
    queue = await bench.queue()
    large = "ab" * (queue.max_payload_bytes // 2 - 2)
    await queue.put(NewJob("job", large))
    claim = await bench.take_one(queue)
    expect(claim.job.payload == large, "a large payload came back changed")


async def check_payload_is_a_copy(bench: Bench) -> None:
    """Changing a payload after NewJob was created does not change the job."""
    queue = await bench.queue()
    payload = {"n": [1]}
    job = NewJob("job", payload)
    payload["n"].append(2)
    await queue.put(job)
    payload["n"].append(3)
    equal((await bench.take_one(queue)).job.payload, {"n": [1]}, "the payload")


async def check_names_of_any_script(bench: Bench) -> None:
    """Kinds, keys, uniques and workers may be any printable text up to the limit."""
    queue = await bench.queue()
    name = "ñ☃😀 '\"%_\\;--?:{}" + "x" * 183
    can = queue.capabilities
    job = NewJob(name, key=name if can.keys else None, unique=name if can.unique else None)
    await queue.put(job)
    [claim] = await bench.take(queue, worker=name, kinds=[name] if can.kinds else None)
    got = claim.job
    equal((got.kind, got.key, got.unique), (job.kind, job.key, job.unique), "the names")
    equal(claim.worker, name, "the worker's name")
    await queue.settle(done([claim]))


async def check_claim_limit(bench: Bench) -> None:
    """A claim takes no more than its limit, and that many if there are enough."""
    queue = await bench.queue()
    put = await queue.put(numbered(*range(5)))
    first, second = await bench.take(queue, 3), await bench.take(queue, 3)
    equal((len(first), len(second)), (3, 2), "sizes of two claims with limit 3 on 5 jobs")
    equal(sorted(ids(first + second)), sorted(put), "the jobs claimed")


async def check_bad_arguments(bench: Bench) -> None:
    """Wrong arguments are refused with an error that names them, before anything changes."""
    queue = await bench.queue()
    await queue.put(NewJob("job"))
    bad: dict[str, Callable[[], Awaitable[object]]] = {
        "limit": lambda: queue.claim("w", 0, 1),
        "lease": lambda: queue.claim("w", 1, 0),
        "hold": lambda: queue.claim("w", 1, 1, hold=-1),
        "worker": lambda: queue.claim("", 1, 1),
        "kinds": lambda: queue.claim("w", 1, 1, kinds="job"),
        "ids": lambda: queue.drop("1"),
        "state": lambda: queue.jobs("lost"),  # type: ignore[arg-type]
    }
    for name, call in bad.items():
        error = await refused(ConfigError, call(), f"a bad {name}")
        expect(name in str(error), f"the message does not name {name!r}: {error}")
    await refused(JobError, queue.put(["job"]), "a string for a job")  # type: ignore[list-item]
    await refused(ConfigError, queue.jobs(limit=0), "a page of 0")
    claims = await bench.take(queue)
    equal([claim.job.attempt for claim in claims], [1], "attempts of the one job there is")
    await refused(ConfigError, queue.renew(claims, 8 * 86400), "a lease of eight days")


async def check_handles_share_the_store(bench: Bench) -> None:
    """Handles of one store see each other's jobs at once."""
    one, other = await bench.queue(), await bench.queue()
    [job_id] = await one.put(NewJob("job", "from one"))
    claim = await bench.take_one(other)
    equal(claim.job.id, job_id, "the job that the other handle claims")
    equal(await bench.take(one), [], "what the first handle may claim meanwhile")
    await one.settle(done([claim]))
    await gone(other, job_id, "the other handle's get of what the first settled")


# Unique


async def _unique_queue(bench: Bench) -> Queue:
    queue = await bench.queue()
    require(queue.capabilities.unique, "unique")
    return queue


async def _exact(bench: Bench) -> Queue:
    queue = await _unique_queue(bench)
    require(queue.capabilities.exact_unique, "unique that holds until the job is done")
    return queue


def _once(payload: object = 1, kind: str = "job") -> NewJob:
    return NewJob(kind, payload, unique="once")


async def check_unique_is_put_once(bench: Bench) -> None:
    """The same job under the same `unique` gets the same id, and there is one job."""
    queue, other = await _unique_queue(bench), await bench.queue()
    first = await queue.put([_once({"a": 1, "b": 2}), NewJob("job", "other")])
    again = await other.put([NewJob("job", "third"), _once({"b": 2, "a": 1})])
    equal(again[1], first[0], "the id of the second put")
    claims = await bench.take(queue)
    wanted = [{"a": 1, "b": 2}, "other", "third"]
    equal(arranged(queue, payloads(claims)), arranged(queue, wanted), "the jobs there are")
    equal(await queue.put(_once({"a": 1, "b": 2})), [first[0]], "the id while it is leased")


async def check_unique_twice_in_a_batch(bench: Bench) -> None:
    """Two equal jobs in one batch are one job too."""
    queue = await _unique_queue(bench)
    first, second, third = await queue.put([_once(), NewJob("job", 2), _once()])
    equal(third, first, "the id of the second of two equal jobs")
    expect(second != first, "the job between them has an id of its own")
    equal(sorted(ids(await bench.take(queue))), sorted([first, second]), "the jobs there are")


async def check_unique_conflict(bench: Bench) -> None:
    """Another payload or kind with the same `unique` is a conflict, and nothing is put."""
    queue = await _exact(bench)
    [job_id] = await queue.put(_once(1))
    others = {
        "another payload": _once(2),
        "another kind": _once(1, "other"),
        "true for 1, which are equal in Python": _once(True),
    }
    for what, job in others.items():
        error = await refused(UniqueConflict, queue.put([NewJob("job", 3), job]), what)
        expect("'once'" in str(error), f"the message does not name the unique: {error}")
    equal(ids(await bench.take(queue)), [job_id], "the jobs there are after the conflicts")


async def check_unique_conflict_in_a_batch(bench: Bench) -> None:
    """Two different jobs with one `unique` in one batch are a conflict, and nothing is put."""
    queue = await _exact(bench)
    batch = [NewJob("job", 0), _once(1), _once(2)]
    await refused(UniqueConflict, queue.put(batch), "a batch that contradicts itself")
    equal(await bench.take(queue), [], "what the batch left behind")
    [job_id] = await queue.put(_once(2))
    equal(ids(await bench.take(queue)), [job_id], "the unique is free after the refusal")


async def check_unique_is_free_when_done(bench: Bench) -> None:
    """When the job is done and finished jobs are not kept, its `unique` may be used again."""
    queue = await _exact(bench)
    [first] = await queue.put(_once(1))
    await queue.settle(done(await bench.take(queue)))
    [second] = await queue.put(_once(2))
    expect(second != first, f"the new job got the id of the old one, {first}")
    equal(payloads(await bench.take(queue)), [2], "the job there is")


async def check_unique_is_held_through_failure(bench: Bench) -> None:
    """A job that is retried, or dead, still has its `unique`; after a drop it is free."""
    queue = await _exact(bench)
    [job_id] = await queue.put(_once(1))
    await queue.settle([Settlement.retry(await bench.take_one(queue))])
    equal(await queue.put(_once(1)), [job_id], "a second put while it waits for its retry")
    await queue.settle([Settlement.dead(await bench.take_one(queue), "broken")])
    equal(await queue.put(_once(1)), [job_id], "a second put while it is dead")
    await refused(UniqueConflict, queue.put(_once(2)), "another payload while it is dead")
    equal(await bench.take(queue), [], "a repeat of a dead job makes nothing run")
    await queue.drop([job_id])
    [fresh] = await queue.put(_once(2))
    equal(ids(await bench.take(queue)), [fresh], "the jobs there are after the drop")


async def check_unique_is_held_through_retry(bench: Bench) -> None:
    """A retried job still has its `unique`."""
    queue = await _exact(bench)
    [job_id] = await kill(bench, queue, _once(1))
    await queue.retry()
    equal(await queue.put(_once(1)), [job_id], "a second put after the retry")
    equal(ids(await bench.take(queue)), [job_id], "the jobs there are")


async def check_unique_is_free_though_kept(bench: Bench) -> None:
    """A job that is done or cancelled frees its `unique`, also if finished jobs are kept."""
    queue = await keeping(bench, 5)
    require(queue.capabilities.unique and queue.capabilities.exact_unique, "exact unique")
    seen: list[str] = []
    for end in ("done", "done with a result", "cancelled", "cancelled by its worker", "given up"):
        seen += await queue.put(_once(end))
        if end == "cancelled":
            await queue.cancel(seen[-1:])
        else:
            claim = await bench.take_one(queue)
            keep = bench.unit * 20 if "result" in end else None
            if end == "given up":
                await queue.cancel(seen[-1:])
                await queue.settle([Settlement.retry(claim)])
            elif end == "cancelled by its worker":
                await queue.settle([Settlement.cancelled(claim)])
            else:
                await queue.settle([Settlement.done(claim, 1, keep=keep)])
        info = await queue.get(seen[-1])
        equal(info and info.state, end.split()[0].replace("given", "cancelled"), "its state")
    equal(len(set(seen)), 5, "how many jobs were put while those before were kept")
    [lapsed] = await queue.put(_once("lapsed"))
    await bench.take(queue, lease=2)
    await queue.cancel([lapsed])
    await bench.elapse(3)
    equal(await bench.take(queue), [], "a claim that cancels a job whose lease ran out")
    [last] = await queue.put(_once(6))
    await bench.elapse(6)
    await queue.prune()
    equal(await queue.put(_once(6)), [last], "a put after those before were pruned")
    await refused(UniqueConflict, queue.put(_once(7)), "another payload")


async def check_replace_while_it_waits(bench: Bench) -> None:
    """With `replace`, the latest payload, headers, priority and time win while the job waits."""
    queue, other = await bench.queue(), await bench.queue()
    require(queue.capabilities.replace, "replace")
    [first] = await queue.put(NewJob("mail", 1, unique="u", replace=True, headers={"a": "1"}))
    ids = await other.put(
        [NewJob("mail", {"n": 2}, unique="u", replace=True, priority=5), NewJob("mail", 0)]
    )
    equal(ids[0], first, "the id of the put that replaces")
    claims = await bench.take(queue)
    equal(payloads(claims), [{"n": 2}, 0], "payloads, by the new priority")
    equal(claims[0].job.headers, {}, "the headers of the last put")
    equal((claims[0].job.id, claims[0].job.attempt), (first, 1), "the id and the attempt")
    large = "x" * 5000
    await queue.put(NewJob("mail", large, unique="v", replace=True))
    await queue.put(NewJob("mail", "small", unique="v", replace=True, delay=bench.unit * 5))
    equal(await bench.take(queue), [], "before the new delay has passed")
    await queue.put(NewJob("mail", large, unique="v", replace=True, delay=bench.unit * 5))
    await bench.elapse(6)
    equal(payloads(await bench.take(queue)), [large], "after the delay")


async def check_replace_while_it_runs(bench: Bench) -> None:
    """A job that runs or has ended loses its `unique`, and a new job is put."""
    queue = await bench.queue()
    require(queue.capabilities.replace, "replace")
    [first] = await queue.put(NewJob("mail", 1, unique="u"))
    claim = await bench.take_one(queue)
    [second] = await queue.put(NewJob("mail", 1, unique="u", replace=True))
    expect(second != first, "a put while the job runs has the id of that job")
    [again] = await queue.put(NewJob("mail", 2, unique="u", replace=True))
    equal(again, second, "the job that waits is replaced")
    await queue.settle([Settlement.retry(claim, 0, "again")])
    equal(sorted(payloads(await bench.take(queue))), [1, 2], "both run")
    [third] = await kill(bench, queue, NewJob("mail", 3, unique="dead"))
    [fourth] = await queue.put(NewJob("mail", 4, unique="dead", replace=True))
    expect(third != fourth, "a dead job is not replaced")
    equal(payloads(await bench.take(queue)), [4], "beside the dead one")


async def check_replace_conflict(bench: Bench) -> None:
    """Neither kind nor key can be replaced; a batch cannot replace its own jobs."""
    queue = await bench.queue()
    require(queue.capabilities.replace, "replace")
    await queue.put(NewJob("mail", 1, unique="u"))
    other = NewJob("print", 2, unique="u", replace=True)
    await refused(UniqueConflict, queue.put([NewJob("mail", 9), other]), "another kind")
    if queue.capabilities.keys:
        keyed = NewJob("mail", 2, unique="u", key="k", replace=True)
        await refused(UniqueConflict, queue.put(keyed), "another key")
    twice = [NewJob("mail", n, unique="w", replace=True) for n in (1, 2)]
    await refused(JobError, queue.put(twice), "the same `unique` twice in a batch")
    equal(payloads(await bench.take(queue)), [1], "what was put")


async def check_replaced_job_is_nobodys(bench: Bench) -> None:
    """A worker whose lease ran out cannot settle the job once it was replaced."""
    queue, other = await bench.queue(), await bench.queue()
    require(queue.capabilities.replace, "replace")
    [job_id] = await queue.put(NewJob("mail", 1, unique="u"))
    [claim] = await bench.take(queue, lease=2)
    await bench.elapse(3)
    await queue.pause("mail")
    equal(await bench.take(other), [], "a claim that makes it ready, during a pause")
    await other.put(NewJob("mail", 2, unique="u", replace=True))
    equal((await queue.renew([claim], bench.unit * 50)).lost, (job_id,), "a renewal")
    await lost(queue.settle(done([claim])), [job_id], "a settlement")
    await queue.resume("mail")
    equal(payloads(await bench.take(other)), [2], "the job that was replaced")


async def check_replace_behind_a_key(bench: Bench) -> None:
    """A job that waits behind another one of its key is replaced in its place."""
    queue = await bench.queue()
    require(queue.capabilities.replace and queue.capabilities.keys, "replace and keys")
    await queue.put([NewJob("a", 1, key="k"), NewJob("a", 2, key="k", unique="u"),
                     NewJob("a", 3, key="k")])  # fmt: skip
    await queue.put(NewJob("a", "two", key="k", unique="u", replace=True))
    for wanted in (1, "two", 3):
        [claim] = await bench.take(queue)
        equal(claim.job.payload, wanted, "one at a time, in the order of the first puts")
        await queue.settle(done([claim]))


async def check_debounce(bench: Bench) -> None:
    """With `debounce`, the job runs after that time without another put, with the last payload."""
    queue = await bench.queue()
    require(queue.capabilities.replace and queue.capabilities.delay, "replace")
    for number in range(4):
        await queue.put(NewJob("mail", number, unique="u", debounce=bench.unit * 4))
        await bench.elapse(2)
        equal(await bench.take(queue), [], "while puts go on")
    await bench.elapse(4)
    equal(payloads(await bench.take(queue)), [3], "after the last of them")


async def check_unique_in_a_race(bench: Bench) -> None:
    """Many puts at once with one `unique`, by several handles, make one job."""
    await _unique_queue(bench)
    handles = [await bench.queue() for _ in range(4)]
    put = await asyncio.gather(*(handle.put(_once()) for handle in handles for _ in range(3)))
    equal(len({job_id for [job_id] in put}), 1, f"how many different ids {put} holds")
    equal(len(await bench.take(handles[0])), 1, "the jobs there are")
