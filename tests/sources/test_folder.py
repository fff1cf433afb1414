"""Folders, and the cursors of all sources."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError, CursorMoved, StoreError, StoreUnavailable
from pollwise.runtime.events import Events
from pollwise.runtime.loop import poll
from pollwise.sources import Folder, MemoryCursors, SqliteCursors
from pollwise.sources.base import CURSOR_MAX
from pollwise.sources.listed import REMEMBERED

#: Seconds that anything may take on a busy machine.
PATIENCE = 240.0


def names(items: object) -> list[str]:
    return [file.path.name for file in items]  # type: ignore[attr-defined]


def put(folder: Path, *named: str, text: str = "x", age: float = 100.0) -> None:
    for n, name in enumerate(named):
        path = folder / name
        path.write_text(text)
        changed = path.stat().st_mtime - age + n / 1000
        os.utime(path, (changed, changed))


async def taken(source: Folder) -> list[str]:
    return names((await source()).items)


def test_only_whole_files_that_match_are_delivered_in_order(tmp_path: Path) -> None:
    put(tmp_path, "b.csv", "a.csv", "c.txt", ".hidden.csv", "link-target.txt")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "link.csv").symlink_to(tmp_path / "link-target.txt")
    os.mkfifo(tmp_path / "pipe.csv")
    put(tmp_path, "fresh.csv", age=0.0)
    put(tmp_path, "future.csv", age=-10_000.0)

    async def main() -> None:
        async with Folder(tmp_path, "*.csv", quiet="1h") as source:
            # Those of 100 s ago wait for an hour; the one from the future does not.
            assert await taken(source) == ["future.csv"]
        async with Folder(tmp_path, "*.csv", quiet=50) as source:
            assert await taken(source) == ["b.csv", "a.csv", "future.csv"]
            batch = await source()
            assert batch.items == []

    asyncio.run(main())


def test_a_file_that_changes_comes_again_and_one_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    put(tmp_path, "a", "b")

    async def main() -> None:
        async with Folder(tmp_path) as source:
            assert await taken(source) == ["a", "b"]
            put(tmp_path, "a", text="longer", age=50)
            (tmp_path / "b").unlink()
            assert await taken(source) == ["a"]
            await source.commit()
            assert len(source._state["seen"]) == 1
            assert await taken(source) == []

    asyncio.run(main())


def test_a_file_that_is_still_written_comes_once_it_is_quiet(tmp_path: Path) -> None:
    async def main() -> None:
        async with Folder(tmp_path, quiet="300ms") as source:
            loop = poll(source, Adaptive("1h", "2h"), spread=False, events=Events(quiet=True))
            waiting = asyncio.ensure_future(anext(loop))
            while loop.counts.polls < 1:
                await asyncio.sleep(0.001)  # real time: the first poll looks at a real folder
            put(tmp_path, "a", age=0.0)
            # The kernel reports the file, and a timer ends the next pause when it is quiet.
            async with asyncio.timeout(PATIENCE):
                assert names(await waiting) == ["a"]
            loop.stop()

    asyncio.run(main())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel reports no changes")
@pytest.mark.parametrize("how", ["write", "move"])
def test_a_new_file_ends_the_pause(tmp_path: Path, how: str) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()

    async def main() -> None:
        async with Folder(inbox, quiet=0) as source:
            loop = poll(source, Fixed("1h"), spread=False, events=Events(quiet=True))
            waiting = asyncio.ensure_future(anext(loop))
            while loop.counts.polls < 1:
                await asyncio.sleep(0.001)  # real time: the first poll looks at a real folder
            if how == "write":
                (inbox / "a").write_text("x")
            else:
                (tmp_path / "a").write_text("x")
                (tmp_path / "a").rename(inbox / "a")
            async with asyncio.timeout(PATIENCE):
                assert names(await waiting) == ["a"]
            loop.stop()

    asyncio.run(main())


def test_a_folder_that_is_too_full_or_missing_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with Folder(tmp_path / "none") as source:
            with pytest.raises(StoreUnavailable, match="does not exist"):
                await source()
        for n in range(REMEMBERED + 1):
            (tmp_path / f"{n}").touch()
        async with Folder(tmp_path, quiet=0) as source:
            with pytest.raises(StoreError, match="more than 10,000 files"):
                await source()
            (tmp_path / "0").unlink()
            assert len((await source()).items) == source.limit

    asyncio.run(main())


def test_the_cursor_of_a_full_folder_has_room(tmp_path: Path) -> None:
    for n in range(REMEMBERED):
        (tmp_path / f"{n}").touch()

    async def main() -> None:
        async with Folder(tmp_path, quiet=0, limit=REMEMBERED) as source:
            assert len((await source()).items) == REMEMBERED
            assert (await source()).items == []
            assert len(source._saved or "") < CURSOR_MAX / 4

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pattern": "a/b"}, "pattern"),
        ({"limit": 0}, "limit"),
        ({"limit": 10_001}, "limit"),
        ({"quiet": -1}, "quiet"),
        ({"name": "x" * 501}, "name"),
    ],
)
def test_options_that_are_wrong_are_refused(
    tmp_path: Path, given: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Folder(tmp_path, **given)  # type: ignore[arg-type]


# Cursors.


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_store_keeps_cursors_and_notices_another_process(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        store = MemoryCursors() if kind == "memory" else SqliteCursors(tmp_path / "cursors.db")
        assert await store.load("a") is None
        await store.save("a", "1", None)
        await store.save("b", "9", None)
        await store.save("a", "2", "1")
        await store.save("a", "2", "1")  # again: the answer was lost
        assert await store.load("a") == "2"
        for before in ("1", None):
            with pytest.raises(CursorMoved, match="'a' was moved by another process"):
                await store.save("a", "3", before)
        assert (await store.load("a"), await store.load("b")) == ("2", "9")
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("text", ["no", "[]", "[" * 100_000])
def test_a_cursor_of_somebody_else_is_an_error(tmp_path: Path, text: str) -> None:
    async def main() -> None:
        cursors = MemoryCursors()
        await cursors.save("mine", text, None)
        async with Folder(tmp_path, name="mine", cursor=cursors) as source:
            with pytest.raises(StoreError, match="'mine' is not one of Pollwise"):
                await source()

    asyncio.run(main())


def test_two_loops_cannot_poll_one_source_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with Folder(tmp_path, quiet=0) as source:
            first = asyncio.ensure_future(source())
            await asyncio.sleep(0)
            with pytest.raises(ConfigError, match="two loops"):
                await source()
            await first

    asyncio.run(main())


CHILD = """
import asyncio, os, signal, sys
import pollwise

async def main():
    source = pollwise.sources.Folder(sys.argv[1], cursor=sys.argv[2], quiet=0, limit=2)
    taken = 0
    async for files in pollwise.poll(source, pollwise.Adaptive("1ms", "5ms"), spread=False):
        for file in files:
            print(file.path.name, flush=True)
            taken += 1
            if taken == int(sys.argv[3]):
                os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_a_killed_process_loses_nothing_and_repeats_one_batch_at_most(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    put(inbox, *[f"file-{n}" for n in range(6)])
    cursor = f"sqlite:///{tmp_path}/cursors.db"
    found: list[str] = []
    for count in (3, 4):
        ran = subprocess.run(
            [sys.executable, "-c", CHILD, str(inbox), cursor, str(count)],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert ran.returncode == -signal.SIGKILL, ran.stderr
        found += ran.stdout.split()
    assert sorted(set(found)) == [f"file-{n}" for n in range(6)]
    assert found == [f"file-{n}" for n in (0, 1, 2, 2, 3, 4, 5)]
