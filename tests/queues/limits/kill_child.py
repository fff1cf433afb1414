"""A worker that is killed: `python kill_child.py URL NAME LOG LEASE SEED`.

It logs each claim and each settlement before it begins, one line per batch.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time

from pollwise.errors import LeaseLost, StoreUnavailable
from pollwise.queues.base import Queue
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import Claim, Settlement

#: The longest run of a batch, in seconds.
RUN = 0.03


async def work(queue: Queue, name: str, log: int, lease: float, rng: random.Random) -> None:
    def note(what: str, claims: list[Claim]) -> None:
        some = [[c.job.id, c.token, c.job.kind, c.job.payload, c.until] for c in claims]
        os.write(log, (json.dumps([what, time.time(), some]) + "\n").encode())

    while True:
        claims = await queue.claim(name, rng.choice((1, 3, 9)), lease)
        if not claims:
            await asyncio.sleep(0.005)  # real time: others run
            continue
        note("claim", claims)
        await asyncio.sleep(rng.random() * RUN)  # real time: the handlers
        note("end", claims)
        ends = [
            Settlement.retry(claim, 0, "again") if rng.random() < 0.1 else Settlement.done(claim)
            for claim in claims
        ]
        try:
            await queue.settle(ends)
        except LeaseLost:
            continue


async def main(url: str, name: str, path: str, lease: str, seed: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    rng = random.Random(seed)
    async with open_queue(url) as queue:
        while True:
            try:
                await work(queue, name, log, float(lease), rng)
            except StoreUnavailable:
                await asyncio.sleep(0.05)  # real time: the store is busy


asyncio.run(main(*sys.argv[1:]))
