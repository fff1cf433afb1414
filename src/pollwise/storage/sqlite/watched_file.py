"""Hints between processes through files beside the database."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from pollwise.platforms.watching import ATTRIBUTES
from pollwise.runtime.hints import Listening
from pollwise.storage.sqlite.broadcasts import BroadcastFile, WantedFile
from pollwise.storage.sqlite.file_hints import FileBeside, create_beside


class WatchedFile(FileBeside):
    """Hints to and from other processes through the file `<database>-hint`, which a put touches.

    Broadcasts have a file of their own, because they end no pause and are heard while busy.
    """

    events = ATTRIBUTES

    def __init__(self, database: Path, every: float) -> None:
        self._broadcasts = BroadcastFile(database, every, self._hear)
        self._wanted_file = WantedFile(database)
        super().__init__(database, "-hint", every)
        self._touched = str(self._path)  # quicker to use than a Path

    def opened(self) -> None:
        super().opened()
        self._broadcasts.opened()

    def close(self) -> None:
        super().close()
        self._broadcasts.close()

    def listen(
        self, heard: Callable[[str], None], kinds: Collection[str] | None = None
    ) -> Listening:
        listening = super().listen(heard, kinds)
        self._broadcasts.begin()
        return listening

    def stop_listening(self, listening: Listening) -> None:
        super().stop_listening(listening)
        if not self._listeners:
            self._broadcasts.rest()

    def _broadcast_to_others(self, kind: str) -> None:
        self._broadcasts.append(kind)

    def announce(self, kind: str) -> None:
        if self._every:
            self._wanted_file.announce()

    def _others_want(self, kind: str) -> bool:
        return self._wanted_file.wanted()

    def send_to_others(self, count: int = 1, kinds: Iterable[str] | None = None) -> None:
        """Touch the file. A failure only costs others latency, so it is not an error."""
        now = time.time_ns()
        try:
            try:
                os.utime(self._touched, ns=(now, now))
                self._seen = [now, 0]  # what `_stamps` would return: the file is always empty
                return
            except FileNotFoundError:
                create_beside(self._path, self._database)
            except PermissionError:  # another user's file: it can be touched but not dated
                os.utime(self._path)
        except OSError:
            return
        self._seen = self._stamps()
