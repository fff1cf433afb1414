"""The code of tests in other processes: `python children.py write|relay PATH SEED`.

A child prints a line for each of its steps, and runs until it is killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys
import time
from pathlib import Path

from pollwise.outbox.records import KeySettlement, NewRecord
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.outbox.writers.put import put

KEYS = 5
#: The lease of a killed relay, in seconds.
LEASE = 0.5


def handled(path: Path, key: str | None, number: int) -> None:
    """The effect of a handler, which stays whatever happens next."""
    log = os.open(path.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(log, f"{key} {number}\n".encode())
    os.close(log)


def write(path: Path, seed: int) -> None:
    """Orders, numbered by customer, each with a record in its transaction."""
    rng = random.Random(seed)
    target = SqliteOutboxStore(path).target()
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    while True:
        connection.execute("BEGIN IMMEDIATE")
        for _ in range(rng.choice((1, 1, 3))):
            customer = f"customer-{rng.randrange(KEYS)}"
            place = "SELECT count(*) FROM orders WHERE customer = ?"
            [(number,)] = connection.execute(place, (customer,))
            connection.execute("INSERT INTO orders VALUES (?, ?)", (customer, number))
            put(target, connection, [NewRecord("order.placed", number, customer)])
        connection.execute(rng.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK")))
        print("step", flush=True)
        time.sleep(rng.choice((0, 0.001, 0.01)))  # real time: let the other processes run


async def relay(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    store = SqliteOutboxStore(path)
    while True:
        claims = await store.claim(f"relay-{os.getpid()}", 2, 3, LEASE)
        ends = []
        for claim in claims:
            done = rng.randrange(len(claim.records) + 1)
            for held in claim.records[:done]:
                handled(path, claim.key, held.record.payload)
            if done == len(claim.records) or rng.random() < 0.7:
                ends.append(KeySettlement(claim, done))
            else:
                ends.append(
                    KeySettlement(claim, done, "retry", rng.choice((0.0, 0.05)), "try again")
                )
        await store.settle(ends)
        print("step", flush=True)
        if not claims:
            await asyncio.sleep(0.005)  # real time: let writers run


if __name__ == "__main__":
    command, place, number = sys.argv[1:]
    if command == "write":
        write(Path(place), int(number))
    else:
        asyncio.run(relay(Path(place), int(number)))
