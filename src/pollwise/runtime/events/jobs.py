"""Events of workers and their jobs."""

from __future__ import annotations

import logging
from typing import ClassVar, NamedTuple

from pollwise.runtime.events.base import Event, event


@event
class WorkerStarted(Event):
    """A worker starts to poll."""

    level: ClassVar[int] = logging.INFO

    worker: str
    kinds: tuple[str, ...]
    concurrency: int
    strategy: str


@event
class ConcurrencyChanged(Event):
    """An operator changed how many handlers a worker runs at a time."""

    level: ClassVar[int] = logging.INFO

    worker: str
    before: int
    after: int


@event
class WorkerStopping(Event):
    """A worker stopped claiming and finishes the jobs it holds."""

    level: ClassVar[int] = logging.INFO

    worker: str
    running: int
    grace: float


@event
class WorkerStopped(Event):
    """A worker holds no jobs any more; it gave `given_back` jobs back to the queue."""

    level: ClassVar[int] = logging.INFO

    worker: str
    given_back: int


@event
class JobEvent(Event):
    """Something that happened to one job."""

    worker: str
    job: str
    kind: str
    attempt: int


@event
class JobStarted(JobEvent):
    """A handler begins, `waited` seconds after the job was due."""

    waited: float


@event
class JobDone(JobEvent):
    """A handler returned."""

    took: float


@event
class JobRetried(JobEvent):
    """A handler failed; its job runs again after `delay`."""

    level: ClassVar[int] = logging.WARNING

    error: str
    delay: float
    took: float
    traceback: str = ""


@event
class JobSnoozed(JobEvent):
    """A handler asked to run its job again after `delay`; the attempt does not count."""

    delay: float


@event
class JobDead(JobEvent):
    """A job is dead: it does not run again unless an operator retries it."""

    level: ClassVar[int] = logging.ERROR

    error: str
    traceback: str = ""


@event
class JobCancelled(JobEvent):
    """A job that somebody cancelled has ended: its handler was stopped, or did not begin."""

    level: ClassVar[int] = logging.INFO


@event
class JobGivenBack(JobEvent):
    """A job was given back unfinished: its worker stops, or the breaker of its kind opened."""

    level: ClassVar[int] = logging.INFO

    reason: str


@event
class JobTakenOver(JobEvent):
    """A worker claimed a job whose lease ran out: `lapsed_from` died or stood still."""

    level: ClassVar[int] = logging.WARNING

    lapsed_from: str


@event
class JobIsolated(JobEvent):
    """A suspect runs: its leases ran out twice or more in a row, so it may have killed its workers.

    Its worker claims no other job until it has ended, or has run for `alone_for` seconds.
    """

    level: ClassVar[int] = logging.WARNING

    alone_for: float


@event
class JobUnhandled(JobEvent):
    """A store that cannot select kinds delivered a job without a handler; it was given back."""

    level: ClassVar[int] = logging.WARNING

    delay: float


@event
class JobLocked(Event):
    """A worker has no key or codec for the payload of a job, and gave it back for `delay` seconds.

    Emitted at most once a minute per reason; `JobGivenBack` is emitted for each job.
    """

    level: ClassVar[int] = logging.ERROR

    worker: str
    job: str
    kind: str
    reason: str
    delay: float


@event
class KindUnhandled(Event):
    """Jobs of a kind that this worker has no handler for have been ready for over a minute.

    Emitted once per kind, with the id of the first such job; and once more for one with a `key`:
    the jobs behind it wait until somebody handles or cancels it. On `http://` queues without id and
    key, because a worker's token may only count jobs.
    """

    level: ClassVar[int] = logging.WARNING

    worker: str
    kind: str
    job: str
    key: str | None


@event
class JobLost(JobEvent):
    """A lease ran out while its worker ran the job, which may now run elsewhere.

    reason: that its handler blocked the event loop, if it did.
    """

    level: ClassVar[int] = logging.WARNING

    reason: str = ""


class KindTally(NamedTuple):
    """Counts of the jobs of one kind.

    counts: the number of jobs in each state.
    oldest_age: for how many seconds the oldest ready job has been due; 0 if none is ready.
    startable: how many of the ready jobs may start now: the kind and the queue are not paused, its
        limits have room, and not every worker that handles it has an open breaker.
    startable_age: as `oldest_age`, but 0 if no job may start.
    """

    kind: str
    counts: tuple[tuple[str, int], ...]
    oldest_age: float
    startable: int = 0
    startable_age: float = 0.0


class LimitTally(NamedTuple):
    """How the limits of a kind are used. most: how many may run at a time; None: any number."""

    kind: str
    running: int
    waiting: int
    most: int | None


@event
class QueueMeasured(Event):
    """The jobs of a queue by kind and state, its pauses and its workers, counted for metrics.

    paused: the kinds that are paused; "" is the whole queue. pauses_known: False if the store
    cannot pause. workers: how many are running; None if the store keeps no records of them.
    schedules: their names, and for how many seconds the next tick of each is overdue.
    limits: how those of some kinds are used.
    """

    kinds: tuple[KindTally, ...]
    paused: tuple[str, ...]
    pauses_known: bool
    workers: int | None
    schedules: tuple[tuple[str, float], ...] = ()
    limits: tuple[LimitTally, ...] = ()


@event
class QueueGone(Event):
    """A queue that an exporter measured is not in its store any more."""


@event
class QueuesLeftOut(Event):
    """A store has more queues than an exporter measures.

    names: queues that are not measured, at most as many as are measured. count: how many there are
    in all.
    """

    level: ClassVar[int] = logging.WARNING

    names: tuple[str, ...]
    count: int
