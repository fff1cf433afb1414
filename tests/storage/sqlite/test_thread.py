"""The thread of a SQLite file: calls that wait together are committed once, and answered then."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pollwise.errors import StoreError, StoreUnavailable
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.jobs import NewJob
from pollwise.storage.sqlite import thread as thread_module
from pollwise.storage.sqlite.file import FileBusy, SqliteFile, transaction
from pollwise.storage.sqlite.thread import SqliteThread

PATIENCE = 240.0


class Notes(SqliteFile):
    """Notes in a table; the table refers to itself only when it is committed."""

    package = "pollwise.queues.sqlite"
    version_table = "pollwise_schema"
    holds = "notes"

    def __init__(self, path: Path, synchronous: str = "off") -> None:
        super().__init__(path, synchronous=synchronous, create=True)

    def begin(self) -> None:
        connection = self.connect()
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS notes (n INTEGER PRIMARY KEY, text TEXT UNIQUE, "
            "other INTEGER REFERENCES notes (n) DEFERRABLE INITIALLY DEFERRED)"
        )

    def add(self, text: str, other: int | None = None, twice: str = "ABORT") -> int:
        with transaction(self.connect()):
            row = self.connect().execute(
                f"INSERT OR {twice} INTO notes (text, other) VALUES (?, ?) RETURNING n",
                (text, other),
            )
            return int(row.fetchone()[0])

    def add_outside(self, text: str) -> None:
        """A write that is not in `transaction()`."""
        self.connect().execute("INSERT INTO notes (text) VALUES (?)", (text,))

    def add_then_fail(self, text: str) -> None:
        with transaction(self.connect()):
            self.add(text)
            raise ValueError(text)

    def read(self) -> list[str]:
        return [text for (text,) in self.connect().execute("SELECT text FROM notes ORDER BY n")]


class Opened:
    """A thread with notes, and what its connection was asked to do."""

    def __init__(self, path: Path) -> None:
        self.notes = Notes(path)
        self.thread = SqliteThread(self.notes, name="notes", store=str(path))
        self.call = self.thread.call
        self.statements: list[str] = []

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """The calls made inside wait, and begin together at its end."""
        go = threading.Event()
        self.call(go.wait, PATIENCE)
        try:
            yield
        finally:
            self.notes.connect().set_trace_callback(self.statements.append)
            go.set()

    def commits(self) -> int:
        return self.statements.count("COMMIT")


def with_notes(path: Path, main: Callable[[Opened], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        opened = Opened(path)
        try:
            await opened.call(opened.notes.begin)
            return await main(opened)
        finally:
            await opened.thread.close()

    return asyncio.run(run())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notes.db"


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls join, however long the ones before take."""
    monkeypatch.setattr(thread_module, "JOIN_FOR", PATIENCE)


def stored(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as other:
        return [text for (text,) in other.execute("SELECT text FROM notes ORDER BY n")]


def test_waiting_calls_are_one_commit_in_order(path: Path) -> None:
    async def main(opened: Opened) -> tuple[list[int], int]:
        with opened.held_up():
            calls = [opened.call(opened.notes.add, f"{n}") for n in range(20)]
        return await asyncio.gather(*calls), opened.commits()

    assert with_notes(path, main) == (list(range(1, 21)), 1)
    assert stored(path) == [str(n) for n in range(20)]


def test_single_statements_are_committed_together_too(path: Path) -> None:
    async def main(opened: Opened) -> int:
        notes = opened.notes
        with opened.held_up():
            calls: list[asyncio.Future[Any]] = [
                opened.call(notes.add_outside, "a"),
                opened.call(notes.add_then_fail, "fails"),
                opened.call(notes.add_outside, "b"),
                opened.call(notes.add, "c"),
                opened.call(notes.add_outside, "d"),
            ]
        await asyncio.gather(*calls, return_exceptions=True)
        together = opened.commits()
        await opened.call(notes.add_outside, "alone")
        assert stored(path)[-1] == "alone"
        return together

    assert with_notes(path, main) == 1
    assert stored(path) == ["a", "b", "c", "d", "alone"]


def test_groups_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_module, "CALLS_AT_ONCE", 8)

    async def main(opened: Opened) -> int:
        with opened.held_up():
            calls = [opened.call(opened.notes.add, f"{n}") for n in range(20)]
        await asyncio.gather(*calls)
        return opened.commits()

    assert with_notes(path, main) == 3


def test_a_call_alone_is_a_transaction_of_its_own(path: Path) -> None:
    async def main(opened: Opened) -> list[str]:
        opened.notes.connect().set_trace_callback(opened.statements.append)
        await opened.call(opened.notes.add, "one")
        await opened.call(opened.notes.read)
        return [statement.split()[0] for statement in opened.statements]

    assert with_notes(path, main) == ["BEGIN", "INSERT", "COMMIT", "SELECT"]


