"""Jobs, claims and settlements as JSON, for both ends of `http://` queues.

Input from the network may be anything. Reading it raises only `ConfigError` or `JobError`, which
say what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from pollwise.durations import seconds
from pollwise.errors import ConfigError, JobError
from pollwise.queues.flows.linking import places_from
from pollwise.queues.views import JobFilter, Stats
from pollwise.queues.waiting import JobEnding
from pollwise.runtime.decoding import CutText
from pollwise.runtime.jobs import (
    STATES,
    UNKNOWN_HEADERS,
    Claim,
    Job,
    JobFailure,
    JobInfo,
    NewJob,
    Progress,
    Settlement,
    State,
    encode,
)
from pollwise.runtime.rollups import Histogram, HistoryPoint
from pollwise.runtime.rollups.keeping import PACES_MAX
from pollwise.runtime.rollups.rows import (
    BY_WORKER,
    PACE,
    PACE_AT,
    ROWS_PER_WRITE_MAX,
    HistoryRow,
)
from pollwise.runtime.store import MAX_BATCH

Wire = dict[str, Any]

#: The maximum length of a receipt, in characters.
RECEIPT_LENGTH_MAX = 4000
#: Settlements with more characters than this are several requests: the largest body is 16 MiB, and
#: a character has at most 4 bytes.
PART_LENGTH_MAX = 3 * 1024 * 1024
_HISTOGRAMS = ("waits", "durations")
_NEW_JOB = (
    "kind", "payload", "key", "priority", "delay", "run_at", "unique", "replace", "headers",
    "limit_group", "after", "on_failure",
)  # fmt: skip
_JOB = (
    "id", "kind", "payload", "key", "priority", "attempt", "created_at", "run_at", "unique",
)  # fmt: skip


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
    if job.replace:
        said["replace"] = True
    if job.headers:
        said["headers"] = job.headers
    if job.limit_group is not None:
        said["limit_group"] = job.limit_group
    if job.place is not None and job.place.after:
        said |= {"after": job.place.after, "on_failure": job.place.on_failure}
    return f'{json.dumps(said, ensure_ascii=False)[:-1]},"payload":{job.encoded}}}'


def jobs_from(given: object) -> list[NewJob]:
    if not isinstance(given, list):
        raise JobError('jobs must be a list, such as [{"kind": "mail", "payload": {"to": "x"}}]')
    jobs: list[NewJob] = []
    for each in given:
        jobs.append(_job_from(each, jobs))
    return jobs


def _job_from(given: object, before: Sequence[NewJob]) -> NewJob:
    """A job to put; `before` are those before it in the batch."""
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
        replace=given.get("replace") is True,
        headers=given.get("headers"),
        limit_group=given.get("limit_group"),
        after=[before[place] for place in places_from(given.get("after"), len(before))],
        on_failure=given.get("on_failure") is True,
    )


def claim_to(claim: Claim) -> Wire:
    """A claim as it is sent to its worker."""
    said = {**_job_to(claim.job), "token": claim.token, "until": claim.until}
    if claim.receipt:
        said["receipt"] = claim.receipt
    if claim.suspect:
        said["suspect"] = True
    if claim.size:
        said["size"] = claim.size
    if claim.lapsed_from:
        said["lapsed_from"] = claim.lapsed_from
    return said


def claim_from(said: Wire, queue: str, worker: str) -> Claim:
    """A claim as its worker receives it."""
    return Claim(
        _job(said, queue),
        int(said["token"]),
        worker,
        float(said["until"]),
        said.get("receipt", ""),
        bool(said.get("suspect")),
        int(said.get("size", 0)),
        str(said.get("lapsed_from", "")),
    )


def _job_to(job: Job) -> Wire:
    said = {name: getattr(job, name) for name in _JOB}
    if job.headers:
        said["headers"] = dict(job.headers)
    if job.unreadable is not None:
        said["unreadable"] = job.unreadable
    return said


def _job(said: Wire, queue: str) -> Job:
    values = {name: said[name] for name in _JOB}
    headers, unreadable = said.get("headers", {}), said.get("unreadable")
    return Job(queue=queue, headers=headers, unreadable=unreadable, **values)


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
        headers=UNKNOWN_HEADERS,
    )
    receipt = _text(given, "receipt", "", RECEIPT_LENGTH_MAX)
    until = _number(given.get("until", 0.0), "until")
    return Claim(job, token, _text(given, "worker", "unknown"), until, receipt)


def renewals_to(claims: Sequence[Claim], progress: Mapping[str, Progress]) -> list[Wire]:
    """Claims to renew, with the progress of their runs."""
    renewals = []
    for claim in claims:
        said = held_to(claim)
        if (told := progress.get(claim.job.id)) is not None:
            said["progress"] = {"fraction": told.fraction, "note": told.note}
        renewals.append(said)
    return renewals


def renewals_from(given: object, queue: str) -> tuple[list[Claim], dict[str, Progress]]:
    """Claims to renew, and the progress of their runs, as received."""
    if not isinstance(given, list):
        raise ConfigError("claims must be a list of objects with id and token")
    claims = [held_from(each, queue) for each in given]
    progress = {}
    for claim, each in zip(claims, given, strict=True):
        if each.get("progress") is not None:
            progress[claim.job.id] = _progress_from(each["progress"])
    return claims, progress


def _progress_from(given: object) -> Progress:
    if not isinstance(given, dict):
        raise ConfigError("a progress must be an object with fraction, note, or both")
    note = given.get("note")
    if note is not None and not isinstance(note, str):
        raise ConfigError("the note of a progress must be a string")
    return Progress(given.get("fraction"), note)


def encoded_settlements(
    settlements: Sequence[Settlement],
) -> Iterator[tuple[list[Settlement], str]]:
    """Settlements as JSON lists, in parts that are small enough for a request."""
    part: list[Settlement] = []
    texts: list[str] = []
    size = 0
    for settlement in settlements:
        text = _encoded_settlement(settlement)
        if part and size + len(text) > PART_LENGTH_MAX:
            yield part, f"[{','.join(texts)}]"
            part, texts, size = [], [], 0
        part.append(settlement)
        texts.append(text)
        size += len(text)
    yield part, f"[{','.join(texts)}]"


def _encoded_settlement(settlement: Settlement) -> str:
    said = {**held_to(settlement.claim), "action": settlement.action}
    if settlement.delay:
        said["delay"] = settlement.delay
    if settlement.error is not None:
        said["error"] = settlement.error
    if settlement.keep is not None:
        said["keep"] = settlement.keep
    if settlement.traceback is not None:
        said["traceback"] = settlement.traceback
    text = json.dumps(said, ensure_ascii=False)
    if settlement.result is None:
        return text
    return f'{text[:-1]},"result":{settlement.result}}}'  # the result is JSON already


def settlement_from(given: object, queue: str) -> Settlement:
    claim = held_from(given, queue)
    said: Wire = given if isinstance(given, dict) else {}
    error, traceback = said.get("error"), said.get("traceback")
    for name, text in (("error", error), ("traceback", traceback)):
        if text is not None and not isinstance(text, str):
            raise ConfigError(f"a settlement's {name} must be a string")
    keep = said.get("keep")
    action: Any = said.get("action")
    result = said.get("result")
    return Settlement(
        claim,
        action,
        _number(said.get("delay", 0.0), "delay"),
        error,
        None if result is None else encode(result, claim.job.kind, "result"),
        None if keep is None else _number(keep, "keep"),
        traceback,
    )


def info_to(info: JobInfo) -> Wire:
    """A job's record as it is shown: without its claim, which only its worker may know."""
    return {
        "job": _job_to(info.job),
        "state": info.state,
        "since": info.since,
        "worker": info.worker,
        "errors": [asdict(failure) for failure in info.errors],
        "claimed_at": info.claimed_at,
        "progress": None if info.progress is None else asdict(info.progress),
        "cancel": info.cancel,
        "result": info.result,
        **({"cut": cut} if (cut := info.cut_parts) else {}),
    }


