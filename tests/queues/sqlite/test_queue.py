"""What is special about the queue in SQLite: its file, its lock, its schema, its watched file."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pollwise.errors import ConfigError, LeaseLost, SchemaError, StoreError, StoreUnavailable
from pollwise.queues.base import Queue
from pollwise.queues.limits.record import Rate
from pollwise.queues.sqlite import store as sqlite_store
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.storage.sqlite import file as sqlite_file
from pollwise.storage.sqlite.broadcasts import SIZE_MAX
from pollwise.storage.sqlite.watched_file import WatchedFile
from pollwise.testing import VirtualClock

Use = Callable[[SqliteQueue], Awaitable[Any]]


def use(path: Path, *uses: Use, **options: Any) -> list[Any]:
    """Open a queue under the virtual clock, use it, and close it."""
    clock = VirtualClock()

    async def main() -> list[Any]:
        queue = SqliteQueue(path, clock=clock, **options)
        try:
            return [await each(queue) for each in uses]
        finally:
            await queue.close()

    return clock.run(main())


async def put_one(queue: SqliteQueue) -> list[str]:
    return await queue.put(NewJob("job", "kept"))


async def stats(queue: SqliteQueue) -> Any:
    return await queue.stats()


def refused(path: Path, error: type[StoreError], **options: Any) -> str:
    """The message with which every call on a bad path is refused."""
    messages = set()
    for call in (put_one, stats, lambda queue: queue.claim("w", 1, 1)):
        with pytest.raises(StoreError) as caught:
            use(path, call, **options)
        assert type(caught.value) is error, f"{caught.value!r} should be a {error.__name__}"
        messages.add(str(caught.value))
    [message] = messages
    assert str(path) in message or path.name in message, f"which file? {message}"
    return message


# The file


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    for content in (b"hello, world\n", b"\x00" * 5000, b"x" * 100_000):
        path = tmp_path / "notes.txt"
        path.write_bytes(content)
        assert "not a SQLite database" in refused(path, StoreError)
        assert path.read_bytes() == content, "the file was changed"
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"], "something was left beside"


def test_a_missing_folder(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "none" / "jobs.db", StoreError)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    assert "is a folder" in refused(tmp_path, StoreError)


def test_a_missing_file_is_not_made_unless_wanted(tmp_path: Path) -> None:
    assert "no database" in refused(tmp_path / "jobs.db", StoreError, create=False)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_touched_before_the_first_call(tmp_path: Path) -> None:
    use(tmp_path / "jobs.db")
    assert list(tmp_path.iterdir()) == []


def test_jobs_outlive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    use(path, put_one)
    [claims] = use(path, lambda queue: queue.claim("w", 1, 60), create=False)
    assert [claim.job.payload for claim in claims] == ["kept"]


def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    path = tmp_path / "jobs ?#%20&é 'x'.db"
    use(path, put_one)
    assert path.exists()
    assert {file.name.split(".db")[0] for file in tmp_path.iterdir()} == {path.stem}


def test_an_unknown_synchronous_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="synchronous = 'fast' is not one of full, normal, off"):
        SqliteQueue(tmp_path / "jobs.db", synchronous="fast")


@pytest.mark.parametrize(("synchronous", "code"), [("off", 0), ("normal", 1), ("full", 2)])
def test_synchronous(tmp_path: Path, synchronous: str, code: int) -> None:
    async def look(queue: SqliteQueue) -> Any:
        connection = queue._store.connect()
        return [
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("synchronous", "journal_mode")
        ]

    assert use(tmp_path / "jobs.db", look, synchronous=synchronous) == [[code, "wal"]]


def test_queues_in_one_file_are_apart(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "jobs.db"
        async with SqliteQueue(path, "a") as a, SqliteQueue(path, "b") as b:
            job = NewJob("job", 1, key="k", unique="u")
            [of_a], [of_b] = await a.put(job), await b.put(job)
            assert await a.get(of_b) is None
            [claim] = await b.claim("w", 10, 60)
            assert claim.job.id == of_b
            await b.settle([Settlement.dead(claim, "broken")])
            assert (await a.jobs("dead"), await a.drop(), await a.retry([of_b])) == ([], 0, 0)
            assert [view.job.id for view in await a.jobs()] == [of_a]
            assert (await a.stats()).ready == 1

    asyncio.run(main())


# The schema


def execute(path: Path, *statements: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        rows = [connection.execute(statement).fetchall() for statement in statements]
        connection.commit()
    return rows


def test_tables_of_a_newer_version_are_used(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    [[first]] = use(path, put_one)
    execute(path, "INSERT INTO pollwise_schema (version) VALUES (999)")
    [[second], claims] = use(path, put_one, lambda queue: queue.claim("w", 9, 60))
    assert [claim.job.id for claim in claims] == [first, second]
    [versions] = execute(path, "SELECT max(version) FROM pollwise_schema")
    assert versions == [(999,)], "only a newer program migrates"


def test_the_users_own_tables_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    own = ("SELECT * FROM jobs", "SELECT sql FROM sqlite_master WHERE name = 'jobs'")
    execute(
        path,
        "CREATE TABLE jobs (id INTEGER PRIMARY KEY, state TEXT)",
        "INSERT INTO jobs VALUES (7, 'mine')",
        "PRAGMA user_version = 42",
    )
    before = execute(path, *own, "PRAGMA user_version")

    async def work(queue: SqliteQueue) -> None:
        await queue.put([NewJob("job"), NewJob("job")])
        first, second = await queue.claim("w", 2, 60)
        await queue.settle([Settlement.done(first), Settlement.dead(second, "broken")])
        await queue.drop()

    use(path, work)
    assert execute(path, *own, "PRAGMA user_version") == before
    names = execute(path, "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")[0]
    assert all(name == "jobs" or name.startswith("pollwise_") for (name,) in names), names


def test_a_table_of_our_name_that_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    execute(
        path, "CREATE TABLE pollwise_jobs (mine TEXT)", "INSERT INTO pollwise_jobs VALUES ('x')"
    )
    message = refused(path, SchemaError)
    assert "differ from those that this version creates" in message
    rows = execute(path, "SELECT * FROM pollwise_jobs", "SELECT name FROM sqlite_master")
    assert rows == [[("x",)], [("pollwise_jobs",)]], "something was changed"


# The lock


@contextmanager
def write_lock(path: Path) -> Iterator[None]:
    """Hold the write lock, as another process in the middle of a write."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def test_a_lock_held_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT", 0.02)

    async def main(queue: SqliteQueue) -> None:
        await put_one(queue)
        [claim] = await queue.claim("w", 1, 60)
        await queue.put(NewJob("job", 2))
        with write_lock(queue.path):
            for call in (
                put_one(queue),
                queue.claim("w", 1, 60),
                queue.settle([Settlement.done(claim)]),
                queue.renew([claim], 60),
            ):
                with pytest.raises(StoreUnavailable, match="has held the write lock"):
                    await call
            assert (await queue.stats()).leased == 1, "reading needs no lock"
        await queue.settle([Settlement.done(claim)])
        assert [c.job.payload for c in await queue.claim("w", 9, 60)] == [2]

    use(tmp_path / "jobs.db", main)


