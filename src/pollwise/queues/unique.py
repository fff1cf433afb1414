"""Jobs with the same `unique`: equal jobs count as one; a different job is refused."""

from __future__ import annotations

from collections.abc import Sequence

from pollwise.errors import JobError, UniqueConflict
from pollwise.runtime.decoding import same_payload
from pollwise.runtime.jobs import STATES, NewJob, State

#: The states in which a job can be replaced.
WAITING: tuple[State, ...] = STATES[:3]


def check_twin(job: NewJob, job_id: object, kind: str, payload: str) -> None:
    """Refuse a job whose `unique` is taken by a job with another kind or payload (JSON)."""
    if kind != job.kind or not same_payload(payload, job.encoded):
        raise conflict(job, f"job {job_id} of kind {kind!r}")


def check_replaced(job: NewJob, job_id: object, kind: str, key: str | None) -> None:
    """Refuse a job that would replace one of another kind or key."""
    if kind != job.kind or key != job.key:
        error = UniqueConflict(
            f"unique = {job.unique!r} is taken by job {job_id} of kind {kind!r} and key {key!r}, "
            "and `replace` keeps both; nothing was put. Use another unique, or this kind and key"
        )
        error.unique = job.unique
        raise error


def check_replacing(jobs: Sequence[NewJob]) -> None:
    """Refuse a batch in which one job would replace another."""
    names = [job.unique for job in jobs if job.unique is not None]
    if len(set(names)) == len(names):
        return
    for job in jobs:
        if job.replace and names.count(job.unique or "") > 1:
            raise JobError(
                f"unique = {job.unique!r} is in this batch {names.count(job.unique or '')} times, "
                "with `replace`; give only the last of these jobs"
            )


def replaced_run_at(job: NewJob, run_at: float, now: float) -> float:
    """When the replaced job may run: one that was due keeps its place among those that are."""
    due = job.due_at(now)
    return due if due > now else min(run_at, now)


def conflict(job: NewJob, other: str) -> UniqueConflict:
    error = UniqueConflict(
        f"unique = {job.unique!r} is taken by {other} with another kind or payload; nothing was "
        "put. Use another unique, or replace=True if the latest payload must win"
    )
    error.unique = job.unique
    return error


def first_places(jobs: Sequence[NewJob]) -> list[int]:
    """The index of each job of a batch, or that of the first job with the same `unique`."""
    places: dict[str, int] = {}
    return [
        place if job.unique is None else places.setdefault(job.unique, place)
        for place, job in enumerate(jobs)
    ]
