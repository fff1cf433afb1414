"""A worker that is killed: `python kill_child.py URL NAME LOG FIXED SEED`.

It runs the jobs of flows and settles them in batches. Before it settles a job with predecessors, it
logs how these ended. Jobs of the kind `flaky` fail until the file FIXED exists.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from pathlib import Path

from pollwise.errors import LeaseLost, StoreUnavailable
from pollwise.queues.base import Queue
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import Claim, Settlement

LEASE = 2.0
PAUSE = 0.1
FIRST = ("steady", "flaky")


async def run(queue: Queue, claim: Claim, log: int, fixed: Path) -> Settlement:
    job = claim.job
    if job.kind == "flaky" and not fixed.exists():
        return Settlement.dead(claim, "broken")
    if job.kind not in FIRST:
        before = await queue.predecessors(job.id)
        ends = [None if end is None else [end.state, end.result] for _, end in before]
        os.write(log, (json.dumps({"job": job.id, "kind": job.kind, "ends": ends}) + "\n").encode())
    return Settlement.done(claim, job.payload)


async def work(queue: Queue, name: str, log: int, fixed: Path, rng: random.Random) -> None:
    while True:
        claims = await queue.claim(name, rng.choice((1, 5, 50)), LEASE)
        if not claims:
            await asyncio.sleep(0.02)  # real time: jobs come back when leases end
            continue
        ended = [await run(queue, claim, log, fixed) for claim in claims]
        await asyncio.sleep(rng.random() * PAUSE)  # real time: the handlers
        try:
            await queue.settle(ended)
        except LeaseLost:
            continue


async def main(url: str, name: str, path: str, fixed: str, seed: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    rng = random.Random(seed)
    async with open_queue(url) as queue:
        while True:
            try:
                await work(queue, name, log, Path(fixed), rng)
            except StoreUnavailable:
                await asyncio.sleep(0.05)  # real time: the store is busy


asyncio.run(main(*sys.argv[1:]))
