"""Rows as the API shows them: plain values, times in ISO 8601."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from pollwise.controller.http.answers import moment
from pollwise.controller.state.values import ENDED, ArtefactRow, JobRow, Token, WorkerRow
from pollwise.runtime.audit import AuditEntry


def job_view(row: JobRow, waiting_for: str | None = None, *, result: bool = True) -> dict[str, Any]:
    """A job as people see it. Lists leave out long payloads and results.

    For a job that waits or runs again, nothing of the previous run is shown except its error, as
    `last_error`.
    """
    ended, waits = row.state in ENDED, row.state in ("putting", "ready")
    view: dict[str, Any] = {
        "id": row.id,
        "kind": row.kind,
        "payload": None if row.payload is None else json.loads(row.payload),
        "requires": dict(row.requires),
        "state": "ready" if waits else row.state,
        "attempt": row.attempt,
        "attempts": row.attempts,
        "priority": row.priority,
        "key": row.key,
        "unique": row.unique,
        "timeout_s": row.timeout_s,
        "inputs": list(row.inputs),
        "progress": None if waits else row.progress,
        "message": None if waits else row.message,
        "worker_id": None if waits else row.worker_id,
        "cancel": row.cancel and row.state == "leased",
        "created_at": moment(row.created_at),
        "started_at": None if waits else moment(row.started_at),
        "finished_at": moment(row.finished_at),
        "error": row.error if ended else None,
        "last_error": None if ended else row.error,
        "exit_code": row.exit_code if ended else None,
        "waiting_for": waiting_for,
    }
    if row.payload is None:
        view["payload_bytes"] = row.payload_bytes
    if result and row.result is not None:
        view["result"] = json.loads(row.result)
    return view


def work_view(row: JobRow, attempt: int, lease_s: float) -> dict[str, Any]:
    """A job as its worker receives it."""
    return {
        "id": row.id,
        "kind": row.kind,
        "payload": None if row.payload is None else json.loads(row.payload),
        "requires": dict(row.requires),
        "state": row.state,
        "attempt": attempt,
        "attempts": row.attempts,
        "priority": row.priority,
        "key": row.key,
        "created_at": moment(row.created_at),
        "timeout_s": row.timeout_s,
        "lease_s": lease_s,
        "inputs": list(row.inputs),
        "cancel": row.cancel,
    }


def worker_view(row: WorkerRow, *, online: bool, last_seen: float) -> dict[str, Any]:
    state = "draining" if online and row.drain else "online" if online else "offline"
    return {
        "id": row.id,
        "name": row.name,
        "capabilities": dict(row.capabilities),
        "slots": row.slots,
        "state": state,
        "drain": row.drain,
        "registered_at": moment(row.registered_at),
        "last_seen_at": moment(last_seen),
        "token_expires_at": moment(row.token_expires_at),
        "address": row.address or None,
    }


def token_view(token: Token) -> dict[str, Any]:
    return _shown(token, without=("hash",))


def artefact_view(row: ArtefactRow) -> dict[str, Any]:
    return _shown(row, without=("job_id", "blob", "input", "created_by"))


def audit_view(entry: AuditEntry) -> dict[str, Any]:
    return _shown(entry)


def _shown(row: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a row, with times as text."""
    values = {
        each.name: getattr(row, each.name) for each in fields(row) if each.name not in without
    }
    return {k: moment(v) if k == "at" or k.endswith("_at") else v for k, v in values.items()}
