"""A fleet with alerts, for tests: `python alert_child.py URL FOLDER LOG TARGETS`.

A target is down while FOLDER has a file of its name. Its channel writes each notice as one line of
JSON by one write. It runs until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Unpack

from pollwise.alerts import delivery
from pollwise.alerts.channels.base import Channel, ChannelOptions
from pollwise.alerts.settings import Alerts
from pollwise.alerts.values import Notice
from pollwise.core.breaker import Breaker
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import StoreError
from pollwise.fleet import FailureRules, Fleet, FleetRunOptions
from pollwise.fleet.stores.urls import open_store
from pollwise.fleet.targets import ProbeContext, Target
from pollwise.runtime.events import Events

EVERY = 0.1
LEASE = 1.0


class LogChannel(Channel):
    """Writes notices to a file."""

    def __init__(self, path: str, **options: Unpack[ChannelOptions]) -> None:
        super().__init__("log", options)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    async def _send(self, notice: Notice) -> None:
        line = {"id": notice.id, "alert": notice.alert, "target": notice.target}
        os.write(self._file, (json.dumps({**line, "event": notice.event}) + "\n").encode())


async def main(url: str, folder: str, log: str, count: str) -> None:
    async def probe(target: Target, context: ProbeContext) -> str:
        if (Path(folder) / target.name).exists():
            raise ConnectionError("no answer")
        return "up"

    delivery.LEASE = LEASE  # what a killed relay held is free again after this time
    store = open_store(url)
    rules = FailureRules(confirmations=0, breaker=Breaker(1, EVERY, EVERY), dead_after=1_000_000)
    options = FleetRunOptions(strategy=Fixed(EVERY), rules=rules, lease=LEASE)
    alerts = Alerts([LogChannel(log)], to=["log"])
    fleet = Fleet(options, store=store, events=Events(quiet=True), alerts=alerts)
    fleet.add(*(Target(f"t{n}", probe, alerts=["down"]) for n in range(int(count))))
    await fleet.run()


if __name__ == "__main__":
    while True:
        try:
            asyncio.run(main(*sys.argv[1:]))
        except StoreError:  # the killed process before it still counts as running
            continue
        break