def info_from(said: Wire, queue: str) -> JobInfo:
    progress, cut = said["progress"], said.get("cut", ())
    info = JobInfo(
        _job(said["job"], queue),
        state_from(said["state"]),
        said["since"],
        said["worker"],
        tuple(map(_failure_from, said["errors"])),
        said["claimed_at"],
        progress and Progress(progress["fraction"], progress["note"], progress["at"]),
        said["cancel"],
        said["result"],
    )
    payload = CutText(said["job"]["payload"]) if "payload" in cut else None
    return info.cut(payload, CutText(said["result"]) if "result" in cut else None)


def _failure_from(said: Wire) -> JobFailure:
    return JobFailure(said["at"], said["attempt"], said["error"], said.get("traceback"))


def endings_to(endings: Mapping[str, JobEnding | None]) -> Wire:
    """How jobs ended, by their ids."""
    return {job_id: None if each is None else asdict(each) for job_id, each in endings.items()}


def endings_from(said: Mapping[str, Any]) -> dict[str, JobEnding | None]:
    return {job_id: each and ending_from(each) for job_id, each in said.items()}


def ending_from(said: Wire) -> JobEnding:
    failure = said["failure"]
    return JobEnding(
        said["kind"],
        state_from(said["state"]),
        said["result"],
        failure and _failure_from(failure),
    )


def rows_to(rows: Sequence[HistoryRow]) -> Wire:
    """Rows that a worker writes: times and figures of its history, and keys and states of paces.

    A controller of an earlier version takes no notice of paces.
    """
    said: Wire = {"history": [[row.at, row.value] for row in rows if row.level != PACE]}
    paces = [[row.writer, row.value] for row in rows if row.level == PACE]
    return said | {"paces": paces} if paces else said


