"""Jobs, claims and settlements as JSON, for both ends of `http://` queues.

Input from the network may be anything. Reading it raises only `ConfigError` or `JobError`, which
say what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pollwise.errors import ConfigError, JobError
from pollwise.queues.base import Stats
from pollwise.runtime.jobs import STATES, Claim, Job, JobInfo, NewJob, Settlement

Wire = dict[str, Any]

#: The maximum length of a receipt, in characters.
RECEIPT_LENGTH_MAX = 4000
_NEW_JOB = ("kind", "payload", "key", "priority", "delay", "run_at", "unique")


def encoded_jobs(jobs: Sequence[NewJob]) -> str:
    """Jobs to put, as a JSON list; their payloads are JSON already."""
    return f"[{','.join(map(_encoded_job, jobs))}]"


def _encoded_job(job: NewJob) -> str:
    said: Wire = {"kind": job.kind}
    if job.key is not None:
        said["key"] = job.key
    if job.priority:
        said["priority"] = job.priority
    if job.delay:
        said["delay"] = job.delay
    if job.run_at is not None:
        said["run_at"] = job.run_at
    if job.unique is not None:
        said["unique"] = job.unique
    return f'{json.dumps(said, ensure_ascii=False)[:-1]},"payload":{job.encoded}}}'


def jobs_from(given: object) -> list[NewJob]:
    if not isinstance(given, list):
        raise JobError('jobs must be a list, such as [{"kind": "mail", "payload": {"to": "x"}}]')
    return [_job_from(each) for each in given]


def _job_from(given: object) -> NewJob:
    if not isinstance(given, dict) or "kind" not in given:
        raise JobError("a job must be an object with a `kind`")
    unknown = [name for name in given if name not in _NEW_JOB]
    if unknown:
        raise JobError(f"unknown field {unknown[0][:40]!r} of a job; known: {', '.join(_NEW_JOB)}")
    return NewJob(
        given["kind"],
        given.get("payload"),
        key=given.get("key"),
        priority=given.get("priority", 0),
        delay=given.get("delay", 0),
        run_at=given.get("run_at"),
        unique=given.get("unique"),
    )


def claim_to(claim: Claim) -> Wire:
    """A claim as it is sent to its worker."""
    said = {**asdict(claim.job), "token": claim.token, "until": claim.until}
    del said["queue"]
    if claim.receipt:
        said["receipt"] = claim.receipt
    return said


def claim_from(said: Wire, queue: str, worker: str) -> Claim:
    """A claim as its worker receives it."""
    return Claim(
        _job(said, queue), int(said["token"]), worker, float(said["until"]), said.get("receipt", "")
    )


def _job(said: Wire, queue: str) -> Job:
    return Job(
        id=said["id"],
        queue=queue,
        kind=said["kind"],
        payload=said["payload"],
        key=said["key"],
        priority=said["priority"],
        attempt=said["attempt"],
        created_at=said["created_at"],
        run_at=said["run_at"],
        unique=said["unique"],
    )


def held_to(claim: Claim) -> Wire:
    """The fields of a claim that settle and renew need."""
    said: Wire = {"id": claim.job.id, "token": claim.token, "worker": claim.worker}
    said |= {"kind": claim.job.kind, "attempt": claim.job.attempt, "until": claim.until}
    if claim.job.key is not None:
        said["key"] = claim.job.key
    if claim.receipt:
        said["receipt"] = claim.receipt
    return said


def held_from(given: object, queue: str) -> Claim:
    """A claim to settle or renew, as received."""
    if not isinstance(given, dict):
        raise ConfigError("a claim must be an object with id, token and worker")
    token = given.get("token")
    if isinstance(token, bool) or not isinstance(token, int) or abs(token) >= 2**63:
        raise ConfigError("a claim's token must be the whole number that the claim had")
    key = given.get("key")
    job = Job(
        id=_text(given, "id"),
        queue=queue,
        kind=_text(given, "kind", "unknown"),
        payload=None,
        key=None if key is None else _text(given, "key"),
        priority=0,
        attempt=_count(given, "attempt"),
        created_at=0.0,
        run_at=0.0,
        unique=None,
    )
    receipt = _text(given, "receipt", "", RECEIPT_LENGTH_MAX)
    until = _number(given.get("until", 0.0), "until")
    return Claim(job, token, _text(given, "worker", "unknown"), until, receipt)


def settlement_to(settlement: Settlement) -> Wire:
    said = {**held_to(settlement.claim), "action": settlement.action}
    if settlement.delay:
        said["delay"] = settlement.delay
    if settlement.error is not None:
        said["error"] = settlement.error
    if not settlement.counted:
        said["counted"] = False
    return said


def settlement_from(given: object, queue: str) -> Settlement:
    claim = held_from(given, queue)
    said: Wire = given if isinstance(given, dict) else {}
    error = said.get("error")
    if error is not None and not isinstance(error, str):
        raise ConfigError("a settlement's error must be a string")
    action: Any = said.get("action")
    counted = said.get("counted", True)
    if not isinstance(counted, bool):
        raise ConfigError("a settlement's counted must be true or false")
    return Settlement(claim, action, _number(said.get("delay", 0.0), "delay"), error, counted)


def info_to(info: JobInfo) -> Wire:
    said = asdict(info.job)
    del said["queue"]
    return {
        "job": said,
        "state": info.state,
        "since": info.since,
        "worker": info.worker,
        "error": info.error,
    }


def info_from(said: Wire, queue: str) -> JobInfo:
    state = said["state"]
    if state not in STATES:
        raise ValueError(state)
    return JobInfo(_job(said["job"], queue), state, said["since"], said["worker"], said["error"])


def stats_from(said: Mapping[str, Any]) -> Stats:
    return Stats(**{name: said[name] for name in Stats.__dataclass_fields__})


def names_from(given: object, what: str) -> list[str] | None:
    """A list of names (kinds, ids), or None."""
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"{what} must be a list of strings, or null for all")
    return given


def _text(given: Mapping[str, Any], name: str, default: str | None = None, most: int = 300) -> str:
    value = given.get(name, default)
    if not isinstance(value, str) or len(value) > most:
        raise ConfigError(f"a claim's {name} must be a string of at most {most} characters")

    return value


def _count(given: Mapping[str, Any], name: str) -> int:
    value = given.get(name, 1)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise ConfigError(f"a claim's {name} must be a whole number")
    return value


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        raise ConfigError(f"{name} must be a number of seconds, 0 or more")
    return float(value)
