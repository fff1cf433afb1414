"""Jobs with the same `unique`: equal jobs count as one; a different job is refused."""

from __future__ import annotations

from collections.abc import Sequence

from pollwise.errors import UniqueConflict
from pollwise.runtime.decoding import same_payload
from pollwise.runtime.jobs import NewJob


def check_twin(job: NewJob, job_id: object, kind: str, payload: str) -> None:
    """Refuse a job whose `unique` is taken by a job with another kind or payload (JSON)."""
    if kind != job.kind or not same_payload(payload, job.encoded):
        raise conflict(job, f"job {job_id} of kind {kind!r}")


def conflict(job: NewJob, other: str) -> UniqueConflict:
    error = UniqueConflict(
        f"unique = {job.unique!r} is taken by {other} with another kind or payload; nothing was put"
    )
    error.unique = job.unique
    return error


def first_places(jobs: Sequence[NewJob]) -> list[int]:
    """For each job of a batch its index, or the index of the first with the same `unique`."""
    places: dict[str, int] = {}
    return [
        place if job.unique is None else places.setdefault(job.unique, place)
        for place, job in enumerate(jobs)
    ]
