"""A job's record as a row of columns, as SQLite and Postgres return it: the same for both."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pollwise.queues.views import Stats
from pollwise.queues.waiting import JobEnding
from pollwise.runtime.decoding import decode_job, decode_result
from pollwise.runtime.jobs import STATES, Claim, Job, JobFailure, JobInfo, Progress
from pollwise.storage.ids import number_of

#: A prune examines jobs again that ended up to this many seconds before the last one's limit: they
#: may have been locked, or committed late.
PRUNE_LOOK_BACK = 600.0


def job_from(row: Sequence[Any], queue: str) -> Job:
    """From the first ten columns of a claim or a page."""
    seq, kind, payload, key, priority, attempt, created_at, run_at, unique, headers = row[:10]
    decoded = decode_job(payload, headers)
    # SQLite's RETURNING returns whole REALs as int.
    return Job(
        str(seq), queue, kind, decoded.payload, key, priority, attempt, float(created_at),
        float(run_at), unique, decoded.headers, decoded.unreadable,
    )  # fmt: skip


def info_from(row: Sequence[Any], queue: str) -> JobInfo:
    """From a row of a page: a job, its token, and the rest of its record."""
    job, token = job_from(row, queue), row[10]
    code, since, worker, errors, claimed_at, progress, cancel, result = row[11:]
    state = STATES[code]
    return JobInfo(
        job,
        state,
        claimed_at if state == "leased" else since,
        worker,
        errors_from(errors),
        claimed_at,
        progress_from(progress),
        bool(cancel),
        decode_result(result),
        Claim(job, token, worker, since) if state == "leased" else None,
    )


def endings_from(rows: Iterable[Sequence[Any]], ids: Iterable[str]) -> dict[str, JobEnding | None]:
    """From rows of a number, kind, state, errors and result. A job that is gone has no state."""
    found: dict[int, JobEnding | None] = {}
    for number, kind, code, errors, result in rows:
        found[number] = None
        if code is not None:
            failures = errors_from(errors)
            found[number] = JobEnding(
                kind, STATES[code], decode_result(result), failures[-1] if failures else None
            )
    numbers = {job_id: number_of(job_id) for job_id in ids}
    return {job_id: found[number] for job_id, number in numbers.items() if number in found}


def stats_from(rows: Iterable[Sequence[Any]]) -> Stats:
    """From rows of a state, a number of jobs and how long the first of them has been ready."""
    counts = dict.fromkeys(STATES, 0)
    ages = []
    for code, count, age in rows:
        counts[STATES[code]] += count
        if age is not None:
            ages.append(max(age, 0.0))
    return Stats.of(counts, max(ages, default=None))


def encoded_progress(progress: Progress | None, now: float) -> str | None:
    """`[fraction, note, at]`; None if there is none."""
    if progress is None:
        return None
    return json.dumps([progress.fraction, progress.note, now], ensure_ascii=False)


def progress_from(text: str | None) -> Progress | None:
    return None if text is None else Progress(*json.loads(text))


def errors_from(text: str | None) -> tuple[JobFailure, ...]:
    """From `[[at, attempt, error], …]`, the newest last."""
    return () if text is None else tuple(JobFailure.stored(*each) for each in json.loads(text))
