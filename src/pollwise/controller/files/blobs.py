"""Where the bytes of artefacts are stored: in a folder or an object store.

A blob is written once, under a unique name, and exists as a whole or not at all. We make its name:
the name of an artefact never becomes a path. All blobs of a job are stored together, so leftovers
of a crash are deleted with the job.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

from pollwise.controller.http.answers import HttpError, bytes_gone
from pollwise.controller.missing_files import NO_ROOM, BlobsMissing, check_room
from pollwise.errors import ConfigError, StoreError, StoreUnavailable
from pollwise.platforms.files import BINARY, NO_FOLLOW, NOT_INHERITED
from pollwise.runtime.redact import split_url, without_secrets

T = TypeVar("T")
#: The bytes of a blob, read as they are asked for.
Pieces = Generator[bytes, None, None]

#: The size of a write, and of a read, in bytes: the memory that a transfer takes.
PIECE = 256 * 1024
#: The maximum number of writes and reads at a time.
THREADS = 8
#: The size of a part in an object store, which takes at least 5 MiB.
PART = 5 * 1024 * 1024
#: How long one request to an object store may take, unless its URL says otherwise.
TIMEOUT = "2m"

#: Its last two characters name a folder too, so it does not end with a dot.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9])?\Z")


@dataclass(frozen=True, slots=True)
class Written:
    """A blob that was written."""

    blob: str
    size: int
    sha256: str


class BlobWriter(ABC):
    """Writes a blob. Its calls block and are made one at a time, from any thread."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def write(self, data: bytes) -> None: ...

    @abstractmethod
    def finish(self) -> None:
        """Complete the blob, so that it survives a power cut."""

    @abstractmethod
    def abandon(self) -> None:
        """Remove what was written. Never raises."""


def is_no_room(error: OSError) -> bool:
    return error.errno in NO_ROOM


def no_room() -> HttpError:
    return HttpError(
        507,
        "no_room",
        "the controller has no room for this file; nothing was stored",
        "Try again later, or ask an admin to free some space.",
        {"Retry-After": "60"},
    )


class Blobs(ABC):
    """A store of blobs. Errors that the sender can act on are `HttpError`."""

    #: Where it is, without secrets.
    url: str

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="pollwise-blobs")

    async def write(
        self, folder: str, chunks: AsyncIterable[bytes], limit: int, expected: str | None = None
    ) -> Written:
        """Write a blob of a job as it arrives; if anything fails, nothing of it stays.

        limit: the most bytes. expected: its SHA-256 in hex, if known.
        """
        blob = secrets.token_hex(16)
        writer = self._writer(_checked(folder), blob)
        digest, size, held = hashlib.sha256(), 0, bytearray()
        try:
            await self._in_full(writer.begin)
            async for chunk in chunks:
                size += len(chunk)
                if size > limit:
                    raise too_large(limit)
                held += chunk
                if len(held) >= PIECE:
                    await self._in_full(_put, writer, digest, bytes(held))
                    held.clear()
            await self._in_full(_put, writer, digest, bytes(held))
            found = digest.hexdigest()
            if expected is not None and found != expected:
                raise _wrong_checksum(expected, found)
            await self._in_full(writer.finish)
        except OSError as error:
            await self._in_full(writer.abandon)
            raise self._explained_os(error) from None
        except BaseException:
            await self._in_full(writer.abandon)
            raise
        return Written(blob, size, found)

    async def read(self, folder: str, blob: str, start: int, stop: int) -> AsyncIterator[bytes]:
        """The bytes from `start` up to `stop`, in pieces."""
        if start >= stop:
            return
        pieces = self._pieces(_checked(folder), _checked(blob), start, stop)
        try:
            while piece := await self._in_full(next, pieces, b""):
                yield piece
        except FileNotFoundError:
            await self.check()  # or is the whole folder missing?
            raise bytes_gone() from None
        except OSError as error:
            raise self._explained_os(error) from None
        finally:
            await self._in_full(pieces.close)

    async def delete(self, folder: str, blob: str) -> None:
        """Delete a blob, if it exists."""
        await self._in_full(self._delete, _checked(folder), _checked(blob))

    async def delete_all(self, folder: str) -> None:
        """Delete all blobs of a job, unfinished ones included."""
        await self._in_full(self._delete_all, _checked(folder))

    async def check(self) -> None:
        """Raise `BlobsMissing` if blobs cannot be stored.

        A bucket is not checked: each check costs money, and readiness is checked all the time.
        """
        return

    async def close(self) -> None:
        self._threads.shutdown(wait=False)

    @abstractmethod
    def _writer(self, folder: str, blob: str) -> BlobWriter: ...

    @abstractmethod
    def _pieces(self, folder: str, blob: str, start: int, stop: int) -> Pieces: ...

    @abstractmethod
    def _delete(self, folder: str, blob: str) -> None: ...

    @abstractmethod
    def _delete_all(self, folder: str) -> None: ...

    def _explained_os(self, error: OSError) -> Exception:
        if is_no_room(error):
            return no_room()
        return StoreUnavailable(f"{self.url}: {error.strerror or error}")

    async def _in_full(self, call: Callable[..., T], *args: Any) -> T:
        """Call in a thread, and wait for its end even if cancelled: one call per file at a time."""
        loop = asyncio.get_running_loop()
        step = loop.run_in_executor(self._threads, partial(call, *args))
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            while not step.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([step])
            if not step.cancelled():
                step.exception()  # retrieved, so that asyncio does not log it
            raise


