"""Broadcasts between the processes that use a SQLite database, through a file beside it.

Each broadcast is one line that is appended. Readers remember how far they have read. The file is
emptied when it has grown; a reader may then miss a line, which only costs latency.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pollwise.platforms.watching import MODIFIED
from pollwise.runtime.hints import Hint
from pollwise.storage.sqlite.file_hints import FileBeside, create_beside
from pollwise.storage.wanted import ANNOUNCE_EVERY, ANNOUNCED_FOR

#: The file is emptied when it is larger than this, in bytes.
SIZE_MAX = 64 * 1024
#: The longest line that is read, in bytes: any user of the database may write to the file.
LINE_MAX = 200


class BroadcastFile(FileBeside):
    """The file `<database>-broadcast`. Lines are `<sender> <kind>`.

    hear: called with the kind of each broadcast of others, between `begin` and `rest`.
    """

    events = MODIFIED

    def __init__(self, database: Path, every: float, hear: Callable[[str], None]) -> None:
        self._hear_one = hear
        self._listener = Hint()
        self._id = secrets.token_hex(6)
        super().__init__(database, "-broadcast", every)
        self._read_to = self._size()

    def begin(self) -> None:
        """Read the file from now on; first, what came since it was last read."""
        self.asleep(self._listener)

    def rest(self) -> None:
        """Read it no more."""
        self.awake(self._listener)

    def append(self, kind: str) -> None:
        """Send a broadcast. A failure only costs others latency, so it is not an error."""
        if not self._every:
            return
        with suppress(OSError):
            if not self._path.exists():
                create_beside(self._path, self._database)
            with self._path.open("ab", buffering=0) as file:
                file.write(f"{self._id} {kind}\n".encode())
                if file.tell() > SIZE_MAX:
                    file.truncate(0)

    def after_fork(self) -> None:
        super().after_fork()
        self._id = secrets.token_hex(6)

    def _changed(self) -> None:
        for kind in self._unread():
            self._hear_one(kind)

    def _unread(self) -> set[str]:
        """The kinds that others sent since the last call."""
        size = self._size()
        start, self._read_to = self._read_to if size >= self._read_to else 0, size
        try:
            with self._path.open("rb") as file:
                file.seek(start)
                text = file.read(min(size - start, 2 * SIZE_MAX))
        except OSError:
            return set()
        lines = [line[:LINE_MAX].decode("ascii", "replace") for line in text.split(b"\n")]
        parts = [line.partition(" ") for line in lines]
        return {kind for sender, _, kind in parts if kind and sender != self._id}

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0


class WantedFile:
    """The file `<database>-wanted`: its time says when somebody last wanted frequent broadcasts."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._path = database.with_name(database.name + "-wanted")
        self._announced_at = -math.inf

    def announce(self) -> None:
        """Such broadcasts are wanted here. A failure only costs latency, so it is not an error."""
        now = time.monotonic()
        if now < self._announced_at + ANNOUNCE_EVERY:
            return
        self._announced_at = now
        with suppress(OSError):
            if not self._path.exists():
                create_beside(self._path, self._database)
            os.utime(self._path)

    def wanted(self) -> bool:
        """True if somebody announced it lately."""
        try:
            return self._path.stat().st_mtime + ANNOUNCED_FOR > time.time()
        except OSError:
            return False
