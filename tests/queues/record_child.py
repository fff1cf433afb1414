"""A worker that is killed: `python record_child.py URL NAME LOG SEED`.

It reports progress, stops cancelled jobs, and settles with a result that names its lease.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from typing import Any

from pollwise.errors import LeaseLost, StoreUnavailable
from pollwise.queues.base import Queue
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import Claim, Progress, Settlement

LEASE = 1.0


async def work(queue: Queue, name: str, log: int, rng: random.Random) -> None:
    def note(what: str, claim: Claim, **more: Any) -> None:
        record = {"what": what, "job": claim.job.id, "token": claim.token, "at": time.time()}
        os.write(log, (json.dumps({**record, **more}) + "\n").encode())

    while True:
        claims = await queue.claim(name, rng.choice((1, 3)), LEASE)
        for claim in claims:
            note("claim", claim)
        if not claims:
            await asyncio.sleep(0.02)  # real time: jobs come back when leases end
            continue
        await asyncio.sleep(rng.random() * 0.03)  # real time: the handlers
        progress = {claim.job.id: Progress(0.5, str(claim.token)) for claim in claims}
        renewal = await queue.renew(claims, LEASE, progress)
        for claim in claims:
            stop = claim.job.id in renewal.cancel
            if stop:
                settlement = Settlement.cancelled(claim, f"stopped by {claim.token}", keep="1h")
            else:
                settlement = Settlement.done(claim, claim.token, keep="1h")
            try:
                await queue.settle([settlement])
            except LeaseLost:
                continue
            note("settled", claim, state="cancelled" if stop else "done")


async def main(url: str, name: str, path: str, seed: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    async with open_queue(url) as queue:
        while True:
            try:
                await work(queue, name, log, random.Random(seed))
            except StoreUnavailable:
                await asyncio.sleep(0.05)  # real time: the store is busy


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
