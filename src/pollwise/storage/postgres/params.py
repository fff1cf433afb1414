"""Parameters in Postgres's text format, with arrays.

Written here because psycopg's dumpers take several times as long for a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row

T = TypeVar("T")
Param = bytes | None

#: The types of the parameters of `put`.
PUT_TYPES = (
    "text", "text[]", "text[]", "integer[]", "double precision[]", "double precision[]", "text[]",
    "text[]", "text[]", "boolean", "text", "text", "double precision",
)  # fmt: skip


def text(value: str | None) -> Param:
    return None if value is None else value.encode()


def number(value: float) -> bytes:
    return repr(value).encode()


def flag(value: bool) -> bytes:
    return b"t" if value else b"f"


def numbers(values: Iterable[float | None]) -> bytes:
    return f"{{{','.join(['NULL' if v is None else repr(v) for v in values])}}}".encode()


def flags(values: Iterable[bool]) -> bytes:
    return f"{{{','.join(['t' if v else 'f' for v in values])}}}".encode()


def texts(values: Iterable[str | None]) -> bytes:
    return f"{{{','.join(map(_element, values))}}}".encode()


def unless_all(default: T, values: Sequence[T], written: Callable[[Sequence[T]], bytes]) -> Param:
    """The values as an array, or None if all are the default."""
    return None if values.count(default) == len(values) else written(values)


def _element(value: str | None) -> str:
    if value is None:
        return "NULL"
    if "\\" in value:
        value = value.replace("\\", "\\\\")
    if '"' in value:
        value = value.replace('"', '\\"')
    return f'"{value}"'


async def on_connection(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
    statement: bytes,
    types: Sequence[str],
    params: Sequence[Param],
) -> tuple[Any, ...]:
    """Run one of our statements on a user's own connection, and return its one row."""
    query = statement.decode().replace("%", "%%")
    for place in range(len(params), 0, -1):  # backwards, because $1 is the beginning of $12
        query = query.replace(f"${place}", f"%s::{types[place - 1]}")
    values = [None if param is None else param.decode() for param in params]
    if isinstance(connection, psycopg.Connection):
        return await asyncio.to_thread(_run, connection, query, values)
    # Not the connection's own cursor class, which may treat %s differently.
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(query.encode(), values, prepare=False)
        [row] = await cursor.fetchall()
        return row


def _run(
    connection: psycopg.Connection[Any], query: str, values: Sequence[str | None]
) -> tuple[Any, ...]:
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(query.encode(), values, prepare=False)
        [row] = cursor.fetchall()
        return row
