"""Hints from changes of files.

On Linux the kernel reports a change (inotify): a pause costs nothing and the hint arrives at once.
Elsewhere, or if the kernel has no watch left, a pause compares time stamps now and then. Neither
opens a transaction nor takes a lock, so the database stays untouched.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from pollwise.platforms.files import set_mode
from pollwise.platforms.watching import can_watch, inotify
from pollwise.runtime.events import Events, JournalGrew
from pollwise.runtime.hints import Hint, Hints
from pollwise.storage.sqlite.write_ahead_log import text_of_large_log


class FileHints(Hints):
    """Hints from changes of files.

    events: which changes the kernel reports.
    paths: the files.
    every: how often to compare time stamps if the kernel cannot report changes; 0 turns both off.
    """

    events: ClassVar[int]

    def __init__(self, paths: Sequence[Path], every: float) -> None:
        super().__init__()
        self._paths = paths
        self._every = every
        self._opened = False
        self._seen = self._stamps()
        self._loop: asyncio.AbstractEventLoop | None = None  # of the reader and the timers
        self._watch: int | None = None  # inotify's file descriptor
        self._watched: list[int] = []  # the inodes that it is about
        self._cannot_watch = not can_watch()
        self._reading = False
        self._next_look: asyncio.TimerHandle | None = None
        self._reports: dict[int, tuple[str, Events, asyncio.AbstractEventLoop | None]] = {}

    def report_to(self, source: str, events: Events) -> None:
        self._reports[id(events)] = source, events, asyncio._get_running_loop()

    def report_large_log(self, path: Path, size: int) -> None:
        """Emit `JournalGrew` for a database, from any thread."""
        for source, events, loop in list(self._reports.values()):
            grew = JournalGrew(source, size, *text_of_large_log(path, size))
            if loop is None:
                events.emit(grew)
            else:
                with suppress(RuntimeError):  # the event loop is closed
                    loop.call_soon_threadsafe(events.emit, grew)

    def _changed(self) -> None:
        """A file has changed."""
        self.send(1)

    def opened(self) -> None:
        """The database exists and is Pollwise's: only now may it be watched."""
        self._opened = True

    def asleep(self, hint: Hint) -> None:
        super().asleep(hint)
        if not self._every:
            return
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and self._loop.is_running():  # in another thread
                self._loop.call_soon_threadsafe(self._begin_listening)
                return
            self._leave_loop()  # its timers never fire
            self._loop = loop
        self._begin_listening()

    def _begin_listening(self) -> None:
        if self._loop is not None and self._asleep and self._listen():
            self._look()  # it may have changed while nobody listened

    def after_fork(self) -> None:
        super().after_fork()
        self._loop = self._next_look = None
        self._reading = False
        self._end_watch()

    def awake(self, hint: Hint) -> None:
        super().awake(hint)
        if not self._asleep:
            self._stop_reading()  # a busy process does not need hints of its own writes

    def close(self) -> None:
        super().close()
        self._every = 0.0
        self._end_watch()
        self._leave_loop()

    def _leave_loop(self) -> None:
        self._stop_reading()
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        self._loop = None

    def _listen(self) -> bool:
        """Have changes reported, or compare time stamps later; False if already begun."""
        if self._begin_watch():
            return self._start_reading()
        if self._next_look is not None or self._loop is None:
            return False
        context = self._context.copy()
        self._next_look = self._loop.call_later(self._every, self._look_again, context=context)
        return True

    # Reported by the kernel

    def _begin_watch(self) -> bool:
        """Have the kernel watch the files; False if it cannot."""
        if self._watch is not None and self._watched != self._inodes():
            self._end_watch()  # a file was replaced
        if self._watch is None and self._opened and not self._cannot_watch:
            try:
                self._watch = inotify(self._existing(), self.events)
                self._watched = self._inodes()
            except (OSError, AttributeError):
                self._cannot_watch = True  # no rights, no watch left, no inotify: use time stamps
        return self._watch is not None

    def _existing(self) -> Sequence[Path]:
        return [path for path in self._paths if path.exists()]

    def _start_reading(self) -> bool:
        """Have the kernel wake the event loop; False if it already does."""
        if self._reading or self._watch is None or self._loop is None:
            return False
        self._loop.add_reader(self._watch, self._read_changes)
        self._reading = True
        return True

    def _read_changes(self) -> None:
        if self._watch is not None:
            with suppress(OSError):
                os.read(self._watch, 65536)

    def _stop_reading(self) -> None:
        if self._reading and self._watch is not None and self._loop is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._watch)
            self._reading = False

    def _end_watch(self) -> None:
        self._stop_reading()
        if self._watch is not None:
            os.close(self._watch)
            self._watch = None

    # Time stamps

    def _look_again(self) -> None:
        self._next_look = None
        self._look()
        if self._asleep:
            self._listen()

    def _look(self) -> None:
        stamps = self._stamps()
        if stamps != self._seen:
            self._seen = stamps
            self._changed()

    def _inodes(self) -> list[int]:
        found = []
        for path in self._paths:
            with suppress(OSError):
                found.append(path.stat().st_ino)
        return found

    def _stamps(self) -> list[int]:
        found = []
        for path in self._paths:
            with suppress(OSError):
                stat = path.stat()
                found += [stat.st_mtime_ns, stat.st_size]
        return found


class FileBeside(FileHints):
    """Hints from changes of a file of our own beside a database; it is created when needed."""

    def __init__(self, database: Path, ending: str, every: float) -> None:
        self._database = database
        self._path = database.with_name(database.name + ending)
        super().__init__([self._path], every)

    def _existing(self) -> Sequence[Path]:
        if not self._path.exists():
            create_beside(self._path, self._database)
            self._seen = self._stamps()  # our own creation is not a hint
        return self._paths

    def _read_changes(self) -> None:
        super()._read_changes()
        if not self._path.exists():  # it was removed: watch its successor
            self._end_watch()
            self._listen()
        self._look()  # our own touch is not a hint


def create_beside(path: Path, database: Path) -> None:
    """Create a file of our own for all users of a database."""
    path.touch()
    set_mode(path, database.stat().st_mode & 0o666)


def large_log_reporter(hints: Hints, path: Path) -> Callable[[int], None]:
    """A function that reports a large log of a database by way of its hints."""
    ref = weakref.ref(hints)  # the thread of a store must not keep the store

    def report(size: int) -> None:
        if isinstance(found := ref(), FileHints):
            found.report_large_log(path, size)

    return report
