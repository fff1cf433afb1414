"""What only the SQLite store of an outbox does: its tables, its locks, hints from its file."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError, SchemaError, StoreError, StoreUnavailable
from pollwise.outbox import Outbox, OutboxRunOptions
from pollwise.outbox.records import KeySettlement, NewRecord
from pollwise.outbox.stores.sqlite.calls import UNREADABLE
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.outbox.writers.put import put
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import Clock, VirtualClock
from pollwise.runtime.events import Events, RecordDead
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import NewJob
from pollwise.storage.sql import migrations
from pollwise.storage.sqlite.watched_database import CHECK_AFTER, Claimable, WatchedDatabase
from tests.outbox.relays import Bench

#: Seconds after which what should have happened fails its test.
PATIENCE = 240.0
VERSIONS = [version for version, _ in migrations("pollwise.outbox.stores.sqlite")]


async def opened(path: Path, **options: Any) -> SqliteOutboxStore:
    store = SqliteOutboxStore(path, **options)
    await store.migrate()
    return store


def connected(path: Path, journal: str = "wal") -> sqlite3.Connection:
    """The application's own connection."""
    connection = sqlite3.connect(path, timeout=PATIENCE, check_same_thread=False)
    [(mode,)] = connection.execute(f"PRAGMA journal_mode = {journal}")
    assert mode == journal
    return connection


# The machine's clock


def test_a_clock_that_is_set_back_prolongs_nothing(tmp_path: Path) -> None:
    clock = VirtualClock()

    async def main() -> None:
        store = await opened(tmp_path / "shop.db", clock=clock, watch=0)
        await store.put([NewRecord("e", n, key) for n, key in enumerate("abcd")])
        a, b, c, d = await store.claim("dies", 10, 10, 30)
        await store.announce_handlers("dies#1", {"publish": ["*"], "more": ["*"]}, 0.0)
        retried = KeySettlement(b, 0, "retry", delay=60.0)
        later = KeySettlement(c, 0, "retry", delay=7200.0)
        await store.settle([retried, later, KeySettlement(d, 0)])
        await clock.advance(5)
        clock._epoch -= 3600
        assert await store.claim("next", 10, 10, 30) == []  # also d, which nobody holds
        others = await store.announce_handlers("next#1", {"publish": ["*"]}, 0.0)
        assert [other.relay for other in others] == ["dies#1"]
        assert [each.key for each in await store.claim("next", 10, 10, 30)] == ["d"]
        await clock.advance(36)
        assert [each.key for each in await store.claim("next", 10, 10, 30)] == ["a", "d"]
        await store.settle([KeySettlement(a, 1)])  # late, and refused
        await clock.advance(30)
        assert "b" in [each.key for each in await store.claim("next", 10, 10, 30)]
        await clock.advance(30)
        assert not await store.announce_handlers("next#1", {"publish": ["*"]}, 96.0)
        await clock.advance(7000)
        assert "c" not in [each.key for each in await store.claim("next", 10, 10, 30)]
        await clock.advance(200)
        assert "c" in [each.key for each in await store.claim("next", 10, 10, 30)]
        await store.close()

    clock.run(main())


# Its tables


def test_nothing_is_done_to_a_file_before_it_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id)")
    before = path.read_bytes()

    async def main() -> None:
        async with SqliteOutboxStore(path) as store:
            for call in (store.stats(), store.claim("r", 1, 1, "30s"), store.put(NewRecord("a"))):
                with pytest.raises(SchemaError) as refused:
                    await call
                assert str(refused.value) == (
                    f"{path} has no outbox tables. Run `pollwise outbox migrate URL`."
                )
            assert path.read_bytes() == before
            assert [file.name for file in tmp_path.iterdir()] == ["shop.db"]
            assert await store.migrate() == VERSIONS
            assert await store.migrate() == []
            assert (await store.stats()).ready == 0

    asyncio.run(main())
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchall() == [("delete",)]


