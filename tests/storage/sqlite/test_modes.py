"""The permissions of the files of every store on SQLite."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from pollwise import NewJob
from pollwise.controller import Controller
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.queues.sqlite import SqliteQueue


async def queue(path: Path) -> dict[str, int]:
    async with SqliteQueue(path) as opened:
        await opened.put([NewJob("a", 1)])
        return modes(path)


async def outbox(path: Path) -> dict[str, int]:
    async with SqliteOutboxStore(path) as store:
        await store.migrate()
        await store.stats()
        return modes(path)


async def fleet(path: Path) -> dict[str, int]:
    store = SqliteFleetStore(path)
    try:
        await store.load()
        return modes(path)
    finally:
        await store.close()


async def controller(path: Path) -> dict[str, int]:
    async with Controller(f"sqlite:///{path}") as opened:
        await opened.tokens.make("admin", "test")
        return modes(path)


Use = Callable[[Path], Coroutine[Any, Any, dict[str, int]]]


def modes(path: Path) -> dict[str, int]:
    """The permissions of a database and of the files beside it."""
    return {
        each.name.removeprefix(path.name): stat.S_IMODE(each.stat().st_mode)
        for each in path.parent.iterdir()
        if each.is_file()
    }


@pytest.fixture(params=[0o000, 0o022, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("use", [queue, outbox, fleet, controller])
def test_a_new_database_is_its_users_alone(tmp_path: Path, umask: int, use: Use) -> None:
    folder = tmp_path / "store"
    os.umask(0o077)
    folder.mkdir()
    os.umask(umask)
    found = asyncio.run(use(folder / "jobs.db"))
    beside = set() if use is outbox else {"-wal", "-shm"}  # which leaves the journal as it is
    assert {"", *beside} <= found.keys()
    assert set(found.values()) == {0o600}, found


def test_a_database_that_others_may_use_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch()
    path.chmod(0o660)
    found = asyncio.run(queue(path))
    assert set(found.values()) == {0o660}, found
