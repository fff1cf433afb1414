"""A folder into which others put files."""

from __future__ import annotations

import asyncio
import fnmatch
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, StoreError, StoreUnavailable
from pollwise.platforms.watching import CREATED, MOVED_TO, WRITTEN
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hints
from pollwise.sources.base import LIMIT, State
from pollwise.sources.cursors import CursorStore
from pollwise.sources.listed import REMEMBERED, ListedSource, digest_of
from pollwise.storage.sqlite.file_hints import FileHints

#: A file that changed less than this many seconds ago may still be being written.
QUIET = 1.0
#: How often to compare time stamps where the kernel does not report changes, in seconds.
LOOK_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class FolderFile:
    """A file: its path, its size in bytes, and when it was changed, in seconds since 1970."""

    path: Path
    size: int
    changed_at: float


class FolderHints(FileHints):
    """Hints from files that are put into a folder, or written there."""

    events = MOVED_TO | CREATED | WRITTEN

    def _read_changes(self) -> None:
        super()._read_changes()
        self._changed()


class Folder(ListedSource[FolderFile]):
    """The files of a folder, each once; a file that is changed afterwards is delivered again.

        async with Folder("inbox", "*.csv", cursor="sqlite:///cursors.db") as inbox:
            async for files in pollwise.poll(inbox, Adaptive("1s", "1m")):
                for file in files:
                    load(file.path)

    pattern: which names, as `*.csv`. Hidden files, links and folders are never delivered.
    quiet: a file is delivered once its last change was this long ago; before, it may still be
        being written. If writers move finished files here, 0 is enough.
    watch: let the kernel report new files, which ends a pause early. Only Linux does (inotify);
        elsewhere time stamps are compared once a second.

    Move or delete files that are done: a folder with more than 10,000 that match is an error.
    """

    def __init__(
        self,
        path: str | Path,
        pattern: str = "*",
        *,
        cursor: str | CursorStore | None = None,
        name: str | None = None,
        limit: int = LIMIT,
        quiet: Duration = QUIET,
        watch: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.path: Path = Path(path).absolute()
        super().__init__(name or f"folder:{self.path}/{pattern}", cursor, limit=limit, clock=clock)
        if not isinstance(pattern, str) or not pattern or "/" in pattern:
            raise ConfigError(f"pattern = {pattern!r} must be that of a name, such as '*.csv'")
        self.pattern = pattern
        self.quiet: float = seconds(quiet, "quiet")
        self.hints: Hints = FolderHints([self.path], LOOK_EVERY) if watch else Hints()

    async def _list(self, state: State) -> Sequence[tuple[str, FolderFile]]:
        files, wait = await asyncio.to_thread(self._scan)
        self.hints.opened()
        if wait is not None:
            self.hints.send_at(asyncio.get_running_loop().time() + wait)
        return [
            (digest_of(file.path.name, file.size, stamp), file) for stamp, file in sorted(
                files, key=lambda each: (each[0], each[1].path.name)
            )
        ]  # fmt: skip

    def _scan(self) -> tuple[list[tuple[int, FolderFile]], float | None]:
        """The files with their time stamps, and the seconds until one more is quiet, if any."""
        now = self.clock.epoch()
        found: list[tuple[int, FolderFile]] = []
        wait: float | None = None
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    name = entry.name
                    if name.startswith(".") or not fnmatch.fnmatchcase(name, self.pattern):
                        continue
                    try:
                        about = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if not stat.S_ISREG(about.st_mode):
                        continue
                    # A time in the future comes from another clock, and says nothing.
                    age = now - about.st_mtime
                    if 0 <= age < self.quiet:
                        wait = min(self.quiet - age, self.quiet if wait is None else wait)
                        continue
                    if len(found) == REMEMBERED:
                        raise StoreError(
                            f"{self.path} holds more than {REMEMBERED:,} files that match "
                            f"{self.pattern!r}; move away or delete those that are done"
                        )
                    file = FolderFile(self.path / name, about.st_size, about.st_mtime)
                    found.append((about.st_mtime_ns, file))
        except FileNotFoundError:
            raise StoreUnavailable(f"{self.path} does not exist; create the folder") from None
        except OSError as error:
            said = error.strerror or type(error).__name__
            raise StoreUnavailable(f"{self.path} cannot be read: {said}") from None
        return found, wait
