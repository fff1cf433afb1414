"""Broadcasts between the processes that use a SQLite database, through a file beside it.

Each broadcast is one line that is appended. Readers remember how far they have read. The file is
emptied when it has grown; a reader may then miss a line, which only costs latency.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

from pollwise.storage.wanted import ANNOUNCE_EVERY, ANNOUNCED_FOR

#: The file is emptied when it is larger than this, in bytes.
SIZE_MAX = 64 * 1024
#: The longest line that is read, in bytes, because anybody who may write the file may write it.
LINE_MAX = 200


class BroadcastFile:
    """The file `<database>-broadcast`. Lines are `<sender> <kind>`.

    The time of the file `<database>-wanted` says when somebody last announced that frequent
    broadcasts are wanted.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self.path = database.with_name(database.name + "-broadcast")
        self._wanted = database.with_name(database.name + "-wanted")
        self._announced_at = -math.inf
        self._id = secrets.token_hex(6)
        self._read_to = self._size()

    def make(self) -> None:
        """Create the file, if it is missing."""
        if not self.path.exists():
            make_beside(self._database, self.path)

    def send(self, kind: str) -> None:
        """Append a broadcast. A failure only costs others latency, so it is not an error."""
        with suppress(OSError):
            self.make()
            with self.path.open("ab", buffering=0) as file:
                file.write(f"{self._id} {kind}\n".encode())
                if file.tell() > SIZE_MAX:
                    file.truncate(0)

    def announce(self) -> None:
        """Tell other processes that broadcasts are wanted here which are not always sent."""
        now = time.monotonic()
        if now < self._announced_at + ANNOUNCE_EVERY:
            return
        self._announced_at = now
        with suppress(OSError):
            if not self._wanted.exists():
                make_beside(self._database, self._wanted)
            with suppress(PermissionError):  # another user's file
                os.utime(self._wanted)

    def wanted(self) -> bool:
        """True if a process announced this lately."""
        try:
            return self._wanted.stat().st_mtime + ANNOUNCED_FOR > time.time()
        except OSError:
            return False

    def unread(self) -> set[str]:
        """The kinds that others sent since the last call."""
        size = self._size()
        if size == self._read_to:
            return set()
        start, self._read_to = self._read_to if size > self._read_to else 0, size
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                text = file.read(min(size - start, 2 * SIZE_MAX))
        except OSError:
            return set()
        lines = [line[:LINE_MAX].decode("ascii", "replace") for line in text.split(b"\n")]
        parts = [line.partition(" ") for line in lines]
        return {kind for sender, _, kind in parts if kind and sender != self._id}

    def after_fork(self) -> None:
        self._id = secrets.token_hex(6)

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0


def make_beside(database: Path, path: Path) -> None:
    """Create a file for all users of the database."""
    path.touch()
    path.chmod(database.stat().st_mode & 0o666)