def test_an_idle_claim_takes_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT", 0.02)
    path = tmp_path / "jobs.db"

    async def idle(queue: SqliteQueue) -> None:
        with write_lock(path):
            assert await queue.claim("w", 1, 60, kinds=["mine"]) == []

    async def leave_work_for_others(queue: SqliteQueue) -> None:
        await queue.put([NewJob("other"), NewJob("mine", delay=60)])
        await queue.put([NewJob("other", key="k"), NewJob("mine", key="k")])
        assert len(await queue.claim("w", 1, 60, kinds=["other"])) == 1

    use(path, stats, idle)
    use(path, idle)  # neither does opening the file
    use(path, leave_work_for_others, idle)
    use(path, idle)


def test_a_full_disk(tmp_path: Path) -> None:
    async def main(queue: SqliteQueue) -> None:
        connection = queue._store.connect()
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 10}")
        [first] = await queue.put(NewJob("job", "small"))
        large = [NewJob("job", "x" * 10_000) for _ in range(20)]
        with pytest.raises(StoreUnavailable, match="disk is full"):
            await queue.put(large)
        assert [view.job.id for view in await queue.jobs()] == [first], "a part was put"
        [claim] = await queue.claim("w", 9, 60)
        await queue.settle([Settlement.done(claim)])
        connection.execute("PRAGMA max_page_count = 100000")
        assert len(await queue.put(large)) == 20, "it does not go on when there is space again"

    use(tmp_path / "jobs.db", main)


