"""Results: from the settlement of a job until a waiter in another handle has its result.

Both handles are in this process, but share only the store, like two processes. Also measured: what
it costs a worker to keep results that nobody waits for.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks import common
from benchmarks.common import heading, number, percentile
from benchmarks.queue_sections.kit import Bench
from pollwise.queues.base import Queue
from pollwise.queues.urls import open_queue
from pollwise.queues.waiting import ENDINGS
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.storage.channel import SEND_EVERY

#: How many jobs one settlement ends, when it is timed.
BATCH = 100


def measure_results(bench: Bench, samples: int, folder: Path) -> dict[str, dict[str, float]]:
    """By store: the latency in milliseconds, and settlements a second with and without results."""
    urls = {"sqlite": f"sqlite:///{folder}/results.db?synchronous=normal"}
    used = {setup.store for setup in bench.setups}
    if "postgres" in used:
        urls["postgres"] = bench.postgres.create_database("results")
    if "redis" in used:
        urls["redis"] = bench.redis.url()
    found = {store: asyncio.run(_measure(url, samples)) for store, url in urls.items()}
    bench.facts["results"] = found
    heading("Results: from a settlement to a waiter, and jobs settled a second")
    print(f"{samples} jobs one by one; settlements of {BATCH}, while nobody waits.\n")
    rows = [
        [store, *(number(each[what]) for what in ("p50", "p99", "done", "kept"))]
        for store, each in found.items()
    ]
    common.table(["", "p50 ms", "p99 ms", "done jobs/s", "with results jobs/s"], rows)
    return found


async def _measure(url: str, samples: int) -> dict[str, float]:
    async with open_queue(url) as here, open_queue(url) as there:
        await here.migrate()
        rates: dict[str, list[float]] = {"done": [], "kept": []}
        for turn in range(6):
            what, keep = ("kept", "1h") if turn % 2 else ("done", None)
            rates[what].append(await _rate(there, keep))
        latencies = [await _latency(here, there) for _ in range(samples + 5)][5:]
        best = {what: max(values) for what, values in rates.items()}
        return {
            "p50": percentile(latencies, 0.5), "p99": percentile(latencies, 0.99), **best,
        }  # fmt: skip


async def _latency(here: Queue, there: Queue) -> float:
    [job_id] = await here.put(NewJob("job"))
    waiting = asyncio.ensure_future(here.result(job_id, "30s"))
    if here.capabilities.hints == "network":
        while (known := here.hints().known_at(ENDINGS)) is None or known > here.clock.now():
            await asyncio.sleep(0.005)
    await asyncio.sleep(1.2 * SEND_EVERY)  # or two broadcasts would be one message
    [claim] = await there.claim("worker", 1, "1m")
    await there.settle([Settlement.done(claim, 7, keep="1h")])
    settled = time.perf_counter()
    await waiting
    return (time.perf_counter() - settled) * 1000


async def _rate(queue: Queue, keep: str | None) -> float:
    await queue.put([NewJob("job", n) for n in range(10 * BATCH)])
    took = 0.0
    for _ in range(10):
        claims = await queue.claim("worker", BATCH, "1m")
        ends = [Settlement.done(c, keep and {"n": 7}, keep=keep) for c in claims]
        began = time.perf_counter()
        await queue.settle(ends)
        took += time.perf_counter() - began
    return 10 * BATCH / took
