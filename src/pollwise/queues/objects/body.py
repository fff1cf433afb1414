"""The contents of objects that hold jobs: the body of a put, and the record of one job."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pollwise.queues.objects.chain import Failure, ListedObject
from pollwise.queues.objects.names import SLICE, padded_result
from pollwise.runtime.decoding import (
    decode_document,
    decode_result,
    shown,
)
from pollwise.runtime.jobs import Job, JobFailure, JobInfo, NewJob, Progress, State
from pollwise.runtime.payloads.envelope_fields import canonical, fingerprints_of, is_envelope

#: About how many bytes a decoded value takes.
VALUE_BYTES = 64
#: The size of the cache of bodies, in bytes of memory.
CACHE_BYTES = 32 * 1024 * 1024
#: The kind of the one job that stands for a body that is not JSON.
DAMAGED = "damaged"
#: The number of entry contents in the cache; they are small.
CACHE_CONTENTS = 4096


@dataclass(slots=True)  # not frozen: one for each job, and frozen ones are slow to make
class StoredJob:
    """A job as stored in a body.

    errors: those it had before an operator retried it.
    unreadable: why the payload cannot be decoded; it is then its text.
    """

    id: str
    kind: str
    payload: Any
    priority: int
    created_at: float
    run_at: float
    unique: str | None
    delayed: bool
    headers: dict[str, str]
    errors: Sequence[Failure] = ()
    unreadable: str | None = None

    def job(self, queue: str, attempt: int, run_at: float | None) -> Job:
        due = self.run_at if run_at is None else run_at
        return Job(
            self.id, queue, self.kind, self.payload, None, self.priority, attempt,
            self.created_at, due, self.unique, self.headers, self.unreadable,
        )  # fmt: skip

    def same_for_claims(self, other: StoredJob) -> bool:
        mine = (self.kind, self.priority, self.run_at, self.delayed)
        return mine == (other.kind, other.priority, other.run_at, other.delayed)


@dataclass(frozen=True, slots=True)
class PutBody:
    """All jobs of a root; None for a job that repeats another."""

    jobs: tuple[StoredJob | None, ...]
    size: int

    def __getitem__(self, index: int) -> StoredJob:
        job = self.jobs[index] if len(self.jobs) > 1 or index == 0 else self.jobs[0]
        assert job is not None  # noqa: S101 - no slice holds a twin
        return job

    def slices(self) -> list[tuple[int, int]]:
        """Runs of jobs that are equal for a claim, as (start, end)."""
        cuts: list[tuple[int, int]] = []
        for index, job in enumerate(self.jobs):
            if job is None:
                continue
            if cuts and cuts[-1][1] == index and index - cuts[-1][0] < SLICE:
                before = self.jobs[index - 1]
                if before is not None and before.same_for_claims(job):
                    cuts[-1] = (cuts[-1][0], index + 1)
                    continue
            cuts.append((index, index + 1))
        return cuts


def write_body(jobs: Sequence[NewJob | None], dues: Sequence[float], now: float) -> bytes:
    parts = []
    for job, due in zip(jobs, dues, strict=True):
        if job is None:
            parts.append("null")
            continue
        rest: dict[str, Any] = {"kind": job.kind, "run_at": due}
        if job.priority:
            rest["priority"] = job.priority
        if job.unique is not None:
            rest["unique"] = job.unique
        if due > now:
            rest["delayed"] = True
        if job.headers:
            rest["headers"] = job.headers
        parts.append(f'{json.dumps(rest)[:-1]}, "payload": {job.encoded}}}')
    return _document(now, parts)


def _document(created_at: float, jobs: Sequence[str]) -> bytes:
    return f'{{"v": 1, "created_at": {created_at!r}, "jobs": [{", ".join(jobs)}]}}'.encode()


def read_body(folder: str, raw: bytes) -> PutBody:
    try:
        data = decode_document(raw)
    except ValueError as error:
        data = _damaged(raw, error)
    jobs = tuple(
        None
        if job is None
        else StoredJob(
            job.get("id", f"{folder}.{index}"),
            job["kind"],
            job["payload"],
            job.get("priority", 0),
            data["created_at"],
            job["run_at"],
            job.get("unique"),
            job.get("delayed", False),
            job.get("headers", {}),
            job.get("errors", ()),
            job.get("unreadable"),
        )
        for index, job in enumerate(data["jobs"])
    )
    return PutBody(jobs, memory_of(raw))


def memory_of(raw: bytes) -> int:
    """About how much memory decoded JSON takes: far more than its text."""
    return len(raw) + VALUE_BYTES * (raw.count(b",") + raw.count(b"[") + raw.count(b"{"))


def _damaged(raw: bytes, error: ValueError) -> dict[str, Any]:
    """One job in place of a body that is not JSON, so that people see it and others go on."""
    reason = f"its object cannot be decoded: {error}"
    job = {"kind": DAMAGED, "payload": shown(raw), "run_at": 0.0, "unreadable": reason}
    return {"created_at": 0.0, "jobs": [job]}


def write_again(job: StoredJob, errors: Sequence[Failure], now: float) -> bytes:
    """The body of a root with one job that is retried."""
    entry = {
        "id": job.id, "kind": job.kind, "priority": job.priority,
        "run_at": now, "unique": job.unique, "headers": job.headers, "errors": errors,
    }  # fmt: skip
    return _document(job.created_at, [_written(job, entry)])


def write_record(
    job: StoredJob,
    content: dict[str, Any],
    move: dict[str, Any],
    retried: int,
    keep: float | None = None,
) -> bytes:
    """The record of a job that left the chains: dead, or ended and kept.

    content, move: what the entry that ended it says about all its jobs, and about this one. The
    size of a cancelled job's record is odd, and that of any other even, so that a LIST shows it.
    keep: how long it is kept for its result, if it is not kept otherwise.
    """
    record = {
        "v": 1,
        "id": job.id,
        "kind": job.kind,
        "priority": job.priority,
        "created_at": job.created_at,
        "run_at": job.run_at if content["run_at"] is None else content["run_at"],
        "unique": job.unique if move["to"] == "dead" else None,
        "headers": job.headers,
        "state": move["to"],
        "attempt": move["attempt"],
        "since": content["since"],
        "worker": content["worker"],
        "claimed_at": content["claimed_at"],
        "errors": move["errors"],
        "progress": move["progress"],
        "result": move["result"],
        "retried": retried,
    }
    if keep is not None:
        record["expires_at"] = content["since"] + keep
        text = _written(job, record).encode()
        return padded_result(text, keep, cancelled=move["to"] == "cancelled")
    text = _written(job, record).encode()
    return text if len(text) % 2 == (move["to"] == "cancelled") else text + b" "


def _written(job: StoredJob, fields: dict[str, Any]) -> str:
    """The fields and the payload; a payload that cannot be decoded is written as it was put."""
    payload = json.dumps(job.payload, ensure_ascii=False)
    if job.kind == DAMAGED:
        fields["unreadable"] = job.unreadable
    elif job.unreadable is not None:
        payload = job.payload
    return f'{json.dumps(fields, ensure_ascii=False)[:-1]}, "payload": {payload}}}'


def duties(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The jobs that an entry says have yet to be moved, as a flat list."""
    own = {key: value for key, value in content.items() if key not in ("before", "nonce")}
    return [own, *content.get("before", ())]


