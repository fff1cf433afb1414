"""The new rows of a query, by a column that grows."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from pollwise.durations import Duration, seconds, shown
from pollwise.errors import ConfigError, ProbeError, ProbeRefused, ProbeTimeout
from pollwise.fleet.probes.options import BadOptions, ProbeOptions
from pollwise.fleet.probes.sql import (
    checked_sql_url,
    postgres_failure,
    psycopg_for,
    read_only,
    read_sqlite,
    sqlite_path,
)
from pollwise.fleet.targets import Target
from pollwise.runtime.clock import Clock
from pollwise.runtime.redact import shown_url
from pollwise.sources.base import LIMIT, Found, Source, State
from pollwise.sources.cursors import CursorStore
from pollwise.sources.listed import REMEMBERED, digest_of

#: How long a poll may take, in seconds.
TIMEOUT = 30.0

#: The types of a watermark: how each is written in a cursor.
_TYPES: Mapping[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "decimal": (Decimal, str, Decimal),
    "uuid": (UUID, str, UUID),
}
_COLUMN = re.compile(r"[^\x00\"]{1,200}")

Row = dict[str, Any]


class SqlRows(Source[Row]):
    """The rows of a query, each once, in the order of a column that grows.

        orders = SqlRows(
            "postgresql://reader@db/shop", "SELECT id, total FROM orders", watermark="id",
            cursor="sqlite:///cursors.db",
        )

    Rows are dictionaries. SQLite (`sqlite:///shop.db`) and Postgres; nothing can be written.

    query: without ORDER BY and LIMIT, which the source adds.
    watermark: the column that grows: numbers, times, or texts. Rows where it is NULL are left out.
        A row comes again when its watermark has grown, as a time of the last change does.
    overlap: how far to look back behind the highest watermark, in its own unit; for times, a
        duration such as "5m". A transaction may commit after another one with a higher watermark,
        which was read already. So give the time, or the number of rows, that transactions take.

    At most 10,000 rows within the overlap, or with one watermark, are remembered; more are an
    error.
    """

    def __init__(
        self,
        url: str,
        query: str,
        *,
        watermark: str,
        overlap: Duration = 0,
        cursor: str | CursorStore | None = None,
        name: str | None = None,
        limit: int = LIMIT,
        timeout: Duration = TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        self._shown = shown_url(url) if isinstance(url, str) else ""
        what = digest_of(query, watermark)
        super().__init__(
            name or f"sql:{self._shown}#{what}"[-500:], cursor, limit=limit, clock=clock
        )
        options = ProbeOptions(Target("source", "sql", options={"url": url, "query": query}))
        checked_sql_url(options, options.text("url", needed=True), self._shown)
        options.text("query", needed=True)
        try:
            options.finish()
        except BadOptions as wrong:
            said = "; ".join(f"{key} {what}".strip() for key, what in wrong.problems)
            raise ConfigError(f"SqlRows: {said}") from None
        if not isinstance(watermark, str) or not _COLUMN.fullmatch(watermark):
            raise ConfigError(f"watermark = {shown(watermark)} must be the name of a column")
        self.url = url
        self.watermark = watermark
        self.overlap: float = seconds(overlap, "overlap")
        self.timeout: float = seconds(timeout, "timeout", positive=True)
        self._query = query.strip().rstrip(";")
        self._connection: Any = None

    async def _find(self, state: State, hold: float) -> Found[Row]:
        after = decoded(state.get("after"))
        seen: dict[str, Any] = dict(state.get("seen", ()))
        count = self.limit + len(seen) + 1
        try:
            async with asyncio.timeout(self.timeout):
                columns, rows = await self._rows(self._start(after), count)
        except TimeoutError:
            raise ProbeTimeout(
                f"{self._shown}: the query was not answered within {self.timeout:g} s; add an "
                f"index on {self.watermark!r}, or raise timeout"
            ) from None
        if self.watermark not in columns:
            raise ProbeRefused(
                f"{self._shown}: the query has no column {self.watermark!r}; it has "
                f"{', '.join(map(repr, columns[:20]))}"
            )
        place = columns.index(self.watermark)
        new: list[Row] = []
        more = False
        for row in rows:
            mark = encoded(row[place], self.watermark)
            digest = digest_of(mark, [str(each) for each in row])
            if digest in seen:
                continue
            if len(new) == self.limit:
                more = True
                break
            new.append(dict(zip(columns, row, strict=True)))
            seen[digest] = mark
            # Texts are in the order of the database, which only the database knows.
            if after is None or isinstance(after, str) or self._less(after, row[place]):
                after = row[place]
        if not new:
            return Found((), state)
        start = self._start(after)
        kept = [
            [digest, mark] for digest, mark in seen.items()
            if (mark == after if isinstance(after, str) else not self._less(decoded(mark), start))
        ]  # fmt: skip
        if len(kept) > REMEMBERED:
            raise ProbeRefused(
                f"{self._shown}: more than {REMEMBERED:,} rows are within the overlap, or have one "
                f"value of {self.watermark!r}; use a smaller overlap, or a finer column"
            )
        return Found(new, {"after": encoded(after, self.watermark), "seen": kept}, more)

    def _start(self, after: Any) -> Any:
        """The watermark to read from."""
        if after is None or not self.overlap:
            return after
        if isinstance(after, Decimal):
            return after - Decimal(self.overlap)
        if isinstance(after, (int, float)):
            return after - self.overlap
        if isinstance(after, datetime):
            return after - timedelta(seconds=self.overlap)
        raise ProbeRefused(
            f"overlap needs a number or a time in {self.watermark!r}, not a {type(after).__name__}"
        )

    def _less(self, a: Any, b: Any) -> bool:
        try:
            return bool(a < b)
        except TypeError:
            raise ProbeRefused(
                f"{self._shown}: the column {self.watermark!r} has values that cannot be compared: "
                f"{shown(a)} and {shown(b)}"
            ) from None

    async def _rows(self, start: Any, count: int) -> tuple[list[str], list[list[Any]]]:
        lite = self.url.startswith("sqlite:")
        sign = "?" if lite else "%s"
        query = self._query
        if not lite and start is not None:
            query = query.replace("%", "%%")
        name = self.watermark if lite or start is None else self.watermark.replace("%", "%%")
        column = f'pollwise_rows."{name}"'
        above = f"{column} IS NOT NULL" if start is None else f"{column} >= {sign}"
        text = (
            f"SELECT * FROM ({query}\n) AS pollwise_rows WHERE {above} "  # noqa: S608 - their own
            f"ORDER BY {column} LIMIT {count}"
        )
        values = () if start is None else (start,)
        if lite:
            return await read_sqlite(sqlite_path(self.url), self._shown, text, values, count)
        return await self._from_postgres(text, values)

    async def _from_postgres(
        self, text: str, values: tuple[Any, ...]
    ) -> tuple[list[str], list[list[Any]]]:
        psycopg = psycopg_for("a source in Postgres")
        done = False
        try:
            if self._connection is None:
                self._connection = await psycopg.AsyncConnection.connect(
                    self.url,
                    autocommit=True,
                    options=read_only(self.timeout),
                    application_name="pollwise poll",
                    connect_timeout=max(2, int(self.timeout)),
                )
            cursor = await self._connection.execute(text, values or None)
            columns = [each.name for each in cursor.description or ()]
            rows = [list(row) for row in await cursor.fetchall()]
            done = True
            return columns, rows
        except psycopg.Error as error:
            raise postgres_failure(error, self._shown) from None
        finally:
            if not done:
                await self._release()

    async def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it may be broken
                await connection.close()


def encoded(mark: Any, column: str) -> Any:
    """A watermark as JSON: itself, or a type and a text."""
    if isinstance(mark, (float, Decimal)) and not math.isfinite(mark):
        raise ProbeRefused(f"{column!r} has {mark}, which cannot be a watermark")
    if isinstance(mark, (int, float, str)) and not isinstance(mark, bool):
        if isinstance(mark, str) and len(mark) > 500:
            raise ProbeError(f"a text in {column!r} is too long for a watermark")
        return mark
    for name, (kind, write, _) in _TYPES.items():
        if isinstance(mark, kind):
            if isinstance(mark, datetime) and mark.tzinfo is not None:
                mark = mark.astimezone(UTC)
            return [name, write(mark)]
    raise ProbeRefused(
        f"{column!r} is a {type(mark).__name__}, which cannot be a watermark; use a number, a "
        "time or a text"
    )


def decoded(mark: Any) -> Any:
    """The watermark of a cursor."""
    if isinstance(mark, list):
        return _TYPES[mark[0]][2](mark[1])
    return mark
