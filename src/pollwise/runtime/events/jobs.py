"""What happens to workers and their jobs."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from pollwise.runtime.events.base import Event


@dataclass(frozen=True, slots=True)
class WorkerStarted(Event):
    """A worker begins to poll."""

    level: ClassVar[int] = logging.INFO

    worker: str
    kinds: tuple[str, ...]
    concurrency: int
    strategy: str


@dataclass(frozen=True, slots=True)
class WorkerStopping(Event):
    """A worker claims no more and finishes what it holds."""

    level: ClassVar[int] = logging.INFO

    worker: str
    running: int
    grace: float


@dataclass(frozen=True, slots=True)
class WorkerStopped(Event):
    """A worker holds nothing any more; `given_back` jobs went back to the queue."""

    level: ClassVar[int] = logging.INFO

    worker: str
    given_back: int


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    """Something that happened to one job."""

    worker: str
    job: str
    kind: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobStarted(JobEvent):
    """A handler begins; the job had `waited` since it was due."""

    waited: float


@dataclass(frozen=True, slots=True)
class JobDone(JobEvent):
    """A handler returned."""

    took: float


@dataclass(frozen=True, slots=True)
class JobRetried(JobEvent):
    """A handler failed, and its job comes back after `delay`."""

    level: ClassVar[int] = logging.WARNING

    error: str
    delay: float
    took: float
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class JobSnoozed(JobEvent):
    """A handler asked for its job to come back after `delay`; no attempt was used."""

    delay: float


@dataclass(frozen=True, slots=True)
class JobDead(JobEvent):
    """A job went to the dead letters."""

    level: ClassVar[int] = logging.ERROR

    error: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class JobGivenBack(JobEvent):
    """A job went back unfinished, because its worker stops or its kind's breaker opened."""

    level: ClassVar[int] = logging.INFO

    reason: str


@dataclass(frozen=True, slots=True)
class JobUnhandled(JobEvent):
    """A store that cannot pick kinds gave a job that has no handler here; it went back."""

    level: ClassVar[int] = logging.WARNING

    delay: float


@dataclass(frozen=True, slots=True)
class JobLost(JobEvent):
    """A lease ran out under a worker; whatever its handler did, the job is no longer its."""

    level: ClassVar[int] = logging.WARNING
