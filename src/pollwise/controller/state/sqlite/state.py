"""The controller's state in a SQLite file: the queue's own, or any other.

Calls go to one thread with one connection, as those of `SqliteQueue` do.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pollwise.controller.state import encoding
from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.values import ArtefactRow, LogPiece, LogPlace
from pollwise.errors import ConfigError
from pollwise.queues.sqlite.queue import SYNCHRONOUS
from pollwise.runtime.clock import Clock
from pollwise.storage.sqlite.file import SqliteFile, file_path, transaction
from pollwise.storage.sqlite.thread import SqliteThread, in_thread_now

#: What a statement calls things here.
DIALECT = {
    "{controller}": "pollwise_controller",
    "{now}": ":now",
    "{items}": "json_each",
    "{texts}": "json_each",
}


class StateFile(SqliteFile):
    """The tables of the controller in a file: plain calls on one connection, from one thread."""

    package = __package__
    version_table = "pollwise_controller_schema"
    holds = "controller's state, which `pollwise serve` makes when it first starts"

    def __init__(self, path: Path, *, synchronous: str, create: bool) -> None:
        super().__init__(path, synchronous=synchronous, create=create)
        self._sql = encoding.all_statements(self.package, DIALECT)

    def rows(self, now: float, name: str, /, **values: Any) -> list[tuple[Any, ...]]:
        kept = encoding.plain_values(values) | {"now": now}
        return self.connect().execute(self._sql[name], kept).fetchall()

    def put_artefact(
        self, now: float, row: ArtefactRow, most: int
    ) -> tuple[bool, ArtefactRow | None]:
        values = asdict(row)
        with transaction(self.connect()):
            [(others,)] = self.rows(now, "count_artefacts", **values)
            if others >= most:
                return False, None
            before = self.rows(now, "artefact", **values)
            self.rows(now, "put_folder", folder=row.folder, job=encoding.folder_job(row))
            self.rows(now, "put_artefact", **values)
        return True, encoding.artefact_of(before[0]) if before else None

    def append_log(self, now: float, folder: str, piece: LogPiece) -> LogPlace | None:
        with transaction(self.connect()):
            found = self.rows(now, "log_place", folder=folder)
            place = encoding.place_of(found[0]) if found else LogPlace()
            if piece.part < place.part:
                return None
            after, kept = encoding.appended(place, piece)
            if after != place:
                self.rows(now, "put_log_place", folder=folder, **asdict(after))
            if after.part > place.part:
                run = {"attempt": piece.attempt, "worker": piece.worker, "start": place.size}
                self.rows(now, "add_log_run", folder=folder, part=after.part, **run)
            if kept:
                self.rows(now, "add_log_bytes", folder=folder, start=place.size, data=kept)
        return after


class SqliteState(ControllerState):
    """The state in a file; its tables are made when it is first used.

    path: the database; made when missing, unless `create` is off.
    synchronous: as a `SqliteQueue` has it: what survives a power cut.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: str = "full",
        create: bool = True,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self.path: Path = file_path(path, "jobs.db")
        if synchronous not in SYNCHRONOUS:
            raise ConfigError(f"synchronous = {synchronous!r} is none of {', '.join(SYNCHRONOUS)}")
        self.synchronous = synchronous
        self.clock: Clock = clock or Clock()
        self.url: str = f"sqlite:///{quote(str(self.path))}"
        self._folder: str | None = None
        file = StateFile(self.path, synchronous=synchronous, create=create)
        self._thread = SqliteThread(file, name=f"pollwise-state-{self.path.name}", store=self.url)

    @classmethod
    def temporary(cls, clock: Clock | None = None) -> SqliteState:
        """A state that is gone when it is closed: beside a queue in memory, and for tests."""
        folder = tempfile.mkdtemp(prefix="pollwise-state-")
        state = cls(Path(folder) / "state.db", synchronous="off", clock=clock)
        state._folder = folder
        return state

    async def ping(self) -> None:
        await self._rows("token", id="")

    async def close(self) -> None:
        if self._thread.closed:
            return
        try:
            await self._thread.close()
        finally:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    _rows = in_thread_now(StateFile.rows)
    _put_artefact = in_thread_now(StateFile.put_artefact)
    _append_log = in_thread_now(StateFile.append_log)
