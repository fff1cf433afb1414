"""A SQLite file that is removed or replaced while stores have it open."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pollwise.cli.doctor import check_log
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.errors import SchemaError, StoreError, StoreUnavailable
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.outbox.records import NewRecord
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.events import JournalGrew, PollFailed, PollRecovered
from pollwise.runtime.jobs import Job, NewJob
from pollwise.storage.sqlite import file as sqlite_file
from pollwise.storage.sqlite import write_ahead_log
from pollwise.worker import Worker
from tests.support.kit import Seen, options, working

#: Seconds after which what should have happened fails its test.
PATIENCE = 240.0
Call = Callable[[], Awaitable[Any]]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call checks the file."""
    monkeypatch.setattr(sqlite_file, "CHECK_FILE_EVERY", 0.0)


def remove(path: Path, to: Path | None = None) -> None:
    """Remove a database with its log, or move it."""
    for file in path.parent.glob(f"{path.name}*"):
        if to is None:
            file.unlink()
        else:
            file.rename(file.with_name(file.name.replace(path.name, to.name)))


async def opened(kind: str, path: Path) -> tuple[Any, Call]:
    """A store, and a call that reads from it and writes to it."""
    if kind == "queue":
        queue = SqliteQueue(path)
        return queue, lambda: queue.put(NewJob("job"))
    if kind == "outbox":
        outbox = SqliteOutboxStore(path)
        await outbox.migrate()
        return outbox, lambda: outbox.put(NewRecord("e"))
    if kind == "fleet":
        fleet = SqliteFleetStore(path)
        await fleet.migrate()
        return fleet, lambda: fleet.order("pause", ["web"])
    state = SqliteState(path)
    await state.migrate()
    return state, lambda: state.set_drain("0" * 32, True)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", ["queue", "outbox", "fleet", "controller"])
def test_a_removed_file_is_an_error_until_it_is_back(kind: str, tmp_path: Path) -> None:
    path, away = tmp_path / "jobs.db", tmp_path / "away.db"

    async def main() -> None:
        store, call = await opened(kind, path)
        await call()
        remove(path, away)
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match=f"{path} was removed while it was open"):
                await call()
        assert not path.exists(), "no empty file took its place"
        remove(away, path)
        await call()
        await store.close()

    asyncio.run(main())


@pytest.mark.usefixtures("at_once")
def test_calls_that_wait_together_fail_with_the_reason_and_go_on(tmp_path: Path) -> None:
    path, away = tmp_path / "jobs.db", tmp_path / "away.db"

    async def main() -> None:
        async with SqliteQueue(path) as queue:
            await queue.put(NewJob("job"))
            remove(path, away)
            puts = (queue.put(NewJob("job")) for _ in range(10))
            for error in await asyncio.gather(*puts, return_exceptions=True):
                assert isinstance(error, StoreUnavailable), repr(error)
                assert "was removed" in str(error)
            remove(away, path)
            await asyncio.gather(*(queue.put(NewJob("job")) for _ in range(10)))
            assert (await queue.stats()).ready == 11

    asyncio.run(main())


@pytest.mark.usefixtures("at_once")
def test_a_replaced_file_is_reported_once_and_then_used(tmp_path: Path) -> None:
    path, copy = tmp_path / "jobs.db", tmp_path / "copy.db"

    async def main() -> None:
        async with SqliteQueue(copy) as other:
            await other.put([NewJob("job", "restored")] * 3)
        async with SqliteQueue(path) as queue:
            await queue.put(NewJob("job", "old"))
            remove(path)
            shutil.copy(copy, path)
            with pytest.raises(StoreUnavailable, match="was replaced by another file"):
                await queue.stats()
            assert [info.job.payload for info in await queue.jobs()] == ["restored"] * 3
            async with SqliteQueue(path) as another:
                assert (await another.stats()).ready == 3
                await queue.put(NewJob("job"))
                assert (await another.stats()).ready == 4

    asyncio.run(main())


