"""Helpers for the checks of limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pollwise.queues.base import Queue
from pollwise.queues.limits.record import Limit, Rate
from pollwise.runtime.jobs import NewJob
from pollwise.testing.conformance.bench import Bench, payloads, require


async def limited(
    bench: Bench,
    *limits: Limit,
    kind: str = "job",
    fair_by: str | None = None,
    weights: Mapping[str, int] | None = None,
) -> tuple[Queue, Queue]:
    """Two handles on a queue with limits for a kind."""
    queue, other = await bench.queue(), await bench.queue()
    require(queue.capabilities.limits, "limits")
    await queue.limits.set(kind, limits, fair_by=fair_by, weights=weights)
    return queue, other


def rate_of(bench: Bench, amount: int, units: float, **options: Any) -> Rate:
    return Rate(amount, units * bench.unit, **options)


def of_groups(groups: str, **options: Any) -> list[NewJob]:
    """A job for each letter: its group and its payload; `-` has no group."""
    return [
        NewJob("job", group, limit_group=None if group == "-" else group, **options)
        for group in groups
    ]


async def groups_of(bench: Bench, queue: Queue, limit: int, **options: Any) -> str:
    """The groups of the jobs that a claim gets, sorted, as letters."""
    return "".join(sorted(payloads(await bench.take(queue, limit, **options))))
