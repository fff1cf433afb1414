"""A worker process of the kill tests: it logs each claim, renewal, run and settlement.

Its arguments: the database (a file, or the URL of a server), the log, its name. One line is one
JSON object, appended in one write, so that a kill leaves whole lines. It prints how many jobs it
finished.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterable
from typing import Any

from pollwise import Retry, Worker, WorkerRunOptions
from pollwise.queues.base import Queue
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.redis.queue import RedisQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.events import WorkerStarted
from pollwise.runtime.jobs import Claim, Job, Renewal, Settlement

LEASE = 1.0

database, log_path, name = sys.argv[1:]
log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def note(*records: dict[str, Any]) -> None:
    os.write(log, "".join(json.dumps(record) + "\n" for record in records).encode())


def of(claim: Claim, what: str, at: float) -> dict[str, Any]:
    return {"what": what, "job": claim.job.id, "token": claim.token, "by": name, "at": at}


class Logged(Queue):
    async def claim(self, *given: Any, **named: Any) -> list[Claim]:
        claims = await super().claim(*given, **named)
        # Not `until - LEASE`: that time was read before it waited for the lock of the store, and
        # another worker may have found the lapsed lease in the meantime.
        now = time.time()
        note(*({**of(c, "claim", now), "until": c.until} for c in claims))
        return claims

    async def renew(self, claims: Iterable[Claim], *given: Any, **named: Any) -> Renewal:
        batch, now = list(claims), time.time()
        renewal = await super().renew(batch, *given, **named)
        kept = [c for c in batch if c.job.id not in renewal.lost]
        note(*({**of(c, "renew", now), "until": now + LEASE} for c in kept))
        return renewal

    async def settle(self, settlements: Iterable[Settlement]) -> None:
        batch, now = list(settlements), time.time()
        await super().settle(batch)
        note(*(of(s.claim, s.action, now) for s in batch))
        print(sum(s.action == "done" for s in batch), flush=True)


def opened() -> Queue:
    kinds: dict[str, type[Queue]] = {"postgresql": PostgresQueue, "redis": RedisQueue}
    kind = kinds.get(database.partition("://")[0], SqliteQueue)
    options = {"synchronous": "off"} if kind is SqliteQueue else {}
    queue: Queue = type("LoggedQueue", (Logged, kind), {})(database, keep="1d", **options)
    return queue


worker = Worker(opened(), name=name)
worker.events.subscribe(lambda event: print("up", flush=True), WorkerStarted)


@worker.handle("x", retry=Retry.fixed("1s", attempts=None))
async def handler(job: Job) -> None:
    note({"what": "run", "job": job.id, "attempt": job.attempt, "by": name, "at": time.time()})
    await asyncio.sleep(0.01)  # real time: it is killed in the middle of this


asyncio.run(worker.run(WorkerRunOptions(concurrency=4, lease=LEASE, grace="5s")))
