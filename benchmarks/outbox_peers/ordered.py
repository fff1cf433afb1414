"""Writers and relays for the section `order` of benchmarks/outbox.py: one process each.

    ordered.py setup URL KEYS            create the counters
    ordered.py write URL SHARE SEED      commit about SHARE records, print how many
    ordered.py relay URL FILE            append a line to FILE for every record that is handled

Each key has a counter in a table. A transaction of a writer locks a few counters, increments them,
and puts a record for each step. So the order of a key is the order of its numbers, 1, 2, 3, …
without a gap, whichever writer put them. Some transactions stay open for a while, some roll back.

A relay writes its line with one system call before the handler returns: `kill -9` cannot undo
it, and the lines of all relays are in the order in which they were written.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

import psycopg  # noqa: E402

from benchmarks.queue_peers.protocol import say  # noqa: E402
from pollwise import NewRecord, Outbox, OutboxRunOptions, Record  # noqa: E402

#: Connections of one writer; keys of a transaction, and records of each.
CONNECTIONS, KEYS, STEPS = 4, 3, 5
#: The share of transactions that stays open for up to HELD seconds, and that is rolled back.
OPEN, HELD, UNDONE = 0.03, 0.1, 0.03
LEASE = "2s"


async def setup(url: str, keys: str) -> None:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute("CREATE TABLE counters (key text PRIMARY KEY, n int NOT NULL)")
        await connection.execute(
            "INSERT INTO counters SELECT 'key-' || k, 0 FROM generate_series(1, %s) AS k",
            [int(keys)],
        )
    say(done=True)


async def write(url: str, share: str, seed: str) -> None:
    outbox = Outbox(url)
    rng = random.Random(int(seed))
    written = 0

    async def one() -> None:
        nonlocal written
        async with await psycopg.AsyncConnection.connect(url) as connection:
            rows = await connection.execute("SELECT key FROM counters")
            names = [key for (key,) in await rows.fetchall()]
            await connection.commit()
            while written < int(share):
                chosen = rng.sample(names, KEYS)
                await connection.execute(
                    "SELECT 1 FROM counters WHERE key = ANY (%s) ORDER BY key FOR UPDATE", [chosen]
                )
                found = await connection.execute(
                    "UPDATE counters SET n = n + %s WHERE key = ANY (%s) RETURNING key, n",
                    [STEPS, chosen],
                )
                records = [
                    NewRecord("step", [key, last - STEPS + 1 + step], key)
                    for key, last in await found.fetchall()
                    for step in range(STEPS)
                ]
                await outbox.put(connection, records)
                if rng.random() < OPEN:
                    await asyncio.sleep(rng.uniform(0, HELD))
                if rng.random() < UNDONE:
                    await connection.rollback()
                else:
                    await connection.commit()
                    written += len(records)

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))
    say(written=written)


def relay(url: str, file: str) -> None:
    outbox = Outbox(url)
    lines = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    me = os.getpid()

    @outbox.handle("*")
    async def note(record: Record) -> None:
        key, number = record.payload
        os.write(lines, b"%d %s %d\n" % (me, key.encode(), number))

    asyncio.run(outbox.run(OutboxRunOptions(lease=LEASE)))


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "setup":
        asyncio.run(setup(*arguments))
    elif command == "write":
        asyncio.run(write(*arguments))
    else:
        relay(*arguments)
