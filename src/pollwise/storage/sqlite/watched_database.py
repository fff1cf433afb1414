"""Hints of commits to a SQLite file, from its own changes.

A put comes before its commit, and may come from any language, so no word of the writer's tells when
its record can be seen. The file does: a commit writes to the log beside it, `<file>-wal`, or,
without one, to the file. On Linux the kernel tells of that (inotify): a pause costs nothing, and
nothing happens while nobody writes. Elsewhere a pause looks at the files' time stamps.

Whatever was written, one read of an index tells whether it is for us; only then a sleeper is woken.
The write comes a little before its commit can be seen (a disk may be waited for in between), so the
read is repeated a few times, at growing distances.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from pollwise.runtime.hints import Hint, Hints
from pollwise.storage.sqlite.watched_file import inotify

IN_MODIFY = 0x002
#: When to look after a change, in seconds.
LOOKS = (0.001, 0.01, 0.03, 0.1, 0.5)
#: The least time from one look to the next, however busy the file is.
APART = 0.01


class WatchedDatabase(Hints):
    """Hints that come from the changes of a database file.

    every: how often to look at the time stamps where the kernel cannot tell; 0 does neither.
    look: is there anything to claim?
    """

    def __init__(self, database: Path, every: float, look: Callable[[], Awaitable[bool]]) -> None:
        super().__init__()
        self._database = database
        self._log = database.with_name(database.name + "-wal")
        self._every = every
        self._look = look
        self._opened = False
        self._seen = self._stamp()
        self._watch: int | None = None  # inotify's file descriptor
        self._watches_log = False
        self._cannot_watch = not sys.platform.startswith("linux")
        self._loop: asyncio.AbstractEventLoop | None = None  # that the rest belongs to
        self._reading = False
        self._next_stamp: asyncio.TimerHandle | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._looks_left: list[float] = []
        self._looked_at = 0.0
        self._looking: asyncio.Task[None] | None = None

    def opened(self) -> None:
        """The database is there, and ours."""
        self._opened = True

    def asleep(self, hint: Hint) -> None:
        super().asleep(hint)
        if not self._every or not self._opened:
            return
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._leave_loop()
            self._loop = loop
        if self._begin_watch():
            self._read_on()
        elif self._next_stamp is None:
            self._next_stamp = loop.call_later(self._every, self._compare_later)
        self._compare()  # it may have changed while nobody listened
        if self._next_look is None and self._looks_left:
            self._look_at(loop.time() + self._looks_left.pop(0))

    def awake(self, hint: Hint) -> None:
        super().awake(hint)
        if not self._asleep:
            self._stop_reading()  # a busy relay need not hear of each of its own writes
            self._look_no_more()

    def close(self) -> None:
        super().close()
        self._every = 0.0
        self._leave_loop()
        if self._watch is not None:
            os.close(self._watch)
            self._watch = None

    async def aclose(self) -> None:
        looking = self._looking
        self.close()
        if looking is not None and looking.get_loop() is asyncio.get_running_loop():
            await asyncio.gather(looking, return_exceptions=True)

    # Changes

    def _begin_watch(self) -> bool:
        """Have the kernel watch the files; False where that cannot be had."""
        has_log = self._log.exists()
        if self._watch is not None and has_log and not self._watches_log:
            self._stop_reading()
            os.close(self._watch)
            self._watch = None
        if self._watch is None and not self._cannot_watch:
            try:
                paths = [self._database, self._log] if has_log else [self._database]
                self._watch = inotify(paths, IN_MODIFY)
                self._watches_log = has_log
            except (OSError, AttributeError):
                self._cannot_watch = True  # no rights, no watch left, no inotify: look instead
        return self._watch is not None

    def _read_on(self) -> None:
        if not self._reading and self._watch is not None and self._loop is not None:
            self._loop.add_reader(self._watch, self._told)
            self._reading = True

    def _told(self) -> None:
        if self._watch is not None:
            with suppress(OSError):
                os.read(self._watch, 65536)
        self._stop_reading()  # until the look, so that a busy file does not keep this process busy
        self._changed()

    def _compare_later(self) -> None:
        self._next_stamp = None
        self._compare()
        if self._asleep and self._loop is not None:
            self._next_stamp = self._loop.call_later(self._every, self._compare_later)

    def _compare(self) -> None:
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            self._changed()

    def _stamp(self) -> tuple[int, ...]:
        found = []
        for path in (self._database, self._log):
            with suppress(OSError):
                stat = path.stat()
                found += [stat.st_mtime_ns, stat.st_size]
        return tuple(found)

    # Looks

    def _changed(self) -> None:
        """Look soon, and then a few times more."""
        if self._loop is None or not self._asleep:
            return
        self._looks_left = list(LOOKS)
        soon = max(self._loop.time() + self._looks_left.pop(0), self._looked_at + APART)
        if self._next_look is None or self._next_look.when() > soon:
            self._look_at(soon)

    def _look_at(self, when: float) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        if self._loop is not None:
            self._next_look = self._loop.call_at(when, self._look_now)

    def _look_now(self) -> None:
        self._next_look = None
        if self._loop is None or not self._asleep:
            return
        self._looked_at = self._loop.time()
        self._read_on()
        if self._looks_left:
            self._look_at(self._looked_at + max(self._looks_left.pop(0), APART))
        if self._looking is None or self._looking.done():
            self._looking = self._loop.create_task(self._look_once())

    async def _look_once(self) -> None:
        self._seen = self._stamp()
        with suppress(Exception):  # a lost hint costs latency; polls go on, and tell what is wrong
            if await self._look():
                self.send(1)

    def _look_no_more(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    # Ending

    def _stop_reading(self) -> None:
        if self._reading and self._watch is not None and self._loop is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._watch)
            self._reading = False

    def _leave_loop(self) -> None:
        self._stop_reading()
        self._look_no_more()
        self._looks_left = []
        if self._next_stamp is not None:
            self._next_stamp.cancel()
            self._next_stamp = None
        if self._looking is not None:
            if not self._looking.get_loop().is_closed():
                self._looking.cancel()
            self._looking = None
        self._looked_at = 0.0
        self._loop = None
