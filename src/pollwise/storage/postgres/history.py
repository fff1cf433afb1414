"""History in a table of a Postgres schema, for a queue and for an outbox."""

from __future__ import annotations

from collections.abc import Sequence

from pollwise.runtime.rollups.rows import HistoryRange, HistoryRow
from pollwise.storage.postgres.database import Database
from pollwise.storage.postgres.params import Param, numbers, text, texts


class PostgresHistory:
    """The history of the queue or the outbox `name`, by the statements `read_history` and
    `replace_history` of its store."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name

    async def read(self, ranges: Sequence[HistoryRange]) -> list[list[HistoryRow]]:
        """The rows of each range, all from the same moment."""
        params = [
            text(self._name),
            numbers([asked.level for asked in ranges]),
            numbers([asked.since for asked in ranges]),
            numbers([asked.until for asked in ranges]),
            numbers([asked.limit for asked in ranges]),
        ]
        found: list[list[HistoryRow]] = [[] for _ in ranges]
        for place, *row in await self._database.rows("read_history", params, safe=True):
            found[place - 1].append(HistoryRow(*row))
        return found

    async def replace(self, old: Sequence[HistoryRow], new: Sequence[HistoryRow]) -> bool:
        params = [text(self._name), *written_columns(old)[:3], *written_columns(new)]
        [(done,)] = await self._database.rows("replace_history", params)
        return bool(done)


def written_columns(rows: Sequence[HistoryRow]) -> list[Param]:
    """Rows as the parameters of a statement that writes them."""
    return [
        numbers([row.level for row in rows]),
        numbers([row.at for row in rows]),
        texts([row.writer for row in rows]),
        texts([row.value for row in rows]),
    ]
