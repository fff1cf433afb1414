"""Hints between processes through a file beside the database, `<file>-hint`.

A put touches the file, and a pause watches it. On Linux the kernel reports it (inotify): a pause
costs nothing and the hint arrives at once. Elsewhere, or if the kernel has no watch left, a pause
compares the file's time stamp every `every` seconds, which is one `stat`. Neither opens a
transaction nor takes a lock, so the database stays untouched.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from pollwise.runtime.hints import Hint, Hints

IN_ATTRIB = 0x004  # a new time stamp is a change of attributes


class FileHints(Hints):
    """Hints from changes of files, which the kernel reports where it can.

    every: how often to compare time stamps if the kernel cannot report changes; 0 turns both off.
    """

    def __init__(self, every: float) -> None:
        super().__init__()
        self._every = every
        self._opened = False
        self._watch: int | None = None  # inotify's file descriptor
        self._cannot_watch = not sys.platform.startswith("linux")
        self._reading: asyncio.AbstractEventLoop | None = None

    def opened(self) -> None:
        """The database exists and is ours: only now may it be watched."""
        self._opened = True

    def close(self) -> None:
        super().close()
        self._every = 0.0
        self._end_watch()

    def _watch_files(self, paths: Iterable[Path], events: int) -> None:
        try:
            self._watch = inotify(paths, events)
        except (OSError, AttributeError):
            self._cannot_watch = True  # no rights, no watch left, no inotify: use time stamps

    def _start_reading(self, loop: asyncio.AbstractEventLoop, changed: Callable[[], None]) -> bool:
        """Have `changed` called when the kernel reports a change; False if it already is."""
        if self._reading is loop or self._watch is None:
            return False
        loop.add_reader(self._watch, changed)
        self._reading = loop
        return True

    def _stop_reading(self) -> None:
        if self._reading is not None and self._watch is not None:
            if not self._reading.is_closed():
                self._reading.remove_reader(self._watch)
            self._reading = None

    def _end_watch(self) -> None:
        self._stop_reading()
        if self._watch is not None:
            os.close(self._watch)
            self._watch = None


class WatchedFile(FileHints):
    """Hints that also come from, and go to, other processes."""

    def __init__(self, database: Path, every: float) -> None:
        super().__init__(every)
        self._database = database
        self._path = database.with_name(database.name + "-hint")
        self._seen = self._stamp()
        self._next_check: asyncio.TimerHandle | None = None
        self._checking: asyncio.AbstractEventLoop | None = None

    def asleep(self, hint: Hint) -> None:
        super().asleep(hint)
        if not self._every or self._read_watch():
            return
        if self._next_check is None or self._checking is not asyncio.get_running_loop():
            self._check_later()  # a timer of a closed event loop never fires

    def awake(self, hint: Hint) -> None:
        super().awake(hint)
        if not self._asleep:
            self._stop_reading()  # a busy process need not be notified of its own puts

    def close(self) -> None:
        super().close()
        self._stop_checking()

    def send_to_others(self, count: int = 1, kinds: Iterable[str] | None = None) -> None:
        """Touch the file. A failure only costs others latency, so it is not an error."""
        try:
            now = time.time_ns()
            try:
                os.utime(self._path, ns=(now, now))
            except FileNotFoundError:
                self._make_file()
            except PermissionError:  # another user's file: it can be touched but not dated
                os.utime(self._path)
        except OSError:
            return
        self._seen = self._stamp()

    def _make_file(self) -> None:
        self._path.touch()
        self._path.chmod(self._database.stat().st_mode & 0o666)  # for all users of the database

    # Reported by the kernel

    def _read_watch(self) -> bool:
        """Get touches from the kernel; False if that is not possible."""
        if self._watch is None and not self._begin_watch():
            return False
        if self._start_reading(asyncio.get_running_loop(), self._on_touch):
            self._check()  # it may have been touched while nobody listened
        return True

    def _begin_watch(self) -> bool:
        if self._cannot_watch or not self._opened:
            return False
        try:
            if not self._path.exists():
                self._make_file()
                self._seen = self._stamp()  # our own creation is not a hint
        except OSError:
            self._cannot_watch = True
        else:
            self._watch_files([self._path], IN_ATTRIB)
        if self._watch is None:
            return False
        self._stop_checking()
        return True

    def _on_touch(self) -> None:
        if self._watch is None:
            return
        try:
            os.read(self._watch, 4096)
        except OSError:
            return
        if not self._path.exists():  # it was removed: watch its successor
            self._end_watch()
            self._read_watch()
        self._check()

    # Time stamps

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._next_check = loop.call_later(self._every, self._check_again)
        self._checking = loop

    def _stop_checking(self) -> None:
        if self._next_check is not None:
            self._next_check.cancel()
            self._next_check = None

    def _check_again(self) -> None:
        self._next_check = None
        self._check()
        if self._asleep:
            self._check_later()

    def _check(self) -> None:
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            self.send(1)

    def _stamp(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0


def inotify(paths: Iterable[Path], events: int) -> int:
    """A file descriptor that becomes readable whenever one of the files has such an event."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    for path in paths:
        if libc.inotify_add_watch(descriptor, os.fsencode(path), events) < 0:
            error = ctypes.get_errno()
            os.close(descriptor)
            raise OSError(error, "inotify_add_watch")
    return descriptor