def test_a_file_that_is_not_there_is_made_by_migrating_only(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"

    async def main() -> None:
        async with SqliteOutboxStore(path) as store:
            with pytest.raises(StoreError) as refused:
                await store.stats()
            assert str(refused.value) == (
                f"there is no database at {path}; check the path in the URL, or create it with "
                "`pollwise outbox migrate URL`"
            )
            assert not path.exists()
            assert await store.migrate() == VERSIONS

    asyncio.run(main())


def test_the_migration_can_be_run_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"

    async def main() -> None:
        async with SqliteOutboxStore(path) as store:
            with closing(sqlite3.connect(path)) as connection:
                connection.executescript(store.migration())
            assert await store.migrate() == []
            assert await store.put(NewRecord("a")) == ["1"]

    asyncio.run(main())


def test_a_queue_and_two_outboxes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"

    async def main() -> None:
        async with SqliteQueue(path) as queue, await opened(path) as one:
            async with SqliteOutboxStore(path, "two") as two:
                await queue.put(NewJob("job"))
                await one.put(NewRecord("one", key="k"))
                await two.put([NewRecord("two", key="k"), NewRecord("three")])
                [claim] = await one.claim("r", 10, 10, "30s")
                assert claim.records[0].record.kind == "one"
                assert await two.settle([KeySettlement(claim, 1)]) == [claim], "not of this outbox"
                assert await one.settle([KeySettlement(claim, 1)]) == []
                assert (await two.stats()).ready == 2
                assert len(await queue.claim("w", 10, "30s")) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("..", "path = '..' is not a file name; give one such as shop.db"),
        ("", "path = '' is not a file name; give one such as shop.db"),
        (
            ":memory:",
            (
                "path = ':memory:' is visible to one connection only, so no relay can see it; "
                "give a file"
            ),
        ),
    ],
)
def test_a_path_that_names_no_file(path: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        SqliteOutboxStore(path)
    assert str(refused.value) == told


def test_what_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("a note, nothing more " * 100)

    async def main(path: Path, told: str) -> None:
        async with SqliteOutboxStore(path) as store:
            for call in (store.migrate(), store.stats()):
                with pytest.raises(StoreError) as refused:
                    await call
                assert str(refused.value) == told

    path = tmp_path / "text.db"
    told = "It is not a SQLite database; correct the path in the URL."
    asyncio.run(main(path, f"{path}: file is not a database. {told}"))
    asyncio.run(main(tmp_path, f"{tmp_path} is a folder; name a file in it"))


def test_a_closed_store_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        store = await opened(tmp_path / "shop.db")
        await store.close()
        await store.close()
        with pytest.raises(StoreError) as refused:
            await store.stats()
        assert str(refused.value) == f"{store.url} is closed; open it again"

    asyncio.run(main())


def test_what_other_programs_put_stands_in_nobodys_way(tmp_path: Path) -> None:
    """SQLite takes for text and JSON what Python does not."""
    path = tmp_path / "shop.db"
    strange = [
        "'1" + 5000 * "0" + "'",
        "'" + 990 * "[" + 990 * "]" + "'",
        "CAST(x'22ff22' AS TEXT)",
    ]

    async def main() -> None:
        async with await opened(path) as store:
            with closing(sqlite3.connect(path)) as connection, connection:
                for payload in strange:
                    connection.execute(
                        f"INSERT INTO pollwise_outbox (kind, payload) VALUES ('e', {payload})"
                    )
            await store.put(NewRecord("e", "fine"))
            claims = await store.claim("r", 10, 10, "30s")
            found = [claim.records[0].record.payload for claim in claims]
            assert found[0] == "1" + 5000 * "0"
            assert found[2:] == ['"\ufffd"', "fine"]
            assert len(await store.records()) == 4

    asyncio.run(main())


@pytest.mark.parametrize("strange", ["created_at = 9e999", "created_at = '2026-01-01'"])
def test_a_time_that_is_none_stands_in_nobodys_way(tmp_path: Path, strange: str) -> None:
    """In tables that were made before such a time was refused."""
    path = tmp_path / "shop.db"

    async def main() -> None:
        async with await opened(path) as store:
            await store.put([NewRecord("e", 1, key="a"), NewRecord("e", 2, key="b")])
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("PRAGMA ignore_check_constraints = on")
                connection.execute(f"UPDATE pollwise_outbox SET {strange} WHERE seq = 1")
            assert (await store.stats()).ready == 2
            assert [info.record.created_at > 0 for info in await store.records()] == [False, True]
            claims = await asyncio.wait_for(store.claim("r", 10, 10, "30s"), PATIENCE)
            assert [claim.records[0].record.payload for claim in claims] == [1, 2]

    asyncio.run(main())


def test_a_record_that_cannot_be_decoded_is_dead_and_the_others_are_handled(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    digits, deep = '{"a": 1' + 5000 * "0" + "}", '{"a": ' + 990 * "[" + 990 * "]" + "}"
    bad = [("1", digits), ("1", deep), (digits, "{}"), (deep, "{}"), (b'"\xff"', "{}")]
    bench = Bench()

    async def main() -> None:
        async with await opened(path) as store:
            with closing(sqlite3.connect(path)) as connection, connection:
                for payload, headers in bad:
                    connection.execute(
                        "INSERT INTO pollwise_outbox (kind, payload, headers) "
                        "VALUES ('e', CAST(? AS TEXT), ?)",
                        [payload, headers],
                    )
            await store.put(NewRecord("e", "fine"))
            assert len(await store.records()) == 6
            outbox = bench.outbox(store)
            outbox.handle("e")(bench.recorder("seen"))
            running = asyncio.ensure_future(outbox.run())
            async with asyncio.timeout(PATIENCE):
                while (await store.stats()).dead < len(bad) or not bench.calls:
                    await asyncio.sleep(0.01)  # real time: the store has a thread of its own
            outbox.stop()
            await running
            dead = [info.error or "" for info in await store.records("dead")]
            assert ["its headers" in error for error in dead] == [True, True, False, False, False]
            assert all("cannot be decoded" in error for error in dead[2:])
            assert bench.payloads("seen") == ["fine"]
            assert sorted(e.error for e in bench.events(RecordDead)) == sorted(dead)

    asyncio.run(main())


def test_a_record_whose_key_is_no_text_is_dead_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"

    async def main() -> None:
        async with await opened(path) as store:
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute(
                    "INSERT INTO pollwise_outbox (kind, \"key\") VALUES ('e', CAST(x'61ff' AS "
                    "TEXT))"
                )
            await store.put([NewRecord("e", 1, key="a\ufffd"), NewRecord("e", 2, key="b")])
            claims = await store.claim("r", 10, 10, "30s")
            assert [claim.key for claim in claims] == ["a\ufffd", "b"], "which is text"
            (dead,) = await store.records("dead")
            assert (dead.record.id, dead.error) == ("1", UNREADABLE)
            assert await store.retry(["1"]) == 1
            assert await store.claim("r", 10, 10, "30s") == []
            assert (await store.stats()).dead == 1, "again"
            assert await store.drop(["1"]) == 1
            assert (await store.stats()).dead == 0

    asyncio.run(main())


def test_a_store_stays_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteOutboxStore("shop.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    async def main() -> None:
        async with store:
            await store.migrate()
            with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
                put(store.target(), connection, [NewRecord("e")])
                connection.commit()
            assert (await store.stats()).ready == 1

    asyncio.run(main())
    assert (tmp_path / "shop.db").exists()


# Locks


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_writer_who_holds_the_lock_for_long_is_told(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "shop.db"

    async def main() -> None:
        async with await opened(path, timeout="20ms") as store:
            with closing(connected(path, journal)) as connection:
                await store.put(NewRecord("a"))
                connection.execute("BEGIN IMMEDIATE")
                with pytest.raises(StoreUnavailable) as refused:
                    await store.claim("r", 1, 1, "30s")
                assert str(refused.value) == (
                    f"{path}: database is locked. Another process has held the write lock for too "
                    "long."
                )
                assert (await store.stats()).ready == 1, "a read needs no lock"
                connection.rollback()
                assert len(await store.claim("r", 1, 1, "30s")) == 1

    asyncio.run(main())


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_lock_is_waited_for(
    tmp_path: Path, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shop.db"

    async def main() -> None:
        async with await opened(path, timeout=PATIENCE) as store:
            with closing(connected(path, journal)) as connection:
                await store.put(NewRecord("a"))
                connection.execute("BEGIN EXCLUSIVE")
                tried = threading.Event()
                monkeypatch.setattr(
                    "pollwise.storage.sqlite.file.time.sleep", lambda delay: tried.set()
                )
                call = asyncio.ensure_future(store.claim("r", 1, 1, "30s"))
                assert await asyncio.to_thread(tried.wait, PATIENCE)
                connection.rollback()
                assert len(await call) == 1

    asyncio.run(main())


def test_an_idle_relay_takes_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"

    async def main() -> None:
        async with await opened(path, timeout="20ms") as store:
            await store.put([NewRecord("a", key="a"), NewRecord("a", key="a")])
            [claim] = await store.claim("r", 1, 1, "30s")
            await store.settle([KeySettlement(claim, 0, "dead", error="no")])
            await store.claim("r", 10, 10, "30s")
            with closing(connected(path)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                assert await store.claim("r", 10, 10, "30s") == []

    asyncio.run(main())


def test_writers_and_relays_get_on(tmp_path: Path) -> None:
    """Four threads write without a pause; the relay's calls never fail, and take their turn."""
    path = tmp_path / "shop.db"
    many = 100

    def write(store: SqliteOutboxStore, number: int) -> None:
        with closing(connected(path)) as connection:
            for n in range(many):
                put(store.target(), connection, [NewRecord("e", n, f"writer-{number}")])
                connection.commit()

    async def main() -> None:
        async with await opened(path) as store:
            connected(path).close()
            writers = [asyncio.to_thread(write, store, number) for number in range(4)]
            writing = asyncio.gather(*writers)
            handled: dict[str | None, list[int]] = {}
            while sum(map(len, handled.values())) < 4 * many:
                claims = await store.claim("r", 10, 10, "30s")
                for claim in claims:
                    run = [held.record.payload for held in claim.records]
                    handled.setdefault(claim.key, []).extend(run)
                assert await store.settle([KeySettlement(c, len(c.records)) for c in claims]) == []
            await writing
            assert all(order == list(range(many)) for order in handled.values())

    asyncio.run(main())


# Hints


@pytest.fixture(params=["inotify", "time stamps"])
def watched_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "time stamps":

        def no_watch_left(paths: list[Path], events: int) -> int:
            raise OSError(24, f"no watch left for {paths}")

        monkeypatch.setattr("pollwise.storage.sqlite.file_hints.inotify", no_watch_left)
    elif not sys.platform.startswith("linux"):
        pytest.skip("only Linux has inotify")
    found: str = request.param
    return found


def test_a_relay_keeps_a_fixed_interval_while_it_changes_the_file(tmp_path: Path) -> None:
    """Its own settlements change the file that is watched for commits."""
    path = tmp_path / "outbox.db"
    handled: list[Any] = []

    async def main() -> dict[str, Any]:
        store = SqliteOutboxStore(path)
        await store.migrate()
        recipe = OutboxRunOptions(polling=Fixed("50ms"), batch=10, signals=False)
        outbox = Outbox(store, options=recipe, events=Events(quiet=True))

        @outbox.handle("*")
        async def note(record: Any) -> None:
            handled.append(record.payload)

        async with outbox.running(), asyncio.timeout(240):
            with sqlite3.connect(path) as connection:
                for number in range(100):
                    outbox.put(connection, "k", number, key=f"key-{number}")
            connection.close()
            while len(handled) < 100:
                await asyncio.sleep(0.05)  # real time: the interval is the kernel's and the clock's
            state = outbox.state()
        await store.close()
        return state

    state = asyncio.run(main())
    assert state["polls"] >= 10
    # The put may end two pauses: it is looked for several times, because its commit may be late.
    assert int(state["hinted"] or 0) <= 2


class Checks:
    """Counts how often a store checks its tables."""

    def __init__(self, store: SqliteOutboxStore) -> None:
        self.count = 0
        self._hints = store.hints()
        assert isinstance(self._hints, WatchedDatabase)
        self._anything, self._hints._anything = self._hints._anything, self._counted

    async def _counted(self) -> Claimable:
        self.count += 1
        return await self._anything()


@contextmanager
def asleep(store: SqliteOutboxStore) -> Iterator[Hint]:
    """A relay that pauses."""
    hint, hints = Hint(), store.hints()
    hints.join(hint)
    hints.asleep(hint)
    try:
        yield hint
    finally:
        hints.leave(hint)


@pytest.mark.parametrize("journal", ["wal", "delete", "truncate"])
def test_a_commit_ends_a_pause_and_a_put_does_not(
    tmp_path: Path, watched_by: str, journal: str
) -> None:
    path = tmp_path / "shop.db"

    async def main() -> None:
        async with await opened(path, watch="10ms") as store:
            with closing(connected(path, journal)) as connection:
                assert await store.claim("r", 1, 1, "30s") == []
                checks = Checks(store)
                with asleep(store) as hint:
                    put(store.target(), connection, [NewRecord("a")])
                    early = await Clock().sleep(0.1, hint)  # real time: nothing must happen
                    assert not early, "a record was told before its commit"
                    connection.commit()
                    assert await Clock().sleep(PATIENCE, hint), "no hint of the commit came"
                assert checks.count
                assert len(await store.claim("r", 1, 1, "30s")) == 1

    asyncio.run(main())


def test_a_rollback_and_other_peoples_data_end_no_pause(tmp_path: Path, watched_by: str) -> None:
    path = tmp_path / "shop.db"

    async def main() -> None:
        async with await opened(path, watch="10ms") as store:
            with closing(connected(path)) as connection:
                connection.execute("CREATE TABLE orders (id)")
                await store.claim("r", 1, 1, "30s")
                checks = Checks(store)
                with asleep(store) as hint:
                    connection.execute("INSERT INTO orders VALUES (17)")
                    connection.commit()
                    put(store.target(), connection, [NewRecord("a")])
                    connection.rollback()
                    woken = await Clock().sleep(2 * sum(CHECK_AFTER), hint)  # real time: likewise
                    assert not woken, "woken for nothing"
                    assert 1 <= checks.count <= 2 * len(CHECK_AFTER), "a few checks, then none"

    asyncio.run(main())


def test_an_idle_file_is_not_looked_at(tmp_path: Path, watched_by: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with await opened(tmp_path / "shop.db", clock=clock) as store:
            await store.put(NewRecord("a"))
            [claim] = await store.claim("r", 1, 1, "30s")
            await store.settle([KeySettlement(claim, 1)])
            checks = Checks(store)
            with asleep(store) as hint:
                assert not await clock.sleep(1000, hint)
            assert checks.count <= len(CHECK_AFTER)
            await clock.sleep(1000)
            settled = checks.count
            with asleep(store) as hint:
                assert not await clock.sleep(1000, hint)
            assert checks.count == settled

    clock = VirtualClock()
    clock.run(main(clock))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has inotify")
def test_a_busy_file_is_checked_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the file changes, a second has a limited number of checks and of wake-ups."""
    told = 0
    method = WatchedDatabase._read_changes

    def counted(self: WatchedDatabase) -> None:
        nonlocal told
        told += 1
        method(self)

    monkeypatch.setattr(WatchedDatabase, "_read_changes", counted)
    path = tmp_path / "shop.db"

    async def main(clock: VirtualClock) -> None:
        async with await opened(path, clock=clock) as store:
            with closing(connected(path)) as connection:
                connection.execute("PRAGMA synchronous = OFF")
                connection.execute("CREATE TABLE orders (id)")
                await store.claim("r", 1, 1, "30s")
                checks = Checks(store)
                with asleep(store) as hint:
                    for _ in range(500):
                        connection.execute("INSERT INTO orders VALUES (17)")
                        connection.commit()
                        assert not await clock.sleep(0.002, hint)
                assert 40 <= checks.count <= 101
                assert 40 <= told <= 101

    clock = VirtualClock()
    clock.run(main(clock))


def test_what_is_committed_while_nobody_pauses_ends_the_next_pause(
    tmp_path: Path, watched_by: str
) -> None:
    path = tmp_path / "shop.db"

    async def main() -> None:
        async with await opened(path, watch="10ms") as store:
            with closing(connected(path)) as connection:
                await store.claim("r", 1, 1, "30s")
                with asleep(store) as hint:
                    await Clock().sleep(0, hint)
                put(store.target(), connection, [NewRecord("a")])
                connection.commit()
                with asleep(store) as hint:
                    assert await Clock().sleep(PATIENCE, hint), "the pause lasted to its end"

    asyncio.run(main())


def test_a_pause_on_another_event_loop_is_ended_too(tmp_path: Path, watched_by: str) -> None:
    path = tmp_path / "shop.db"
    store = SqliteOutboxStore(path, watch="10ms")

    async def pause() -> None:
        await store.migrate()
        with closing(connected(path)) as connection:
            claims = await store.claim("r", 10, 1, "30s")
            await store.settle([KeySettlement(claim, 1) for claim in claims])
            with asleep(store) as hint:
                put(store.target(), connection, [NewRecord("a")])
                connection.commit()
                assert await Clock().sleep(PATIENCE, hint), "the pause lasted to its end"

    asyncio.run(pause())
    asyncio.run(pause())
    asyncio.run(store.close())


def test_a_retry_in_another_process_is_known_here(tmp_path: Path) -> None:
    """Whoever pauses learns from the file when something of another relay's falls due."""
    path = tmp_path / "shop.db"

    async def main() -> None:
        async with await opened(path, watch="10ms") as store, SqliteOutboxStore(path) as other:
            await store.put(NewRecord("a", key="k"))
            [claim] = await other.claim("other", 1, 1, "30s")
            assert await store.claim("r", 1, 1, "30s") == []
            with asleep(store) as hint:
                await other.settle([KeySettlement(claim, 0, "retry", 0.2)])
                assert await Clock().sleep(PATIENCE, hint), "the pause lasted to its end"

    asyncio.run(main())


def test_a_backup_that_is_put_back_makes_no_old_claim_valid(tmp_path: Path) -> None:
    path, saved = tmp_path / "shop.db", tmp_path / "saved.db"

    def copy(source: Path, target: Path) -> None:
        with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
            one.backup(other)

    async def main() -> None:
        async with await opened(path) as store:
            await store.put([NewRecord("first", key="k")])
            copy(path, saved)
            await store.put([NewRecord("lost", key="k"), NewRecord("lost")])
            old = await store.claim("old", 10, 10, "60s")
            copy(saved, path)
            await store.put([NewRecord("put after that", key="k"), NewRecord("put after that")])
            new = await store.claim("new", 10, 10, "60s")
            assert len(old) == len(new) == 2
            assert min(c.token for c in new) > max(c.token for c in old)
            lost = await store.settle([KeySettlement(c, len(c.records)) for c in old])
            assert len(lost) == 2
            assert len(await store.renew(old, "60s")) == 2
            assert (await store.stats()).leased == 2
            assert not await store.settle([KeySettlement(c, len(c.records)) for c in new])

    asyncio.run(main())
