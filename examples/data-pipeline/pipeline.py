"""A data pipeline: fetch the readings of a day, transform them in batches, merge the batches.

fetch_readings ─┬─ transform(batch=0) ─┬─ merge            when all batches are done
                ├─ transform(batch=1) ─┤
                └─ transform(batch=2) ─┴─ tell_failure     when a job before it is dead
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from statistics import fmean

from pollwise import Flow, Job, Retry, Worker, group, results_before

URL = os.environ.get("PIPELINE_URL", "sqlite:///pipeline.db")
BATCHES = 3

worker = Worker(URL)


@dataclass
class Summary:
    """What is known about a part of a day."""

    readings: int
    mean: float


@worker.task
async def fetch_readings(day: str) -> list[list[str]]:
    """Fetch the readings of a day, in batches. Replace this with a call of your source."""
    readings = [f"{10 + hour % 7}.5" for hour in range(24)]
    if day == "2026-02-30":
        readings[20] = "broken"
    size = len(readings) // BATCHES
    return [readings[first : first + size] for first in range(0, len(readings), size)]


@worker.task(retry=Retry.fixed("100ms", attempts=2))
async def transform(
    job: Job, batch: int, before: list[list[list[str]]] = results_before
) -> Summary:
    """Transform one batch of what was fetched. It may run twice, so it changes nothing else."""
    [batches] = before  # the results of the jobs right before this one: of fetch_readings alone
    texts, values = batches[batch], []
    for done, text in enumerate(texts):
        await job.progress(done / len(texts), f"batch {batch}: {done} of {len(texts)}")
        await asyncio.sleep(0.2)  # stands for real work
        values.append(float(text))
    return Summary(len(values), fmean(values))


@worker.task
async def merge(parts: list[Summary]) -> Summary:
    """Merge the summaries of all batches. A real pipeline stores the result here."""
    readings = sum(part.readings for part in parts)
    return Summary(readings, sum(part.mean * part.readings for part in parts) / readings)


@worker.task
async def tell_failure(error: str) -> None:
    """Tell somebody that a day could not be processed. Replace this with a message to you."""
    print(f"a day failed: {error}", flush=True)


def flow_of(day: str) -> Flow[Summary]:
    """Return the jobs of a day, linked. `await flow_of(day).put()` puts all of them in one call."""
    batches = group([transform.s(batch=number) for number in range(BATCHES)])
    return fetch_readings.s(day).then(batches).then(merge, on_failure=tell_failure)