def paces_from(given: object) -> list[HistoryRow]:
    """The paces of a worker, as received."""
    if not isinstance(given, list) or len(given) > PACES_MAX:
        raise ConfigError(f"paces must be a list of at most {PACES_MAX} paces")
    rows = []
    for each in given:
        if not isinstance(each, list) or list(map(type, each)) != [str, str]:
            raise ConfigError("a pace must be a list of its key and its state, both as text")
        rows.append(HistoryRow(PACE, PACE_AT, each[0], each[1]))
    return rows


def rows_from(given: object, writer: str) -> list[HistoryRow]:
    """Rows of history of this worker, as received."""
    if not isinstance(given, list) or len(given) > ROWS_PER_WRITE_MAX:
        raise ConfigError(f"history must be a list of at most {ROWS_PER_WRITE_MAX} rows")
    rows = []
    for each in given:
        if not isinstance(each, list) or list(map(type, each)) != [int, str]:
            raise ConfigError("a row of history must be a list of a time and its figures as text")
        rows.append(HistoryRow(BY_WORKER, each[0], writer, each[1]))
    return rows


def point_to(point: HistoryPoint) -> Wire:
    """The figures of an interval and a kind; those that are 0 are left out."""
    said: Wire = {"at": point.at, "seconds": point.seconds}
    for field in fields(point):
        value = getattr(point, field.name)
        if value != field.default:
            said[field.name] = _histogram_to(value) if isinstance(value, Histogram) else value
    return said


def _histogram_to(histogram: Histogram) -> Wire:
    return {"total": histogram.total, "buckets": histogram.counts}


def points_from(said: Sequence[Wire]) -> list[HistoryPoint]:
    known = {field.name for field in fields(HistoryPoint)}
    points = []
    for each in said:
        values = {name: value for name, value in each.items() if name in known}
        for name in _HISTOGRAMS:
            if name in values:
                buckets = {int(bucket): int(hits) for bucket, hits in values[name]["buckets"]}
                values[name] = Histogram.from_counts(buckets, float(values[name]["total"]))
        points.append(HistoryPoint(**values))
    return points


def state_from(said: object) -> State:
    """A state in an answer."""
    for state in STATES:
        if said == state:
            return state
    raise ValueError(said)


def stats_from(said: Mapping[str, Any]) -> Stats:
    capped = frozenset(map(state_from, said.get("capped", ())))
    names = ("oldest_age", *STATES)
    return Stats(**{name: said[name] for name in names}, capped=capped)


#: The names of a filter's values, in a query or a body.
FILTER = (
    "state", "kind", "worker", "limit", "after", "key", "error", "older_than", "newer_than",
    "live",
)  # fmt: skip


def filter_from(given: Mapping[str, Any]) -> JobFilter:
    """A filter as received; its values are text, except for `kind`, a list."""
    unknown = [name for name in given if name not in FILTER]
    if unknown:
        raise ConfigError(
            f"unknown field {unknown[0][:40]!r} of a filter; known: {', '.join(FILTER)}"
        )
    kinds = names_from(given.get("kind"), "kind")
    texts = {name: value for name, value in given.items() if name != "kind" and value is not None}
    wrong = [name for name, value in texts.items() if not isinstance(value, str)]
    if wrong:
        raise ConfigError(f"{wrong[0]} must be text")
    limit = texts.pop("limit", "50")
    if not limit.isascii() or not limit.isdigit() or len(limit) > 9:
        raise ConfigError(f"limit = {limit[:40]!r} must be a whole number")
    live = texts.pop("live", "false")
    if live not in ("true", "false"):
        raise ConfigError(f"live = {live[:40]!r} must be true or false")
    ages: dict[str, Any] = {
        n: _age(texts.pop(n), n) for n in ("older_than", "newer_than") if n in texts
    }
    chosen = None if kinds is None else tuple(kinds)
    return JobFilter(kinds=chosen, limit=int(limit), live=live == "true", **ages, **texts)


def _age(text: str, name: str) -> float:
    return seconds(text if text[-1:].isalpha() else _float(text, name), name)


def _float(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name} = {text[:40]!r} must be a number of seconds") from None


def filter_to(chosen: JobFilter) -> Wire:
    """A filter as values of a query or a body, without those that are not given."""
    said = {"state": chosen.state, "kind": chosen.kinds, "worker": chosen.worker}
    said |= {"limit": str(chosen.limit), "after": chosen.after}
    said |= {"key": chosen.key, "error": chosen.error, "live": "true" if chosen.live else None}
    ages = {"older_than": chosen.older_than, "newer_than": chosen.newer_than}
    said |= {name: None if age is None else repr(float(age)) for name, age in ages.items()}
    return {name: value for name, value in said.items() if value is not None}


def names_from(given: object, what: str) -> list[str] | None:
    """A list of names (kinds, ids), or None."""
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"{what} must be a list of strings, or null for all")
    if len(given) > MAX_BATCH:
        raise ConfigError(f"{what} has {len(given)} names; at most {MAX_BATCH}, so split the list")
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