def test_a_closed_queue_says_so(tmp_path: Path) -> None:
    async def main(queue: SqliteQueue) -> None:
        await put_one(queue)
        await queue.close()
        for call in (put_one, stats, lambda q: q.claim("w", 1, 1), lambda q: q.get("1")):
            with pytest.raises(StoreError, match="is closed"):
                await call(queue)

    use(tmp_path / "jobs.db", main)


def test_many_due_jobs_of_other_kinds_hide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "MOST_AT_ONCE", 10)

    async def main(queue: SqliteQueue) -> None:
        await queue.put([NewJob("other", delay=1) for _ in range(45)])
        await queue.put(NewJob("mine", delay=2))
        await queue.clock.sleep(3)
        claims = await queue.claim("w", 1, 60, kinds=["mine"])
        assert [claim.job.kind for claim in claims] == ["mine"]

    use(tmp_path / "jobs.db", main)


# The watched file


async def pause(queue: Queue, seconds: float) -> bool:
    hint, hints = Hint(), queue.hints()
    hints.join(hint)
    hints.asleep(hint)
    try:
        return await queue.clock.sleep(seconds, hint)
    finally:
        hints.leave(hint)


def no_watch_left(paths: list[Path], events: int) -> int:
    raise OSError(24, f"no watch left for {paths}")


