"""Events of a controller."""

from __future__ import annotations

import logging
from typing import ClassVar

from pollwise.runtime.events.base import Event, event


@event
class WorkerRegistered(Event):
    """A worker registered with the controller."""

    level: ClassVar[int] = logging.INFO

    worker: str
    name: str


@event
class WorkerGone(Event):
    """The controller removed a worker: it unregistered, or was silent for too long."""

    level: ClassVar[int] = logging.INFO

    worker: str
    reason: str
    name: str = ""


@event
class WorkerSilent(Event):
    """A worker sent nothing for the heartbeat timeout and counts as offline."""

    level: ClassVar[int] = logging.WARNING

    worker: str
    name: str
    silent: float


@event
class PollAnswered(Event):
    """The controller answered a worker's poll: job, empty or too_soon."""

    worker: str
    result: str
    found: int
    took: float


@event
class PushChanged(Event):
    """A worker's WebSocket was opened or closed; `connections` are open now."""

    worker: str
    connections: int


@event
class HintPushed(Event):
    """A hint was sent to a worker over its WebSocket."""

    worker: str


@event
class JobPut(Event):
    """A job was put at a controller."""

    job: str
    kind: str


@event
class AgentJobEvent(Event):
    """Something that happened to a job that a worker runs for the controller."""

    worker: str
    job: str
    kind: str
    attempt: int


@event
class JobDelivered(AgentJobEvent):
    """A job went to a worker, having `waited` since it was put or last given back."""

    waited: float
    again: bool = False


@event
class JobReported(AgentJobEvent):
    """A worker reported how a job ended: done, failed, dead or cancelled."""

    result: str
    took: float
    error: str = ""


@event
class JobDied(AgentJobEvent):
    """A job is dead: its worker reported that its last attempt failed."""

    level: ClassVar[int] = logging.ERROR

    error: str


@event
class JobLapsed(AgentJobEvent):
    """A worker was silent for too long: its job goes to another, unless it is given up."""

    level: ClassVar[int] = logging.WARNING


@event
class JobGivenUp(AgentJobEvent):
    """A job is dead: its workers were silent in all its attempts, or it cannot be decoded."""

    level: ClassVar[int] = logging.ERROR

    error: str


@event
class ControllerCounted(Event):
    """How many jobs, workers and held polls there are, counted because a sink asked."""

    jobs: tuple[tuple[str, int], ...]
    online: int
    offline: int
    held: int


@event
class RequestAnswered(Event):
    """The controller answered a request other than a poll."""

    method: str
    route: str
    status: int
    took: float
