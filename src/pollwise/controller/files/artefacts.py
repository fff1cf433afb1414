"""The files of jobs: inputs that came with them, artefacts that their runs made.

The state knows them by name; their bytes are blobs. A file that is sent again replaces the one of
its name when it is whole and its row is written, and not before.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import suppress
from dataclasses import replace
from urllib.parse import unquote

from pollwise.controller.files.blobs import Blobs, too_large
from pollwise.controller.http.answers import HttpError
from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.values import ArtefactRow
from pollwise.errors import JobError, StoreError, StoreUnavailable

#: The longest name, in characters, and the longest part of one, in bytes: what file systems take.
NAME_MAX = 255
PART_BYTES_MAX = 255
#: What stands for bytes in a URL that are no UTF-8: two names would become one.
UNREADABLE = "\ufffd"
#: The most files of a job.
MOST = 1000

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(?:; ?[\w-]+=[\w.+-]+)*\Z", re.ASCII)
_RANGE = re.compile(r"\s*bytes\s*=\s*(\d{0,19})\s*-\s*(\d{0,19})\s*\Z", re.ASCII)
_DRIVE = re.compile(r"[A-Za-z]:")


def checked_name(name: object) -> str:
    """The name of a file, or a JobError that says what is wrong with it.

    Relative, with `/` between its parts. What would lead elsewhere is refused also where it is
    escaped, or written in characters that become dots and slashes when they are normalised:
    whoever gets the file may do either.
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
    """The one range that a Range header asks for, as (start, stop); None for all of it.

    What cannot be read, or asks for several, is ignored, as it may be; 416 for what is not there.
    """
    found = _RANGE.match(header) if header else None
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:  # the last so many
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

    limit: the most bytes of one; most: the most files of a job, of either sort.
    """

    def __init__(
        self, state: ControllerState, blobs: Blobs, *, limit: int = 1024**3, most: int = MOST
    ) -> None:
        self._state = state
        self.blobs = blobs
        self.limit = limit
        self._most = most

    async def save(
        self,
        job_id: str,
        name: str,
        chunks: AsyncIterable[bytes],
        *,
        input: bool = False,
        sha256: str | None = None,
        content_type: str | None = None,
        length: int | None = None,
        by: str = "",
    ) -> ArtefactRow:
        """Keep a file as it comes in; whatever fails, what was there before is there still.

        sha256: what it must be. length: what its sender said, to refuse what is too long at once.
        """
        checked = checked_name(name)
        expected = checked_sha256(sha256)
        if length is not None and length > self.limit:
            raise too_large(self.limit)
        written = await self.blobs.write(job_id, chunks, self.limit, expected)
        row = ArtefactRow(
            job_id,
            checked,
            written.blob,
            written.size,
            written.sha256,
            input=input,
            content_type=checked_type(content_type),
            created_by=by,
        )
        try:
            before = await self._state.put_artefact(row, self._most)
        except StoreUnavailable:
            raise  # the row may be there: the blob stays, and goes with the job
        except Exception:
            with suppress(StoreError):
                await self.blobs.delete(job_id, written.blob)
            raise
        if before is not None:
            with suppress(StoreError):  # what stays goes with the job
                await self.blobs.delete(job_id, before.blob)
        # As the store keeps it: by its clock. Gone or replaced already, it is what was sent.
        stored = await self._state.artefact(job_id, checked, input=input)
        if stored is None or stored.blob != row.blob:
            return replace(row, created_at=self._state.clock.epoch())
        return stored

    async def list(self, job_id: str, *, input: bool = False) -> list[ArtefactRow]:
        return await self._state.artefacts(job_id, input=input)

    async def find(self, job_id: str, name: str, *, input: bool = False) -> ArtefactRow | None:
        """The file of a name; None if there is none, whatever is wrong with the name."""
        try:
            checked_name(name)
        except JobError:
            return None
        return await self._state.artefact(job_id, name, input=input)

    def read(
        self, row: ArtefactRow, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[bytes]:
        """Its bytes from `start` to before `stop`, a piece at a time."""
        return self.blobs.read(row.job_id, row.blob, start, row.size if stop is None else stop)

    async def delete_all(self, job_id: str) -> None:
        """Delete all bytes of a job; its rows go with the job."""
        await self.blobs.delete_all(job_id)

    async def close(self) -> None:
        await self.blobs.close()


def checked_type(content_type: str | None) -> str:
    """A media type as a client sends it; what is none of the usual form is plain bytes."""
    if content_type is None or len(content_type) > 100 or not _TYPE.match(content_type):
        return "application/octet-stream"
    return content_type


def _forms(name: str) -> set[str]:
    """A name as it is, and as others might read it."""
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
    return JobError(f"the name {shown[:80]} cannot be that of a file: {wrong}")
