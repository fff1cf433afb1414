"""Where sources remember how far they have come: in a SQLite file, in memory, or in any object with
the methods of `CursorStore`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol, runtime_checkable
from urllib.parse import unquote

from pollwise.errors import ConfigError, CursorMoved
from pollwise.queues.urls import parse_url
from pollwise.runtime.clock import Clock
from pollwise.storage.sqlite.file import SqliteFile, file_path
from pollwise.storage.sqlite.thread import SqliteThread, in_thread

EXAMPLES = ("sqlite:///cursors.db", "sqlite:////var/lib/cursors.db")


@runtime_checkable
class CursorStore(Protocol):
    """Keeps the cursors of sources, each a text of at most a few hundred kilobytes."""

    async def load(self, name: str) -> str | None:
        """The cursor of the source with this name; None if it has none."""

    async def save(self, name: str, cursor: str, before: str | None) -> None:
        """Replace the cursor `before`, which is None for the first.

        Raises CursorMoved, and changes nothing, if the store has neither it nor the new one:
        another process polls the same source under the same name.
        """

    async def close(self) -> None:
        """Release what is open."""


class MemoryCursors:
    """Cursors that end with the process: after a restart, everything is delivered again."""

    def __init__(self) -> None:
        self._cursors: dict[str, str] = {}

    async def load(self, name: str) -> str | None:
        return self._cursors.get(name)

    async def save(self, name: str, cursor: str, before: str | None) -> None:
        if self._cursors.get(name) not in (before, cursor):
            raise moved(name)
        self._cursors[name] = cursor

    async def close(self) -> None:
        """Nothing is open."""


class _CursorTable(SqliteFile):
    """Blocking calls on one connection, made from one thread."""

    package = __package__
    version_table = "pollwise_cursors_schema"
    holds = "cursors"

    def load(self, name: str) -> str | None:
        rows = self._rows("load", name=name)
        return str(rows[0][0]) if rows else None

    def save(self, name: str, cursor: str, before: str | None, now: float) -> None:
        if before is None:
            saved = self._change("insert", name=name, cursor=cursor, now=now)
        else:
            saved = self._change("replace", name=name, cursor=cursor, now=now, before=before)
        if not saved and self.load(name) != cursor:
            raise moved(name)


class SqliteCursors:
    """Cursors in a SQLite file, which other parts of Pollwise may use too.

    A commit survives a power cut.
    """

    def __init__(self, path: str | Path, *, clock: Clock | None = None) -> None:
        self.path: Path = file_path(path, "cursors.db")
        self.clock: Clock = clock or Clock()
        table = _CursorTable(self.path, synchronous="full", create=True)
        self._thread = SqliteThread(table, store=f"the cursors in {self.path}")

    load: Final = in_thread(_CursorTable.load)

    async def save(self, name: str, cursor: str, before: str | None) -> None:
        table: _CursorTable = self._thread.connected  # type: ignore[assignment]
        await self._thread.call(table.save, name, cursor, before, self.clock.epoch())

    async def close(self) -> None:
        await self._thread.close()


def moved(name: str) -> CursorMoved:
    return CursorMoved(
        f"the cursor of {name!r} was moved by another process; let one process poll it, or give "
        "each source a name of its own with name="
    )


def open_cursors(given: str | CursorStore | None) -> tuple[CursorStore, bool]:
    """The store of a source's argument `cursor`, and whether the source has to close it."""
    if given is None:
        return MemoryCursors(), True
    if not isinstance(given, str):
        if isinstance(given, CursorStore):
            return given, False
        raise ConfigError(
            f"cursor = {given!r} must be a URL such as {EXAMPLES[0]}, or an object with the "
            "methods of pollwise.sources.CursorStore"
        )
    at = parse_url(given, ("sqlite",), EXAMPLES, what="cursor")
    if at.parts.netloc or len(at.parts.path) < 2 or at.parts.query:
        raise ConfigError(
            f"cursor = {at.shown} must be sqlite:///relative.db or sqlite:////absolute/path.db"
        )
    return SqliteCursors(unquote(at.parts.path[1:])), True
