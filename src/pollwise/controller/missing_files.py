"""What a controller works on may be taken away under it: its database file, its artefacts' folder.

A file that was removed is there for who has it open, and what is written to it is lost when that
process ends. So it is looked for by its path now and then, and nothing is taken in without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from pollwise.errors import StoreUnavailable
from pollwise.runtime.clock import Clock

#: Who submits asks at most so often whether the file is still there, in seconds.
LOOK_EVERY = 1.0


class MissingStorage(StoreUnavailable):
    """Something is missing. `reason` is for anybody; the message, with the place, is not."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class BlobsMissing(MissingStorage):
    """Blobs cannot be kept now."""

    def __init__(self, reason: str, folder: Path) -> None:
        super().__init__(
            reason,
            f"{reason}: {str(folder)!r}; make it, mount what it lies on, let this user write to "
            "it, or name another place by --artefacts",
        )


class DatabaseMissing(MissingStorage):
    """The database that is open is not the one at its path."""

    def __init__(self, reason: str, path: Path) -> None:
        super().__init__(
            reason,
            f"{reason}: {str(path)!r}; what is written now is lost when this controller ends, so "
            "no job is taken in. Stop it, put the file back from a backup, and start it again",
        )


class OpenFiles:
    """The database files that a controller has open."""

    def __init__(self, paths: Iterable[Path], clock: Clock) -> None:
        self._paths = list(dict.fromkeys(path.absolute() for path in paths))
        self._clock = clock
        self._seen: dict[Path, tuple[int, int]] = {}
        self._looked_at = -LOOK_EVERY
        self._missing: tuple[str, Path] | None = None

    async def check(self, *, at_once: bool = True) -> None:
        """`DatabaseMissing` if one is not there any more; `at_once`, or as it was a moment ago."""
        if self._paths and (at_once or self._clock.now() - self._looked_at >= LOOK_EVERY):
            self._looked_at = self._clock.now()
            loop = asyncio.get_running_loop()
            self._missing = await loop.run_in_executor(None, self._look)
        if self._missing is not None:
            raise DatabaseMissing(*self._missing)

    def _look(self) -> tuple[str, Path] | None:
        """Which is missing, and how so."""
        for path in self._paths:
            try:
                found = path.stat()
            except OSError:
                if path in self._seen:  # else it is not made yet
                    return "the database file is gone", path
                continue
            known = self._seen.setdefault(path, (found.st_dev, found.st_ino))
            if known != (found.st_dev, found.st_ino):
                return "another file is in the place of the database", path
        return None
