"""Jobs with the same `unique`: one job, if they are the same; else the later one is refused."""

from __future__ import annotations

from collections.abc import Sequence

from pollwise.errors import UniqueConflict
from pollwise.runtime.jobs import NewJob, same_payload


def check_twin(job: NewJob, job_id: object, kind: str, payload: str) -> None:
    """Refuse a job whose `unique` stands for another: its id, its kind, its payload as JSON."""
    if kind != job.kind or not same_payload(payload, job.encoded):
        raise conflict(job, f"job {job_id} of kind {kind!r}")


def conflict(job: NewJob, other: str) -> UniqueConflict:
    return UniqueConflict(
        f"unique = {job.unique!r} stands for {other} with another kind or payload; nothing was put"
    )


def first_places(jobs: Sequence[NewJob]) -> list[int]:
    """For each job of a batch its place, or that of the first with the same `unique`."""
    places: dict[str, int] = {}
    return [
        place if job.unique is None else places.setdefault(job.unique, place)
        for place, job in enumerate(jobs)
    ]