def test_answers_come_after_the_commit(path: Path) -> None:

    async def main(opened: Opened) -> None:
        reached, go = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def wait() -> None:
            loop.call_soon_threadsafe(reached.set)
            assert go.wait(PATIENCE)

        with opened.held_up():
            first = opened.call(opened.notes.add, "first")
            read = opened.call(opened.notes.read)
            middle = opened.call(wait)
            last = opened.call(opened.notes.add, "last")
        await reached.wait()  # an answer that was given before would have arrived before
        assert not first.done()
        assert not read.done()
        assert stored(path) == []
        seen: list[list[str]] = []
        for call in (first, last):
            call.add_done_callback(lambda _: seen.append(stored(path)))
        go.set()
        await asyncio.gather(first, middle, last)
        assert seen == [["first", "last"]] * 2
        assert await read == ["first"], "a call sees what was called before it"

    with_notes(path, main)


def test_a_failing_call_leaves_its_neighbours(path: Path) -> None:
    async def main(opened: Opened) -> list[Any]:
        notes = opened.notes
        with opened.held_up():
            calls: list[asyncio.Future[Any]] = [
                opened.call(notes.add_then_fail, "fails first"),
                opened.call(notes.add, "a"),
                opened.call(notes.add_then_fail, "fails later"),
                opened.call(notes.add, "a"),
                opened.call(notes.add, "b"),
            ]
        return await asyncio.gather(*calls, return_exceptions=True)

    answers = with_notes(path, main)
    assert [type(answer) for answer in answers] == [ValueError, int, ValueError, StoreError, int]
    assert stored(path) == ["a", "b"]


