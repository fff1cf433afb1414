"""A relay that logs what it handles, to be killed: relay.py URL LOG lanes|- NAME."""

from __future__ import annotations

import asyncio
import os
import random
import sys

from pollwise import Retry
from pollwise.outbox import Outbox, OutboxRunOptions
from pollwise.outbox.records import Record
from pollwise.runtime.events import RelayStarted

url, log, lanes, name = sys.argv[1:]
# One write per line, appended: whole lines, in the order of the writes of all processes.
file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
outbox = Outbox(
    url,
    relay=name,
    options=OutboxRunOptions(lease="1s", batch=20, records_per_key=5, concurrency=10),
)


@outbox.handle("*")
async def note(record: Record) -> None:
    os.write(file, f"{record.key} {record.payload} {name}\n".encode())
    await asyncio.sleep(0.002)  # real time: long enough for a kill


if lanes == "lanes":

    @outbox.handle("*", lane="second", retry=Retry.fixed("20ms", attempts=1000))
    async def note_second(record: Record) -> None:
        if random.random() < 0.1:
            raise OSError("the second sink is down")
        os.write(file, f"second/{record.key} {record.payload} {name}\n".encode())


if __name__ == "__main__":
    outbox.events.subscribe(lambda _: print("up", flush=True), RelayStarted)
    asyncio.run(outbox.run())
