"""Other processes of the stress tests of Postgres: `python children.py DSN …`.

Writers put jobs of a few keys, in every possible way; workers claim and settle them at random.
Everything is logged, one line of JSON in one write, so that a kill leaves whole lines.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from itertools import islice
from typing import Any

import psycopg

from pollwise.errors import LeaseLost, StoreUnavailable
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.runtime.jobs import Claim, NewJob, Progress, Settlement

LEASE = 1.5


class Log:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, *records: dict[str, Any]) -> None:
        os.write(self._file, "".join(json.dumps(each) + "\n" for each in records).encode())


async def write(dsn: str, name: str, log: Log, rng: random.Random, keys: int, jobs: int) -> None:
    """Put `jobs` jobs; those of each key in order, as far as this writer is concerned."""
    async with PostgresQueue(dsn, "stress", connections=1) as queue:
        numbers = iter(range(jobs))
        while batch := list(islice(numbers, rng.choice((1, 1, 1, 3, 10)))):
            new = [
                NewJob(
                    rng.choice("ab"),
                    [name, number],
                    key=None if rng.random() < 0.1 else f"k{rng.randrange(keys)}",
                    priority=rng.choice((0, 0, 0, 5)),
                    delay=rng.choice((0, 0, 0, 0, 0.02)),
                    unique=f"{name}-{number}" if rng.random() < 0.2 else None,
                )
                for number in batch
            ]
            way = rng.random()
            if way < 0.6:
                await queue.put(new)
            else:
                await put_in_transaction(queue, dsn, new, rng, plain=way < 0.7)
            log.note(*({"what": "put", "job": job.payload, "key": job.key} for job in new))


async def put_in_transaction(
    queue: PostgresQueue, dsn: str, jobs: list[NewJob], rng: random.Random, *, plain: bool
) -> None:
    """Put in a transaction that stays open for a moment; others are rolled back before it."""
    ghosts = [NewJob("a", ["ghost", 0], key=job.key) for job in jobs[:2]]
    if plain:
        with psycopg.connect(dsn) as connection:
            await queue.put(ghosts, connection=connection)
            connection.rollback()
            await queue.put(jobs, connection=connection)
            await asyncio.sleep(rng.random() * 0.02)  # real time: others work meanwhile
            connection.commit()
        return
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        await queue.put(ghosts, connection=conn)
        await conn.rollback()
        await queue.put(jobs, connection=conn)
        await asyncio.sleep(rng.random() * 0.02)  # real time: others work meanwhile
        await conn.commit()


async def work(dsn: str, name: str, log: Log, rng: random.Random, hands: int) -> None:
    """Claim, run and settle until stopped, in several tasks."""
    async with PostgresQueue(dsn, "stress", connections=hands) as queue:
        await asyncio.gather(*(hand(queue, f"{name}.{n}", log, rng) for n in range(hands)))


async def hand(queue: PostgresQueue, name: str, log: Log, rng: random.Random) -> None:
    while True:
        kinds = rng.choice((None, ["a"], ["b"], ["a", "b"]))
        try:
            claims = await queue.claim(name, rng.choice((1, 3, 20)), LEASE, kinds=kinds)
            began = time.monotonic()
            log.note(*(of(claim, "begin", name, began) for claim in claims))
            if not claims:
                await asyncio.sleep(0.01)  # real time: the writers are at work
            if claims and rng.random() < 0.2:
                await queue.renew(claims, LEASE, {claims[0].job.id: Progress(0.5)})
            ways = [settlement(claim, rng) for claim in claims]
            log.note(*(of(s.claim, s.action, name, time.monotonic()) for s in ways))
            await queue.settle(ways)
            if rng.random() < 0.05:
                await queue.retry()
            if rng.random() < 0.05:
                some = await (
                    queue.jobs(limit=20) if rng.random() < 0.5 else queue.arrivals(None, 20)
                )
                chosen = rng.sample(some, min(len(some), 4))
                log.note(*({"what": "cancel", "job": info.job.payload} for info in chosen))
                await queue.cancel([info.job.id for info in chosen])
        except LeaseLost as error:
            log.note({"what": "lost", "ids": error.lost, "by": name, "at": time.monotonic()})
        except StoreUnavailable as error:
            log.note({"what": "unavailable", "error": str(error), "by": name})


def settlement(claim: Claim, rng: random.Random) -> Settlement:
    chance = rng.random()
    if chance < 0.85:
        return Settlement.done(claim)
    if chance < 0.93:
        return Settlement.retry(claim, rng.choice((0, 0.02)), "again")
    if chance < 0.97:
        return Settlement.give_back(claim)
    return Settlement.dead(claim, "broken")


def of(claim: Claim, what: str, name: str, at: float) -> dict[str, Any]:
    return {
        "what": what, "job": claim.job.payload, "id": claim.job.id, "key": claim.job.key,
        "token": claim.token, "by": name, "at": at,
    }  # fmt: skip


if __name__ == "__main__":
    role, dsn, log_path, name, seed, *numbers = sys.argv[1:]
    chosen = write if role == "write" else work
    asyncio.run(chosen(dsn, name, Log(log_path), random.Random(seed), *map(int, numbers)))