class FolderBlobs(Blobs):
    """Blobs as files: `folder/<last two digits of the job>/<job>/<blob>`."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.folder: Path = Path(folder).absolute()
        self.url: str = f"file://{self.folder}"
        #: The disk on which it was last seen.
        self._disk: int | None = None

    async def check(self) -> None:
        await self._in_full(self._check)
        await self._in_full(check_room, self.folder, "the artefacts")

    def _check(self) -> None:
        """Make the folder on the first check; if it is missing later, somebody removed it."""
        first = self._disk is None
        if first:
            with suppress(OSError):
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = False
        with suppress(OSError):
            there = self.folder.is_dir()
        if not there:
            gone = "cannot be made" if first else "is gone"
            raise BlobsMissing(f"the folder for artefacts {gone}", self.folder)
        disk = self.folder.stat().st_dev
        # An unmounted disk leaves an empty folder; mounted again, the disk may have a new number.
        if disk != self._disk and not first and not any(self.folder.iterdir()):
            raise BlobsMissing("the disk with the folder for artefacts is gone", self.folder)
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise BlobsMissing("the folder for artefacts cannot be written to", self.folder)
        self._disk = disk

    def _writer(self, folder: str, blob: str) -> BlobWriter:
        return _FileWriter(self._of(folder) / blob, self._check)

    def _pieces(self, folder: str, blob: str, start: int, stop: int) -> Pieces:
        path = self._of(folder) / blob
        _check_folder(path.parent)
        with os.fdopen(os.open(path, os.O_RDONLY | _FLAGS), "rb", buffering=0) as file:
            file.seek(start)
            while start < stop and (piece := file.read(min(stop - start, PIECE))):
                start += len(piece)
                yield piece

    def _delete(self, folder: str, blob: str) -> None:
        with suppress(FileNotFoundError):
            (self._of(folder) / blob).unlink()

    def _delete_all(self, folder: str) -> None:
        path = self._of(folder)
        if path.is_symlink():
            path.unlink()
            return
        with suppress(FileNotFoundError):
            shutil.rmtree(path)
        with suppress(OSError):  # it is not empty
            path.parent.rmdir()

    def _of(self, folder: str) -> Path:
        return self.folder / folder[-2:] / folder


class _FileWriter(BlobWriter):
    """Writes to a temporary file and renames it, so that the blob is complete."""

    def __init__(self, path: Path, check: Callable[[], None]) -> None:
        self._path = path
        self._check = check
        self._part = path.with_suffix(".part")
        self._descriptor = -1

    def begin(self) -> None:
        self._check()
        folder = self._path.parent
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS
        for tries in range(3):  # a deletion of the job's last blob removes its folder
            try:
                for each in (folder.parent, folder):  # never the folder above, which was checked
                    each.mkdir(mode=0o700, exist_ok=True)
                _check_folder(folder)
                self._descriptor = os.open(self._part, flags, 0o600)
                return
            except FileNotFoundError:
                if tries == 2:
                    raise

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]

    def finish(self) -> None:
        os.fsync(self._descriptor)  # a full disk may be reported only now
        self._close()
        self._part.replace(self._path)
        _sync_folder(self._path.parent)

    def abandon(self) -> None:
        with suppress(OSError):
            self._close()
        for path in (self._part, self._path):
            with suppress(OSError):
                path.unlink()
        with suppress(OSError):  # it may not be empty
            self._path.parent.rmdir()

    def _close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class ObjectBlobs(Blobs):
    """Blobs as objects of an obstore store: `prefix/<job>/<blob>`."""

    def __init__(self, store: Any, prefix: str, url: str) -> None:
        super().__init__()
        self._store = store
        self._prefix = prefix.strip("/")
        self.url = url

    def _writer(self, folder: str, blob: str) -> BlobWriter:
        return _ObjectWriter(self._store, self._name(folder, blob), self._explained)

    def _pieces(self, folder: str, blob: str, start: int, stop: int) -> Pieces:
        # One request per part: a slow reader keeps no connection to the store.
        name = self._name(folder, blob)
        for first in range(start, stop, PART):
            with self._explained():
                part = self._store.get_range(name, start=first, end=min(first + PART, stop))
            whole = memoryview(part)
            for at in range(0, len(whole), PIECE):
                yield bytes(whole[at : at + PIECE])

    def _delete(self, folder: str, blob: str) -> None:
        with suppress(FileNotFoundError), self._explained():
            self._store.delete(self._name(folder, blob))

    def _delete_all(self, folder: str) -> None:
        names: list[str] = []
        with suppress(FileNotFoundError), self._explained():
            pages = self._store.list(self._name(folder, ""), chunk_size=1000)
            names = [meta["path"] for page in pages for meta in page]
        for name in names:
            with suppress(FileNotFoundError), self._explained():
                self._store.delete(name)

    def _name(self, folder: str, blob: str) -> str:
        return "/".join(part for part in (self._prefix, folder, blob) if part)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise errors of the store without obstore's debug dump, which may contain secrets."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            said = without_secrets(str(error).partition("\n\nDebug source")[0])
            raise StoreUnavailable(f"{self.url}: {' '.join(said.split())[:300]}") from None


class _ObjectWriter(BlobWriter):
    """Sends the object in parts; it exists when the last one has arrived."""

    def __init__(
        self, store: Any, name: str, explained: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._store = store
        self._name = name
        self._explained = explained
        self._writer: Any = None
        self._finishing = False

    def begin(self) -> None:
        from obstore import open_writer

        self._writer = open_writer(self._store, self._name, buffer_size=PART, max_concurrency=2)

    def write(self, data: bytes) -> None:
        with self._explained():
            self._writer.write(data)

    def finish(self) -> None:
        self._finishing = True
        with self._explained():
            self._writer.close()

    def abandon(self) -> None:
        self._writer = None  # the store discards parts that were sent
        if self._finishing:
            with suppress(Exception):
                self._store.delete(self._name)


def open_blobs(url: str | Path) -> Blobs:
    """The blobs at a path or URL: `file:///…`, `s3://…`, `gs://…`, `az://…`."""
    text = str(url)
    if "://" not in text:
        return FolderBlobs(text)
    parts = split_url(text)
    shown = repr(without_secrets(text))
    if parts.scheme == "file":
        if parts.netloc or not parts.path.strip("/"):
            raise ConfigError(f"{shown} does not name a folder; write file:///var/lib/pollwise")
        return FolderBlobs(unquote(parts.path))
    if parts.scheme not in ("s3", "gs", "az"):
        raise ConfigError(
            f"artefacts = {shown} is neither a folder nor the URL of a bucket; give a path, "
            "file:///folder, s3://bucket/prefix, gs:// or az://"
        )
    options = dict(parse_qsl(parts.query))
    for key in options:
        if key not in _OPTIONS[parts.scheme]:
            known = ", ".join(_OPTIONS[parts.scheme])
            raise ConfigError(f"artefacts = {shown} has no option {key!r}; the options are {known}")
    if parts.username or parts.password or not parts.netloc:
        raise ConfigError(
            f"artefacts = {shown} must name a bucket, without credentials; put those into "
            "the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    from pollwise.queues.objects.opening import remote_store

    options.setdefault("timeout", TIMEOUT)
    store = remote_store(parts.scheme, parts.netloc, options, retries=5, what="artefacts")
    prefix = unquote(parts.path).strip("/")
    return ObjectBlobs(store, prefix, f"{parts.scheme}://{parts.netloc}/{prefix}")


_OPTIONS = {
    "s3": ("region", "endpoint", "timeout"),
    "gs": ("timeout",),
    "az": ("account", "endpoint", "timeout"),
}


def too_large(limit: int) -> HttpError:
    return HttpError(
        413,
        "too_large",
        f"the file has more than {limit} bytes; nothing was stored",
        "Split it, or ask an admin to raise artefact_limit.",
    )


def _wrong_checksum(expected: str, found: str) -> HttpError:
    return HttpError(
        422,
        "wrong_checksum",
        f"the SHA-256 of the data is {found}, not {expected}; nothing was stored",
        "Send it again; it was changed or cut off on the way.",
    )


_FLAGS = NO_FOLLOW | NOT_INHERITED | BINARY


def _checked(name: str) -> str:
    """Check an id or the name of a blob, which becomes part of a path."""
    if not _NAME.match(name):
        raise ConfigError(f"{name[:80]!r} cannot be the name of a folder")
    return name


def _put(writer: BlobWriter, digest: Any, data: bytes) -> None:
    if data:
        digest.update(data)
        writer.write(data)


def _check_folder(folder: Path) -> None:
    """Refuse a folder that was replaced by a link."""
    if folder.is_symlink() or folder.parent.is_symlink():
        raise StoreError(f"{folder} is a link that the controller did not make; remove it")


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # some systems cannot
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
