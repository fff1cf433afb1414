"""What `Jobs` and `Runs` share: their dependencies, and the reports of workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from pollwise.controller.options import ControllerOptions
from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.sqlite.one_file import OneFile
from pollwise.controller.workers.registry import WorkerRegistry
from pollwise.queues.base import Queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events


class ControllerPart:
    """A part of a controller that works on its queue and its state."""

    def __init__(
        self,
        state: ControllerState,
        queue: Queue,
        registry: WorkerRegistry,
        options: ControllerOptions,
        clock: Clock,
        events: Events,
    ) -> None:
        self._state = state
        self._queue = queue
        self._one_file = OneFile.of(queue, state)
        self._registry = registry
        self._options = options
        self._clock = clock
        self._events = events


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run, as its worker reports it."""

    job_id: str
    progress: float | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class RunReport:
    """How a run ended, as its worker reports it: done, failed or cancelled.

    last: its last progress, if that was not reported before.
    """

    job_id: str
    state: str
    result: str | None = None
    error: str | None = None
    exit_code: int | None = None
    last: RunProgress | None = None


@dataclass(slots=True)
class ContactResult:
    """What a worker is answered: the ids of jobs that it lost, and of those to cancel."""

    lost: list[str] = field(default_factory=list)
    cancel: list[str] = field(default_factory=list)
