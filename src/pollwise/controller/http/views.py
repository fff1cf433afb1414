"""Rows as the API shows them: plain values, times in ISO 8601."""

from __future__ import annotations

import json
from typing import Any

from pollwise.controller.http.answers import moment
from pollwise.controller.state.values import ENDED, ArtefactRow, JobRow, Token, WorkerRow
from pollwise.runtime.audit import AuditEntry


def job_view(row: JobRow, waiting_for: str | None = None, *, result: bool = True) -> dict[str, Any]:
    """A job as people see it. In pages, payloads and results that are long are left out.

    What the row keeps of a run that is over is not told of a job that waits or runs again, but for
    the error, as `last_error`: people ask how it is now, and why it has to be tried again.
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
    """A job as its worker gets it."""
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
    return {
        "id": token.id,
        "name": token.name,
        "scope": token.scope,
        "created_at": moment(token.created_at),
        "created_by": token.created_by,
        "expires_at": moment(token.expires_at),
        "revoked_at": moment(token.revoked_at),
        "last_used_at": moment(token.last_used_at),
    }


def artefact_view(row: ArtefactRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "size": row.size,
        "sha256": row.sha256,
        "content_type": row.content_type,
        "created_at": moment(row.created_at),
    }


def audit_view(entry: AuditEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "at": moment(entry.at),
        "who": entry.who,
        "action": entry.action,
        "what": entry.what,
        "detail": entry.detail,
        "address": entry.address,
    }