@pytest.fixture(params=["told by the kernel", "looking"])
def looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The looks at the watched file, one entry each; in both ways to learn of news."""
    found: list[str] = []
    stamps = WatchedFile._stamps

    def counted(self: WatchedFile) -> list[int]:
        found.append(request.param)
        return stamps(self)

    monkeypatch.setattr(WatchedFile, "_stamps", counted)
    if request.param == "looking":
        monkeypatch.setattr("pollwise.storage.sqlite.file_hints.inotify", no_watch_left)
    elif not sys.platform.startswith("linux"):
        pytest.skip("only Linux tells")
    return found


def test_looks_only_while_somebody_pauses(tmp_path: Path, looks: list[str]) -> None:
    async def main(queue: SqliteQueue) -> None:
        await queue.stats()
        told = "looking" not in looks
        looks.clear()
        await queue.clock.sleep(1000)
        assert len(looks) == 0, "looks while nobody paused"
        await asyncio.gather(pause(queue, 10), pause(queue, 10), pause(queue, 10))
        if told:
            assert len(looks) < 5, f"{len(looks)} looks in 10 s, though the kernel would tell"
        else:
            assert 90 <= len(looks) <= 105, f"{len(looks)} looks in 10 s at one every 100 ms"
        await queue.clock.sleep(1)
        looks.clear()
        await queue.clock.sleep(1000)
        assert len(looks) == 0, "looks after the pauses ended"

    use(tmp_path / "jobs.db", main)


def test_broadcasts_reach_others_through_a_file_that_stays_small(
    tmp_path: Path, looks: list[str]
) -> None:
    async def main(queue: SqliteQueue) -> None:
        async with SqliteQueue(queue.path, clock=queue.clock) as other:
            await other.stats()
            await queue.stats()
            heard: list[str] = []
            listening = queue.hints().listen(heard.append)
            for n in range(SIZE_MAX // 10):
                other.hints().broadcast(f"#{n % 7}")
            queue.hints().broadcast("#own")
            while set(heard) != {f"#{n}" for n in range(7)} | {"#own"}:
                other.hints().broadcast("#3")
                await queue.clock.sleep(0.1)
            assert heard.count("#own") == 1, "its own broadcast does not come back"
            file = queue.path.with_name("jobs.db-broadcast")
            assert file.stat().st_size <= SIZE_MAX
            assert file.stat().st_mode & 0o777 == queue.path.stat().st_mode & 0o666
            listening.close()
            looks.clear()
            other.hints().broadcast("#7")
            await queue.clock.sleep(1000)
            assert "#7" not in heard
            assert len(looks) < 5, "looks after nobody listened any more"

    use(tmp_path / "jobs.db", main)


def test_watch_may_be_off(tmp_path: Path) -> None:
    async def main(queue: SqliteQueue) -> None:
        async with SqliteQueue(queue.path, clock=queue.clock) as other:
            tasks = [asyncio.ensure_future(pause(queue, 10)) for _ in range(2)]
            await queue.clock.sleep(1)
            await other.put(NewJob("job"))
            assert not any(await asyncio.gather(*tasks)), "a hint came, though nobody watches"

    use(tmp_path / "jobs.db", main, watch=0)


def test_a_hint_is_found_within_the_watch(tmp_path: Path, looks: list[str]) -> None:
    async def main(queue: SqliteQueue) -> None:
        async with SqliteQueue(queue.path, clock=queue.clock) as other:
            await other.put(NewJob("job"))
            task = asyncio.ensure_future(pause(queue, 100))
            await queue.clock.sleep(0.6)
            assert task.done(), "news from before the pause counts too"
            task = asyncio.ensure_future(pause(queue, 100))
            await queue.clock.sleep(10)
            assert not task.done(), "old news ended a pause twice"
            await other.put(NewJob("job"))
            await queue.clock.sleep(0.6)
            assert task.done(), "no hint within the watch"

    use(tmp_path / "jobs.db", main, watch="500ms")
    assert looks


def test_a_hint_file_that_cannot_be_touched_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise PermissionError("no")

    monkeypatch.setattr("pollwise.storage.sqlite.watched_file.os.utime", fail)
    [[job_id], claims] = use(tmp_path / "jobs.db", put_one, lambda q: q.claim("w", 1, 60))
    assert [claim.job.id for claim in claims] == [job_id]


def test_a_database_without_a_queue_is_left_alone_unless_one_may_be_made(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE books (title)")
    before = path.read_bytes()

    async def main() -> None:
        async with SqliteQueue(path, create=False) as queue:
            with pytest.raises(SchemaError, match="holds no queue"):
                await queue.stats()

    asyncio.run(main())
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["theirs.db"]


def test_arrivals_after_no_job_are_refused(tmp_path: Path) -> None:
    async def main(queue: SqliteQueue) -> None:
        with pytest.raises(ConfigError, match="after = 'zzz' is not a job id"):
            await queue.arrivals("zzz")

    use(tmp_path / "jobs.db", main)


def test_rates_that_are_unused_are_pruned(tmp_path: Path) -> None:
    """Also when no claim charges groups any more, because the limits were removed."""
    clock = VirtualClock()
    path = tmp_path / "jobs.db"

    def count() -> list[int]:
        with closing(sqlite3.connect(path)) as connection:
            tables = ("pollwise_limit_groups", "pollwise_limit_turns")
            return [
                connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in tables
            ]

    async def main() -> None:
        async with SqliteQueue(path, clock=clock, synchronous="off") as queue:
            await queue.limits.set("job", [Rate(1, "1h"), Rate(1, "1h", by="tenant")])
            await queue.put([NewJob("job", limit_group=f"tenant {n}") for n in range(3)])
            for _ in range(3):
                await queue.claim("w", 1, "1s")
                await clock.advance(3600)
            await queue.claim("w", 1, "1s")
            await queue.limits.remove("job")
            await queue.prune()
            assert count() == [1, 1]
            await clock.advance(3600)
            await queue.prune()
            assert count() == [0, 0]

    clock.run(main())


def test_a_backup_that_is_put_back_makes_no_old_claim_valid(tmp_path: Path) -> None:
    """It brings numbers of jobs back, so another job must not get the token of a claim."""
    path, saved = tmp_path / "jobs.db", tmp_path / "saved.db"

    def copy(source: Path, target: Path) -> None:
        with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
            one.backup(other)

    async def main() -> None:
        async with SqliteQueue(path) as queue:
            await queue.put(NewJob("job", "first"))
            copy(path, saved)
            await queue.put(NewJob("job", "lost"))
            old = await queue.claim("old", 2, 60)
            copy(saved, path)
            await queue.put(NewJob("job", "put after that"))
            new = await queue.claim("new", 2, 60)
            assert [claim.job.id for claim in new] == [claim.job.id for claim in old]
            assert min(c.token for c in new) > max(c.token for c in old)
            with pytest.raises(LeaseLost):
                await queue.settle([Settlement.done(claim) for claim in old])
            assert len((await queue.renew(old, 60)).lost) == 2
            assert (await queue.stats()).leased == 2
            await queue.settle([Settlement.done(claim) for claim in new])
            assert (await queue.stats()).leased == 0

    asyncio.run(main())
