"""A node of a shared fleet, for tests: `python node_child.py DSN FLEET NODE LOG TARGETS LEASE`.

It logs the begin and the end of each poll, one line of JSON in one write, with the clock that all
processes of the machine share. It runs until SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from pollwise.core.strategies.fixed import Fixed
from pollwise.fleet import Fleet, FleetRunOptions
from pollwise.fleet.stores.postgres.store import PostgresFleetStore
from pollwise.fleet.targets import ProbeContext, Reading, Target
from pollwise.runtime.events import Events

EVERY = 0.2
TAKES = 0.03


def names(count: int) -> list[str]:
    return [f"t{number:03}" for number in range(count)]


async def main(dsn: str, fleet_name: str, node: str, log: str, count: str, lease: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(**what: Any) -> None:
        os.write(file, (json.dumps({"node": node, "at": time.monotonic(), **what}) + "\n").encode())

    async def probe(target: Target, context: ProbeContext) -> Reading:
        note(what="begin", target=target.name)
        try:
            await asyncio.sleep(TAKES)  # real time: a poll takes some, and others run meanwhile
        finally:
            note(what="end", target=target.name)
        return Reading(node, summary=f"by {node}")

    store = PostgresFleetStore(dsn, fleet_name)
    options = FleetRunOptions(strategy=Fixed(EVERY), concurrency=200, lease=float(lease))
    fleet = Fleet(options, store=store, node=node, events=Events(quiet=True))
    fleet.add(*(Target(name, probe, timeout="1s") for name in names(int(count))))
    note(what="started")
    try:
        await fleet.run()
    finally:
        await store.close()
        note(what="stopped")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
