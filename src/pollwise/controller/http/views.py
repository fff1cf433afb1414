"""Rows as the API shows them: plain values, times in ISO 8601."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pydantic import BaseModel

from pollwise.controller.attempts import Attempt
from pollwise.controller.http.answers import moment
from pollwise.controller.http.schema import JobFailureView
from pollwise.controller.names import split_label, with_names, workers_in
from pollwise.controller.state.values import WorkerRow
from pollwise.controller.terms import BY, JobTerms
from pollwise.controller.workers.registry import HeldRun
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.decoding import CutText
from pollwise.runtime.jobs import ENDED, Job, JobInfo
from pollwise.runtime.payloads.envelope import shown


def job_view(
    info: JobInfo,
    terms: JobTerms,
    inputs: Sequence[str] = (),
    waiting_for: str | None = None,
    *,
    names: Mapping[str, str],
    brief: bool = False,
) -> dict[str, Any]:
    """A job as people see it. Lists are `brief`: they leave out long payloads and results.

    For a job that waits or runs again, nothing of the previous run is shown except its error, as
    `last_error`.
    names: of the workers and tokens in it (see `whos_in`).
    """
    job, ended = replace(info.job, payload=shown(info.job.payload)), info.state in ENDED
    waits = not ended and info.state != "leased"
    progress = None if waits else info.progress
    view = {
        **_common(job, terms, inputs, info.state, info.cancel),
        # A claim counts as an attempt, also the one that found none left.
        "attempt": min(job.attempt, terms.attempts),
        "unique": job.unique,
        "progress": None if progress is None else progress.fraction,
        "message": None if progress is None else progress.note,
        "worker_id": None if waits else info.worker,
        "worker_name": None if waits else names.get(f"worker:{info.worker}"),
        "created_by": terms.created_by or None,
        "created_by_name": names.get(terms.created_by),
        "run_at": moment(job.run_at),
        "started_at": None if waits else moment(info.claimed_at),
        "finished_at": moment(info.since) if ended else None,
        "error": info.error if ended and info.state != "done" else None,
        "last_error": None if ended else info.error or job.unreadable,
        "errors": [row_view(each, JobFailureView) for each in info.errors],
        "waiting_for": waiting_for,
        "result": shown(info.result),
    }
    for each in (view, *view["errors"]):
        for name in ("error", "last_error"):
            if each.get(name):
                each[name] = with_names(each[name], names)
    if brief:
        for name in ("payload", "result"):
            if type(beginning := view[name]) is CutText:
                view[name], view[f"{name}_start"] = None, beginning
    return view


def whos_in(info: JobInfo) -> list[str | None]:
    """The workers and tokens that the view of a job names."""
    errors = [who for each in info.errors for who in workers_in(each.error)]
    return [f"worker:{info.worker}", info.job.headers.get(BY), *errors]


def attempt_view(each: Attempt, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "attempt": each.attempt,
        "state": each.state,
        "worker_id": each.worker,
        "worker_name": names.get(f"worker:{each.worker}"),
        "began_at": moment(each.began_at),
        "ended_at": moment(each.ended_at),
        "error": None if each.error is None else with_names(each.error, names),
        "log_start": each.log_start,
        "log_end": each.log_end,
    }


def audit_view(entry: AuditEntry) -> dict[str, Any]:
    who, name = split_label(entry.who)
    return {**asdict(entry), "at": moment(entry.at), "who": who, "who_name": name}


def work_view(run: HeldRun, lease_s: float, inputs: Sequence[str]) -> dict[str, Any]:
    """A job as its worker receives it."""
    common = _common(run.claim.job, run.terms, inputs, "leased", run.cancel)
    return {**common, "lease_s": lease_s}


def _common(
    job: Job, terms: JobTerms, inputs: Sequence[str], state: str, cancel: bool
) -> dict[str, Any]:
    return {
        "id": job.id,
        "kind": terms.kind,
        "payload": job.payload,
        "headers": dict(terms.headers),
        "requires": dict(terms.requires),
        "state": state,
        "attempt": job.attempt,
        "attempts": terms.attempts,
        "priority": job.priority,
        "key": job.key,
        "created_at": moment(job.created_at),
        "timeout_s": terms.timeout_s,
        "inputs": list(inputs),
        "cancel": cancel,
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


def row_view(row: object, model: type[BaseModel]) -> dict[str, Any]:
    """The fields of a row that a model has, with times as text."""
    values = {name: getattr(row, name) for name in model.model_fields}
    return {k: moment(v) if k == "at" or k.endswith("_at") else v for k, v in values.items()}
