"""Several processes on one SQLite file: races, hints, and users without rights."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pollwise.queues.base import Queue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import NewJob
from tests.queues.sqlite.children import PATIENCE, Child

Start = Callable[..., Child]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts children, and sees to it that none outlives the test."""
    children: list[Child] = []

    def begin(command: str, *args: object) -> Child:
        children.append(Child(command, *args))
        return children[-1]

    yield begin
    for child in children:
        child.kill()


def together(children: list[Child]) -> list[list[Any]]:
    """Let children begin at the same time, and collect their answers."""
    for child in children:
        child.wait_ready()
    for child in children:
        child.go()
    return [child.answers() for child in children]


def test_processes_share_the_jobs(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "jobs.db"
    children = [start("work", path, f"w{n}") for n in range(4)]

    async def prepare() -> list[str]:
        async with SqliteQueue(path, synchronous="off") as queue:
            plain = [NewJob(f"kind{n % 3}", n, priority=n % 2) for n in range(1600)]
            keyed = [NewJob("keyed", n, key=f"key{n % 20}") for n in range(400)]
            return await queue.put(plain + keyed)

    put = asyncio.run(prepare())
    shares = together(children)
    held = [entry for share in shares for entry in share]
    ids = [job_id for job_id, *_ in held]
    twice = {job_id for job_id in ids if ids.count(job_id) > 1} if len(ids) != len(put) else set()
    assert not twice, f"claimed more than once: {sorted(twice)}"
    assert sorted(ids) == sorted(put), "claimed by all processes together: each job, once"
    assert sum(bool(share) for share in shares) > 1, "only one process got anything: no race"

    by_key: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for job_id, _, key, begun, ended in held:
        if key is not None:
            by_key[key].append((begun, ended, int(job_id)))
    for key, runs in by_key.items():
        runs.sort()
        for (_, ended, before), (begun, _, after) in itertools.pairwise(runs):
            assert ended <= begun, f"jobs {before} and {after} of {key} were held at the same time"
            assert before < after, f"job {after} of {key} ran before job {before}"


def test_processes_open_a_new_file_together(tmp_path: Path, start: Start) -> None:
    paths = [tmp_path / f"{n}.db" for n in range(10)]
    children = [start("open_each", *paths) for _ in range(4)]
    for child in children:
        child.wait_ready()
    for _ in range(len(paths) + 1):
        for child in children:
            child.go()
    answers = [child.answers() for child in children]
    assert answers == [["ok"] * len(paths)] * len(children)

    async def count(path: Path) -> int:
        async with SqliteQueue(path) as queue:
            return (await queue.stats()).ready

    counts = [asyncio.run(count(path)) for path in paths]
    assert counts == [len(children)] * len(paths), "each process put one job into each file"


async def pause(queue: Queue, during: Callable[[], None]) -> bool:
    """Pause as a poller does, while something happens elsewhere; say whether a hint came."""
    hint, hints = Hint(), queue.hints()
    hints.join(hint)
    hints.asleep(hint)
    during()
    try:
        return await Clock().sleep(PATIENCE, hint)
    finally:
        hints.leave(hint)


@pytest.mark.parametrize("existing", [False, True], ids=["first ever", "later"])
def test_a_put_in_another_process_ends_a_pause(
    tmp_path: Path, start: Start, existing: bool
) -> None:
    path = tmp_path / "jobs.db"
    child = start("put", path, "from afar")

    async def main() -> None:
        async with SqliteQueue(path, watch="10ms") as queue:
            if existing:
                await queue.put(NewJob("job", "from here"))
            await queue.claim("w", 10, 60)
            child.wait_ready()
            assert await pause(queue, child.go), "the pause lasted to its end: no hint came"
            [claim] = await queue.claim("w", 10, 60)
            assert claim.job.payload == "from afar"

    asyncio.run(main())
    assert len(child.answers()) == 1


# A user without rights. Root may do everything, so a child gives its rights up.


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others can reach; pytest's own are private."""
    path = Path(tempfile.mkdtemp(prefix="pollwise-test-"))
    path.chmod(0o755)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


async def fill(path: Path) -> bytes:
    async with SqliteQueue(path) as queue:
        await queue.put(NewJob("job", "kept"))
    return path.read_bytes()


def test_a_file_one_may_not_write(folder: Path, start: Start) -> None:
    path = folder / "jobs.db"
    before = asyncio.run(fill(path))
    path.chmod(0o444)
    folder.chmod(0o555)
    child = start("as_nobody", path, "put")
    [[(name, message)]] = together([child])
    assert name == "StoreError", message
    assert str(path) in message
    assert "may write" in message or "may not write" in message, message
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", [0o555, 0o777], ids=["folder too", "file alone"])
def test_a_read_only_copy_can_be_looked_at(folder: Path, start: Start, mode: int) -> None:
    path = folder / "jobs.db"
    before = asyncio.run(fill(path))
    (folder / "jobs.db-hint").unlink()
    path.chmod(0o444)
    folder.chmod(mode)
    calls = ("stats", "stats_by_kind", "jobs", "names", "paused", "workers")
    child = start("as_nobody", path, *calls, "put")
    [[*answers, (name, message)]] = together([child])
    assert answers == ["ok"] * len(calls)
    assert (name, "may not write" in message) == ("StoreError", True), message
    assert path.read_bytes() == before


def test_a_copy_with_a_log_in_a_read_only_folder_says_what_to_do(
    folder: Path, start: Start
) -> None:
    """SQLite cannot read the log there, and without the log what was put last would be missing."""
    path = folder / "jobs.db"
    asyncio.run(fill(path))
    with closing(sqlite3.connect(path)) as user:
        user.execute("UPDATE pollwise_jobs SET priority = 1")
        user.commit()
        log = (folder / "jobs.db-wal").read_bytes()
    (folder / "jobs.db-wal").write_bytes(log)
    path.chmod(0o444)
    folder.chmod(0o555)
    child = start("as_nobody", path, "stats")
    [[(name, message)]] = together([child])
    assert name == "StoreError"
    assert "copy it and jobs.db-wal into a folder of your own" in message


def test_a_folder_one_may_not_write(folder: Path, start: Start) -> None:
    path = folder / "jobs.db"
    folder.chmod(0o555)
    child = start("as_nobody", path, "put")
    [[(name, message)]] = together([child])
    assert name == "StoreError", message
    assert "may write" in message, message
    assert not path.exists()


def test_a_folder_one_may_not_enter(folder: Path, start: Start) -> None:
    path = folder / "jobs.db"
    asyncio.run(fill(path))
    folder.chmod(0o000)
    child = start("as_nobody", path, "put", "stats", "open")
    [answers] = together([child])
    for name, message in answers:
        assert name == "StoreError", message
        assert "permission" in message.lower() or "may write" in message, message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play two users")
def test_a_put_by_another_user_ends_a_pause(folder: Path, start: Start) -> None:
    path = folder / "jobs.db"
    folder.chmod(0o777)
    child = start("as_nobody", path, "put")

    async def main() -> None:
        async with SqliteQueue(path, watch="10ms") as queue:
            await queue.stats()
            for file in folder.iterdir():
                file.chmod(0o666)
            await queue.put(NewJob("job", "from here"))
            await queue.claim("w", 10, 60)
            child.wait_ready()
            assert await pause(queue, child.go), "the pause lasted to its end: no hint came"
            [claim] = await queue.claim("w", 10, 60)
            assert claim.job.payload == "from nobody"

    asyncio.run(main())
    assert child.answers() == ["ok"]
