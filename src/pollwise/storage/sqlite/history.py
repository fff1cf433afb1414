"""History in a table of a SQLite file, for a queue and for an outbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pollwise.runtime.rollups.rows import HistoryRange, HistoryRow
from pollwise.storage.sqlite.file import SqliteFile, snapshot, transaction

_SQL = {
    "write": """
        INSERT INTO {table} ({column}, level, at, writer, value)
        SELECT :name, value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(:rows)
        WHERE true
        ON CONFLICT ({column}, level, at, writer) DO UPDATE SET value = excluded.value
    """,
    "read": """
        SELECT level, at, writer, value FROM {table}
        WHERE {column} = :name AND level = :level AND at >= :since AND at < :until
        ORDER BY at, writer LIMIT :limit
    """,
    "count": """
        SELECT count(*) FROM json_each(:rows) AS r CROSS JOIN {table} AS h
            ON h.{column} = :name AND h.level = r.value ->> 0 AND h.at = r.value ->> 1
           AND h.writer = r.value ->> 2
    """,
    "delete": """
        DELETE FROM {table} WHERE {column} = :name AND (level, at, writer) IN (
            SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:rows)
        )
    """,
}


class SqliteHistory:
    """The history of the queue or the outbox `name`, in a table that its migrations make.

    column: the column of the table that holds the name.
    """

    def __init__(self, file: SqliteFile, table: str, column: str, name: str) -> None:
        self._file = file
        self._name = name
        self._sql = {
            each: sql.replace("{table}", table).replace("{column}", column)
            for each, sql in _SQL.items()
        }

    def write(self, rows: Sequence[HistoryRow]) -> None:
        """Write rows, also in place of those that are there; for the caller's transaction."""
        if rows:
            self._run("write", rows=json.dumps(rows))

    def read(self, ranges: Sequence[HistoryRange]) -> list[list[HistoryRow]]:
        """The rows of each range, all from the same moment."""
        with snapshot(self._file.connect()):
            return [self._read(asked) for asked in ranges]

    def _read(self, asked: HistoryRange) -> list[HistoryRow]:
        values = asked._asdict() | {"limit": -1 if asked.limit is None else asked.limit}
        return [HistoryRow(*row) for row in self._run("read", **values)]

    def replace(self, old: Sequence[HistoryRow], new: Sequence[HistoryRow]) -> bool:
        gone = {row.key for row in old}
        added = [row for row in new if row.key not in gone]
        with transaction(self._file.connect()):
            if self._count(old) != len(old) or self._count(added):
                return False
            self._run("delete", rows=json.dumps(old))
            self.write(new)
        return True

    def _count(self, rows: Sequence[HistoryRow]) -> int:
        [(count,)] = self._run("count", rows=json.dumps(rows))
        return int(count)

    def _run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        return (
            self._file.connect().execute(self._sql[name], {**values, "name": self._name}).fetchall()
        )
