"""Job ids that are numbers in put order."""

from __future__ import annotations

from pollwise.errors import ConfigError


def number_of(job_id: str) -> int:
    """The number in an id; 0, which no job has, if the id is not such a number."""
    return int(job_id) if job_id.isascii() and job_id.isdigit() and len(job_id) < 19 else 0


def place_after(job_id: str | None) -> int:
    """The number after which a page begins; 0 for the first page."""
    if job_id is None:
        return 0
    place = number_of(job_id)
    if not place:
        raise ConfigError(
            f"after = {job_id!r} is not a job id; give the last id of the previous page"
        )
    return place
