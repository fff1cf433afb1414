"""Detects that the database file or the artefacts' folder of a running controller was removed, and
full disks.

A removed file stays usable for the process that has it open, but everything written to it is lost
when that process ends. So its path is checked now and then, and without it no job is accepted.
"""

from __future__ import annotations

import asyncio
import errno
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pollwise.errors import StoreUnavailable
from pollwise.runtime.clock import Clock

#: The files are checked at most once in this many seconds.
CHECK_EVERY = 1.0
#: A disk is full when a file of this many bytes cannot be written.
ROOM = 64 * 1024
#: The errors of a disk that is full for this user.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class MissingStorage(StoreUnavailable):
    """Something is missing. Clients see `reason`; the message, with the path, is for the log."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class BlobsMissing(MissingStorage):
    """Blobs cannot be stored now."""

    def __init__(self, reason: str, folder: Path) -> None:
        super().__init__(
            reason,
            f"{reason}: {str(folder)!r}; make it, mount its disk, let this user write to it, or "
            "choose another place with --artefacts",
        )


class DatabaseMissing(MissingStorage):
    """The open database is not the file at its path."""

    def __init__(self, reason: str, path: Path) -> None:
        super().__init__(
            reason,
            f"{reason}: {str(path)!r}; what is written now is lost when this controller ends, so "
            "it accepts no jobs. Stop it, restore the file from a backup, and start it again",
        )


class DiskFull(MissingStorage):
    """Nothing more can be written."""

    def __init__(self, what: str, folder: Path, problem: str) -> None:
        super().__init__(
            f"the disk of {what} is {problem}",
            f"the disk of {what} is {problem}: {str(folder)!r}; free some space, or let this user "
            "write to it",
        )


def check_room(folder: Path, what: str) -> None:
    """Raise `DiskFull` if nothing can be written to the disk of a folder. Writes a little."""
    written = 0
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            written = file.write(bytes(ROOM))
    except OSError as error:
        if error.errno == errno.EROFS:
            raise DiskFull(what, folder, "read-only") from None
        if error.errno not in NO_ROOM:  # a missing folder is reported elsewhere
            return
    if written < ROOM:
        raise DiskFull(what, folder, "full")


class OpenFiles:
    """The database files that a controller has open."""

    def __init__(self, paths: Iterable[Path], clock: Clock) -> None:
        self._paths = list(dict.fromkeys(path.absolute() for path in paths))
        self._clock = clock
        self._seen: dict[Path, tuple[int, int]] = {}
        self._checked_at = -CHECK_EVERY
        self._missing: tuple[str, Path] | None = None

    async def check(self, *, at_once: bool = True) -> None:
        """Raise `DatabaseMissing` if one is missing; without `at_once`, as of the last second."""
        if self._paths and (at_once or self._clock.now() - self._checked_at >= CHECK_EVERY):
            self._checked_at = self._clock.now()
            loop = asyncio.get_running_loop()
            self._missing = await loop.run_in_executor(None, self._find_missing)
        if self._missing is not None:
            raise DatabaseMissing(*self._missing)

    async def check_room(self) -> None:
        """Raise `DiskFull` if the disk of a database is full."""
        loop = asyncio.get_running_loop()
        for folder in {path.parent for path in self._paths}:
            await loop.run_in_executor(None, check_room, folder, "the database")

    def _find_missing(self) -> tuple[str, Path] | None:
        """The first missing file, and why."""
        for path in self._paths:
            try:
                found = path.stat()
            except OSError:
                if path in self._seen:  # otherwise it is not made yet
                    return "the database file is gone", path
                continue
            known = self._seen.setdefault(path, (found.st_dev, found.st_ino))
            if known != (found.st_dev, found.st_ino):
                return "another file is in the place of the database", path
        return None
