"""An outbox on SQLite loses nothing and keeps its order, whatever fails and whoever is killed."""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pollwise.errors import StoreError
from pollwise.outbox.records import KEY_ACTIONS, KeySettlement, NewRecord
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.runtime.clock import VirtualClock
from tests.outbox.stores.sqlite.children import handled, relay
from tests.support.forked import Forked

CHILDREN = Path(relay.__code__.co_filename)


def check_order(log: list[tuple[str, int]], orders: dict[str, int]) -> None:
    """Each order was handled, and none before the one before it was."""
    reached: dict[str, int] = defaultdict(int)
    for key, number in log:
        assert number <= reached[key], f"{number} of {key} came before {reached[key]}"
        reached[key] = max(reached[key], number + 1)
    assert reached == orders


# Each statement fails once.


class Flaky:
    """A connection whose nth statement fails: before it is run, or after."""

    def __init__(self, connection: sqlite3.Connection, at: int, *, after: bool) -> None:
        self._connection = connection
        self._left = at
        self._after = after

    def execute(self, *arguments: Any) -> Any:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise sqlite3.OperationalError("disk I/O error")
        answer = self._connection.execute(*arguments)
        if self._left == 0:
            answer.close()  # else it would stand in the way of the next transaction
            raise sqlite3.OperationalError("disk I/O error")
        return answer

    @property
    def failed(self) -> bool:
        return self._left <= 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


async def exercise(path: Path, clock: VirtualClock, at: int, *, after: bool) -> bool:
    """Work all off with a failure at the nth statement; True if it came to that."""
    store = SqliteOutboxStore(path, clock=clock, watch=0)
    await store.migrate()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    keys = ["a", "b", "c"]
    await store.put([NewRecord("e", number, key) for number in range(3) for key in keys])
    flaky = Flaky(store._calls.connect(), at, after=after)
    store._calls.connection = flaky  # type: ignore[assignment]
    log: list[tuple[str, int]] = []
    rng = random.Random(1)
    left = True
    while left:
        try:
            claims = await store.claim("r", 2, 2, "10s")
            ends = []
            for claim in claims:
                done = rng.randrange(len(claim.records) + 1)
                log += [(str(claim.key), held.record.payload) for held in claim.records[:done]]
                action = "give_back" if done == len(claim.records) else rng.choice(KEY_ACTIONS)
                ends.append(KeySettlement(claim, done, action, error="no"))
            await store.settle(ends)
            await store.retry()
            stats = await store.stats()
            left = stats.oldest_age is not None or stats.dead > 0
        except StoreError:
            assert flaky.failed, "only what was made to fail may fail"
        await clock.sleep(11)
        assert clock.now() < 10_000, "it is never worked off"
    await store.close()
    check_order(log, dict.fromkeys(keys, 3))
    return flaky.failed


@pytest.mark.parametrize("after", [False, True], ids=["before it is run", "after it"])
def test_each_statement_fails_once(tmp_path: Path, after: bool) -> None:
    # Each of the first; of the others, which are of the same kinds, every eleventh.
    for at in itertools.chain(range(1, 60), itertools.count(60, 11)):
        clock = VirtualClock()
        if not clock.run(exercise(tmp_path / "shop.db", clock, at, after=after)):
            assert at > 100, "too few statements for a test"
            return


# Processes are killed.


class Child:
    def __init__(self, command: str, path: Path, seed: int) -> None:
        self.command = command
        self._process = Forked([CHILDREN, command, path, seed], err=False)

    def steps(self, count: int) -> None:
        for _ in range(count):
            assert self._process.stdout.readline() == "step\n", "the child failed"

    def kill(self) -> None:
        self._process.close()


def read_log(path: Path) -> list[tuple[str, int]]:
    lines = [line.split() for line in path.with_suffix(".log").read_text().splitlines()]
    return [(key, int(number)) for key, number in lines]


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_whoever_is_killed_nothing_is_lost_and_order_is_kept(tmp_path: Path, journal: str) -> None:
    survive_kills(tmp_path, journal, 6)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_hundred_kills(tmp_path: Path) -> None:
    survive_kills(tmp_path, "wal", 100)


def survive_kills(tmp_path: Path, journal: str, kills: int) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    path = tmp_path / "shop.db"

    async def prepare() -> None:
        async with SqliteOutboxStore(path) as store:
            await store.migrate()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA journal_mode = {journal}")
            connection.execute("CREATE TABLE orders (customer TEXT, number INTEGER)")

    async def work_off() -> None:
        """What the killed held is left to their leases, and then handled here."""
        async with SqliteOutboxStore(path) as store:
            while (await store.stats()).oldest_age is not None:
                late = store.clock.epoch() + 3600
                claims, *_ = await store._call(
                    store._calls.claim, "", "last", 100, 1000, 60.0, late
                )
                for claim in claims:
                    for held in claim.records:
                        handled(path, claim.key, held.record.payload)
                assert await store.settle([KeySettlement(c, len(c.records)) for c in claims]) == []

    asyncio.run(prepare())
    commands = ["write", "write", "relay", "relay", "relay"]
    children = [Child(command, path, rng.randrange(10**6)) for command in commands]
    try:
        for child in children:
            child.steps(1)
        for _ in range(kills):
            place = rng.randrange(len(children))
            children[place].steps(rng.randrange(1, 20))
            children[place].kill()
            children[place] = Child(commands[place], path, rng.randrange(10**6))
            children[place].steps(1)
    finally:
        for child in children:
            child.kill()
    asyncio.run(work_off())
    with closing(sqlite3.connect(path)) as connection:
        counts = "SELECT customer, count(*) FROM orders GROUP BY customer"
        orders = dict(connection.execute(counts).fetchall())
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT count(*) FROM pollwise_outbox").fetchall() == [(0,)]
        assert connection.execute("SELECT count(*) FROM pollwise_outbox_keys").fetchall() == [(0,)]
    assert sum(orders.values()) > 20
    check_order(read_log(path), orders)
