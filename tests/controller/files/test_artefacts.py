"""The files of jobs: whole or not at all, bounded, checked, and never anywhere else."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import threading
import tracemalloc
import unicodedata
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pollwise.controller.files.artefacts import Artefacts, byte_range, checked_name, checked_type
from pollwise.controller.files.blobs import Blobs, FolderBlobs, ObjectBlobs, open_blobs
from pollwise.controller.http.answers import HttpError
from pollwise.errors import ConfigError, JobError, StoreError, StoreUnavailable
from tests.controller.files.disks import mounted
from tests.controller.state.states import Stand, run_on_sqlite
from tests.support.clouds import CREDENTIALS, MiniStack

JOB = "0" * 30 + "ab"


async def sent(data: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def taken(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


@pytest.fixture(params=["folder", "local", "memory", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Blobs]:
    """Opens a place for blobs, the same one each time."""
    from obstore.store import LocalStore, MemoryStore

    if request.param == "folder":
        return lambda: open_blobs(tmp_path / "blobs")
    if request.param == "local":
        store = LocalStore(str(tmp_path), mkdir=True)
        return lambda: ObjectBlobs(store, "a/b", "local")
    if request.param == "memory":
        memory = MemoryStore()
        return lambda: ObjectBlobs(memory, "", "memory")
    server: MiniStack = request.getfixturevalue("ministack")
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    url = server.url(uuid.uuid4().hex)
    return lambda: open_blobs(url)


# Blobs


def test_a_blob_is_read_as_it_was_written(blobs: Callable[[], Blobs]) -> None:
    async def main() -> None:
        place = blobs()
        data = os.urandom(100_000)
        written = await place.write(JOB, sent(data), 10**6, hashlib.sha256(data).hexdigest())
        assert written.size == len(data)
        assert written.sha256 == hashlib.sha256(data).hexdigest()
        assert await taken(place.read(JOB, written.blob, 0, len(data))) == data
        assert await taken(place.read(JOB, written.blob, 999, 5001)) == data[999:5001]
        assert await taken(place.read(JOB, written.blob, 7, 7)) == b""
        empty = await place.write(JOB, sent(b""), 10)
        assert empty.size == 0
        await place.delete(JOB, written.blob)
        await place.delete(JOB, written.blob)
        with pytest.raises(HttpError, match="gone") as refused:
            await taken(place.read(JOB, written.blob, 0, 10))
        assert refused.value.status == 410
        await place.delete_all(JOB)
        await place.delete_all(JOB)
        await place.close()

    asyncio.run(main())


def test_more_than_a_part_is_written_and_read(blobs: Callable[[], Blobs]) -> None:
    async def main() -> None:
        place = blobs()
        data = os.urandom(1024 * 1024) * 12
        written = await place.write(JOB, sent(data, 300_000), 10**8)
        whole = await taken(place.read(JOB, written.blob, 0, len(data)))
        assert hashlib.sha256(whole).hexdigest() == written.sha256
        middle = await taken(place.read(JOB, written.blob, 5_000_000, 6_000_000))
        assert middle == data[5_000_000:6_000_000]
        await place.delete_all(JOB)
        with pytest.raises(HttpError):
            await taken(place.read(JOB, written.blob, 0, 10))
        await place.close()

    asyncio.run(main())


def left_over(place: Blobs) -> list[str]:
    if isinstance(place, FolderBlobs):
        return [str(path) for path in place.folder.rglob("*") if path.is_file()]
    assert isinstance(place, ObjectBlobs)
    return [meta["path"] for page in place._store.list() for meta in page if JOB in meta["path"]]


def test_what_fails_leaves_nothing(blobs: Callable[[], Blobs]) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 700_000
        raise ConnectionResetError(errno.ECONNRESET, "the sender is gone")

    async def main() -> None:
        place = blobs()
        with pytest.raises(HttpError, match="more than 5000 bytes") as told:
            await place.write(JOB, sent(bytes(900_000)), 5000)
        assert told.value.status == 413
        with pytest.raises(HttpError, match="SHA-256") as told:
            await place.write(JOB, sent(b"abc"), 5000, "0" * 64)
        assert told.value.status == 422
        with pytest.raises((StoreUnavailable, ConnectionResetError)):
            await place.write(JOB, broken(), 10**7)
        assert left_over(place) == []
        exact = await place.write(JOB, sent(bytes(5000)), 5000)
        assert exact.size == 5000
        await place.close()

    asyncio.run(main())


def test_a_sender_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    async def endless(begun: asyncio.Event) -> AsyncIterator[bytes]:
        yield bytes(600_000)
        begun.set()
        await asyncio.Event().wait()

    async def main() -> None:
        place, begun = FolderBlobs(tmp_path), asyncio.Event()
        writing = asyncio.ensure_future(place.write(JOB, endless(begun), 10**7))
        await asyncio.wait_for(begun.wait(), 10)
        assert [path.rpartition(".")[2] for path in left_over(place)] == ["part"]
        writing.cancel()
        await asyncio.wait([writing])
        assert left_over(place) == []
        await place.close()

    asyncio.run(main())


def test_a_write_under_way_is_waited_for_before_its_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun, go_on = os.write, threading.Event(), threading.Event()
    wrote: list[int] = []

    def slow(descriptor: int, data: bytes) -> int:
        begun.set()
        assert go_on.wait(10)
        os.fstat(descriptor)  # it is open still
        wrote.append(real(descriptor, data))
        return wrote[-1]

    async def main() -> None:
        place = FolderBlobs(tmp_path)
        monkeypatch.setattr(os, "write", slow)
        writing = asyncio.ensure_future(place.write(JOB, sent(bytes(1000)), 10**7))
        await asyncio.to_thread(begun.wait, 10)
        writing.cancel()
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.sleep(0)
        assert not writing.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await writing
        monkeypatch.undo()
        assert wrote == [1000]
        assert left_over(place) == []
        await place.close()

    asyncio.run(main())


def test_a_reader_that_leaves_closes_its_file(tmp_path: Path) -> None:
    async def main() -> None:
        place = FolderBlobs(tmp_path)
        written = await place.write(JOB, sent(bytes(3_000_000), 10**6), 10**7)
        open_before = len(list(Path("/proc/self/fd").iterdir()))
        reading = place.read(JOB, written.blob, 0, written.size)
        assert await anext(reading)
        await reading.aclose()  # type: ignore[attr-defined]
        assert len(list(Path("/proc/self/fd").iterdir())) == open_before
        await place.close()

    if Path("/proc/self/fd").exists():
        asyncio.run(main())


def test_what_is_unfinished_has_no_name(tmp_path: Path) -> None:
    async def main() -> None:
        place = FolderBlobs(tmp_path)

        async def looking() -> AsyncIterator[bytes]:
            yield bytes(600_000)
            assert all(path.endswith(".part") for path in left_over(place))
            yield b"end"

        written = await place.write(JOB, looking(), 10**7)
        assert [Path(path).name for path in left_over(place)] == [written.blob]
        [path] = left_over(place)
        assert Path(path).stat().st_mode & 0o077 == 0, "for nobody else"
        await place.close()

    asyncio.run(main())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    real, calls = getattr(os, call), 0

    def failing(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == (2 if call == "write" else 1):
            raise OSError(code, os.strerror(code))
        return real(*args)

    async def main() -> None:
        place = FolderBlobs(tmp_path)
        monkeypatch.setattr(os, call, failing)
        with pytest.raises((HttpError, StoreUnavailable)) as told:
            await place.write(JOB, sent(bytes(900_000)), 10**7)
        monkeypatch.undo()
        if code == errno.EIO:
            assert isinstance(told.value, StoreUnavailable)
        else:
            assert isinstance(told.value, HttpError)
            assert (told.value.status, told.value.code) == (507, "no_room")
        assert left_over(place) == []
        assert list(place.folder.glob("*/*")) == [], "not even its folder"
        await place.close()

    asyncio.run(main())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", mib=1) as folder:
        yield folder


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    async def main() -> None:
        place = FolderBlobs(small_disk / "blobs")
        with pytest.raises(HttpError) as told:
            await place.write(JOB, sent(bytes(3_000_000)), 10**7)
        assert told.value.status == 507
        assert left_over(place) == []
        written = await place.write(JOB, sent(bytes(800_000)), 10**7)
        assert written.size == 800_000, "there is room again"
        await place.close()

    asyncio.run(main())


def test_links_are_not_followed(tmp_path: Path) -> None:
    async def main() -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "secret").write_text("x")
        place = FolderBlobs(tmp_path / "blobs")
        (place.folder / JOB[-2:]).mkdir(parents=True)
        (place.folder / JOB[-2:] / JOB).symlink_to(outside)
        with pytest.raises(StoreError, match="is a link"):
            await place.write(JOB, sent(b"x"), 10)
        with pytest.raises(StoreError, match="is a link"):
            await taken(place.read(JOB, "ab", 0, 1))
        await place.delete_all(JOB)
        assert (outside / "secret").read_text() == "x"
        folder = place.folder / JOB[-2:] / JOB
        folder.mkdir(parents=True)
        (folder / "ab").symlink_to(outside / "secret")
        with pytest.raises(StoreUnavailable):
            await taken(place.read(JOB, "ab", 0, 1))
        await place.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/b", "/etc", "a..", ".a", "a\0", "x" * 256, "ab\n"]
)
def test_only_ids_become_paths(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        place = FolderBlobs(tmp_path)
        with pytest.raises(ConfigError):
            await place.write(name, sent(b""), 1)
        with pytest.raises(ConfigError):
            await taken(place.read(JOB, name, 0, 1))
        with pytest.raises(ConfigError):
            await place.delete_all(name)
        await place.close()

    asyncio.run(main())


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    async def endless(size: int) -> AsyncIterator[bytes]:
        chunk = bytes(64 * 1024)
        for _ in range(size // len(chunk)):
            yield chunk

    async def main() -> None:
        place = FolderBlobs(tmp_path)
        await place.write(JOB, endless(1024 * 1024), 10**9)
        tracemalloc.start()
        try:
            written = await place.write(JOB, endless(64 * 1024 * 1024), 10**9)
            async for _ in place.read(JOB, written.blob, 0, written.size):
                pass
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 4 * 1024 * 1024
        await place.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ftp://x/y", "neither a folder nor the URL"),
        ("file://host/x", "does not name a folder"),
        ("s3://key:secret@bucket/x", "without credentials"),
        ("s3:///x", "must name a bucket"),
        ("s3://bucket/x?regoin=eu", "has no option 'regoin'"),
    ],
)
def test_places_that_cannot_be(url: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        open_blobs(url)
    assert "secret" not in str(error.value)


def test_places_by_url(tmp_path: Path) -> None:
    assert isinstance(open_blobs(f"file://{quote(str(tmp_path))}"), FolderBlobs)
    assert open_blobs(tmp_path / "x").url == f"file://{tmp_path}/x"
    assert open_blobs("s3://bucket/a/b?region=eu-west-1").url == "s3://bucket/a/b"


# Artefacts


def test_artefacts_of_a_job(tmp_path: Path) -> None:
    async def main(s: Stand) -> None:
        artefacts = Artefacts(s.state, FolderBlobs(tmp_path / "blobs"), limit=100, max_files=2)
        row = await artefacts.save(
            JOB, "out/log.txt", sent(b"hello"), content_type="text/plain; charset=utf-8", by="w1"
        )
        found = await artefacts.find(JOB, "out/log.txt")
        assert found is not None
        assert (found.blob, found.content_type) == (row.blob, "text/plain; charset=utf-8")
        assert await taken(artefacts.read(found)) == b"hello"
        assert await taken(artefacts.read(found, 1, 3)) == b"el"
        assert await artefacts.find(JOB, "../x") is None
        assert await artefacts.find(JOB, "out/log.txt", input=True) is None
        again = await artefacts.save(JOB, "out/log.txt", sent(b"bye"))
        assert [r.blob for r in await artefacts.list(JOB)] == [again.blob]
        assert len(left_over(artefacts.blobs)) == 1, "what was replaced is deleted"
        await artefacts.save(JOB, "b", sent(b""))
        with pytest.raises(JobError, match="2 artefacts"):
            await artefacts.save(JOB, "c", sent(b"x"))
        with pytest.raises(HttpError, match="more than 100 bytes"):
            await artefacts.save(JOB, "b", sent(b""), length=101)
        with pytest.raises(JobError, match="64 hex"):
            await artefacts.save(JOB, "b", sent(b""), sha256="xyz")
        assert len(left_over(artefacts.blobs)) == 2
        await artefacts.forget([JOB])
        assert await artefacts.list(JOB) == []
        assert left_over(artefacts.blobs) == []
        await artefacts.close()

    run_on_sqlite(tmp_path / "state.db", main)


def test_a_failed_replacement_keeps_what_was_there(tmp_path: Path) -> None:
    async def main(s: Stand) -> None:
        artefacts = Artefacts(s.state, FolderBlobs(tmp_path / "blobs"), limit=100)
        await artefacts.save(JOB, "a", sent(b"first"))
        with pytest.raises(HttpError):
            await artefacts.save(JOB, "a", sent(b"second"), sha256="0" * 64)
        found = await artefacts.find(JOB, "a")
        assert found is not None
        assert await taken(artefacts.read(found)) == b"first"
        await artefacts.close()

    run_on_sqlite(tmp_path / "state.db", main)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("image/png", "image/png"),
        (None, "application/octet-stream"),
        ("text/html\r\nSet-Cookie: x", "application/octet-stream"),
        ("text", "application/octet-stream"),
        ("text/plain; charset=utf-8\n", "application/octet-stream"),
        ("a/" + "b" * 200, "application/octet-stream"),
    ],
)
def test_types_cannot_forge_headers(given: str | None, kept: str) -> None:
    assert checked_type(given) == kept


# Names

FINE = ["a", "a.txt", "out/a b.txt", ".env", "übung/ß.txt", "100%.txt", "a%20b", "a..b", "日本.txt"]
EVIL = [
    "", ".", "..", "../x", "a/../b", "a/..", "/etc/passwd", "a//b", "a/", "/", "./a", "a/./b",
    "..\\x", "a\\b", "C:\\x", "C:x", "~root", "a\0b", "a\nb", "a\x1b[31m", "x" * 256,
    "%2e%2e/x", "%2e%2e%2fx", "..%2fx", "%252e%252e%252fx", "%25252e%25252e/x", "a%00b", "%2fetc",
    "a%5cb", "．．/x", "..／x", "․․/x", "a／..／b", "‥/x", "\u202ea", "a\ud800", " a", "a ", "a.",
    "a /b", "e\u0301", "é/" + "é" * 200,
]  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_names_that_are_fine(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize("name", EVIL)
def test_names_that_are_not(name: str) -> None:
    with pytest.raises(JobError, match="is not a valid file name"):
        checked_name(name)


def test_names_that_are_no_text() -> None:
    for name in (None, 3, b"a", ["a"]):
        with pytest.raises(JobError):
            checked_name(name)


DOTTED = st.text(st.sampled_from("./\\%25efC:~ a．／․‥\0é"), max_size=20)


@given(DOTTED | st.text(max_size=40))
@example("%2e%2e/")
def test_a_name_that_is_taken_stays_inside(name: str) -> None:
    from urllib.parse import unquote

    try:
        checked_name(name)
    except JobError as error:
        told = str(error)
    else:
        told = ""
    assert len(told) < 300
    assert told.isprintable()
    if told:
        return
    for form in (name, unquote(name), unquote(unquote(name))):
        for read in (form, unicodedata.normalize("NFKC", form)):
            path = os.path.normpath(f"/root/job/{read}")
            assert path.startswith("/root/job/")
            assert path != "/root/job/"
            assert "\0" not in read
            assert not re.search(r"[\r\n\x1b]", read)


# Ranges


@pytest.mark.parametrize(
    ("header", "size", "expected"),
    [
        (None, 10, None),
        ("bytes=0-4", 10, (0, 5)),
        ("bytes=5-", 10, (5, 10)),
        ("bytes=-3", 10, (7, 10)),
        ("bytes=-30", 10, (0, 10)),
        ("bytes=5-100", 10, (5, 10)),
        (" bytes = 1 - 2 ", 10, (1, 3)),
        ("bytes=4-2", 10, None),
        ("bytes=-", 10, None),
        ("bytes=0-1,3-4", 10, None),
        ("items=0-1", 10, None),
        ("bytes=a-b", 10, None),
        ("bytes=" + "9" * 30 + "-", 10, None),
    ],
)
def test_ranges(header: str | None, size: int, expected: tuple[int, int] | None) -> None:
    assert byte_range(header, size) == expected


@pytest.mark.parametrize(("header", "size"), [("bytes=10-", 10), ("bytes=-0", 10), ("bytes=0-", 0)])
def test_ranges_of_nothing(header: str, size: int) -> None:
    with pytest.raises(HttpError) as told:
        byte_range(header, size)
    assert told.value.status == 416
    assert told.value.headers == {"Content-Range": f"bytes */{size}"}


@given(st.text(max_size=20) | st.from_regex(r"bytes=\d{0,4}-\d{0,4}"), st.integers(0, 2000))
def test_whatever_is_asked_for_the_range_is_inside(header: str, size: int) -> None:
    try:
        found = byte_range(header, size)
    except HttpError:
        return
    if found is not None:
        start, stop = found
        assert 0 <= start < stop <= size


# A bucket that fails


class Broken:
    """A store that says no, in many words."""

    def __init__(self, *left: str) -> None:
        self.left = left

    def fail(self, *_: object, **__: object) -> None:
        raise RuntimeError("it is on\n fire\n\nDebug source:\nkey=hunter2")

    get_range = delete = fail

    def list(self, *_: object, **__: object) -> list[list[dict[str, str]]]:
        if not self.left:
            self.fail()
        return [[{"path": name} for name in self.left]]


def test_what_a_bucket_says_is_told_without_its_secrets() -> None:
    async def main() -> None:
        place = ObjectBlobs(Broken(), "p", "s3://bucket/p")
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: taken(place.read(JOB, "ab", 0, 10)),
            lambda: place.delete(JOB, "ab"),
            lambda: place.delete_all(JOB),
        ]
        for call in calls:
            with pytest.raises(StoreUnavailable, match=r"s3://bucket/p: it is on fire$") as told:
                await call()
            assert "hunter2" not in str(told.value)
        with pytest.raises(StoreUnavailable):
            await ObjectBlobs(Broken("p/x"), "p", "s3://bucket/p").delete_all(JOB)
        await place.close()

    asyncio.run(main())


@pytest.mark.parametrize("fails", ["write", "close"])
def test_a_bucket_that_fails_while_it_is_written_to(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    import obstore
    from obstore.store import MemoryStore

    class Writer:
        def __init__(self, real: Any) -> None:
            self._real = real

        def write(self, data: bytes) -> None:
            self._real.write(data)
            if fails == "write":
                raise RuntimeError("no")

        def close(self) -> None:
            self._real.close()  # it is there, but the answer says that it is not
            raise RuntimeError("no")

    real = obstore.open_writer
    monkeypatch.setattr(obstore, "open_writer", lambda *a, **k: Writer(real(*a, **k)))

    async def main() -> None:
        place = ObjectBlobs(MemoryStore(), "", "memory")
        with pytest.raises(StoreUnavailable, match="memory: no"):
            await place.write(JOB, sent(b"abc"), 10)
        assert left_over(place) == []
        await place.close()

    asyncio.run(main())
