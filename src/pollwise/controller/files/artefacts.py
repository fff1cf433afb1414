"""The files of jobs: inputs that came with a job, artefacts that a run made.

The state has their names; their bytes are blobs. A file that is sent again replaces the old one
only when it is complete and its row is written.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from urllib.parse import unquote

from pollwise.controller.files.blobs import Blobs, too_large
from pollwise.controller.http.answers import HttpError
from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.values import ArtefactRow
from pollwise.errors import JobError, StoreError, StoreUnavailable

#: The longest name, in characters, and the longest part of one, in bytes, as in file systems.
NAME_MAX = 255
PART_BYTES_MAX = 255
#: Replaces bytes in a URL that are not UTF-8: two names could become the same.
UNREADABLE = "\ufffd"
#: The maximum number of files of a job.
FILES_MAX = 1000

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(?:; ?[\w-]+=[\w.+-]+)*\Z", re.ASCII)
_RANGE = re.compile(r"\s*bytes\s*=\s*(\d{0,19})\s*-\s*(\d{0,19})\s*\Z", re.ASCII)
_DRIVE = re.compile(r"[A-Za-z]:")


def checked_name(name: object) -> str:
    """The name of a file; raises `JobError` for an unsafe one.

    It is relative, with `/` between its parts. A name that leads out of the folder is refused even
    if it is escaped, or written in characters that become dots and slashes when normalised: the
    receiver of the file may do either.
    """
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX:
        raise _bad_name(name, f"it must have 1 to {NAME_MAX} characters")
    if not name.isprintable() or UNREADABLE in name:
        raise _bad_name(name, "all of its characters must be printable, and UTF-8")
    if unicodedata.normalize("NFC", name) != name:
        raise _bad_name(name, "write it in composed characters (NFC)")
    for form in _forms(name):
        wrong = _leads_elsewhere(form)
        if wrong:
            raise _bad_name(name, wrong)
    if any(len(part.encode()) > PART_BYTES_MAX for part in name.split("/")):
        raise _bad_name(name, f"no part of it may have more than {PART_BYTES_MAX} bytes")
    return name


def checked_sha256(value: str | None) -> str | None:
    """A checksum as a client sends it; None if it sends none."""
    if value is None:
        return None
    digest = value.strip().lower()
    if not _SHA256.match(digest):
        raise JobError("X-Checksum-SHA256 must be a SHA-256 in 64 hex digits")
    return digest


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """The range that a Range header asks for, as (start, stop); None for everything.

    An unreadable header, or one with several ranges, is ignored; 416 for a range out of bounds.
    """
    found = _RANGE.match(header) if header else None
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:  # the last bytes
        length = min(int(found[2]), size)
        start, stop = size - length, size
    else:
        start = int(found[1])
        stop = min(int(found[2]) + 1, size) if found[2] else size
        if found[2] and int(found[2]) < start:
            return None
    if start >= size or start >= stop:
        raise HttpError(
            416,
            "no_such_range",
            f"there are {size} bytes, and the range asks for none of them",
            f"Ask for a range within bytes 0-{max(size - 1, 0)}.",
            {"Content-Range": f"bytes */{size}"},
        )
    return start, stop


class Artefacts:
    """The files of a state's jobs.

    limit: the most bytes of a file. max_files: the most inputs, and the most artefacts, of a job.
    """

    def __init__(
        self,
        state: ControllerState,
        blobs: Blobs,
        *,
        limit: int = 1024**3,
        max_files: int = FILES_MAX,
    ) -> None:
        self._state = state
        self.blobs = blobs
        self.limit = limit
        self._max_files = max_files

    async def save(
        self,
        folder: str,
        name: str,
        chunks: AsyncIterable[bytes],
        *,
        input: bool = False,
        sha256: str | None = None,
        content_type: str | None = None,
        length: int | None = None,
        by: str = "",
    ) -> ArtefactRow:
        """Store a file as it arrives; if anything fails, the old file of the name stays.

        sha256: the expected checksum. length: the announced size, to refuse a large file at once.
        """
        checked = checked_name(name)
        expected = checked_sha256(sha256)
        if length is not None and length > self.limit:
            raise too_large(self.limit)
        written = await self.blobs.write(folder, chunks, self.limit, expected)
        row = ArtefactRow(
            folder,
            checked,
            written.blob,
            written.size,
            written.sha256,
            input=input,
            content_type=checked_type(content_type),
            created_by=by,
        )
        try:
            before = await self._state.put_artefact(row, self._max_files)
        except StoreUnavailable:
            raise  # the row may exist: the blob is deleted with its folder
        except Exception:
            with suppress(StoreError):
                await self.blobs.delete(folder, written.blob)
            raise
        if before is not None:
            with suppress(StoreError):  # what is left is deleted with the folder
                await self.blobs.delete(folder, before.blob)
        # The stored row, with the store's time; the given one if it was deleted or replaced.
        stored = await self._state.artefact(folder, checked, input=input)
        if stored is None or stored.blob != row.blob:
            return replace(row, created_at=self._state.clock.epoch())
        return stored

    async def list(self, folder: str, *, input: bool = False) -> list[ArtefactRow]:
        return await self._state.artefacts(folder, input=input)

    async def find(self, folder: str, name: str, *, input: bool = False) -> ArtefactRow | None:
        """The file of a name; None if there is none, or the name is invalid."""
        try:
            checked_name(name)
        except JobError:
            return None
        return await self._state.artefact(folder, name, input=input)

    def read(
        self, row: ArtefactRow, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[bytes]:
        """Its bytes from `start` up to `stop`, in pieces."""
        return self.blobs.read(row.folder, row.blob, start, row.size if stop is None else stop)

    async def attach(self, folder: str, job: str) -> None:
        """Note that the inputs in a folder belong to the job with the folder `job`."""
        await self._state.attach(folder, job)

    async def forget(self, folders: Sequence[str]) -> None:
        """Delete the files and the logs in these folders."""
        for folder in folders:
            await self.blobs.delete_all(folder)
        await self._state.forget(folders)

    async def close(self) -> None:
        await self.blobs.close()


def checked_type(content_type: str | None) -> str:
    """The media type that a client sent; plain bytes if it is unusual."""
    if content_type is None or len(content_type) > 100 or not _TYPE.match(content_type):
        return "application/octet-stream"
    return content_type


def _forms(name: str) -> set[str]:
    """A name as it is, and as others might decode it."""
    forms = {name}
    text = name
    for _ in range(3):
        text = unquote(text)
        forms.add(text)
    return forms | {unicodedata.normalize("NFKC", form) for form in forms}


def _leads_elsewhere(form: str) -> str | None:
    if "\\" in form:
        return "it must not contain a backslash"
    if not form.isprintable():
        return "all of its characters must be printable, also when it is unescaped"
    if form.startswith(("/", "~")) or _DRIVE.match(form):
        return "it must be relative"
    for part in form.split("/"):
        if part in ("", ".", ".."):
            return "no part of it may be empty, '.' or '..'"
        if part != part.strip() or part.endswith("."):
            return "no part of it may begin or end with a space, or end with a dot"
    return None


def _bad_name(name: object, wrong: str) -> JobError:
    shown = repr(name)
    return JobError(f"{shown[:80]} is not a valid file name: {wrong}")
