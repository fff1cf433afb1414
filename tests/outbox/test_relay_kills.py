"""Relays killed by `kill -9` while writers write: nothing lost, nothing out of order in a key."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pollwise.outbox import NewRecord, Outbox, open_store
from tests.support.forked import Forked
from tests.support.servers import Postgres

KEYS = 40
RECORDS = 1000
WRITERS = 3
RELAYS = 3
KILLS = 5
DEADLINE = 240.0
CHILD = Path(__file__).parent / "children" / "relay.py"
_names = itertools.count(1)


class Writers:
    """Threads that put records in transactions of their own; some are rolled back, some linger.

    The writers of a key take turns under a lock, as by the lock on a row of an order: `committed`
    has the numbers of each key in the order of their commits.
    """

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.committed: dict[str, list[int]] = {f"key-{n}": [] for n in range(KEYS)}
        self.failed: list[BaseException] = []
        self._locks = {key: threading.Lock() for key in self.committed}
        self._numbers = itertools.count()
        self._left = iter(range(RECORDS))
        self._seed = seed
        self.threads = [threading.Thread(target=self._write, args=(n,)) for n in range(WRITERS)]

    def _connect(self) -> Any:
        if self.url.startswith("sqlite"):
            return sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=60)
        return psycopg.connect(self.url)

    def _write(self, number: int) -> None:
        try:
            rng = random.Random(self._seed + number)
            outbox, connection = Outbox(self.url), self._connect()
            for _ in self._left:
                self._put(rng, outbox, connection)
            connection.close()
        except BaseException as error:
            self.failed.append(error)
            raise

    def _put(self, rng: random.Random, outbox: Outbox, connection: Any) -> None:
        keys = sorted(rng.sample(sorted(self.committed), rng.randint(1, 3)))
        for key in keys:  # in one order, or two writers would wait for each other
            self._locks[key].acquire()
        try:
            connection.execute("INSERT INTO orders VALUES (1)")
            put = {key: next(self._numbers) for key in keys}
            outbox.put(connection, [NewRecord("k", n, key) for key, n in put.items()])
            if rng.random() < 0.02:
                time.sleep(0.05)  # real time: a transaction stays open while others commit
            if rng.random() < 0.1:
                connection.rollback()
                return
            connection.commit()
            for key, n in put.items():
                self.committed[key].append(n)
        finally:
            for key in keys:
                self._locks[key].release()


class Crowd:
    """Relay processes; whoever is killed is replaced."""

    def __init__(self, url: str, log: Path, laned: bool) -> None:
        self._words = [CHILD, url, log, "lanes" if laned else "-"]
        self._count = itertools.count(1)
        self.alive: list[Forked] = []

    def start(self) -> None:
        process = Forked([*self._words, f"r{next(self._count)}"], err=False)
        assert process.stdout.readline() == "up\n"
        self.alive.append(process)

    def kill(self, rng: random.Random) -> None:
        victim = self.alive.pop(rng.randrange(len(self.alive)))
        victim.kill()
        assert victim.wait(10) == -signal.SIGKILL
        victim.stdout.close()
        self.start()

    def end(self) -> list[int]:
        for process in self.alive:
            process.terminate()
        codes = [process.wait(40) for process in self.alive]
        for process in self.alive:
            process.stdout.close()
        self.alive.clear()
        return codes


def handled(log: Path) -> dict[str, list[int]]:
    """The numbers of each key as they came, repeats included."""
    found: dict[str, list[int]] = {}
    for line in log.read_text().splitlines() if log.exists() else ():
        key, number, _ = line.split()
        found.setdefault(key, []).append(int(number))
    return found


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        connection = sqlite3.connect(tmp_path / "shop.db")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE orders (id INTEGER)")
        connection.close()
        made = f"sqlite:///{tmp_path}/shop.db"
    else:
        server: Postgres = request.getfixturevalue("postgres")
        made = server.create_database(f"relay_kills_{next(_names)}")
        server.execute("CREATE TABLE orders (id int)", dbname=made.rpartition("/")[2])

    async def migrate() -> None:
        async with open_store(made) as store:
            await store.migrate()

    asyncio.run(migrate())
    return made


async def left(url: str) -> int:
    async with open_store(url) as store:
        stats = await store.stats()
    assert stats.dead == 0
    return stats.ready + stats.leased + stats.waiting


@pytest.mark.parametrize("laned", [pytest.param(False, marks=pytest.mark.soak), True])
def test_kills_while_writers_write(url: str, tmp_path: Path, laned: bool) -> None:
    """With lanes, one of which fails now and then, each lane gets everything in order."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown when the test fails
    rng = random.Random(seed)
    log = tmp_path / "log"
    writers, crowd = Writers(url, seed), Crowd(url, log, laned)
    deadline = time.monotonic() + DEADLINE
    try:
        for _ in range(RELAYS):
            crowd.start()
        for thread in writers.threads:
            thread.start()
        for _ in range(KILLS):
            time.sleep(rng.random() * 0.6)  # real time: the relays are processes
            crowd.kill(rng)
        for thread in writers.threads:
            thread.join()
        assert not writers.failed
        while asyncio.run(left(url)):
            assert time.monotonic() < deadline, f"seed {seed}: the relays do not get on"
            time.sleep(0.05)  # real time: the relays are processes
        assert crowd.end() == [0] * RELAYS
    finally:
        for process in crowd.alive:
            process.kill()
            process.wait(10)
    came = handled(log)
    repeats = 0
    for key, numbers in writers.committed.items():
        for name in (key, f"second/{key}") if laned else (key,):
            first_times = list(dict.fromkeys(came.get(name, [])))
            assert first_times == numbers, f"seed {seed}: {name}"
            repeats += len(came.get(name, [])) - len(numbers)
    print(f"{sum(map(len, writers.committed.values()))} records, {repeats} came again")
