"""Rows of the state's tables to values and back: the same for every store.

The names of a value's fields are the names of its columns, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from pollwise.controller.state.base import BRIEF
from pollwise.controller.state.values import (
    JOB_STATES,
    ArtefactRow,
    Contact,
    ControllerStats,
    EndResult,
    JobRow,
    JobState,
    LogPlace,
    Requirement,
    RunEnding,
    RunRow,
    Token,
    WaitingJobs,
    WorkerRow,
)
from pollwise.errors import JobError
from pollwise.runtime.audit import AuditEntry

#: A requirement is written again after so long at the earliest, and deleted after twice as long.
REQUIREMENT_REST = 3600.0
#: The longest text of a person or a program (a message, an error, a detail), in characters.
TEXT_MAX = 2000

_RESERVED = ("key", "unique")
#: What is known of a run when it begins.
_NEW_RUN = tuple(
    each.name
    for each in fields(RunRow)
    if each.name not in ("delivered_at", "heard_of_at", "cancel")
)


def columns(value: type, *, without: str = "") -> list[str]:
    names = [each.name for each in fields(value) if each.name != without]
    return [f'"{name}"' if name in _RESERVED else name for name in names]


def filled(statements: Mapping[str, str]) -> dict[str, str]:
    """Statements with the columns of what they read or write in their places."""
    job = columns(JobRow)
    brief = [
        f"CASE WHEN {each}_bytes <= {BRIEF} THEN {each} END"
        if each in ("payload", "result")
        else each
        for each in job
    ]
    places = {
        "{job}": job,
        "{brief}": brief,
        "{run}": columns(RunRow, without="cancel"),
        "{worker}": columns(WorkerRow),
        "{token}": columns(Token),
        "{artefact}": columns(ArtefactRow),
    }
    made = {}
    for name, statement in statements.items():
        for place, names in places.items():
            statement = statement.replace(place, ", ".join(names))
        made[name] = statement
    return made


# From rows


def job_of(row: Sequence[Any]) -> JobRow:
    values = list(row)
    values[4] = json.loads(values[4])
    values[12] = tuple(json.loads(values[12]))
    values[21] = bool(values[21])
    for place in (9, 10, 18, 23, 24, 25, 26):  # SQLite gives whole numbers back as int
        if values[place] is not None:
            values[place] = float(values[place])
    return JobRow(*values)


def run_of(row: Sequence[Any]) -> RunRow:
    values = list(row)
    values[-1] = bool(values[-1])
    return RunRow(*values)


def worker_of(row: Sequence[Any]) -> WorkerRow:
    values = list(row)
    values[2] = json.loads(values[2])
    values[9] = bool(values[9])
    return WorkerRow(*values)


def token_of(row: Sequence[Any]) -> Token:
    return Token(*row)


def artefact_of(row: Sequence[Any]) -> ArtefactRow:
    values = list(row)
    values[5] = bool(values[5])
    return ArtefactRow(*values)


def audit_of(row: Sequence[Any]) -> AuditEntry:
    return AuditEntry(*row)


def requirement_of(row: Sequence[Any]) -> Requirement:
    return Requirement(row[0], row[1], json.loads(row[2]))


def stats_of(rows: Sequence[Sequence[Any]]) -> ControllerStats:
    """From (what, kind or state, hash, count, age) each."""
    jobs: dict[JobState, int] = dict.fromkeys(JOB_STATES, 0)
    waiting, counts = [], {"worker": 0, "live": 0, "run": 0}
    for what, name, digest, count, age in rows:
        if what == "job":
            jobs[name] = count
        elif what == "waiting":
            waiting.append(WaitingJobs(name, digest, count, max(float(age), 0.0)))
        else:
            counts[what] = count
    waiting.sort(key=lambda each: (each.kind, each.requires_hash))
    return ControllerStats(jobs, tuple(waiting), counts["worker"], counts["live"], counts["run"])


# To parameters


def new_job(row: JobRow) -> dict[str, Any]:
    payload = plain(row.payload or "null")
    return {
        "id": row.id,
        "kind": plain(row.kind),
        "payload": payload,
        "payload_bytes": len(payload.encode()),
        "requires": json.dumps(row.requires),
        "requires_hash": row.requires_hash,
        "priority": row.priority,
        "key": plain(row.key),
        "unique": plain(row.unique),
        "delay_s": row.delay_s,
        "timeout_s": row.timeout_s,
        "attempts": row.attempts,
        "inputs": json.dumps(list(row.inputs)),
        "created_by": plain(row.created_by),
    }


def new_run(run: RunRow) -> dict[str, Any]:
    return {name: getattr(run, name) for name in _NEW_RUN}


def new_contact(contact: Contact) -> dict[str, Any]:
    return {
        "job_id": plain(contact.job_id),
        "worker_id": contact.worker_id,
        "until": contact.until,
        "progress": contact.progress,
        "message": text(contact.message),
        "heard": contact.heard,
    }


def new_ending(ending: RunEnding) -> dict[str, Any]:
    result = plain(ending.result)
    return {
        "job_id": plain(ending.job_id),
        "worker_id": ending.worker_id,
        "state": ending.state,
        "result": result,
        "result_bytes": 0 if result is None else len(result.encode()),
        "error": text(ending.error),
        "exit_code": ending.exit_code,
        "token": ending.token,
    }


def new_worker(row: WorkerRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": text(row.name),
        "capabilities": plain(json.dumps(row.capabilities)),
        "slots": row.slots,
        "token_hash": row.token_hash,
        "token_expires_at": row.token_expires_at,
        "registered_by": plain(row.registered_by),
        "drain": row.drain,
        "address": text(row.address),
    }


def new_token(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": text(token.name),
        "scope": token.scope,
        "hash": token.hash,
        "created_by": plain(token.created_by),
        "expires_at": token.expires_at,
    }


def new_audit(entry: AuditEntry) -> dict[str, Any]:
    names = ("who", "action", "what", "detail", "address")
    return {name: text(getattr(entry, name)) for name in names}


def new_artefact(row: ArtefactRow) -> dict[str, Any]:
    names = [each.name for each in fields(ArtefactRow) if each.name != "created_at"]
    return {
        name: plain(value) if isinstance(value := getattr(row, name), str) else value
        for name in names
    }


def text(value: str | None) -> str | None:
    """What people and programs write, as any store can keep it: not too long, no NUL."""
    return None if value is None else plain(value[:TEXT_MAX])[:TEXT_MAX]


def plain(value: Any) -> Any:
    """Text as any store can keep it; in JSON, half a surrogate pair becomes its escape."""
    if value is None:
        return None
    if "\0" in value:
        value = value.replace("\0", "\\0")
    if value.isascii():  # nearly all of it is, and this runs for each value of each statement
        return value
    return value.encode("utf-8", "backslashreplace").decode()


def end_results(endings: Sequence[RunEnding], found: Mapping[str, EndResult]) -> list[EndResult]:
    """One for each ending: of several that name one job, the first counts."""
    told: list[EndResult] = []
    first: dict[str, str] = {}
    for each in endings:
        result = found[each.job_id]
        if each.job_id in first and result == "ended":
            result = "repeated" if first[each.job_id] == each.worker_id else "lost"
        first.setdefault(each.job_id, each.worker_id)
        told.append(result)
    return told


# What both stores do alike


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


def job_gone(job_id: str) -> JobError:
    return JobError(f"there is no job {job_id!r}; it may have been kept long enough")


def too_many(job_id: str, most: int) -> JobError:
    return JobError(f"job {job_id} has {most} artefacts already, the most that one may have")
