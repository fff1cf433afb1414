"""For your own tests: pytest fixtures, a virtual clock, stores in memory, the conformance suite.

    from pollwise.testing import MemoryQueue, VirtualClock

    def test_my_handler():
        clock = VirtualClock()
        queue = MemoryQueue(clock=clock)
        clock.run(my_program(queue))  # an idle hour takes no time

Every pytest run can use the fixtures of `plugin`. `pollwise.testing.conformance` tests an
implementation of a queue, and `pollwise.testing.contracts` those of strategies, probes and
publishers. All of it is imported at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pollwise.outbox.stores.memory import MemoryOutboxStore
    from pollwise.queues.memory import MemoryQueue
    from pollwise.runtime.clock import VirtualClock
    from pollwise.testing import conformance
    from pollwise.testing.clock import SteppedClock
    from pollwise.testing.jobs import RecordedPut, RecordingQueue, WorkerTester, WorkerTesters

__all__ = [
    "MemoryOutboxStore",
    "MemoryQueue",
    "RecordedPut",
    "RecordingQueue",
    "SteppedClock",
    "VirtualClock",
    "WorkerTester",
    "WorkerTesters",
    "conformance",
]

_HOMES = {
    "MemoryOutboxStore": "pollwise.outbox.stores.memory",
    "MemoryQueue": "pollwise.queues.memory",
    "RecordedPut": "pollwise.testing.jobs",
    "RecordingQueue": "pollwise.testing.jobs",
    "SteppedClock": "pollwise.testing.clock",
    "VirtualClock": "pollwise.runtime.clock",
    "WorkerTester": "pollwise.testing.jobs",
    "WorkerTesters": "pollwise.testing.jobs",
}


def __getattr__(name: str) -> Any:
    if name == "conformance":
        return importlib.import_module("pollwise.testing.conformance")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
