"""Rows of the state's tables to values and back, and what an append does to a log.

The names of a value's fields are the names of its columns, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from pollwise.controller.state.values import ArtefactRow, LogPlace, Token, WorkerRow
from pollwise.errors import JobError
from pollwise.runtime.audit import AuditEntry

#: The longest text of a person or a program (a name, a detail), in characters.
TEXT_MAX = 2000


def filled(statements: Mapping[str, str], dialect: Mapping[str, str]) -> dict[str, str]:
    """Statements with the columns of what they read, and the words of a dialect, filled in."""
    places = {
        "{worker}": _columns(WorkerRow),
        "{token}": _columns(Token),
        "{artefact}": _columns(ArtefactRow),
        **dialect,
    }
    made = {}
    for name, statement in statements.items():
        for place, words in places.items():
            statement = statement.replace(place, words)
        made[name] = statement
    return made


def _columns(value: type) -> str:
    return ", ".join(each.name for each in fields(value))


# From rows; SQLite keeps a flag as a number


def worker_of(row: Sequence[Any]) -> WorkerRow:
    values = list(row)
    values[2] = json.loads(values[2])
    values[9] = bool(values[9])
    return WorkerRow(*values)


def artefact_of(row: Sequence[Any]) -> ArtefactRow:
    values = list(row)
    values[5] = bool(values[5])
    return ArtefactRow(*values)


def place_of(row: Sequence[Any]) -> LogPlace:
    size, part, received, cut = row
    return LogPlace(size, part, received, bool(cut))


# To parameters


def new_worker(row: WorkerRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": text(row.name),
        "capabilities": json.dumps(row.capabilities),
        "slots": row.slots,
        "token_hash": row.token_hash,
        "token_expires_at": row.token_expires_at,
        "registered_by": row.registered_by,
        "drain": row.drain,
        "address": text(row.address),
    }


def new_token(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": text(token.name),
        "scope": token.scope,
        "hash": token.hash,
        "created_by": token.created_by,
        "expires_at": token.expires_at,
    }


def new_audit(entry: AuditEntry, ago_s: float) -> dict[str, Any]:
    names = ("who", "action", "what", "detail", "address")
    return {"ago_s": ago_s, **{name: text(getattr(entry, name)) for name in names}}


def new_artefact(row: ArtefactRow) -> dict[str, Any]:
    names = [each.name for each in fields(ArtefactRow) if each.name != "created_at"]
    return {name: getattr(row, name) for name in names}


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


# Logs and files


def appended(
    place: LogPlace,
    part: int,
    offset: int,
    data: bytes,
    limit: int,
    end_mark: bytes,
    begin_mark: bytes = b"",
) -> tuple[LogPlace, bytes]:
    """Where a log is after an append, and the bytes that are kept of it."""
    received = place.received if part == place.part else 0
    if offset > received:  # a gap: what comes before it must come first
        return place, b""
    fresh = data[received - offset :]
    if not fresh:
        return place, b""
    if place.cut:
        return replace(place, part=part, received=received + len(fresh)), b""
    kept = begin_mark + fresh if part > place.part and place.size else fresh
    room = max(limit - place.size, 0)
    cut = len(kept) > room
    if cut:
        kept = kept[:room] + end_mark
    size = place.size + len(kept)
    return replace(place, size=size, part=part, received=received + len(fresh), cut=cut), kept


def cut_out(pieces: Sequence[tuple[int, bytes]], start: int, stop: int) -> bytes:
    """The bytes from `start` to `stop` of pieces that follow each other."""
    if not pieces:
        return b""
    first = pieces[0][0]
    whole = b"".join(bytes(data) for _, data in pieces)
    return whole[max(start - first, 0) : max(stop - first, 0)]


def folder_job(row: ArtefactRow) -> str:
    """The job of a folder whose first file this is; the job of inputs is attached later."""
    return "" if row.input else row.folder


def too_many(row: ArtefactRow, most: int) -> JobError:
    what = "inputs" if row.input else "artefacts"
    return JobError(f"the job has {most} {what} already, which is the maximum")
