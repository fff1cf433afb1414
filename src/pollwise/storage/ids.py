"""Job ids that are numbers in the order of the puts."""

from __future__ import annotations

from pollwise.errors import ConfigError


def number_of(job_id: str) -> int:
    """The number in an id; 0, which no job has, for an id that is not ours."""
    return int(job_id) if job_id.isascii() and job_id.isdigit() and len(job_id) < 19 else 0


def place_after(job_id: str | None) -> int:
    """Where a page begins: behind this job, or, when None, at the first."""
    if job_id is None:
        return 0
    place = number_of(job_id)
    if not place:
        raise ConfigError(f"after = {job_id!r} is no job id; give the last id of the page before")
    return place
