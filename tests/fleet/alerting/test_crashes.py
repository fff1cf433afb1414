"""A fleet that is killed again and again: each outage is told once, and so is its end."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pollwise.alerts.values import AlertFilter
from pollwise.fleet.stores.base import FleetStore
from pollwise.fleet.stores.postgres.store import PostgresFleetStore
from pollwise.fleet.stores.urls import open_store
from tests.fleet.alerting import alert_child
from tests.support.daemons import wait_until
from tests.support.forked import Forked
from tests.support.servers import Postgres

TARGETS = 5
OUTAGES = 2


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/fleet.db"
    server: Postgres = request.getfixturevalue("postgres")
    name = f"crash-{tmp_path.name}"

    async def migrate() -> None:
        store = PostgresFleetStore(server.dsn(), name)
        await store.migrate()
        await store.close()

    asyncio.run(migrate())
    return server.dsn(fleet=name)


class Killed:
    """A fleet that is killed at random moments and started again at once."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder, self.log = url, folder, folder / "log.jsonl"
        self.down = folder / "down"
        self.down.mkdir()
        self.random = Random(7)
        self.kills = 0
        self.process = self._started()

    def _started(self) -> Forked:
        words = [alert_child.__file__, self.url, self.down, self.log, TARGETS]
        return Forked(words, out=False, err=False)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self.kills += 1
        self.process = self._started()

    def told(self) -> list[dict[str, Any]]:
        """The notices, each once: it may be sent twice by a crash, with the same id."""
        if not self.log.exists():
            return []
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return list({each["id"]: each for each in lines}.values())

    def until_told(self, event: str, count: int) -> None:
        """Wait for notices of all targets, killing the fleet now and then."""

        def all_told() -> bool:
            return len([each for each in self.told() if each["event"] == event]) >= count * TARGETS

        for _ in range(2):
            time.sleep(self.random.uniform(0.2, 0.9))  # real time: a moment at which it is killed
            self.kill()
        wait_until(all_told, f"{count} × {event} of each target", within=60)


@pytest.fixture
def killed(url: str, tmp_path: Path) -> Iterator[Killed]:
    killed = Killed(url, tmp_path)
    yield killed
    killed.process.kill()
    killed.process.wait(10)


def test_each_outage_is_told_once_whenever_it_is_killed(killed: Killed) -> None:
    for outage in range(1, OUTAGES + 1):
        for number in range(TARGETS):
            (killed.down / f"t{number}").touch()
        killed.until_told("opened", outage)
        for number in range(TARGETS):
            (killed.down / f"t{number}").unlink()
        killed.until_told("closed", outage)
    by_target: dict[str, list[str]] = defaultdict(list)
    for each in killed.told():
        by_target[each["target"]].append(each["event"])
    assert len(by_target) == TARGETS
    for events in by_target.values():
        assert events == ["opened", "closed"] * OUTAGES
    assert killed.kills == 4 * OUTAGES
    assert _read(killed.url, _closed) == TARGETS * OUTAGES


async def _closed(store: FleetStore) -> int:
    assert not (await store.alerts(AlertFilter("open"))).alerts
    return len((await store.alerts(AlertFilter("closed"))).alerts)


def _read(url: str, work: Callable[[FleetStore], Any]) -> Any:
    async def main() -> Any:
        store = open_store(url)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(main())