@pytest.mark.parametrize(
    "fatal", [("b", 999), ("a", None, "ROLLBACK")], ids=["at commit", "in a statement"]
)
def test_all_calls_of_a_failed_transaction_fail(path: Path, fatal: tuple[Any, ...]) -> None:
    async def main(opened: Opened) -> list[Any]:
        with opened.held_up():
            calls = [
                opened.call(opened.notes.add, "a"),
                opened.call(opened.notes.add, *fatal),
                opened.call(opened.notes.add, "c"),
            ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        await opened.call(opened.notes.add, "after")
        return answers

    first, second, third = with_notes(path, main)
    assert isinstance(first, StoreError)
    assert isinstance(second, StoreError)
    assert "constraint failed" in str(first)
    kept = ["c"] if isinstance(third, int) else []  # it came after what SQLite undid
    assert stored(path) == [*kept, "after"]


def test_reads_do_not_wait_for_the_write_lock(path: Path) -> None:
    async def main(opened: Opened) -> list[list[str]]:
        await opened.call(opened.notes.add, "one")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with opened.held_up():
                reads = [opened.call(opened.notes.read) for _ in range(5)]
            answers = await asyncio.gather(*reads)
            assert not opened.commits()
        return answers

    assert with_notes(path, main) == [["one"]] * 5


def test_writes_that_get_no_lock_fail_and_reads_beside_them_do_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pollwise.storage.sqlite.file.BUSY_TIMEOUT", 0.01)

    async def main(opened: Opened) -> Any:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with opened.held_up():
                read = opened.call(opened.notes.read)
                add = opened.call(opened.notes.add, "no")
            return await asyncio.gather(read, add, return_exceptions=True)

    read, add = with_notes(path, main)
    assert read == []
    assert isinstance(add, StoreUnavailable)


def test_a_cancelled_call_is_not_made(path: Path) -> None:
    async def main(opened: Opened) -> None:
        with opened.held_up():
            calls = [opened.call(opened.notes.add, text) for text in ("a", "b", "c")]
            calls[1].cancel()
        await asyncio.gather(calls[0], calls[2])

    with_notes(path, main)
    assert stored(path) == ["a", "c"]


def test_close_answers_the_waiting_calls_first(path: Path) -> None:
    async def main(opened: Opened) -> None:
        with opened.held_up():
            calls = [opened.call(opened.notes.add, text) for text in ("a", "b")]
            closing_it = asyncio.ensure_future(opened.thread.close())
            await asyncio.sleep(0)
            with pytest.raises(StoreError, match="is closed"):
                opened.call(opened.notes.read)
        await closing_it
        assert [call.result() for call in calls] == [1, 2]
        assert opened.notes.connection is None

    with_notes(path, main)


def test_a_dropped_store_ends_its_thread(path: Path) -> None:
    async def main() -> threading.Thread:
        opened = Opened(path)
        return await opened.call(threading.current_thread)

    thread = asyncio.run(main())
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_two_stores_of_a_file_commit_together(path: Path) -> None:
    async def main(opened: Opened) -> None:
        second = Notes(path)
        beside = SqliteThread(second, name="beside", store="beside", beside=opened.thread)
        with opened.held_up():  # its first call prepares its tables, between two transactions
            await_first = [opened.call(opened.notes.add, "a"), beside.call(second.add, "b")]
        await asyncio.gather(*await_first)
        assert second.connection is opened.notes.connection
        opened.statements.clear()
        with opened.held_up():
            calls = [opened.call(opened.notes.add, "c"), beside.call(second.add, "d")]
        assert await asyncio.gather(*calls) == [3, 4]
        assert opened.commits() == 1
        await opened.thread.close()
        assert await beside.call(second.add, "e") == 5
        await beside.close()

    with_notes(path, main)
    assert stored(path) == ["a", "b", "c", "d", "e"]


def test_only_stores_that_write_alike_share(path: Path) -> None:
    async def main(opened: Opened) -> None:
        for other in (Notes(path, synchronous="full"), Notes(path.with_name("other.db"))):
            with pytest.raises(StoreError, match="cannot share"):
                SqliteThread(other, name="beside", store="beside", beside=opened.thread)

    with_notes(path, main)


PUTTERS = """
import asyncio, sys
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.jobs import NewJob

async def put(queue):
    while True:
        [job_id] = await queue.put([NewJob("a")])
        sys.stdout.write(job_id + "\\n")
        sys.stdout.flush()

async def main():
    queue = SqliteQueue(sys.argv[1], watch=0)
    await asyncio.gather(*(put(queue) for _ in range(16)))

asyncio.run(main())
"""


def test_a_killed_process_has_stored_all_it_answered(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    command = [sys.executable, "-c", PUTTERS, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        answered = [child.stdout.readline().strip() for _ in range(2000)]
        child.kill()
        *rest, last = child.stdout.read().split("\n")
    answered += rest  # the last line may be cut
    assert last == "" or last.isdecimal()
    assert all(answered), "the child ended too early"

    async def missing() -> list[str]:
        async with SqliteQueue(path, create=False) as queue:
            await queue.put([NewJob("after")])
            return [job_id for job_id in answered if await queue.get(job_id) is None]

    assert asyncio.run(missing()) == []


# Calls in the calling thread


def test_a_call_is_made_in_the_calling_thread_if_nothing_is_in_its_way(path: Path) -> None:
    async def main(opened: Opened) -> None:
        here = opened.thread.call_here
        assert here(PATIENCE, threading.get_ident) == (threading.get_ident(),)
        assert here(PATIENCE, opened.notes.add, "here") == (1,)
        with pytest.raises(StoreError, match="UNIQUE"):
            here(PATIENCE, opened.notes.add, "here")
        with opened.held_up():
            assert here(0.0, opened.notes.add, "not now") is None
        await opened.call(opened.notes.add, "in the thread")
        assert await opened.call(opened.notes.read) == ["here", "in the thread"]

    with_notes(path, main)


def test_a_locked_file_is_left_to_the_thread_which_waits(path: Path) -> None:
    async def main(opened: Opened) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(FileBusy):
                opened.thread.call_here(PATIENCE, opened.notes.add, "a")
            waiting = opened.call(opened.notes.add, "b")
            other.execute("COMMIT")
        await waiting
        assert await opened.call(opened.notes.read) == ["b"]

    with_notes(path, main)


def test_the_first_call_and_those_after_the_last_are_not_made_here(path: Path) -> None:
    async def main() -> None:
        opened = Opened(path)
        assert opened.thread.call_here(PATIENCE, opened.notes.read) is None
        await opened.call(opened.notes.begin)
        assert opened.thread.call_here(PATIENCE, opened.notes.read) == ([],)
        await opened.thread.close()
        assert opened.thread.call_here(PATIENCE, opened.notes.read) is None

    asyncio.run(main())


def test_puts_without_fsync_need_no_thread_and_let_other_tasks_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with SqliteQueue(tmp_path / "jobs.db", synchronous="off") as queue:
            await queue.put(NewJob("first"))  # opens the file
            assert queue._thread.call_here(PATIENCE, lambda: True)  # the thread is idle
            queue._thread._calls.put = None  # type: ignore[method-assign, assignment]
            turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            beside = asyncio.ensure_future(other())
            for n in range(30):
                assert await queue.put(NewJob("job")) == [str(n + 2)]
            beside.cancel()
            assert turns >= 3
            del queue._thread._calls.put
            assert (await queue.stats()).ready == 31
            await asyncio.gather(*(queue.put(NewJob("job")) for _ in range(500)))
            assert queue._in_thread_until > 0, "many at once are committed together"
            assert (await queue.stats()).ready == 531
            queue._in_thread_until = 0.0
            assert queue._thread.call_here(PATIENCE, lambda: True)
            with closing(sqlite3.connect(queue.path, isolation_level=None)) as writer:
                writer.execute("BEGIN IMMEDIATE")
                waiting = asyncio.ensure_future(queue.put(NewJob("job")))
                await asyncio.sleep(0)
                assert queue._in_thread_until > 0, "the event loop does not wait for others"
                writer.execute("COMMIT")
            assert await waiting == ["532"]

    asyncio.run(main())
