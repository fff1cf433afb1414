"""What the parts of a controller that see to jobs have in common."""

from __future__ import annotations

from pollwise.controller.options import ControllerOptions
from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.sqlite.one_file import OneFile
from pollwise.controller.workers.registry import Registry
from pollwise.queues.base import Queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events


class Part:
    """A part of a controller, with the stores and all else that it works on."""

    def __init__(
        self,
        state: ControllerState,
        queue: Queue,
        registry: Registry,
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
