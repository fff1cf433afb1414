"""Hints of commits to a SQLite file, from changes of the file itself.

A put happens before its commit, and in any language, so a writer cannot say when its record becomes
visible. The file can: a commit writes to its log, `<file>-wal`, or without a log to the file.

After a change, one read of an index shows whether there is anything to claim; only then a relay is
woken. The write happens a little before its commit is visible, because SQLite may wait for the disk
in between. So the read is repeated a few times at growing intervals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pollwise.platforms.watching import MODIFIED
from pollwise.runtime.hints import Hint
from pollwise.storage.sqlite.file_hints import FileHints

Claimable = Literal["new", "backlog", "nothing"]

#: The delays of the checks after a change, in seconds, each from the one before.
CHECK_AFTER = (0.001, 0.01, 0.03, 0.1, 0.5)
#: The shortest time between two checks, in seconds, however busy the file is.
CHECKS_APART = 0.01


class WatchedDatabase(FileHints):
    """Hints that come from changes of a database file.

    anything: returns what there is to claim: "backlog" if a claim has seen all of it.
    """

    events = MODIFIED

    def __init__(
        self, database: Path, every: float, anything: Callable[[], Awaitable[Claimable]]
    ) -> None:
        super().__init__([database, database.with_name(database.name + "-wal")], every)
        self._anything = anything
        self._next_check: asyncio.TimerHandle | None = None
        self._checks_left: list[float] = []
        self._checked_at = 0.0
        self._checking: asyncio.Task[None] | None = None

    def asleep(self, hint: Hint) -> None:
        super().asleep(hint)
        if self._loop is not None and self._next_check is None and self._checks_left:
            self._check_at(self._loop.time() + self._checks_left.pop(0))

    def awake(self, hint: Hint) -> None:
        super().awake(hint)
        if not self._asleep:
            self._cancel_check()

    def after_fork(self) -> None:
        self._next_check = self._checking = None
        self._checks_left = []
        super().after_fork()

    async def aclose(self) -> None:
        checking = self._checking
        self.close()
        if checking is not None and checking.get_loop() is asyncio.get_running_loop():
            await asyncio.gather(checking, return_exceptions=True)

    def _listen(self) -> bool:
        return self._opened and super()._listen()

    def _read_changes(self) -> None:
        super()._read_changes()
        self._stop_reading()  # until the check, so that a busy file does not keep this process busy
        self._changed()

    def _changed(self) -> None:
        """Check soon, and then a few more times."""
        if self._loop is None or not self._asleep:
            return
        self._checks_left = list(CHECK_AFTER)
        soon = max(self._loop.time() + self._checks_left.pop(0), self._checked_at + CHECKS_APART)
        if self._next_check is None or self._next_check.when() > soon:
            self._check_at(soon)

    def _check_at(self, when: float) -> None:
        self._cancel_check()
        if self._loop is not None:
            context = self._context.copy()
            self._next_check = self._loop.call_at(when, self._check_now, context=context)

    def _check_now(self) -> None:
        self._next_check = None
        if self._loop is None or not self._asleep:
            return
        self._checked_at = self._loop.time()
        self._start_reading()
        if self._checks_left:
            self._check_at(self._checked_at + max(self._checks_left.pop(0), CHECKS_APART))
        if self._checking is None or self._checking.done():
            self._checking = self._loop.create_task(self._check_once())

    async def _check_once(self) -> None:
        self._seen = self._stamps()
        with suppress(Exception):  # a lost hint costs latency; polls go on and report the error
            found = await self._anything()
            if found != "nothing":
                self.send(1, backlog=found == "backlog")

    def _cancel_check(self) -> None:
        if self._next_check is not None:
            self._next_check.cancel()
            self._next_check = None

    def _leave_loop(self) -> None:
        super()._leave_loop()
        self._cancel_check()
        self._checks_left = []
        if self._checking is not None:
            if not self._checking.get_loop().is_closed():
                self._checking.cancel()
            self._checking = None
        self._checked_at = 0.0
