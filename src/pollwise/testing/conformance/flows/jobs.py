"""Helpers for the checks of flows: linked jobs, and how they end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pollwise.queues.base import Queue
from pollwise.runtime.jobs import UNKNOWN_HEADERS, Claim, NewJob, Settlement
from pollwise.testing.conformance.bench import Bench, keeping, require


async def able(bench: Bench, keep: float | None = None) -> Queue:
    """A queue that links jobs, and keeps finished ones this many units; else skips the check."""
    queue = await (bench.queue() if keep is None else keeping(bench, keep))
    require(queue.capabilities.flows, "flows")
    return queue


def job(payload: Any, *after: NewJob, **options: Any) -> NewJob:
    return NewJob("job", payload, after=after, **options)


def chain(*payloads_: Any, **options: Any) -> list[NewJob]:
    """Jobs that run one after the other; the options are those of the last."""
    jobs: list[NewJob] = []
    for number, payload in enumerate(payloads_):
        more = options if number == len(payloads_) - 1 else {}
        jobs.append(job(payload, *jobs[-1:], **more))
    return jobs


async def states(queue: Queue, put: list[str]) -> list[str | None]:
    found = [await queue.get(job_id) for job_id in put]
    return [None if info is None else info.state for info in found]


def without_headers(claim: Claim) -> Claim:
    """A claim as returned by a client that does not send the headers of jobs."""
    return replace(claim, job=replace(claim.job, headers=UNKNOWN_HEADERS))


async def finish(queue: Queue, claims: list[Claim], result: Any = None) -> None:
    await queue.settle([Settlement.done(claim, result) for claim in claims])
