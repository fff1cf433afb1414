"""Unique: put once, however often it is repeated."""

from __future__ import annotations

import asyncio

from pollwise.errors import UniqueConflict
from pollwise.queues.base import Queue
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.testing.conformance.bench import (
    Bench,
    arranged,
    done,
    equal,
    expect,
    ids,
    keeping,
    kill,
    payloads,
    refused,
    require,
)


async def _queue(bench: Bench) -> Queue:
    queue = await bench.queue()
    require(queue.capabilities.unique, "unique")
    return queue


async def _exact(bench: Bench) -> Queue:
    queue = await _queue(bench)
    require(queue.capabilities.exact_unique, "unique that holds until the job is done")
    return queue


def _once(payload: object = 1, kind: str = "job") -> NewJob:
    return NewJob(kind, payload, unique="once")


async def check_unique_is_put_once(bench: Bench) -> None:
    """The same job under the same `unique` gets the same id, and there is one job."""
    queue, other = await _queue(bench), await bench.queue()
    first = await queue.put([_once({"a": 1, "b": 2}), NewJob("job", "other")])
    again = await other.put([NewJob("job", "third"), _once({"b": 2, "a": 1})])
    equal(again[1], first[0], "the id of the second put")
    claims = await bench.take(queue)
    wanted = [{"a": 1, "b": 2}, "other", "third"]
    equal(arranged(queue, payloads(claims)), arranged(queue, wanted), "the jobs there are")
    equal(await queue.put(_once({"a": 1, "b": 2})), [first[0]], "the id while it is leased")


async def check_unique_twice_in_a_batch(bench: Bench) -> None:
    """Two equal jobs in one batch are one job too."""
    queue = await _queue(bench)
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


async def check_unique_is_held_while_kept(bench: Bench) -> None:
    """If finished jobs are kept, the `unique` is taken until the job is pruned."""
    queue = await keeping(bench, 5)
    require(queue.capabilities.unique and queue.capabilities.exact_unique, "exact unique")
    [job_id] = await queue.put(_once(1))
    await queue.settle(done(await bench.take(queue)))
    equal(await queue.put(_once(1)), [job_id], "a second put while the finished job is kept")
    await refused(UniqueConflict, queue.put(_once(2)), "another payload meanwhile")
    await bench.elapse(6)
    await queue.prune()
    [fresh] = await queue.put(_once(2))
    expect(fresh != job_id, "the pruned job's id was used again")


async def check_unique_in_a_race(bench: Bench) -> None:
    """Many puts at once with one `unique`, by several handles, make one job."""
    await _queue(bench)
    handles = [await bench.queue() for _ in range(4)]
    put = await asyncio.gather(*(handle.put(_once()) for handle in handles for _ in range(3)))
    equal(len({job_id for [job_id] in put}), 1, f"how many different ids {put} holds")
    equal(len(await bench.take(handles[0])), 1, "the jobs there are")
