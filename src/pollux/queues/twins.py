"""Jobs with the same `unique`: one job, if they are the same; else the later one is refused."""

from __future__ import annotations

from pollux.errors import UniqueConflict
from pollux.jobs import NewJob, same_payload


def check_twin(job: NewJob, job_id: object, kind: str, payload: str) -> None:
    """Refuse a job whose `unique` stands for another: its id, its kind, its payload as JSON."""
    if kind != job.kind or not same_payload(payload, job.encoded):
        raise UniqueConflict(
            f"unique = {job.unique!r} stands for job {job_id} of kind {kind!r} with another "
            "kind or payload; nothing was put"
        )
