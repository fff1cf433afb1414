"""A queue in a folder is for its user alone, unless the folder says otherwise."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import pollwise
from pollwise import NewJob
from pollwise.queues.objects.private import create_file
from pollwise.testing.conformance.bench import done


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> set[tuple[str, int]]:
    found = [folder, *folder.rglob("*")]
    kinds = {True: "folder", False: "file"}
    return {(kinds[each.is_dir()], stat.S_IMODE(each.stat().st_mode)) for each in found}


async def use(folder: Path, name: str = "mail") -> None:
    async with pollwise.open(f"file://{folder}?queue={name}&keep=1h") as queue:
        await queue.put([NewJob("a", {"secret": 1}), NewJob("a", 2), NewJob("b", 3, unique="u")])
        claims = await queue.claim("w", 2, 30, kinds=["a"])
        await queue.settle(done(claims))
        assert (await queue.stats()).ready == 1


def test_a_new_folder_is_its_users_alone(tmp_path: Path, umask: int) -> None:
    asyncio.run(use(tmp_path / "new"))
    assert modes(tmp_path / "new") == {("folder", 0o700), ("file", 0o600)}


@pytest.mark.parametrize("name", ["mail", "x%20y", "%C3%BC"])
def test_a_folder_that_exists_keeps_its_mode_and_what_is_in_it_is_private(
    tmp_path: Path, umask: int, name: str
) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    folder.chmod(0o755)
    asyncio.run(use(folder, name))
    assert modes(folder) == {("folder", 0o755), ("folder", 0o700), ("file", 0o600)}


def test_a_folder_that_a_group_may_write_to_is_shared_with_it(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    folder.chmod(0o2770)
    asyncio.run(use(folder))
    inside = {("folder", 0o2770), ("file", 0o660)}
    assert modes(folder) == inside
    folder.chmod(0o1777)  # as /tmp: for all, but each for itself
    create_file(folder, "other/b", b"")
    assert stat.S_IMODE((folder / "other").stat().st_mode) & 0o007 == 0


def test_one_of_many_writes_of_a_name_wins_while_its_folders_are_removed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    stop = False

    def remove() -> None:
        while not stop:
            for each in ("a/b/c", "a/b", "a"):
                with suppress(OSError):
                    (root / each).rmdir()

    with ThreadPoolExecutor(5) as threads:
        removing = threads.submit(remove)
        try:
            for number in range(50):
                name = f"a/b/c/{number}"
                found = list(threads.map(lambda each: create_file(root, *each), [(name, b"x")] * 4))
                assert sorted(found) == [False, False, False, True]
                (root / name).unlink()
        finally:
            stop = True
            removing.result()
    assert list(root.rglob("*#*")) == []


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "b").symlink_to(tmp_path / "elsewhere")
    assert not create_file(root, "a/b", b"x")
    assert not (tmp_path / "elsewhere").exists()
