"""SQL: the result of a query.

    [[target]]
    name = "orders that wait"
    type = "sql"
    url = "postgresql://watcher@db/shop"
    query = "SELECT count(*) FROM orders WHERE state = 'waiting'"

The first rows are the reading. Nothing can be written: Postgres runs the query in a read-only
transaction, and SQLite opens the file read-only. At the timeout the query is cancelled in the
database too. Each poll opens its own connection: none is kept open between polls.
"""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from pollwise.core.outcome import Plain
from pollwise.errors import MissingExtra, ProbeError
from pollwise.fleet.probes.extract import digest
from pollwise.fleet.probes.options import ProbeOptions, failed
from pollwise.fleet.targets import ProbeContext, Reading, Target
from pollwise.runtime.redact import shown_url, without_secrets

#: Seconds to wait for a locked SQLite database.
BUSY = 5.0
_POSTGRES = ("postgresql", "postgres")


FACTS = {
    "value": "the number, if the result is one number; else the rows as JSON, or their digest",
    "rows": "number of rows that were read",
    "ms": "milliseconds until the result was read",
}


class SqlProbe:
    """Queries a database. Options: url (postgresql://… or sqlite:///file.db), query, rows (1)."""

    __slots__ = ("_query", "_rows", "_shown", "_url", "host")

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        self._url = options.text("url", needed=True)
        self._shown = shown_url(self._url)
        self.host: str | None = (
            checked_sql_url(options, self._url, self._shown) if self._url else None
        )
        self._query = options.text("query", needed=True)
        self._rows = options.whole("rows", 1, 1, 1000)
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self._url.startswith("sqlite:"):
            rows = await self._from_sqlite()
        else:
            rows = await self._from_postgres(max(context.deadline - began, 0.1))
        text = json.dumps(rows, default=_plain, separators=(",", ":"))
        facts: dict[str, Plain] = {
            "rows": len(rows),
            "ms": round((loop.time() - began) * 1000, 1),
        }
        only = rows[0][0] if len(rows) == 1 and len(rows[0]) == 1 else None
        if isinstance(only, (int, float, Decimal)) and math.isfinite(only):
            facts["value"] = float(only) if isinstance(only, Decimal) else only
            text = str(only)  # a number that conditions can compare
        value = text if len(text) <= 200 else digest(text.encode())
        return Reading(value, None, facts, text[:80])

    # SQLite

    async def _from_sqlite(self) -> list[list[Any]]:
        path = sqlite_path(self._url)
        _, rows = await read_sqlite(path, self._shown, self._query, (), self._rows)
        return rows

    # Postgres

    async def _from_postgres(self, lifetime: float) -> list[list[Any]]:
        psycopg = psycopg_for("a probe of Postgres")
        rows: list[list[Any]] = []
        try:
            connection = await psycopg.AsyncConnection.connect(
                self._url,
                options=read_only(lifetime),
                application_name="pollwise fleet",
                connect_timeout=max(2, int(lifetime)),
            )
            try:
                async with connection.cursor() as cursor:
                    # Row by row: rows that are not needed are never transferred.
                    stream = cursor.stream(self._query)
                    try:
                        async for row in stream:
                            rows.append(list(row))
                            if len(rows) == self._rows:
                                break
                    finally:
                        await stream.aclose()
            finally:
                await connection.close()
        except psycopg.Error as error:
            raise postgres_failure(error, self._shown) from None
        return rows


async def read_sqlite(
    path: Path, shown: str, query: str, values: Sequence[Any], count: int
) -> tuple[list[str], list[list[Any]]]:
    """The columns and the first rows of a query, which can write nothing."""
    connection = await asyncio.to_thread(_open_sqlite, path, shown)
    asking = asyncio.ensure_future(
        asyncio.to_thread(_ask_sqlite, connection, shown, query, values, count)
    )
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        connection.interrupt()
        await asyncio.wait([asking])
        with suppress(Exception):
            asking.result()
        raise


def _open_sqlite(path: Path, shown: str) -> sqlite3.Connection:
    if not path.is_file():
        raise failed(f"{shown}: the file does not exist", permanent=True)
    try:
        return sqlite3.connect(
            f"file:{quote(str(path))}?mode=ro", uri=True, timeout=BUSY, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise failed(f"{shown}: {error}") from None


def _ask_sqlite(
    connection: sqlite3.Connection, shown: str, query: str, values: Sequence[Any], count: int
) -> tuple[list[str], list[list[Any]]]:
    with closing(connection):
        try:
            # A query that attaches another file must not write there either.
            connection.execute("PRAGMA query_only = ON")
            cursor = connection.execute(query, values)
            rows = [list(row) for row in cursor.fetchmany(count)]
            return [name for name, *_ in cursor.description or ()], rows
        except sqlite3.OperationalError as error:
            locked = "locked" in str(error) or "busy" in str(error)
            raise failed(f"{shown}: {error}", permanent=not locked) from None
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise failed(f"{shown}: {error}", permanent=True) from None


def read_only(seconds: float) -> str:
    """The options of a session of Postgres that cannot write, and the limit of its statements."""
    return f"-c default_transaction_read_only=on -c statement_timeout={int(seconds * 1000)}"


def psycopg_for(what: str) -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtra(what, "postgres") from error
    return psycopg


def postgres_failure(error: Any, shown: str) -> ProbeError:
    """An error of psycopg as that of a failed poll."""
    return failed(f"{shown}: {_said(error)}", permanent=_is_permanent(error.sqlstate))


def _is_permanent(sqlstate: str | None) -> bool:
    """True for wrong SQL, no such table, not allowed; False for overload or a restart."""
    return bool(sqlstate) and sqlstate[:2] in ("0A", "22", "25", "28", "3D", "3F", "42")  # type: ignore[index]


def _said(error: BaseException) -> str:
    """The first line of the database's message, without passwords."""
    lines = str(error).strip().splitlines()
    return without_secrets(lines[0])[:200] if lines else type(error).__name__


def checked_sql_url(options: ProbeOptions, url: str, shown: str) -> str | None:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        options.wrong("url", f"= {shown!r} is not a valid URL")
        return None
    if "://" not in url:
        options.wrong(
            "url", f"= {shown!r} has no scheme; write postgresql://… or sqlite:///file.db"
        )
    elif parts.scheme in _POSTGRES:
        try:
            psycopg_for("a probe of Postgres")
        except MissingExtra as error:
            options.wrong("url", f"= {shown!r}: {error}")
        return host or "postgresql"
    elif parts.scheme != "sqlite":
        options.wrong("url", f"= {shown!r} must start with postgresql:// or sqlite://")
    elif parts.netloc or not parts.path.strip("/"):
        options.wrong("url", f"= {shown!r} must be sqlite:///relative.db or sqlite:////absolute.db")
    return None


def sqlite_path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path.removeprefix("/"))).absolute()


def _plain(value: object) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return digest(bytes(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(value)
    return str(value)


make = SqlProbe