@pytest.mark.usefixtures("at_once")
def test_tables_are_not_made_in_a_strange_file_that_took_the_place(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def main() -> None:
        async with SqliteQueue(path) as queue:
            await queue.put(NewJob("job"))
            remove(path)
            path.touch()
            with pytest.raises(StoreUnavailable, match="was replaced"):
                await queue.stats()
            with pytest.raises(SchemaError, match="holds no queue"):
                await queue.put(NewJob("job"))
            assert path.stat().st_size == 0
            remove(path)
            with pytest.raises(StoreError, match="was removed"):
                await queue.put(NewJob("job"))

    asyncio.run(main())


def test_the_file_is_checked_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[float] = []
    real = sqlite_file._identity

    def identity(path: Path) -> tuple[int, int] | None:
        checks.append(time.monotonic())
        return real(path)

    monkeypatch.setattr(sqlite_file, "_identity", identity)

    async def main() -> None:
        async with SqliteQueue(tmp_path / "jobs.db", synchronous="off") as queue:
            began = time.monotonic()
            for _ in range(300):
                await queue.put(NewJob("job"))
            assert len(checks) <= 2 + (time.monotonic() - began)

    asyncio.run(main())


@pytest.mark.usefixtures("at_once")
def test_a_worker_says_that_its_file_is_gone_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    path, away, seen = tmp_path / "jobs.db", tmp_path / "away.db", Seen()
    ran = asyncio.Event()

    async def happened(kind: type[PollFailed | PollRecovered]) -> Any:
        async with asyncio.timeout(PATIENCE):
            while not seen.of(kind):
                await asyncio.sleep(0.01)  # real time: the store has a thread of its own
        return seen.of(kind)[0]

    async def main() -> None:
        queue = SqliteQueue(path)
        worker = Worker(queue, events=seen.events)

        @worker.handle("job")
        async def run(job: Job) -> None:
            ran.set()

        await queue.stats()
        async with working(worker, options()):
            remove(path, away)
            failed = await happened(PollFailed)
            assert "was removed while it was open" in failed.error
            remove(away, path)
            await happened(PollRecovered)
            await queue.put(NewJob("job"))
            await asyncio.wait_for(ran.wait(), PATIENCE)
        assert await queue.claim("w", 1, "1s") == []
        await queue.close()

    asyncio.run(main())


# The write-ahead log

MIB = 1024 * 1024


@pytest.fixture
def small_logs(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_ahead_log, "LOG_KEPT", MIB)
    monkeypatch.setattr(write_ahead_log, "LOG_REPORTED", 2 * MIB)
    monkeypatch.setattr(sqlite_file.FileConnection, "report_at", 2 * MIB)


@pytest.mark.usefixtures("small_logs")
@pytest.mark.parametrize("kind", ["queue", "outbox"])
def test_a_long_reader_is_reported_and_the_log_is_cut_after_it(kind: str, tmp_path: Path) -> None:
    path, seen = tmp_path / "shop.db", Seen()

    def journal() -> str:
        return check_log(path)[0].level

    async def main() -> None:
        store, _ = await opened(kind, path)
        with closing(sqlite3.connect(path)) as user:
            user.execute("PRAGMA journal_mode = WAL")
            store.hints().report_to(store.name, seen.events)

            async def put() -> None:
                made = NewJob("job", "x" * 400_000), NewRecord("e", "x" * 400_000)
                await store.put(made[kind == "outbox"])

            await put()
            assert journal() == "ok"
            user.execute("BEGIN")
            user.execute("SELECT count(*) FROM sqlite_master").fetchall()
            for _ in range(20):
                await put()
            await asyncio.sleep(0)  # the thread has sent its reports
            first, second = seen.of(JournalGrew)
            assert 2 * MIB <= first.size < 3 * MIB
            assert 2 * first.size <= second.size
            assert first.source == store.name
            assert f"{path}-wal" in first.reason
            assert "fuser" in first.advice
            assert journal() == "note"
            user.rollback()
            for _ in range(3):
                await put()
            assert write_ahead_log.log_size(path) <= MIB
            assert journal() == "ok"
            assert len(seen.of(JournalGrew)) == 2
        await store.close()

    asyncio.run(main())


@pytest.mark.usefixtures("small_logs")
def test_a_large_transaction_is_not_reported(tmp_path: Path) -> None:
    path, seen = tmp_path / "jobs.db", Seen()

    async def main() -> None:
        async with SqliteQueue(path) as queue:
            queue.hints().report_to("jobs", seen.events)
            await queue.put([NewJob("job", "x" * 500_000) for _ in range(20)])
            assert write_ahead_log.log_size(path) > 4 * MIB
            for _ in range(3):
                await queue.put(NewJob("job"))
            assert write_ahead_log.log_size(path) <= MIB
        assert seen.of(JournalGrew) == []

    asyncio.run(main())


def test_a_copy_that_is_used_after_all_is_opened_again(
    tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in a read-only folder may belong to a user who may write there."""
    path = tmp_path / "jobs.db"

    async def main() -> None:
        async with SqliteQueue(path) as queue:
            await queue.put(NewJob("job"))
        monkeypatch.setattr(sqlite_file, "may_create_in", lambda folder: False)
        async with SqliteQueue(path, create=False) as other:
            assert (await other.stats()).ready == 1
            with pytest.raises(StoreError, match="may not write"):
                await other.put(NewJob("job"))
            monkeypatch.undo()
            monkeypatch.setattr(sqlite_file, "CHECK_FILE_EVERY", 0.0)
            async with SqliteQueue(path) as queue:
                await queue.put(NewJob("job"))
                assert (await other.stats()).ready == 2
                await other.put(NewJob("job"))

    asyncio.run(main())
