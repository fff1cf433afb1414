"""How long things took, in a SQLite file that several processes may share."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pollwise.core.forecast.durations import Durations
from pollwise.storage.sqlite.file import SqliteFile, file_path, transaction
from pollwise.waiting.histories import NAMES_MAX, Change, RunHistories

#: How long a wait for the file's lock may take, in seconds.
LOCK_TIMEOUT = 2.0

logger = logging.getLogger("pollwise")


class _RunTable(SqliteFile):
    """The table in a file; a wait opens it twice, so nothing stays open in between."""

    package = __package__
    version_table = "pollwise_durations_schema"
    holds = "durations"

    def load(self, name: str) -> str | None:
        rows = self._rows("state", name=name)
        return rows[0][0] if rows else None

    def learn(self, name: str, change: Callable[[str | None], str], now: float) -> None:
        with transaction(self.connect()):
            self._change("save", name=name, state=change(self.load(name)), now=now)
            self._change("prune", most=NAMES_MAX)


class SqliteHistories(RunHistories):
    """Histories in a SQLite file, which may also contain a queue."""

    blocks = True

    def __init__(self, path: str | Path) -> None:
        self.path: Path = file_path(path, "durations.db")

    def load(self, name: str) -> Durations:
        return _decoded(self._call(_RunTable.load, name), name, self.path)

    def learn(self, name: str, change: Change, now: float) -> None:
        def changed(state: str | None) -> str:
            history = _decoded(state, name, self.path)
            change(history)
            return json.dumps(history.dump(), separators=(",", ":"))

        self._call(_RunTable.learn, name, changed, now)

    def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        # "normal": a power cut may lose the last runs, and the file is whole.
        table = _RunTable(self.path, synchronous="normal", create=True, timeout=LOCK_TIMEOUT)
        try:
            return table.call(method, table, *args)
        finally:
            table.close()


def _decoded(state: str | None, name: str, path: Path) -> Durations:
    if state is None:
        return Durations()
    try:
        return Durations.load(json.loads(state))
    except (ValueError, RecursionError) as error:  # `ConfigError` is a ValueError
        logger.warning("%s: durations of %r cannot be read and begin again: %s", path, name, error)
        return Durations()
