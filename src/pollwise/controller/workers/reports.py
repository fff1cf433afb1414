"""What a worker says of the jobs that it has, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Progress:
    """What a worker says of a job that it works on."""

    job_id: str
    progress: float | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """What a worker says of a job that it is through with: done, failed or cancelled."""

    job_id: str
    status: str
    result: str | None = None
    error: str | None = None
    exit_code: int | None = None
    #: The last that it said of its progress, where it did not say so before.
    last: Progress | None = None


@dataclass(slots=True)
class Heard:
    """What came of a contact: runs that are the worker's, ids that are not, ids to cancel."""

    lost: list[str] = field(default_factory=list)
    cancel: list[str] = field(default_factory=list)
