"""Statements and rows of the state's tables, and what an append does to a log.

The names of a value's fields are the names of its columns, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from pollwise.controller.state.values import ArtefactRow, LogPiece, LogPlace, Token, WorkerRow
from pollwise.storage.sql import statements

#: The longest text of a person or a program (a name, a detail), in characters.
TEXT_MAX = 2000


def all_statements(package: str, dialect: Mapping[str, str]) -> dict[str, str]:
    """The statements of all stores and those of the store `package`, in its dialect."""
    values = {"{worker}": WorkerRow, "{token}": Token, "{artefact}": ArtefactRow}
    columns = {
        place: ", ".join(each.name for each in fields(value)) for place, value in values.items()
    }
    made = {**statements("pollwise.controller.state"), **statements(package)}
    for place, words in {**columns, **dialect}.items():
        made = {name: statement.replace(place, words) for name, statement in made.items()}
    return made


# Rows; SQLite keeps a flag as a number


def worker_of(row: Sequence[Any]) -> WorkerRow:
    values = list(row)
    values[2] = json.loads(values[2])
    values[9] = bool(values[9])
    return WorkerRow(*values)


def new_worker(row: WorkerRow) -> dict[str, Any]:
    given = {"name": text(row.name), "address": text(row.address)}
    return {**asdict(row), **given, "capabilities": json.dumps(row.capabilities)}


def token_of(row: Sequence[Any]) -> Token:
    values = list(row)
    values[9] = bool(values[9])
    return Token(*values)


def artefact_of(row: Sequence[Any]) -> ArtefactRow:
    values = list(row)
    values[5] = bool(values[5])
    return ArtefactRow(*values)


def place_of(row: Sequence[Any]) -> LogPlace:
    size, part, received, cut = row
    return LogPlace(size, part, received, bool(cut))


def text(value: str) -> str:
    """Text of a person or a program as any store can keep it: not too long, no NUL."""
    return plain(value[:TEXT_MAX])[:TEXT_MAX]


def plain(value: str) -> str:
    """Text as any store can keep it; NUL and half a surrogate pair become their escapes."""
    if "\0" in value:
        value = value.replace("\0", "\\0")
    if value.isascii():  # nearly all of it is, and this runs for each value of each statement
        return value
    return value.encode("utf-8", "backslashreplace").decode()


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: plain(value) if isinstance(value, str) else value for name, value in values.items()
    }


# Logs and files


def appended(place: LogPlace, piece: LogPiece) -> tuple[LogPlace, bytes]:
    """Where a log is after an append, and the bytes that are kept of it."""
    received = place.received if piece.part == place.part else 0
    if piece.offset > received:  # a gap: what comes before it must come first
        return place, b""
    fresh = piece.data[received - piece.offset :]
    if not fresh:
        return place, b""
    after = replace(place, part=piece.part, received=received + len(fresh))
    if place.cut:
        return after, b""
    kept = piece.begin_mark + fresh if piece.part > place.part and place.size else fresh
    room = max(piece.limit - place.size, 0)
    cut = len(kept) > room
    if cut:
        kept = kept[:room] + piece.end_mark
    return replace(after, size=place.size + len(kept), cut=cut), kept


def folder_job(row: ArtefactRow) -> str:
    """The job of a folder whose first file this is; the job of inputs is attached later."""
    return "" if row.input else row.folder