def record_state(item: ListedObject) -> State:
    """The state of a record in `ended/` or `results/`."""
    return "cancelled" if item.size % 2 else "done"


def read_record(raw: bytes) -> tuple[StoredJob, dict[str, Any]]:
    data = decode_document(raw)
    job = StoredJob(
        data["id"], data["kind"], data["payload"], data["priority"], data["created_at"],
        data["run_at"], data["unique"], False, data["headers"], (), data.get("unreadable"),
    )  # fmt: skip
    return job, data


def info_of(queue: str, raw: bytes) -> JobInfo:
    """The contents of a record."""
    job, data = read_record(raw)
    return JobInfo(
        job.job(queue, data["attempt"], None),
        data["state"],
        data["since"],
        data["worker"],
        failures(data["errors"]),
        data["claimed_at"],
        progress_of(data["progress"]),
        result=decode_result(data["result"]),
    )


def failures(errors: Sequence[Failure]) -> tuple[JobFailure, ...]:
    return tuple(JobFailure.stored(*each) for each in errors)


def progress_of(said: Sequence[Any] | None) -> Progress | None:
    return None if said is None else Progress(*said)


def digest(job: NewJob) -> str:
    """Digests of a job: jobs with the same `unique` count as one if they share a digest.

    There is one for each fingerprint of an encoded payload, and one for any other payload.
    """
    payload = json.loads(job.encoded)
    fingerprints = [f"{key}={each}" for key, each in sorted(fingerprints_of(payload))]
    texts = fingerprints if is_envelope(payload) else [canonical(payload)]
    return " ".join(hashlib.sha256(f"{job.kind}\n{text}".encode()).hexdigest() for text in texts)


def same_digest(one: str, other: str) -> bool:
    return not set(one.split()).isdisjoint(other.split())


class BodyCache:
    """Bodies and contents that were read. They never change, so they never go stale."""

    def __init__(self) -> None:
        self._bodies: OrderedDict[str, PutBody] = OrderedDict()
        self._bytes = 0
        self._contents: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def body(self, path: str) -> PutBody | None:
        body = self._bodies.get(path)
        if body is not None:
            self._bodies.move_to_end(path)
        return body

    def add_body(self, path: str, body: PutBody) -> None:
        self.forget([path])
        self._bodies[path] = body
        self._bytes += body.size
        while self._bytes > CACHE_BYTES and len(self._bodies) > 1:
            _, oldest = self._bodies.popitem(last=False)
            self._bytes -= oldest.size

    def slices(self, path: str) -> list[tuple[int, int]] | None:
        body = self._bodies.get(path)
        return None if body is None else body.slices()

    def content(self, name: str) -> dict[str, Any] | None:
        return self._contents.get(name)

    def add_content(self, name: str, content: dict[str, Any]) -> dict[str, Any]:
        # What is to be moved may be large, and is read again by the handle that moves it.
        content = {"left": content["left"]} if "moves" in content else content
        self._contents[name] = content
        while len(self._contents) > CACHE_CONTENTS:
            self._contents.popitem(last=False)
        return content

    def forget(self, paths: Sequence[str]) -> None:
        for path in paths:
            body = self._bodies.pop(path, None)
            if body is not None:
                self._bytes -= body.size
